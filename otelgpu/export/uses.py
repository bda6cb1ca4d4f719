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
from otelgpu.model import Attributes, Device, Owner, Owners, Snapshot, Spent, Use

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


class Row(NamedTuple):
    """One owner of a device: `use`, or `spent` for a total."""

    device: Device
    owner: Owner
    use: Use | None = None
    spent: Spent | None = None


def _rows(snapshot: Snapshot) -> Iterator[Row]:
    for used in snapshot.used:
        for use in used.uses:
            yield Row(used.device, use.owner, use=use)
    for spent in snapshot.energy:
        yield Row(spent.device, spent.owner, spent=spent)


def named(owner: Owner, owners: Owners) -> Owner:
    """Add to a pod what the API server knows of it."""
    pod = owners.pods.get(owner.pod_uid) if owner.pod_uid else None
    return owner if pod is None else replace(owner, namespace=pod.namespace, pod=pod.pod, labels=pod.labels)


def use_metrics(join: OwnerLabels, snapshot: Snapshot, owners: Owners) -> Iterator[Metric]:
    """Give the metrics of what owners use, with the time of their sweep."""
    stamp = int(snapshot.unix * _NANOSECONDS)
    rows = [(_attributes(join.use_labels(row.device, named(row.owner, owners))), row) for row in _rows(snapshot)]
    for family in FAMILIES:
        points = [
            NumberDataPoint(attributes, 0, stamp, value)
            for attributes, row in rows
            if row.use is not None and (value := family.pick(row.use)) is not None
        ]
        if points:
            yield Metric(family.name, family.text, family.unit, Gauge(points))
    totals = [
        NumberDataPoint(attributes, int(spent.since_unix * _NANOSECONDS), stamp, spent.millijoules / _MILLI)
        for attributes, row in rows
        if (spent := row.spent) is not None
    ]
    if totals:
        data = Sum(totals, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        yield Metric(ENERGY.name, ENERGY.text, ENERGY.unit, data)


def _attributes(labels: Attributes) -> Mapping[str, str | int]:
    attributes: dict[str, str | int] = dict(labels)
    if _PID in attributes:
        attributes[_PID] = int(attributes[_PID])
    return attributes


class Prefixes:
    """The labels of owners as they are written on a page, kept while they are shown. Not thread-safe."""

    def __init__(self, join: OwnerLabels, write: Callable[[Iterable[tuple[str, str]]], str]) -> None:
        self._join = join
        self._write = write
        self._identity: tuple[int, int] | None = None
        self._kept: dict[tuple[str, Owner], str] = {}

    def lines(
        self, snapshot: Snapshot, owners: Owners
    ) -> Iterator[tuple[str, str, str, bool, list[tuple[str, int | float]]]]:
        """Give the metrics that have points; see UseLines of text.py."""
        identity = snapshot.identity, owners.identity
        before = self._kept if identity == self._identity else {}
        self._identity = identity
        now = self._kept = {}
        rows: list[tuple[str, Use]] = []
        totals: list[tuple[str, int | float]] = []
        for device, owner, use, spent in _rows(snapshot):
            place = device.uuid, owner
            labels = now.get(place) or before.get(place)
            if labels is None:
                labels = self._write(self._join.use_labels(device, named(owner, owners)))
            now[place] = labels
            if use is not None:
                rows.append((labels, use))
            elif spent is not None:
                totals.append((labels, spent.millijoules / _MILLI))
        for family in FAMILIES:
            pick = family.pick
            points = [(labels, value) for labels, use in rows if (value := pick(use)) is not None]
            if points:
                yield family.name, family.unit, family.text, False, points
        if totals:
            yield ENERGY.name, ENERGY.unit, ENERGY.text, True, totals
