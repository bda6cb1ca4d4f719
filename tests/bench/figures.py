"""What a figure is, and how times are taken here.

Rule 1: a bound is a ratio or a count where it can be; machines differ and are noisy.
Rule 2: a time is the median of several rounds after one that does not count.
"""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple


class Figure(NamedTuple):
    """One measured figure and the bound it has to keep."""

    name: str
    value: float
    bound: float
    unit: str = ""
    detail: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether the bound is kept."""
        return self.value <= self.bound


def median(call: Callable[[], object], rounds: int = 15) -> float:
    """Seconds one call takes."""
    call()
    times: list[float] = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def interleaved(ours: Callable[[], object], theirs: Callable[[], object], rounds: int = 15) -> tuple[float, float]:
    """Seconds of two calls that take turns, so that both meet the same noise."""
    ours(), theirs()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for call, taken in zip((ours, theirs), times, strict=True):
            started = time.perf_counter()
            call()
            taken.append(time.perf_counter() - started)
    return statistics.median(times[0]), statistics.median(times[1])
