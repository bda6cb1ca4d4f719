"""WHEN the driver is asked: the one writer of snapshots.

Rule 1: readers call `refresh` and get an immutable Snapshot; they never meet the driver.
Rule 2: one sweep at a time; whoever wants a snapshot while one is under way waits for that one (single flight).
Rule 3: a driver call cannot be cancelled. Every slot has a thread of its own; a thread that did not come back in
        time is not waited for again, so the deadline is paid once, and its late answer is thrown away.
Rule 4: a snapshot holds what this sweep read and nothing older.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from otelgpu.errors import SourceDownError
from otelgpu.fields import Field
from otelgpu.model import Device, Gap, GpuState, Sample, Snapshot
from otelgpu.snapshots import Assembler
from otelgpu.sources import DeviceDownError, Source
from otelgpu.worker import Worker

logger = logging.getLogger(__name__)

COUNT_SHARE = 0.25  # of the time a sweep has, for the question how many GPUs there are
GRACE = 0.1  # seconds a reader allows for a sweep to be put together after its deadline
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds between attempts to reach a driver that is not there


@dataclass(frozen=True, slots=True)
class Pace:
    """When to ask, in seconds. `interval` None: only when a reader wants a snapshot."""

    reuse: float = 1.0
    deadline: float = 2.0
    interval: float | None = None


@dataclass(slots=True)
class _Slot:
    """One slot's thread and what was last known of the GPU in it."""

    worker: Worker
    device: Device | None = None
    failure: str = ""  # the defect last logged


@dataclass(slots=True)
class _Round:
    """The answers of one sweep; thrown away with the round when they come too late."""

    pending: set[int] = field(default_factory=set)
    answers: dict[int, Sample | DeviceDownError | None] = field(default_factory=dict)
    count: int | SourceDownError | None = None


class Sampler:
    """Sweeps over all GPUs of one source, on demand or at a pace, and keeps the last snapshot.

    *wanted* are the fields asked for; *chosen* says which GPUs are looked at. `start` begins with one sweep.
    """

    def __init__(
        self,
        source: Source,
        wanted: Iterable[Field],
        *,
        pace: Pace,
        chosen: Callable[[Device], bool] = lambda _: True,
        repeat_parent: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._source = source
        self._pace = pace
        self._chosen = chosen
        self._clock = clock
        self._wall = wall
        self._assembler = Assembler(wanted, repeat_parent=repeat_parent)
        self._changed = threading.Condition()
        self._snapshot: Snapshot | None = None
        self._finished = 0  # sweeps
        self._sweeping = False
        self._wanted = False
        self._until = 0.0
        self._stopping = False
        self._was_good = False
        self._pause = 0.0
        self._retry_at = 0.0
        self._count: int | None = None
        self._slots: dict[int, _Slot] = {}
        self._driver = Worker("otelgpu-driver")
        self._thread = threading.Thread(target=self._run, name="otelgpu-sampler", daemon=True)

    # for readers

    @property
    def sweeps(self) -> int:
        """How many sweeps have been finished."""
        return self._finished

    @property
    def dropped(self) -> dict[str, int]:
        """How many answers were dropped as impossible, by field name."""
        return dict(self._assembler.dropped)

    @property
    def latest(self) -> Snapshot | None:
        """The last snapshot, however old."""
        return self._snapshot

    def refresh(self, deadline: float | None = None, *, max_age: float | None = None) -> Snapshot | None:
        """Return a snapshot no older than *max_age* (`reuse`); block at most *deadline* (the pace's) seconds for it.

        A shorter *deadline* than that of the sweep under way makes the sweep end sooner, without the GPUs that have
        not answered by then. None only when no sweep was ever finished in that time.
        """
        limit = self._pace.deadline if deadline is None else min(deadline, self._pace.deadline)
        with self._changed:
            if self._is_fresh(self._pace.reuse if max_age is None else max_age):
                return self._snapshot
            until = self._clock() + limit
            if self._sweeping or self._wanted:
                self._until = min(self._until, until)
            else:
                self._until = until
                self._wanted = True
            before = self._finished
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._finished != before or self._stopping, limit + GRACE)
            return self._snapshot

    def hasten(self, deadline: float) -> None:
        """Make the sweep under way, if any, end within *deadline* seconds."""
        with self._changed:
            self._until = min(self._until, self._clock() + deadline)
            self._changed.notify_all()

    def why_not_ready(self) -> str | None:
        """Say why there was no good sweep yet; None once there was one."""
        if self._was_good:
            return None
        snapshot = self._snapshot
        return "the first sweep is under way" if snapshot is None else snapshot.source_reason

    def why_not_alive(self) -> str | None:
        """Say why only a restart would help; None while all is well."""
        return None if self._thread.is_alive() or self._stopping else "the sampler's thread has ended"

    # life

    def start(self) -> None:
        """Start the thread and the first sweep; returns at once."""
        with self._changed:
            self._until = self._clock() + self._pace.deadline
            self._wanted = True
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """End all threads and let go of the driver within *timeout* seconds.

        False when a driver call is still under way: then the driver is left as it is, since shutting it down under a
        call is undefined, and the process has to leave without it.
        """
        until = time.monotonic() + timeout
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(max(until - time.monotonic(), 0))
        for slot in self._slots.values():
            slot.worker.stop()
        idle = [slot.worker.join(until - time.monotonic()) for slot in self._slots.values()]
        closed = all(idle) and not self._thread.is_alive() and self._driver.offer(self._source.close, lambda _: None)
        self._driver.stop()
        return self._driver.join(until - time.monotonic()) and closed

    # the sampler's own thread

    def _is_fresh(self, max_age: float) -> bool:
        snapshot = self._snapshot
        if snapshot is None:
            return False
        if self._pace.interval is not None:
            return True
        now = self._clock()
        return now - snapshot.at <= max_age or now < self._retry_at

    def _run(self) -> None:
        while self._await_turn():
            try:
                snapshot = self._sweep()
            except Exception:
                logger.exception("a sweep failed; the next one starts afresh")
                snapshot = None
            with self._changed:
                if snapshot is not None:
                    self._snapshot = snapshot
                    self._was_good = self._was_good or snapshot.source_up
                self._sweeping = False
                self._finished += 1
                self._changed.notify_all()

    def _await_turn(self) -> bool:
        with self._changed:
            while not self._stopping and not self._wanted:
                left = self._until_next()
                if left is not None and left <= 0:
                    self._until = self._clock() + self._pace.deadline
                    break
                self._changed.wait(left)
            self._wanted = False
            self._sweeping = not self._stopping
            return self._sweeping

    def _until_next(self) -> float | None:
        """Seconds until a sweep nobody asked for: the pace's, or another attempt at a driver that is not there."""
        due: list[float] = []
        if self._pace.interval is not None and self._snapshot is not None:
            due.append(self._snapshot.at - self._snapshot.seconds + self._pace.interval)
        if self._pause:
            due.append(self._retry_at)
        return min(due) - self._clock() if due else None

    def _sweep(self) -> Snapshot:
        started, started_unix = self._clock(), self._wall()
        sweep = _Round()
        reason = self._ask_count(sweep, started)
        states, samples = [], []
        if reason is None and self._count is not None:
            self._ask_slots(sweep, self._count)
            states, samples = self._settle(sweep, self._count)
        now = self._clock()
        return self._assembler.snapshot(
            states=states,
            samples=samples,
            facts=self._source.facts(),
            reason=reason,
            at=now,
            unix=self._wall(),
            started_unix=started_unix,
            seconds=now - started,
        )

    def _ask_count(self, sweep: _Round, started: float) -> str | None:
        """Find out how many slots there are; a reason when the source is down as a whole."""

        def ask() -> int | SourceDownError:
            try:
                return self._source.count()
            except SourceDownError as error:
                return error

        def deliver(answer: int | SourceDownError) -> None:
            with self._changed:
                sweep.count = answer
                self._changed.notify_all()

        asked = self._driver.offer(ask, deliver)
        if asked:
            share = 1.0 if self._count is None else COUNT_SHARE
            self._wait_for(lambda: sweep.count is not None, share=share, started=started)
        answer = sweep.count
        if isinstance(answer, SourceDownError):
            self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
            self._retry_at = self._clock() + self._pause
            self._count = None
            return str(answer)
        if answer is None:
            # The question hangs. The GPUs that were there are still asked: their own answer says more.
            if self._count is None:
                return "the driver does not answer"
        else:
            self._pause = self._retry_at = 0.0
            self._count = answer
        return None

    def _ask_slots(self, sweep: _Round, count: int) -> None:
        for number in range(count):
            slot = self._slots.get(number)
            if slot is None:
                slot = self._slots[number] = _Slot(Worker(f"otelgpu-gpu-{number}"))
            with self._changed:
                if slot.worker.offer(partial(self._read, number, slot), partial(self._deliver, sweep, number)):
                    sweep.pending.add(number)
        self._wait_for(lambda: not sweep.pending)

    def _read(self, number: int, slot: _Slot) -> Sample | DeviceDownError | None:
        """One slot's questions, in the slot's own thread; None for a GPU that is not chosen."""
        try:
            slot.device = self._source.device(number)
            return self._source.read(number) if self._chosen(slot.device) else None
        except DeviceDownError as error:
            return error
        except Exception as error:
            if repr(error) != slot.failure:
                slot.failure = repr(error)
                logger.exception("slot %d: reading the GPU failed; this is a defect of otelgpu", number)
            return DeviceDownError(Gap.FAILED, f"internal error: {error!r}")

    def _deliver(self, sweep: _Round, number: int, answer: Sample | DeviceDownError | None) -> None:
        with self._changed:
            sweep.answers[number] = answer
            sweep.pending.discard(number)
            self._changed.notify_all()

    def _wait_for(self, met: Callable[[], bool], *, share: float = 1.0, started: float = 0.0) -> None:
        """Wait until *met* or until the sweep's deadline, which a reader in a hurry may move up meanwhile."""
        with self._changed:
            while not met() and not self._stopping:
                now = self._clock()
                until = self._until if share == 1.0 else started + (self._until - started) * share
                if now >= until:
                    return
                self._changed.wait(until - now)

    def _settle(self, sweep: _Round, count: int) -> tuple[list[GpuState], list[Sample]]:
        """Turn the round's answers into a state for each GPU in sight, and the samples of those that answered."""
        with self._changed:
            answers = dict(sweep.answers)
        samples = [answer for answer in answers.values() if isinstance(answer, Sample)]
        states = [GpuState(sample.device, up=True) for sample in samples]
        answering = {sample.device.uuid for sample in samples}
        for number in range(count):
            slot = self._slots[number]
            answer = answers.get(number) if number in answers else DeviceDownError(Gap.TIMEOUT, _late(slot.worker))
            if not isinstance(answer, DeviceDownError):
                continue
            device = slot.device
            if device is None or device.uuid in answering:  # it was never told, or has moved to another slot
                device = Device(uuid="", gpu_uuid="", index=number, model="", pci_bus_id="")
            elif not self._chosen(device):
                continue
            states.append(GpuState(device, up=False, gap=answer.gap, reason=str(answer)))
        return states, samples


def _late(worker: Worker) -> str:
    since = worker.busy_since
    if since is None:
        return "the driver did not answer in time"
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since))
    return f"a driver call made at {at} has not returned"
