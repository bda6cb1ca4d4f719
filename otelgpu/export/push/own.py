"""otelgpu's own totals on their way out, and what is remembered of all totals.

Rule 1: only what the SDK leaves cumulative: its deltas of observable counters begin with the lifetime total.
Rule 2: a total that goes on over a reload keeps its start. The SDK gives what it makes for other settings a new one,
        which a receiver that makes deltas takes for a reset: it would count the whole total again.
"""

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import TypeGuard

from opentelemetry.sdk.metrics.export import AggregationTemporality, Metric, NumberDataPoint, Sum

from otelgpu.export.push.temporality import Streams


class OwnDeltas:
    """Turns cumulative monotonic sums into deltas, and leaves everything else as it is."""

    def __init__(self) -> None:
        self._streams = Streams()

    def all_converted(self, metrics: Iterable[Metric]) -> list[Metric]:
        """Convert all metrics of a sweep; a series that stays away for some sweeps is forgotten (see Streams)."""
        converted = [shown for metric in metrics if (shown := self.converted(metric)) is not None]
        self._streams.end_sweep()
        return converted

    def converted(self, metric: Metric) -> Metric | None:
        """Return the metric as it is to be sent; None where there is nothing to send yet."""
        data = metric.data
        if not _is_total(data):
            return metric
        points: list[NumberDataPoint] = []
        for point in data.data_points:
            increase = self._streams.increase(_key(metric, point), point.value, point.time_unix_nano)
            if increase is not None:
                value = point.value - increase.before
                points.append(replace(point, start_time_unix_nano=increase.start, value=value))
        if not points:
            return None
        return replace(
            metric, data=replace(data, data_points=points, aggregation_temporality=AggregationTemporality.DELTA)
        )


class OwnStarts:
    """Leaves cumulative totals what they are, from the start that they had first, until they go back."""

    def __init__(self) -> None:
        self._known: dict[Hashable, NumberDataPoint] = {}

    def converted(self, metric: Metric) -> Metric:
        """Return the metric as it is to be sent."""
        data = metric.data
        if not _is_total(data):
            return metric
        points: list[NumberDataPoint] = []
        for point in data.data_points:
            before = self._known.get(key := _key(metric, point), point)
            start = before.start_time_unix_nano if point.value >= before.value else point.start_time_unix_nano
            points.append(shown := replace(point, start_time_unix_nano=start))
            self._known[key] = shown
        return replace(metric, data=replace(data, data_points=points))


def _is_total(data: object) -> TypeGuard[Sum]:
    if not isinstance(data, Sum):
        return False
    return data.is_monotonic and data.aggregation_temporality is AggregationTemporality.CUMULATIVE


def _key(metric: Metric, point: NumberDataPoint) -> Hashable:
    return metric.name, frozenset((point.attributes or {}).items())


class Totals:
    """What an encoder remembers of all totals; another one can go on with it."""

    def __init__(self, *, delta: bool) -> None:
        self.delta = delta
        self.streams = Streams()
        self.own = OwnDeltas() if delta else OwnStarts()
        self.used = OwnDeltas() if delta else None
