"""The samples behind the utilisations: the driver keeps the last seconds of them, the newest one is the answer.

Rule 1: nvml.h says that samples of a utilisation are unsigned ints, whatever other samples are.
Rule 2: all that is kept comes in one call; nothing is remembered between two sweeps, or two readers would take the
        samples from one another.
"""

from collections.abc import Callable
from typing import Any

import pynvml

from otelgpu.sources.nvml.handles import Handle
from otelgpu.sources.nvml.questions.rows import Question, Take


def _samples(kind: int) -> Callable[[Handle], Any]:
    return lambda handle: pynvml.nvmlDeviceGetSamples(handle, kind, 0)[1]


def _newest(samples: Any) -> int | None:  # noqa: ANN401 - ctypes structs of pynvml
    """Pick the sample with the highest time stamp; places of the buffer that were never filled have none."""
    taken = [sample for sample in samples if sample.timeStamp]
    return int(max(taken, key=lambda sample: int(sample.timeStamp)).sampleValue.uiVal) if taken else None


QUESTIONS: tuple[Question, ...] = (
    Question("nvmlDeviceGetSamples(MEMORY)", _samples(pynvml.NVML_MEMORY_UTILIZATION_SAMPLES), (Take(210, _newest),)),
    Question("nvmlDeviceGetSamples(GPU)", _samples(pynvml.NVML_GPU_UTILIZATION_SAMPLES), (Take(211, _newest),)),
)
