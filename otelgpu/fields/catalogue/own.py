"""What NVML has and DCGM does not, or has only as a struct: engines and sessions, powers (ids 9101 to 9110).

Rule 1: these are otelgpu's own fields, so their names begin with OTELGPU_ and no later DCGM can take one of them.
Rule 2: sessions are told in total. One by one they come and go with processes, and their series would never end.
"""

from otelgpu.fields.maker import row
from otelgpu.fields.measures import INT32_HIGHEST, LATENCY, PERCENT, POWER, gauge

_OWN = "OTELGPU_"
_SESSIONS = gauge("{session}", INT32_HIGHEST)
_FRAMES = gauge("{frame}/s", 10**6)

# fmt: off
ROWS = (
    row(9101, "ENC_SESSIONS", _SESSIONS, "Video encoder sessions", prefix=_OWN, sem="encoder.sessions"),
    row(9102, "ENC_FRAME_RATE", _FRAMES, "Frames a second of a video encoder session, averaged over the sessions", prefix=_OWN, sem="encoder.frame_rate"),
    row(9103, "ENC_LATENCY", LATENCY, "Time the video encoder takes for a frame, averaged over the sessions", prefix=_OWN, sem="encoder.latency"),
    row(9104, "FBC_SESSIONS", _SESSIONS, "Frame buffer capture sessions", prefix=_OWN, sem="frame_buffer_capture.sessions"),
    row(9105, "FBC_FRAME_RATE", _FRAMES, "New frames a second of a frame buffer capture session, averaged over the sessions", prefix=_OWN, sem="frame_buffer_capture.frame_rate"),
    row(9106, "FBC_LATENCY", LATENCY, "Time the frame buffer capture takes for a new frame, averaged over the sessions", prefix=_OWN, sem="frame_buffer_capture.latency"),
    row(9107, "JPEG_UTIL", PERCENT, "Share of time the JPEG decoders had work", prefix=_OWN, sem="jpeg.utilization"),
    row(9108, "OFA_UTIL", PERCENT, "Share of time the optical flow accelerators had work", prefix=_OWN, sem="optical_flow.utilization"),
    row(9109, "MODULE_POWER", POWER, "Power drawn by the module that holds the GPU: its CPU and all its GPUs", prefix=_OWN, sem="gpu_module.power"),
    row(9110, "MEMORY_POWER", POWER, "Power drawn by the GPU memory", prefix=_OWN, sem="memory.power"),
)
# fmt: on
