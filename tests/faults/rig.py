"""Scenarios and looks at a page that the fault tests share.

Rule 1: what a GPU answers follows from its UUID (`truth`), never from its place in the scenario.
"""

import time
from collections.abc import Mapping

from otelgpu.fields import CATALOGUE
from otelgpu.sources.nvml.questions import READABLE, XID_ERRORS
from tests.fakenvml import Scenario, models
from tests.harness import Node, lines_of, values

# Fields without XIDs: the thread that waits for events takes up to half a second to end.
FEW = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER")
# A field for each kind of question: those that are on by default, the texts, and some of the rest.
_MORE = frozenset((311, 392, 396, *range(1001, 1013), 1523))
ALL = tuple(
    field.name
    for field in CATALOGUE.values()
    if field.id in READABLE - {XID_ERRORS} and (field.default or not field.is_numeric or field.id in _MORE)
)
TEMPERATURE, POWER, USED, REPLAYS = FEW
# Asked by an embedded otelgpu that was told `only_process`; they hang in tests/embed/test_process.py too.
OF_PROCESSES = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetProcessUtilization",
)
MIB = models.MIB
# Asked with `processes` alone.
OF_OWNERS = ("nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetProcessesUtilizationInfo")
LOST = 15  # NVML_ERROR_GPU_IS_LOST


def distinct(scenario: Scenario) -> Scenario:
    """The scenario with other readings for each GPU: see `truth`."""
    for slot, gpu in enumerate(scenario.gpus):
        temperature, watts, used, replays = truth(slot)
        total = 80_000 * MIB
        scenario = scenario.with_gpu(
            slot,
            uuid=f"GPU-{slot:08x}-0000-4000-8000-000000000000",
            pci=f"00000000:{slot + 1:02X}:00.0",
            answers={
                ("nvmlDeviceGetTemperature", 0): temperature,
                ("nvmlDeviceGetTemperatureV", 0): temperature,
                "nvmlDeviceGetPowerUsage": watts * 1000,
                "nvmlDeviceGetMemoryInfo": (total, total - used * MIB, used * MIB),
                "nvmlDeviceGetMemoryInfo_v2": (total, 0, total - used * MIB, used * MIB),
                "nvmlDeviceGetPcieReplayCounter": replays,
            },
            fields={94: replays} if 94 in gpu.fields else {},
        )
    return scenario


def truth(number: int) -> tuple[int, int, int, int]:
    """Temperature, W, MiB used and PCIe replays of the GPU that `distinct` made of slot *number*."""
    return 30 + number, 100 + 10 * number, 1000 + number, 7 + number


def check_truth(page: str) -> set[str]:
    """Assert that every reading stands under the UUID it belongs to; return the UUIDs that have readings."""
    shown: set[str] = set()
    for line in lines_of(page):
        if not line.name.startswith("DCGM_"):
            continue
        uuid = line.labels["UUID"]
        shown.add(uuid)
        number = int(uuid[4:12], 16)

        assert line.labels["gpu"] == str(number)
        assert line.labels["pci_bus_id"] == f"00000000:{number + 1:02X}:00.0"
        if line.name in FEW and "GPU_I_ID" not in line.labels:
            assert line.value == truth(number)[FEW.index(line.name)], line
    return shown


def up(page: str) -> dict[str, float]:
    """Whether each GPU is up, by UUID."""
    return values(page, "otelgpu_gpu_up", by="UUID")


def states(page: str) -> dict[str, float]:
    """How many GPUs are in each state."""
    return values(page, "otelgpu_gpus", by="state")


def source_up(page: str) -> float:
    """Whether the source as a whole is up."""
    return next(line.value for line in lines_of(page) if line.name == "otelgpu_source_up")


def missing(page: str) -> Mapping[str, float]:
    """How many fields are missing for each reason, over all GPUs."""
    counts: dict[str, float] = {}
    for line in lines_of(page):
        if line.name == "otelgpu_missing":
            counts[line.labels["gap"]] = counts.get(line.labels["gap"], 0) + line.value
    return counts


def timed_page(node: Node) -> tuple[str, float]:
    """A new page and how many seconds it took."""
    began = time.monotonic()
    page = node.page()
    return page, time.monotonic() - began
