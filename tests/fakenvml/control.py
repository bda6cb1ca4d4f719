"""The fake in this process, and the counts of a fake in another.

Rule 1: nothing in pynvml is patched: the fake is loaded first, and the loader gives pynvml the same library.
Rule 2: one process holds one build of the fake for ever; missing functions want a process of their own.
"""

import ctypes
import mmap
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

from tests.fakenvml.build import SONAME, library
from tests.fakenvml.scenario import Scenario

_HEAD = struct.Struct("<8sII4q")
_NAME = 64
_GAUGES = ("inflight", "inits", "samples", "event_sets")


@dataclass(frozen=True, slots=True)
class Fake:
    """The loaded fake. `path` is the scenario file that `show` writes."""

    path: Path
    library: ctypes.CDLL

    def show(self, scenario: Scenario) -> Self:
        """From now on the driver answers this."""
        scenario.write(self.path)
        self.library.fakenvml_use(str(self.path).encode())
        return self

    def calls(self, function: str | None = None, gpu: int | None = None) -> int:
        """Calls so far: of one function or all, on one GPU (-1: without a device) or anywhere."""
        name = None if function is None else function.encode()
        if gpu is None:
            return int(self.library.fakenvml_calls(name))
        return int(self.library.fakenvml_calls_on(name, gpu))

    def reset_calls(self) -> None:
        self.library.fakenvml_reset_calls()

    def release(self) -> None:
        """Let every call that hangs now go on."""
        self.library.fakenvml_release()

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Within, a wait for events ends in a moment: for an end of which the test asks nothing more."""
        self.library.fakenvml_hurry(1)
        try:
            yield
        finally:
            self.library.fakenvml_hurry(0)

    def quiet(self, timeout: float = 10.0) -> Self:
        """End all hangs and wait until no call is in flight. TimeoutError when one goes on."""
        until = time.monotonic() + timeout
        while self.inflight:
            self.release()
            if time.monotonic() > until:
                raise TimeoutError(f"{self.inflight} calls are still in flight")
            time.sleep(0.001)
        return self

    @property
    def live_samples(self) -> int:
        """GPM samples that were not freed."""
        return int(self.library.fakenvml_live_samples())

    @property
    def live_event_sets(self) -> int:
        """Event sets that were not freed."""
        return int(self.library.fakenvml_live_event_sets())

    @property
    def inflight(self) -> int:
        """Calls that have begun and not ended."""
        return int(self.library.fakenvml_inflight())

    @property
    def inits(self) -> int:
        """How many nvmlInit still want their nvmlShutdown."""
        return int(self.library.fakenvml_inits())


@cache
def _loaded(missing: frozenset[str]) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library(missing) / SONAME), mode=ctypes.RTLD_GLOBAL)
    loaded.fakenvml_calls.restype = ctypes.c_ulonglong
    loaded.fakenvml_calls.argtypes = [ctypes.c_char_p]
    loaded.fakenvml_calls_on.restype = ctypes.c_ulonglong
    loaded.fakenvml_calls_on.argtypes = [ctypes.c_char_p, ctypes.c_int]
    loaded.fakenvml_use.argtypes = [ctypes.c_char_p]
    return loaded


def preload(path: Path, missing: frozenset[str] = frozenset()) -> Fake:
    """Load the fake into this process; pynvml will find it. *path* is where scenarios will be written.

    Without the *missing* functions in a process that has not loaded any other build, and never will.
    """
    return Fake(path, _loaded(missing))


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of processes that were started with FAKENVML_COUNTS set to this file; read anew each time."""

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
        """One of inflight, inits, samples, event_sets, over all processes (a process that was killed stays in it)."""
        raw = self._raw()
        return int(_HEAD.unpack_from(raw)[3 + _GAUGES.index(name)]) if raw else 0

    def _raw(self) -> bytes:
        if not self.path.exists() or self.path.stat().st_size < _HEAD.size:
            return b""
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return bytes(view)

    def _rows(self) -> list[tuple[str, tuple[int, ...]]]:
        raw = self._raw()
        if raw[:8] != b"FAKENVML":
            return []
        _, functions, columns, *_ = _HEAD.unpack_from(raw)
        row = struct.Struct(f"<{columns}Q")
        names = [
            raw[at : at + _NAME].rstrip(b"\0").decode()
            for at in range(_HEAD.size, _HEAD.size + functions * _NAME, _NAME)
        ]
        start = _HEAD.size + functions * _NAME
        start += -start % 8
        return [(name, row.unpack_from(raw, start + i * row.size)) for i, name in enumerate(names)]
