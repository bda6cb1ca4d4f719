"""The program itself: start, memory, many clients at once."""

import resource
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figures import Figure
from tests.fakenvml import models
from tests.harness import Served, serving, values

SCRAPES = 1000
CLIENTS = 16
RSS = "otelgpu_process_resident_memory_bytes"
SWEEPS = "otelgpu_sweeps_total"


def process_figures() -> Iterator[Figure]:
    """Serve 8 H100 and scrape them a thousand times."""
    folder = Path(tempfile.mkdtemp(prefix="otelgpu-bench-"))
    started = time.perf_counter()
    with serving(models.h100(8), folder, "--reuse", "0") as served:
        served.page()
        yield Figure("first page after exec", time.perf_counter() - started, 1.0, "s")
        yield from _memory(served)
    with serving(models.h100(8).but(delays={"*": 0.002}), folder, "--reuse", "0") as served:
        yield _clients(served)
    yield from _isolated()


def _memory(served: Served) -> Iterator[Figure]:
    sizes: list[float] = []
    times: list[float] = []
    for _ in range(SCRAPES):
        started = time.perf_counter()
        page = served.page()
        times.append(time.perf_counter() - started)
        sizes.append(values(page, RSS)[""] / 1e6)
    times.sort()
    yield Figure(
        f"scrape of 8 GPUs, a sweep each, median of {SCRAPES}",
        times[SCRAPES // 2] * 1000,
        50,
        "ms",
        f"99 of 100 within {times[SCRAPES * 99 // 100] * 1000:.1f} ms",
    )
    yield Figure(f"RSS after {SCRAPES} scrapes of 8 GPUs", sizes[-1], 45, "MB")
    yield Figure("RSS growth over the last 900 scrapes", sizes[-1] - sizes[99], 1.0, "MB")


def _isolated() -> Iterator[Figure]:
    """The same with `--isolate`: what the second process costs."""
    medians: list[float] = []
    for flags in ((), ("--isolate",)):
        with serving(models.h100(8), Path(tempfile.mkdtemp(prefix="otelgpu-bench-")), "--reuse", "0", *flags) as served:
            times = []
            for _ in range(SCRAPES // 4):
                started = time.perf_counter()
                page = served.page()
                times.append(time.perf_counter() - started)
            medians.append(sorted(times)[len(times) // 2])
            if flags:
                tasks = Path(f"/proc/{served.process.pid}/task").iterdir()
                (child,) = {pid for task in tasks for pid in (task / "children").read_text().split()}
                pages = int(Path(f"/proc/{child}/statm").read_text().split()[1])
                theirs = pages * resource.getpagesize() / 1e6
                yield Figure("--isolate: RSS of the process that serves", values(page, RSS)[""] / 1e6, 45, "MB")
                yield Figure("--isolate: RSS of the process that asks", theirs, 27, "MB")
    detail = f"{medians[0] * 1000:.1f} and {medians[1] * 1000:.1f} ms"
    yield Figure("--isolate: a scrape, against one without", medians[1] / medians[0], 1.6, "times", detail)


def _clients(served: Served) -> Figure:
    before = _sweeps(served)
    gate = threading.Barrier(CLIENTS)

    def scrape() -> None:
        gate.wait()
        served.page()

    threads = [threading.Thread(target=scrape) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The page that tells of the sweeps made one itself.
    return Figure(f"sweeps for {CLIENTS} clients at once", _sweeps(served) - before - 1, 1)


def _sweeps(served: Served) -> float:
    return values(served.page(), SWEEPS)[""]
