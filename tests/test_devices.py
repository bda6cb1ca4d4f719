"""Which GPUs and MIG instances are shown: dcgm-exporter's selectors, and what is said about those that pick nothing."""

import logging
from collections.abc import Callable
from typing import Literal

import pytest

from otelgpu.config import Flag, Mig, load
from otelgpu.errors import ConfigError
from tests.fakenvml import Scenario
from tests.harness import Node, lines_of, values
from tests.test_mig import A, B, C, instance, split

Start = Callable[..., Node]

USED, POWER, DRIVER = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DRIVER_VERSION"
Where = set[tuple[str, str]]  # gpu and GPU_I_ID


def settings(text: str, how: Literal["flag", "variable", "file"] = "flag") -> tuple[object, ...]:
    """What `-d` makes of a text."""
    if how == "variable":
        return load(environ={"DCGM_EXPORTER_DEVICES_STR": text}).devices
    return load(environ={}, flags=[Flag("-d", "devices", text)]).devices


def shown(page: str, name: str) -> Where:
    """Where a field stands."""
    lines = [line for line in lines_of(page) if line.name == name]
    return {(line.labels["gpu"], line.labels.get("GPU_I_ID", "")) for line in lines}


def node_of(node: Start, text: str, machine: Scenario, parent: Literal["once", "repeat"] = "once") -> Node:
    """A pipeline over one GPU with instances 7, 8 and 9 and one without any."""
    return node(
        machine, fields=(USED, POWER, DRIVER), devices=settings(text), mig=Mig(parent_values=parent), sampling=SAMPLING
    )


SAMPLING = load(environ={"OTELGPU_SAMPLING_REUSE": "0"}).sampling
MACHINE = split(A, B, C)
GPUS: Where = {("0", ""), ("1", "")}
PARTS: Where = {("0", "7"), ("0", "8"), ("0", "9")}
ONE: Where = {("1", "")}  # the GPU without instances

# The selector; where power, a value of the whole GPU, and used memory, which instances have of their own, stand with
# parent values once, and then with repeated ones.
SELECTED: dict[str, tuple[Where, Where, Where, Where]] = {
    "f": (GPUS, PARTS | ONE, PARTS | ONE, PARTS | ONE),
    "all": (GPUS, PARTS | ONE, PARTS | ONE, PARTS | ONE),
    "g": (GPUS, ONE, GPUS, ONE),
    "g:0": ({("0", "")}, set(), {("0", "")}, set()),
    "g:0,1": (GPUS, ONE, GPUS, ONE),
    "g:0-1": (GPUS, ONE, GPUS, ONE),
    "g:1": (ONE, ONE, ONE, ONE),
    "i": (set(), PARTS, PARTS, PARTS),
    "i:0": (set(), {("0", "7")}, {("0", "7")}, {("0", "7")}),
    "i:1-2": (set(), {("0", "8"), ("0", "9")}, {("0", "8"), ("0", "9")}, {("0", "8"), ("0", "9")}),
    "i:0,2": (set(), {("0", "7"), ("0", "9")}, {("0", "7"), ("0", "9")}, {("0", "7"), ("0", "9")}),
    "g+i": (GPUS, PARTS | ONE, GPUS | PARTS, PARTS | ONE),
    "g:1+i:1": (ONE, {("0", "8")} | ONE, {("0", "8")} | ONE, {("0", "8")} | ONE),
    "0": ({("0", "")}, PARTS, PARTS, PARTS),
}


@pytest.mark.parametrize("text", SELECTED)
def test_a_selector_shows_what_it_does_there(text: str, node: Start) -> None:
    """The GPUs, the instances, or both; and a value of the whole GPU on each instance where that is wished."""
    pages = [node_of(node, text, MACHINE, parent).page() for parent in ("once", "repeat")]
    found = tuple(shown(page, name) for page in pages for name in (POWER, USED))

    assert found == SELECTED[text]
    assert all(DRIVER in line.labels for page in pages for line in lines_of(page) if line.name in (POWER, USED))


@pytest.mark.parametrize("text", ["g:{uuid}", "g:{pci}", "{uuid}", "{pci}", "g:7,{uuid}"])
def test_a_gpu_is_selected_by_its_uuid_or_address(text: str, node: Start) -> None:
    """An index moves when a GPU is lost."""
    line = next(line for line in lines_of(node(MACHINE, fields=(POWER,)).page()) if line.labels.get("gpu") == "1")
    named = text.format(uuid=line.labels["UUID"], pci=line.labels["pci_bus_id"])

    assert shown(node_of(node, named, MACHINE).page(), POWER) == ONE


def test_nothing_is_counted_as_missing_where_it_is_not_shown(node: Start) -> None:
    """The count of missing values is about the page."""
    machine = MACHINE.with_gpu(0, errors={"nvmlDeviceGetPowerUsage": 999})
    running = [node_of(node, text, machine) for text in ("f", "i", "g")]
    missing = [sum(gap.field.name == POWER for gap in each.sweep().missing) for each in running]

    assert missing == [1, 0, 1]


def test_a_selector_is_read_from_the_variable_too() -> None:
    """The chart sets variables."""
    for text in ("f", "g:0,2-5", "i:0,1", "g+i"):
        assert settings(text, "variable") == settings(text)
    assert [str(pick) for pick in settings("g:0,2-5+i:1,2")] == ["g:0", "g:2-5", "i:1", "i:2"]


WRONG = {
    "f:0": "f is every GPU; for some of them write g: or i:",
    "g:": "expected all, an index (0), a range (2-5), a GPU's UUID (GPU-...)",
    "g:x": "expected all, an index (0), a range (2-5), a GPU's UUID (GPU-...)",
    "g:g": "expected all, an index (0), a range (2-5), a GPU's UUID (GPU-...)",
    "i:GPU-1": "expected i:NUMBER or i:FIRST-LAST; the number is 8 x the GPU's index + the instance's place on it",
    "i:5-2": "a range goes up; did you mean 2-5?",
    "g:99999": "an index is 0 to 9999",
    "h": "expected all, an index (0), a range (2-5), a GPU's UUID (GPU-...)",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_selector_is_told_with_what_would_be_right(text: str) -> None:
    """There a reversed range is silently nothing."""
    with pytest.raises(ConfigError) as caught:
        settings(text)

    assert caught.value.problems[0].startswith(f"-d {text}: {WRONG[text]}")


def test_what_is_selected_and_not_there_is_an_error_in_the_log(node: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A page without the GPU that was asked for must not look like one with nothing to say."""
    running = node_of(node, "g:0,5,GPU-0+i:1,4", MACHINE)
    running.page()
    running.page()
    told = [(record.levelno, record.getMessage()) for record in caplog.records if "devices" in record.getMessage()]

    assert sorted(told) == [
        (logging.ERROR, "default: devices: no GPU here matches g:5"),
        (logging.ERROR, "default: devices: no GPU here matches g:GPU-0"),
        (logging.ERROR, "devices: i:4: GPU 0 has 3 instances, not one of that number"),
    ]


def test_a_wide_range_of_instances_is_one_line_for_each_gpu(node: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever writes a range to have all instances of a node gets them, and no screen full of errors."""
    node_of(node, "i:0-9999", MACHINE).page()

    assert sorted(caplog.messages) == [
        "devices: i:3,4,5,6,7: GPU 0 has 3 instances, not one of these numbers",
        "devices: i:8,9,10,11,12,13,14,15: GPU 1 has 0 instances, not one of these numbers",
    ]


def test_an_instance_that_comes_later_is_shown(node: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A GPU is partitioned anew while the exporter runs; each time its instance is gone that is said once."""
    running = node_of(node, "i:1", split(A))
    first = shown(running.page(), USED)
    running.show(split(A, B))
    second = shown(running.page(), USED)
    running.show(split(A))
    pages = [shown(running.page(), USED) for _ in range(2)]

    assert (first, second, pages) == (set(), {("0", "8")}, [set(), set()])
    assert sum("i:1: GPU 0 has 1 instances" in record.getMessage() for record in caplog.records) == 2


def test_the_gpu_stays_under_watch_where_its_instances_alone_are_shown(node: Start) -> None:
    """Whether it answers at all is asked of it, whatever is shown."""
    assert set(values(node_of(node, "i", MACHINE).page(), "otelgpu_gpu_up")) == {"0", "1"}


def test_instances_are_counted_as_dcgm_does(node: Start) -> None:
    """The smaller profiles first, whatever their ids: `i:1` is the instance that it was with DCGM."""
    machine = split(instance(13, gi=5, profile="2g.20gb"), instance(11, gi=7), instance(12, gi=9))
    found = [shown(node_of(node, f"i:{number}", machine).page(), USED) for number in range(3)]

    assert found == [{("0", "7")}, {("0", "9")}, {("0", "5")}]
