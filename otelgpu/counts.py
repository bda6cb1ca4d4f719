"""What happens to a GPU between two sweeps, counted: XIDs, and the reasons that held its clocks.

Rule 1: counted as it happens, in totals since the start and within a window; a reader takes the numbers, and changes
        none.
Rule 2: every label comes from a table, or from the first few codes that no table has; all others are one, `other`.
Rule 3: a series that was there stays, with 0 in a quiet window: one that comes and goes cannot be told from one that
        is not read.
Rule 4: what was counted belongs to the GPU (its UUID), whichever slot it is in and however often the driver is loaded.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from otelgpu.fields import Field
from otelgpu.fields.severity import Severity
from otelgpu.fields.xid import XIDS
from otelgpu.fields.xid_advice import xid_advice
from otelgpu.model import Attributes, Device, Reading

XID_COUNT, CLOCK_COUNT, XID_TOTAL, CLOCK_TOTAL = 9001, 9002, 9005, 9006
XID_COUNTS = frozenset((XID_COUNT, XID_TOTAL))
CLOCK_COUNTS = frozenset((CLOCK_COUNT, CLOCK_TOTAL))

UNDOCUMENTED = 16  # codes without a row in the table that get a series of their own, of one GPU
OTHER = "other"
STEPS = 1000  # a window moves on in so many steps: it holds no more than that, however much happens

# The codes that say that a GPU is gone or has to be looked at. They stand at 0 from the start: `increase` in
# Prometheus needs a value to increase from, and such an XID comes once.
GRAVE = tuple(sorted(code for code in XIDS if xid_advice(code).severity is Severity.FATAL))

# The bits of nvmlDeviceGetCurrentClocksEventReasons by dcgm-exporter's words.
CLOCK_EVENTS: Mapping[str, int] = {
    "gpu_idle": 0x1,
    "clocks_setting": 0x2,
    "power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "display_clocks": 0x100,
}


@dataclass(frozen=True, slots=True)
class Counting:
    """How things are counted: the windows in milliseconds, as dcgm-exporter has them, and the pace in seconds."""

    xid_window: int = 300_000
    clock_window: int = 300_000
    clock_interval: float = 1.0


class Recent:
    """How often something happened within the last *window* seconds, to a thousandth of the window."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._steps: deque[tuple[float, int]] = deque()  # when each began, and the total before it
        self._total = 0

    def add(self, now: float) -> None:
        """Note that it happened."""
        if not self._steps or now - self._steps[-1][0] >= self._window / STEPS:
            self.count(now)
            self._steps.append((now, self._total))
        self._total += 1

    def count(self, now: float) -> int:
        """Say how often."""
        while self._steps and self._steps[0][0] <= now - self._window:
            self._steps.popleft()
        return self._total - self._steps[0][1] if self._steps else 0


class _Tally:
    """One thing that is counted."""

    __slots__ = ("recent", "total")

    def __init__(self, window: float) -> None:
        self.total = 0
        self.recent = Recent(window)


class XidCounts:
    """Counts the XIDs of every GPU. One thread adds and others read, at any time."""

    def __init__(self, fields: Iterable[Field], counting: Counting, clock: Callable[[], float]) -> None:
        self._fields = tuple(field for field in fields if field.id in XID_COUNTS)
        self._window = counting.xid_window
        self._clock = clock
        self._lock = threading.Lock()
        self._tallies: dict[str, dict[str, _Tally]] = {}  # by UUID and code

    def want(self, fields: Iterable[Field], counting: Counting) -> None:
        """Give other fields from now on. Totals go on; with another window the counts within it begin anew."""
        with self._lock:
            self._fields = tuple(field for field in fields if field.id in XID_COUNTS)
            if counting.xid_window != self._window:
                self._window = counting.xid_window
                for tallies in self._tallies.values():
                    for tally in tallies.values():
                        tally.recent = Recent(self._window / 1000)

    def add(self, uuid: str, code: int) -> None:
        """Count one XID."""
        with self._lock:
            tallies = self._of(uuid)
            tally = tallies.get(self._label(tallies, code))
            if tally is None:
                tally = tallies[self._label(tallies, code)] = self._tally()
            tally.total += 1
            tally.recent.add(self._clock())

    def readings(self, device: Device) -> list[Reading]:
        """Give what was counted of a GPU, by code."""
        now = self._clock()
        with self._lock:
            tallies = self._of(device.uuid)
            codes = sorted(tallies, key=lambda code: (code == OTHER, code.zfill(20)))
            counted = {
                XID_COUNT: [(code, tallies[code].recent.count(now)) for code in codes],
                XID_TOTAL: [(code, tallies[code].total) for code in codes],
            }
        return [
            Reading(field, device, number, self._attributes(field, code))
            for field in self._fields
            for code, number in counted[field.id]
        ]

    def _of(self, uuid: str) -> dict[str, _Tally]:
        tallies = self._tallies.get(uuid)
        if tallies is None:
            tallies = self._tallies[uuid] = {str(code): self._tally() for code in GRAVE}
        return tallies

    def _tally(self) -> _Tally:
        return _Tally(self._window / 1000)

    def _attributes(self, field: Field, code: str) -> Attributes:
        window = windowed(self._window) if field.id == XID_COUNT else ()
        return (*window, ("xid", code))

    @staticmethod
    def _label(tallies: Mapping[str, _Tally], code: int) -> str:
        if code in XIDS or str(code) in tallies:
            return str(code)
        undocumented = sum(known != OTHER and int(known) not in XIDS for known in tallies)
        return str(code) if undocumented < UNDOCUMENTED else OTHER


class ClockCounts:
    """Counts, of one GPU, the samples that found its clocks held, and how often that began.

    One thread adds and another reads, at any time. What was so at the first look did not begin then, and is counted
    among the samples alone.
    """

    def __init__(self, fields: Iterable[Field], counting: Counting, clock: Callable[[], float]) -> None:
        self._fields = tuple(field for field in fields if field.id in CLOCK_COUNTS)
        self._window = windowed(counting.clock_window)
        self._clock = clock
        self._lock = threading.Lock()
        self._tallies = {word: _Tally(counting.clock_window / 1000) for word in CLOCK_EVENTS}
        self._before: int | None = None  # the bits of the last look

    def want(self, fields: Iterable[Field], counting: Counting) -> None:
        """Give other fields from now on; see XidCounts."""
        with self._lock:
            self._fields = tuple(field for field in fields if field.id in CLOCK_COUNTS)
            window = windowed(counting.clock_window)
            if window != self._window:
                self._window = window
                for tally in self._tallies.values():
                    tally.recent = Recent(counting.clock_window / 1000)

    def add(self, reasons: int) -> None:
        """Count one look at the reasons, a bit each."""
        with self._lock:
            begun = 0 if self._before is None else reasons & ~self._before
            self._before = reasons
            now = self._clock()
            for word, bit in CLOCK_EVENTS.items():
                if reasons & bit:
                    self._tallies[word].recent.add(now)
                    self._tallies[word].total += bool(begun & bit)

    def readings(self, device: Device) -> list[Reading]:
        """Give what was counted, by reason."""
        now = self._clock()
        with self._lock:
            counted = {
                CLOCK_COUNT: {word: tally.recent.count(now) for word, tally in self._tallies.items()},
                CLOCK_TOTAL: {word: tally.total for word, tally in self._tallies.items()},
            }
        return [
            Reading(field, device, number, self._attributes(field, word))
            for field in self._fields
            for word, number in counted[field.id].items()
        ]

    def _attributes(self, field: Field, word: str) -> Attributes:
        return (*(self._window if field.id == CLOCK_COUNT else ()), ("clock_event", word))


def windowed(milliseconds: int) -> Attributes:
    """Name the window of a count."""
    return (("window_size_in_ms", str(milliseconds)),)
