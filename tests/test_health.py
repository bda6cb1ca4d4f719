"""The health of the parts of a GPU in dcgm-exporter's words: DCGM_EXP_GPU_HEALTH_STATUS."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from otelgpu.config import Sampling, SourceChoice
from otelgpu.config.counting import Counts
from otelgpu.counts import GRAVE
from otelgpu.export.page import Format
from otelgpu.health import HEALTH_FIELDS, PARTS, SIGNS
from otelgpu.sources.nvml.questions import READABLE
from otelgpu.sources.nvml.source import BESIDE
from tests.fakenvml import Code, Fake, Scenario, models
from tests.fakenvml.scenario import Answer, Key
from tests.faults.rig import missing, up
from tests.harness import LIMIT, Node, lines_of, series, short, until

Start = Callable[..., Node]

HEALTH, POWER, XIDS = "DCGM_EXP_GPU_HEALTH_STATUS", "DCGM_FI_DEV_POWER_USAGE", "DCGM_EXP_XID_ERRORS_COUNT"
REASONS, WIDTH, LINK = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetNvLinkState",
)
INFOROM, RECOVERY, CORRUPT = "nvmlDeviceValidateInforom", 230, 14
SAMPLING = Sampling(reuse=0, deadline=LIMIT, slow_interval=0)
FIELDS = {4: 0, 31: 0, 142: 0, 143: 0, 144: 0, 145: 0, RECOVERY: 0}
ANSWERS: dict[Key, Answer] = {
    REASONS: 0x1,
    WIDTH: 16,
    INFOROM: (),
    "nvmlDeviceGetUnrepairableMemoryFlag_v1": (0, 1),
    "nvmlDeviceGetSramEccErrorStatus": (0,) * 12,
    "nvmlDeviceGetGpuFabricInfoV": (3, 0, 1, 0, 1, "00" * 16),
    **{(LINK, link): 1 for link in range(18)},
}
ALL = frozenset(PARTS)
WELL: tuple[float, str] = (0, "OK")


def machine(*, number: int = 2, **changes: Any) -> Scenario:
    """Healthy GPUs, the first of which has these changes."""
    scenario = models.h100(number)
    for slot in range(number):
        scenario = scenario.with_gpu(slot, fields=FIELDS, answers=ANSWERS)
    return scenario.with_gpu(0, **changes)


def health(page: str, gpu: str = "0") -> dict[str, tuple[float, str]]:
    """How each part of a GPU is: the value and the code."""
    found: dict[str, tuple[float, str]] = {}
    for line in lines_of(page):
        if line.name == HEALTH and line.labels["gpu"] == gpu:
            assert line.labels["health_watch"] not in found, "one series for each part"
            found[line.labels["health_watch"]] = line.value, line.labels["health_error_code"].removeprefix("DCGM_FR_")
    return found


def ill(page: str, gpu: str = "0") -> dict[str, tuple[float, str]]:
    return {part: verdict for part, verdict in health(page, gpu).items() if verdict != WELL}


def test_every_sign_can_be_read() -> None:
    """A sign that no source reads would call every GPU well."""
    assert HEALTH_FIELDS <= READABLE | BESIDE
    assert {sign.part for sign in SIGNS} <= set(PARTS)


def test_a_healthy_gpu_passes_in_all_that_it_tells(node: Start) -> None:
    """Value 0 with dcgm-exporter's labels; parts of which NVML knows nothing are not there."""
    page = node(machine(), fields=(HEALTH,)).page()

    assert health(page) == health(page, "1") == dict.fromkeys(ALL, WELL)
    assert missing(page) == {}
    (line,) = (line for line in series(page, HEALTH) if 'gpu="0"' in line and '"MEM"' in line)
    assert line.endswith(',Hostname="node-1",health_error_code="DCGM_FR_OK",health_watch="MEM"} 0')
    assert f"# TYPE {HEALTH} gauge" in page.splitlines()
    assert {name.partition("{")[0] for name in series(page)} == {HEALTH}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"fields": {145: 1}}, {"MEM": (20, "ROW_REMAP_FAILURE")}),
        ({"fields": {144: 1}}, {"MEM": (10, "PENDING_ROW_REMAP")}),
        ({"fields": {31: 1}}, {"MEM": (10, "PENDING_PAGE_RETIREMENTS")}),
        ({"fields": {4: 2}}, {"MEM": (20, "VOLATILE_DBE_DETECTED")}),
        ({"answers": {"nvmlDeviceGetUnrepairableMemoryFlag_v1": (1, 1)}}, {"MEM": (20, "FAULTY_MEMORY")}),
        ({"answers": {"nvmlDeviceGetSramEccErrorStatus": (*(0,) * 11, 1)}}, {"MEM": (10, "SRAM_THRESHOLD")}),
        ({"fields": {144: 1, 4: 2}}, {"MEM": (20, "VOLATILE_DBE_DETECTED")}),  # the worst counts
        ({"errors": {INFOROM: CORRUPT}}, {"INFOROM": (10, "CORRUPT_INFOROM")}),
        ({"answers": {REASONS: 0x20}}, {"THERMAL": (10, "CLOCKS_EVENT_THERMAL")}),
        ({"answers": {REASONS: 0x48}}, {"THERMAL": (10, "CLOCKS_EVENT_THERMAL")}),
        ({"answers": {REASONS: 0x88}}, {"POWER": (10, "CLOCKS_EVENT_POWER")}),
        ({"answers": {REASONS: 0x4}}, {}),  # a busy GPU reaches its power limit
        (
            {"answers": {"nvmlDeviceGetGpuFabricInfoV": (3, 999, 1, 0, 1, "00" * 16)}},
            {"NVLINK": (20, "FABRIC_MANAGER_TRAINING_ERROR")},
        ),
        ({"fields": {RECOVERY: 1}}, {"DRIVER": (20, "GPU_RECOVERY_RESET")}),
        ({"fields": {RECOVERY: 2}}, {"DRIVER": (20, "GPU_RECOVERY_REBOOT")}),
        ({"fields": {RECOVERY: 3}}, {"DRIVER": (10, "GPU_RECOVERY_DRAIN_P2P")}),
        ({"fields": {RECOVERY: 4}}, {"DRIVER": (20, "GPU_RECOVERY_DRAIN_RESET")}),
        ({"fields": {RECOVERY: 5}}, {"DRIVER": (10, "IMEX_UNHEALTHY")}),
        ({"fields": {RECOVERY: 6}}, {"DRIVER": (20, "GPU_RECOVERY_RESET")}),
        ({"fields": {RECOVERY: 7}}, {"DRIVER": (20, "GPU_RECOVERY_REBOOT")}),
    ],
)
def test_each_sign_is_told_of_its_part(
    changes: Mapping[str, Any], expected: Mapping[str, tuple[float, str]], node: Start
) -> None:
    """An alert names the GPU and the part, and a dashboard the reason; the other parts stay well."""
    running = node(machine(**changes), fields=(HEALTH,), sampling=SAMPLING)
    page = running.page()
    running.show(machine())

    assert ill(page) == expected
    assert set(health(page)) == ALL
    assert ill(page, "1") == {}
    assert ill(running.page()) == {}


def test_a_link_that_falls_behind_is_told(node: Start) -> None:
    """PCIe with fewer lanes than before; an NVLink that was up."""
    running = node(machine(), fields=(HEALTH,), sampling=SAMPLING)
    running.page()
    running.show(machine(answers={WIDTH: 8, (LINK, 3): 0}))

    assert ill(running.page()) == {"PCIE": (10, "PCIE_WIDTH"), "NVLINK": (20, "NVLINK_DOWN")}


@pytest.mark.parametrize("code", [79, next(code for code in GRAVE if code != 79)])
def test_a_grave_xid_is_told_for_as_long_as_the_window(code: int, node: Start) -> None:
    """It concerns the GPU as a whole; an XID that an application caused does not."""
    running = node(machine(), fields=(HEALTH,), counts=Counts(xid_window=2000))
    running.show(machine().with_xid(0, 31).with_xid(0, code))
    expected = {"ALL": (20, "FALLEN_OFF_BUS" if code == 79 else "XID_ERROR")}
    until(lambda: ill(running.page()) == expected, "it is told")
    assert ill(running.page(), "1") == {}

    until(lambda: ill(running.page()) == {}, "the window is over")


@pytest.mark.parametrize(
    ("fate", "expected"),
    [
        ({"lost": True}, {"ALL": (20, "FALLEN_OFF_BUS")}),
        ({"gone": True}, {"ALL": (20, "FALLEN_OFF_BUS")}),
        ({"hangs": {"nvmlDeviceGetPowerUsage"}}, {"DRIVER": (20, "NVML_API")}),
    ],
)
def test_a_gpu_that_is_down_has_failed(fate: dict[str, Any], expected: Any, node: Start) -> None:
    """Under the labels that it was last known by, and with no other part called well."""
    running = node(machine(), fields=(HEALTH, POWER, "DCGM_FI_DRIVER_VERSION"), sampling=short(slow_interval=0))
    before = [line for line in series(running.page(), HEALTH) if 'gpu="0"' in line]
    running.show(machine(**fate))
    until(lambda: sorted(up(running.page()).values()) == [0, 1], "the GPU is down")
    page = running.page()

    assert health(page) == expected
    (line,) = (line for line in series(page, HEALTH) if 'gpu="0"' in line)
    assert line.partition(",health_error_code")[0] == before[0].partition(",health_error_code")[0]
    running.show(machine())
    until(lambda: health(running.page()) == dict.fromkeys(ALL, WELL), "it is back")


def test_a_part_is_not_called_well_while_its_question_fails(node: Start) -> None:
    """What is known to be bad stays so; the rest of that part may hide anything; the other parts are well."""
    failing = machine(fields={145: Code(999)})
    running = node(failing, fields=(HEALTH,))
    page = running.page()
    running.show(failing.with_gpu(0, fields={144: 1}))

    assert set(health(page)) == ALL - {"MEM"}
    assert ill(page) == {}
    assert missing(page) == {"failed": 1}
    assert ill(running.page()) == {"MEM": (10, "PENDING_ROW_REMAP")}


def test_a_part_of_which_a_gpu_never_tells_is_not_there(node: Start) -> None:
    """A T4 has no NVLink, an old driver no recovery action: that is neither well nor ill."""
    silent: dict[Any, Any] = {(LINK, link): None for link in range(18)}
    silent |= {"nvmlDeviceGetGpuFabricInfoV": None, INFOROM: None}
    page = node(machine(fields={RECOVERY: None, 91: 0}, answers=silent), fields=(HEALTH,)).page()

    assert health(page) == dict.fromkeys(ALL - {"NVLINK", "DRIVER", "INFOROM"}, WELL)
    assert set(health(page, "1")) == ALL


def test_a_gpu_that_tells_no_xids_is_judged_by_answering(node: Start) -> None:
    """Some GeForce and vGPU drivers have no events; the GPU is there all the same."""
    page = node(machine(errors={"nvmlDeviceRegisterEvents": 3}), fields=(HEALTH,)).page()

    assert health(page)["ALL"] == WELL


def test_instances_have_no_health_of_their_own(node: Start) -> None:
    """They share the parts of their GPU."""
    page = node(models.h100_mig(), fields=(HEALTH,)).page()

    lines = [line for line in lines_of(page) if line.name == HEALTH]
    assert lines
    assert not [line for line in lines if "GPU_I_ID" in line.labels]


def test_nobody_is_examined_whom_nobody_wants_to(node: Start, fake: Fake) -> None:
    """What the health needs beyond the page is read for it alone."""
    running = node(machine(), fields=(POWER,))
    running.page()

    assert fake.calls(REASONS) == fake.calls(INFOROM) == fake.calls("nvmlEventSetCreate") == 0


def test_a_reader_in_a_hurry_gets_no_verdict_on_what_was_not_asked(node: Start) -> None:
    """Half a sweep must not call a GPU well, nor be remembered."""
    running = node(machine(), fields=(HEALTH, POWER), sampling=Sampling(reuse=0, deadline=5.0))
    running.page()
    running.show(machine(delays={REASONS: 1.0}, answers={WIDTH: 8}))
    snapshot = running.sweep(deadline=0.1)
    page = running.pipeline.page(snapshot, Format.TEXT, shown=True).decode()

    assert "THERMAL" not in health(page)
    assert health(page, "1") == dict.fromkeys(ALL, WELL)
    until(lambda: ill(running.page()).get("PCIE") == (10, "PCIE_WIDTH"), "the whole sweep")


def test_it_has_a_name_in_opentelemetry(node: Start) -> None:
    """The part is an attribute; the code is none: a value that changes its attributes begins a new series each time."""
    running = node(machine(), fields=(HEALTH,), naming="semconv", sampling=SAMPLING)
    before = _semconv(running.page())
    running.show(machine(fields={145: 1}))
    after = _semconv(running.page())

    assert set(before) == set(after)
    assert {labels: (value, after[labels]) for labels, value in before.items() if value != after[labels]} == {
        next(labels for labels in before if ("hw_gpu_nvidia_health_part", "MEM") in labels): (0, 20)
    }


def _semconv(page: str) -> dict[frozenset[tuple[str, str]], float]:
    return {
        frozenset(line.labels.items()): line.value
        for line in lines_of(page)
        if line.name == "hw_gpu_nvidia_health_status"
    }


def test_the_simulated_node_is_well(node: Start) -> None:
    """A demonstration shows what a healthy machine looks like."""
    page = node(models.h100(), source=SourceChoice("simulated", "2xh100+1xt4"), fields=(HEALTH,)).page()

    assert {"MEM", "PCIE", "DRIVER", "THERMAL", "ALL"} <= set(health(page))
    assert all(status in (0, 10) for gpu in "012" for status, _ in health(page, gpu).values())
