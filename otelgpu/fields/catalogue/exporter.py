"""What dcgm-exporter works out itself, beside DCGM's own fields (ids 9001 to 9006).

Rule 1: names, labels and values are dcgm-exporter's: ids 9001 to 9004 are those of 4.8.2, the two totals came with 4.8.3.
Rule 2: all of them are counted or judged where GPUs are read, never where they are shown: every reader sees the same.
"""

from otelgpu.fields.maker import row
from otelgpu.fields.measures import ERRORS, EVENTS, INT64_HIGHEST, gauge, state

_EXP = "DCGM_EXP_"

# fmt: off
ROWS = (
    row(9001, "XID_ERRORS_COUNT", gauge("{error}", INT64_HIGHEST), "XIDs within the last window, by code", prefix=_EXP, sem="xid.errors.recent"),
    row(9002, "CLOCK_EVENTS_COUNT", gauge("{sample}", INT64_HIGHEST), "Samples within the last window in which the clocks were held, by reason", prefix=_EXP, sem="clock.event.samples"),
    row(9003, "GPU_HEALTH_STATUS", state(20), "Health of a part of the GPU: 0 well, 10 warning, 20 failed", prefix=_EXP, sem="health.status"),
    row(9004, "P2P_STATUS", state(6), "Whether the GPU reaches another one over NVLink, 0 when it does", prefix=_EXP, sem="p2p.status"),
    row(9005, "XID_ERRORS_TOTAL", ERRORS, "XIDs since the start, by code", prefix=_EXP, sem="xid.errors"),
    row(9006, "CLOCK_EVENTS_TOTAL", EVENTS, "How often since the start the clocks began to be held, by reason", prefix=_EXP, sem="clock.events"),
)
# fmt: on
