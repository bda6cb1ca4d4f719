"""Device handles: pynvml's are fresh pointer objects each time, the address behind them is what names a device."""

import ctypes
from typing import Any, TypeAlias

Handle: TypeAlias = Any  # nvmlDevice_t; pynvml is untyped


def address_of(handle: Handle) -> int:
    """Name a device handle: NVML's handles are pointers that stay the same while the library is loaded."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
