"""The GPUs and MIG instances that this process may see: CUDA_VISIBLE_DEVICES, else NVIDIA_VISIBLE_DEVICES.

Rule 1: the variables mean here what they mean to CUDA and to the container runtime. NVML numbers GPUs by PCI bus id,
        as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID (with GPUs of one model there is no difference).
Rule 2: what is not visible is not asked: a GPU that no entry names is not chosen, and of a GPU that is partitioned
        only the visible instances are shown. They share its health, so that is asked too, and passed on unshown.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from otelgpu.model import Device, Reading, Sample, SourceFacts
from otelgpu.sources import Source

CUDA = "CUDA_VISIBLE_DEVICES"
NVIDIA = "NVIDIA_VISIBLE_DEVICES"

_NOTHING = frozenset({"none", "void", ""})
_INDEX = re.compile(r"([0-9]{1,4})(?::([0-9]{1,4}))?")
_UUID = re.compile(r"(?:gpu|mig)-[0-9a-z/-]+")
_OLD_MIG = re.compile(r"mig-(gpu-[0-9a-z-]+)/([0-9]+)/[0-9]+")


@dataclass(frozen=True, slots=True)
class Entry:
    """One visible device: a number (with that of a MIG instance), or how a UUID begins, in small letters."""

    index: int | None = None
    instance: int | None = None
    uuid: str = ""

    def is_on(self, gpu: Device) -> bool:
        """Whether this may be the GPU or one of its instances. The UUID of an instance does not tell its GPU."""
        if self.index is not None:
            return self.index == gpu.index
        old = _OLD_MIG.fullmatch(self.uuid)
        if old is not None:
            return gpu.uuid.lower().startswith(old[1])
        return self.uuid.startswith("mig-") or gpu.uuid.lower().startswith(self.uuid)

    def picks(self, device: Device, place: int | None) -> bool:
        """Whether this is the device (then all of it): a GPU (*place* None) or an instance in its *place* there."""
        if self.index is not None:
            return self.index == device.index and self.instance == place
        old = _OLD_MIG.fullmatch(self.uuid)
        if old is not None:
            return device.gpu_uuid.lower().startswith(old[1]) and device.instance_id == int(old[2])
        return device.uuid.lower().startswith(self.uuid)


@dataclass(frozen=True, slots=True)
class Visible:
    """What is visible. `is_runtime`: said by the container runtime, whose numbers are those of the host."""

    entries: tuple[Entry, ...]
    is_runtime: bool = False


def visible(environ: Mapping[str, str]) -> Visible | None:
    """Read the variables; None when neither says anything, so that every GPU is visible."""
    text = environ.get(CUDA)
    if text is not None:
        return Visible(tuple(_until_invalid(text)))
    text = environ.get(NVIDIA)
    if text is None or text.strip().lower() == "all":
        return None
    if text.strip().lower() in _NOTHING:
        return Visible(())
    return Visible(tuple(entry for entry in map(_entry, text.split(",")) if entry is not None), is_runtime=True)


def _until_invalid(text: str) -> Iterator[Entry]:
    """CUDA reads up to the first entry that names no device, such as -1."""
    for piece in text.split(","):
        entry = _entry(piece)
        if entry is None:
            return
        yield entry


def _entry(text: str) -> Entry | None:
    text = text.strip().lower()
    if number := _INDEX.fullmatch(text):
        return Entry(index=int(number[1]), instance=None if number[2] is None else int(number[2]))
    return Entry(uuid=text) if _UUID.fullmatch(text) else None


class VisibleSource:
    """A Source that gives, of another, only what is visible. `is_chosen` is for the sampler.

    *shared* are ids of fields whose readings a GPU passes on for its visible instances; `shows` tells them apart.
    """

    def __init__(
        self, source: Source, seen: Visible, chosen: Callable[[Device], bool], shared: AbstractSet[int] = frozenset()
    ) -> None:
        self._source = source
        self._shared = shared
        self._seen = seen
        self._chosen = chosen
        self._count = 0

    def is_chosen(self, gpu: Device) -> bool:
        """Whether any of a GPU is visible and it was chosen otherwise too."""
        return self._chosen(gpu) and (self._is_narrowed or any(entry.is_on(gpu) for entry in self._seen.entries))

    def shows(self, device: Device) -> bool:
        """Whether points of a device may be shown; of instances it gives none that may not."""
        is_instance = device.instance_id is not None
        return is_instance or self._is_narrowed or any(entry.picks(device, None) for entry in self._seen.entries)

    @property
    def _is_narrowed(self) -> bool:
        """Whether the runtime has hidden the rest, also from NVML: then its numbers are not the host's any more."""
        numbered = [entry for entry in self._seen.entries if entry.index is not None and entry.instance is None]
        return self._seen.is_runtime and len(numbered) == len(self._seen.entries) >= self._count

    def count(self) -> int:
        """Count the GPUs, visible or not; see the protocol."""
        self._count = self._source.count()
        return self._count

    def device(self, slot: int) -> Device:
        """Say which GPU is in a slot; see the protocol."""
        return self._source.device(slot)

    def read(self, slot: int) -> Sample:
        """Read a GPU, and leave away what is not visible of it."""
        return self._visible(self._source.read(slot))

    def so_far(self, slot: int, reason: str) -> Sample | None:
        """Give what is visible of a read under way; see the protocol."""
        sample = self._source.so_far(slot, reason)
        return None if sample is None else self._visible(sample)

    def heard(self, device: Device) -> Sequence[Reading]:
        """Give what the source heard of a GPU; see the protocol."""
        return self._source.heard(device) if self.shows(device) else ()

    def _visible(self, sample: Sample) -> Sample:
        if self.shows(sample.device):
            return sample
        shown = {
            instance.uuid
            for place, instance in enumerate(sample.instances)
            if any(entry.picks(instance, place) for entry in self._seen.entries)
        }
        return replace(
            sample,
            instances=tuple(instance for instance in sample.instances if instance.uuid in shown),
            readings=tuple(one for one in sample.readings if one.device.uuid in shown or one.field.id in self._shared),
            missing=tuple(gap for gap in sample.missing if gap.device.uuid in shown or gap.field.id in self._shared),
        )

    def facts(self) -> SourceFacts:
        """Say what the source knows."""
        return self._source.facts()

    def close(self) -> None:
        """Let go of the driver."""
        self._source.close()
