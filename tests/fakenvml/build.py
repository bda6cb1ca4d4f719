"""The compiled fake: a folder with a `libnvidia-ml.so.1` in it.

Rule 1: how it is compiled and linked is tests/fakelib's; here is what only this library needs.
"""

import importlib.util
import os
import struct
from collections.abc import Set as AbstractSet
from pathlib import Path

from tests.fakelib.build import Build, CannotBuildError

SONAME = "libnvidia-ml.so.1"


def _header() -> Path:
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in spec.submodule_search_locations or ()] if spec else []
    for place in places:
        for header in sorted(place.glob("*/include/nvml.h"), reverse=True):
            return header
    raise CannotBuildError("no nvml.h: install nvidia-nvml-dev")


BUILD = Build(Path(__file__).parent / "c", "nvml*; fakenvml_*;", _header)


def functions() -> frozenset[str]:
    """The NVML functions that the fake has."""
    return BUILD.functions()


def library(missing: AbstractSet[str] = frozenset()) -> Path:
    """The folder that holds the fake without the *missing* functions. For LD_LIBRARY_PATH or `preload`."""
    return BUILD.library(SONAME, frozenset(missing))


def wrong_architecture(folder: Path) -> Path:
    """Write a library for another processor into *folder* and give the folder back; loading it fails as it would."""
    here = os.uname().machine
    machine = 0xB7 if here != "aarch64" else 0x3E  # AArch64, or x86-64 where we are on AArch64
    ident = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 4096, 4096, 4096)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SONAME).write_bytes((header + segment).ljust(4096, b"\0"))
    return folder
