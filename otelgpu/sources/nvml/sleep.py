"""Which GPUs the kernel has suspended, and must not be woken.

Rule 1: what is known comes from sysfs alone: reading `power/runtime_status` wakes nothing, while opening a GPU in NVML
        (nvmlDeviceGetHandleByIndex) or asking over its handle does. nvmlInit and nvmlDeviceGetCount open no GPU.
Rule 2: a GPU that was never opened is known by its place: NVML numbers GPUs by their PCI address, and the kernel lists
        those that NVIDIA's driver drives. Where the two differ in number (a container that is given only some GPUs), or
        an opened GPU was found in another place, nothing is taken for granted: a GPU is opened once, and known then.
Rule 3: what cannot be read is None: such a GPU is asked as if nothing could sleep.
Rule 4: what is known of a slot belongs to the thread of that slot.
"""

import os
import re
from collections.abc import Callable

from otelgpu.model import Device, Gap
from otelgpu.sources import DeviceDownError
from otelgpu.sources.nvml.slot import Slot

ASLEEP = "it is suspended, and asking would wake it; `suspended.wake` has it asked all the same"

_BUS_ID = re.compile(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")
_MOST = 64  # bytes


class Sleep:
    """Tells which GPUs sleep. *root* is where /sys is mounted; None: nobody looks there. *slots* are those opened."""

    def __init__(self, root: str | None, slots: Callable[[], list[Slot]]) -> None:
        self._folder = None if root is None else f"{root}/bus/pci"
        self._slots = slots
        self._states: dict[int, bool | None] = {}  # by slot
        self._is_ordered = True

    def is_asleep(self, bus_id: str) -> bool | None:
        """Say whether the GPU with this PCI bus id is suspended; None where the kernel does not tell."""
        if self._folder is None or not bus_id:
            return None
        path = f"{self._folder}/devices/{_address(bus_id)}/power/runtime_status"
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (OSError, ValueError):  # the driver may have told anything, a NUL too
            return None
        try:
            return os.read(file, _MOST).strip() == b"suspended"
        except OSError:
            return None
        finally:
            os.close(file)

    def sleeper(self, slot: int, known: Slot | None, count: int | None, *, is_current: bool) -> Device | None:
        """Say which GPU sleeps in a slot of *count*; None where none does. *known* was opened there before.

        Unless it *is_current*, another one may be there now. Raise DeviceDownError for one that was never opened.
        """
        before = "" if known is None else known.device.pci_bus_id
        place = before if is_current else self._place(slot, count) or before
        self._states[slot] = self.is_asleep(place)
        if not self._states[slot]:
            return None
        there = [one.device for one in self._slots() if _address(one.device.pci_bus_id) == _address(place)]
        if not there:
            raise DeviceDownError(Gap.SUSPENDED, ASLEEP)
        return there[0]

    def checked(self, slot: int) -> bool | None:
        """Say again whether the GPU in a slot sleeps. Raise DeviceDownError where it does."""
        if self._states.get(slot):
            raise DeviceDownError(Gap.SUSPENDED, ASLEEP)
        return self._states.get(slot)

    def found(self, slot: int, opened: Slot, count: int | None) -> None:
        """Learn from a GPU that was opened whether NVML's order is the kernel's."""
        place, bus_id = self._place(slot, count), opened.device.pci_bus_id
        if place and bus_id and _address(place) != _address(bus_id):
            self._is_ordered = False
        self._states[slot] = self.is_asleep(bus_id)  # of a place that was not known before

    def awake(self) -> list[Slot]:
        """List the opened GPUs that may be asked about."""
        return [one for one in self._slots() if not self.is_asleep(one.device.pci_bus_id)]

    def _place(self, slot: int, count: int | None) -> str:
        """Give the PCI address of the GPU in a slot; "" where it cannot be told."""
        if self._folder is None or not self._is_ordered:
            return ""
        try:
            names = os.listdir(f"{self._folder}/drivers/nvidia")  # noqa: PTH208 - names are wanted, not paths
        except OSError:
            return ""
        listed = sorted(filter(_BUS_ID.fullmatch, names))
        return listed[slot] if slot < len(listed) == count else ""


def _address(bus_id: str) -> str:
    """Write 00000000:8D:00.0 as the kernel does: 0000:8d:00.0. What is no address is left as it is."""
    found = _BUS_ID.fullmatch(bus_id)
    return bus_id if found is None else f"{int(found[1], 16):04x}:{found[2]}".lower()
