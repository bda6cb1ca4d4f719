"""The stock Prometheus exporter over joined data: the page in `semconv` naming.

Rule 1: what the stock exporter does with OpenTelemetry names (suffixes, target_info) is what is shown here.
Rule 2: a registry of its own: the default one is shared with everything in the process.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from otelgpu.export.join import SemconvJoin, scaled
from otelgpu.export.owners import metrics_of_owners, uses_of
from otelgpu.export.page import Format
from otelgpu.fields import UP_DOWN, Field, Shape, help_in
from otelgpu.instruments import CARDINALITY_LIMITS, SERIES, Pinned
from otelgpu.model import NOBODY, Owners, Snapshot


class JoinedPrometheusReader(PrometheusMetricReader):
    """Writes the stock exporter's page from data that was joined under OpenTelemetry names."""

    def __init__(self, fields: Iterable[Field], join: SemconvJoin, pinned: Pinned) -> None:
        self._own_registry = CollectorRegistry()
        super().__init__(registry=self._own_registry, cardinality_limits=dict(CARDINALITY_LIMITS))
        self._page_lock = threading.Lock()
        self._pinned = pinned
        self._joiner = Joiner(fields, join)
        self._owners = NOBODY

    def page(self, snapshot: Snapshot | None, form: Format, *, shown: bool, owners: Owners = NOBODY) -> bytes:
        """Collect and write one page; see PageSource. Callers wait for each other."""
        generate = generate_openmetrics if form is Format.OPENMETRICS else generate_latest
        with self._page_lock, self._pinned.to(snapshot, shown=shown):
            self._owners = owners
            return generate(self._own_registry)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:  # noqa: ANN401
        shown = self._pinned.shown is not None
        joined = self._joiner.joined(metrics_data, self._pinned.latest, self._owners, shown=shown)
        super()._receive_metrics(joined, timeout_millis=timeout_millis, **kwargs)


class Joiner:
    """Turns collected data (series keys, driver's numbers) into OpenTelemetry's names, units and attributes."""

    def __init__(self, fields: Iterable[Field], join: SemconvJoin) -> None:
        self._fields: Mapping[str, Field] = {field.name.lower(): field for field in fields}
        self._join = join

    def joined(
        self, metrics: MetricsData, snapshot: Snapshot | None, owners: Owners = NOBODY, *, shown: bool = True
    ) -> MetricsData:
        """Join every metric of ours; fields that share a name become one metric. Others pass as they are.

        The points of owners are added to the first scope. `shown`: the snapshot's readings may still be shown.
        """
        made: list[Metric] = []
        if snapshot is not None:
            made += metrics_of_owners(self._join, snapshot, owners, shown=shown)
            made += uses_of(self._join, snapshot, owners) if shown else ()
        owned = iter([made])
        return MetricsData(
            [
                ResourceMetrics(
                    resource=resource.resource,
                    scope_metrics=[
                        ScopeMetrics(
                            scope=scope.scope,
                            metrics=[*self._metrics(scope.metrics, snapshot, owners), *next(owned, ())],
                            schema_url=scope.schema_url,
                        )
                        for scope in resource.scope_metrics
                    ],
                    schema_url=resource.schema_url,
                )
                for resource in metrics.resource_metrics
            ]
        )

    def _metrics(self, metrics: Iterable[Metric], snapshot: Snapshot | None, owners: Owners) -> list[Metric]:
        passed: list[Metric] = []
        joined: dict[str, tuple[Field, Shape, list[NumberDataPoint]]] = {}
        for metric in metrics:
            field = self._fields.get(metric.name)
            if field is None:
                passed.append(metric)
                continue
            shape = self._join.shape(field)
            if shape is not None and snapshot is not None:
                points = joined.setdefault(shape.name, (field, shape, []))[2]
                points.extend(self._points(shape, metric, snapshot, owners))
        return [*(_metric(*parts) for parts in joined.values()), *passed]

    def _points(self, shape: Shape, metric: Metric, snapshot: Snapshot, owners: Owners) -> Iterator[NumberDataPoint]:
        number = scaled(shape)
        for point in metric.data.data_points:
            series = snapshot.series.get(str((point.attributes or {}).get(SERIES)))
            if isinstance(point, NumberDataPoint) and series is not None:  # else it is beyond CARDINALITY_LIMITS
                texts = snapshot.labels.get(series.device.uuid, ())
                yield NumberDataPoint(
                    attributes=self._join.attributes(shape, series, owners, texts),
                    start_time_unix_nano=point.start_time_unix_nano,
                    time_unix_nano=point.time_unix_nano,
                    value=number(point.value),
                )


def _metric(field: Field, shape: Shape, points: list[NumberDataPoint]) -> Metric:
    """Put the points of all fields that share a name together; the first field speaks for them."""
    data: Gauge | Sum = Gauge(points)
    if field.is_total or shape.name in UP_DOWN:
        data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=field.is_total)
    return Metric(shape.name, help_in(field, shape), shape.unit, data)
