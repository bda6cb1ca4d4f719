"""Which GPUs there are: their numbers, whether they answer, and since when not.

Rule 1: remembers from sweep to sweep; used by the sampler's thread alone.
Rule 2: a GPU, once seen, stays as down until it is back or the process ends, and keeps its number: the driver
        numbers anew when one is lost.
Rule 3: that a GPU is down, or back, is logged once.
Rule 4: a glance at a sweep under way changes nothing of what is remembered.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from otelgpu.model import Device, Gap, GpuState, Sample

logger = logging.getLogger(__name__)

MOST_KNOWN = 1024  # GPUs remembered: far above any machine, for a driver that makes up a new UUID each time


class Roster:
    """Every GPU seen so far, with its number and state."""

    def __init__(self) -> None:
        self._known: dict[str, GpuState] = {}  # by UUID
        self._nameless: dict[int, GpuState] = {}  # by slot
        self._indices: dict[str, int] = {}
        self._doubles: frozenset[int] = frozenset()  # slots whose GPU another slot had as well, in the last sweep

    def keep(self, chosen: Callable[[Device], bool]) -> None:
        """Forget the GPUs that are not looked at any more, or they would seem to be lost. They keep their numbers."""
        self._known = {uuid: state for uuid, state in self._known.items() if chosen(state.device)}

    def numbered(self, samples: Iterable[Sample]) -> Iterable[Sample]:
        """Give the samples with the numbers that their GPUs keep."""
        for sample in samples:
            index = self._index(sample.device)
            yield sample if index == sample.device.index else _renumbered(sample, index)

    def settled(
        self, states: Iterable[GpuState], reason: str | None, unix: float, *, is_glance: bool
    ) -> tuple[GpuState, ...]:
        """Bring the GPUs in sight and those seen before together, in the order of their numbers.

        *reason* says why the source as a whole is down, if it is; *unix* is the time of the sweep.
        """
        nameless: dict[int, GpuState] = {}
        current: dict[str, GpuState] = {}
        for state in states:
            device = state.device
            if not device.uuid:
                nameless[device.index] = state
            elif device.uuid not in current:
                current[device.uuid] = replace(state, device=replace(device, index=self._index(device)))
        if is_glance:
            # What is new is shown as it is; what stays as it was keeps its "since when".
            fresh = {uuid: state for uuid, state in current.items() if not _is_as_before(self._known.get(uuid), state)}
            shown = [*(self._known | fresh).values(), *(self._nameless or nameless).values()]
            return tuple(sorted(shown, key=lambda state: state.device.index))
        for uuid, before in self._known.items():
            if uuid not in current:
                gap, why = (Gap.FAILED, reason) if reason is not None else (Gap.LOST, "the driver no longer lists it")
                current[uuid] = replace(before, up=False, gap=gap, reason=why, is_suspended=None)
        self._nameless = {slot: _since(self._nameless.get(slot), state, unix) for slot, state in nameless.items()}
        self._known = {uuid: _since(self._known.get(uuid), state, unix) for uuid, state in current.items()}
        self._forget()
        return tuple(sorted([*self._known.values(), *self._nameless.values()], key=lambda state: state.device.index))

    def without_twins(self, samples: Iterable[Sample], *, is_glance: bool) -> tuple[list[Sample], list[GpuState]]:
        """Keep the first of two GPUs that claim one UUID, and show the other as down: their values look alike."""
        seen: dict[str, Sample] = {}
        twins: list[GpuState] = []
        doubles: set[int] = set()
        for sample in samples:
            device = sample.device
            first = seen.setdefault(device.uuid, sample)
            if first is sample:
                continue
            if device.pci_bus_id == first.device.pci_bus_id:
                doubles.add(device.index)
                if device.index not in self._doubles:
                    continue  # it has changed its slot during the sweep; if not, it is there again in the next
            why = f"{device.pci_bus_id} calls itself {device.uuid}, as {first.device.pci_bus_id} does"
            nameless = replace(device, uuid="", gpu_uuid="")
            twins.append(GpuState(nameless, up=False, gap=Gap.FAILED, reason=why))
        if not is_glance:
            self._doubles = frozenset(doubles)
        return list(seen.values()), twins

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

    def _forget(self) -> None:
        """Forget the GPUs that have been away longest when there are too many."""
        down = sorted((state for state in self._known.values() if not state.up), key=lambda state: state.since_unix)
        for state in down[: max(len(self._known) - MOST_KNOWN, 0)]:
            del self._known[state.device.uuid], self._indices[state.device.uuid]


def _renumbered(sample: Sample, index: int) -> Sample:
    shown = {device.uuid: replace(device, index=index) for device in (sample.device, *sample.instances)}
    return Sample(
        device=shown[sample.device.uuid],
        instances=tuple(shown[instance.uuid] for instance in sample.instances),
        readings=tuple(reading._replace(device=shown[reading.device.uuid]) for reading in sample.readings),
        missing=tuple(gap._replace(device=shown[gap.device.uuid]) for gap in sample.missing),
        used=tuple(replace(use, device=shown[use.device.uuid]) for use in sample.used),
        is_suspended=sample.is_suspended,
    )


def _is_as_before(before: GpuState | None, state: GpuState) -> bool:
    return before is not None and (before.up, before.gap) == (state.up, state.gap)


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
