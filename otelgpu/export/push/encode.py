"""From what the SDK collected to OTLP bytes, under OpenTelemetry's names.

Rule 1: what is the same for a series as long as the snapshot's identity stays (attributes, lengths) is written once
        and kept; what differs per sweep is an instant and a number.
Rule 2: a reading's point carries the time of its sweep, not of the collection.
Rule 3: a number that OTLP cannot carry (an int from 2^63 on, infinity) costs its own point and is counted; the stock
        encoder would lose the whole batch.
Rule 4: what is not a field (otelgpu's own metrics) goes through the stock encoder as the SDK gave it; hw.status, which
        tells of a sweep, with the time of that.
"""

import logging
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric as EncodedMetric
from opentelemetry.proto.metrics.v1.metrics_pb2 import ScopeMetrics
from opentelemetry.sdk.metrics.export import Metric, MetricsData, Sum

from otelgpu.export.join import SCHEMA_URL, SemconvJoin, scaled
from otelgpu.export.owners import metrics_of_owners, uses_of
from otelgpu.export.push import wire
from otelgpu.export.push.own import Totals
from otelgpu.export.status import HW_STATUS
from otelgpu.fields import UP_DOWN, Field, Number, Shape, help_in
from otelgpu.instruments import SERIES
from otelgpu.model import NOBODY, Owners, SeriesKey, Snapshot

logger = logging.getLogger(__name__)

MOST_BYTES = 3 << 20  # of one request: gRPC servers take 4 MiB unless told otherwise


class Request(NamedTuple):
    """One ExportMetricsServiceRequest and how many points it holds."""

    payload: bytes
    points: int


class _Series(NamedTuple):
    """What is written once for a series: what stands before the instant, and the attributes after the number.

    `name` is what it goes by from sweep to sweep: an instance that was made anew under the same id is another one.
    """

    prefix: bytes
    attributes: bytes
    name: Hashable


@dataclass(slots=True, eq=False)
class _Family:
    """One field on its way out."""

    item: Field
    shape: Shape
    number: Callable[[int | float], int | float]
    is_int: bool
    is_sum: bool
    head: bytes
    series: dict[SeriesKey, _Series] = field(default_factory=dict)
    identity: tuple[int, int] | None = None  # of the snapshot and of the owners


@dataclass(slots=True)
class _Group:
    """The points of all fields that share a name; the first field speaks for them."""

    family: _Family
    pieces: list[bytes] = field(default_factory=list)
    points: int = 0


class Encoder:
    """Writes requests. Not thread-safe: its reader uses it under a lock.

    *delta* sends totals as what came on top since the sweep before; *totals* are those of the encoder before.
    """

    def __init__(
        self, fields: Iterable[Field], join: SemconvJoin, *, delta: bool = False, totals: Totals | None = None
    ) -> None:
        self.dropped = 0  # points with numbers that OTLP cannot carry
        self._join = join
        self._delta = delta
        self.totals = totals or Totals(delta=delta)
        self._streams, self._own, self._used = self.totals.streams, self.totals.own, self.totals.used
        self._families: Mapping[str, _Family | None] = {
            item.name.lower(): self._family(item) for item in fields if item.is_numeric
        }
        self._impossible: set[str] = set()

    def requests(self, metrics: MetricsData, snapshot: Snapshot | None, owners: Owners = NOBODY) -> list[Request]:
        """Write everything that was collected; more than one request where one would be too large.

        *snapshot* is the one that the collection was pinned to: its readings' names, attributes and time. The points
        of *owners* are added to the first scope.
        """
        owned: list[Metric] = []
        if snapshot is not None:
            uses = uses_of(self._join, snapshot, owners)
            owned += metrics_of_owners(self._join, snapshot, owners)
            owned += uses if self._used is None else self._used.all_converted(uses)
        fields: list[list[Metric]] = []
        others: list[list[Metric]] = []
        for collected in _scopes(metrics):
            ours, rest = self._sorted(collected, snapshot)
            fields.append(ours)
            others.append(rest + owned)
            owned = []
        passed = iter(others)
        stock = encode_metrics(
            MetricsData(
                [
                    replace(
                        resource,
                        scope_metrics=[replace(scope, metrics=next(passed)) for scope in resource.scope_metrics],
                    )
                    for resource in metrics.resource_metrics
                ]
            )
        )
        encoded = iter(fields)
        requests: list[Request] = []
        for resource in stock.resource_metrics:
            scopes = list(resource.scope_metrics)
            resource.ClearField("scope_metrics")
            resource.schema_url = SCHEMA_URL
            frame = resource.SerializeToString()
            for scope in scopes:
                points = sum(_points(metric) for metric in scope.metrics)
                scope.schema_url = SCHEMA_URL
                requests += _requests(frame, scope, points, self._encoded(next(encoded), snapshot, owners))
        if snapshot is not None:
            self._streams.end_sweep()
        return requests

    def arrived(self, unix: float) -> None:
        """Take note, in any thread, that all requests of the sweep at this time were delivered; see Streams."""
        self._streams.arrived = _nanoseconds(unix)

    def _family(self, item: Field) -> _Family | None:
        shape = self._join.shape(item)
        if shape is None:
            return None
        head = wire.metric_head(shape.name, help_in(item, shape), shape.unit)
        is_sum = item.is_total or shape.name in UP_DOWN
        return _Family(item, shape, scaled(shape), shape.number is not Number.DOUBLE, is_sum, head)

    def _sorted(self, metrics: Iterable[Metric], snapshot: Snapshot | None) -> tuple[list[Metric], list[Metric]]:
        fields: list[Metric] = []
        others: list[Metric] = []
        for metric in metrics:
            if metric.name in self._families:
                fields.append(metric)
            elif snapshot is not None and metric.name == HW_STATUS.name:
                others.append(_at(metric, _nanoseconds(snapshot.unix)))
            elif (own := self._own.converted(metric)) is not None:
                others.append(own)
        return fields, others

    def _encoded(
        self, metrics: Iterable[Metric], snapshot: Snapshot | None, owners: Owners
    ) -> Iterator[tuple[bytes, int]]:
        """Write each metric of the fields, with how many points it has."""
        groups: dict[str, _Group] = {}
        for metric in metrics if snapshot is not None else ():
            if (family := self._families[metric.name]) is None or snapshot is None:
                continue
            group = groups.get(family.shape.name)
            if group is None:
                group = groups[family.shape.name] = _Group(family)
            self._add(group, family, metric, snapshot, owners)
        for group in groups.values():
            family = group.family
            content = b"".join(group.pieces)
            if not group.points:
                continue
            if not family.is_sum:
                yield wire.gauge(family.head, content), group.points
            else:
                is_total = family.item.is_total
                temporality = wire.DELTA if self._delta and is_total else wire.CUMULATIVE
                yield wire.sums(family.head, content, temporality=temporality, monotonic=is_total), group.points

    def _add(self, group: _Group, family: _Family, metric: Metric, snapshot: Snapshot, owners: Owners) -> None:
        at = _nanoseconds(snapshot.unix)
        instant = wire.instant(at)
        identity = (snapshot.identity, owners.identity)
        if family.identity != identity:
            family.series = {}
            family.identity = identity
        known, pieces = family.series, group.pieces
        write = wire.as_int if family.is_int else wire.as_double
        for point in metric.data.data_points:
            key: SeriesKey | None = point.attributes.get(SERIES)  # type: ignore[union-attr, assignment]
            if key is None:  # beyond CARDINALITY_LIMITS the SDK adds what is left up, under a name of its own
                continue
            series = known.get(key)
            if series is None:
                series = known[key] = self._series(family, key, snapshot, owners)
            raw: int | float = point.value  # type: ignore[union-attr]
            start = 0
            if family.is_sum:
                moved = self._moved(family, raw, series, at)
                if moved is None:
                    continue
                start, number = moved
            else:
                number = family.number(raw)
            if number not in wire.INT_RANGE if family.is_int else not math.isfinite(number):
                self._drop(family, number)
                continue
            if family.is_sum:
                pieces += (
                    series.prefix,
                    wire.instant(start),
                    wire.SUM_TIME,
                    instant,
                    write(number),  # type: ignore[arg-type]
                    series.attributes,
                )
            else:
                pieces += (series.prefix, instant, write(number), series.attributes)  # type: ignore[arg-type]
            group.points += 1

    def _series(self, family: _Family, key: SeriesKey, snapshot: Snapshot, owners: Owners) -> _Series:
        one = snapshot.series[key]
        texts = snapshot.labels.get(one.device.uuid, ())
        attributes = wire.attributes(self._join.attributes(family.shape, one, owners, texts))
        prefix = wire.sum_prefix if family.is_sum else wire.gauge_prefix
        name = (family.item.id, key, snapshot.series[key].device.uuid)
        return _Series(prefix(len(attributes)), attributes, name)

    def _moved(self, family: _Family, raw: float, series: _Series, at: int) -> tuple[int, int | float] | None:
        """Give a total as start and shown number; None where it is the baseline of a delta."""
        if not (self._delta and family.item.is_total):
            is_total = family.item.is_total
            return self._streams.started(series.name, series.attributes, raw, at, monotonic=is_total), family.number(
                raw
            )
        increase = self._streams.increase(series.name, raw, at)
        if increase is None:
            return None
        if family.is_int:  # each shown total is cut to a whole number; cutting the difference would lose the rest
            return increase.start, family.number(raw) - family.number(increase.before)
        return increase.start, family.number(raw - increase.before)

    def _drop(self, family: _Family, number: float) -> None:
        self.dropped += 1
        if family.item.name not in self._impossible:
            self._impossible.add(family.item.name)
            logger.warning("%s: OTLP has no number for %s; such points are not sent", family.item.name, number)


def _nanoseconds(unix: float) -> int:
    return int(unix * 1e9)


def _at(metric: Metric, unix_nano: int) -> Metric:
    """Give the points of a sum another time."""
    if not isinstance(metric.data, Sum):
        return metric
    points = [replace(point, time_unix_nano=unix_nano) for point in metric.data.data_points]
    return replace(metric, data=replace(metric.data, data_points=points))


def _scopes(metrics: MetricsData) -> Iterator[Sequence[Metric]]:
    for resource in metrics.resource_metrics:
        for scope in resource.scope_metrics:
            yield scope.metrics


def _points(metric: EncodedMetric) -> int:
    kind = metric.WhichOneof("data")
    return len(getattr(metric, kind).data_points) if kind else 0


def _requests(
    frame: bytes, scope: ScopeMetrics, points: int, metrics: Iterable[tuple[bytes, int]]
) -> Iterator[Request]:
    """Put a scope's metrics into requests; what repeated fields hold may follow a message that is written already."""
    whole = scope.SerializeToString()
    scope.ClearField("metrics")
    empty = scope.SerializeToString()
    pieces, size = [whole], len(whole)
    for content, count in metrics:
        if points and size + len(content) > MOST_BYTES:
            yield Request(wire.request(frame + wire.scope(b"".join(pieces))), points)
            pieces, size, points = [empty], len(empty), 0
        pieces.append(content)
        size += len(content)
        points += count
    if points:
        yield Request(wire.request(frame + wire.scope(b"".join(pieces))), points)
