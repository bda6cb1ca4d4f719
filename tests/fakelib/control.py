"""A fake in this process, and the counts of a fake in another.

Rule 1: what a test may ask of every fake; what one fake counts besides is in its own module.
"""

import ctypes
import mmap
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

_HEAD = struct.Struct("<8s4I16q")
_NAME = 64
_GAUGES = 16


class Written(Protocol):
    """A scenario."""

    def write(self, path: Path) -> Path: ...


def load(library: Path) -> ctypes.CDLL:
    """The library in this process, for every later caller too: the loader gives them the same one."""
    loaded = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    loaded.fakelib_calls.restype = ctypes.c_ulonglong
    loaded.fakelib_calls.argtypes = [ctypes.c_char_p]
    loaded.fakelib_calls_on.restype = ctypes.c_ulonglong
    loaded.fakelib_calls_on.argtypes = [ctypes.c_char_p, ctypes.c_int]
    loaded.fakelib_gauge.restype = ctypes.c_longlong
    loaded.fakelib_gauge.argtypes = [ctypes.c_char_p]
    loaded.fakelib_use.argtypes = [ctypes.c_char_p]
    return loaded


@dataclass(frozen=True, slots=True)
class Fake:
    """A loaded fake. `path` is the scenario file that `show` writes."""

    path: Path
    library: ctypes.CDLL

    def show(self, scenario: Written) -> Self:
        """From now on the library answers this."""
        scenario.write(self.path)
        self.library.fakelib_use(str(self.path).encode())
        return self

    def calls(self, function: str | None = None, gpu: int | None = None) -> int:
        """Calls so far: of one function or all, on one GPU (-1: without a device) or anywhere."""
        name = None if function is None else function.encode()
        if gpu is None:
            return int(self.library.fakelib_calls(name))
        return int(self.library.fakelib_calls_on(name, gpu))

    def reset_calls(self) -> None:
        self.library.fakelib_reset_calls()

    def release(self) -> None:
        """Let every call that hangs now go on."""
        self.library.fakelib_release()

    def quiet(self, timeout: float = 10.0) -> Self:
        """End all hangs and wait until no call is in flight. TimeoutError when one goes on."""
        until = time.monotonic() + timeout
        while self.inflight:
            self.release()
            if time.monotonic() > until:
                raise TimeoutError(f"{self.inflight} calls are still in flight")
            time.sleep(0.001)
        return self

    def gauge(self, name: str) -> int:
        """How many there are now of what the fake counts under this name."""
        return int(self.library.fakelib_gauge(name.encode()))

    @property
    def inflight(self) -> int:
        """Calls that have begun and not ended."""
        return self.gauge("inflight")

    @property
    def inits(self) -> int:
        """How many starts of the library still want their shutdown."""
        return self.gauge("inits")


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of processes that were started with the fake's variable set to this file; read anew each time."""

    path: Path

    def calls(self, function: str | None = None, gpu: int | None = None) -> int:
        """As `Fake.calls`. 0 while no process has loaded the fake."""
        total = 0
        for name, row in self._rows():
            if function in (None, name):
                total += sum(row) if gpu is None else row[gpu + 1]
        return total

    def by_function(self) -> dict[str, int]:
        """Calls of each function that was called."""
        return {name: sum(row) for name, row in self._rows() if any(row)}

    def gauge(self, name: str) -> int:
        """As `Fake.gauge`, over all processes (a process that was killed stays in it)."""
        raw = self._raw()
        if raw[:8] != b"FAKELIB\0":
            return 0
        _, _, _, gauges, _, *numbers = _HEAD.unpack_from(raw)
        return int(numbers[_names(raw, _HEAD.size, gauges).index(name)])

    def _raw(self) -> bytes:
        if not self.path.exists() or self.path.stat().st_size < _HEAD.size:
            return b""
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return bytes(view)

    def _rows(self) -> list[tuple[str, tuple[int, ...]]]:
        raw = self._raw()
        if raw[:8] != b"FAKELIB\0":
            return []
        _, functions, columns, *_ = _HEAD.unpack_from(raw)
        row = struct.Struct(f"<{columns}Q")
        at = _HEAD.size + _GAUGES * _NAME
        start = at + functions * _NAME
        return [(name, row.unpack_from(raw, start + i * row.size)) for i, name in enumerate(_names(raw, at, functions))]


def _names(raw: bytes, start: int, count: int) -> list[str]:
    return [raw[at : at + _NAME].rstrip(b"\0").decode() for at in range(start, start + count * _NAME, _NAME)]
