"""The MIG instances of a GPU.

Rule 1: looked up at each sweep while MIG is on: a GPU can be partitioned anew at any moment, and NVML uses the ids
        and handles of a destroyed instance again. The UUID tells whether an instance is still the same one.
Rule 2: one device per GPU instance, as dcgm-exporter counts them: of several compute instances the first speaks.
"""

from dataclasses import dataclass
from functools import partial

import pynvml

from otelgpu.model import Device, Gap
from otelgpu.sources.nvml.errors import gap_of, raise_if_whole, text_of, text_or_nothing
from otelgpu.sources.nvml.handles import Handle, address_of


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """A GPU instance and the handle that its first compute instance answers to."""

    device: Device
    handle: Handle


class Layout:
    """How one GPU is partitioned."""

    def __init__(self, handle: Handle, gpu: Device) -> None:
        self._handle = handle
        self._gpu = gpu
        self._can_mig = True
        self._most = 0
        self._known: dict[str, Instance] = {}

    def instances(self) -> dict[str, Instance]:
        """Return the GPU instances there are now, by UUID, in the driver's order. Empty with MIG off."""
        if not self._is_on():
            self._known = {}
            return {}
        if not self._most:
            self._most = pynvml.nvmlDeviceGetMaxMigDeviceCount(self._handle)
        found: dict[str, Instance] = {}
        first: dict[str, Instance] = {}
        ids: set[int | None] = set()
        for index in range(self._most):
            try:
                handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(self._handle, index)
                uuid = text_of(partial(pynvml.nvmlDeviceGetUUID, handle))
                instance = self._known.get(uuid)
                if instance is None or address_of(instance.handle) != address_of(handle):
                    instance = self._identified(handle, uuid)
            except pynvml.NVMLError as error:
                raise_if_whole(error)
                continue  # the place is empty, or was emptied just now
            found[uuid] = instance
            if instance.device.instance_id not in ids:
                ids.add(instance.device.instance_id)
                first[uuid] = instance
        self._known = found
        return first

    def _is_on(self) -> bool:
        if not self._can_mig:
            return False
        try:
            current, _ = pynvml.nvmlDeviceGetMigMode(self._handle)
        except pynvml.NVMLError as error:
            raise_if_whole(error)
            self._can_mig = gap_of(error.value) is not Gap.UNSUPPORTED
            return False
        return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)

    def _identified(self, handle: Handle, uuid: str) -> Instance:
        device = Device(
            uuid=uuid,
            gpu_uuid=self._gpu.uuid,
            index=self._gpu.index,
            model=self._gpu.model,
            pci_bus_id=self._gpu.pci_bus_id,
            serial=self._gpu.serial,
            driver_version=self._gpu.driver_version,
            vbios_version=self._gpu.vbios_version,
            profile=profile_of(text_or_nothing(partial(pynvml.nvmlDeviceGetName, handle))),
            instance_id=pynvml.nvmlDeviceGetGpuInstanceId(handle),
        )
        return Instance(device, handle)


def profile_of(name: str) -> str:
    """Find the GPU instance's profile in a MIG device's name: "NVIDIA A100 MIG 1c.3g.20gb" has "3g.20gb"."""
    profile = name.rpartition("MIG ")[2].strip()
    first, _, rest = profile.partition(".")
    return rest if first.endswith("c") and first[:-1].isdigit() else profile
