"""From DCGM's return codes and blank values to gaps.

Rule 1: a DCGM error becomes a Gap here; no DcgmError leaves the package.
Rule 2: what DCGM says of one field, of one GPU and of the engine as a whole are told apart here and nowhere else.
Rule 3: a value is judged by its status and by itself: a status of 0 can come with a blank.
"""

from collections.abc import Mapping

from otelgpu.fields.measures import INT32_HIGHEST, INT64_HIGHEST
from otelgpu.model import Gap

BADPARAM, GENERIC, NOT_SUPPORTED, UNINITIALIZED, UNKNOWN_FIELD = -1, -3, -6, -10, -13
NO_DATA, NOT_WATCHED, CONNECTION, UNSUPPORTED_BY_API = -14, -16, -21, -32

NO_VALUE = "DCGM has no value yet"
GAPS: Mapping[int, tuple[Gap, str]] = {
    NOT_SUPPORTED: (Gap.UNSUPPORTED, "DCGM says that it is not supported"),
    -11: (Gap.TIMEOUT, "the engine got no answer in time"),
    UNKNOWN_FIELD: (Gap.UNSUPPORTED, "this DCGM does not know it"),
    NO_DATA: (Gap.FAILED, NO_VALUE),
    -15: (Gap.FAILED, "DCGM's value is out of date"),
    NOT_WATCHED: (Gap.FAILED, "the engine does not watch it"),
    -17: (Gap.DENIED, "the engine may not ask for it"),
    -18: (Gap.LOST, "the GPU is lost"),
    -19: (Gap.LOST, "the GPU needs a reset"),
    -20: (Gap.UNSUPPORTED, "this driver does not have it"),
    -22: (Gap.UNSUPPORTED, "DCGM does not support this GPU"),
    -29: (Gap.DENIED, "the engine has to run as root for it"),
    UNSUPPORTED_BY_API: (Gap.UNSUPPORTED, "DCGM does not give it in this way"),
    -33: (Gap.UNSUPPORTED, "a module of DCGM is not installed or could not be loaded"),
    -36: (Gap.UNSUPPORTED, "this GPU has no profiling"),
    -44: (Gap.UNSUPPORTED, "the driver is too old for it"),
    -57: (Gap.TIMEOUT, "the driver did not answer the engine in time"),
    -67: (Gap.LOST, "the GPU is detached from DCGM"),
}

# Codes that say that the connection to the engine is gone, whatever was asked.
DISCONNECTED = frozenset((CONNECTION, UNINITIALIZED))
# What an engine says of a list with a field in it that it does not know or have.
BAD_LIST = frozenset((BADPARAM, GENERIC, NOT_SUPPORTED, UNKNOWN_FIELD, UNSUPPORTED_BY_API))

# What stands for a missing value: by how far it is above the lowest one of its type.
BLANKS: tuple[tuple[Gap, str], ...] = (
    (Gap.FAILED, NO_VALUE),
    (Gap.UNSUPPORTED, "DCGM did not find it"),
    (Gap.UNSUPPORTED, "DCGM says that it is not supported"),
    (Gap.DENIED, "DCGM may not ask for it"),
)
BLANK_INT32, BLANK_INT64, BLANK_DOUBLE = INT32_HIGHEST + 1, INT64_HIGHEST + 1, 2.0**47
BLANK_TEXTS: Mapping[str, int] = {"<<<NULL>>>": 0, "<<<NOT_FOUND>>>": 1, "<<<NOT_SUPPORTED>>>": 2, "<<<NOT_PERM>>>": 3}


class DcgmError(Exception):
    """A call to libdcgm failed with this code."""

    def __init__(self, name: str, code: int, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.code = code


def gap_of(code: int) -> Gap:
    """Say what kind of gap a code means for what was asked."""
    return told_by(code)[0]


def told_by(code: int) -> tuple[Gap, str]:
    """Say what kind of gap the status of a value means, and why."""
    return GAPS.get(code, (Gap.FAILED, f"DCGM error {code}"))


def blank_number(number: int | float, highest: float) -> tuple[Gap, str] | None:  # noqa: PYI041 - an int is another
    """Say why a number is no value; None where it is one. *highest* is what the field can be.

    A field of 64 bits may hold the blank of 32: it is one where the field cannot be as large.
    """
    if isinstance(number, float):
        return _blank(number - BLANK_DOUBLE) if number >= BLANK_DOUBLE else None  # NaN is not; it is dropped later
    if number >= BLANK_INT64:
        return _blank(number - BLANK_INT64)
    return _blank(number - BLANK_INT32) if highest < BLANK_INT32 <= number < BLANK_INT32 + len(BLANKS) else None


def blank_text(text: str) -> tuple[Gap, str] | None:
    """Say why a text is no value; None where it is one."""
    if text.startswith("<<<") and ">>>" in text:
        return _blank(BLANK_TEXTS.get(text, 0))
    return None if text else (Gap.UNSUPPORTED, "DCGM has an empty text for it")


def _blank(place: float) -> tuple[Gap, str]:
    return BLANKS[int(place)] if place < len(BLANKS) else BLANKS[0]
