"""hw.status: the health of each GPU under OpenTelemetry's names."""

from collections.abc import Callable, Mapping

import pytest

from tests.fakenvml import Scenario, models
from tests.harness import Node, lines_of, values

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
