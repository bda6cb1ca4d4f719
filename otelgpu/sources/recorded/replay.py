"""The source that answers as a recording does: a sweep of the file for each sweep that is made, the last one for ever.

Rule 1: what a recorded GPU did not answer is missing here for the recorded reason; what was not asked of it is unknown.
Rule 2: where the driver hung when it was recorded, here nothing does: the GPU is down at once, with Gap.TIMEOUT.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath

from otelgpu.errors import SourceDownError
from otelgpu.fields import Field
from otelgpu.model import Device, Gap, Reading, Sample, SourceFacts
from otelgpu.sources import DeviceDownError
from otelgpu.sources.recorded.form import Down, Recording, Slot, load, reading_of, sample_of

NAME = "replay"
UNKNOWN = Down(Gap.FAILED, "the recording does not say which GPU it is")


class ReplaySource:
    """A Source whose answers were recorded in the file at *path*. Raise RecordingError when that cannot be replayed."""

    def __init__(self, fields: Iterable[Field], path: str) -> None:
        self._recording: Recording = load(path)
        self.want(fields)
        self._name = PurePath(path).name
        self._at = -1

    def want(self, fields: Iterable[Field]) -> None:
        """Give other fields from now on."""
        self._wanted = {field.id: field for field in fields}

    @property
    def readable(self) -> frozenset[int]:
        """The fields that were asked for when it was recorded."""
        return self._recording.fields

    @property
    def has_processes(self) -> bool:
        """Whether it was asked which processes are on the GPUs."""
        return any(slot.used for sweep in self._recording.sweeps for slot in sweep.slots)

    def count(self) -> int:
        """Go on to the next recorded sweep."""
        sweeps = self._recording.sweeps
        self._at = min(self._at + 1, len(sweeps) - 1)
        if sweeps[self._at].down:
            raise SourceDownError(sweeps[self._at].down)
        return len(sweeps[self._at].slots)

    def device(self, slot: int) -> Device:
        """Say which GPU was in a slot."""
        return self._slot(slot)[1]

    def read(self, slot: int) -> Sample:
        """Give what the GPU in a slot answered."""
        found, device = self._slot(slot)
        if found.down is not None:
            raise DeviceDownError(found.down.gap, found.down.reason)
        return sample_of(found, device, self._wanted)

    def so_far(self, slot: int, reason: str) -> None:
        """Say that nothing is under way: every answer is there at once."""

    def heard(self, device: Device) -> Sequence[Reading]:
        """Give what was told of a GPU that did not answer."""
        told = self._recording.sweeps[self._at].heard.get(device.uuid, ()) if self._at >= 0 else ()
        return [reading for one in told if (reading := reading_of(one, device, self._wanted)) is not None]

    def facts(self) -> SourceFacts:
        """Say what the recorded driver said of itself, and that this is a replay."""
        facts = self._recording.sweeps[max(self._at, 0)].facts
        return replace(facts, name=NAME, detail=self._name)

    def close(self) -> None:
        """Do nothing: there is no driver to let go of."""

    def _slot(self, slot: int) -> tuple[Slot, Device]:
        found = self._recording.sweeps[self._at].slots[slot]
        if found.device is None:
            down = found.down or UNKNOWN
            raise DeviceDownError(down.gap, down.reason)
        return found, found.device
