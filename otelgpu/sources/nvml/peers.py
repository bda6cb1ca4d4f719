"""Which GPUs reach each other over NVLink: one question for each pair and direction, asked seldom.

Rule 1: each GPU asks about the others in the thread of its own slot, and last of all: what the others do to it there
        costs it nothing but this field.
Rule 2: asked about are the GPUs that were read, and answer: of one that is stuck no other GPU's thread may learn it the
        hard way. So the first sweep may not know all of them yet.
Rule 3: an error about a pair does not say which of the two it is about: it costs the pair.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pynvml

from otelgpu.fields import Field
from otelgpu.model import Gap, Missing, Reading
from otelgpu.peers import P2P_STATUS, pair
from otelgpu.sources.nvml.errors import DISCONNECTED, gap_of, raise_if_whole
from otelgpu.sources.nvml.handles import address_of
from otelgpu.sources.nvml.plan import Answer
from otelgpu.sources.nvml.slot import Slot

__all__ = ["P2P_STATUS", "Peers"]

PROMPT = 0.5  # seconds: a GPU that has been read for longer than this may be stuck


@dataclass(frozen=True, slots=True)
class _Kept:
    """What was answered about a pair: NVML's number, or why there is none."""

    handles: tuple[int, int]  # addresses
    at: float
    outcome: int | tuple[Gap, str]


class Peers:
    """Asks about every pair, where that is wanted. *slots* gives the GPUs that were opened."""

    def __init__(self, slots: Callable[[], list[Slot]], clock: Callable[[], float]) -> None:
        self._slots = slots
        self._clock = clock
        self._field: Field | None = None
        self._slow_interval = 0.0
        self._kept: dict[str, dict[str, _Kept]] = {}  # by UUID, and that of the other

    def want(self, fields: Iterable[Field], slow_interval: float) -> None:
        """Ask for other fields from now on, or at another pace."""
        self._field = next((field for field in fields if field.id == P2P_STATUS), None)
        self._slow_interval = slow_interval

    def answers(self, known: Slot) -> list[Answer]:
        """Say which GPUs this one reaches. Raise DeviceDownError when the driver is gone."""
        field = self._field
        if field is None:
            return []
        before = self._kept.get(known.device.uuid, {})
        kept = self._kept[known.device.uuid] = {
            slot.device.uuid: self._status(known, slot, before.get(slot.device.uuid))
            for slot in self._slots()
            if slot.own is not None and slot.connection == known.connection and slot.device.uuid != known.device.uuid
            if not (slot.is_read and self._clock() - slot.began > PROMPT)
        }
        found: list[Answer] = [
            Reading(field, known.device, one.outcome, pair(uuid, one.outcome))
            for uuid, one in kept.items()
            if isinstance(one.outcome, int)
        ]
        if found:
            return found
        refusals = [one.outcome for one in kept.values() if isinstance(one.outcome, tuple)]
        gap, reason = refusals[0] if refusals else (Gap.UNSUPPORTED, "no other GPU was read so far")
        return [Missing(field, known.device, gap, reason)]

    def _status(self, known: Slot, other: Slot, before: _Kept | None) -> _Kept:
        handles = address_of(known.handle), address_of(other.handle)
        now = self._clock()
        if before is not None and before.handles == handles and now - before.at < self._slow_interval:
            return before
        outcome: int | tuple[Gap, str]
        try:
            outcome = int(pynvml.nvmlDeviceGetP2PStatus(known.handle, other.handle, pynvml.NVML_P2P_CAPS_INDEX_NVLINK))
        except pynvml.NVMLError as error:
            if error.value in DISCONNECTED:
                raise_if_whole(error)
            outcome = gap_of(error.value), f"nvmlDeviceGetP2PStatus: {error}"
        is_lasting = isinstance(outcome, int) or outcome[0] in (Gap.UNSUPPORTED, Gap.DENIED)
        return _Kept(handles, now if is_lasting else now - self._slow_interval, outcome)
