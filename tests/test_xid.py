"""XID errors: the last code of each GPU, from the driver's events.

Rule 1: an event is there when the page shows it; `until` waits for that and nothing sleeps.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.fakenvml import Fake, models
from tests.faults.rig import missing, up
from tests.harness import Node, lines_of, series, short, until, values

Start = Callable[..., Node]

XID, POWER = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_POWER_USAGE"
PAIR = models.h100(2)
EVENT_FUNCTIONS = ("nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2")


def codes(running: Node) -> dict[str, float]:
    return values(running.page(), XID)


def test_nobody_waits_for_events_that_nobody_wants(node: Start, fake: Fake) -> None:
    """A thread and an event set for nothing would be two more things that can hang."""
    node(PAIR, fields=(POWER,)).page()

    assert [fake.calls(function) for function in EVENT_FUNCTIONS] == [0, 0, 0]
    assert fake.live_event_sets == 0


def test_there_is_a_zero_before_the_first_xid(node: Start, fake: Fake) -> None:
    """Already on the first page: an alert on a change needs a value to change from."""
    running = node(PAIR, fields=(XID,))

    assert values(running.page(sweep=False), XID) == {"0": 0, "1": 0}
    assert fake.calls("nvmlEventSetCreate") == 1
    assert [fake.calls("nvmlDeviceRegisterEvents", gpu=gpu) for gpu in (0, 1)] == [1, 1]


def test_the_last_code_of_each_gpu_is_shown(node: Start) -> None:
    """A GPU keeps its own last code, equal ones in a row included, and the others keep theirs."""
    running = node(PAIR, fields=(XID,))
    scenario = PAIR
    for gpu, code, expected in (
        (1, 79, {"0": 0, "1": 79}),
        (0, 31, {"0": 31, "1": 79}),
        (0, 31, {"0": 31, "1": 79}),
        (0, 13, {"0": 13, "1": 79}),
    ):
        scenario = scenario.with_xid(gpu, code)
        running.show(scenario)

        until(lambda expected=expected: codes(running) == expected, f"{expected}")  # type: ignore[misc]


def test_the_labels_say_what_the_code_means(node: Start) -> None:
    """dcgm-exporter's err_code and err_msg, the last labels of the line."""
    running = node(PAIR.with_xid(0, 79), fields=(XID,))
    until(lambda: codes(running)["0"] == 79, "the event")
    page = running.page()

    assert re.search(
        rf'^{XID}{{gpu="0",.*,err_code="79",err_msg="GPU has fallen off the bus"}} 79$', page, re.MULTILINE
    )
    assert re.search(rf'^{XID}{{gpu="1",.*,err_code="0",err_msg="No Error"}} 0$', page, re.MULTILINE)
    assert len([line for line in lines_of(page) if line.name == XID]) == 2


@pytest.mark.parametrize(("code", "gap"), [(3, "unsupported"), (13, "unsupported"), (4, "denied")])
def test_a_gpu_without_events_has_no_xid(code: int, gap: str, node: Start, fake: Fake) -> None:
    """Some GeForce and vGPU drivers refuse: absent with the reason, asked once, the other GPU as before."""
    running = node(PAIR.with_gpu(1, errors={"nvmlDeviceRegisterEvents": code}), fields=(XID,))
    for _ in range(3):
        page = running.page()

    assert values(page, XID) == {"0": 0}
    assert missing(page) == {gap: 1}
    assert fake.calls("nvmlDeviceRegisterEvents", gpu=1) == 1


def test_a_registration_that_failed_is_tried_again(node: Start) -> None:
    """An error of the moment must not cost the XIDs of a GPU for ever."""
    running = node(PAIR.with_gpu(1, errors={"nvmlDeviceRegisterEvents": 999}), fields=(XID,))
    assert codes(running) == {"0": 0}
    running.show(PAIR)

    assert codes(running) == {"0": 0, "1": 0}


def test_a_gpu_that_is_lost_when_it_registers_is_down(node: Start) -> None:
    """The code speaks of the GPU, not of its events."""
    page = node(PAIR.with_gpu(1, errors={"nvmlDeviceRegisterEvents": 15}), fields=(XID, POWER)).page()

    assert sorted(up(page).values()) == [0, 1]
    assert set(values(page, POWER)) == {"0"}


@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlEventSetWait_v2"])
def test_events_that_fail_show_no_old_code(
    function: str, node: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An XID that may be old looks like the last one: absent, said once in the log, and back by itself."""
    monkeypatch.setattr("otelgpu.sources.nvml.events.PAUSE", 0.05)
    caplog.set_level("INFO", "otelgpu")
    running = node(PAIR.with_xid(0, 79).but(errors={function: 999}), fields=(XID, POWER))
    until(lambda: codes(running) == {}, "no code is claimed")
    page = running.page()

    assert len(values(page, POWER)) == 2
    assert missing(page) == {"failed": 2}
    assert not any(codes(running) for _ in range(200))  # nor while it is tried again
    assert sum(function in record.getMessage() for record in caplog.records) == 1

    running.show(PAIR.with_xid(0, 79))
    until(lambda: codes(running) == {"0": 79, "1": 0}, "the events are back")


def test_a_code_survives_a_new_connection(node: Start) -> None:
    """After XID 79 somebody reloads the driver; what happened must not read as "No Error" from then on."""
    scenario = PAIR.with_xid(0, 79)
    running = node(scenario, fields=(XID,))
    until(lambda: codes(running)["0"] == 79, "the event")
    running.show(scenario.with_gpu(1, errors={"nvmlDeviceGetMigMode": 9}))
    running.page()
    running.show(PAIR)

    until(lambda: codes(running) == {"0": 79, "1": 0}, "connected anew")
    running.show(scenario.with_xid(1, 31))
    until(lambda: codes(running) == {"0": 79, "1": 31}, "new events are heard")


def test_an_event_of_a_gpu_nobody_knows_is_left_alone(node: Start) -> None:
    """A GPU that was not opened, or whose handle is another by now, has no line that could be wrong."""
    other = models.h100(3)
    hidden = other.with_gpu(2, errors={"nvmlDeviceGetUUID": 999})
    running = node(hidden.with_xid(2, 31).with_xid(1, 79), fields=(XID,))
    until(lambda: codes(running).get("1") == 79, "the event behind it")

    assert codes(running) == {"0": 0, "1": 79}


def test_events_of_an_instance_stand_on_its_gpu(node: Start) -> None:
    """The driver names the GPU; the instance's own ids come along and are no series of their own."""
    running = node(models.h100_mig().with_xid(0, 43, gi=2, ci=0), fields=(XID,))
    until(lambda: codes(running) == {"0": 43}, "the event")

    assert "GPU_I_ID" not in "".join(line for line in running.page().splitlines() if line.startswith(XID))


def test_everything_is_given_back(node: Start, fake: Fake) -> None:
    """The event set is freed and nobody waits any more."""
    running = node(PAIR, fields=(XID,))
    running.page()
    assert fake.live_event_sets == 1

    assert running.stop()
    assert fake.live_event_sets == 0
    assert fake.inflight == 0


@pytest.mark.parametrize("fate", [{"lost": True}, {"hangs": {"nvmlDeviceGetPowerUsage"}}, {"gone": True}])
def test_the_xid_of_a_gpu_that_is_down_is_shown(fate: dict[str, Any], node: Start) -> None:
    """79 comes when a GPU falls off the bus, 119 when its firmware hangs: then nothing else answers for it."""
    running = node(PAIR, fields=(XID, POWER, "DCGM_FI_DRIVER_VERSION"), sampling=short())
    before = next(line for line in series(running.page(), XID) if 'gpu="1"' in line)
    running.show(PAIR.with_xid(1, 79))
    until(lambda: codes(running)["1"] == 79, "the event")
    running.show(PAIR.with_xid(1, 79).with_gpu(1, **fate))
    until(lambda: sorted(up(running.page()).values()) == [0, 1], "the GPU is down")
    page = running.page()

    assert values(page, XID) == {"0": 0, "1": 79}
    assert set(values(page, POWER)) == {"0"}
    after = next(line for line in series(page, XID) if 'gpu="1"' in line)
    assert after.partition(",err_code")[0] == before.partition(",err_code")[0]


def test_an_xid_that_comes_while_its_gpu_hangs_is_shown(node: Start) -> None:
    """The event thread hears it; the GPU's own thread is stuck and could not tell."""
    stuck = PAIR.with_gpu(1, hangs={"nvmlDeviceGetPowerUsage"})
    running = node(PAIR, fields=(XID, POWER), sampling=short())
    running.show(stuck)
    assert sorted(up(running.page()).values()) == [0, 1]
    running.show(stuck.with_xid(1, 119))

    until(lambda: codes(running) == {"0": 0, "1": 119}, "the event")


def test_a_lost_gpu_does_not_take_the_xids_of_the_others(node: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A set of events with a lost GPU in it fails for ever: it is made anew without that one."""
    caplog.set_level("INFO", "otelgpu")
    running = node(PAIR, fields=(XID, POWER))
    lost = PAIR.with_xid(1, 79).with_gpu(1, lost=True)
    made = running.fake.calls("nvmlEventSetCreate")
    seen: list[float | None] = []

    def look() -> Mapping[str, float]:
        found = codes(running)
        seen.append(found.get("0"))
        return found

    running.show(lost.but(delays={"nvmlEventSetCreate": 0.2}))
    until(lambda: look().get("1") == 79 and running.fake.calls("nvmlEventSetCreate") > made, "a new set is made")
    for _ in range(10):
        look()
    assert {*seen} == {0}  # also while nobody listens to GPU 0
    running.show(lost.with_xid(0, 31))
    until(lambda: codes(running) == {"0": 31, "1": 79}, "an event of the other GPU")
    running.show(lost.with_xid(0, 31).with_gpu(1, lost=False).with_xid(1, 43))

    until(lambda: codes(running) == {"0": 31, "1": 43}, "it is back, and so are its events")
    assert sum("nvmlEventSetWait_v2" in record.getMessage() for record in caplog.records) == 1
    assert sum("can be waited for again" in record.getMessage() for record in caplog.records) == 1
