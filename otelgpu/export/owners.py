"""Points that are about an owner: made from the snapshot and the table of owners on the way out.

Rule 1: they never pass the SDK: it would remember every pod that ever ran.
Rule 2: who holds a device is known without the driver, so these points are there also while a GPU does not answer.
        What it is used for is not: without fresh readings there is no state.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Protocol

from opentelemetry.sdk.metrics.export import Gauge, Metric, NumberDataPoint

from otelgpu.export.join import holders
from otelgpu.model import Attributes, Device, Gap, Owner, OwnerKind, Owners, Snapshot

GPU_OWNER = "otelgpu.gpu.owner"
GPU_ALLOCATED = "otelgpu.gpu.allocated"
GPU_STATE = "otelgpu.gpu.state"
RENAMED = "otelgpu.pod_labels.renamed"

IDLE_MEMORY = 64 * 1024 * 1024  # bytes; a CUDA context alone takes more, a display and the driver's own less
_GPU_ACTIVITY = (203, 1001)  # GPU_UTIL, PROF_GR_ENGINE_ACTIVE
_INSTANCE_ACTIVITY = (1001,)  # a GPU_UTIL here would be the whole GPU's, repeated
_MEMORY_USED = 252  # FB_USED
_NANOSECONDS = 1_000_000_000


class State(StrEnum):
    """What a device is used for, as far as Kubernetes and the readings of this moment tell."""

    UNALLOCATED = "unallocated"
    ALLOCATED_IDLE = "allocated_idle"
    IN_USE = "in_use"
    USED_OUTSIDE = "used_outside_kubernetes"


class OwnerLabels(Protocol):
    """A naming scheme that can name a device together with its owner."""

    def owner_labels(self, device: Device, owner: Owner) -> Attributes:
        """List the labels of one point."""

    def use_labels(self, device: Device, owner: Owner) -> Attributes:
        """List the labels of what an owner uses of a device."""

    def device_labels(self, device: Device) -> Attributes:
        """List the labels by which a device is known."""

    def renamed_labels(self, owners: Owners) -> int | None:
        """Count the pod labels that are shown under another name than their own; None where that says nothing."""


def metrics_of_owners(join: OwnerLabels, snapshot: Snapshot, owners: Owners, *, shown: bool = True) -> Iterator[Metric]:
    """Give every metric that is about owners; no state unless the readings of *snapshot* may be *shown*."""
    yield from owner_metrics(join, snapshot, owners)
    if shown:
        yield from state_metrics(join, snapshot, owners)


def owner_metrics(join: OwnerLabels, snapshot: Snapshot, owners: Owners) -> Iterator[Metric]:
    """Give what follows from the identities of snapshot and owners alone; nothing where nobody is asked for owners."""
    devices = snapshot.devices()
    owned = [
        (join.owner_labels(devices[uuid], owner), 1)
        for uuid in owners.by_device
        if uuid in devices
        for owner in holders(owners.shown(uuid))
    ]
    if owned:
        text = "Who holds a GPU or MIG instance, a series for each owner; always 1. To be joined on."
        yield _metric(GPU_OWNER, text, owned, snapshot)
    if owners.pods_known:
        allocated = [(join.device_labels(device), int(_is_held(device, owners))) for device in allocatable(snapshot)]
        yield _metric(GPU_ALLOCATED, "Whether a pod holds a GPU or MIG instance: 1 or 0.", allocated, snapshot)
    renamed = join.renamed_labels(owners)
    if renamed is not None:
        text = "Labels of pods that are shown with pod_label_ before their name, because the name is taken."
        yield _metric(RENAMED, text, [((), renamed)], snapshot)


def state_metrics(join: OwnerLabels, snapshot: Snapshot, owners: Owners) -> Iterator[Metric]:
    """Give the state of each device by the readings of *snapshot*: 1 for the one it is in, 0 for the others."""
    devices = allocatable(snapshot)
    points = [
        ((*join.device_labels(device), ("state", each.value)), int(each is state))
        for device, state in zip(devices, states(devices, snapshot, owners), strict=True)
        if state is not None
        for each in State
    ]
    if points:
        text = "What a GPU or MIG instance is used for at this moment: 1 for its state, 0 for the others."
        yield _metric(GPU_STATE, text, points, snapshot)


def uses_of(join: OwnerLabels, snapshot: Snapshot, owners: Owners) -> Iterable[Metric]:
    """Give what each owner uses; nothing where processes are not asked about."""
    if not snapshot.used:
        return ()
    from otelgpu.export.uses import use_metrics  # here: it costs memory that is spent only where it is wanted

    return use_metrics(join, snapshot, owners)


def allocatable(snapshot: Snapshot) -> list[Device]:
    """List the devices that can be held: a GPU that is partitioned is held in parts."""
    devices = snapshot.devices().values()
    partitioned = {device.gpu_uuid for device in devices if device.instance_id is not None}
    whole = (device for device in devices if device.uuid not in partitioned)
    return sorted(whole, key=lambda device: (device.index, -1 if device.instance_id is None else device.instance_id))


def states(devices: Iterable[Device], snapshot: Snapshot, owners: Owners) -> tuple[State | None, ...]:
    """Tell the state of each of these devices; None where the readings do not tell it, or nobody knows the pods."""
    read: dict[str, dict[int, float]] = {}
    for id_ in (*_GPU_ACTIVITY, _MEMORY_USED) if owners.pods_known else ():
        for key, number in snapshot.numbers.get(id_, {}).items():
            read.setdefault(snapshot.series[key].device.uuid, {})[id_] = number
    found: list[State | None] = []
    never: frozenset[tuple[int, str]] | None = None  # looked up where it matters, which is seldom
    for device in devices:
        numbers = read.get(device.uuid)
        if numbers is None:
            found.append(None)
            continue
        asked = _GPU_ACTIVITY if device.instance_id is None else _INSTANCE_ACTIVITY
        activity = max((numbers[id_] for id_ in asked if id_ in numbers), default=None)
        memory = numbers.get(_MEMORY_USED)
        if activity is None and memory is not None:
            never = _never_told(snapshot) if never is None else never
            if all((id_, device.uuid) in never or (id_, device.gpu_uuid) in never for id_ in asked):
                activity = memory > IDLE_MEMORY  # the next best that can be known
        found.append(_state(activity, memory, is_held=_is_held(device, owners)))
    return tuple(found)


def _never_told(snapshot: Snapshot) -> frozenset[tuple[int, str]]:
    """List which activity is not told for good, by whom: none by an instance of an A100."""
    return frozenset(
        (gap.field.id, gap.device.uuid)
        for gap in snapshot.missing
        if gap.gap is Gap.UNSUPPORTED and gap.field.id in _GPU_ACTIVITY
    )


def _state(activity: float | None, memory: float | None, *, is_held: bool) -> State | None:
    """Tell the state from the activity (more than 0: something ran) and the bytes in use; None where they do not."""
    is_empty = memory is not None and memory <= IDLE_MEMORY  # no program has the device open for computing
    if is_held:
        if activity is None:
            return State.ALLOCATED_IDLE if is_empty else None
        return State.IN_USE if activity > 0 else State.ALLOCATED_IDLE
    if activity is None and memory is None:
        return None
    return State.USED_OUTSIDE if activity or not (is_empty or memory is None) else State.UNALLOCATED


def _is_held(device: Device, owners: Owners) -> bool:
    return any(owner.kind is OwnerKind.POD for owner in owners.by_device.get(device.uuid, ()))


def _metric(name: str, text: str, points: Iterable[tuple[Attributes, int]], snapshot: Snapshot) -> Metric:
    stamp = int(snapshot.unix * _NANOSECONDS)
    return Metric(name, text, "", Gauge([NumberDataPoint(dict(labels), 0, stamp, value) for labels, value in points]))
