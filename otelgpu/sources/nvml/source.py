"""The NVML source: connects, finds out what is in each slot, and reads it by its plan.

Rule 1: `count` runs in the sampler's driver thread, the rest in the thread of the slot; a slot's state belongs to it.
Rule 2: a handle is bound to one GPU: when the driver renumbers, values stay with the UUID the handle was opened for.
Rule 3: whatever may have changed hands (a new count, a lost GPU, a lost connection) is looked at again at the next
        sweep: `_generation` counts these occasions.
"""

import ctypes
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import pynvml

from otelgpu.errors import SourceDownError
from otelgpu.fields import CATALOGUE, Field
from otelgpu.model import Device, Gap, Missing, Reading, Sample, SourceFacts
from otelgpu.sources import DeviceDownError
from otelgpu.sources.nvml import mig
from otelgpu.sources.nvml.errors import DISCONNECTED, down, gap_of, text_of, text_or_nothing
from otelgpu.sources.nvml.events import XidEvents
from otelgpu.sources.nvml.gpm import GpmWindow, is_supported
from otelgpu.sources.nvml.handles import Handle
from otelgpu.sources.nvml.plan import Answer, Plan
from otelgpu.sources.nvml.questions import GPM_METRICS, QUESTIONS, READABLE, XID_ERRORS

logger = logging.getLogger(__name__)

GPM_FIELDS = frozenset(row.field_id for row in GPM_METRICS)
INSTANCE_FIELDS = frozenset(take.field_id for question in QUESTIONS if question.instance for take in question.takes)
INSTANCE_GPM_FIELDS = frozenset(row.field_id for row in GPM_METRICS if row.instance)


@dataclass(slots=True)
class _Readers:
    """What reads one device; made anew when the device (or its fields) change."""

    plan: Plan
    gpm: GpmWindow | None

    def answers(self) -> list[Answer]:
        answers = self.plan.answers()
        if self.gpm is not None:
            answers = answers + self.gpm.answers()
        return answers

    def free(self) -> None:
        if self.gpm is not None:
            self.gpm.free()


@dataclass(slots=True)
class _Slot:
    """One GPU as it was opened. Its own readers differ with and without MIG instances."""

    connection: int
    generation: int
    handle: Handle
    device: Device
    no_gpm: str | None  # why there is no GPM
    mig: mig.Layout
    own: dict[bool, _Readers] = field(default_factory=dict)  # by "has instances"
    instances: dict[mig.Instance, _Readers] = field(default_factory=dict)


class NvmlSource:
    """Reads GPUs through libnvidia-ml. Nothing is loaded or asked before the first `count`."""

    readable = READABLE

    def __init__(self, fields: Iterable[Field], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._fields = tuple(field for field in fields if field.id in READABLE)
        self._clock = clock
        self._wants_xid = any(field.id == XID_ERRORS for field in self._fields)
        self._connected = False
        self._connection = 0
        self._generation = 0
        self._last_count = -1
        self._slots: dict[int, _Slot] = {}
        self._events: XidEvents | None = None
        self._facts = SourceFacts("nvml")

    def count(self) -> int:
        """Connect where needed and count the GPUs; see the protocol."""
        if not self._connected:
            self._connect()
        try:
            count: int = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            if error.value in DISCONNECTED:
                self._connected = False
                self._generation += 1
            raise down(error) from error
        if count != self._last_count:
            self._last_count = count
            self._generation += 1
        return count

    def device(self, slot: int) -> Device:
        """Open the GPU in a slot, or say again which one it is; see the protocol."""
        known = self._slots.get(slot)
        if known is not None and known.generation == self._generation:
            return known.device
        generation = self._generation
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(slot)
            uuid = text_of(partial(pynvml.nvmlDeviceGetUUID, handle))
            if known is not None and known.device.uuid == uuid and known.connection == self._connection:
                known.generation = generation
                return known.device
            opened = self._opened(generation, slot, handle, uuid)
        except pynvml.NVMLError as error:
            raise DeviceDownError(gap_of(error.value), f"it cannot be opened: {error}") from error
        if known is not None and known.connection == self._connection:
            _free(known)
        self._slots[slot] = opened
        return opened.device

    def read(self, slot: int) -> Sample:
        """Read the GPU in a slot and its instances; see the protocol."""
        known = self._slots[slot]
        try:
            return self._sample(known)
        except DeviceDownError:
            self._generation += 1
            raise
        except pynvml.NVMLError as error:
            raise DeviceDownError(gap_of(error.value), f"it cannot be read: {error}") from error

    def facts(self) -> SourceFacts:
        """Say what the driver told when it was connected."""
        return self._facts

    def close(self) -> None:
        """Let go of the driver. Safe to call twice."""
        if not self._connected:
            return
        if self._events is not None and not self._events.stop():
            logger.warning("the driver holds the event thread; it is left as it is")
            return
        self._events = None
        for known in self._slots.values():
            _free(known)
        self._slots.clear()
        self._connected = False
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            logger.debug("nvmlShutdown: %s", error)

    def _connect(self) -> None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise down(error, _loading_error()) from error
        self._connected = True
        self._connection += 1
        self._generation += 1
        self._facts = SourceFacts(
            "nvml",
            driver_version=text_or_nothing(pynvml.nvmlSystemGetDriverVersion),
            library_version=text_or_nothing(pynvml.nvmlSystemGetNVMLVersion),
        )
        if self._events is not None:
            self._events.stop(free=False)  # the set belonged to the connection before
        self._events = XidEvents() if self._wants_xid else None

    def _opened(self, generation: int, slot: int, handle: Handle, uuid: str) -> _Slot:
        device = Device(
            uuid=uuid,
            gpu_uuid=uuid,
            index=slot,
            model=text_or_nothing(partial(pynvml.nvmlDeviceGetName, handle)),
            pci_bus_id=_pci_bus_id(handle),
            serial=text_or_nothing(partial(pynvml.nvmlDeviceGetSerial, handle)),
            driver_version=self._facts.driver_version,
            vbios_version=text_or_nothing(partial(pynvml.nvmlDeviceGetVbiosVersion, handle)),
        )
        wants_gpm = any(field.id in GPM_FIELDS for field in self._fields)
        no_gpm = is_supported(handle) if wants_gpm else None
        return _Slot(self._connection, generation, handle, device, no_gpm, mig.Layout(handle, device))

    def _sample(self, known: _Slot) -> Sample:
        instances = known.mig.instances()
        answers = self._own_readers(known, has_instances=bool(instances)).answers()
        answers.extend(self._xid(known))
        current = set(instances.values())
        for gone in known.instances.keys() - current:
            known.instances.pop(gone).free()
        for instance in instances.values():
            readers = known.instances.get(instance)
            if readers is None:
                readers = known.instances[instance] = self._instance_readers(known, instance)
            answers.extend(readers.answers())
        return Sample(
            known.device,
            tuple(instance.device for instance in instances.values()),
            tuple(answer for answer in answers if isinstance(answer, Reading)),
            tuple(answer for answer in answers if isinstance(answer, Missing)),
        )

    def _own_readers(self, known: _Slot, *, has_instances: bool) -> _Readers:
        """Give the GPU's own readers. What its instances answer is theirs: asked of both, sums would count it twice."""
        readers = known.own.get(has_instances)
        if readers is None:
            for stale in known.own.values():
                stale.free()
            theirs = INSTANCE_FIELDS if has_instances else frozenset[int]()
            theirs_gpm = INSTANCE_GPM_FIELDS if has_instances and known.no_gpm is None else frozenset[int]()
            fields = [field for field in self._fields if field.id not in theirs | theirs_gpm]
            take = partial(pynvml.nvmlGpmSampleGet, known.handle)
            readers = self._readers(fields, known.device, known.handle, take, known.no_gpm)
            known.own = {has_instances: readers}
        return readers

    def _instance_readers(self, known: _Slot, instance: mig.Instance) -> _Readers:
        gpm = INSTANCE_GPM_FIELDS if known.no_gpm is None else frozenset[int]()
        fields = [field for field in self._fields if field.id in INSTANCE_FIELDS | gpm]
        take = partial(pynvml.nvmlGpmMigSampleGet, known.handle, instance.device.instance_id)
        return self._readers(fields, instance.device, instance.handle, take, known.no_gpm)

    def _readers(
        self, fields: list[Field], device: Device, handle: Handle, take: Callable[[object], object], no_gpm: str | None
    ) -> _Readers:
        profiled = [field for field in fields if field.id in GPM_FIELDS]
        asked = [field for field in fields if field.id not in GPM_FIELDS and field.id != XID_ERRORS]
        if no_gpm is not None:
            refused = [(field, no_gpm) for field in profiled]
            return _Readers(Plan(asked, device, handle, refused=refused, clock=self._clock), None)
        gpm = GpmWindow(profiled, device, take, self._clock) if profiled else None
        return _Readers(Plan(asked, device, handle, clock=self._clock), gpm)

    def _xid(self, known: _Slot) -> list[Answer]:
        if self._events is None:
            return []
        last = self._events.last(known.handle, known.device.uuid)
        xid = CATALOGUE[XID_ERRORS]
        if isinstance(last, tuple):
            return [Missing(xid, known.device, *last)]
        return [Reading(xid, known.device, last)]


def _free(slot: _Slot) -> None:
    for readers in (*slot.own.values(), *slot.instances.values()):
        readers.free()


def _pci_bus_id(handle: Handle) -> str:
    try:
        pci = pynvml.nvmlDeviceGetPciInfo(handle)
    except pynvml.NVMLError as error:
        if gap_of(error.value) is Gap.LOST:
            raise
        return ""
    return text_of(lambda: pci.busId)


def _loading_error() -> str:
    """Say why libnvidia-ml.so.1 does not load: pynvml keeps the loader's words to itself."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return str(error)
    return ""
