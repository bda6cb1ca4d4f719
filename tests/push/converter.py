"""What the Collector's cumulativetodelta processor makes of totals, by the rules of its code.

Rule 1: a stream is its resource, name, unit, kind of number and attributes, and its start (newer versions and other
        converters leave the start out: `by_start` False).
Rule 2: of a stream that is new `auto` passes the whole number on as an increase, unless the start is not set, lies
        before the processor's own, or equals the time. `drop` never does, `keep` always.
Rule 3: a number below the one before is a reset: nothing is passed on, and it is the base of the next.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.push.collectors import Point

Stream = tuple[object, ...]


@dataclass
class Converter:
    """The processor, started at `started` (ns). `increases` are what it has passed on."""

    started: int = 0
    initial: str = "auto"
    by_start: bool = True
    increases: list[Point] = field(default_factory=list)
    _before: dict[Stream, Point] = field(default_factory=dict)

    def take(self, points: Iterable[Point]) -> list[Point]:
        """Take a batch in; return the increases it gave."""
        passed = [increase for point in points if (increase := self._converted(point)) is not None]
        self.increases += passed
        return passed

    def _converted(self, point: Point) -> Point | None:
        stream = (point.name, type(point.value), frozenset(point.attributes.items()), point.start * self.by_start)
        before = self._before.get(stream)
        self._before[stream] = point
        if before is not None:
            return None if point.value < before.value else point._replace(value=point.value - before.value)
        is_unknown = point.start < max(self.started, 1) or point.start == point.time
        if self.initial == "drop" or (self.initial == "auto" and is_unknown):
            return None
        return point
