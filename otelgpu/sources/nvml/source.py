"""The NVML source: finds out what is in each slot, and reads it by its plan.

Rule 1: `count` and `close` run in the sampler's own threads, the rest in the thread of the slot; what is in a slot
        belongs to the thread that opened it, also when a stuck one was replaced meanwhile.
Rule 2: a handle is bound to one GPU: when the driver renumbers, values stay with the UUID the handle was opened for.
Rule 3: whatever may have changed hands (another count, a GPU that is down, a new connection) is looked at again at
        the next sweep: `_look` counts these occasions.
Rule 4: of a GPU that sleeps nothing is asked, not even whether it is still there; see sleep.py.
"""

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import pynvml

from otelgpu.counts import Counting
from otelgpu.errors import SourceDownError
from otelgpu.events import Told, unheard
from otelgpu.fields import Field
from otelgpu.fields.process import PROCESS_IDS
from otelgpu.health import HEALTH
from otelgpu.model import Device, Gap, Missing, Reading, Sample, SourceFacts
from otelgpu.sources import DeviceDownError
from otelgpu.sources.nvml.connection import Connection
from otelgpu.sources.nvml.counted import COUNTED, Counted
from otelgpu.sources.nvml.errors import (
    DisconnectedError,
    down,
    gap_of,
    number_or_nothing,
    raise_if_whole,
    text_of,
    text_or_nothing,
)
from otelgpu.sources.nvml.events import Clock
from otelgpu.sources.nvml.handles import Handle, address_of
from otelgpu.sources.nvml.making import Making
from otelgpu.sources.nvml.mig import Layout
from otelgpu.sources.nvml.peers import P2P_STATUS, Peers
from otelgpu.sources.nvml.plan import SLOW, Answer
from otelgpu.sources.nvml.questions import READABLE, XID_ERRORS
from otelgpu.sources.nvml.sleep import Sleep
from otelgpu.sources.nvml.slot import Slot, UseMaker, sample_of

logger = logging.getLogger(__name__)

BESIDE = COUNTED | {P2P_STATUS, HEALTH}  # the tables of questions
NOT_ASKED = BESIDE | {XID_ERRORS}  # by a plan
MOST_GPUS = 256  # far above any machine; each gets a thread
NONE_LEFT = "its instances went away while they were read"
REPLACED = "another thread looks after this slot by now"


class NvmlSource:
    """Reads GPUs through libnvidia-ml. Nothing is loaded or asked before the first `count`."""

    readable = READABLE | PROCESS_IDS | BESIDE

    def __init__(
        self,
        fields: Iterable[Field],
        told: Told = unheard,
        *,
        uses: UseMaker | None = None,
        slow_interval: float = SLOW,
        counting: Counting = Counting(),  # noqa: B008 - frozen
        sys_root: str | None = None,
        driver_root: str = "",
        clock: Clock = time.monotonic,
    ) -> None:
        self._clock = clock
        self._making = Making(NOT_ASKED, clock)
        self._slots: dict[int, Slot] = {}
        self._sleep = Sleep(sys_root, lambda: list(self._slots.values()))
        self._counted = Counted(clock, self._sleep.is_asleep)
        self._peers = Peers(self._sleep.awake, clock)
        self.want(fields, told, uses=uses, slow_interval=slow_interval, counting=counting)
        self._connection = Connection(release=self._release, clock=clock, root=driver_root)
        self._lock = threading.Lock()  # of the slots and what follows
        self._look = 0
        self._last_count: int | None = None
        self._is_absurd = False
        self._tickets: dict[int, int] = {}  # the number of the newest thread to open a slot
        self._ticket = 0

    def want(
        self, fields: Iterable[Field], told: Told, *, uses: UseMaker | None, slow_interval: float, counting: Counting
    ) -> None:
        """Read other fields from the next sweep on; called between two sweeps.

        Connection, counts and the thread of a GPU that hangs stay as they are.
        """
        wanted = tuple(field for field in fields if field.id in self.readable)
        self._making.want(wanted, uses, slow_interval)
        self._counted.want(wanted, counting, told)
        self._peers.want(wanted, slow_interval)

    def count(self) -> int:
        """Connect where needed and count the GPUs; see the protocol."""
        try:
            count = self._connection.count()
        except pynvml.NVMLError as error:
            self._look_again()
            if self._last_count is None:
                raise down(error) from error
            return self._last_count  # the GPUs are asked all the same: their own answers say more
        except SourceDownError:
            self._last_count = None
            raise
        if count > MOST_GPUS:
            absurd = f"the driver says that there are {count} GPUs, which cannot be true"
            if self._last_count is None:
                raise SourceDownError(absurd)
            if not self._is_absurd:
                logger.warning("%s; the %d known ones are read", absurd, self._last_count)
            self._is_absurd = True
            return self._last_count
        self._is_absurd = False
        if count != self._last_count:
            self._last_count = count
            self._look_again()
        return count

    def device(self, slot: int) -> Device:
        """Open the GPU in a slot, or say again which one it is; see the protocol."""
        with self._connection.door.call():
            with self._lock:
                self._ticket += 1
                ticket = self._tickets[slot] = self._ticket
                look, known = self._look, self._slots.get(slot)
            is_current = known is not None and known.look == look and known.connection == self._connection.number
            sleeper = self._sleep.sleeper(slot, known, self._last_count, is_current=is_current)
            if sleeper is not None:
                return sleeper
            if known is not None and is_current:
                return known.device
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(slot)
                uuid = text_of(partial(pynvml.nvmlDeviceGetUUID, handle))
                if not uuid:
                    raise DeviceDownError(Gap.INVALID, "it has an empty UUID, so its values could not be told apart")
                is_same = known is not None and self._is_same(known, handle, uuid)
                opened = known if known is not None and is_same else self._opened(look, slot, handle, uuid)
            except pynvml.NVMLError as error:
                self._suspect_connection(error)
                raise DeviceDownError(gap_of(error.value), f"it cannot be opened: {error}") from error
            with self._lock:
                if self._tickets[slot] != ticket:
                    raise DeviceDownError(Gap.TIMEOUT, REPLACED)
                opened.look = look
                self._slots[slot] = opened
            self._sleep.found(slot, opened, self._last_count)
            if known is not None and known is not opened and not known.is_read:
                known.free()
            return opened.device

    def read(self, slot: int) -> Sample:
        """Read the GPU in a slot and its instances; see the protocol."""
        with self._connection.door.call():
            is_suspended = self._sleep.checked(slot)
            with self._lock:
                known = self._slots[slot]
                if known.is_read:
                    raise DeviceDownError(Gap.TIMEOUT, REPLACED)
                known.is_read, known.began = True, self._clock()
            try:
                return replace(self._sample(known), is_suspended=is_suspended)
            except DeviceDownError as error:
                known.free()  # what was begun before must not be continued with what comes back
                self._look_again()
                if isinstance(error, DisconnectedError):
                    self._connection.suspect()
                raise
            except pynvml.NVMLError as error:
                raise DeviceDownError(gap_of(error.value), f"it cannot be read: {error}") from error
            finally:
                known.is_read = False
                if self._slots.get(slot) is not known:  # this thread was stuck, and has been replaced
                    known.free()

    def so_far(self, slot: int, reason: str) -> Sample | None:
        """Give what has been answered of a read under way; see the protocol."""
        with self._lock:
            known = self._slots.get(slot)
        if known is None or not known.is_read:
            return None
        asked = known.asked  # first: what it has told by then is in `answers` when it is done
        there, answers = tuple(known.there), list(known.answers)
        if asked is not None and not answers:
            answers = asked.so_far()
        own = {answer.field.id for answer in answers if answer.device is known.device}
        answers += (
            Missing(field, known.device, Gap.TIMEOUT, reason) for field in self._making.fields if field.id not in own
        )
        return sample_of(known.device, there, answers)

    def heard(self, device: Device) -> Sequence[Reading]:
        """Give the XIDs of a GPU that does not answer; see the protocol."""
        return self._counted.heard(device)

    def facts(self) -> SourceFacts:
        """Say what the driver told when it was connected."""
        return self._connection.facts

    def close(self) -> None:
        """Let go of the driver; see the protocol."""
        if not self._connection.close():
            raise SourceDownError("a call to it has not returned")

    def _release(self) -> bool:
        """Give back all that was taken from the driver; nobody else is calling it now."""
        if not self._counted.stop():
            return False
        for known in self._slots.values():
            known.free()
        return True

    def _look_again(self) -> None:
        with self._lock:
            self._look += 1

    def _suspect_connection(self, error: pynvml.NVMLError) -> None:
        try:
            raise_if_whole(error)
        except DisconnectedError:
            self._connection.suspect()
        except DeviceDownError:
            return

    def _is_same(self, known: Slot, handle: Handle, uuid: str) -> bool:
        return (
            known.device.uuid == uuid
            and address_of(known.handle) == address_of(handle)
            and known.connection == self._connection.number
            and not known.is_read
        )

    def _opened(self, look: int, slot: int, handle: Handle, uuid: str) -> Slot:
        device = Device(
            uuid=uuid,
            gpu_uuid=uuid,
            index=slot,
            model=text_or_nothing(partial(pynvml.nvmlDeviceGetName, handle)),
            pci_bus_id=text_or_nothing(lambda: pynvml.nvmlDeviceGetPciInfo(handle).busId),
            serial=text_or_nothing(partial(pynvml.nvmlDeviceGetSerial, handle)),
            driver_version=self._connection.facts.driver_version,
            vbios_version=text_or_nothing(partial(pynvml.nvmlDeviceGetVbiosVersion, handle)),
            minor=number_or_nothing(partial(pynvml.nvmlDeviceGetMinorNumber, handle)),
        )
        edition, no_gpm = self._making.edition, self._making.no_gpm(handle)
        return Slot(self._connection.number, look, handle, device, edition, no_gpm, Layout(handle, device))

    def _sample(self, known: Slot) -> Sample:
        answers: list[Answer] = []
        there: list[Device] = []
        known.answers, known.there, known.asked = answers, there, None
        instances = known.mig.instances()
        own = known.asked = self._making.of_gpu(known, has_instances=bool(instances))
        answers += own.answers()
        known.asked = None
        answers += self._counted.answers(known)
        used = own.used() if not instances else []  # with instances the GPU's own list is theirs, told again
        for gone in known.instances.keys() - set(instances):
            known.instances.pop(gone).free()
        untold: dict[int, Field] = {}
        for instance in instances:
            readers = self._making.of_instance(known, instance)
            theirs, by = readers.answers(), readers.used(known.mig.beside(instance))
            if instance.is_there():
                there.append(instance.device)
                answers += theirs
                used += by
            else:
                untold |= {answer.field.id: answer.field for answer in theirs}
        if not there:
            answers += (Missing(field, known.device, Gap.FAILED, NONE_LEFT) for field in untold.values())
        answers += self._peers.answers(known)  # last: it is the other GPUs that this may wait for
        return sample_of(known.device, there, answers, used)
