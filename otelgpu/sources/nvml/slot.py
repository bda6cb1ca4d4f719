"""One GPU as it was opened: what reads it, and what has been answered.

Rule 1: all of it belongs to the thread that opened the slot; others look at `answers` and `there` while they grow.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from otelgpu.model import Device, DeviceUse, Missing, Reading, Sample
from otelgpu.sources.nvml.gpm import GpmWindow
from otelgpu.sources.nvml.handles import Handle
from otelgpu.sources.nvml.mig import Instance, Layout
from otelgpu.sources.nvml.plan import Answer, Plan


class UseQuestions(Protocol):
    """What asks who uses a device (`uses.Uses`, which costs memory that is spent only where it is wanted)."""

    def ask(self, beside: Sequence[Handle] = ()) -> DeviceUse:
        """Ask once, also those *beside*. Raise DeviceDownError when the device is gone."""


UseMaker: TypeAlias = Callable[[Device, Handle], UseQuestions]


@dataclass(slots=True)
class Readers:
    """What reads one device; made anew when the device (or its fields) change."""

    plan: Plan
    gpm: GpmWindow | None
    uses: UseQuestions | None = None
    edition: int = 0  # of what is wanted
    _profiled: list[Answer] = field(default_factory=list)

    def answers(self) -> list[Answer]:
        """Ask once. The plan, which has the questions that take long, comes last."""
        self._profiled = []
        self.plan.clear()  # or a call that hangs now would leave the last sweep's answers to be looked at
        self._profiled = [] if self.gpm is None else self.gpm.answers()
        return self.plan.answers() + self._profiled

    def so_far(self) -> list[Answer]:
        """Give what has been answered of `answers` under way; called by another thread."""
        return self.plan.so_far() + self._profiled

    def used(self, beside: Sequence[Handle] = ()) -> list[DeviceUse]:
        """Ask who uses the device, where that is wanted. *beside* are the other compute instances of a GPU instance."""
        return [] if self.uses is None else [self.uses.ask(beside)]

    def free(self) -> None:
        if self.gpm is not None:
            self.gpm.free()


@dataclass(slots=True)
class Slot:
    """One GPU as it was opened. Its own readers are others with MIG on, and with instances."""

    connection: int
    look: int
    handle: Handle
    device: Device
    edition: int  # of what was wanted when it was last read
    no_gpm: str | None  # why there is no GPM
    mig: Layout
    is_read: bool = False  # just now, or for ever: the thread may be stuck
    began: float = 0.0  # when that began, by the source's clock
    answers: list[Answer] = field(default_factory=list)  # of the read that is under way, or was last
    asked: Readers | None = None  # the GPU's own, while they ask
    there: list[Device] = field(default_factory=list)  # the instances of these answers
    own: tuple[tuple[bool, bool], Readers] | None = None
    instances: dict[Instance, Readers] = field(default_factory=dict)

    def free(self) -> None:
        """Give the sample objects back. The readers are made anew when they are wanted again."""
        own, self.own = self.own, None
        instances, self.instances = self.instances, {}
        for readers in (*([own[1]] if own is not None else []), *instances.values()):
            readers.free()


def sample_of(
    device: Device, there: Iterable[Device], answers: Sequence[Answer], used: Iterable[DeviceUse] = ()
) -> Sample:
    """Sort the answers of one read."""
    return Sample(
        device,
        tuple(there),
        tuple(answer for answer in answers if isinstance(answer, Reading)),
        tuple(answer for answer in answers if isinstance(answer, Missing)),
        tuple(used),
    )
