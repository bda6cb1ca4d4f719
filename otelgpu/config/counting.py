"""The settings of what is counted between two sweeps.

Rule 1: windows are whole milliseconds, as dcgm-exporter's flags and its label `window_size_in_ms` have them.
"""

from typing import Annotated

from msgspec import Meta, Struct

from otelgpu.config.about import about

DAY_MS = 86_400_000


class Counts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How XIDs and clock events are counted, for the fields DCGM_EXP_*."""

    xid_window: Annotated[
        int,
        Meta(ge=1000, le=DAY_MS),
        about(
            "`DCGM_EXP_XID_ERRORS_COUNT` counts the XIDs of so many milliseconds.",
            flag="--xid-count-window-size",
            letter="-x",
            variable="DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE",
        ),
    ] = 300_000
    clock_window: Annotated[
        int,
        Meta(ge=1000, le=DAY_MS),
        about(
            "`DCGM_EXP_CLOCK_EVENTS_COUNT` counts the samples of so many milliseconds.",
            flag="--clock-events-count-window-size",
            variable="DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE",
        ),
    ] = 300_000
    clock_interval: Annotated[
        float,
        Meta(ge=0.1, le=60),
        about("Each GPU is asked at this pace what holds its clocks, whether anybody looks or not."),
    ] = 1.0
