"""From which GPU generation and driver on a question has an answer, as far as that is known.

Rule 1: generations are those that nvml.h names (CUDA 13.5), or that follow from the hardware: NVLink 5 came with
        Blackwell, NVLink to a CPU with Grace Hopper. Where it names none, or one before Kepler, nothing is said.
Rule 2: drivers are those of which this project knows it; every question is asked of every driver all the same, but for
        field values whose id meant something else (see FieldValue).
"""

from collections.abc import Mapping

import pynvml

FUNCTIONS: Mapping[str, str] = {
    "nvmlDeviceGetCurrentClocksEventReasons": "driver 535",
    "nvmlDeviceGetEncoderStats": "Maxwell",
    "nvmlDeviceGetFBCStats": "Maxwell",
    "nvmlDeviceGetGpuFabricInfoV": "Hopper",
    "nvmlDeviceGetJpgUtilization": "Turing",
    "nvmlDeviceGetMaxMigDeviceCount": "Ampere",
    "nvmlDeviceGetMemoryInfo_v2": "driver 510",
    "nvmlDeviceGetMigMode": "Ampere",
    "nvmlDeviceGetNvLinkErrorCounter": "Pascal",
    "nvmlDeviceGetNvLinkState": "Pascal",
    "nvmlDeviceGetOfaUtilization": "Turing",
    "nvmlDeviceGetPcieThroughput": "Maxwell",
    "nvmlDeviceGetPlatformInfo": "Blackwell",
    "nvmlDeviceGetRemappedRows": "Ampere",
    "nvmlDeviceGetRowRemapperHistogram": "Ampere",
    "nvmlDeviceGetSramEccErrorStatus": "Ampere",
    "nvmlDeviceGetTotalEnergyConsumption": "Volta",
    "nvmlDeviceGetUnrepairableMemoryFlag_v1": "Hopper",
    "nvmlGpmQueryDeviceSupport": "Hopper",
    "nvmlSystemGetConfComputeState": "Ampere",
}

_NVLINK_5, _CPU_LINK = "Blackwell", "Grace Hopper"
# First and last field value of a run.
VALUES: tuple[tuple[int, int, str], ...] = (
    (pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0, pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, "Pascal"),
    (
        pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L6,
        pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L11,
        "Pascal",
    ),
    (pynvml.NVML_FI_DEV_REMAPPED_COR, pynvml.NVML_FI_DEV_REMAPPED_FAILURE, "Ampere"),
    (pynvml.NVML_FI_DEV_C2C_LINK_COUNT, pynvml.NVML_FI_DEV_C2C_LINK_GET_MAX_BW, _CPU_LINK),
    (pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_PACKETS, pynvml.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER, _NVLINK_5),
    (pynvml.NVML_FI_DEV_C2C_LINK_ERROR_INTR, pynvml.NVML_FI_DEV_C2C_LINK_POWER_STATE, _CPU_LINK),
    (pynvml.NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_0, pynvml.NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_15, _NVLINK_5),
)
# The other way round: nvml.h says that Blackwell has them no more.
UNTIL: Mapping[int, str] = dict.fromkeys(
    (
        pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
        pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
        pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
    ),
    " before Blackwell",
)


def since_of_function(name: str) -> str:
    """Say from when on a function answers: " from Hopper on", or nothing."""
    known = FUNCTIONS.get(name.partition("(")[0])
    return f" from {known} on" if known else ""


def since_of_value(nvml_id: int) -> str:
    """Say from when on a field value answers, or until when; nothing where that is not known."""
    found = [known for first, last, known in VALUES if first <= nvml_id <= last]
    return f" from {found[0]} on" if found else UNTIL.get(nvml_id, "")
