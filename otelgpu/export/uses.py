"""What each owner uses: points made from the snapshot and the table of owners on the way out.

Rule 1: as with all points of owners, they never pass the SDK, which would remember every process that ever ran.
Rule 2: a use is of one sweep: it is shown with that sweep's readings, and absent where the driver does not tell it.
Rule 3: what is kept of an owner from page to page is dropped with the first page on which it is not.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum

from otelgpu.export.owners import OwnerLabels
from otelgpu.model import Attributes, Device, Owner, Owners, Snapshot, Use

_NANOSECONDS = 1_000_000_000
_PERCENT = 100
_MILLI = 1000
_PID = "process.pid"  # which is a number under OpenTelemetry's conventions


class Family(NamedTuple):
    """One metric of owners: what it is called, and how its number is made of a use (None: it is not told)."""

    name: str
    unit: str
    text: str
    pick: Callable[[Use], int | float | None] = lambda _: None


def _share(number: int | None) -> float | None:
    return None if number is None else number / _PERCENT


FAMILIES = (
    Family(
        "otelgpu.owner.decoder.utilization",
        "1",
        "Share of the last second in which the owner's processes used the video decoder.",
        lambda use: _share(use.decoder),
    ),
    Family(
        "otelgpu.owner.encoder.utilization",
        "1",
        "Share of the last second in which the owner's processes used the video encoder.",
        lambda use: _share(use.encoder),
    ),
    Family(
        "otelgpu.owner.memory.used",
        "By",
        "GPU memory that the owner's processes hold.",
        lambda use: use.memory,
    ),
    Family(
        "otelgpu.owner.memory_bandwidth.utilization",
        "1",
        "Share of the last second in which the owner's processes read or wrote GPU memory.",
        lambda use: _share(use.bandwidth),
    ),
    Family(
        "otelgpu.owner.sm.utilization",
        "1",
        "Share of the last second in which the owner's processes had work on the multiprocessors.",
        lambda use: _share(use.sm),
    ),
)
ENERGY = Family(
    "otelgpu.owner.energy",
    "J",
    "Energy of the GPU by owner, shared in each sweep by the time on the multiprocessors; the sum is the GPU's own.",
)


class Point(NamedTuple):
    """One number of one owner. `since_unix` is set for totals."""

    device: Device
    owner: Owner
    value: int | float
    since_unix: float = 0.0


def use_points(snapshot: Snapshot) -> Iterator[tuple[Family, list[Point]]]:
    """Give the points of each family that has any, by name."""
    energy = [
        Point(device, owner, millijoules / _MILLI, since) for device, owner, millijoules, since in snapshot.energy
    ]
    rows = [
        (
            family,
            [
                Point(used.device, use.owner, value)
                for used in snapshot.used
                for use in used.uses
                if (value := family.pick(use)) is not None
            ],
        )
        for family in FAMILIES
    ]
    for family, points in sorted([*rows, (ENERGY, energy)], key=lambda row: row[0].name):
        if points:
            yield family, points


def named(owner: Owner, owners: Owners) -> Owner:
    """Add to a pod what the API server knows of it."""
    pod = owners.pods.get(owner.pod_uid) if owner.pod_uid else None
    return owner if pod is None else replace(owner, namespace=pod.namespace, pod=pod.pod, labels=pod.labels)


def use_metrics(join: OwnerLabels, snapshot: Snapshot, owners: Owners) -> Iterator[Metric]:
    """Give the metrics of what owners use, with the time of their sweep."""
    stamp = int(snapshot.unix * _NANOSECONDS)
    known: dict[tuple[str, Owner], Mapping[str, str | int]] = {}

    def attributes(point: Point) -> Mapping[str, str | int]:
        place = point.device.uuid, point.owner
        if place not in known:
            labels: dict[str, str | int] = dict(join.owner_labels(point.device, named(point.owner, owners)))
            if _PID in labels:
                labels[_PID] = int(labels[_PID])
            known[place] = labels
        return known[place]

    for family, points in use_points(snapshot):
        data = [
            NumberDataPoint(attributes(point), int(point.since_unix * _NANOSECONDS), stamp, point.value)
            for point in points
        ]
        is_total = family is ENERGY
        made = Sum(data, AggregationTemporality.CUMULATIVE, is_monotonic=True) if is_total else Gauge(data)
        yield Metric(family.name, family.text, family.unit, made)


class Prefixes:
    """The labels of owners as they are written on a page, kept while they are shown. Not thread-safe."""

    def __init__(self, join: OwnerLabels, write: Callable[[Iterable[tuple[str, str]]], str]) -> None:
        self._join = join
        self._write = write
        self._identity: tuple[int, int] | None = None
        self._kept: dict[tuple[str, Owner], str] = {}

    def lines(self, snapshot: Snapshot, owners: Owners) -> Iterator[tuple[Family, list[tuple[str, int | float]]]]:
        """Give the points of each family as labels and number."""
        identity = snapshot.identity, owners.identity
        before = self._kept if identity == self._identity else {}
        self._identity = identity
        now: dict[tuple[str, Owner], str] = {}
        for family, points in use_points(snapshot):
            lines: list[tuple[str, int | float]] = []
            for device, owner, value, _ in points:
                place = device.uuid, owner
                labels = now.get(place)
                if labels is None:
                    labels = now[place] = before.get(place) or self._labels(device, owner, owners)
                lines.append((labels, value))
            yield family, lines
        self._kept = now

    def _labels(self, device: Device, owner: Owner, owners: Owners) -> str:
        pairs: Attributes = self._join.owner_labels(device, named(owner, owners))
        return self._write(pairs)
