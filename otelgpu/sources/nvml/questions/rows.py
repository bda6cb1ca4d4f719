"""What a row of the tables says: the kinds of question that the NVML source puts.

Rule 1: one driver call is one Question; a Take picks the driver's own number, unconverted.
Rule 2: what nvmlDeviceGetFieldValues can carry is a FieldValue, a Rate or a LinkSum: all of it travels in one call.
Rule 3: where several rows answer one field the first is asked; the next one only where the driver (or the GPU)
        does not know the first.
Rule 4: `link` says that a row (or a Take) gives the series of one NVLink; other links have rows of their own.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from otelgpu.sources.nvml.handles import Handle

Number: TypeAlias = int | float | str
Version: TypeAlias = tuple[int, ...]  # of the driver: (580, 82)
Pick: TypeAlias = Callable[[Any], Number | None]  # None: the driver has no value there

# Seconds: the driver's counters move in steps of about that, so a shorter window says nothing.
WINDOW = 0.1
ALL_LINKS = 0xFFFFFFFF  # the scope that makes an NVLink field the sum over the GPU's links
LINKS = 18  # that DCGM's fields know; no GPU has more so far


@dataclass(frozen=True, slots=True, eq=False)
class Take:
    """Which field an answer gives, and how it is picked out of what the call returned."""

    field_id: int
    pick: Pick = lambda raw: raw
    link: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One driver call about one device.

    `fixed`: asked once, the answer holds while the device is there. `slow`: what an administrator sets or the hardware
    seldom changes; asked again only after `sampling.slow_interval`.
    """

    name: str
    ask: Callable[[Handle], Any]
    takes: tuple[Take, ...]
    instance: bool = False  # a MIG instance answers it too
    fixed: bool = False
    slow: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class FieldValue:
    """One entry of nvmlDeviceGetFieldValues: NVML's own field id and scope.

    `since` and `before` bound the drivers in which the id means this: some ids meant something else for a while.
    """

    field_id: int
    nvml_id: int
    scope: int = 0
    link: int | None = None
    since: Version = ()
    before: Version = ()


@dataclass(frozen=True, slots=True, eq=False)
class Rate:
    """A rate per second that is worked out from counters of nvmlDeviceGetFieldValues, summed, times `factor`."""

    field_id: int
    counters: tuple[tuple[int, int], ...]  # (NVML field id, scope)
    factor: int
    link: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LinkSum:
    """A number that NVML keeps for each NVLink alone; `fold` makes one of them: their sum, or the worst."""

    field_id: int
    nvml_id: int
    fold: Callable[[Iterable[Any]], int | float] = sum
    link: None = None


@dataclass(frozen=True, slots=True, eq=False)
class GpmMetric:
    """One metric of nvmlGpmMetricsGet (Hopper and newer); `instance`: also kept for a MIG instance."""

    field_id: int
    metric_id: int
    instance: bool = True
    link: int | None = None


def per_link(field_id: int, nvml_id: int) -> tuple[FieldValue, ...]:
    """Make the rows of a field that has a series for each NVLink, where the scope is the link."""
    return tuple(FieldValue(field_id, nvml_id, link, link) for link in range(LINKS))
