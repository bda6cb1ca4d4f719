"""libdcgm: where it is, how it is loaded, and how it is called.

Rule 1: the only module that calls into it. A return code other than OK is a DcgmError.
Rule 2: a call lets the other threads of this process run, loading included (see nvml/loading.py for why that matters).
Rule 3: libdcgm loads its modules, and an engine in this process also libnvidia-ml, by their names: what is loaded here
        under its full path is found by those.
"""

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from ctypes import POINTER, c_char_p, c_double, c_int, c_longlong, c_uint, c_uint16, c_void_p
from pathlib import Path
from typing import Any

from otelgpu.errors import SourceDownError
from otelgpu.sources.dcgm.errors import DcgmError
from otelgpu.sources.dcgm.structs import (
    OK,
    ConnectParams,
    DeviceAttributes,
    EmbeddedParams,
    EntityPair,
    Enumeration,
    FieldValue2,
    Handle,
    MigHierarchy,
    ProfMetricGroups,
    VersionInfo,
)
from otelgpu.sources.roots import below

NAMES = ("libdcgm.so.4", "libdcgm.so.3")
NVML = "libnvidia-ml.so.1"
ADVICE = (
    "install DCGM (the package datacenter-gpu-manager-4-core), or say with `dcgm.library` where its libdcgm.so.4 is; "
    "`--source nvml` needs none"
)

PROTOTYPES: Mapping[str, tuple[Any, ...]] = {
    "dcgmInit": (),
    "dcgmShutdown": (),
    "dcgmStartEmbedded_v2": (POINTER(EmbeddedParams),),
    "dcgmStopEmbedded": (Handle,),
    "dcgmConnect_v2": (c_char_p, POINTER(ConnectParams), POINTER(Handle)),
    "dcgmDisconnect": (Handle,),
    "dcgmHostengineVersionInfo": (Handle, POINTER(VersionInfo)),
    "dcgmGetAllDevices": (Handle, POINTER(c_uint), POINTER(c_int)),
    "dcgmGetGpuStatus": (Handle, c_uint, POINTER(c_int)),
    "dcgmGetDeviceAttributes": (Handle, c_uint, POINTER(DeviceAttributes)),
    "dcgmGetGpuInstanceHierarchy": (Handle, POINTER(MigHierarchy)),
    "dcgmProfGetSupportedMetricGroups": (Handle, POINTER(ProfMetricGroups)),
    "dcgmGroupCreate": (Handle, c_int, c_char_p, POINTER(Handle)),
    "dcgmGroupAddEntity": (Handle, Handle, c_uint, c_uint),
    "dcgmGroupDestroy": (Handle, Handle),
    "dcgmFieldGroupCreate": (Handle, c_int, POINTER(c_uint16), c_char_p, POINTER(Handle)),
    "dcgmFieldGroupDestroy": (Handle, Handle),
    "dcgmWatchFields": (Handle, Handle, Handle, c_longlong, c_double, c_int),
    "dcgmUnwatchFields": (Handle, Handle, Handle),
    "dcgmUpdateAllFields": (Handle, c_int),
    "dcgmEntitiesGetLatestValues": (
        Handle,
        POINTER(EntityPair),
        c_uint,
        POINTER(c_uint16),
        c_uint,
        c_uint,
        POINTER(FieldValue2),
    ),
    "dcgmGetValuesSince_v2": (Handle, Handle, Handle, c_longlong, POINTER(c_longlong), Enumeration, c_void_p),
}


class Library:
    """The loaded library; `path` is what it was loaded by. Raise SourceDownError where it does not load."""

    def __init__(self, place: str = "", root: str = "") -> None:
        loader = ctypes.CDLL(None)
        loader.dlopen.restype, loader.dlerror.restype = c_void_p, c_char_p
        reasons: list[str] = []
        for path in places(place, root):
            handle = loader.dlopen(os.fsencode(path), os.RTLD_NOW)
            loaded = ctypes.CDLL(path, handle=handle) if handle else None
            if loaded is not None and hasattr(loaded, "errorString"):
                self.path, self._loaded = path, loaded
                break
            reasons.append((loader.dlerror() or b"").decode(errors="replace") if loaded is None else f"{path} is none")
        else:
            reason = "; ".join(filter(None, reasons)) or f"there is none in {place}"
            raise SourceDownError(f"{' and '.join(NAMES)} cannot be loaded ({reason}); {ADVICE}")
        if root and (driver := below(root, NVML)):
            loader.dlopen(os.fsencode(driver), os.RTLD_NOW)
        self._calls: dict[str, Callable[..., int]] = {}
        self._loaded.errorString.argtypes, self._loaded.errorString.restype = (c_int,), c_char_p

    def call(self, name: str, *arguments: object) -> None:
        """Call a function. Raise DcgmError where it does not return OK, also for one that this release lacks."""
        call = self._calls.get(name)
        if call is None:
            try:
                found = getattr(self._loaded, name)
            except AttributeError:
                raise DcgmError(name, -20, f"{self.path} does not have it") from None
            found.argtypes, found.restype = PROTOTYPES[name], c_int
            call = self._calls[name] = found
        code = call(*arguments)
        if code != OK:
            raise DcgmError(name, code, self.words(code))

    def words(self, code: int) -> str:
        """Say what a return code means, in DCGM's words."""
        text: bytes | None = self._loaded.errorString(code)
        return text.decode(errors="replace") if text else f"error {code}"


def places(place: str, root: str) -> Iterator[str]:
    """List what is tried: the file or folder that is named and nothing else, or below *root* and then as usual."""
    if place:
        yield from (str(Path(place, name)) for name in NAMES) if Path(place).is_dir() else (place,)
        return
    if root:
        yield from filter(None, (below(root, name) for name in NAMES))
    yield from NAMES
