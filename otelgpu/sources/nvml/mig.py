"""The MIG instances of a GPU.

Rule 1: looked up at each sweep while MIG is on: a GPU can be partitioned anew at any moment, and NVML uses the ids
        and handles of a destroyed instance again. The UUID tells whether an instance is still the same one.
        The check is made before an instance is read and again after, for it may change hands in between.
Rule 2: one device per GPU instance, as dcgm-exporter counts them: of several compute instances the first speaks. Only
        of its own processes it knows no others', so who uses the instance is asked of all of them (`beside`).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pynvml

from otelgpu.model import Device, Gap
from otelgpu.sources.again import Again
from otelgpu.sources.nvml.errors import gap_of, raise_if_whole, text_of, text_or_nothing
from otelgpu.sources.nvml.handles import Handle, address_of
from otelgpu.sources.profile import profile_of

LIMIT = 64  # far above any GPU: a driver in trouble may answer anything
MOST = 7  # instances of a GPU, where the driver does not say


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """A GPU instance and the handle that its first compute instance answers to."""

    device: Device
    handle: Handle

    def is_there(self) -> bool:
        """Whether the handle still belongs to this instance."""
        try:
            return text_of(partial(pynvml.nvmlDeviceGetUUID, self.handle)) == self.device.uuid
        except pynvml.NVMLError as error:
            raise_if_whole(error)
            return False


class Layout:
    """How one GPU is partitioned. `is_on`: whether MIG was on when `instances` was last called."""

    def __init__(self, handle: Handle, gpu: Device) -> None:
        self.is_on = False
        self._again = Again(time.monotonic)
        self._handle = handle
        self._gpu = gpu
        self._can_mig = True
        self._most = 0
        self._known: dict[str, Instance] = {}
        self._beside: dict[int | None, list[Handle]] = {}

    def instances(self) -> list[Instance]:
        """List the GPU instances there are now, in the driver's order. Empty with MIG off."""
        self._look()
        found: dict[str, Instance] = {}
        first: dict[int | None, Instance] = {}
        self._beside = {}
        for index in range(self._places() if self.is_on else 0):
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
            if first.setdefault(instance.device.instance_id, instance) is not instance:
                self._beside.setdefault(instance.device.instance_id, []).append(handle)
        self._known = found
        return list(first.values())

    def beside(self, instance: Instance) -> Sequence[Handle]:
        """List the other compute instances of a GPU instance, as they were when `instances` was last called."""
        return self._beside.get(instance.device.instance_id, ())

    def _look(self) -> None:
        """See whether MIG is on; an error that may pass leaves that as it was."""
        if not self._can_mig:
            if not self._again.is_due():
                return
            self._can_mig = True
        try:
            current, _ = pynvml.nvmlDeviceGetMigMode(self._handle)
        except pynvml.NVMLError as error:
            raise_if_whole(error)
            self._can_mig = gap_of(error.value) is not Gap.UNSUPPORTED
            if not self._can_mig:
                self._again.refused()
        else:
            self.is_on = current == pynvml.NVML_DEVICE_MIG_ENABLE

    def _places(self) -> int:
        if not self._most:  # 0 until MIG is on
            try:
                places = pynvml.nvmlDeviceGetMaxMigDeviceCount(self._handle)
                self._most = places if places <= LIMIT else MOST
            except pynvml.NVMLError as error:
                raise_if_whole(error)
                return MOST
        return self._most

    def _identified(self, handle: Handle, uuid: str) -> Instance:
        instance_id = pynvml.nvmlDeviceGetGpuInstanceId(handle)
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
            instance_id=instance_id,
            placement=self._placement(instance_id),
        )
        return Instance(device, handle)

    def _placement(self, instance_id: int) -> int | None:
        """Ask for the memory slice that an instance begins at; None where the driver does not say (it tells root)."""
        try:
            instance = pynvml.nvmlDeviceGetGpuInstanceById(self._handle, instance_id)
            return int(pynvml.nvmlGpuInstanceGetInfo(instance).placement.start)
        except pynvml.NVMLError as error:
            raise_if_whole(error)
            return None
