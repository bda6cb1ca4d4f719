"""Start times, resets and deltas: what becomes of a hardware total on its way out.

Rule 1: a total runs from when we first saw it: we do not know when the hardware began to count. A total that has gone
        back (the driver was loaded again) starts anew when that is seen; so does one whose attributes have changed
        (another pod has the GPU), since to the collector that is another stream. Where start and time of a point are
        the same, the data model calls it a reset at an unknown time, and receivers such as the Collector's
        cumulativetodelta know that its number is no increase.
Rule 2: a receiver that never got that first point takes the second for an increase from 0: the life of the GPU. So a
        total starts anew with every point until one has arrived; then that one is its start.
Rule 3: a delta is what came on top since the sweep before. The first number, and the first after a total has gone
        back, is a baseline: nothing is sent. Never negative, never what was counted before we looked. It belongs to
        the hardware: when the attributes change nothing is lost, and the new ones get it.
Rule 4: what has not been seen for FORGET sweeps is forgotten, so memory follows the machine and not its past.

The SDK's own conversion is not used: its first delta of an observable counter is the lifetime total, and after a reset
it is negative.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

FORGET = 5


@dataclass(slots=True)
class _Stream:
    attributes: bytes
    start: int
    number: int | float
    at: int
    sweep: int
    since: int = 0  # from here to `at` every sweep had a point of its own start; 0 once one of them has arrived


class Increase(NamedTuple):
    """What a total was when the last sweep ended, at `start` in nanoseconds since the epoch."""

    start: int
    before: int | float


class Streams:
    """What is remembered of the totals of all series. Used by one thread at a time, but for `arrived`.

    `arrived` is the time of the newest sweep all of which was delivered; whoever delivers moves it on.
    """

    def __init__(self) -> None:
        self.arrived = 0
        self._streams: dict[Hashable, _Stream] = {}
        self._sweep = 0

    def __len__(self) -> int:
        return len(self._streams)

    def started(self, key: Hashable, attributes: bytes, number: float, at: int, *, monotonic: bool) -> int:
        """Take note of a total and return when it started, in nanoseconds since the epoch."""
        stream = self._streams.get(key)
        if stream is None:
            self._streams[key] = _Stream(attributes, at, number, at, self._sweep, since=at)
            return at
        if (
            (monotonic and number < stream.number)
            or stream.at > at  # the clock was set back
            or (stream.attributes is not attributes and stream.attributes != attributes)
        ):
            stream.start = stream.since = at
        elif stream.since:
            self._settle(stream, at)
        stream.attributes, stream.number, stream.at, stream.sweep = attributes, number, at, self._sweep
        return stream.start

    def increase(self, key: Hashable, number: float, at: int) -> Increase | None:
        """Take note of a total and return what it was before; None where this one is a baseline."""
        stream = self._streams.get(key)
        if stream is None:
            self._streams[key] = _Stream(b"", at, number, at, self._sweep)
            return None
        before = None if number < stream.number else Increase(min(stream.at, at), stream.number)
        stream.number, stream.at, stream.sweep = number, at, self._sweep
        return before

    def _settle(self, stream: _Stream, at: int) -> None:
        """Give a stream the start of a point that has arrived; a start of its own as long as none has."""
        arrived = self.arrived
        if stream.since <= arrived <= stream.at:
            stream.start, stream.since = arrived, 0
            return
        stream.start = at
        if stream.sweep != self._sweep - 1:
            stream.since = at

    def end_sweep(self) -> None:
        """Forget what has not been seen for a while. To be called after every sweep that had points."""
        old = self._sweep - FORGET
        self._sweep += 1
        gone = [key for key, stream in self._streams.items() if stream.sweep <= old]
        for key in gone:
            del self._streams[key]
