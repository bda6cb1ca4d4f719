"""From the answers of one sweep to an immutable Snapshot.

Rule 1: what has to be remembered of values and labels between two sweeps stands here, and of the GPUs themselves in
        the roster. It is used by the sampler's thread alone.
Rule 2: a number that its field cannot have is dropped, counted, and kept as Missing(invalid): never repaired.
Rule 3: what is told of a GPU while it is down (its last XID) stands under the labels it was last known by.
Rule 4: a fault is logged when it appears and when it clears.
Rule 5: a glance at a sweep under way changes nothing of what is remembered, and logs nothing.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from otelgpu.fields import Field
from otelgpu.health import HEALTH, Health
from otelgpu.limit import TOO_SOON
from otelgpu.model import (
    Attributes,
    Device,
    Enter,
    Gap,
    GpuState,
    Missing,
    Reading,
    Sample,
    Series,
    SeriesKey,
    Snapshot,
    SourceFacts,
    Used,
)
from otelgpu.roster import Roster
from otelgpu.views import View

logger = logging.getLogger(__name__)

Numbers = dict[int, dict[SeriesKey, int | float]]
_NO_USE: Used = ((), ())
Rows = tuple[tuple[Field, str], ...]
_Fault = tuple[int, str]  # field id and UUID


class Times(NamedTuple):
    """When a sweep was made: see Snapshot."""

    at: float
    unix: float
    started_unix: float
    seconds: float


class _Last(NamedTuple):
    """What a GPU was last known by: its instances, and the label rows of it and of them by UUID."""

    instances: tuple[Device, ...]
    rows: Mapping[str, Rows]


class Assembler:
    """Puts snapshots together. *wanted* fixes the fields; *view* says which devices are shown.

    *heard* gives what is known of a GPU that does not answer; *enter* is told who uses what, where that is read.
    """

    def __init__(
        self,
        wanted: Iterable[Field],
        *,
        heard: Callable[[Device], Sequence[Reading]],
        view: View | None = None,
        enter: Enter | None = None,
    ) -> None:
        self.dropped: dict[str, int] = {}
        self._wanted = {field.id: field for field in wanted}
        self._heard = heard
        self._view = view or View()
        self._enter = enter
        self._health = Health(series_key) if HEALTH in self._wanted else None
        self._roster = Roster()
        self._last: dict[str, _Last] = {}  # by the GPU's UUID
        self._impossible: set[_Fault] = set()
        self._source_reason: str | None = None
        self._twins: set[str] = set()  # MIG UUIDs that two instances have, once logged
        self._identity = 0
        self._identified: object = None

    def want(
        self, wanted: Iterable[Field], *, view: View | None, enter: Enter | None, chosen: Callable[[Device], bool]
    ) -> None:
        """Put other fields together from now on, of the devices of another view; what is known of the GPUs stays."""
        self._wanted = {field.id: field for field in wanted}
        self._view = view or View()
        self._enter = enter
        if HEALTH not in self._wanted:
            self._health = None
        elif self._health is None:
            self._health = Health(series_key)
        self._roster.keep(chosen)

    def snapshot(
        self,
        states: Sequence[GpuState],
        samples: Sequence[Sample],
        *,
        facts: SourceFacts,
        reason: str | None,
        times: Times,
        is_glance: bool = False,
    ) -> Snapshot:
        """Build the snapshot of one sweep; *reason* says why the source as a whole is down, if it is.

        With *is_glance* that of a sweep that goes on: a GPU that has no state yet keeps the one it had.
        """
        if not is_glance:
            self._forget()
            self._log_source(facts, reason)
        single, twins = self._roster.without_twins(samples, is_glance=is_glance)
        settled = self._roster.settled([*states, *twins], reason, times.started_unix, is_glance=is_glance)
        single = _of_up(single, settled)
        answered = {sample.device.uuid for sample in single}
        silent = [state for state in settled if state.device.uuid and state.device.uuid not in answered]
        last = _given_over(self._last, single)
        ordered = sorted(
            [*self._roster.numbered(single), *self._unasked(silent, last)], key=lambda sample: sample.device.index
        )
        numbers: Numbers = {id_: {} for id_ in sorted(self._wanted)}
        series: dict[SeriesKey, Series] = {}
        claimed: dict[str, Device] = {}
        true: dict[_Fault, Field] = {}
        dropped: set[_Fault] = set()
        labels: dict[str, Rows] = {}
        told: dict[str, _Last] = {}
        missing = [
            Missing(field, state.device, Gap.TIMEOUT, TOO_SOON)
            for state in silent
            if state.up and state.gap is None
            for field in self._wanted.values()
        ]
        for sample in ordered:
            texts: dict[str, list[tuple[Field, str]]] = {}
            shown = self._view.of(sample)
            missing.extend(sample.missing if shown is None else shown.missing(sample))
            for reading in sample.readings if shown is None else shown.readings(sample):
                field, device, number, attributes = reading
                first = claimed.setdefault(device.uuid, device)
                if first is not device and first != device:
                    missing.append(self._twin(field, device, first))
                elif isinstance(number, str):
                    texts.setdefault(device.uuid, []).append((field, number))
                elif not field.lowest <= number <= field.highest:
                    missing.append(self._drop(field, device, number, is_glance=is_glance))
                    dropped.add((field.id, device.uuid))
                else:
                    key = series_key(device, attributes)
                    if key not in series:
                        series[key] = Series(device, attributes)
                    numbers[field.id][key] = number
                    if self._impossible:
                        true[field.id, device.uuid] = field
            rows = _rows(sample, texts) if sample.device.uuid in answered else last[sample.device.uuid].rows
            told[sample.device.uuid] = _Last(sample.instances, rows)
            labels = {**rows, **labels}
        self._clear({} if is_glance else true, dropped)
        if not is_glance:
            last |= told
            self._last = {state.device.uuid: last[state.device.uuid] for state in settled if state.device.uuid in last}
        used, spent = _NO_USE if is_glance else self._entered(ordered, settled, times)
        plain = Snapshot(
            at=times.at,
            unix=times.unix,
            started_unix=times.started_unix,
            identity=0,
            facts=facts,
            source_up=reason is None,
            source_reason=reason or "",
            states=tuple(_with_instances(settled, last)),
            numbers={id_: values for id_, values in numbers.items() if values},
            series=series,
            labels=labels,
            missing=tuple(missing),
            seconds=times.seconds,
            used=used,
            energy=spent,
        )
        return self._judged(plain, is_glance=is_glance)

    def _judged(self, snapshot: Snapshot, *, is_glance: bool) -> Snapshot:
        """Add the health of the GPUs where that is wanted, and then what the whole is known by."""
        if self._health is not None:
            snapshot = self._health.judged(snapshot, is_glance=is_glance)
        jobs = [each.jobs for each in snapshot.used]
        return replace(snapshot, identity=self._identity_of(snapshot.states, snapshot.series, snapshot.labels, jobs))

    def _entered(self, samples: Sequence[Sample], states: Iterable[GpuState], times: Times) -> Used:
        """Enter who uses what, where that is read."""
        if self._enter is None:
            return _NO_USE
        return self._enter(samples, (state.device.uuid for state in states), times.at, times.unix)

    def _unasked(self, silent: Iterable[GpuState], last: Mapping[str, _Last]) -> Iterable[Sample]:
        """Give what is known of GPUs that did not answer, as samples of their own."""
        for state in silent:
            known = last.get(state.device.uuid)
            if known is not None and not state.up:
                readings = tuple(self._heard(state.device))
                if readings or self._health is not None:
                    yield Sample(state.device, known.instances, readings)

    def _drop(self, field: Field, device: Device, number: float, *, is_glance: bool) -> Missing:
        reason = f"the driver answered {number}, which is not within {field.lowest:g} to {field.highest:g}"
        if is_glance:
            return Missing(field, device, Gap.INVALID, reason)
        self.dropped[field.name] = self.dropped.get(field.name, 0) + 1
        if (field.id, device.uuid) not in self._impossible:
            self._impossible.add((field.id, device.uuid))
            logger.warning("%s: %s is dropped: %s", device.uuid, field.name, reason)
        return Missing(field, device, Gap.INVALID, reason)

    def _twin(self, field: Field, device: Device, first: Device) -> Missing:
        """Refuse the reading of an instance that has the UUID of another one: the values could not be told apart."""
        reason = f"on {device.gpu_uuid} it calls itself {device.uuid}, as the one on {first.gpu_uuid} does"
        if device.uuid not in self._twins:
            self._twins.add(device.uuid)
            logger.error("MIG instance %s: %s; only that one is shown", device.instance_id, reason)
        return Missing(field, device, Gap.FAILED, reason)

    def _clear(self, true: Mapping[_Fault, Field], dropped: set[_Fault]) -> None:
        """End the faults of fields of which a number is true again, and none (of any link) was dropped."""
        for fault in sorted((self._impossible & true.keys()) - dropped):
            self._impossible.discard(fault)
            logger.info("%s: %s can be true again", fault[1], true[fault].name)

    def _forget(self) -> None:
        """Forget the faults of instances that were gone in the last sweep: new ones come without end."""
        if not self._impossible and not self._twins:
            return
        there = self._last.keys() | {instance.uuid for last in self._last.values() for instance in last.instances}
        self._impossible = {fault for fault in self._impossible if fault[1] in there}
        self._twins &= there

    def _identity_of(self, states: Sequence[GpuState], *others: object) -> int:
        identified = (tuple(state.device for state in states), *others)
        if identified != self._identified:
            self._identified = identified
            self._identity += 1
        return self._identity

    def _log_source(self, facts: SourceFacts, reason: str | None) -> None:
        if reason == self._source_reason:
            return
        if reason is not None:
            logger.warning("source %s is down: %s", facts.name, reason)
        elif self._source_reason is not None:
            logger.info("source %s is back (driver %s)", facts.name, facts.driver_version)
        self._source_reason = reason


def series_key(device: Device, attributes: Attributes) -> SeriesKey:
    """Name a series: bounded by the GPUs, instance ids and links of the machine, whoever uses them.

    An instance goes by its GPU and its id: its UUID is another one each time a GPU is partitioned.
    """
    name = device.gpu_uuid if device.instance_id is None else f"{device.gpu_uuid}/{device.instance_id}"
    return name if not attributes else f"{name}{attributes}"


def _of_up(samples: Iterable[Sample], states: Iterable[GpuState]) -> list[Sample]:
    """Leave out what a GPU that was down, or is new, has begun to answer at a glance: it is not shown as up yet."""
    up = {state.device.uuid for state in states if state.up}
    return [sample for sample in samples if sample.device.uuid in up]


def _given_over(last: Mapping[str, _Last], samples: Iterable[Sample]) -> dict[str, _Last]:
    """Take from what GPUs were last known by the instances that another one answers for now, under another UUID."""
    now = {instance.uuid: sample.device.uuid for sample in samples for instance in sample.instances}
    kept = dict(last)
    for gpu, known in last.items():
        if moved := {instance.uuid for instance in known.instances if now.get(instance.uuid, gpu) != gpu}:
            instances = tuple(instance for instance in known.instances if instance.uuid not in moved)
            kept[gpu] = _Last(instances, {uuid: rows for uuid, rows in known.rows.items() if uuid not in moved})
    return kept


def _with_instances(states: Iterable[GpuState], last: Mapping[str, _Last]) -> Iterable[GpuState]:
    """Say of each GPU which instances it has, or had when it last answered."""
    for state in states:
        known = last.get(state.device.uuid)
        yield state if known is None else replace(state, instances=known.instances)


def _rows(sample: Sample, texts: Mapping[str, Sequence[tuple[Field, str]]]) -> dict[str, Rows]:
    """List the label rows of a GPU and its instances, by UUID."""
    own = tuple(texts.get(sample.device.uuid, ()))
    rows = {sample.device.uuid: own}
    for instance in sample.instances:
        # A source may tell an instance's own text of a row that its GPU has too; a label stands once.
        rows[instance.uuid] = tuple((dict(own) | dict(texts.get(instance.uuid, ()))).items())
    return rows
