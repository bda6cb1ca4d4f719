"""What goes between the two processes: messages over a stream socket, as MessagePack with their length before them.

Rule 1: both ends are the same installation, so there is no version and no message of another make.
Rule 2: a field travels as its id, and a device once for each sample; what comes out refers to one object again, as the
        views of a sample expect.
"""

import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from otelgpu.events import Xid
from otelgpu.fields import CATALOGUE
from otelgpu.model import Attributes, Device, DeviceUse, Gap, Missing, Reading, Sample, SourceFacts
from otelgpu.sources.nvml.order import Order

_LENGTH = struct.Struct("<I")
MOST = 1 << 64  # what MessagePack takes is below


class Begin(Struct, frozen=True, tag=True, array_like=True):
    """The first message, and another when that changes: what to read, and the least level of messages to pass on."""

    order: Order
    level: int


class Ask(Struct, frozen=True, tag=True, array_like=True):
    """A call of the Source protocol; its answer has the same number."""

    what: str  # count, device, read, so_far, heard, close
    slot: int = 0
    reason: str = ""
    device: Device | None = None
    number: int = 0  # given by who sends it


class Count(Struct, frozen=True, tag=True, array_like=True):
    """How many slots there are."""

    number: int
    count: int
    facts: SourceFacts


class There(Struct, frozen=True, tag=True, array_like=True):
    """The GPU in a slot."""

    number: int
    device: Device


class Read(Struct, frozen=True, tag=True, array_like=True):
    """A sample, packed: see `packed`. Readings and gaps are (field id, place in devices, ...)."""

    number: int
    devices: tuple[Device, ...]  # the GPU first, then its instances
    instances: int
    readings: tuple[tuple[int, int, int | float | str, Attributes], ...]
    missing: tuple[tuple[int, int, Gap, str], ...] = ()
    used: tuple[DeviceUse, ...] = ()
    is_suspended: bool | None = None


class Done(Struct, frozen=True, tag=True, array_like=True):
    """It is done, or there is nothing."""

    number: int


class DeviceDown(Struct, frozen=True, tag=True, array_like=True):
    """A DeviceDownError."""

    number: int
    gap: Gap
    reason: str


class SourceDown(Struct, frozen=True, tag=True, array_like=True):
    """A SourceDownError."""

    number: int
    reason: str


class Broken(Struct, frozen=True, tag=True, array_like=True):
    """Any other error, which is a defect of otelgpu; the child has logged it."""

    number: int
    reason: str


class Told(Struct, frozen=True, tag=True, array_like=True):
    """An XID that the driver told of."""

    xid: Xid


class Logged(Struct, frozen=True, tag=True, array_like=True):
    """A log message of the child."""

    name: str
    level: int
    text: str


Answer: TypeAlias = Count | There | Read | Done | DeviceDown | SourceDown | Broken
FromChild: TypeAlias = Answer | Told | Logged
FromParent: TypeAlias = Begin | Ask

_ENCODER = msgspec.msgpack.Encoder()
of_child = msgspec.msgpack.Decoder(FromChild)
of_parent = msgspec.msgpack.Decoder(FromParent)


class Stream:
    """One end. `send` may be called by any thread; `messages` by one."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: FromChild | FromParent) -> None:
        """Send a message. Raise OSError when the other end is gone."""
        body = _ENCODER.encode(message)
        with self._lock:
            self._connection.sendall(_LENGTH.pack(len(body)) + body)

    def messages(self) -> Iterator[bytes]:
        """Give each message as it comes, until the other end is gone."""
        with self._connection.makefile("rb") as file:
            try:
                while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
                    yield file.read(_LENGTH.unpack(head)[0])
            except OSError:
                return

    def end(self) -> None:
        """Tell the other end that this one is gone. Safe to call twice."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


def packed(number: int, sample: Sample) -> Read:
    """Pack a sample for the way."""
    devices = [sample.device, *sample.instances]
    places = {id(device): place for place, device in enumerate(devices)}

    def place(device: Device) -> int:
        found = places.get(id(device))
        if found is None:
            found = places[id(device)] = len(devices)
            devices.append(device)
        return found

    readings = tuple((one.field.id, place(one.device), _number(one), one.attributes) for one in sample.readings)
    missing = tuple((one.field.id, place(one.device), one.gap, one.reason) for one in sample.missing)
    return Read(
        number, tuple(devices), len(sample.instances), readings, missing, sample.used, is_suspended=sample.is_suspended
    )


def _number(reading: Reading) -> int | float | str:
    """Give what is sent for a reading: links of impossible numbers add up to more than a message can have."""
    number = reading.number
    return float(number) if isinstance(number, int) and number >= MOST else number  # it is dropped either way


def unpacked(read: Read) -> Sample:
    """Give the sample that was packed."""
    devices = read.devices
    return Sample(
        devices[0],
        devices[1 : 1 + read.instances],
        readings_of(read),
        tuple(Missing(CATALOGUE[id_], devices[place], gap, reason) for id_, place, gap, reason in read.missing),
        read.used,
        is_suspended=read.is_suspended,
    )


def packed_readings(number: int, device: Device, readings: Sequence[Reading]) -> Read:
    """Pack readings of a GPU that gave no sample."""
    return packed(number, Sample(device, readings=tuple(readings)))


def readings_of(read: Read) -> tuple[Reading, ...]:
    """Give the readings that were packed."""
    devices = read.devices
    return tuple(
        Reading(CATALOGUE[id_], devices[place], number, attributes) for id_, place, number, attributes in read.readings
    )
