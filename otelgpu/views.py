"""Which series of a GPU and of its MIG instances are shown, as `devices` and `mig.parent_values` say.

Rule 1: a view takes away, and says on which devices a value of the whole GPU stands; it changes no value.
Rule 2: texts are never taken away: they are labels of what is shown.
Rule 3: an instance that is asked for and is not there is logged once, and again once it has been there.
"""

import logging
from typing import NamedTuple

from otelgpu.config import Pick
from otelgpu.config.picks import INSTANCES
from otelgpu.model import Device, Missing, Reading, Sample

logger = logging.getLogger(__name__)


class Shown(NamedTuple):
    """What is shown of one GPU: itself, and which of its instances; *repeated*: they get its values too."""

    gpu: bool
    instances: tuple[Device, ...]
    repeated: bool

    def readings(self, sample: Sample) -> list[Reading]:
        """List the readings that are shown."""
        shown: list[Reading] = []
        for reading in sample.readings:
            if isinstance(reading.number, str):
                shown.append(reading)
            elif reading.device is not sample.device:
                if reading.device in self.instances:
                    shown.append(reading)
            else:
                if self.gpu:
                    shown.append(reading)
                if self.repeated:
                    shown.extend(reading._replace(device=instance) for instance in self.instances)
        return shown

    def missing(self, sample: Sample) -> list[Missing]:
        """List what is missing of what is shown."""
        has_own = self.gpu or (self.repeated and bool(self.instances))
        return [
            gap for gap in sample.missing if (gap.device in self.instances if gap.device != sample.device else has_own)
        ]


class View:
    """What *picks* show. With *repeat* a GPU's values stand on its instances instead of on itself, where it has any."""

    def __init__(self, picks: tuple[Pick, ...] = (Pick.all(),), *, repeat: bool = False) -> None:
        self._picks = picks
        self._repeat = repeat
        self._is_plain = not repeat and all(pick.gpus and pick.parts for pick in picks)
        self._absent: set[int] = set()  # numbers of instances that are asked for and not there

    def of(self, sample: Sample) -> Shown | None:
        """Say what of a GPU is shown; None: all that it told, as it is."""
        if self._is_plain:
            return None
        gpu = sample.device
        picks = [
            pick for pick in self._picks if pick.matches(index=gpu.index, uuid=gpu.uuid, pci_bus_id=gpu.pci_bus_id)
        ]
        places = {instance: place for place, instance in enumerate(sorted(sample.instances, key=_numbering))}
        shown = tuple(
            instance
            for instance in sample.instances
            if any(pick.has_part(index=gpu.index, place=places[instance]) for pick in picks)
        )
        self._tell(gpu.index, len(places), picks)
        moved = self._repeat and bool(sample.instances)  # to the instances
        is_whole = any(pick.gpus and not (moved and pick.parts) for pick in picks)
        return Shown(is_whole, shown, self._repeat)

    def _tell(self, index: int, count: int, picks: list[Pick]) -> None:
        first = INSTANCES * index
        own = range(first, first + INSTANCES)
        asked = {number for number in own if any(number in pick.numbers for pick in picks if pick.numbers is not None)}
        absent = {number for number in asked if number >= first + count}
        if news := sorted(absent - self._absent):
            named = ",".join(map(str, news))
            which = "that number" if len(news) == 1 else "these numbers"
            logger.error("devices: i:%s: GPU %d has %d instances, not one of %s", named, index, count, which)
        self._absent = (self._absent - asked) | absent


def _numbering(instance: Device) -> tuple[bool, int, int]:
    """Order instances as DCGM counts them: by profile, the smaller ones first, then by their own ids.

    Seen on pages of an A100 with 2g.10gb under id 5 behind three of 1g.5gb under 7, 8 and 9. Profiles with media
    extensions (1g.10gb+me) have higher numbers than all of the plain ones (nvml.h).
    """
    slices = instance.profile.partition("g")[0]
    return "+" in instance.profile, int(slices) if slices.isdecimal() else 0, instance.instance_id or 0
