"""Which GPUs and instances there are.

Rule 1: looked at before each sweep by two calls about all of them (`seen`); who they are is asked only when that answer
        is another one.
Rule 2: an instance is shown by NVML's ids, index and UUID, as on a page that is read through NVML; DCGM's own numbers
        of entities are used to ask, and shown nowhere.
"""

import ctypes
import re
from collections.abc import Iterable, Mapping, Sequence
from ctypes import c_int, c_uint
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from otelgpu.fields import CATALOGUE
from otelgpu.model import Device, Gap
from otelgpu.sources import DeviceDownError
from otelgpu.sources.dcgm.connection import Connection
from otelgpu.sources.dcgm.errors import DISCONNECTED, DcgmError, blank_text, gap_of
from otelgpu.sources.dcgm.readable import NAME, UUID
from otelgpu.sources.dcgm.structs import (
    FE_GPU,
    FE_GPU_CI,
    FE_GPU_I,
    LIVE_DATA,
    MOST_GPUS,
    DeviceAttributes,
    MigHierarchy,
    version_of,
)
from otelgpu.sources.dcgm.values import Call, Entity, Refusal, judged, text_of
from otelgpu.sources.profile import profile_of

NVML_INDEX, MINOR = 52, 55
PROFILE = re.compile(r"\d+g\.\d+gb.*", re.ASCII)


class InstanceSeen(NamedTuple):
    """A GPU instance as the hierarchy has it: DCGM's ids of it and of its GPU, NVML's of it and of its first part.

    Ids are used again: the profile tells one that was made anew in another size.
    """

    entity: int
    gpu: int
    instance_id: int
    compute_id: int | None
    profile: tuple[int, int]  # NVML's number of it, and how many slices it has


class Seen(NamedTuple):
    """What is there: the ids of the GPUs, in DCGM's order, and the instances of all of them."""

    gpus: tuple[int, ...]
    instances: tuple[InstanceSeen, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A GPU and its instances, or why it cannot be told which one it is."""

    itself: Entity
    device: Device | DeviceDownError
    instances: tuple[tuple[Entity, Device], ...] = ()


Told: TypeAlias = Mapping[tuple[Entity, int], int | float | str | Refusal]


def seen(connection: Connection, before: Seen | None) -> Seen:
    """Look what is there; *before* is what was, over the same connection. Raise DcgmError."""
    ids = (c_uint * MOST_GPUS)()
    count = c_int(0)
    connection.ask("dcgmGetAllDevices", ids, ctypes.byref(count))
    return Seen(tuple(ids[: count.value]), _hierarchy(connection, before.instances if before else ()))


def found(connection: Connection, there: Seen) -> list[Found]:
    """Ask who is there. Raise DcgmError when the engine is gone."""
    gpus = [_identified(connection, id_) for id_ in there.gpus]
    told = _live(connection, [gpu.itself for gpu in gpus], (NVML_INDEX, MINOR))
    told |= _live(connection, [(FE_GPU_I, instance.entity) for instance in there.instances], (NAME, UUID))
    return [_completed(gpu, there.instances, told) for gpu in gpus]


def _hierarchy(connection: Connection, before: tuple[InstanceSeen, ...]) -> tuple[InstanceSeen, ...]:
    """List the GPU instances; none where the engine has none to tell of, those *before* where it only fails to."""
    hierarchy = MigHierarchy(version=version_of(MigHierarchy))
    try:
        connection.ask("dcgmGetGpuInstanceHierarchy", ctypes.byref(hierarchy))
    except DcgmError as error:
        if error.code in DISCONNECTED:
            raise
        return () if gap_of(error.code) is Gap.UNSUPPORTED else before
    entries = hierarchy.entityList[: hierarchy.count]
    parts: dict[int, list[int]] = {}
    for entry in entries:
        if entry.entity.entityGroupId == FE_GPU_CI:
            parts.setdefault(entry.parent.entityId, []).append(entry.info.nvmlComputeInstanceId)
    return tuple(
        InstanceSeen(
            entity=entry.entity.entityId,
            gpu=entry.parent.entityId,
            instance_id=entry.info.nvmlInstanceId,
            compute_id=min(parts.get(entry.entity.entityId, ()), default=None),
            profile=(entry.info.nvmlMigProfileId, entry.info.nvmlProfileSlices),
        )
        for entry in entries
        if entry.entity.entityGroupId == FE_GPU_I
    )


def _identified(connection: Connection, id_: int) -> Found:
    attributes = DeviceAttributes(version=version_of(DeviceAttributes))
    itself = FE_GPU, id_
    try:
        connection.ask("dcgmGetDeviceAttributes", id_, ctypes.byref(attributes))
    except DcgmError as error:
        if error.code in DISCONNECTED:
            raise
        return Found(itself, DeviceDownError(gap_of(error.code), f"it cannot be identified: {error}"))
    told = attributes.identifiers
    uuid = _text(told.uuid)
    if not uuid:
        reason = "DCGM does not tell its UUID, so its values could not be told apart"
        return Found(itself, DeviceDownError(Gap.INVALID, reason))
    device = Device(
        uuid=uuid,
        gpu_uuid=uuid,
        index=id_,
        model=_text(told.deviceName),
        pci_bus_id=_text(told.pciBusId),
        serial=_text(told.serial),
        driver_version=_text(told.driverVersion),
        vbios_version=_text(told.vbios),
    )
    return Found(itself, device)


def _completed(gpu: Found, instances: Iterable[InstanceSeen], told: Told) -> Found:
    """Add what the attributes do not hold: NVML's index and the minor number, and the instances."""
    if isinstance(gpu.device, DeviceDownError):
        return gpu
    index = _number(told, gpu.itself, NVML_INDEX)
    device = replace(
        gpu.device,
        index=gpu.device.index if index is None else index,
        minor=_number(told, gpu.itself, MINOR),
    )
    theirs = sorted((each for each in instances if each.gpu == gpu.itself[1]), key=lambda each: each.entity)
    return Found(gpu.itself, device, tuple(_instance(device, each, told) for each in theirs))


def _number(told: Told, entity: Entity, id_: int) -> int | None:
    """Give a number of a device where it is told and can be one."""
    number = told.get((entity, id_))
    field = CATALOGUE[id_]
    return number if isinstance(number, int) and field.lowest <= number <= field.highest else None


def _instance(gpu: Device, instance: InstanceSeen, told: Told) -> tuple[Entity, Device]:
    entity = FE_GPU_I, instance.entity
    name, uuid = (told.get((entity, id_)) for id_ in (NAME, UUID))
    if not isinstance(uuid, str) or not uuid.startswith("MIG-"):
        # Where the engine gives the GPU's or none: the name that NVIDIA's drivers before 470 made of the ids.
        uuid = f"MIG-{gpu.uuid}/{instance.instance_id}/{instance.compute_id or 0}"
    device = replace(
        gpu,
        uuid=uuid,
        profile=_profile(name),
        instance_id=instance.instance_id,
        minor=None,
    )
    return entity, device


def _profile(name: object) -> str:
    """Find the profile in what DCGM calls an instance; "" where it gives the name of the GPU, or none."""
    profile = profile_of(name) if isinstance(name, str) else ""
    return profile if PROFILE.fullmatch(profile) else ""


def _live(
    connection: Connection, entities: Sequence[Entity], ids: Sequence[int]
) -> dict[tuple[Entity, int], int | float | str | Refusal]:
    """Have the driver asked at once for fields that are not watched."""
    if not entities:
        return {}
    try:
        answers = list(Call(entities, ids, LIVE_DATA).ask(connection))
    except DcgmError as error:
        if error.code in DISCONNECTED:
            raise
        return {}
    return {(entity, id_): judged(value, CATALOGUE[id_]) for entity, id_, value in answers if id_ in ids}


def _text(raw: bytes) -> str:
    text = text_of(raw)
    return "" if blank_text(text) else text
