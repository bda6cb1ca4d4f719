"""From the answers of one sweep to an immutable Snapshot.

Rule 1: everything that has to be remembered between two sweeps stands here: the number of each GPU, the GPUs ever
        seen, what was last logged. It is used by the sampler's thread alone.
Rule 2: a number that its field cannot have is dropped, counted, and kept as Missing(invalid): never repaired.
Rule 3: a GPU, once seen, stays in the snapshot as down until it is back or the process ends, with the MIG instances
        that it had.
Rule 4: a fault is logged when it appears and when it clears.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from otelgpu.fields import Field
from otelgpu.model import (
    Attributes,
    Device,
    Gap,
    GpuState,
    Missing,
    Reading,
    Sample,
    Series,
    SeriesKey,
    Snapshot,
    SourceFacts,
)

logger = logging.getLogger(__name__)

Numbers = dict[int, dict[SeriesKey, int | float]]


class Assembler:
    """Puts snapshots together. *wanted* fixes the fields; *repeat_parent* gives a GPU's values to its instances."""

    def __init__(self, wanted: Iterable[Field], *, repeat_parent: bool = False) -> None:
        self.dropped: dict[str, int] = {}
        self._wanted = {field.id: field for field in wanted}
        self._repeat_parent = repeat_parent
        self._known: dict[str, GpuState] = {}
        self._nameless: dict[int, GpuState] = {}  # by slot
        self._indices: dict[str, int] = {}
        self._impossible: set[tuple[int, str]] = set()  # field id and UUID
        self._source_reason: str | None = None
        self._twins: set[str] = set()  # MIG UUIDs that two instances have, once logged
        self._identity = 0
        self._identified: object = None

    def snapshot(
        self,
        *,
        states: Sequence[GpuState],
        samples: Sequence[Sample],
        facts: SourceFacts,
        reason: str | None,
        at: float,
        unix: float,
        started_unix: float,
        seconds: float,
    ) -> Snapshot:
        """Build the snapshot of one sweep; *reason* says why the source as a whole is down, if it is."""
        self._log_source(facts, reason)
        single, twins = _without_twins(samples)
        ordered = sorted(self._numbered(single), key=lambda sample: sample.device.index)
        instances = {sample.device.uuid: sample.instances for sample in ordered}
        settled = self._settle([*states, *twins], instances, reason, started_unix)
        numbers: Numbers = {id_: {} for id_ in sorted(self._wanted)}
        series: dict[SeriesKey, Series] = {}
        labels: dict[str, tuple[tuple[Field, str], ...]] = {}
        missing: list[Missing] = []
        for sample in ordered:
            texts: dict[str, list[tuple[Field, str]]] = {}
            missing.extend(sample.missing)
            for reading in self._readings(sample):
                field, device, number, attributes = reading
                if isinstance(number, str):
                    texts.setdefault(device.uuid, []).append((field, number))
                elif not field.lowest <= number <= field.highest:
                    missing.append(self._drop(field, device, number))
                else:
                    key = series_key(device, attributes)
                    known = series.get(key)
                    if known is None:
                        series[key] = Series(device, attributes)
                    elif known.device is not device and known.device != device:
                        missing.append(self._twin(field, device, known.device))
                        continue
                    numbers[field.id][key] = number
                    if self._impossible:
                        self._clear(field, device)
            own = texts.get(sample.device.uuid, [])
            labels[sample.device.uuid] = tuple(own)
            for instance in sample.instances:
                # A source may tell an instance's own text of a row that its GPU has too; a label stands once.
                rows = dict(own) | dict(texts.get(instance.uuid, []))
                labels.setdefault(instance.uuid, tuple(rows.items()))
        return Snapshot(
            at=at,
            unix=unix,
            started_unix=started_unix,
            identity=self._identity_of(settled, series, labels),
            facts=facts,
            source_up=reason is None,
            source_reason=reason or "",
            states=settled,
            numbers={id_: values for id_, values in numbers.items() if values},
            series=series,
            labels=labels,
            missing=tuple(missing),
            seconds=seconds,
        )

    def _readings(self, sample: Sample) -> Iterable[Reading]:
        """Give the readings as they are shown: with *repeat_parent* a GPU's values stand on its instances instead."""
        if not (self._repeat_parent and sample.instances):
            return sample.readings
        shown: list[Reading] = []
        for reading in sample.readings:
            if reading.device is not sample.device or isinstance(reading.number, str):
                shown.append(reading)
            else:
                shown.extend(reading._replace(device=instance) for instance in sample.instances)
        return shown

    def _numbered(self, samples: Iterable[Sample]) -> Iterable[Sample]:
        for sample in samples:
            index = self._index(sample.device)
            yield sample if index == sample.device.index else _renumbered(sample, index)

    def _index(self, device: Device) -> int:
        """Give a GPU the number it had when first seen: the driver renumbers when one is lost."""
        index = self._indices.get(device.uuid)
        if index is None:
            taken = set(self._indices.values())
            index = device.index
            while index in taken:
                index += 1
            self._indices[device.uuid] = index
        return index

    def _settle(
        self,
        states: Iterable[GpuState],
        instances: Mapping[str, tuple[Device, ...]],
        reason: str | None,
        unix: float,
    ) -> tuple[GpuState, ...]:
        """Bring the GPUs in sight and those seen before together, in the order of their numbers.

        *instances* are those of the GPUs that have answered, by UUID.
        """
        nameless: dict[int, GpuState] = {}
        current: dict[str, GpuState] = {}
        for state in states:
            device = state.device
            if not device.uuid:
                nameless[device.index] = state
            elif device.uuid not in current:
                before = self._known.get(device.uuid)
                kept = () if before is None else before.instances
                current[device.uuid] = replace(
                    state,
                    device=replace(device, index=self._index(device)),
                    instances=instances.get(device.uuid, kept),
                )
        for uuid, before in self._known.items():
            if uuid not in current:
                gap, why = (Gap.FAILED, reason) if reason is not None else (Gap.LOST, "the driver no longer lists it")
                current[uuid] = replace(before, up=False, gap=gap, reason=why)
        self._nameless = {slot: _since(self._nameless.get(slot), state, unix) for slot, state in nameless.items()}
        self._known = {uuid: _since(self._known.get(uuid), state, unix) for uuid, state in current.items()}
        return tuple(sorted([*self._known.values(), *self._nameless.values()], key=lambda state: state.device.index))

    def _drop(self, field: Field, device: Device, number: float) -> Missing:
        self.dropped[field.name] = self.dropped.get(field.name, 0) + 1
        reason = f"the driver answered {number}, which is not within {field.lowest:g} to {field.highest:g}"
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

    def _clear(self, field: Field, device: Device) -> None:
        fault = (field.id, device.uuid)
        if fault in self._impossible:
            self._impossible.discard(fault)
            logger.info("%s: %s can be true again", device.uuid, field.name)

    def _identity_of(self, states: Sequence[GpuState], series: object, labels: object) -> int:
        identified = (tuple(state.device for state in states), series, labels)
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
    """Name a series: bounded by the devices and links of the machine, whoever uses them."""
    return device.uuid if not attributes else f"{device.uuid}{attributes}"


def _renumbered(sample: Sample, index: int) -> Sample:
    shown = {device.uuid: replace(device, index=index) for device in (sample.device, *sample.instances)}
    return Sample(
        device=shown[sample.device.uuid],
        instances=tuple(shown[instance.uuid] for instance in sample.instances),
        readings=tuple(reading._replace(device=shown[reading.device.uuid]) for reading in sample.readings),
        missing=tuple(gap._replace(device=shown[gap.device.uuid]) for gap in sample.missing),
    )


def _without_twins(samples: Iterable[Sample]) -> tuple[list[Sample], list[GpuState]]:
    """Keep the first of two GPUs that claim one UUID, and show the other as down: their values look alike."""
    seen: dict[str, Sample] = {}
    twins: list[GpuState] = []
    for sample in samples:
        device = sample.device
        first = seen.setdefault(device.uuid, sample)
        if device.pci_bus_id != first.device.pci_bus_id:  # else it has changed its slot during the sweep
            why = f"{device.pci_bus_id} calls itself {device.uuid}, as {first.device.pci_bus_id} does"
            nameless = replace(device, uuid="", gpu_uuid="")
            twins.append(GpuState(nameless, up=False, gap=Gap.FAILED, reason=why))
    return list(seen.values()), twins


def _since(before: GpuState | None, state: GpuState, unix: float) -> GpuState:
    """Add since when the GPU is down, and log when that begins or ends."""
    was_up = before is None or before.up
    name = state.device.uuid or "a GPU without a name"
    if state.up:
        if not was_up:
            logger.info("%s (gpu %d) is back", name, state.device.index)
        return state
    if was_up:
        logger.error("%s (gpu %d) is down: %s", name, state.device.index, state.reason)
    return replace(state, since_unix=unix if before is None or before.up else before.since_unix)
