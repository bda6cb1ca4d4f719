"""What scenarios have in common, as values that tests change and write.

Rule 1: the rules for functions are written here as c/rules.c reads them; what a fake answers is its own module's.
"""

import itertools
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

Scalar = int | float | str | bytes
Answer = Scalar | tuple[Scalar, ...] | None
Key = str | tuple[str | int, ...]  # "nvmlDeviceGetPowerUsage", ("nvmlDeviceGetClockInfo", 1), or "*" for every function
Hangs = AbstractSet[Key] | Mapping[Key, int]  # a mapping: so many calls hang, from when the scenario is shown

_clock = itertools.count()
_T = TypeVar("_T")


class Changes:
    """Copies with changes, for frozen dataclasses."""

    __slots__ = ()

    def but(self, **changes: Any) -> Self:
        """A copy. A mapping is laid over the old one, entry by entry; anything else replaces."""
        merged = {}
        for name, new in changes.items():
            old = getattr(self, name)
            both = isinstance(old, Mapping) and isinstance(new, Mapping)
            merged[name] = {**_plain(old), **_plain(new)} if both else new
        return replace(self, **merged)  # type: ignore[type-var]  # every user of this class is a dataclass


class Ruled(Protocol):
    """Whatever has rules for functions."""

    @property
    def errors(self) -> Mapping[Key, int | None]: ...
    @property
    def delays(self) -> Mapping[Key, float]: ...
    @property
    def hangs(self) -> Hangs: ...
    @property
    def crashes(self) -> AbstractSet[Key]: ...


def answer_lines(answers: Mapping[Key, Answer], functions: frozenset[str]) -> Iterator[str]:
    """The answers that are given by function. ValueError for a function that the fake does not have."""
    for key, answer in answers.items():
        if answer is not None:
            values = answer if isinstance(answer, tuple) else (answer,)
            yield f"{call(key, functions)} = {' '.join(map(value, values))}"


def rule_lines(owner: Ruled, functions: frozenset[str]) -> Iterator[str]:
    """Errors, delays, hangs and crashes. ValueError for a function that the fake does not have."""
    for key, code in owner.errors.items():
        if code is not None:
            yield f"{call(key, functions)} ! {code}"
    for key, seconds in owner.delays.items():
        if seconds:
            yield f"{call(key, functions)} delay_us {round(seconds * 1e6)}"
    hangs = owner.hangs if isinstance(owner.hangs, Mapping) else dict.fromkeys(owner.hangs, "")
    yield from sorted(
        f"{call(key, functions)} hang {calls}".rstrip() for key, calls in hangs.items()
    )  # a set has no order
    yield from sorted(f"{call(key, functions)} crash" for key in owner.crashes)


def call(key: Key, functions: frozenset[str]) -> str:
    """A function with its arguments."""
    name, *args = (key,) if isinstance(key, str) else key
    if name != "*" and name not in functions:
        raise ValueError(f"the fake has no {name}: add a row to functions.def")
    return f"{name}[{','.join(map(str, args))}]" if args else str(name)


def value(value: Scalar) -> str:
    """A number or a text."""
    return quoted(value) if isinstance(value, str | bytes) else repr(value)


def quoted(text: str | bytes) -> str:
    """A text, which may hold any bytes."""
    raw = text.encode() if isinstance(text, str) else text
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\x{b:02x}" for b in raw) + '"'


def replaced(items: tuple[_T, ...], index: int, item: _T) -> tuple[_T, ...]:
    """A copy of *items* with another at *index*."""
    return (*items[:index], item, *items[index + 1 :])


def write(path: Path, lines: Iterable[str]) -> Path:
    """Replace the file in one step; the fake sees it at its next call."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as aside:
        aside.write("\n".join(lines) + "\n")
    # No two versions ever have the same time, or the fake would not see the second.
    stamp = time.time_ns() + next(_clock)
    os.utime(aside.name, ns=(stamp, stamp))
    Path(aside.name).chmod(0o644)  # otelgpu may run as another user
    Path(aside.name).replace(path)
    return path


def _plain(mapping: Mapping[Any, Any]) -> dict[Any, Any]:
    # "x" and ("x",) are one key
    return {key[0] if isinstance(key, tuple) and len(key) == 1 else key: item for key, item in mapping.items()}
