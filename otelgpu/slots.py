"""What a round of questions works with: its slots, the answers that come in, and what it gives in the end.

Rule 1: answers and slots are changed under the limit's lock alone.
"""

from dataclasses import dataclass, field

from otelgpu.errors import SourceDownError
from otelgpu.model import Device, GpuState, Sample
from otelgpu.sources import DeviceDownError
from otelgpu.worker import Worker


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one round gave. `reason`: why the source as a whole is down; `is_known` False: not even its size is."""

    reason: str | None
    is_known: bool
    states: list[GpuState]
    samples: list[Sample]


@dataclass(slots=True)
class Slot:
    """One slot's thread and what was last known of the GPU in it."""

    worker: Worker
    layout: int = 0  # the layout in which it was last asked
    device: Device | None = None
    failure: str = ""  # the defect last logged
    took: float | None = None  # seconds of its last answer, when that came after the deadline
    is_slow: bool = False  # and this has been logged


@dataclass(slots=True)
class Answers:
    """What has come in; thrown away with the round when it comes too late."""

    pending: set[int] = field(default_factory=set)
    slots: dict[int, Sample | DeviceDownError | None] = field(default_factory=dict)
    count: int | SourceDownError | None = None
    is_over: bool = False
    began: float = 0.0
