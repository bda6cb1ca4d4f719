"""WHEN the driver is asked: on demand, at a pace, and never twice at once.

Rule 1: time is turned by hand (`Clock`); the source is a script that answers at once unless a gate is shut.
Rule 2: what the driver itself does to a sweep is tested in tests/faults.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from otelgpu.config import Sampling
from otelgpu.errors import SourceDownError
from otelgpu.fields import CATALOGUE
from otelgpu.model import Device, Gap, Missing, Reading, Sample, Snapshot, SourceFacts
from otelgpu.pause import FIRST, LONGEST
from otelgpu.sampler import Sampler
from otelgpu.sources import DeviceDownError
from otelgpu.terms import Pace
from otelgpu.worker import Worker
from tests.fakenvml import models
from tests.faults.rig import FEW, POWER
from tests.harness import LIMIT, Node, lines_of, patient, until, values

Start = Callable[..., Node]

POWER_USAGE, TEMPERATURE, SERIAL, XID = CATALOGUE[155], CATALOGUE[150], CATALOGUE[53], CATALOGUE[230]
WANTED = (SERIAL, TEMPERATURE, POWER_USAGE, XID)


class Clock:
    """A clock that stands until it is turned; whoever waits for it is woken then."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.woken: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    def turn(self, seconds: float) -> None:
        self.now += seconds
        self.woken()


class Script:
    """A source that answers what it is told."""

    def __init__(self, gpus: int = 2) -> None:
        self.gpus = gpus
        self.serial = "1"
        self.watts: dict[int, float | Exception] = {}
        self.down: str | None = None
        self.defect: Exception | None = None
        self.counts = 0
        self.reads = 0
        self.closed = 0
        self.begun: dict[int, float] = {}  # what a slot has answered before its gate
        self.names: dict[int, int] = {}  # of the GPU in a slot, where it is not the slot's
        self.xids: dict[str, int] = {}
        self.gates: dict[object, threading.Event] = {}
        self.at_gate = threading.Semaphore(0)

    def shut(self, place: object) -> threading.Event:
        """Let nobody pass this place ("count", "close" or a slot) until the event is set."""
        self.gates[place] = threading.Event()
        return self.gates[place]

    def _pass(self, place: object) -> None:
        gate = self.gates.get(place)
        if gate is not None:
            self.at_gate.release()
            assert gate.wait(LIMIT)

    def count(self) -> int:
        self.counts += 1
        self._pass("count")
        if self.defect is not None:
            raise self.defect
        if self.down is not None:
            raise SourceDownError(self.down)
        return self.gpus

    def device(self, slot: int) -> Device:
        name = self.names.get(slot, slot)
        return Device(f"GPU-{name}", f"GPU-{name}", slot, "H100", f"00000000:0{name}:00.0", serial=self.serial)

    def read(self, slot: int) -> Sample:
        self.reads += 1
        self._pass(slot)
        watts = self.watts.get(slot, 100.0)
        if isinstance(watts, Exception):
            raise watts
        device = self.device(slot)
        readings = (Reading(SERIAL, device, self.serial), Reading(POWER_USAGE, device, watts))
        return Sample(device, (), readings, (Missing(TEMPERATURE, device, Gap.FAILED, "not now"),))

    def so_far(self, slot: int, reason: str) -> Sample | None:
        readings = (Reading(POWER_USAGE, self.device(slot), self.begun[slot]),) if slot in self.begun else ()
        gaps = () if readings else (Missing(POWER_USAGE, self.device(slot), Gap.TIMEOUT, reason),)
        return Sample(self.device(slot), (), readings, gaps)

    def heard(self, device: Device) -> Sequence[Reading]:
        return [Reading(XID, device, self.xids[device.uuid])] if device.uuid in self.xids else ()

    def facts(self) -> SourceFacts:
        return SourceFacts("script")

    def close(self) -> None:
        self._pass("close")
        self.closed += 1


class Bench:
    """A sampler over a script, with a clock to turn."""

    def __init__(self, *, gpus: int = 2, pace: Pace | None = None, start: bool = True) -> None:
        self.clock = Clock()
        self.script = Script(gpus)
        self.sampler = Sampler(
            self.script, WANTED, pace=pace or Pace(reuse=1.0, deadline=2.0), clock=self.clock, wall=self.clock
        )
        self.clock.woken = self.wake
        if start:
            self.sampler.start()
            self.swept(1)

    def wake(self) -> None:
        """Let whoever waits look at the clock."""
        with self.sampler._changed:  # noqa: SLF001
            self.sampler._changed.notify_all()  # noqa: SLF001

    def idle(self, slot: int) -> bool:
        """Whether the thread of a slot has delivered its answer."""
        worker = self.sampler._rounds._slots[slot].worker  # noqa: SLF001
        return worker.busy_since is None

    def shows(self, slot: int) -> bool:
        """Whether the answer of a slot has come in, in the sweep under way."""
        glance = self.sampler.refresh(0.0)
        return glance is not None and glance is not self.sampler.latest and f"GPU-{slot}" in glance.numbers.get(155, {})

    def swept(self, sweeps: int) -> None:
        """Wait until so many sweeps are finished."""
        until(lambda: self.sampler.sweeps >= sweeps, f"sweep {sweeps}")

    def look(self) -> Snapshot:
        snapshot = self.sampler.refresh()
        assert snapshot is not None
        return snapshot

    def end(self) -> None:
        for gate in self.script.gates.values():
            gate.set()
        self.sampler.stop(5)


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    """Start samplers over scripts; all are stopped afterwards."""
    made: list[Bench] = []

    def make(**settings: object) -> Bench:
        made.append(Bench(**settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.end()


def test_sixteen_readers_at_once_make_one_sweep(bench: Callable[..., Bench]) -> None:
    """Simultaneous scrapes and pushes put each question once."""
    running = bench()
    gate = running.script.shut(0)
    running.clock.turn(5)
    with ThreadPoolExecutor(16) as pool:
        readers = [pool.submit(running.look) for _ in range(16)]
        assert running.script.at_gate.acquire(timeout=LIMIT)
        gate.set()
        snapshots = {id(reader.result(LIMIT)) for reader in readers}

    assert len(snapshots) == 1
    assert running.sampler.sweeps == 2
    assert running.script.reads == 4


def test_a_reading_is_used_again_while_it_is_young(bench: Callable[..., Bench]) -> None:
    """Two Prometheus servers that scrape half a second apart cost the driver one sweep."""
    running = bench()
    first = running.look()
    running.clock.turn(1.0)
    assert running.look() is first
    running.clock.turn(0.001)

    assert running.look() is not first
    assert running.sampler.sweeps == 2


def test_nobody_looks_nothing_is_asked(bench: Callable[..., Bench]) -> None:
    """Idle GPUs may sleep."""
    running = bench()
    for _ in range(10):
        running.clock.turn(100)

    assert (running.sampler.sweeps, running.script.counts) == (1, 1)


def test_a_reader_in_a_hurry_gets_a_glance_of_its_own(
    bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever cannot wait gets what is there by then; the others get all of it, and no GPU is called down for that."""
    running = bench(pace=Pace(reuse=0, deadline=1000))
    gate = running.script.shut(1)
    running.script.begun[1] = 77.0
    with ThreadPoolExecutor(2) as pool:
        patient = pool.submit(running.look)
        assert running.script.at_gate.acquire(timeout=LIMIT)
        until(lambda: running.sampler.refresh(0.0) is not running.sampler.latest, "a glance")
        glance = pool.submit(running.sampler.refresh, 0.01).result(LIMIT)
        assert not patient.done()
        gate.set()
        snapshot = patient.result(LIMIT)

    assert glance is not None
    assert [state.up for state in glance.states] == [True, True]
    assert sorted(glance.numbers[155].values()) == [77.0, 100.0]
    assert snapshot is running.sampler.latest
    assert [state.up for state in snapshot.states] == [True, True]
    assert set(snapshot.numbers[155].values()) == {100.0}
    assert running.sampler.sweeps == 2
    assert not caplog.records


def test_a_glance_shows_no_value_of_a_gpu_that_has_not_answered(bench: Callable[..., Bench]) -> None:
    """It is absent with the reason, and whether the GPU is up is what it was."""
    running = bench(pace=Pace(reuse=0, deadline=1000))
    running.script.watts[0] = DeviceDownError(Gap.LOST, "lost")
    since = running.look().states[0].since_unix
    gates = [running.script.shut(slot) for slot in (0, 1)]
    running.clock.turn(5)
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(running.look)
        assert running.script.at_gate.acquire(timeout=LIMIT)
        until(lambda: running.sampler.refresh(0.0) is not running.sampler.latest, "a glance")
        glance = running.sampler.refresh(0.0)
        for gate in gates:
            gate.set()
        patient.result(LIMIT)

    assert glance is not None
    assert [(state.up, state.since_unix) for state in glance.states] == [(False, since), (True, 0.0)]
    assert not glance.numbers
    assert {(gap.device.index, gap.gap) for gap in glance.missing} >= {(1, Gap.TIMEOUT)}


def test_a_glance_shows_no_value_of_a_gpu_that_is_not_up(bench: Callable[..., Bench]) -> None:
    """One that was down, or is new, and has only begun to answer: its values would stand beside `gpu_up 0`, or none."""
    running = bench(pace=Pace(reuse=0, deadline=1000))
    running.script.watts[1] = DeviceDownError(Gap.LOST, "lost")
    running.look()
    running.script.watts.clear()
    running.script.gpus = 3
    running.script.begun |= {1: 77.0, 2: 78.0}
    gates = [running.script.shut(slot) for slot in (1, 2)]
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(running.look)
        assert running.script.at_gate.acquire(timeout=LIMIT)
        assert running.script.at_gate.acquire(timeout=LIMIT)
        until(lambda: running.shows(0), "the one that is up has answered")
        glance = running.sampler.refresh(0.0)
        for gate in gates:
            gate.set()
        snapshot = patient.result(LIMIT)

    assert glance is not None
    assert [state.up for state in glance.states] == [True, False]
    assert glance.numbers[155] == {"GPU-0": 100.0}
    assert set(snapshot.numbers[155]) == {"GPU-0", "GPU-1", "GPU-2"}


def test_a_gpu_that_always_answers_late_shows_what_it_answers_in_time(
    bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    """Slow is not stuck: the first time nobody can tell; from then on its quick answers are there, and the reason."""
    caplog.set_level("INFO")
    running = bench(pace=Pace(reuse=0, deadline=2.0))
    running.script.begun[1] = 88.0
    seen: list[Snapshot] = []
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            gate = running.script.shut(1)
            looking = pool.submit(running.look)
            assert running.script.at_gate.acquire(timeout=LIMIT)
            until(lambda: running.shows(0), "the other GPU has answered")
            running.clock.turn(2.1)
            seen.append(looking.result(LIMIT))
            running.clock.turn(1.0)
            gate.set()
            until(lambda: running.idle(1), "answered")
        running.script.gates.clear()
        whole = running.look()

    stuck, slow, still = seen
    assert [state.up for state in stuck.states] == [True, False]
    assert "has not answered what was asked at" in stuck.states[1].reason
    for snapshot in (slow, still):
        assert [state.up for state in snapshot.states] == [True, True]
        assert sorted(snapshot.numbers[155].values()) == [88.0, 100.0]
    assert caplog.text.count("takes 3.1 s to answer, and `sampling.deadline` is shorter") == 1
    assert set(whole.numbers[155].values()) == {100.0}
    assert caplog.text.count("slot 1 answers before the deadline again") == 1


def test_what_is_heard_of_a_gpu_that_is_down_stands_under_its_last_labels(bench: Callable[..., Bench]) -> None:
    """The XID that tells why it fell off the bus is what everybody looks for then."""
    running = bench(pace=Pace(reuse=0, deadline=2.0))
    running.script.watts[1] = DeviceDownError(Gap.LOST, "lost")
    running.script.xids["GPU-1"] = 79
    snapshot = running.look()

    assert snapshot.numbers[230] == {"GPU-1": 79}
    assert snapshot.labels["GPU-1"] == ((SERIAL, "1"),)
    assert [state.up for state in snapshot.states] == [True, False]


def test_a_gpu_that_is_in_two_slots_for_good_is_told_of(bench: Callable[..., Bench]) -> None:
    """For the length of a sweep it may have changed its slot; after that it is another one of the same name."""
    running = bench(pace=Pace(reuse=0, deadline=2.0))
    running.script.names[1] = 0
    first, second = running.look(), running.look()

    assert not any(state.gap is Gap.FAILED for state in first.states)
    (twin,) = [state for state in second.states if state.gap is Gap.FAILED]
    assert twin.reason == "00000000:00:00.0 calls itself GPU-0, as 00000000:00:00.0 does"
    assert second.numbers[155] == {"GPU-0": 100.0}


def test_uuids_without_end_do_not_fill_the_memory(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that makes up a new UUID each time is forgotten as fast."""
    most = 64
    monkeypatch.setattr("otelgpu.roster.MOST_KNOWN", most)
    running = bench(gpus=1, pace=Pace(reuse=0, deadline=2.0))
    for name in range(1, most + 50):
        running.script.names[0] = name
        snapshot = running.look()

    assert len(snapshot.states) == most
    assert [state.device.uuid for state in snapshot.states if state.up] == [f"GPU-{most + 49}"]


def test_the_deadline_is_paid_once(bench: Callable[..., Bench]) -> None:
    """A GPU known to be stuck is not waited for again; its late answer is thrown away."""
    running = bench(pace=Pace(reuse=0, deadline=2.0))
    gate = running.script.shut(1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(running.look)
        assert running.script.at_gate.acquire(timeout=LIMIT)
        running.clock.turn(1.9)
        assert not waiting.done()
        running.clock.turn(0.2)
        assert waiting.result(LIMIT).seconds == pytest.approx(2.1)
    reads = running.script.reads
    for _ in range(5):
        assert running.look().seconds == 0
    assert running.script.reads == reads + 5

    running.script.watts[1] = 7.0
    gate.set()
    until(lambda: all(state.up for state in running.look().states), "back by itself")
    assert 7.0 in running.look().numbers[155].values()


def test_a_driver_that_is_not_there_is_tried_less_and_less(bench: Callable[..., Bench]) -> None:
    """Pauses double up to half a minute, scrapes in between ask nothing, and the first success ends it."""
    running = bench(start=False)
    running.script.down = "no driver"
    running.sampler.start()
    running.swept(1)
    pause, attempts = FIRST, 1
    for _ in range(8):
        assert running.look().source_reason == "no driver"
        running.clock.turn(pause - 0.001)
        assert running.sampler.refresh(max_age=0) is running.sampler.latest
        assert running.script.counts == attempts
        running.clock.turn(0.002)
        attempts += 1
        running.swept(attempts)
        pause = min(pause * 2, LONGEST)
    assert pause == LONGEST
    assert running.sampler.why_not_ready() == "no driver"

    running.script.down = None
    running.clock.turn(LONGEST + 1)
    until(lambda: running.sampler.why_not_ready() is None, "the driver is found, though nobody asks")
    running.clock.turn(2)
    assert running.look().source_up


def test_a_source_that_answers_late_is_looked_at_at_once(bench: Callable[..., Bench]) -> None:
    """An nvmlInit of five seconds is longer than any deadline; the pod is ready when it is over, scraped or not."""
    running = bench(start=False)
    gate = running.script.shut("count")
    running.sampler.start()
    assert running.script.at_gate.acquire(timeout=LIMIT)
    running.clock.turn(2.1)
    running.swept(1)
    assert running.sampler.why_not_ready() == "the driver does not answer"
    gate.set()

    until(lambda: running.sampler.why_not_ready() is None, "ready")


def test_a_pace_needs_no_readers(bench: Callable[..., Bench]) -> None:
    """With an interval sweeps are made at that pace, and readers take what is there."""
    running = bench(pace=Pace(reuse=0, deadline=2.0, interval=10.0))
    for sweeps in range(1, 6):
        running.clock.turn(9.9)
        assert running.look() is running.sampler.latest
        assert running.sampler.sweeps == sweeps
        running.clock.turn(0.1)
        running.swept(sweeps + 1)


def test_who_wants_the_gpus_looked_at_soon_gets_one_sweep(bench: Callable[..., Bench]) -> None:
    """An XID has them looked at; a thousand of them do so once a second."""
    running = bench()
    for _ in range(3):
        running.sampler.look()
    running.clock.turn(0.9)
    assert running.sampler.sweeps == 1
    running.clock.turn(0.1)
    running.swept(2)
    running.clock.turn(50)
    running.look()

    assert running.sampler.sweeps == 3  # the reader's; none of its own accord


def test_who_wants_the_gpus_looked_at_does_not_slow_a_pace(bench: Callable[..., Bench]) -> None:
    """A node that sweeps ten times a second goes on doing so after an XID."""
    running = bench(pace=Pace(reuse=0, deadline=2.0, interval=0.1))
    running.sampler.look()
    running.clock.turn(0.1)

    running.swept(2)


def test_a_pace_does_not_try_a_dead_driver_faster_than_it_should(bench: Callable[..., Bench]) -> None:
    """The pauses hold for a fast pace too."""
    running = bench(pace=Pace(reuse=0, deadline=2.0, interval=0.1))
    running.script.down = "gone"
    for attempts in range(1, 4):
        running.clock.turn(LONGEST)
        running.swept(attempts + 1)
        counts = running.script.counts
        running.clock.turn(0.2)
        running.look()
        assert running.script.counts == counts


def test_a_defect_costs_a_sweep_and_not_the_thread(
    bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a source raises, the page is served and says what is wrong."""
    running = bench()
    running.script.defect = RuntimeError("oops")
    running.clock.turn(5)
    assert running.look().source_reason == "internal error: RuntimeError('oops')"
    assert "oops" in caplog.text
    running.script.defect = None
    running.clock.turn(FIRST + 0.1)

    running.swept(3)
    assert running.sampler.why_not_alive() is None
    assert running.look().source_up


def test_a_defect_in_reading_costs_that_gpu(bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture) -> None:
    """Logged with its traceback once, not with every sweep."""
    running = bench(pace=Pace(reuse=0, deadline=2.0))
    running.script.watts[1] = ZeroDivisionError("oops")
    for _ in range(3):
        states = running.look().states

    assert [state.up for state in states] == [True, False]
    assert states[1].gap is Gap.FAILED
    assert caplog.text.count("Traceback") == 1


def test_an_answer_that_nobody_can_use_costs_a_sweep(
    bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    """A defect where snapshots are made: the last one stays until it is too old; the next attempt is not at once."""
    running = bench(pace=Pace(reuse=0, deadline=2.0, interval=1.0))
    running.script.watts[1] = None  # type: ignore[assignment]
    before = running.sampler.latest
    running.clock.turn(1)
    running.swept(2)
    running.script.watts.clear()
    assert running.sampler.latest is before
    assert "a sweep failed" in caplog.text
    running.clock.turn(FIRST)

    running.swept(3)
    assert running.sampler.latest is not before
    assert running.sampler.sweeps == 3


def test_the_number_of_the_identity_changes_with_what_is_joined(bench: Callable[..., Bench]) -> None:
    """What was joined for one identity is kept for all snapshots with it: too often costs time, too seldom is wrong."""
    running = bench(pace=Pace(reuse=0, deadline=2.0))
    first = running.look().identity
    running.script.watts[0] = 55.0
    assert running.look().identity == first  # a number is no part of it
    running.script.serial = "2"
    second = running.look().identity
    assert second != first
    assert running.look().identity == second
    running.script.gpus = 3
    third = running.look().identity
    assert third not in (first, second)
    running.script.watts[2] = DeviceDownError(Gap.LOST, "lost")
    fourth = running.look().identity
    assert fourth != third  # its series are gone

    assert running.look().identity == fourth


def test_what_is_not_ready_looks_again_by_itself(bench: Callable[..., Bench]) -> None:
    """A pod that nobody scrapes would else stay unready after its GPUs are back; one that is ready asks nothing."""
    running = bench(pace=Pace(reuse=0, deadline=2.0, expected=2))
    running.script.watts[1] = DeviceDownError(Gap.LOST, "lost")
    running.look()
    assert running.sampler.why_not_ready() == "1 of the 2 expected GPUs answer"
    running.script.watts.clear()
    running.clock.turn(LONGEST - 1)
    assert running.sampler.sweeps == 2
    running.clock.turn(1)
    running.swept(3)
    until(lambda: running.sampler.why_not_ready() is None, "ready")
    running.clock.turn(10 * LONGEST)

    assert running.sampler.sweeps == 3


def test_a_sweep_that_does_not_end_is_told_of(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler's thread itself hangs: no driver can do that, so it is a defect, and to be seen from outside."""
    running = bench(pace=Pace(reuse=0, deadline=2.0))
    gate, entered = threading.Event(), threading.Event()

    def stuck(*_: object, **__: object) -> None:
        entered.set()
        assert gate.wait(LIMIT)

    monkeypatch.setattr(running.sampler._assembler, "snapshot", stuck)  # noqa: SLF001
    with ThreadPoolExecutor(1) as pool:
        pool.submit(running.sampler.refresh)
        assert entered.wait(LIMIT)
        assert running.sampler.why_not_ready() is None
        running.clock.turn(10)
        assert running.sampler.why_not_ready() == "a sweep that began 10 s ago has not ended"
        monkeypatch.undo()
        gate.set()


def test_since_when_a_gpu_is_down_stays(bench: Callable[..., Bench]) -> None:
    """The time of the first sweep without it, until it is back."""
    running = bench(pace=Pace(reuse=0, deadline=2.0))
    running.clock.turn(1)
    running.script.watts[1] = DeviceDownError(Gap.LOST, "lost")
    began = running.look().states[1].since_unix
    running.clock.turn(50)

    assert began == 1001.0
    assert running.look().states[1].since_unix == began
    running.script.watts.clear()
    assert running.look().states[1].since_unix == 0.0


def test_the_end_lets_go_of_the_driver_once(bench: Callable[..., Bench]) -> None:
    """Told twice, it is done once; without having been started, there is still something to let go of."""
    running = bench()
    assert running.sampler.stop(5)
    assert running.sampler.stop(5)
    assert running.script.closed == 1

    unused = bench(start=False)
    assert unused.sampler.stop(5)
    assert unused.script.closed == 1


@pytest.mark.parametrize("place", ["count", 1])
def test_the_driver_is_not_let_go_of_under_a_call(place: object) -> None:
    """Shutting down under a call is undefined: the call is given up after the deadline, and False says so."""
    running = Bench(pace=Pace(reuse=0, deadline=0.2), start=False)
    gate = running.script.shut(place)
    running.sampler.start()
    assert running.script.at_gate.acquire(timeout=LIMIT)
    began = time.monotonic()

    assert not running.sampler.stop(5)
    assert time.monotonic() - began < patient(1)
    assert running.script.closed == 0
    gate.set()
    until(lambda: running.sampler.stop(5), "the call has returned after all")
    assert running.script.closed == 1


def test_an_end_of_the_source_that_hangs_is_given_up() -> None:
    """The second attempt does not call it again."""
    running = Bench()
    gate = running.script.shut("close")

    assert not running.sampler.stop(0.1)
    assert not running.sampler.stop(0.1)
    gate.set()
    assert running.sampler.stop(5)
    assert running.script.closed == 1


def test_readers_are_let_go_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """A request under way must not hold the process for a deadline."""
    running = Bench(pace=Pace(reuse=0, deadline=1000))
    before = running.sampler.latest
    running.script.shut(0)
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(running.sampler.refresh)
        assert running.script.at_gate.acquire(timeout=LIMIT)
        stopping = threading.Thread(target=running.sampler.stop, args=(0.1,))
        stopping.start()

        assert reader.result(LIMIT) is before
        stopping.join(LIMIT)
    running.end()
    assert running.sampler.latest is before
    assert not caplog.records  # a GPU that could not answer before the end is not down


def test_no_threads_are_left(bench: Callable[..., Bench]) -> None:
    """Embedded, otelgpu comes and goes in somebody else's process."""
    before = threading.active_count()
    running = bench(gpus=8)
    assert threading.active_count() == before + 10  # the sampler, the driver, and one for each GPU
    running.sampler.stop(5)

    assert threading.active_count() == before


def test_an_old_reading_is_not_shown_and_the_page_is(node: Start) -> None:
    """Points are stamped when they are scraped: an old value would look new. otelgpu's own state stays."""
    running = node(models.h100(2), fields=FEW, sampling=Sampling(reuse=0, expire=patient(0.2)))
    assert len(values(running.page(), POWER)) == 2
    latest = running.pipeline.sampler.latest
    assert latest is not None
    until(lambda: not running.pipeline.is_fresh(latest), "the reading is old")
    page = running.page(sweep=False)

    assert not [line for line in lines_of(page) if line.name.startswith("DCGM_")]
    assert values(page, "otelgpu_source_up", by="source") == {"nvml": 1}
    assert values(page, "otelgpu_snapshot_age_seconds")[""] >= 0.2
    assert len(values(running.page(), POWER)) == 2


def test_a_worker_refuses_a_second_job_and_ends_after_the_first() -> None:
    """One call at a time for a GPU, and no job is lost or done after the end."""
    worker = Worker("w")
    gate, entered = threading.Event(), threading.Event()
    done: list[object] = []

    def job() -> bool:
        entered.set()
        return gate.wait(LIMIT)

    assert worker.offer(job, done.append)
    assert entered.wait(LIMIT)
    assert worker.busy_since is not None
    assert not worker.offer(lambda: 2, done.append)
    worker.stop()
    assert not worker.join(0)
    gate.set()

    assert worker.join(LIMIT)
    assert done == [True]
    assert not worker.offer(lambda: 3, done.append)


def test_a_job_that_fails_leaves_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    """A defect is logged; the thread, and with it the GPU, goes on."""
    worker = Worker("w")
    done: list[int] = []
    assert worker.offer(lambda: 1 // 0, done.append)
    until(lambda: worker.offer(lambda: 1, done.append), "idle again")
    worker.stop()

    assert worker.join(LIMIT)
    assert done == [1]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("answer", [None, "gone"])
def test_a_count_that_comes_while_gpus_are_asked_is_heard(answer: str | None, bench: Callable[..., Bench]) -> None:
    """The GPUs are asked before the count is there; what it says then still holds for this sweep."""
    running = bench(pace=Pace(reuse=0, deadline=2.0))
    counting, reading = running.script.shut("count"), running.script.shut(1)
    running.script.down = answer
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(running.look)
        assert running.script.at_gate.acquire(timeout=LIMIT)
        running.clock.turn(0.6)  # the count's share of the time is over
        assert running.script.at_gate.acquire(timeout=LIMIT)
        del running.script.gates["count"], running.script.gates[1]
        counting.set()
        until(lambda: running.sampler._rounds._driver.busy_since is None, "counted")  # noqa: SLF001
        reading.set()
        snapshot = looking.result(LIMIT)

    assert snapshot.source_reason == (answer or "")
    assert [state.up for state in snapshot.states] == [True, True]


def test_a_sweep_at_its_own_pace_has_the_whole_deadline(bench: Callable[..., Bench]) -> None:
    """What an earlier sweep left of its time is not the measure, or healthy GPUs would be down every other time."""
    running = bench(pace=Pace(reuse=0, deadline=2.0, interval=1.9))
    gate = running.script.shut(0)
    running.clock.turn(1.9)
    assert running.script.at_gate.acquire(timeout=LIMIT)
    running.clock.turn(1.5)  # beyond the time of the first sweep, within that of the second
    gate.set()
    running.swept(2)
    snapshot = running.sampler.latest

    assert snapshot is not None
    assert [state.up for state in snapshot.states] == [True, True]
