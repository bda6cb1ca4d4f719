"""A compiled fake: a folder with its library in it.

Rule 1: built once per source and set of left-out functions, into a folder named after their hash; a test run never
        waits for another and never sees half a file (built aside, then renamed).
Rule 2: a function that an old library lacks is really absent from the symbol table, through a linker version script.
        The sources are compiled once; another set of functions, or another soname, is only linked.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SHARED = Path(__file__).parent / "c"
FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Wno-deprecated-declarations", "-fPIC")


class CannotBuildError(Exception):
    """A fake cannot be compiled here: no C compiler, or no header of the library it stands for."""


@dataclass(frozen=True, slots=True)
class Build:
    """How one fake is built. `symbols`: the patterns that it exports; `header`: finds a header that is not ours."""

    sources: Path
    symbols: str
    header: Callable[[], Path] | None = None

    @property
    def name(self) -> str:
        return self.sources.parent.name

    def functions(self) -> frozenset[str]:
        """The functions that the fake has: rows of functions.def."""
        return _functions(self.sources)

    def library(self, soname: str, missing: frozenset[str] = frozenset()) -> Path:
        """The folder that holds the fake without the *missing* functions."""
        unknown = missing - self.functions()
        if unknown:
            raise ValueError(f"the fake has no {', '.join(sorted(unknown))} that could be left out")
        return _library(self, soname, missing)


@cache
def _functions(sources: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^[A-Z_]+\((\w+)", (sources / "functions.def").read_text(), re.MULTILINE))


@cache
def _library(build: Build, soname: str, missing: frozenset[str]) -> Path:
    compiler = _compiler()
    folder = _cache(build) / _digest(build, (soname, *sorted(missing)))
    if not (folder / soname).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as aside:
            made = _link(Path(aside, soname), compiler, build, missing)
            made.replace(folder / soname)
    return folder


def _compiler() -> str:
    found = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        raise CannotBuildError("no C compiler: install gcc or clang")
    return found


def _cache(build: Build) -> Path:
    chosen = os.environ.get(f"{build.name.upper()}_CACHE")
    return Path(chosen) if chosen else Path(__file__).parents[2] / ".cache" / build.name


def _digest(build: Build, what: Iterable[str]) -> str:
    digest = hashlib.sha256(repr((FLAGS, build.symbols, tuple(what), os.uname().machine)).encode())
    headers = () if build.header is None else (build.header(),)
    for path in (*sorted(SHARED.iterdir()), *sorted(build.sources.iterdir()), *headers):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _object(compiler: str, build: Build) -> Path:
    """Compile all sources into one object, which every library is linked from."""
    folder = _cache(build) / _digest(build, ("all", "of", "it"))
    made = folder / f"{build.name}.o"
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        found = [f"-I{SHARED}"] if build.header is None else [f"-I{SHARED}", f"-I{build.header().parent}"]
        with tempfile.TemporaryDirectory(dir=folder) as aside:
            for source in (*sorted(SHARED.glob("*.c")), *sorted(build.sources.glob("*.c"))):
                part = Path(aside, source.with_suffix(".o").name)
                _run([compiler, *FLAGS, *found, "-c", str(source), "-o", str(part)])
            parts = [str(part) for part in sorted(Path(aside).glob("*.o"))]
            whole = Path(aside, "whole")
            _run([compiler, "-r", "-nostdlib", *parts, "-o", str(whole)])
            whole.replace(made)
    return made


def _link(made: Path, compiler: str, build: Build, missing: Iterable[str]) -> Path:
    script = made.with_name("symbols")
    local = "".join(f"{name}; " for name in sorted(missing))
    script.write_text(f"{{ global: {build.symbols} fakelib_*; local: {local}*; }};\n")
    flags = ("-shared", f"-Wl,-soname,{made.name}", f"-Wl,--version-script={script}")
    _run([compiler, *flags, str(_object(compiler, build)), "-o", str(made), "-lpthread"])
    return made


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise CannotBuildError(f"{' '.join(command)}\n{result.stderr}")
