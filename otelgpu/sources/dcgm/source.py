"""The DCGM source: finds out which GPUs an engine has, has it watch what is wanted, and reads that.

Rule 1: `count` and `close` run in the sampler's own threads, the rest in the thread of the slot. All that has the
        engine change something is done in `count`: an engine does one thing at a time anyway.
Rule 2: what is there and what is watched is looked at anew as a whole: over another connection, with other GPUs or
        instances, with other fields, and from time to time where something is refused. Readers hold for one such look.
Rule 3: an engine that is gone is connected to again by the next `count`; its watches went with the connection.
"""

import ctypes
import time
from collections.abc import Iterable, Sequence
from ctypes import c_int
from typing import NamedTuple

from otelgpu.counts import Counting
from otelgpu.errors import SourceDownError
from otelgpu.events import Told
from otelgpu.fields import Field
from otelgpu.health import HEALTH
from otelgpu.model import Device, Gap, Reading, Sample, SourceFacts
from otelgpu.sources import DeviceDownError
from otelgpu.sources.again import Again
from otelgpu.sources.dcgm.connection import Connection
from otelgpu.sources.dcgm.counted import Counted
from otelgpu.sources.dcgm.devices import Found, Seen, found, seen
from otelgpu.sources.dcgm.errors import DISCONNECTED, DcgmError, gap_of
from otelgpu.sources.dcgm.library import Library
from otelgpu.sources.dcgm.readable import COUNTED, READABLE, XID_ERRORS
from otelgpu.sources.dcgm.reader import Reader
from otelgpu.sources.dcgm.structs import STATUS_DETACHED, STATUS_LOST
from otelgpu.sources.dcgm.values import Ages
from otelgpu.sources.dcgm.watches import Gpu, Watched, Watches

BESIDE = COUNTED | {XID_ERRORS, HEALTH}  # what is not read as a value: counted, or judged of other values
LOST = {STATUS_LOST: "lost", STATUS_DETACHED: "detached"}


class Paces(NamedTuple):
    """Seconds: between two samples of the engine, and the age at which a value is no longer shown."""

    interval: float
    expire: float


class DcgmSource:
    """Reads GPUs through an engine at *address* ("": one in this process). Nothing is asked before the first `count`.

    Connecting takes *patience* seconds at most.
    """

    readable = READABLE

    def __init__(
        self,
        library: Library,
        fields: Iterable[Field],
        told: Told,
        *,
        address: str,
        paces: Paces,
        patience: float,
        counting: Counting,
    ) -> None:
        self._connection = Connection(library, address, release=self._release, patience=patience)
        self._watches = Watches(self._connection)
        self._counted = Counted()
        self._ages = Ages(paces.expire, is_local=self._connection.is_local)
        self._again = Again(time.monotonic)
        self._number = 0  # of the connection over which something is watched
        self._edition = 0  # of what is wanted
        self._known: tuple[int, int, Seen] | None = None  # connection, edition and what was there at the last look
        self._watched = Watched()
        self._uuids: dict[int, str] = {}  # of the GPUs, by DCGM's id
        self._readers: tuple[Reader | DeviceDownError, ...] = ()
        self._facts = SourceFacts("dcgm")
        self.want(fields, told, paces=paces, counting=counting)

    def want(self, fields: Iterable[Field], told: Told, *, paces: Paces, counting: Counting) -> None:
        """Have other fields watched from the next sweep on; called between two sweeps."""
        wanted = [field for field in fields if field.id in READABLE]
        self._fields = tuple(field for field in wanted if field.id not in BESIDE)
        self._counted.want(wanted, counting, told, expire=paces.expire)
        self._paces, self._ages.expire = paces, paces.expire
        self._heard_at = min(paces.interval, counting.clock_interval)
        self._edition += 1

    def count(self) -> int:
        """Connect where needed, look who is there, and have it watched; see the protocol."""
        try:
            return self._looked()
        except DcgmError as error:
            if error.code not in DISCONNECTED:
                raise SourceDownError(f"{self._connection.place}: {error}") from error
        try:
            return self._looked()  # over another connection, if there is one to be had
        except DcgmError as error:
            raise SourceDownError(f"{self._connection.place}: {error}") from error

    def device(self, slot: int) -> Device:
        """Say which GPU is in a slot; see the protocol."""
        with self._connection.door.call():
            return self._reader(slot).device

    def read(self, slot: int) -> Sample:
        """Read the GPU in a slot and its instances; see the protocol."""
        with self._connection.door.call():
            reader = self._reader(slot)
            if reader.is_read:
                raise DeviceDownError(Gap.TIMEOUT, "another thread looks after this slot by now")
            self._check(reader)
            try:
                return reader.sample(self._connection, self._counted)
            except DcgmError as error:
                raise DeviceDownError(gap_of(error.code), f"it cannot be read: {error}") from error

    def so_far(self, slot: int, reason: str) -> Sample | None:
        """Give what has been answered of a read under way; see the protocol."""
        readers = self._readers
        reader = readers[slot] if slot < len(readers) else None
        return reader.so_far(reason, self._counted) if isinstance(reader, Reader) and reader.is_read else None

    def heard(self, device: Device) -> Sequence[Reading]:
        """Give the XIDs of a GPU that does not answer; see the protocol."""
        return self._counted.heard(device)

    def facts(self) -> SourceFacts:
        """Say what the engine told when it was connected to."""
        return self._facts

    def close(self) -> None:
        """Let go of the engine; see the protocol."""
        if not self._connection.close():
            raise SourceDownError("a call to it has not returned")

    def _release(self) -> None:
        """Give back all that was taken from the engine."""
        self._watches.release()

    def _looked(self) -> int:
        connection = self._connection
        connection.open()
        before = self._known
        there = seen(connection, before[2] if before and before[0] == connection.number else None)
        known = connection.number, self._edition, there
        if known != self._known or self._again.is_due() or any(_is_unwatched(reader) for reader in self._readers):
            if connection.number != self._number:
                self._watches.forget()  # they went with the connection
                self._number = connection.number
            self._known = None
            self._look(there)
            self._known = known
        self._counted.listen(connection, self._watched, self._uuids)
        return len(there.gpus)

    def _look(self, there: Seen) -> None:
        """Find out who is there, and have it watched."""
        gpus = found(self._connection, there)
        watched = self._watches.watch(
            [Gpu(gpu.itself, tuple(entity for entity, _ in gpu.instances)) for gpu in gpus],
            self._fields,
            interval=self._paces.interval,
            heard=self._counted.sources,
            heard_at=self._heard_at,
        )
        if not watched.is_whole or any(isinstance(gpu.device, DeviceDownError) for gpu in gpus):
            self._again.refused()
        self._ages.keep({entity for gpu in gpus for entity in (gpu.itself, *dict(gpu.instances))})
        devices = {gpu.itself[1]: gpu.device for gpu in gpus if isinstance(gpu.device, Device)}
        versions = (device.driver_version for device in devices.values())
        self._facts = SourceFacts("dcgm", next(versions, ""), self._connection.version)
        self._uuids = {id_: device.uuid for id_, device in devices.items()}
        self._watched = watched
        self._readers = tuple(self._reader_of(gpu, watched) for gpu in gpus)

    def _reader_of(self, gpu: Found, watched: Watched) -> Reader | DeviceDownError:
        if isinstance(gpu.device, DeviceDownError):
            return gpu.device
        refused = watched.refused | watched.of_gpu.get(gpu.itself, {})
        return Reader(gpu, gpu.device, self._fields, refused, self._ages)

    def _reader(self, slot: int) -> Reader:
        readers = self._readers
        if slot >= len(readers):
            raise DeviceDownError(Gap.LOST, "the engine no longer lists it")
        reader = readers[slot]
        if isinstance(reader, DeviceDownError):
            raise DeviceDownError(reader.gap, str(reader))
        return reader

    def _check(self, reader: Reader) -> None:
        """Ask how the engine finds the GPU. Raise DeviceDownError where it is lost."""
        status = c_int(0)
        try:
            self._connection.ask("dcgmGetGpuStatus", reader.entity[1], ctypes.byref(status))
        except DcgmError as error:
            if error.code in DISCONNECTED:
                raise DeviceDownError(Gap.FAILED, f"it cannot be asked: {error}") from error
            return  # what its values say counts
        if status.value in LOST:
            raise DeviceDownError(Gap.LOST, f"the engine says that it is {LOST[status.value]}")


def _is_unwatched(reader: Reader | DeviceDownError) -> bool:
    return isinstance(reader, Reader) and reader.is_unwatched
