"""From NVML's return codes to gaps.

Rule 1: an NVML error becomes a Gap here; no NVMLError leaves the package.
Rule 2: what NVML says of one question, of one GPU and of the driver as a whole are told apart here and nowhere else.
"""

from collections.abc import Callable, Mapping

import pynvml

from otelgpu.errors import SourceDownError
from otelgpu.model import Gap
from otelgpu.sources import DeviceDownError

GAPS: Mapping[int, Gap] = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: Gap.UNSUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Gap.UNSUPPORTED,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: Gap.UNSUPPORTED,
    pynvml.NVML_ERROR_DEPRECATED: Gap.UNSUPPORTED,
    pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED: Gap.UNSUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: Gap.DENIED,
    pynvml.NVML_ERROR_GPU_IS_LOST: Gap.LOST,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: Gap.LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: Gap.LOST,
    pynvml.NVML_ERROR_TIMEOUT: Gap.TIMEOUT,
}

# Codes that say the connection to the driver is gone, whatever was asked.
DISCONNECTED = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)

ADVICE: Mapping[int, str] = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 could not be loaded ({loading}); install the NVIDIA driver, or in a container run with the "
        "NVIDIA runtime and NVIDIA_DRIVER_CAPABILITIES=utility"
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA kernel driver is not loaded; `modprobe nvidia` loads it",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the driver library and the loaded kernel driver are of different versions; reload the kernel driver or "
        "reboot; a container has the library that was there when it was started: start it again"
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: "this user may not use the NVIDIA devices; see the rights of /dev/nvidiactl",
}


class DisconnectedError(DeviceDownError):
    """A question about a GPU found the connection to the driver gone."""


def gap_of(code: int) -> Gap:
    """Say what kind of gap a return code means for the question that got it."""
    return GAPS.get(code, Gap.FAILED)


def raise_if_whole(error: pynvml.NVMLError) -> None:
    """Raise DeviceDownError for a code that speaks of the GPU (or the driver) and not of the one question."""
    code = error.value
    if code in DISCONNECTED:
        raise DisconnectedError(Gap.FAILED, str(error)) from error
    if gap_of(code) is Gap.LOST:
        raise DeviceDownError(Gap.LOST, str(error)) from error


def down(error: pynvml.NVMLError, loading: str = "") -> SourceDownError:
    """Say in one line why NVML cannot be used, and what helps."""
    advice = ADVICE.get(error.value)
    if advice is None:
        return SourceDownError(f"NVML does not answer: {error}")
    return SourceDownError(advice.format(loading=loading or "not found"))


def text_of(ask: Callable[[], object]) -> str:
    """Ask for a text; bytes that are no UTF-8 are kept as U+FFFD (seen with driver 555 under WSL2)."""
    try:
        return str(ask())
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", errors="replace")


def number_or_nothing(ask: Callable[[], int]) -> int | None:
    """Ask for a number that a GPU may not have (None then)."""
    try:
        return int(ask())
    except pynvml.NVMLError as error:
        raise_if_whole(error)
        return None


def text_or_nothing(ask: Callable[[], object]) -> str:
    """Ask for a text that a GPU may not have ("" then)."""
    try:
        return text_of(ask)
    except pynvml.NVMLError as error:
        raise_if_whole(error)
        return ""
