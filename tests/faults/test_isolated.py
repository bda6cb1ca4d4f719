"""The driver asked in a process of its own: what crashes in the library takes that process along, and not the page."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from otelgpu.config import Processes, Sampling, SourceChoice
from otelgpu.counts import Counting
from otelgpu.errors import ConfigError, SourceDownError
from otelgpu.events import unheard
from otelgpu.fields import CATALOGUE
from otelgpu.model import Gap
from otelgpu.rounds import NO_ANSWER
from otelgpu.sources import DeviceDownError
from otelgpu.sources.choice import make_source
from otelgpu.sources.isolated import IsolatedSource
from otelgpu.sources.isolated.process import PROGRAM
from otelgpu.sources.nvml.order import Order
from tests.fakenvml import Counts, Fake, Typed, library, models
from tests.fakenvml.everything import everything
from tests.faults.rig import FEW, check_truth, distinct, missing, source_up, states, up
from tests.harness import Node, config, serving, short, until, values

Start = Callable[..., Node]

PAIR = distinct(models.h100(2))
NAMES = [gpu.uuid for gpu in PAIR.gpus]
XID = "DCGM_FI_DEV_XID_ERRORS"
CRASH = "nvmlDeviceGetPowerUsage"
STARTING = ("the first sweep is under way", NO_ANSWER)  # on a slow machine for longer than a sweep may take
GONE = 5.0  # seconds after the signal


@pytest.fixture
def isolated(node: Start, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start pipelines that ask the fake in another process."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library()))
    monkeypatch.setenv("FAKENVML_SCENARIO", str(fake.path))
    monkeypatch.setenv("FAKENVML_COUNTS", str(tmp_path / "counts"))

    def start(*arguments: object, **settings: object) -> Node:
        sampling = settings.pop("sampling", Sampling(reuse=0))
        assert isinstance(sampling, Sampling)
        started = node(*arguments, sampling=replace(sampling, isolate=True), **settings)
        until(lambda: started.pipeline.sampler.why_not_ready() not in STARTING, "the other process has started")
        return started

    return start


@pytest.fixture
def counts(tmp_path: Path) -> Counts:
    """What the other process has called."""
    return Counts(tmp_path / "counts")


def children() -> set[int]:
    """The children of this process that ask a driver, and are not dead; other tests leave a process that forks."""
    return children_of(os.getpid())


def children_of(pid: int) -> set[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    found = {int(child) for task in tasks for child in (task / "children").read_text().split()}
    return {child for child in found if is_alive(child) and PROGRAM.encode() in command_of(child)}


def command_of(pid: int) -> bytes:
    """The command line of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def is_alive(pid: int) -> bool:
    """Whether a process is there, and no mere entry that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def readings(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith(("DCGM_", "otelgpu_missing", "otelgpu_owner_"))]


def test_the_page_is_the_same(node: Start, isolated: Start, fake: Fake) -> None:
    """Every field, MIG instances and processes too; and in this process no driver is loaded."""
    settings = {"fields": ("all",), "processes": Processes(by="process")}
    here = node(models.h100_mig(), **settings)
    expected = readings(here.settled_page())
    here.stop()
    fake.reset_calls()
    there = isolated(models.h100_mig(), **settings)

    assert readings(there.settled_page()) == expected
    assert len(expected) > 500
    assert fake.calls() == 0


def test_a_number_beyond_any_message_costs_its_field(isolated: Start) -> None:
    """What eighteen links of nearly 2^63 add up to cannot be sent, and cannot be true: it is dropped, nothing else."""
    most = {(201, link): Typed("u64", 2**63 - 17) for link in range(18)}
    packets = "DCGM_FI_DEV_NVLINK_COUNT_TX_PACKETS"
    page = isolated(everything().with_gpu(0, fields=most), fields=(*FEW, packets)).page()

    assert set(up(page).values()) == {1}
    assert missing(page) == {"invalid": 1}


def test_a_crash_costs_a_moment(isolated: Start, counts: Counts, caplog: pytest.LogCaptureFixture) -> None:
    """The page is served on with all GPUs down and the reason; the library is loaded anew, more and more seldom."""
    running = isolated(PAIR, fields=FEW)
    assert check_truth(running.page()) == set(NAMES)
    running.show(PAIR.with_gpu(1, crashes={CRASH}))
    assert up(running.page())[NAMES[1]] == 0  # the other one may have answered before
    page = running.page()

    assert not check_truth(page)
    assert up(page) == dict.fromkeys(NAMES, 0)
    assert source_up(page) == 0
    assert states(page) == {"up": 0, "failed": 2}
    assert running.pipeline.sampler.why_not_ready() == ("the driver library has crashed (SIGSEGV), and is loaded again")
    until(lambda: running.page() != "" and counts.calls(CRASH, 1) > 2, "it is tried again, and crashes")
    starts = counts.calls("nvmlInitWithFlags")
    for _ in range(20):
        running.page()
    assert counts.calls("nvmlInitWithFlags") <= starts + 1

    running.show(PAIR)
    until(lambda: check_truth(running.page()) == set(NAMES), "the GPUs are back")
    assert sum("crashed" in record.getMessage() for record in caplog.records if record.name == "otelgpu.snapshots") >= 1
    assert running.stop()
    assert not children()


def test_a_crash_at_the_start_is_got_over(isolated: Start) -> None:
    """The page is there and says why; then the driver is."""
    running = isolated(PAIR.but(crashes={"nvmlInit_v2"}), fields=FEW)

    assert source_up(running.page()) == 0
    assert "crashed (SIGSEGV)" in (running.pipeline.sampler.why_not_ready() or "")
    running.show(PAIR)
    until(lambda: running.pipeline.sampler.why_not_ready() is None, "ready, though nobody asks for a page")
    assert check_truth(running.page()) == set(NAMES)


def test_a_process_that_somebody_kills_is_started_again(isolated: Start) -> None:
    """The kernel does when memory is short."""
    running = isolated(PAIR, fields=FEW)
    (child,) = children()
    os.kill(child, signal.SIGKILL)
    until(lambda: source_up(running.page()) == 0, "the end is seen")

    assert "was ended by SIGKILL" in (running.pipeline.sampler.why_not_ready() or "")
    until(lambda: check_truth(running.page()) == set(NAMES), "the GPUs are back")


def test_a_hang_costs_one_gpu_there_too(isolated: Start) -> None:
    """As without a second process; what a slow GPU has answered in time is shown."""
    sampling = short(1.0)
    running = isolated(PAIR, fields=FEW, sampling=sampling)
    running.show(PAIR.with_gpu(1, hangs={CRASH}))
    running.page()
    began = time.monotonic()
    page = running.page()

    assert time.monotonic() - began < sampling.deadline
    assert check_truth(page) == {NAMES[0]}
    assert up(page) == {NAMES[0]: 1, NAMES[1]: 0}
    running.show(PAIR)
    until(lambda: check_truth(running.page()) == set(NAMES), "the GPU is back")


def test_what_the_driver_tells_comes_through(isolated: Start) -> None:
    """XIDs, also of a GPU that is lost with one."""
    running = isolated(PAIR, fields=(*FEW, XID))
    running.page()
    told = PAIR.with_xid(1, 79)
    running.show(told)
    until(lambda: values(running.page(), XID) == {"0": 0, "1": 79}, "the XID")
    running.show(told.with_gpu(1, lost=True))

    page = running.page()
    assert states(page) == {"up": 1, "lost": 1}
    assert values(page, XID) == {"0": 0, "1": 79}


def test_letting_go_ends_the_process(isolated: Start) -> None:
    """Nothing holds the driver then, a call that hangs neither."""
    running = isolated(PAIR, fields=FEW, sampling=Sampling(reuse=0, deadline=1.0))
    sampler = running.pipeline.sampler
    assert sampler.release() is None
    assert not children()
    sampler.resume()
    until(lambda: check_truth(running.page()) == set(NAMES), "the GPUs are back")

    for hanging in (PAIR.with_gpu(1, hangs={CRASH}), PAIR.but(hangs={"nvmlDeviceGetCount_v2"})):
        running.show(hanging)
        running.page()
        running.page()
        assert sampler.release() is None
        assert not children()
        running.show(PAIR)
        sampler.resume()
        until(lambda: check_truth(running.page()) == set(NAMES), "the GPUs are back after the hang")


def test_a_process_that_is_frozen_shows_no_old_values(isolated: Start) -> None:
    """It is asked once what it knows, and not for each GPU: the page is there in time, and says that none answers."""
    running = isolated(distinct(models.h100(8)), fields=FEW, sampling=short(0.5))
    (child,) = children()
    os.kill(child, signal.SIGSTOP)
    try:
        running.page()
        page = running.page()
    finally:
        os.kill(child, signal.SIGCONT)

    assert set(up(page).values()) == {0}
    assert check_truth(page) == set()
    until(lambda: set(up(running.page()).values()) == {1}, "it goes on")


@pytest.mark.usefixtures("isolated")
def test_a_process_in_which_a_call_hangs_is_ended(fake: Fake) -> None:
    """A lock in the library is gone with it; the next count asks in a new process."""
    fake.show(PAIR)
    ids = tuple(field.id for field in CATALOGUE.values() if field.name in FEW)
    order = Order(
        fields=ids, telling=None, proc_root="/proc", slow_interval=0, counting=Counting(), sys_root=None, driver_root=""
    )
    source = IsolatedSource(order, unheard, patience=1.0)
    until(lambda: counted(source) == 2, "it has started, in time or after one that had not")
    assert source.device(1).uuid == NAMES[1]
    fake.show(PAIR.with_gpu(1, hangs={CRASH}))
    errors: list[DeviceDownError] = []

    def read() -> None:
        try:
            source.read(1)
        except DeviceDownError as error:
            errors.append(error)

    before = children()
    thread = threading.Thread(target=read)
    thread.start()
    thread.join(20)
    assert [error.gap for error in errors] == [Gap.FAILED]
    assert "had not returned after" in str(errors[0])
    until(lambda: not before & children(), "it is gone")

    fake.show(PAIR)
    until(lambda: counted(source) == 2, "the driver is asked again, after a pause")
    assert source.device(1).uuid == NAMES[1]
    assert len(source.read(1).readings) == len(FEW)
    source.close()
    assert not children()


def counted(source: IsolatedSource) -> int | None:
    try:
        return source.count()
    except SourceDownError:
        return None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_both_end(number: signal.Signals, tmp_path: Path, cc: Path) -> None:
    """In time, with a call that hangs; whatever ends the one, the other is no orphan."""
    assert cc.exists()
    flags = ("--isolate", "--fields", ",".join(FEW), "--reuse", "0", "--deadline", "1")
    with serving(PAIR, tmp_path, *flags) as served:
        until(lambda: check_truth(served.page()) == set(NAMES), "pages are served")
        (child,) = children_of(served.process.pid)
        PAIR.with_gpu(1, hangs={CRASH}).write(served.scenario)
        served.page()
        began = time.monotonic()
        code = served.stop(number)
        seconds = time.monotonic() - began
        until(lambda: not is_alive(child), "no orphan is left")

        assert code == (0 if number == signal.SIGTERM else -signal.SIGKILL)
        assert seconds < GONE
        assert "Traceback" not in "".join(served.log)


def test_a_simulated_node_has_nothing_to_isolate() -> None:
    """An option that does nothing is refused."""
    with pytest.raises(ConfigError, match="a simulated node has no driver; leave it off there"):
        make_source(config(SourceChoice("simulated", "t4"), sampling=Sampling(isolate=True)), (), isolate=True)
