"""otelgpu's own totals as deltas, and what is remembered of all totals.

Rule 1: only what the SDK leaves cumulative: its deltas of observable counters begin with the lifetime total.
"""

from collections.abc import Iterable
from dataclasses import replace

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
        if not isinstance(data, Sum) or not data.is_monotonic:
            return metric
        if data.aggregation_temporality is not AggregationTemporality.CUMULATIVE:
            return metric
        points: list[NumberDataPoint] = []
        for point in data.data_points:
            key = (metric.name, frozenset((point.attributes or {}).items()))
            increase = self._streams.increase(key, point.value, point.time_unix_nano)
            if increase is not None:
                value = point.value - increase.before
                points.append(replace(point, start_time_unix_nano=increase.start, value=value))
        if not points:
            return None
        return replace(
            metric, data=replace(data, data_points=points, aggregation_temporality=AggregationTemporality.DELTA)
        )


class Totals:
    """What an encoder remembers of all totals; another one can go on with it."""

    def __init__(self, *, delta: bool) -> None:
        self.delta = delta
        self.streams = Streams()
        self.own = OwnDeltas() if delta else None
        self.used = OwnDeltas() if delta else None
