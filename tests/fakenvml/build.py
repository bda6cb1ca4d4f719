"""The compiled fake: a folder with a `libnvidia-ml.so.1` in it.

Rule 1: built once per source and set of left-out functions, into a folder named after their hash; a test run never
        waits for another and never sees half a file (built aside, then renamed).
Rule 2: a function that an old driver lacks is really absent from the symbol table, through a linker version script.
        The sources are compiled once; another set of functions is only linked.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

SONAME = "libnvidia-ml.so.1"
SOURCES = Path(__file__).parent / "c"
FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Wno-deprecated-declarations", "-fPIC")


class CannotBuildError(Exception):
    """The fake cannot be compiled here: no C compiler, or no nvml.h (package nvidia-nvml-dev)."""


@cache
def functions() -> frozenset[str]:
    """The NVML functions that the fake has."""
    text = (SOURCES / "functions.def").read_text()
    return frozenset(re.findall(r"^[A-Z_]+\((nvml\w+)", text, re.MULTILINE))


@cache
def library(missing: frozenset[str] = frozenset()) -> Path:
    """The folder that holds the fake without the *missing* functions. For LD_LIBRARY_PATH or `preload`."""
    unknown = missing - functions()
    if unknown:
        raise ValueError(f"the fake has no {', '.join(sorted(unknown))} that could be left out")
    compiler = _compiler()
    header = _header()
    folder = _cache() / _digest(header, missing)
    if not (folder / SONAME).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as aside:
            made = _link(Path(aside), compiler, _object(compiler, header), missing)
            made.replace(folder / SONAME)
    return folder


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


def _compiler() -> str:
    found = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        raise CannotBuildError("no C compiler: install gcc or clang")
    return found


def _header() -> Path:
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in spec.submodule_search_locations or ()] if spec else []
    for place in places:
        for header in sorted(place.glob("*/include/nvml.h"), reverse=True):
            return header
    raise CannotBuildError("no nvml.h: install nvidia-nvml-dev")


def _cache() -> Path:
    chosen = os.environ.get("FAKENVML_CACHE")
    return Path(chosen) if chosen else Path(__file__).parents[2] / ".cache" / "fakenvml"


def _digest(header: Path, missing: Iterable[str]) -> str:
    digest = hashlib.sha256(repr((FLAGS, sorted(missing), os.uname().machine)).encode())
    for path in (*sorted(SOURCES.iterdir()), header):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _object(compiler: str, header: Path) -> Path:
    """Compile all sources into one object, which every library is linked from."""
    folder = _cache() / _digest(header, ("all", "of", "it"))
    made = folder / "fakenvml.o"
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as aside:
            sources = [str(source) for source in sorted(SOURCES.glob("*.c"))]
            for source in sources:
                part = Path(aside, Path(source).with_suffix(".o").name)
                _run([compiler, *FLAGS, f"-I{header.parent}", "-c", source, "-o", str(part)])
            parts = [str(part) for part in sorted(Path(aside).glob("*.o"))]
            whole = Path(aside, "whole")
            _run([compiler, "-r", "-nostdlib", *parts, "-o", str(whole)])
            whole.replace(made)
    return made


def _link(aside: Path, compiler: str, whole: Path, missing: Iterable[str]) -> Path:
    made = aside / SONAME
    script = aside / "symbols"
    local = "".join(f"{name}; " for name in sorted(missing))
    script.write_text(f"{{ global: nvml*; fakenvml_*; local: {local}*; }};\n")
    flags = ("-shared", f"-Wl,-soname,{SONAME}", f"-Wl,--version-script={script}")
    _run([compiler, *flags, str(whole), "-o", str(made), "-lpthread"])
    return made


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise CannotBuildError(f"{' '.join(command)}\n{result.stderr}")
