"""Fields whose lines on the dcgm page are not made as those of all others."""

from collections.abc import Callable, Mapping

from otelgpu.fields.xid import xid_text
from otelgpu.model import Attributes, Use


def _xid_labels(number: float) -> Attributes:
    return (("err_code", str(int(number))), ("err_msg", xid_text(int(number))))


# Fields whose labels on the dcgm page follow the value, by field id. OpenTelemetry's points have none: a value that
# changes its attributes starts a new series each time.
VALUE_LABELS: Mapping[int, Callable[[float], Attributes]] = {230: _xid_labels}

# Fields (GPU_UTIL, FB_USED) that dcgm-exporter measures per process in its sharing mode: there a row of a pod is not a
# copy of the device's value but what the pod uses, which is known where processes are asked about.
PER_PROCESS: Mapping[int, Callable[[Use], int | None]] = {203: lambda use: use.sm, 252: lambda use: use.memory}
