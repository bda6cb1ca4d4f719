"""otelgpu in somebody else's process: what importing, observing and idling cost."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import otelgpu
from tests.bench.figures import Figure, median
from tests.fakenvml import models, preload

IDLE = 2.0  # seconds of watching an idle process
ROUNDS = 5

IMPORT = """
import json, os, resource, time
def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6
import opentelemetry.metrics
before, began = rss(), time.perf_counter()
import otelgpu
TOUCH
print(json.dumps([(time.perf_counter() - began) * 1000, rss() - before]))
"""


def embed_figures() -> Iterator[Figure]:
    """Import in a process of its own; then observe 8 GPUs, collect, and watch it idle."""
    milliseconds, megabytes = _import("")
    yield Figure("import otelgpu beyond opentelemetry-api", milliseconds, 50, "ms")
    yield Figure("memory of import otelgpu beyond opentelemetry-api", megabytes, 3, "MB")
    milliseconds, megabytes = _import("otelgpu.observe")
    yield Figure("the same, with what observe needs", milliseconds, 100, "ms")
    yield Figure("memory of the same", megabytes, 7.5, "MB")
    yield from _observed()


def _import(touch: str) -> tuple[float, float]:
    """Give the least of several rounds, in ms and MB: what is measured here has no reason to be less."""
    rounds: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        program = IMPORT.replace("TOUCH", touch)
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        milliseconds, megabytes = json.loads(ran.stdout)
        rounds.append((milliseconds, megabytes))
    return min(each[0] for each in rounds), min(each[1] for each in rounds)


def _observed() -> Iterator[Figure]:
    fake = preload(Path(mkdtemp(prefix="otelgpu-bench-")) / "scenario")
    fake.show(models.h100(8))
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    with otelgpu.observe(provider, source="nvml", reuse=0):
        seconds = median(reader.get_metrics_data)
        yield Figure("collection of 8 H100 in a host, a sweep included", seconds * 1000, 100, "ms")
        fake.reset_calls()
        used = time.process_time()
        time.sleep(IDLE)
        used = time.process_time() - used
        yield Figure("CPU of an idle host that observes 8 GPUs", used / IDLE * 100, 0.5, "%")
        yield Figure("driver calls of the same", fake.calls(), 0)
    provider.shutdown()
