"""What is counted of a simulated GPU: XIDs and clock events, worked out for any instant.

Rule 1: nothing is counted along; a count is that of the timeline and of the XID turns up to now, less what was before
        the window.
Rule 2: XIDs are looked for turn by turn: one in hours, so that even a year has few.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from otelgpu.counts import (
    CLOCK_COUNT,
    CLOCK_COUNTS,
    CLOCK_EVENTS,
    CLOCK_TOTAL,
    GRAVE,
    XID_COUNT,
    XID_COUNTS,
    XID_TOTAL,
    Counting,
    windowed,
)
from otelgpu.fields import Field
from otelgpu.model import Attributes, Reading
from otelgpu.sources.simulated.gpu import Gpu, xids

Rows: TypeAlias = Iterable[tuple[Attributes, int]]

COUNTED = XID_COUNTS | CLOCK_COUNTS


def counted(gpu: Gpu, seconds: float, fields: Iterable[Field], counting: Counting) -> list[Reading]:
    """Give what *fields* count of a GPU, so long after the start."""
    return [
        Reading(field, gpu.device, number, attributes)
        for field in fields
        for attributes, number in _ROWS[field.id](gpu, seconds, counting)
    ]


def _xids(gpu: Gpu, seconds: float, since: float) -> Rows:
    had = list(xids(gpu, seconds))
    found = Counter(code for at, code in had if at > since)
    for code in sorted({*GRAVE, *(code for _, code in had)}):
        yield (("xid", str(code)),), found[code]


def _xid_count(gpu: Gpu, seconds: float, counting: Counting) -> Rows:
    window = windowed(counting.xid_window)
    for attributes, number in _xids(gpu, seconds, seconds - counting.xid_window / 1000):
        yield (*window, *attributes), number


def _xid_total(gpu: Gpu, seconds: float, _: Counting) -> Rows:
    return _xids(gpu, seconds, -1.0)


def _clock_count(gpu: Gpu, seconds: float, counting: Counting) -> Rows:
    """Count the samples in which each reason held. The clock of a partitioned GPU is that of its first instance."""
    timeline = gpu.slices[0].timeline
    began = max(seconds - counting.clock_window / 1000, 0.0)
    before, now = timeline.at(began).totals, timeline.at(seconds).totals
    held = {
        "gpu_idle": now.idle_s - before.idle_s,
        "power_cap": now.capped_s - before.capped_s,
        "sw_thermal": now.hot_s - before.hot_s,
    }
    for word in CLOCK_EVENTS:
        number = round(held.get(word, 0.0) / counting.clock_interval)
        yield (*windowed(counting.clock_window), ("clock_event", word)), number


def _clock_total(gpu: Gpu, seconds: float, _: Counting) -> Rows:
    begun = dict(zip(("gpu_idle", "power_cap", "sw_thermal"), gpu.slices[0].timeline.begun(seconds), strict=True))
    for word in CLOCK_EVENTS:
        yield (("clock_event", word),), begun.get(word, 0)


_ROWS: Mapping[int, Callable[[Gpu, float, Counting], Rows]] = {
    XID_COUNT: _xid_count,
    CLOCK_COUNT: _clock_count,
    XID_TOTAL: _xid_total,
    CLOCK_TOTAL: _clock_total,
}
