"""The compiled fake: a folder with a `libdcgm.so.4` in it.

Rule 1: how it is compiled and linked is tests/fakelib's. It needs no header of DCGM: c/dcgm.h is ours.
"""

from collections.abc import Set as AbstractSet
from pathlib import Path

from tests.fakelib.build import Build

SONAME = "libdcgm.so.4"
OLD_SONAME = "libdcgm.so.3"
BUILD = Build(Path(__file__).parent / "c", "dcgm*; errorString; fakedcgm_*;")


def functions() -> frozenset[str]:
    """The DCGM functions that the fake has."""
    return BUILD.functions()


def library(missing: AbstractSet[str] = frozenset(), soname: str = SONAME) -> Path:
    """The folder that holds the fake without the *missing* functions. For LD_LIBRARY_PATH or `preload`."""
    return BUILD.library(soname, frozenset(missing))
