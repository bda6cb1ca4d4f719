"""What the driver tells between two sweeps, and what is counted of it.

Rule 1: nothing is begun, and no call made, for what nobody wants.
Rule 2: what was once listened to is listened to on, or a count that is wanted again would have missed something; but
        clocks, which cost questions, are left alone meanwhile.
Rule 3: counts are given with the events they come from: while those cannot be heard there is none, or a standing number
        would look like a quiet time.
"""

from collections.abc import Callable, Iterable, Sequence

from otelgpu.counts import CLOCK_COUNTS, XID_COUNTS, Counting, XidCounts
from otelgpu.events import Told, Xid, unheard
from otelgpu.fields import Field
from otelgpu.model import Device, Missing, Reading
from otelgpu.sources.nvml.clocks import ClockEvents
from otelgpu.sources.nvml.events import XidEvents
from otelgpu.sources.nvml.plan import Answer
from otelgpu.sources.nvml.questions import XID_ERRORS
from otelgpu.sources.nvml.slot import Slot

COUNTED = XID_COUNTS | CLOCK_COUNTS


class Counted:
    """Listens for what is wanted to be counted. `answers` is called in the thread of the GPU's slot."""

    def __init__(self, clock: Callable[[], float], is_asleep: Callable[[str], bool | None]) -> None:
        self._clock = clock
        self._is_asleep = is_asleep
        self._xids = XidCounts((), Counting(), clock)
        self._events: XidEvents | None = None
        self._clocks: ClockEvents | None = None
        self._told: Told = unheard
        self._last: Field | None = None
        self._xid_fields: list[Field] = []
        self._wants_clocks = False

    def want(self, fields: Iterable[Field], counting: Counting, told: Told) -> None:
        """Count for other fields from now on. What has been counted stays."""
        wanted = tuple(fields)
        self._told = told
        self._last = next((field for field in wanted if field.id == XID_ERRORS), None)
        self._xid_fields = [field for field in wanted if field.id == XID_ERRORS or field.id in XID_COUNTS]
        self._xids.want(wanted, counting)
        if self._xid_fields and self._events is None:
            self._events = XidEvents(self._clock, self._take)
        if self._clocks is not None:
            self._clocks.want(wanted, counting)
        elif any(field.id in CLOCK_COUNTS for field in wanted):
            self._clocks = ClockEvents(wanted, counting, self._clock, self._is_asleep)
        self._wants_clocks = any(field.id in CLOCK_COUNTS for field in wanted)

    def answers(self, known: Slot) -> list[Answer]:
        """Give the counts of a GPU, or why there are none. Raise DeviceDownError when it is gone."""
        of_clocks: list[Answer] = []
        if self._clocks is not None and self._wants_clocks:
            of_clocks = self._clocks.answers(known.handle, known.device)
        return of_clocks + self._xid_answers(known)

    def _xid_answers(self, known: Slot) -> list[Answer]:
        if self._events is None or not self._xid_fields:
            return []
        last = self._events.last(known.handle, known.device.uuid)
        if isinstance(last, tuple):
            return [Missing(field, known.device, *last) for field in self._xid_fields]
        return [*self._of_xids(known.device, last)]

    def heard(self, device: Device) -> Sequence[Reading]:
        """Give what was counted of a GPU that does not answer; nothing where it had no XID."""
        code = None if self._events is None else self._events.heard(device.uuid)
        return () if code is None else self._of_xids(device, code)

    def stop(self) -> bool:
        """End the threads; what was counted stays. False when the driver holds one."""
        is_quiet = self._clocks is None or self._clocks.stop()
        return (self._events is None or self._events.stop()) and is_quiet

    def _of_xids(self, device: Device, last: int) -> list[Reading]:
        first = [] if self._last is None else [Reading(self._last, device, last)]
        return [*first, *self._xids.readings(device)]

    def _take(self, xid: Xid) -> None:
        """Count an XID and tell of it; in the thread that heard it."""
        self._xids.add(xid.uuid, xid.code)
        self._told(xid)
