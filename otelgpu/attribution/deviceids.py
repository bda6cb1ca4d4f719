"""Which device an id from the kubelet means, in every form in which device plugins hand them out.

Rule 1: the forms are told apart by what they are, not by a setting, and looked up among the devices of a snapshot: the
        driver is never asked for an id.
Rule 2: an id that means no device, or could mean two, means none: a wrong owner is worse than no owner.

    GPU-<uuid>  MIG-<uuid>                 NVIDIA's plugin
    MIG-GPU-<parent uuid>/<gi>/<ci>        the same, with drivers before R470
    <any of these>::<n>  <any>-<n>         a replica (time-slicing, MPS; HAMi and forks)
    nvidia<N>  nvidia<N>/gi<M>             GKE's plugin; N is the minor number of /dev/nvidiaN
    nvidia<N>/vgpu<K>  nvidia<N>/gi<M>/vgpu<K>
    <index>                                plugins that count as nvidia-smi does
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from otelgpu.attribution.slices import SliceDevice
from otelgpu.model import Device

_OLD_MIG = re.compile(r"MIG-(GPU-.+)/([0-9]+)/[0-9]+")
_GKE = re.compile(r"nvidia([0-9]+)(?:/gi([0-9]+))?(?:/vgpu([0-9]+))?")
_REPLICA = re.compile(r"(.+?)(?:::|-)([0-9]+)")
_INDEX = re.compile(r"[0-9]{1,4}")
_LONGEST = 256  # characters; the longest id of any plugin has some 50

Key = str | tuple[str, int | None]  # a UUID, an index as text, or a GPU by UUID or device file with a GPU instance


class Found(NamedTuple):
    """The device that an id means, and the replica of it where the id names one ("" otherwise)."""

    device: Device
    vgpu: str


class DeviceIds:
    """The devices that there are, by everything they may be called."""

    def __init__(self, devices: Iterable[Device]) -> None:
        self.devices = tuple(sorted(devices, key=lambda device: (device.index, device.instance_id or -1)))
        self._by_key: dict[Key, Device | None] = {}
        files = {device.uuid: _file(device) for device in self.devices}
        for device in self.devices:
            for key in _keys(device, files.get(device.gpu_uuid, "")):
                known = self._by_key.setdefault(key, device)
                if known is not device:
                    self._by_key[key] = None

    def find(self, text: str) -> Found | None:
        """Find what an id means; None when it means no device here."""
        for key, vgpu in _meanings(text):
            device = self._by_key.get(key)
            if device is not None:
                return Found(device, vgpu)
        return None

    def claimed(self, claimed: SliceDevice) -> Device | None:
        """Find a device of a ResourceSlice: by its UUID, or as the part of its parent that begins at a memory slice."""
        if claimed.uuid or not claimed.parent:
            return self._by_key.get(claimed.uuid)
        parts = [
            device
            for device in self.devices
            if (device.gpu_uuid, device.profile) == (claimed.parent, claimed.profile) and device.instance_id is not None
        ]
        # Where the driver does not tell the place, an instance is known as the only one of its kind, or not at all.
        found = [part for part in parts if part.placement in (None, claimed.start)]
        return found[0] if len(found) == 1 else None

    def numbered(self, index: int, instance_id: int | None) -> Device | None:
        """Find the GPU with this number, or its GPU instance."""
        return self._by_key.get((str(index), instance_id))


def _keys(device: Device, file: str) -> Iterator[Key]:
    yield device.uuid
    yield str(device.index), device.instance_id
    yield device.gpu_uuid, device.instance_id
    if file:
        yield file, device.instance_id


def _file(gpu: Device) -> str:
    return "" if gpu.minor is None else f"nvidia{gpu.minor}"  # its index is often the same, and need not be


def _meanings(text: str) -> Iterator[tuple[Key, str]]:
    """Give what an id can mean, the most literal first, each with the replica it would name."""
    yield text, ""
    if len(text) > _LONGEST:
        return
    if match := _GKE.fullmatch(text):
        instance = None if match[2] is None else int(match[2])
        yield (f"nvidia{match[1]}", instance), match[3] or ""
    elif match := _OLD_MIG.fullmatch(text):
        yield (match[1], int(match[2])), ""
    elif _INDEX.fullmatch(text):
        yield (text, None), ""
    elif match := _REPLICA.fullmatch(text):
        for key, _ in _meanings(match[1]):
            yield key, match[2]
