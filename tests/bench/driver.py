"""Sweeps over the fake driver in this process: how often it is asked, and how long a slow one holds the page up."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from otelgpu.config import Sampling
from tests.bench.figures import Figure, median
from tests.fakenvml import Fake, Scenario, models, preload
from tests.harness import Node, config

MOST_CALLS = 20
SLOW = {"nvmlDeviceGetPowerUsage": 0.02, "nvmlDeviceGetTemperature": 0.0004}


def driver_figures() -> Iterator[Figure]:
    """Count calls, compare one slow GPU with eight, and time the page of a node with a stuck GPU."""
    fake = preload(Path(tempfile.mkdtemp(prefix="otelgpu-bench-")) / "scenario")
    yield _calls(fake)
    yield _sweeps(fake)
    yield _spread(fake)
    yield from _stuck(fake)


def _calls(fake: Fake) -> Figure:
    worst = (0.0, "")
    for name in ("t4", "v100", "a100", "h100", "b200", "rtx_4090", "mixed"):
        node = _node(fake, models.MAKERS[name]())
        node.settled_page()
        gpus = len(node.sweep().states)
        fake.reset_calls()
        node.sweep()
        worst = max(worst, (fake.calls() / gpus, name))
        node.stop()
    return Figure("driver calls per GPU and sweep, default fields", worst[0], MOST_CALLS, detail=f"most on {worst[1]}")


def _sweeps(fake: Fake) -> Figure:
    node = _node(fake, models.h100(8))
    try:
        seconds = median(node.sweep, rounds=50)
    finally:
        node.stop()
    return Figure("sweep of 8 H100 without delays", seconds * 1000, 50, "ms", "the driver's own time comes on top")


def _spread(fake: Fake) -> Figure:
    times: list[float] = []
    for count in (1, 8):
        scenario = models.h100(count)
        for gpu in range(count):
            scenario = scenario.with_gpu(gpu, delays=SLOW)
        node = _node(fake, scenario)
        times.append(median(node.sweep, rounds=15))
        node.stop()
    return Figure(
        "sweep of 8 GPUs with 20 ms in one call, of one GPU's time",
        times[1] / times[0],
        1.3,
        detail=f"{times[1] * 1000:.1f} ms against {times[0] * 1000:.1f} ms",
    )


def _stuck(fake: Fake) -> Iterator[Figure]:
    deadline = 0.5
    node = _node(fake, models.h100(8), deadline=deadline)
    node.settled_page()
    fresh = median(node.page)
    fake.show(models.h100(8).with_gpu(3, hangs={"nvmlDeviceGetPowerUsage"}))
    started = time.perf_counter()
    node.page()
    first = time.perf_counter() - started
    later = median(node.page, rounds=50)
    fake.release()
    node.stop()
    yield Figure("first page after a GPU got stuck", first, deadline + 0.5, "s", f"deadline {deadline} s")
    yield Figure(
        "later pages with a stuck GPU, of the time before",
        later / fresh,
        1.5,
        detail=f"{later * 1000:.1f} ms against {fresh * 1000:.1f} ms",
    )


def _node(fake: Fake, scenario: Scenario, *, deadline: float = 2.0) -> Node:
    fake.show(scenario)
    return Node(fake, config(sampling=Sampling(reuse=0, deadline=deadline)))
