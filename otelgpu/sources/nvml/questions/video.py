"""The video and image engines: sessions of the encoder and of frame buffer capture, load of the JPEG and flow engines.

Rule 1: the driver averages over the sessions there are; without a session its zeros are zeros.
"""

import pynvml

from otelgpu.sources.nvml.questions.rows import Question, Take

QUESTIONS: tuple[Question, ...] = (
    Question(
        "nvmlDeviceGetEncoderStats",
        pynvml.nvmlDeviceGetEncoderStats,
        (
            Take(9101, lambda answer: answer[0]),
            Take(9102, lambda answer: answer[1]),
            Take(9103, lambda answer: answer[2]),
        ),
    ),
    Question(
        "nvmlDeviceGetFBCStats",
        pynvml.nvmlDeviceGetFBCStats,
        (
            Take(9104, lambda stats: stats.sessionsCount),
            Take(9105, lambda stats: stats.averageFPS),
            Take(9106, lambda stats: stats.averageLatency),
        ),
    ),
    Question(
        "nvmlDeviceGetJpgUtilization", pynvml.nvmlDeviceGetJpgUtilization, (Take(9107, lambda answer: answer[0]),)
    ),
    Question(
        "nvmlDeviceGetOfaUtilization", pynvml.nvmlDeviceGetOfaUtilization, (Take(9108, lambda answer: answer[0]),)
    ),
)
