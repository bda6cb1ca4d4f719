"""The fake in this process.

Rule 1: nothing in pynvml is patched: the fake is loaded first, and the loader gives pynvml the same library.
Rule 2: one process holds one build of the fake for ever; missing functions want a process of their own.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.fakelib import control
from tests.fakenvml.build import SONAME, library


@dataclass(frozen=True, slots=True)
class Fake(control.Fake):
    """The loaded fake. `path` is the scenario file that `show` writes."""

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Within, a wait for events ends in a moment: for an end of which the test asks nothing more."""
        self.library.fakenvml_hurry(1)
        try:
            yield
        finally:
            self.library.fakenvml_hurry(0)

    @property
    def live_samples(self) -> int:
        """GPM samples that were not freed."""
        return self.gauge("samples")

    @property
    def live_event_sets(self) -> int:
        """Event sets that were not freed."""
        return self.gauge("event_sets")


@cache
def _loaded(missing: frozenset[str]) -> ctypes.CDLL:
    return control.load(library(missing) / SONAME)


def preload(path: Path, missing: frozenset[str] = frozenset()) -> Fake:
    """Load the fake into this process; pynvml will find it. *path* is where scenarios will be written.

    Without the *missing* functions in a process that has not loaded any other build, and never will.
    """
    return Fake(path, _loaded(missing))
