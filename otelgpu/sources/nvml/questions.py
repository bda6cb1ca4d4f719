"""Which NVML call answers which field: the tables of the source.

Rule 1: one driver call is one row of QUESTIONS; a Take picks the driver's own number, unconverted.
Rule 2: what nvmlDeviceGetFieldValues can carry stands in FIELD_VALUES: all of it travels in one call.
Rule 3: where several rows answer one field the first is asked; the next one only where the driver (or the GPU)
        does not know the first. The order of the tables is FIELD_VALUES, QUESTIONS, RATES, GPM_METRICS.
Rule 4: to add a field: one row here and one in the catalogue.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pynvml

from otelgpu.fields.process import PROCESS_IDS, PROCESS_MEMORY, PROCESS_SM
from otelgpu.model import Attributes
from otelgpu.sources.nvml.handles import Handle
from otelgpu.sources.nvml.processes import own_memory, own_sm

Number: TypeAlias = int | float | str

# Seconds: the driver's counters move in steps of about that, so a shorter window says nothing.
WINDOW = 0.1
ALL_LINKS = 0xFFFFFFFF  # the scope that makes an NVLink field the sum over the GPU's links


@dataclass(frozen=True, slots=True, eq=False)
class Take:
    """Which field an answer gives, and how it is picked out of what the call returned.

    A field that the device has several of (its links) is picked as numbers by their attributes.
    """

    field_id: int
    pick: Callable[[Any], Number | Mapping[Attributes, Number]] = lambda raw: raw


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One driver call about one device. `fixed`: asked once, the answer holds while the device is there."""

    name: str
    ask: Callable[[Handle], Any]
    takes: tuple[Take, ...]
    instance: bool = False  # a MIG instance answers it too
    fixed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class FieldValue:
    """One entry of nvmlDeviceGetFieldValues: NVML's own field id and scope.

    Some ids mean something else in other drivers: such a row is for those *since* one version (its first two numbers)
    and *before* another.
    """

    field_id: int
    nvml_id: int
    scope: int = 0
    since: tuple[int, ...] = ()
    before: tuple[int, ...] = ()

    def holds_for(self, driver: str) -> bool:
        """Whether the id means this in a driver; not where that is unknown and matters."""
        if not self.since:
            return True
        found = re.match(r"(\d+)\.(\d+)", driver)
        version = (int(found[1]), int(found[2])) if found else ()
        return version >= self.since and (not self.before or version < self.before)


@dataclass(frozen=True, slots=True, eq=False)
class Rate:
    """A rate per second that is worked out from counters of nvmlDeviceGetFieldValues, summed, times `factor`."""

    field_id: int
    counters: tuple[tuple[int, int], ...]  # (NVML field id, scope)
    factor: int


@dataclass(frozen=True, slots=True, eq=False)
class GpmMetric:
    """One metric of nvmlGpmMetricsGet (Hopper and newer); `instance`: also kept for a MIG instance."""

    field_id: int
    metric_id: int
    instance: bool = True


def _memory_v2(handle: Handle) -> Any:  # noqa: ANN401 - a ctypes struct of pynvml
    return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)


def _link_states(handle: Handle) -> Mapping[Attributes, Number]:
    """1 or 0 for each NVLink that the GPU has. Raise NVMLError where it has none, or one of them cannot be told."""
    states: dict[Attributes, Number] = {}
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            states[("nvlink", str(link)),] = pynvml.nvmlDeviceGetNvLinkState(handle, link)
        except pynvml.NVMLError_NotSupported:
            continue  # this one is not there
        except pynvml.NVMLError_InvalidArgument:
            break  # nor is any further one
    if not states:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return states


def _license_state(features: Any) -> int:  # noqa: ANN401 - a ctypes struct of pynvml
    """1 while any licensable feature of the GPU is licensed; 0 also where there is none to license."""
    count = min(features.licensableFeaturesCount, len(features.gridLicensableFeatures))
    return int(any(features.gridLicensableFeatures[i].featureState for i in range(count)))


BRANDS: Mapping[int, str] = {
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_NVS: "NVS",
    pynvml.NVML_BRAND_GRID: "Grid",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_NVIDIA_VAPPS: "NvidiaVApps",
    pynvml.NVML_BRAND_NVIDIA_VPC: "NvidiaVPC",
    pynvml.NVML_BRAND_NVIDIA_VCS: "NvidiaVCS",
    pynvml.NVML_BRAND_NVIDIA_VWS: "NvidiaVWS",
    pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_NVIDIA: "NVIDIA",
    pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
    pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
}

FIELD_VALUES: tuple[FieldValue, ...] = (
    FieldValue(140, pynvml.NVML_FI_DEV_MEMORY_TEMP),
    FieldValue(156, pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION),
    FieldValue(202, pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER),
    FieldValue(241, pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL),
    FieldValue(311, pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL),
    FieldValue(392, pynvml.NVML_FI_DEV_RETIRED_PENDING),
    FieldValue(393, pynvml.NVML_FI_DEV_REMAPPED_UNC),
    FieldValue(394, pynvml.NVML_FI_DEV_REMAPPED_COR),
    FieldValue(395, pynvml.NVML_FI_DEV_REMAPPED_FAILURE),
    FieldValue(396, pynvml.NVML_FI_DEV_REMAPPED_PENDING),
    FieldValue(1420, pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP),
    # Drivers 575.51 to 580.65 had them at 251 to 253, and settings of power smoothing at 269 to 271.
    FieldValue(1422, 251, since=(575, 51), before=(580, 82)),
    FieldValue(1423, 252, since=(575, 51), before=(580, 82)),
    FieldValue(1424, 253, since=(575, 51), before=(580, 82)),
    FieldValue(1422, pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, since=(580, 82)),
    FieldValue(1423, pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, since=(580, 82)),
    FieldValue(1424, pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, since=(580, 82)),
    FieldValue(1523, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
)

QUESTIONS: tuple[Question, ...] = (
    Question(
        "nvmlDeviceGetClockInfo(SM)",
        lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        (Take(100),),
    ),
    Question(
        "nvmlDeviceGetClockInfo(MEM)",
        lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        (Take(101),),
    ),
    Question("nvmlDeviceGetCurrentClocksEventReasons", pynvml.nvmlDeviceGetCurrentClocksEventReasons, (Take(112),)),
    # Its name before driver 535.
    Question(
        "nvmlDeviceGetCurrentClocksThrottleReasons", pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, (Take(112),)
    ),
    Question(
        "nvmlDeviceGetTemperature",
        lambda handle: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        (Take(150),),
    ),
    Question(
        "nvmlDeviceGetTemperatureV",
        lambda handle: pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU),
        (Take(150),),
    ),
    Question("nvmlDeviceGetPowerUsage", pynvml.nvmlDeviceGetPowerUsage, (Take(155),)),
    Question("nvmlDeviceGetTotalEnergyConsumption", pynvml.nvmlDeviceGetTotalEnergyConsumption, (Take(156),)),
    Question("nvmlDeviceGetCurrPcieLinkWidth", pynvml.nvmlDeviceGetCurrPcieLinkWidth, (Take(238),)),
    Question("nvmlDeviceGetNvLinkState", _link_states, (Take(1508),)),
    Question("nvmlDeviceGetPcieReplayCounter", pynvml.nvmlDeviceGetPcieReplayCounter, (Take(202),)),
    Question(
        "nvmlDeviceGetUtilizationRates",
        pynvml.nvmlDeviceGetUtilizationRates,
        (Take(203, lambda rates: rates.gpu), Take(204, lambda rates: rates.memory)),
    ),
    Question(
        "nvmlDeviceGetEncoderUtilization",
        pynvml.nvmlDeviceGetEncoderUtilization,
        (Take(206, lambda answer: answer[0]),),
    ),
    Question(
        "nvmlDeviceGetDecoderUtilization",
        pynvml.nvmlDeviceGetDecoderUtilization,
        (Take(207, lambda answer: answer[0]),),
    ),
    Question(
        "nvmlDeviceGetMemoryInfo_v2",
        _memory_v2,
        (
            Take(250, lambda memory: memory.total),
            Take(251, lambda memory: memory.free),
            Take(252, lambda memory: memory.used),
            Take(253, lambda memory: memory.reserved),
        ),
        instance=True,
    ),
    # Before driver 510 there is only v1, which counts what the driver reserves as used.
    Question(
        "nvmlDeviceGetMemoryInfo",
        pynvml.nvmlDeviceGetMemoryInfo,
        (
            Take(250, lambda memory: memory.total),
            Take(251, lambda memory: memory.free),
            Take(252, lambda memory: memory.used),
        ),
        instance=True,
    ),
    Question(
        "nvmlDeviceGetRemappedRows",
        pynvml.nvmlDeviceGetRemappedRows,
        (
            Take(393, lambda rows: rows[1]),
            Take(394, lambda rows: rows[0]),
            Take(395, lambda rows: rows[3]),
            Take(396, lambda rows: rows[2]),
        ),
    ),
    Question(
        "nvmlDeviceGetGridLicensableFeatures_v4",
        pynvml.nvmlDeviceGetGridLicensableFeatures_v4,
        (Take(526, _license_state),),
    ),
    Question("nvmlSystemGetDriverVersion", lambda _: pynvml.nvmlSystemGetDriverVersion(), (Take(1),), fixed=True),
    Question("nvmlSystemGetNVMLVersion", lambda _: pynvml.nvmlSystemGetNVMLVersion(), (Take(2),), fixed=True),
    Question("nvmlDeviceGetName", pynvml.nvmlDeviceGetName, (Take(50),), fixed=True),
    Question(
        "nvmlDeviceGetBrand",
        pynvml.nvmlDeviceGetBrand,
        (Take(51, lambda brand: BRANDS.get(brand, "Unknown")),),
        fixed=True,
    ),
    Question("nvmlDeviceGetSerial", pynvml.nvmlDeviceGetSerial, (Take(53),), fixed=True),
    Question("nvmlDeviceGetUUID", pynvml.nvmlDeviceGetUUID, (Take(54),), fixed=True),
    Question(
        "nvmlDeviceGetInforomVersion(OEM)",
        lambda handle: pynvml.nvmlDeviceGetInforomVersion(handle, pynvml.NVML_INFOROM_OEM),
        (Take(56),),
        fixed=True,
    ),
    Question(
        "nvmlDeviceGetPciInfo_v3",
        lambda handle: pynvml.nvmlDeviceGetPciInfo_v3(handle).busId,
        (Take(57),),
        fixed=True,
    ),
    Question(
        "nvmlDeviceGetInforomVersion(ECC)",
        lambda handle: pynvml.nvmlDeviceGetInforomVersion(handle, pynvml.NVML_INFOROM_ECC),
        (Take(80),),
        fixed=True,
    ),
    Question(
        "nvmlDeviceGetInforomVersion(POWER)",
        lambda handle: pynvml.nvmlDeviceGetInforomVersion(handle, pynvml.NVML_INFOROM_POWER),
        (Take(81),),
        fixed=True,
    ),
    Question("nvmlDeviceGetInforomImageVersion", pynvml.nvmlDeviceGetInforomImageVersion, (Take(82),), fixed=True),
    Question("nvmlDeviceGetVbiosVersion", pynvml.nvmlDeviceGetVbiosVersion, (Take(85),), fixed=True),
    Question("nvmlDeviceGetComputeRunningProcesses_v3", own_memory, (Take(PROCESS_MEMORY),), instance=True),
    Question("nvmlDeviceGetProcessUtilization", own_sm, (Take(PROCESS_SM),)),
)

# DCGM reports NVLink traffic as a rate although its name says total; the driver keeps KiB counters per direction.
RATES: tuple[Rate, ...] = (
    Rate(
        449,
        (
            (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
            (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
        ),
        1024,
    ),
)

GPM_METRICS: tuple[GpmMetric, ...] = (
    GpmMetric(1001, pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL),
    GpmMetric(1002, pynvml.NVML_GPM_METRIC_SM_UTIL),
    GpmMetric(1003, pynvml.NVML_GPM_METRIC_SM_OCCUPANCY),
    GpmMetric(1004, pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL),
    GpmMetric(1005, pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL),
    GpmMetric(1006, pynvml.NVML_GPM_METRIC_FP64_UTIL),
    GpmMetric(1007, pynvml.NVML_GPM_METRIC_FP32_UTIL),
    GpmMetric(1008, pynvml.NVML_GPM_METRIC_FP16_UTIL),
    # The PCIe port and the links belong to the whole GPU: an instance has no share of its own.
    GpmMetric(1009, pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, instance=False),
    GpmMetric(1010, pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, instance=False),
    GpmMetric(1011, pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, instance=False),
    GpmMetric(1012, pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, instance=False),
)

XID_ERRORS = 230  # comes from the event thread, not from a question

# Of the catalogue; what a process uses of a GPU stands in none.
READABLE: frozenset[int] = frozenset(
    [row.field_id for row in FIELD_VALUES]
    + [take.field_id for question in QUESTIONS for take in question.takes if take.field_id not in PROCESS_IDS]
    + [row.field_id for row in RATES]
    + [row.field_id for row in GPM_METRICS]
    + [XID_ERRORS]
)
