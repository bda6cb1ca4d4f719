"""The fake in this process.

Rule 1: one process holds one build of the fake for ever; missing functions and another soname want a process of their
        own.
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.fakedcgm.build import SONAME, library
from tests.fakelib import control

Pair = tuple[int, int]  # entity group, entity id


@dataclass(frozen=True, slots=True)
class Watch:
    """A watch that is alive: seconds, except for the interval, which the caller gave in microseconds."""

    group: int
    field_group: int
    interval_us: int
    keep_age: float
    keep_samples: int
    entities: tuple[Pair, ...]
    fields: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fake(control.Fake):
    """The loaded fake. `path` is the scenario file that `show` writes."""

    @property
    def handles(self) -> int:
        """Connections that were not closed, and the embedded engine while it runs."""
        return self.gauge("handles")

    @property
    def groups(self) -> int:
        """Groups of entities that are alive."""
        return self.gauge("groups")

    @property
    def field_groups(self) -> int:
        return self.gauge("field_groups")

    @property
    def watches(self) -> int:
        """Watches that are alive, each of a group and a field group."""
        return self.gauge("watches")

    @property
    def overlaps(self) -> int:
        """How often the library or the embedded engine was shut down under a call."""
        return self.gauge("overlaps")

    @property
    def last_connect(self) -> str:
        """What the last connection asked for: `ADDRESS timeout_ms=N unix=0 persist=0`; empty when there was none."""
        return self._text("fakedcgm_last_connect")

    @property
    def last_start(self) -> str:
        """How the embedded engine was started last: `mode=1 log=- severity=0 denied=0`."""
        return self._text("fakedcgm_last_start")

    def watched(self) -> tuple[Watch, ...]:
        """Every watch that is alive."""
        return tuple(_watch(line) for line in self._text("fakedcgm_watched").splitlines())

    def _text(self, function: str) -> str:
        ask = self.library[function]
        room = ask(None, 0) + 1
        while True:
            buffer = ctypes.create_string_buffer(room)
            length = ask(buffer, room)
            if length < room:
                return buffer.value.decode()
            room = length + 1  # it has grown meanwhile


def _watch(line: str) -> Watch:
    head, entities, fields = line.split("|")
    group, field_group, interval, age, samples = head.split()
    pairs = tuple(entity.split("/") for entity in entities.split())
    return Watch(
        group=int(group),
        field_group=int(field_group),
        interval_us=int(interval),
        keep_age=float(age),
        keep_samples=int(samples),
        entities=tuple((int(of), int(identity)) for of, identity in pairs),
        fields=tuple(map(int, fields.split())),
    )


@cache
def _loaded(missing: frozenset[str], soname: str) -> ctypes.CDLL:
    return control.load(library(missing, soname) / soname)


def preload(path: Path, missing: frozenset[str] = frozenset(), soname: str = SONAME) -> Fake:
    """Load the fake into this process; `ctypes.CDLL(soname)` finds it. *path* is where scenarios will be written."""
    return Fake(path, _loaded(missing, soname))
