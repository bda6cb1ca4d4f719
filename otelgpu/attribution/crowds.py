"""Which owners are shown by themselves where there are too many of them.

Rule 1: everybody who holds a device stays in the table, so that what is held or shared is told truly; the limits say
        whose own series there are: `otelgpu_gpu_owner`, and the copies for jobs and virtual GPUs.
Rule 2: whoever is shown stays so while he is there; free places go by the order of owners, which is fixed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from otelgpu.model import Device, Owner

Table = Mapping[str, tuple[Owner, ...]]  # by the device's own UUID
_Place = tuple[str, Owner]


class Crowds:
    """Keeps to the limits: *per_gpu* owners on a GPU and its instances, *in_all* on all of them."""

    def __init__(self, *, per_gpu: int, in_all: int) -> None:
        self._per_gpu = per_gpu
        self._in_all = in_all
        self._shown: Table = {}

    def shown(self, by_device: Table, devices: Iterable[Device]) -> dict[str, tuple[Owner, ...]]:
        """Give the owners that have series of their own, for those devices where some have none."""
        gpus = {device.uuid: device.gpu_uuid for device in devices}
        counts = Counter(gpus[uuid] for uuid, owners in by_device.items() for _ in owners)
        cut: dict[str, tuple[Owner, ...]] = {}
        if counts.total() > self._in_all or max(counts.values(), default=0) > self._per_gpu:
            kept = self._kept(by_device, gpus)
            for uuid, owners in by_device.items():
                shown = tuple(owner for owner in owners if (uuid, _who(owner)) in kept)
                if len(shown) < len(owners):
                    cut[uuid] = shown
        self._shown = {**by_device, **cut}
        return cut

    def _kept(self, by_device: Table, gpus: Mapping[str, str]) -> set[_Place]:
        """Choose who is shown."""
        before = {(uuid, _who(owner)) for uuid, owners in self._shown.items() for owner in owners}
        places = [(uuid, _who(owner)) for uuid in sorted(by_device) for owner in by_device[uuid]]
        kept: set[_Place] = set()
        taken: Counter[str] = Counter()
        for place in sorted(places, key=lambda place: place not in before):
            gpu = gpus[place[0]]
            if len(kept) < self._in_all and taken[gpu] < self._per_gpu:
                taken[gpu] += 1
                kept.add(place)
        return kept


def _who(owner: Owner) -> Owner:
    """Give an owner without what may be told of him later: he is the same one."""
    return replace(owner, labels=(), pod_uid="")
