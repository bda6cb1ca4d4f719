"""NVLink: errors, traffic and state, in total and link by link.

Rule 1: DCGM gave out ids for the links in lots; a lot is a row of the tables below, never a row a link.
Rule 2: field values of single links exist for links 0 to 11; the others are asked with a call each.
"""

import math
from collections.abc import Iterable, Iterator

import pynvml

from otelgpu.sources.nvml.questions.rows import (
    ALL_LINKS,
    LINKS,
    FieldValue,
    LinkSum,
    Question,
    Rate,
    Take,
    per_link,
)

KIB = 1024
TX, RX = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
WITH_VALUES = 12  # links whose error counters are field values
LOTS = (range(6), range(6, 12), range(12, 15), range(15, 18))  # of links

# Name, DCGM's first id of each lot, its id of the total and of the field with a series a link, NVML's counter.
ERRORS = (
    ("CRC_FLIT", (400, 451, 406, 481), 409, 1525, pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT),
    ("CRC_DATA", (410, 457, 416, 484), 419, 1526, pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA),
    ("REPLAY", (420, 463, 426, 487), 429, 1527, pynvml.NVML_NVLINK_ERROR_DL_REPLAY),
    ("RECOVERY", (430, 469, 436, 491), 439, 1528, pynvml.NVML_NVLINK_ERROR_DL_RECOVERY),
)


def ids_of(firsts: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """List the links with DCGM's id of each, from the first ids of the lots."""
    for links, first in zip(LOTS, firsts, strict=True):
        yield from ((link, first + link - links.start) for link in links)


def _error_values() -> Iterator[FieldValue]:
    for name, firsts, total, series, _ in ERRORS:
        prefix = f"NVML_FI_DEV_NVLINK_{name}_ERROR_COUNT"
        yield FieldValue(total, getattr(pynvml, f"{prefix}_TOTAL"))
        for link, field_id in ids_of(firsts):
            if link < WITH_VALUES:
                nvml_id = getattr(pynvml, f"{prefix}_L{link}")
                yield FieldValue(field_id, nvml_id)
                yield FieldValue(series, nvml_id, link=link)


def _error_questions() -> Iterator[Question]:
    for name, firsts, _, series, counter in ERRORS:
        for link, field_id in ids_of(firsts):
            yield _error(f"{name}, {link}", counter, link, (Take(field_id), Take(series, link=link)))


def _error(words: str, counter: int, link: int, takes: tuple[Take, ...]) -> Question:
    return Question(
        f"nvmlDeviceGetNvLinkErrorCounter({words})",
        lambda handle: pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, counter),
        takes,
    )


def _state(link: int) -> Question:
    return Question(
        f"nvmlDeviceGetNvLinkState({link})",
        lambda handle: pynvml.nvmlDeviceGetNvLinkState(handle, link),
        (Take(1508, link=link),),
    )


def _link_rates() -> Iterator[Rate]:
    """DCGM's both directions, from the GPU, and to the GPU: first fields of one link each, then series."""
    for link, field_id in ids_of((440, 475, 446, 494)):
        both, sent, received = ((TX, link), (RX, link)), ((TX, link),), ((RX, link),)
        yield Rate(field_id, both, KIB)
        yield Rate(825 + link, sent, KIB)
        yield Rate(879 + link, received, KIB)
        yield Rate(1529, both, KIB, link)
        yield Rate(1530, sent, KIB, link)
        yield Rate(1531, received, KIB, link)


MOST_BER = 0xFFF


def error_rate(code: int) -> float:
    """Read an error rate as NVLink encodes it: four bits of mantissa over eight of a negative power of ten.

    Infinite, which is no error rate, for a code with any further bit.
    """
    return float(f"{code >> 8}e-{code & 0xFF}") if code <= MOST_BER else math.inf


def _worst_code(codes: Iterable[int]) -> int:
    return max(codes, key=error_rate)


def _worst_rate(codes: Iterable[int]) -> float:
    return max(map(error_rate, codes))


FIELD_VALUES: tuple[FieldValue, ...] = (
    *_error_values(),
    FieldValue(1220, pynvml.NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL),
    *per_link(1508, pynvml.NVML_FI_DEV_NVLINK_GET_STATE),
)

QUESTIONS: tuple[Question, ...] = (*_error_questions(), *(_state(link) for link in range(LINKS)))

# DCGM reports NVLink traffic as a rate although its name says total; the driver keeps KiB counters per direction.
RATES: tuple[Rate, ...] = (
    Rate(449, ((TX, ALL_LINKS), (RX, ALL_LINKS)), KIB),
    Rate(843, ((TX, ALL_LINKS),), KIB),
    Rate(897, ((RX, ALL_LINKS),), KIB),
    *_link_rates(),
)

# NVLink 5 counts more, and link by link only; so do the older counters of the data link layer. DCGM has one error rate
# for a GPU and does not say how it comes from those of the links; here it is that of the worst one.
SUMS: tuple[LinkSum, ...] = (
    LinkSum(497, pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC),
    LinkSum(498, pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY),
    LinkSum(499, pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY),
    LinkSum(1200, pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_PACKETS),
    LinkSum(1201, pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES),
    LinkSum(1202, pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_PACKETS),
    LinkSum(1203, pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES),
    LinkSum(1204, pynvml.NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS),
    LinkSum(1205, pynvml.NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS),
    LinkSum(1206, pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS),
    LinkSum(1207, pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS),
    LinkSum(1208, pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS),
    LinkSum(1209, pynvml.NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS),
    LinkSum(1210, pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS),
    LinkSum(1211, pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS),
    LinkSum(1212, pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS),
    LinkSum(1213, pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS),
    LinkSum(1214, pynvml.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS),
    LinkSum(1215, pynvml.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER, _worst_code),
    LinkSum(1216, pynvml.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER, _worst_rate),
    LinkSum(1217, pynvml.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, _worst_code),
    LinkSum(1218, pynvml.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, _worst_rate),
    LinkSum(1219, pynvml.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS),
    *(LinkSum(1404 + bin_, pynvml.NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_0 + bin_) for bin_ in range(16)),
)
