"""hw.status: the health of each GPU under OpenTelemetry's names."""

from collections.abc import Callable, Mapping

import pytest

from tests.fakenvml import Code, Scenario, models
from tests.harness import Node, lines_of, values

NOT_SUPPORTED, NO_PERMISSION, TIMEOUT, UNKNOWN = 3, 4, 10, 999
LINK, WIDTH = "nvmlDeviceGetNvLinkState", "nvmlDeviceGetCurrPcieLinkWidth"

HEALTHY = {4: 0, 31: 0, 142: 0, 143: 0, 144: 0, 145: 0, 230: 0}


def machine(**fields: int) -> Scenario:
    """Two GPUs; the first has these field values, by `f` and NVML's number."""
    changed = HEALTHY | {int(name.removeprefix("f")): number for name, number in fields.items()}
    return models.h100(2).with_gpu(0, fields=changed).with_gpu(1, fields=HEALTHY)


def states(page: str) -> dict[str, str]:
    """The state of each device, by hw.id; each has exactly one."""
    found: dict[str, str] = {}
    for line in lines_of(page):
        if line.name == "hw_status" and line.value == 1:
            assert line.labels["hw_id"] not in found
            found[line.labels["hw_id"]] = line.labels["hw_state"]
    return found


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "ok"),
        ({"f144": 1}, "predicted_failure"),
        ({"f31": 1}, "predicted_failure"),
        ({"f4": 2}, "degraded"),
        ({"f230": 1}, "degraded"),
        ({"f145": 1}, "failed"),
        ({"f144": 1, "f4": 1}, "degraded"),  # the worst counts
    ],
)
def test_the_state_follows_what_the_driver_says(
    fields: Mapping[str, int], state: str, node: Callable[..., Node]
) -> None:
    """An alert on hw.state names the GPU that wants attention, and no other."""
    found = states(node(machine(**fields), naming="semconv").page())

    assert list(found.values()) == [state, "ok"]


@pytest.mark.parametrize("code", [NO_PERMISSION, TIMEOUT, UNKNOWN])
def test_a_gpu_is_not_called_well_while_a_question_of_health_fails(code: int, node: Callable[..., Node]) -> None:
    """Whoever reads "ok" takes it that the driver was asked and had no complaint."""
    running = node(machine(), naming="semconv")
    first, second = (gpu.uuid for gpu in machine().gpus)
    running.show(machine().with_gpu(0, fields={145: Code(code)}))
    failing = states(running.page())
    running.show(machine())
    back = states(running.page())

    assert failing == {second: "ok"}
    assert back == {first: "ok", second: "ok"}


def test_an_answer_that_cannot_be_true_says_nothing(node: Callable[..., Node]) -> None:
    """All ones in place of a flag is neither yes nor no."""
    assert list(states(node(machine(f145=0xFFFFFFFF), naming="semconv").page())) == [machine().gpus[1].uuid]


def test_what_is_known_to_be_bad_stays_bad_while_another_question_fails(node: Callable[..., Node]) -> None:
    """The failing question could only add to it."""
    scenario = machine(f4=2).with_gpu(0, fields={145: Code(UNKNOWN)})

    assert list(states(node(scenario, naming="semconv").page()).values()) == ["degraded", "ok"]


def test_a_question_that_a_gpu_does_not_know_blocks_nothing(node: Callable[..., Node]) -> None:
    """A driver of before the recovery action says so at every sweep."""
    scenario = machine().with_gpu(0, fields={230: Code(NOT_SUPPORTED)})
    running = node(scenario, naming="semconv")

    assert [list(states(running.page()).values()) for _ in range(2)] == [["ok", "ok"]] * 2


def test_an_nvlink_that_goes_down_degrades_its_gpu_until_it_is_up(node: Callable[..., Node]) -> None:
    """A job over all GPUs goes at the pace of the one that lost a link."""
    running = node(machine(), naming="semconv")
    running.page()
    running.show(machine().with_gpu(1, answers={(LINK, 7): 0}))
    down = [list(states(running.page()).values()) for _ in range(2)]
    running.show(machine())

    assert down == [["ok", "degraded"]] * 2
    assert list(states(running.page()).values()) == ["ok", "ok"]


def test_an_nvlink_that_is_down_from_the_start_shows_beside_its_siblings(node: Callable[..., Node]) -> None:
    """A restart of otelgpu does not make a dead link a healthy one."""
    scenario = models.h100(4)
    for slot in range(4):
        scenario = scenario.with_gpu(slot, fields=HEALTHY)
    scenario = scenario.with_gpu(2, answers={(LINK, 17): 0})

    assert list(states(node(scenario, naming="semconv").page()).values()) == ["ok", "ok", "degraded", "ok"]


def test_an_nvlink_that_no_bridge_connects_is_no_fault(node: Callable[..., Node]) -> None:
    """On PCIe cards a link without a bridge is down for ever: on all of them, or all of a card's."""
    every = {(LINK, link): 0 for link in range(18)}
    few = {(LINK, link): 0 for link in range(4, 18)}
    scenario = models.h100(4)
    for slot, downs in enumerate((few, few, every, every)):
        scenario = scenario.with_gpu(slot, fields=HEALTHY, answers=downs)

    assert set(states(node(scenario, naming="semconv").page()).values()) == {"ok"}


def test_nvlinks_that_cannot_be_told_leave_the_state_open(node: Callable[..., Node]) -> None:
    """The same as for any other question of health."""
    running = node(machine(), naming="semconv")
    running.page()
    running.show(machine().with_gpu(0, errors={(LINK, 3): UNKNOWN}))

    assert list(states(running.page())) == [machine().gpus[1].uuid]


def test_a_pcie_link_that_lost_lanes_degrades_its_gpu(node: Callable[..., Node]) -> None:
    """Half the lanes are half the speed to the host, which no other number tells."""
    running = node(machine(), naming="semconv")
    running.page()
    running.show(machine().with_gpu(0, answers={WIDTH: 8}))

    assert list(states(running.page()).values()) == ["degraded", "ok"]


def test_a_narrow_slot_and_an_idle_link_are_no_fault(node: Callable[..., Node]) -> None:
    """A T4 in a slot of eight lanes says "8 of 16" all its life, and an idle link speaks an old generation."""
    idle = {"nvmlDeviceGetCurrPcieLinkGeneration": 1, "nvmlDeviceGetMaxPcieLinkGeneration": 5}
    narrow = {WIDTH: 8, "nvmlDeviceGetMaxPcieLinkWidth": 16}
    scenario = machine().with_gpu(0, answers=narrow | idle)

    assert list(states(node(scenario, naming="semconv").page()).values()) == ["ok", "ok"]


def test_mig_does_without_nvlink(node: Callable[..., Node]) -> None:
    """A GPU that is partitioned puts its links to sleep, which is not their fault."""
    scenario = models.h100_mig().with_gpu(0, fields=HEALTHY)
    running = node(scenario, naming="semconv")
    running.page()
    running.show(scenario.with_gpu(0, answers={(LINK, link): 0 for link in range(18)}))

    assert set(states(running.page()).values()) == {"ok"}


def test_the_instances_of_a_lost_gpu_have_failed_with_it(node: Callable[..., Node]) -> None:
    """The pod that holds one of them is who wants to know."""
    scenario = models.h100_mig().with_gpu(0, fields=HEALTHY)
    running = node(scenario, naming="semconv")
    well = states(running.page())
    running.show(scenario.with_gpu(0, lost=True))
    lost = [states(running.page()) for _ in range(2)]
    running.show(scenario)
    running.page()

    assert len(well) > len(scenario.gpus)
    assert lost == [dict.fromkeys(well, "failed")] * 2
    assert states(running.page()) == well


def test_instances_that_were_destroyed_are_not_remembered(node: Callable[..., Node]) -> None:
    """Only what the GPU had when it last answered is lost with it."""
    scenario = models.h100_mig().with_gpu(0, fields=HEALTHY)
    running = node(scenario, naming="semconv")
    well = states(running.page())
    fewer = scenario.without_instance(0, 0)
    running.show(fewer)
    left = states(running.page())
    running.show(fewer.with_gpu(0, lost=True))

    assert len(left) == len(well) - 1
    assert states(running.page()) == dict.fromkeys(left, "failed")


def test_a_lost_gpu_has_failed_until_it_is_back(node: Callable[..., Node]) -> None:
    """A GPU that fell off the bus answers nothing, and that is what its status says."""
    running = node(machine(), naming="semconv")
    running.show(machine().with_gpu(1, lost=True))
    lost = states(running.page())
    running.show(machine())
    running.page()
    back = states(running.page())

    assert list(lost.values()) == ["ok", "failed"]
    assert list(back.values()) == ["ok", "ok"]


def test_a_gpu_that_answers_no_question_of_health_is_ok(node: Callable[..., Node]) -> None:
    """GeForce has no ECC and no row remapping; that is no illness."""
    assert list(states(node(models.rtx_4090(), naming="semconv").page()).values()) == ["ok"]


def test_an_instance_shares_the_fate_of_its_gpu(node: Callable[..., Node]) -> None:
    """Its memory is part of the GPU's."""
    scenario = models.h100_mig().with_gpu(0, fields={145: 1})
    page = node(scenario, naming="semconv").page()
    first = scenario.gpus[0]
    shown = [line for line in lines_of(page) if line.name == "hw_status" and line.value == 1]
    ours = [line for line in shown if first.uuid in (line.labels["hw_id"], line.labels.get("hw_parent"))]

    assert len(ours) == 1 + len({instance.gi for instance in first.instances if instance is not None})
    assert {line.labels["hw_state"] for line in ours} == {"failed"}


def test_the_status_is_no_matter_of_dcgm_naming(node: Callable[..., Node]) -> None:
    """The drop-in page holds what dcgm-exporter's holds, and asks no more of the driver."""
    running = node(machine(f145=1))
    page = running.page()

    assert "hw_status" not in page
    assert values(page, "DCGM_FI_DEV_ROW_REMAP_FAILURE") == {"0": 1, "1": 0}
    assert 311 not in running.sweep().numbers


@pytest.mark.parametrize(
    ("before", "after", "state"), [(2, 1, "ok"), (1, 2, "ok"), (1, 3, "degraded"), (1, 0, "degraded")]
)
def test_a_link_that_sleeps_is_well_and_one_that_is_closed_is_not(
    before: int, after: int, state: str, node: Callable[..., Node]
) -> None:
    """NVML numbers the states of a link; asleep is a larger number than active, and no better."""
    running = node(machine().with_gpu(0, fields={(165, 3): before}), naming="semconv")
    running.page()
    running.show(machine().with_gpu(0, fields={(165, 3): after}))

    assert list(states(running.page()).values()) == [state, "ok"]
