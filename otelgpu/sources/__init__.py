"""HOW a field is read: the Source protocol that every way to ask GPUs fulfils.

A source numbers the GPUs it sees in slots 0..count-1, as the driver does. The sampler calls `count` in one thread of
its own and `device`/`read` of a slot in the thread of that slot: never two calls for one slot at a time, but for a slot
whose thread is stuck when the count changes: it gets a new thread. Any call may hang with the driver; nothing outside
its thread waits for it for longer than the deadline.
"""

from collections.abc import Sequence
from typing import Protocol

from otelgpu.errors import OtelgpuError
from otelgpu.model import Device, Gap, Reading, Sample, SourceFacts


class DeviceDownError(OtelgpuError):
    """The GPU in a slot cannot be asked at all; `gap` and the text say why."""

    def __init__(self, gap: Gap, reason: str) -> None:
        super().__init__(reason)
        self.gap = gap


class Source(Protocol):
    """One way to put questions to the GPUs of this machine."""

    def count(self) -> int:
        """Connect where that is still to be done and say how many slots there are. Raise SourceDownError.

        Called before each sweep. Where the answer (or an error met since) says that slots may have changed hands,
        the next `device` call of every slot looks again.
        """

    def device(self, slot: int) -> Device:
        """Say which GPU is in a slot. Asks the driver only when the slot is new or may have changed hands.

        Raise DeviceDownError when it cannot be told.
        """

    def read(self, slot: int) -> Sample:
        """Put every planned question to the GPU in a slot and to its MIG instances.

        A question that failed is a Missing, not an exception. Raise DeviceDownError when the GPU as a whole is gone.
        """

    def so_far(self, slot: int, reason: str) -> Sample | None:
        """Give what the `read` of a slot that is under way has been answered by now; None where there is nothing.

        Every planned field without an answer is a Missing(timeout) with this *reason*. Called in the sampler's own
        thread; the driver is not asked.
        """

    def heard(self, device: Device) -> Sequence[Reading]:
        """Give what the driver told of a GPU without being asked (its last XID), also of one that does not answer.

        Called in the sampler's own thread, for GPUs that are down; the driver is not asked.
        """

    def facts(self) -> SourceFacts:
        """Say what is known so far, without asking the driver."""

    def close(self) -> None:
        """Let go of the driver. Called when no other call is under way. Safe to call twice.

        Raise SourceDownError when the driver holds a thread of the source's own.
        """
