"""Where the driver library is, and why it does not load: in the loader's words, and what the loader keeps to itself.

Without a driver root the loader finds it. With one (a driver that another container or the host has installed, mounted
below a folder) it is looked for there and nowhere else, since the one of this image may be for another driver. What is
loaded under its full path pynvml finds by its name: dlopen takes a library of that soname that is loaded already.

The loader passes over a library for another processor and then says that there is none (glibc 2.36): an image for
arm64 on an amd64 node, or a host folder mounted from the wrong place, looks like a missing driver.
"""

import _ctypes
import ctypes
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pynvml

from otelgpu.sources.roots import IN_ROOT, below

LIBRARY = "libnvidia-ml.so.1"
FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib64", "/usr/lib", "/usr/lib/wsl/lib")
MACHINES: Mapping[int, str] = {3: "x86", 40: "ARM", 62: "x86-64", 183: "AArch64", 243: "RISC-V", 21: "POWER"}


@contextmanager
def loaded(root: str = "") -> Iterator[None]:
    """Load the library, if there is one, and hold it. Raise pynvml.NVMLError where *root* has none that loads.

    ctypes keeps the interpreter's lock while it loads (Python 3.11). From a file system that hangs, such as the host's
    that a container sees the driver by, nothing else in this process would run then, signals neither. A call to
    `dlopen` itself is a call like any other; whoever loads the library inside finds it there.
    """
    loader = ctypes.CDLL(None)
    loader.dlopen.restype, loader.dlclose.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    path = library_in(root)
    handle = None if path is None else loader.dlopen(os.fsencode(path), os.RTLD_NOW)
    if root and not handle:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    try:
        yield
    finally:
        if handle:
            loader.dlclose(handle)


def library_in(root: str) -> str | None:
    """Return the path of the library below *root*, or its bare name without one; None where that root has none."""
    return below(root, LIBRARY) if root else LIBRARY


def loading_error(root: str = "") -> str:
    """Say why the library does not load; "" when it does. pynvml keeps the loader's words to itself."""
    path = library_in(root)
    if path is None:
        return f"{root} has it in none of {', '.join(IN_ROOT)}"
    try:
        ctypes.CDLL(path)
    except OSError as error:
        return "; ".join((str(error), *_foreign([Path(path)] if root else _places())))
    return ""


def unload() -> None:
    """Let go of the library, so that the next nvmlInit loads what is on the disk by then.

    pynvml keeps the library that it loaded first, for ever: after the driver was upgraded that is the one before. To
    be called when nothing of it is in use; while somebody else in this process uses pynvml nothing happens.
    """
    with pynvml.libLoadLock:
        loaded = pynvml.nvmlLib
        if loaded is None or pynvml._nvmlLib_refcount > 0:  # noqa: SLF001 - pynvml has no door for this
            return
        pynvml.nvmlLib = None
        pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001
        _ctypes.dlclose(loaded._handle)  # noqa: SLF001


def _foreign(paths: Iterable[Path]) -> Iterator[str]:
    """Name the libraries that are for another processor than this program."""
    ours = _machine(Path("/proc/self/exe"))
    if ours is None:
        return
    for path in dict.fromkeys(path.resolve() for path in paths):
        theirs = _machine(path)
        if theirs is not None and theirs != ours:
            yield f"{path} is for {_name(theirs)}, this program is for {_name(ours)}"


def _places() -> list[Path]:
    """List where the loader looks."""
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":"), *FOLDERS]
    places = [Path(folder) for folder in folders if folder]
    places += [place for folder in ("/usr/lib", "/lib") for place in Path(folder).glob("*-linux-gnu*")]
    return [place / LIBRARY for place in places]


def _name(machine: int) -> str:
    return MACHINES.get(machine, f"the processor with ELF number {machine}")


def _machine(path: Path) -> int | None:
    """Read the e_machine of an ELF file of this byte order; None for anything else."""
    try:
        with path.open("rb") as file:
            head = file.read(20)
    except OSError:
        return None
    return int.from_bytes(head[18:20], "little") if head[:4] == b"\x7fELF" and head[5:6] == b"\1" else None
