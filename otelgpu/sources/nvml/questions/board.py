"""The board as it runs: clocks, heat, power, the PCIe port, load, memory, the fabric.

Rule 1: what moves with the load is asked in each sweep; limits and what an administrator sets are slow.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml

from otelgpu.fields.process import PROCESS_MEMORY, PROCESS_SM
from otelgpu.sources.nvml.handles import Handle
from otelgpu.sources.nvml.processes import own_memory, own_sm
from otelgpu.sources.nvml.questions.rows import FieldValue, Number, Question, Take, Version

# From here on the ids of power smoothing mean what they say; drivers 575.51 to 580.65 have them three further on.
SMOOTHING_SINCE: Version = (580, 82)

FIELD_VALUES: tuple[FieldValue, ...] = (
    FieldValue(140, pynvml.NVML_FI_DEV_MEMORY_TEMP),
    FieldValue(156, pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION),
    FieldValue(157, pynvml.NVML_FI_DEV_POWER_INSTANT),
    FieldValue(160, pynvml.NVML_FI_DEV_POWER_REQUESTED_LIMIT),
    FieldValue(161, pynvml.NVML_FI_DEV_POWER_MIN_LIMIT),
    FieldValue(162, pynvml.NVML_FI_DEV_POWER_MAX_LIMIT),
    FieldValue(163, pynvml.NVML_FI_DEV_POWER_DEFAULT_LIMIT),
    FieldValue(164, pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT),
    FieldValue(202, pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER),
    FieldValue(285, pynvml.NVML_FI_DEV_C2C_LINK_COUNT),
    FieldValue(286, pynvml.NVML_FI_DEV_C2C_LINK_GET_STATUS),
    FieldValue(287, pynvml.NVML_FI_DEV_C2C_LINK_GET_MAX_BW),
    FieldValue(1400, pynvml.NVML_FI_DEV_C2C_LINK_ERROR_INTR),
    FieldValue(1401, pynvml.NVML_FI_DEV_C2C_LINK_ERROR_REPLAY),
    FieldValue(1402, pynvml.NVML_FI_DEV_C2C_LINK_ERROR_REPLAY_B2B),
    FieldValue(1403, pynvml.NVML_FI_DEV_C2C_LINK_POWER_STATE),
    *(
        FieldValue(1425 + place, pynvml.NVML_FI_PWR_SMOOTHING_ENABLED + place, since=SMOOTHING_SINCE)
        for place in range(18)
    ),
    # A superchip's module is a scope of its own, and so is the memory; an average as in 155, the instant without one.
    *(
        FieldValue(field_id, nvml_id, scope)
        for field_id, scope in ((9109, pynvml.NVML_POWER_SCOPE_MODULE), (9110, pynvml.NVML_POWER_SCOPE_MEMORY))
        for nvml_id in (pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_FI_DEV_POWER_INSTANT)
    ),
    FieldValue(1501, pynvml.NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS),
)


def _clock(field_id: int, kind: str, *, ask: str = "nvmlDeviceGetClockInfo", slow: bool = False) -> Question:
    call = getattr(pynvml, ask)
    number = getattr(pynvml, f"NVML_CLOCK_{kind}")
    return Question(f"{ask}({kind})", lambda handle: call(handle, number), (Take(field_id),), slow=slow)


def _threshold(field_id: int, kind: str) -> Question:
    number = getattr(pynvml, f"NVML_TEMPERATURE_THRESHOLD_{kind}")
    return Question(
        f"nvmlDeviceGetTemperatureThreshold({kind})",
        lambda handle: pynvml.nvmlDeviceGetTemperatureThreshold(handle, number),
        (Take(field_id),),
        slow=True,
    )


def _memory_v2(handle: Handle) -> Any:  # noqa: ANN401 - a ctypes struct of pynvml
    return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)


def _of_memory(name: str) -> Callable[[Any], int | None]:
    """Pick a size; where there is no memory at all, as with one that is the CPU's too, none of its parts is 0."""
    return lambda memory: getattr(memory, name) if memory.total else None


def _used_share(memory: Any) -> float | None:  # noqa: ANN401 - a ctypes struct of pynvml
    """Work out which share of what is not reserved is in use; before driver 510 nothing is told of a reserve."""
    room = memory.total - getattr(memory, "reserved", 0)
    return memory.used / room if room > 0 else None


# The states that DCGM shows: NVML's, and one more for a probe that has ended without success.
FABRIC_FAILED = 4


def _fabric(handle: Handle, struct: Any) -> Any:  # noqa: ANN401 - a ctypes struct of pynvml
    info = struct()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return info


def _fabric_state(info: Any) -> int | None:  # noqa: ANN401 - a ctypes struct of pynvml
    if info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return None
    failed = info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status != pynvml.NVML_SUCCESS
    return FABRIC_FAILED if failed else int(info.state)


def _when_probed(pick: Callable[[Any], Number | None]) -> Callable[[Any], Number | None]:
    """Pick a value that means something only once the GPU has been probed."""
    return lambda info: pick(info) if info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED else None


def _cluster(info: Any) -> str | None:  # noqa: ANN401 - a ctypes struct of pynvml
    digits = bytes(info.clusterUuid).hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join(parts) if digits.strip("0") else None


FABRIC = (
    Take(170, _fabric_state),
    Take(171, _when_probed(lambda info: info.status)),
    Take(172, _when_probed(_cluster)),
    Take(173, _when_probed(lambda info: info.cliqueId)),
    # All zero: not one of the concerns is told of.
    Take(174, _when_probed(lambda info: info.healthMask or None)),
)

QUESTIONS: tuple[Question, ...] = (
    _clock(100, "SM"),
    _clock(101, "MEM"),
    _clock(102, "VIDEO"),
    _clock(110, "SM", ask="nvmlDeviceGetApplicationsClock", slow=True),
    _clock(110, "GRAPHICS", ask="nvmlDeviceGetApplicationsClock", slow=True),
    _clock(111, "MEM", ask="nvmlDeviceGetApplicationsClock", slow=True),
    Question("nvmlDeviceGetCurrentClocksEventReasons", pynvml.nvmlDeviceGetCurrentClocksEventReasons, (Take(112),)),
    # The name before driver 535.
    Question(
        "nvmlDeviceGetCurrentClocksThrottleReasons", pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, (Take(112),)
    ),
    _clock(113, "SM", ask="nvmlDeviceGetMaxClockInfo", slow=True),
    _clock(114, "MEM", ask="nvmlDeviceGetMaxClockInfo", slow=True),
    _clock(115, "VIDEO", ask="nvmlDeviceGetMaxClockInfo", slow=True),
    Question(
        "nvmlDeviceGetAutoBoostedClocksEnabled",
        pynvml.nvmlDeviceGetAutoBoostedClocksEnabled,
        (Take(120, lambda answer: answer[0]),),
        slow=True,
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
    _threshold(151, "MEM_MAX"),
    _threshold(152, "GPU_MAX"),
    _threshold(158, "SLOWDOWN"),
    _threshold(159, "SHUTDOWN"),
    Question("nvmlDeviceGetMarginTemperature", pynvml.nvmlDeviceGetMarginTemperature, (Take(153),)),
    Question("nvmlDeviceGetPowerUsage", pynvml.nvmlDeviceGetPowerUsage, (Take(155),)),
    Question("nvmlDeviceGetTotalEnergyConsumption", pynvml.nvmlDeviceGetTotalEnergyConsumption, (Take(156),)),
    Question("nvmlDeviceGetPowerManagementLimit", pynvml.nvmlDeviceGetPowerManagementLimit, (Take(160),), slow=True),
    Question(
        "nvmlDeviceGetPowerManagementLimitConstraints",
        pynvml.nvmlDeviceGetPowerManagementLimitConstraints,
        (Take(161, lambda limits: limits[0]), Take(162, lambda limits: limits[1])),
        slow=True,
    ),
    Question(
        "nvmlDeviceGetPowerManagementDefaultLimit",
        pynvml.nvmlDeviceGetPowerManagementDefaultLimit,
        (Take(163),),
        slow=True,
    ),
    Question("nvmlDeviceGetEnforcedPowerLimit", pynvml.nvmlDeviceGetEnforcedPowerLimit, (Take(164),), slow=True),
    Question(
        "nvmlDeviceGetGpuFabricInfoV(3)",
        lambda handle: _fabric(handle, pynvml.c_nvmlGpuFabricInfo_v3_t),
        (*FABRIC, Take(175, _when_probed(lambda info: info.healthSummary or None))),
    ),
    # Before driver 570 there is no summary.
    Question("nvmlDeviceGetGpuFabricInfoV(2)", lambda handle: _fabric(handle, pynvml.c_nvmlGpuFabricInfo_v2_t), FABRIC),
    Question("nvmlDeviceGetPerformanceState", pynvml.nvmlDeviceGetPerformanceState, (Take(190),)),
    Question("nvmlDeviceGetFanSpeed", pynvml.nvmlDeviceGetFanSpeed, (Take(191),)),
    # Each of these two takes 20 ms: the driver counts for that long.
    Question(
        "nvmlDeviceGetPcieThroughput(TX)",
        lambda handle: pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_TX_BYTES),
        (Take(200),),
    ),
    Question(
        "nvmlDeviceGetPcieThroughput(RX)",
        lambda handle: pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_RX_BYTES),
        (Take(201),),
    ),
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
    Question("nvmlDeviceGetMaxPcieLinkGeneration", pynvml.nvmlDeviceGetMaxPcieLinkGeneration, (Take(235),), slow=True),
    Question("nvmlDeviceGetMaxPcieLinkWidth", pynvml.nvmlDeviceGetMaxPcieLinkWidth, (Take(236),), slow=True),
    Question("nvmlDeviceGetCurrPcieLinkGeneration", pynvml.nvmlDeviceGetCurrPcieLinkGeneration, (Take(237),)),
    Question("nvmlDeviceGetCurrPcieLinkWidth", pynvml.nvmlDeviceGetCurrPcieLinkWidth, (Take(238),)),
    Question(
        "nvmlDeviceGetMemoryInfo_v2",
        _memory_v2,
        (
            Take(250, _of_memory("total")),
            Take(251, _of_memory("free")),
            Take(252, _of_memory("used")),
            Take(253, _of_memory("reserved")),
            Take(254, _used_share),
        ),
        instance=True,
    ),
    # Before driver 510 there is only v1, which counts what the driver reserves as used.
    Question(
        "nvmlDeviceGetMemoryInfo",
        pynvml.nvmlDeviceGetMemoryInfo,
        (
            Take(250, _of_memory("total")),
            Take(251, _of_memory("free")),
            Take(252, _of_memory("used")),
            Take(254, _used_share),
        ),
        instance=True,
    ),
    Question(
        "nvmlDeviceGetBAR1MemoryInfo",
        pynvml.nvmlDeviceGetBAR1MemoryInfo,
        (
            Take(90, lambda memory: memory.bar1Total),
            Take(92, lambda memory: memory.bar1Used),
            Take(93, lambda memory: memory.bar1Free),
        ),
        instance=True,
    ),
    Question("nvmlDeviceGetComputeRunningProcesses_v3", own_memory, (Take(PROCESS_MEMORY),), instance=True),
    Question("nvmlDeviceGetProcessUtilization", own_sm, (Take(PROCESS_SM),)),
)
