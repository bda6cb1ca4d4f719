"""The Prometheus text format, written from collected metrics.

Rule 1: a page is lines of prefix + number; a prefix (name and labels, escaped) is made once per series and kept.
Rule 2: families come in the order of DCGM's field ids, as dcgm-exporter prints them, then otelgpu's own by name.
Rule 3: what a CSV file says of a field (its name, type and help) goes over what the catalogue says. The name tells
        the unit: a name of 4.9 is shown in the units of 4.9, under any `compat`.
Rule 4: a family without a sample is not on the page, and each family is on it once.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from opentelemetry.sdk.metrics.export import (
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    Sum,
)

from otelgpu.config.listed import LABEL, Counter
from otelgpu.export.generations import Generations
from otelgpu.export.join import Copy, DcgmJoin, shape_named, written
from otelgpu.export.numberlabels import NumberLabels
from otelgpu.export.owners import State, allocatable, owner_metrics, state_metrics, states
from otelgpu.export.special import PER_PROCESS, VALUE_LABELS
from otelgpu.fields import Field, help_in, kind_in
from otelgpu.instruments import SERIES
from otelgpu.model import NOBODY, Attributes, Device, Owners, Series, SeriesKey, Snapshot, Use

OWN = "otelgpu."
UNIT_SUFFIXES: Mapping[str, str] = {"s": "_seconds", "By": "_bytes", "1": "_ratio", "J": "_joules"}

_LABEL_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})


Identity: TypeAlias = tuple[int, int]  # of the snapshot and of the owners
# The metrics of what owners use: name, unit, help, whether it is a total, and each point as labels and number.
UseLines: TypeAlias = Callable[[Snapshot, Owners], Iterable[tuple[str, str, str, bool, list[tuple[str, int | float]]]]]
Block: TypeAlias = tuple[str, list[str]]  # the name that orders it, and the lines of one family


@dataclass(slots=True)
class _Family:
    """One field's family on the page, with the line prefixes of each series seen under one identity."""

    field: Field
    name: str
    kind: str
    help: str
    join: DcgmJoin
    render: Callable[[int | float], str]
    prefixes: dict[object, list[str]] = dataclasses.field(default_factory=dict)
    identity: tuple[Identity, int] | None = None


def labelled(pairs: Iterable[tuple[str, str]]) -> str:
    """Write labels between braces, values escaped; nothing at all without labels."""
    text = ",".join(f'{name}="{value.translate(_LABEL_ESCAPES)}"' for name, value in pairs)
    return "{" + text + "}" if text else ""


def page_name(name: str, unit: str, *, is_total: bool) -> str:
    """Give the Prometheus name of one of otelgpu's own instruments, as the stock exporter would."""
    suffix = UNIT_SUFFIXES.get(unit, "")
    return name.replace(".", "_") + suffix + ("_total" if is_total else "")


class TextPage:
    """Writes pages in dcgm-exporter's manner. Not thread-safe: its reader's lock guards it."""

    def __init__(
        self, fields: Iterable[Field], join: DcgmJoin, counters: Iterable[Counter] = (), also: Sequence[DcgmJoin] = ()
    ) -> None:
        self._join = join
        self._generations = Generations([join, *also])
        numeric = [item for item in fields if item.is_numeric]
        rows: dict[int, list[Counter]] = {}
        for row in counters:
            rows.setdefault(row.field, []).append(row)
        self._families = {item.name.lower(): [*self._families_of(item, rows.get(item.id, []))] for item in numeric}
        as_labels = [item for item in numeric for row in rows.get(item.id, ()) if row.kind == LABEL]
        self._number_labels = NumberLabels(as_labels, join)
        self._use_lines: UseLines | None = None  # made with the first use there is: it costs memory
        self._pod_shares: Mapping[str, Iterable[Use]] = {}
        self._owned: tuple[Identity | None, list[Block]] = (None, [])
        self._allocatable: tuple[Identity | None, list[Device]] = (None, [])
        self._states: tuple[tuple[Identity, tuple[State | None, ...]] | None, list[Block]] = (None, [])

    def write(
        self,
        metrics: MetricsData | None,
        snapshot: Snapshot | None,
        owners: Owners = NOBODY,
        *,
        openmetrics: bool = False,
        shown: bool = True,
    ) -> bytes:
        """Write one page. In OpenMetrics a counter that is not named _total can only be `unknown`.

        `shown`: the snapshot's readings may still be shown.
        """
        found: list[tuple[int, _Family, Sequence[NumberDataPoint]]] = []
        own: list[Block] = []
        for metric in _metrics(metrics):
            families = self._families.get(metric.name)
            if families is None:
                if metric.name.startswith(OWN):  # hw.status has no name on dcgm-exporter's page
                    own.append((metric.name, _own_block(metric, openmetrics=openmetrics)))
            elif snapshot is not None:
                found += [(family.field.id, family, metric.data.data_points) for family in families]  # type: ignore[misc]
        lines: list[str] = []
        if snapshot is not None:
            self._pod_shares = self._shares(snapshot, owners)
            self._write_families(lines, found, snapshot, owners, openmetrics=openmetrics)
            own.extend(self._owner_blocks(snapshot, owners))
            if shown:
                own.extend(self._state_blocks(snapshot, owners))
                own.extend(self._use_blocks(snapshot, owners, openmetrics=openmetrics))
        for _, block in sorted(own, key=lambda entry: entry[0]):
            lines.extend(block)
        if openmetrics:
            lines.append("# EOF")
        lines.append("")
        return "\n".join(lines).encode("utf-8", errors="replace")

    def _families_of(self, item: Field, rows: Sequence[Counter]) -> Iterator[_Family]:
        """Make the families of a field: those that a CSV file says, and those of the generations beyond them."""
        if rows and all(row.kind == LABEL for row in rows):
            return
        known: list[str] = []
        for row in (row for row in rows if row.kind != LABEL):
            names = [row.name] if row.name else [name for name, *_ in self._generations.named(item, [])]
            for name in names:
                join, shape = self._generations.of(item, name), shape_named(item, name)
                yield _Family(item, name, row.kind, row.help.translate(_HELP_ESCAPES), join, written(shape))
            known += names
        for name, shape, join in self._generations.named(item, known):
            text = help_in(item, shape).translate(_HELP_ESCAPES)
            yield _Family(item, name, kind_in(item, shape).value, text, join, written(shape))

    def _write_families(
        self,
        lines: list[str],
        found: Iterable[tuple[int, _Family, Sequence[NumberDataPoint]]],
        snapshot: Snapshot,
        owners: Owners,
        *,
        openmetrics: bool,
    ) -> None:
        self._number_labels.take(snapshot)
        for _, family, points in sorted(found, key=lambda entry: entry[0]):
            self._write_family(lines, family, points, snapshot, owners, openmetrics=openmetrics)

    def _write_family(
        self,
        lines: list[str],
        family: _Family,
        points: Sequence[NumberDataPoint],
        snapshot: Snapshot,
        owners: Owners,
        *,
        openmetrics: bool,
    ) -> None:
        kind = "unknown" if openmetrics and family.kind != "gauge" else family.kind
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {kind}")
        identity = ((snapshot.identity, owners.identity), self._number_labels.revision)
        if family.identity != identity:
            family.prefixes.clear()
            family.identity = identity
        values = {point.attributes.get(SERIES): point.value for point in points}  # type: ignore[union-attr]
        value_labels = VALUE_LABELS.get(family.field.id)
        prefixes, render = family.prefixes, family.render
        # The SDK gives points in the order in which it first saw them; the page follows the snapshot.
        for key in snapshot.numbers[family.field.id]:
            value = values.get(key)
            if value is None:  # beyond CARDINALITY_LIMITS the SDK gives no point of its own
                continue
            name = key if value_labels is None else (key, value)
            copies = prefixes.get(name)
            if copies is None:
                more = () if value_labels is None else value_labels(value)
                copies = prefixes[name] = self._prefixes(family, snapshot.series[key], snapshot, owners, more=more)
            number = render(value)
            for prefix in copies:
                lines.append(prefix + number)  # noqa: PERF401 - nearly always one
            if self._pod_shares and family.field.id in PER_PROCESS:
                lines.extend(self._pod_lines(family, key, snapshot))

    def _shares(self, snapshot: Snapshot, owners: Owners) -> Mapping[str, Iterable[Use]]:
        """Look up what each pod uses, where dcgm-exporter's sharing mode is wanted and processes are asked about."""
        if not (self._join.virtual_gpus and snapshot.used and owners.pods):
            return {}
        from otelgpu.export.podshares import pod_shares

        return pod_shares(snapshot, owners)

    def _pod_lines(self, family: _Family, key: SeriesKey, snapshot: Snapshot) -> Iterator[str]:
        """Write what each pod uses of a device, below the device's own line."""
        series = snapshot.series[key]
        for use in self._pod_shares.get(series.device.uuid, ()):
            number = PER_PROCESS[family.field.id](use)
            if number is None:
                continue
            prefix = family.prefixes.get((key, use.owner))
            if prefix is None:
                copy = self._join.copy_of(use.owner)
                prefix = family.prefixes[key, use.owner] = [self._prefix(family, series, snapshot, copy)]
            yield prefix[0] + family.render(number)

    def _prefixes(
        self, family: _Family, series: Series, snapshot: Snapshot, owners: Owners, *, more: Attributes
    ) -> list[str]:
        copies = self._join.copies(family.field, series, owners)
        return [self._prefix(family, series, snapshot, copy, more=more) for copy in copies]

    def _prefix(self, family: _Family, series: Series, snapshot: Snapshot, copy: Copy, *, more: Attributes = ()) -> str:
        copy = Copy(copy.attributes, copy.labels + self._number_labels.of(series.device))
        return f"{family.name}{labelled(family.join.label_pairs(series, snapshot, more, copy))} "

    def _owner_blocks(self, snapshot: Snapshot, owners: Owners) -> list[Block]:
        identity = (snapshot.identity, owners.identity)
        if self._owned[0] != identity:
            self._owned = (identity, list(_blocks(owner_metrics(self._join, snapshot, owners))))
        return self._owned[1]

    def _state_blocks(self, snapshot: Snapshot, owners: Owners) -> list[Block]:
        """Write the states, which seldom change, anew only when one has."""
        identity = (snapshot.identity, owners.identity)
        if self._allocatable[0] != identity:
            self._allocatable = (identity, allocatable(snapshot))
        now = (identity, states(self._allocatable[1], snapshot, owners))
        if self._states[0] != now:
            self._states = (now, list(_blocks(state_metrics(self._join, snapshot, owners))))
        return self._states[1]

    def _use_blocks(self, snapshot: Snapshot, owners: Owners, *, openmetrics: bool) -> Iterator[Block]:
        """Write what owners use; nothing where that is not asked for."""
        if not snapshot.used:
            return
        if self._use_lines is None:
            from otelgpu.export.uses import Prefixes

            self._use_lines = Prefixes(self._join, labelled).lines
        for name, unit, text, is_total, lines in self._use_lines(snapshot, owners):
            full = page_name(name, unit, is_total=is_total)
            block = _head(full, text, "counter" if is_total else "gauge", openmetrics=openmetrics)
            block += [f"{full}{labels} {value!r}" for labels, value in lines]
            yield name, block


def _blocks(metrics: Iterable[Metric]) -> Iterator[Block]:
    return ((metric.name, _own_block(metric, openmetrics=False)) for metric in metrics)


def _metrics(metrics: MetricsData | None) -> Iterable[Metric]:
    if metrics is None:
        return
    for resource in metrics.resource_metrics:
        for scope in resource.scope_metrics:
            yield from scope.metrics


def _head(name: str, text: str, kind: str, *, openmetrics: bool) -> list[str]:
    family = name.removesuffix("_total") if openmetrics else name
    lines = [f"# HELP {family} {text.translate(_HELP_ESCAPES)}", f"# TYPE {family} {kind}"]
    if openmetrics:  # DCGM's names do not end in a unit as this format wants it
        lines += [f"# UNIT {family} {unit[1:]}" for unit in UNIT_SUFFIXES.values() if family.endswith(unit)]
    return lines


def _own_block(metric: Metric, *, openmetrics: bool) -> list[str]:
    is_total = isinstance(metric.data, Sum) and metric.data.is_monotonic
    kind = "histogram" if isinstance(metric.data, Histogram) else "counter" if is_total else "gauge"
    name = page_name(metric.name, metric.unit or "", is_total=is_total)
    lines = _head(name, metric.description or "", kind, openmetrics=openmetrics)
    for point in metric.data.data_points:
        pairs = [(key, str(value)) for key, value in (point.attributes or {}).items()]
        if isinstance(point, HistogramDataPoint):
            _write_histogram(lines, name, pairs, point)
        elif isinstance(point, NumberDataPoint):
            lines.append(f"{name}{labelled(pairs)} {_plain(point.value)}")
    return lines


def _write_histogram(lines: list[str], name: str, pairs: list[tuple[str, str]], point: HistogramDataPoint) -> None:
    for bound, total in zip([*point.explicit_bounds, float("inf")], accumulate(point.bucket_counts), strict=True):
        lines.append(f"{name}_bucket{labelled([*pairs, ('le', _plain(float(bound)))])} {total}")
    lines.append(f"{name}_sum{labelled(pairs)} {_plain(point.sum)}")
    lines.append(f"{name}_count{labelled(pairs)} {point.count}")


def _plain(number: float) -> str:
    return "+Inf" if number == float("inf") else repr(number)
