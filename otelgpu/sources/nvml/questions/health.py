"""What has gone wrong: memory errors, retired and remapped memory, times of throttling, what the driver advises.

Rule 1: a question about one kind of error at one place is the last resort: a field value travels with all others, and
        the SRAM status answers five fields at once.
"""

import ctypes
from typing import Any

import pynvml

from otelgpu.sources.nvml.handles import Handle
from otelgpu.sources.nvml.questions.rows import FieldValue, Question, Take

CORRECTED, UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
VOLATILE, AGGREGATE = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC

# DCGM's id of the corrected errors; those of the uncorrected ones follow it. Then NVML's words for the place.
PLACES = (
    ("L1", (314, 324), pynvml.NVML_MEMORY_LOCATION_L1_CACHE),
    ("L2", (316, 326), pynvml.NVML_MEMORY_LOCATION_L2_CACHE),
    ("DEV", (318, 328), pynvml.NVML_MEMORY_LOCATION_DEVICE_MEMORY),
    ("REG", (320, 330), pynvml.NVML_MEMORY_LOCATION_REGISTER_FILE),
    ("TEX", (322, 332), pynvml.NVML_MEMORY_LOCATION_TEXTURE_MEMORY),
    ("SHM", (334, 338), pynvml.NVML_MEMORY_LOCATION_TEXTURE_SHM),
    ("CBU", (336, 340), pynvml.NVML_MEMORY_LOCATION_CBU),
    ("SRM", (342, 344), pynvml.NVML_MEMORY_LOCATION_SRAM),
)
COUNTED = (("SBE", CORRECTED), ("DBE", UNCORRECTED))
SPANS = (("VOL", VOLATILE), ("AGG", AGGREGATE))

# Since driver 575.51: the ids of three counters moved out and back (nothing lies between 580.65 and 580.82).
MOVED, BACK = (575, 51), (580, 82)


def _places() -> tuple[FieldValue, ...]:
    """Make the rows of the places that have a field value: not all have one, the corrected errors of CBU none."""
    rows = []
    for place, firsts, _ in PLACES:
        for (span, _), first in zip(SPANS, firsts, strict=True):
            for offset, (bit, _) in enumerate(COUNTED):
                nvml_id = getattr(pynvml, f"NVML_FI_DEV_ECC_{bit}_{span}_{place}", None)
                if nvml_id is not None:
                    rows.append(FieldValue(first + offset, nvml_id))
    return tuple(rows)


def _counters() -> tuple[Question, ...]:
    """Make the questions for one kind of error at one place, and for all places together."""
    rows = []
    for (span, kept), total in zip(SPANS, (310, 312), strict=True):
        for offset, (bit, error) in enumerate(COUNTED):
            rows.append(_total(total + offset, f"{bit}, {span}", error, kept))
            for place, firsts, location in PLACES:
                first = firsts[SPANS.index((span, kept))]
                rows.append(_counter(first + offset, f"{bit}, {span}, {place}", error, kept, location=location))
    return tuple(rows)


def _total(field_id: int, words: str, error: int, kept: int) -> Question:
    return Question(
        f"nvmlDeviceGetTotalEccErrors({words})",
        lambda handle: pynvml.nvmlDeviceGetTotalEccErrors(handle, error, kept),
        (Take(field_id),),
    )


def _counter(field_id: int, words: str, error: int, kept: int, *, location: int) -> Question:
    return Question(
        f"nvmlDeviceGetMemoryErrorCounter({words})",
        lambda handle: pynvml.nvmlDeviceGetMemoryErrorCounter(handle, error, kept, location),
        (Take(field_id),),
    )


def _sram(handle: Handle) -> Any:  # noqa: ANN401 - a ctypes struct of pynvml
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return status


# pynvml (and DCGM) give this struct a version in front of the flag, nvml.h does not. A driver that goes by nvml.h
# writes the flag over the version; one that does not leaves the version as it was.
def _unrepairable(handle: Handle) -> int:
    status = pynvml.c_nvmlUnrepairableMemory_v1_t()
    version = status.version
    call = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetUnrepairableMemoryFlag_v1")  # noqa: SLF001 - it hides the version
    pynvml._nvmlCheckReturn(call(handle, ctypes.byref(status)))  # noqa: SLF001
    return int(status.unrepairableMemory if status.version == version else status.version)


def _retired(field_id: int, name: str, cause: int) -> Question:
    return Question(
        f"nvmlDeviceGetRetiredPages({name})",
        lambda handle: len(pynvml.nvmlDeviceGetRetiredPages(handle, cause)),
        (Take(field_id),),
        slow=True,
    )


def _violation(field_id: int, name: str) -> Question:
    policy = getattr(pynvml, f"NVML_PERF_POLICY_{name}")
    return Question(
        f"nvmlDeviceGetViolationStatus({name})",
        lambda handle: pynvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime,
        (Take(field_id),),
    )


POLICIES = (
    (240, "POWER"),
    (241, "THERMAL"),
    (242, "SYNC_BOOST"),
    (243, "BOARD_LIMIT"),
    (244, "LOW_UTILIZATION"),
    (245, "RELIABILITY"),
    (246, "TOTAL_APP_CLOCKS"),
    (247, "TOTAL_BASE_CLOCKS"),
)

FIELD_VALUES: tuple[FieldValue, ...] = (
    *(FieldValue(field_id, getattr(pynvml, f"NVML_FI_DEV_PERF_POLICY_{name}")) for field_id, name in POLICIES),
    FieldValue(300, pynvml.NVML_FI_DEV_ECC_CURRENT),
    FieldValue(301, pynvml.NVML_FI_DEV_ECC_PENDING),
    FieldValue(310, pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL),
    FieldValue(311, pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL),
    FieldValue(312, pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL),
    FieldValue(313, pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL),
    *_places(),
    FieldValue(390, pynvml.NVML_FI_DEV_RETIRED_SBE),
    FieldValue(391, pynvml.NVML_FI_DEV_RETIRED_DBE),
    FieldValue(392, pynvml.NVML_FI_DEV_RETIRED_PENDING),
    FieldValue(393, pynvml.NVML_FI_DEV_REMAPPED_UNC),
    FieldValue(394, pynvml.NVML_FI_DEV_REMAPPED_COR),
    FieldValue(395, pynvml.NVML_FI_DEV_REMAPPED_FAILURE),
    FieldValue(396, pynvml.NVML_FI_DEV_REMAPPED_PENDING),
    FieldValue(1420, pynvml.NVML_FI_DEV_PERF_POLICY_POWER),
    FieldValue(1421, pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST),
    FieldValue(1422, 269, since=BACK),
    FieldValue(1422, 251, since=MOVED, before=BACK),
    FieldValue(1423, 270, since=BACK),
    FieldValue(1423, 252, since=MOVED, before=BACK),
    FieldValue(1424, 271, since=BACK),
    FieldValue(1424, 253, since=MOVED, before=BACK),
    FieldValue(1523, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
)

QUESTIONS: tuple[Question, ...] = (
    *(_violation(field_id, name) for field_id, name in POLICIES),
    Question(
        "nvmlDeviceGetEccMode",
        pynvml.nvmlDeviceGetEccMode,
        (Take(300, lambda modes: modes[0]), Take(301, lambda modes: modes[1])),
        slow=True,
    ),
    Question(
        "nvmlDeviceGetSramEccErrorStatus",
        _sram,
        (
            Take(342, lambda status: status.volatileCor),
            Take(343, lambda status: status.volatileUncParity + status.volatileUncSecDed),
            Take(344, lambda status: status.aggregateCor),
            Take(345, lambda status: status.aggregateUncParity + status.aggregateUncSecDed),
            Take(346, lambda status: status.bThresholdExceeded),
        ),
    ),
    *_counters(),
    Question(
        "nvmlDeviceGetRowRemapperHistogram",
        pynvml.nvmlDeviceGetRowRemapperHistogram,
        (
            Take(385, lambda banks: banks.max),
            Take(386, lambda banks: banks.high),
            Take(387, lambda banks: banks.partial),
            Take(388, lambda banks: banks.low),
            Take(389, lambda banks: banks.none),
        ),
        slow=True,
    ),
    _retired(390, "SBE", pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS),
    _retired(391, "DBE", pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR),
    Question(
        "nvmlDeviceGetRetiredPagesPendingStatus",
        pynvml.nvmlDeviceGetRetiredPagesPendingStatus,
        (Take(392),),
        slow=True,
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
    Question("nvmlDeviceGetUnrepairableMemoryFlag_v1", _unrepairable, (Take(1507),), slow=True),
)
