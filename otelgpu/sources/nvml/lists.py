"""The driver's lists of the processes on a device, in whichever form this driver has them.

Rule 1: the lists are version 3 from driver 510 on and version 2, with the same entries, before.
Rule 2: the first releases of 535 (to 535.86) put one more word at the end of each entry of version 3, and took it out
        again. They know the memory of confidential computing and not yet the list of details that the word went to.
"""

import ctypes
from typing import Any

import pynvml

from otelgpu.sources.nvml.handles import Handle


def compute_processes(handle: Handle) -> Any:  # noqa: ANN401 - a list of pynvml's structs
    """List the processes with a compute context. Raise NVMLError."""
    return _listed("Compute", handle)


def graphics_processes(handle: Handle) -> Any:  # noqa: ANN401 - a list of pynvml's structs
    """List the processes with a graphics context. Raise NVMLError."""
    return _listed("Graphics", handle)


def mps_processes(handle: Handle) -> Any:  # noqa: ANN401 - a list of pynvml's structs
    """List the processes that compute by way of the Multi-Process Service. Raise NVMLError."""
    return _listed("MPSCompute", handle)


def _listed(kind: str, handle: Handle) -> Any:  # noqa: ANN401 - a list of pynvml's structs
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    if not _has(f"{name}_v3"):
        return getattr(pynvml, f"{name}_v2")(handle)
    if _has("nvmlDeviceGetConfComputeMemSizeInfo") and not _has("nvmlDeviceGetRunningProcessDetailList"):
        return _wide(f"{name}_v3", handle)
    return getattr(pynvml, f"{name}_v3")(handle)


def _has(function: str) -> bool:
    """Whether the driver has a function; pynvml remembers those that it has found."""
    try:
        pynvml._nvmlGetFunctionPointer(function)  # noqa: SLF001 - pynvml has no other way to ask
    except pynvml.NVMLError:
        return False
    return True


def _wide(function: str, handle: Handle) -> Any:  # noqa: ANN401 - pynvml's structs
    """Ask for a list whose entries are those of the list of details: pynvml would read it with the shorter ones."""
    call = pynvml._nvmlGetFunctionPointer(function)  # noqa: SLF001 - see above
    count = ctypes.c_uint(0)
    code = call(handle, ctypes.byref(count), None)
    if code == pynvml.NVML_SUCCESS:
        return []
    if code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
        raise pynvml.NVMLError(code)
    count.value = 2 * count.value + 5  # more may come between the two calls
    entries = (pynvml.c_nvmlProcessDetail_v1_t * count.value)()
    pynvml._nvmlCheckReturn(call(handle, ctypes.byref(count), entries))  # noqa: SLF001
    return entries[: count.value]
