"""What DCGM does when it fails: engines that are away, frozen, started anew, GPUs that are lost, calls that hang."""

import ctypes
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otelgpu.config import Sampling
from otelgpu.sources.dcgm.library import Library
from otelgpu.sources.dcgm.structs import ConnectParams, Handle, version_of
from tests.fakedcgm import Blank, Code, Fake, Status, Time, Timed, library, models
from tests.faults.rig import source_up, states, timed_page, up
from tests.harness import ENGINE, Node, lines_of, patient, serving, short, until, values

Start = Callable[..., Node]

TEMPERATURE, POWER = FEW = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE")
USED = "DCGM_FI_DEV_FB_USED"
FRAMEWORK = (*FEW, USED, "DCGM_FI_DEV_SM_CLOCK")
DEADLINE = 0.4
ROOM = 3.0  # seconds beyond the deadline: the machine may be busy, and a call that is waited for takes for ever
WHOLE = models.h100(3)
MICRO = 1_000_000


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is away is tried again soon: how the pauses grow is the sampler's, and tested there."""
    monkeypatch.setattr("otelgpu.pause.FIRST", 0.02)


@pytest.fixture(autouse=True)
def nothing_left(engine: Fake) -> Iterator[None]:
    """Whatever breaks, in the end all is given back, and nothing was shut down under a call."""
    yield
    assert (engine.inits, engine.handles, engine.groups, engine.field_groups, engine.watches) == (0, 0, 0, 0, 0)
    assert engine.overlaps == 0


def down(node: Node) -> dict[int, str]:
    """Why GPUs are down, by index."""
    return {state.device.index: state.reason for state in node.sweep().states if not state.up}


def test_an_engine_that_comes_later_is_found(dcgm_node: Start) -> None:
    """Both are started by the same boot, in any order; dcgm-exporter ends, and is started over and over."""
    running = dcgm_node(WHOLE.but(gone=True), fields=FEW)
    away = running.page()
    reason = running.sweep().source_reason
    running.show(WHOLE)

    assert source_up(away) == 0
    assert not values(away, TEMPERATURE)
    assert reason == (
        f"the host engine at {ENGINE} does not answer: dcgmConnect_v2: fakedcgm: DCGM_ST_CONNECTION_NOT_VALID"
    )
    assert running.pipeline.obstacle() is None
    until(lambda: values(running.page(), TEMPERATURE) == {"0": 29, "1": 30, "2": 31}, "the engine is found")


def test_an_engine_that_ends_and_comes_back_is_asked_again(dcgm_node: Start, caplog: pytest.LogCaptureFixture) -> None:
    """dcgm-exporter ends then. Its groups and watches have gone with the engine, and their numbers are others now."""
    running = dcgm_node(WHOLE, fields=(*FEW, "DCGM_FI_PROF_SM_ACTIVE"))
    assert states(running.page())["up"] == 3
    running.show(WHOLE.but(gone=True))
    away = running.page()
    running.page()
    running.show(WHOLE.but(engine=2))

    assert source_up(away) == 0
    assert list(up(away).values()) == [0, 0, 0]
    assert not values(away, TEMPERATURE)
    until(lambda: values(running.page(), "DCGM_FI_PROF_SM_ACTIVE").keys() == {"0", "1", "2"}, "the engine is back")
    assert sum("source dcgm is down" in text for text in caplog.messages) == 1


def test_an_engine_that_was_started_anew_costs_no_page(dcgm_node: Start) -> None:
    """It is connected to again in the same sweep."""
    running = dcgm_node(WHOLE, fields=FEW)
    for number in range(2, 6):
        running.show(WHOLE.but(engine=number))

        assert values(running.page(), TEMPERATURE) == {"0": 29, "1": 30, "2": 31}


def test_an_address_that_swallows_everything_costs_a_part_of_the_deadline(dcgm_node: Start) -> None:
    """A closed port uses up the time that a connection is given; whoever looks hears why before he gives up."""
    running = dcgm_node(WHOLE.but(addresses=("10.0.0.1:1",), slow_refusal=True), fields=FEW, sampling=short(2.0))
    page = running.page(sweep=False)

    assert source_up(page) == 0
    assert "does not answer: dcgmConnect_v2" in running.sweep().source_reason


def test_an_engine_that_has_stopped_to_sample_shows_nothing(dcgm_node: Start) -> None:
    """Its last values would look like GPUs at rest: dcgm-exporter shows them for ever."""
    running = dcgm_node(WHOLE, fields=FRAMEWORK)
    assert states(running.page())["up"] == 3
    running.show(WHOLE.but(time=Time(age=60)))
    page = running.page()

    assert not values(page, TEMPERATURE)
    assert states(page) == {"up": 0, "timeout": 3}
    assert down(running)[0] == "every value is missing: the engine has taken no value for 60 s"
    running.show(WHOLE)
    assert values(running.page(), TEMPERATURE) == {"0": 29, "1": 30, "2": 31}


def test_another_machines_clock_does_not_matter(dcgm_node: Start) -> None:
    """Values from an engine elsewhere are as old as they have not changed their time, whatever time that is."""
    then = int((time.time() - 86400) * MICRO)
    ticking, frozen = WHOLE.but(time=Time(at=then, step=MICRO)), WHOLE.but(time=Time(at=then))
    running = dcgm_node(ticking, address="10.1.2.3:5555", fields=FRAMEWORK, sampling=Sampling(reuse=0, expire=0.2))
    assert values(running.page(), TEMPERATURE) == {"0": 29, "1": 30, "2": 31}
    running.show(frozen)
    until(lambda: not values(running.page(), TEMPERATURE), "the values to be too old")

    assert re.fullmatch(r"every value is missing: the engine has taken no value for \d s", down(running)[0])
    running.show(ticking)
    running.page()
    assert values(running.page(), TEMPERATURE).keys() == {"0", "1", "2"}


def test_one_frozen_value_costs_itself(dcgm_node: Start) -> None:
    """An engine may be held up by one field."""
    running = dcgm_node(WHOLE, fields=FRAMEWORK)
    running.page()
    running.show(WHOLE.with_gpu(1, fields={150: Timed(30, Time(age=3600))}))
    page = running.page()

    assert values(page, TEMPERATURE).keys() == {"0", "2"}
    assert values(page, POWER).keys() == {"0", "1", "2"}
    (gap,) = running.sweep().missing
    assert (gap.device.index, gap.gap, gap.reason) == (1, "timeout", "the engine has taken no value for 3600 s")


FATES: dict[str, tuple[dict[str, Any], str, str]] = {
    "lost": ({"status": Status.LOST}, "lost", "the engine says that it is lost"),
    "detached": ({"status": Status.DETACHED}, "lost", "the engine says that it is detached"),
    "lost by its values": ({"fields": dict.fromkeys((150, 155), Code(-18))}, "lost", "the GPU is lost"),
    "reset": ({"fields": dict.fromkeys((150, 155), Code(-19))}, "lost", "the GPU needs a reset"),
    "mute": (
        {"fields": dict.fromkeys((100, 150, 155, 252), Code(-57))},
        "timeout",
        "the driver did not answer the engine in time",
    ),
}


@pytest.mark.parametrize("fate", FATES)
def test_a_gpu_that_is_lost_costs_its_own_series(fate: str, dcgm_node: Start) -> None:
    """And comes back without a restart."""
    changes, gap, reason = FATES[fate]
    running = dcgm_node(WHOLE, fields=FRAMEWORK)
    running.page()
    running.show(WHOLE.with_gpu(1, **changes))
    page = running.page()

    assert values(page, TEMPERATURE).keys() == {"0", "2"}
    assert states(page) == {"up": 2, gap: 1}
    assert reason in down(running)[1]
    running.show(WHOLE)
    assert values(running.page(), TEMPERATURE).keys() == {"0", "1", "2"}


def test_a_gpu_that_is_lost_at_the_start_has_its_name(dcgm_node: Start) -> None:
    """The engine knows it and whoever is to replace it wants to."""
    running = dcgm_node(WHOLE.with_gpu(1, status=Status.LOST), fields=FRAMEWORK)
    page = running.page()

    assert values(page, "otelgpu_gpu_up", by="UUID") == {gpu.uuid: gpu is not WHOLE.gpus[1] for gpu in WHOLE.gpus}


def test_a_gpu_that_the_engine_no_longer_lists_keeps_its_number(dcgm_node: Start) -> None:
    """DCGM's ids stay, its list gets shorter: no value may move to another GPU."""
    running = dcgm_node(WHOLE, fields=FRAMEWORK)
    before = running.page()
    running.show(WHOLE.with_gpu(1, gone=True))
    page = running.page()
    running.show(WHOLE)
    back = running.page()

    assert values(before, TEMPERATURE, by="UUID").items() >= values(page, TEMPERATURE, by="UUID").items()
    assert values(page, TEMPERATURE) == {"0": 29, "2": 31}
    assert states(page) == {"up": 2, "lost": 1}
    assert values(back, TEMPERATURE) == {"0": 29, "1": 30, "2": 31}


def test_a_gpu_that_cannot_be_identified_is_asked_for_again(dcgm_node: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its values could not be told from another's."""
    monkeypatch.setattr("otelgpu.sources.again.FIRST", 0.0)
    running = dcgm_node(WHOLE.with_gpu(1, errors={"dcgmGetDeviceAttributes": -3}), fields=FRAMEWORK)
    page = running.page()

    assert values(page, TEMPERATURE).keys() == {"0", "2"}
    assert any("it cannot be identified: dcgmGetDeviceAttributes" in reason for reason in down(running).values())
    running.show(WHOLE.with_gpu(1, uuid="<<<NULL>>>"))
    running.page()
    assert any("DCGM does not tell its UUID" in reason for reason in down(running).values())
    running.show(WHOLE)
    running.page()
    assert values(running.page(), TEMPERATURE) == {"0": 29, "1": 30, "2": 31}


def test_watches_that_somebody_else_ended_are_made_again(dcgm_node: Start, engine: Fake) -> None:
    """A driver that is detached from an engine and attached again leaves it without."""
    running = dcgm_node(WHOLE, fields=FRAMEWORK)
    running.page()
    unwatched = dict.fromkeys((100, 150, 155, 252), Code(-16))
    running.show(WHOLE.but(gpus=tuple(gpu.but(fields=unwatched) for gpu in WHOLE.gpus)))
    before = engine.calls("dcgmWatchFields")
    running.page()
    running.show(WHOLE)

    assert values(running.page(), TEMPERATURE) == {"0": 29, "1": 30, "2": 31}
    assert engine.calls("dcgmWatchFields") == before + 1


def test_a_look_that_fails_leaves_nothing_behind(dcgm_node: Start, engine: Fake) -> None:
    """An engine has room for 64 groups: one more at each attempt, and after a minute nobody could watch anything."""
    running = dcgm_node(WHOLE.but(errors={"dcgmGroupCreate": -11}), fields=FRAMEWORK)
    reason = running.sweep().source_reason
    sweeps = running.pipeline.sampler.sweeps
    until(lambda: bool(running.sweep()) and running.pipeline.sampler.sweeps > sweeps, "another attempt")

    assert reason == f"the host engine at {ENGINE}: dcgmGroupCreate: fakedcgm: DCGM_ST_TIMEOUT"
    assert (engine.groups, engine.field_groups, engine.watches) == (0, 0, 0)


def test_an_engine_that_takes_no_sample_at_once_is_read_at_its_pace(dcgm_node: Start) -> None:
    """To have the first values at once is a wish, and no reason to show none: one slow GPU makes it time out."""
    running = dcgm_node(WHOLE.but(errors={"dcgmUpdateAllFields": -11}), fields=FRAMEWORK)

    assert values(running.page(), TEMPERATURE) == {"0": 29, "1": 30, "2": 31}


def test_an_engine_without_room_for_another_group_gives_what_the_first_one_has(dcgm_node: Start, engine: Fake) -> None:
    """It has 64, for all who ask it: what wants one of its own is missing for that, and nothing else is."""
    library, other = Library(), Handle()
    engine.show(models.a100_mig())
    library.call("dcgmInit")
    params = ConnectParams(version=version_of(ConnectParams))
    library.call("dcgmConnect_v2", b"another", ctypes.byref(params), ctypes.byref(other))
    for number in range(61):  # of the 64 two are the engine's own
        library.call("dcgmGroupCreate", other, 1, f"another-{number}".encode(), ctypes.byref(Handle()))
    running = dcgm_node(models.a100_mig(), fields=(*FEW, USED, "DCGM_FI_PROF_SM_ACTIVE"))
    page = running.page()
    told = {(gap.device.index, gap.field.name, gap.reason) for gap in running.sweep().missing}
    library.call("dcgmDisconnect", other)
    library.call("dcgmShutdown")

    assert values(page, TEMPERATURE).keys() == {"0", "1"}
    assert values(page, USED).keys() == {"1"}
    reason = "dcgmGroupCreate: fakedcgm: DCGM_ST_MAX_LIMIT"
    active = "DCGM_FI_PROF_SM_ACTIVE"
    assert told == {(0, USED, reason), (0, active, reason), (1, active, reason)}


def test_a_gpu_that_cannot_be_watched_costs_itself(dcgm_node: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a group that is lost while it is made is no reason to watch none."""
    monkeypatch.setattr("otelgpu.sources.again.FIRST", 0.0)
    running = dcgm_node(WHOLE.with_gpu(1, errors={"dcgmGroupAddEntity": -1}), fields=FRAMEWORK)

    assert values(running.page(), TEMPERATURE).keys() == {"0", "2"}
    assert down(running)[1] == "every value is missing: the engine does not watch it"
    running.show(WHOLE)
    running.page()
    assert values(running.page(), TEMPERATURE).keys() == {"0", "1", "2"}


def test_what_is_never_watched_is_not_watched_over_and_over(dcgm_node: Start, engine: Fake) -> None:
    """Each look costs the engine a round of samples, and everybody who asks it."""
    running = dcgm_node(WHOLE.with_gpu(1, fields={150: Code(-16)}), fields=FRAMEWORK)
    running.page()
    before = engine.calls("dcgmWatchFields")
    for _ in range(4):
        page = running.page()

    assert engine.calls("dcgmWatchFields") == before
    assert values(page, TEMPERATURE).keys() == {"0", "2"}
    assert values(page, POWER).keys() == {"0", "1", "2"}


def test_an_engine_without_a_driver_says_so(dcgm_node: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be watched then; when the driver is there it is watched without a restart."""
    monkeypatch.setattr("otelgpu.sources.again.FIRST", 0.0)
    running = dcgm_node(WHOLE.but(no_nvml=True), fields=FRAMEWORK)
    page = running.page()
    told = {gap.reason for gap in running.sweep().missing}

    assert not values(page, TEMPERATURE)
    assert told == {"dcgmWatchFields: fakedcgm: DCGM_ST_NVML_NOT_LOADED"}
    running.show(WHOLE)
    running.page()
    assert values(running.page(), TEMPERATURE) == {"0": 29, "1": 30, "2": 31}


def test_profiling_that_is_paused_is_no_gpu_that_is_down(dcgm_node: Start) -> None:
    """`dcgmi profiling --pause` makes room for a profiler; all profiling fields are blank meanwhile."""
    names = ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")
    running = dcgm_node(WHOLE, fields=names)
    running.page()
    before = running.page()
    blank = dict.fromkeys((1002, 1004, 1005), Blank.UNSAID)
    running.show(WHOLE.but(gpus=tuple(gpu.but(fields=blank) for gpu in WHOLE.gpus)))
    page = running.page()
    told = {(gap.device.index, gap.field.name, gap.gap) for gap in running.sweep().missing}
    running.show(WHOLE)

    assert values(before, names[0]).keys() == {"0", "1", "2"}
    assert states(page)["up"] == 3
    assert not values(page, names[0])
    assert told == {(gpu, name, "failed") for gpu in range(3) for name in names}
    assert values(running.page(), names[0]).keys() == {"0", "1", "2"}


# By the GPU that it is asked of; None: of the engine as a whole.
HANGS = {
    "dcgmGetGpuStatus": 1,
    "dcgmEntitiesGetLatestValues": 1,
    "dcgmGetAllDevices": None,
    "dcgmGetGpuInstanceHierarchy": None,
    "dcgmGetValuesSince_v2": None,
}


@pytest.mark.parametrize("function", HANGS)
def test_a_call_that_hangs_costs_what_it_asks_for(function: str, dcgm_node: Start, engine: Fake) -> None:
    """Nobody waits longer than the deadline, and once it goes on all is as before."""
    fields = (*FRAMEWORK, "DCGM_FI_DEV_XID_ERRORS")
    running = dcgm_node(WHOLE, fields=fields, sampling=short(DEADLINE))
    until(lambda: values(running.page(), TEMPERATURE).keys() == {"0", "1", "2"}, "all GPUs")
    gpu = HANGS[function]
    stuck = WHOLE.but(hangs={function}) if gpu is None else WHOLE.with_gpu(gpu, hangs={function})
    running.show(stuck)
    left = {"0", "1", "2"} - ({str(gpu)} if gpu is not None else set())
    _, seconds = timed_page(running)
    _, again = timed_page(running)

    assert max(seconds, again) < running.config.sampling.deadline + ROOM
    # What is asked of the engine as a whole is known: the GPUs are read by what is watched already.
    until(lambda: values(running.page(), TEMPERATURE).keys() == left, "those that answer")
    running.show(WHOLE)
    engine.quiet()
    until(lambda: values(running.page(), TEMPERATURE).keys() == {"0", "1", "2"}, "all GPUs")


def test_counts_do_not_stand_still_behind_a_call_that_hangs(dcgm_node: Start, engine: Fake) -> None:
    """The GPUs are read on meanwhile, and their counts would look like a quiet time."""
    xid, total = "DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_TOTAL"
    running = dcgm_node(
        WHOLE, fields=(*FEW, xid, total), sampling=Sampling(reuse=0, deadline=patient(DEADLINE), expire=1.0)
    )
    until(lambda: values(running.page(), xid).keys() == {"0", "1", "2"}, "XIDs of all GPUs")
    running.show(WHOLE.but(hangs={"dcgmGetValuesSince_v2"}))
    until(lambda: not values(running.page(), xid), "no XIDs")
    page = running.page()
    told = {(gap.field.name, gap.gap) for gap in running.sweep().missing}
    running.show(WHOLE)
    engine.quiet()

    assert values(page, TEMPERATURE).keys() == {"0", "1", "2"}
    assert not values(page, total)
    assert told == {(xid, "timeout"), (total, "timeout")}
    until(lambda: values(running.page(), xid).keys() == {"0", "1", "2"}, "XIDs of all GPUs")


@pytest.mark.parametrize("function", ["dcgmConnect_v2", "dcgmWatchFields", "dcgmUpdateAllFields"])
def test_an_engine_that_hangs_from_the_start_is_waited_for_by_nobody(
    function: str, dcgm_node: Start, engine: Fake
) -> None:
    """A frozen engine takes connections, and then does not answer."""
    running = dcgm_node(WHOLE.but(hangs={function}), fields=FEW, sampling=short(DEADLINE))
    page, seconds = timed_page(running)

    assert seconds < running.config.sampling.deadline + ROOM
    assert source_up(page) == 0
    running.show(WHOLE)
    engine.quiet()
    until(lambda: values(running.page(), TEMPERATURE).keys() == {"0", "1", "2"}, "all GPUs")


def test_an_engine_is_not_left_under_a_call(dcgm_node: Start, engine: Fake) -> None:
    """To shut libdcgm down while a thread is in it would take the process along."""
    running = dcgm_node(WHOLE, fields=FRAMEWORK, sampling=short(DEADLINE))
    until(lambda: values(running.page(), TEMPERATURE).keys() == {"0", "1", "2"}, "all GPUs")
    stuck = WHOLE.with_gpu(1, hangs={"dcgmEntitiesGetLatestValues"})
    running.show(stuck)
    until(lambda: values(running.page(), TEMPERATURE).keys() == {"0", "2"}, "one that hangs")
    running.show(stuck.but(engine=2))
    until(lambda: source_up(running.page()) == 0, "the end of the engine")

    assert running.sweep().source_reason == f"the host engine at {ENGINE} is gone; and a call to it has not returned"
    running.show(WHOLE.but(engine=2))
    engine.quiet()
    until(lambda: values(running.page(), TEMPERATURE).keys() == {"0", "1", "2"}, "all GPUs over another connection")


def test_the_process_ends_under_a_call_that_hangs(tmp_path: Path) -> None:
    """At SIGTERM it leaves without the engine, which is not shut down under the call."""
    scenario, counts = tmp_path / "engine", tmp_path / "engine-counts"
    models.h100(1).but(hangs={"dcgmGetGpuStatus"}).write(scenario)
    environ = {
        "LD_LIBRARY_PATH": str(library()),
        "FAKEDCGM_SCENARIO": str(scenario),
        "FAKEDCGM_COUNTS": str(counts),
        "DCGM_REMOTE_HOSTENGINE_INFO": "localhost",
    }
    with serving(None, tmp_path, "--source=dcgm", "--deadline=0.3", environ=environ) as served:
        page = served.page()
        began = time.monotonic()
        status = served.stop(signal.SIGTERM)

    assert source_up(page) == 1
    assert not [line for line in lines_of(page) if line.name == TEMPERATURE]
    assert status == 0
    assert time.monotonic() - began < 15
    assert served.logged("leaving while a driver call is still under way")
