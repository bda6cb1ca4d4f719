"""What it costs to ask who uses the GPUs: 8 GPUs with 50 processes each, against the same machine without asking."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.bench.figures import Figure, interleaved
from tests.fakenvml import Process, Scenario, models
from tests.fakeproc import FakeProc, pod_path
from tests.harness import Served, serving, values

GPUS, EACH = 8, 50
RSS = "otelgpu_process_resident_memory_bytes"
SCRAPES = 300


def use_figures() -> Iterator[Figure]:
    """Scrape both a few hundred times, in turn; by process, so that each is an owner of its own."""
    folder = Path(tempfile.mkdtemp(prefix="otelgpu-bench-"))
    scenario = _machine(folder)
    with ExitStack() as stack:
        served: list[Served] = []
        for name in ("with", "without"):
            (folder / name).mkdir()
            flags = ("--processes", "process", "--proc-root", str(folder / "proc")) if name == "with" else ()
            served.append(stack.enter_context(serving(scenario, folder / name, "--reuse", "0", *flags)))
        ours, theirs = served
        shown = ours.page().count("otelgpu_owner_memory_used_bytes{")
        assert shown == GPUS * EACH, f"{shown} owners are shown"
        with_uses, without = interleaved(ours.page, theirs.page, rounds=SCRAPES)
        lines = ours.page().count("\n") - theirs.page().count("\n")
        yield Figure(
            f"scrape of {GPUS} GPUs with {EACH} processes each, a sweep each, of the scrape without",
            with_uses / without,
            4,
            detail=f"{with_uses * 1000:.1f} ms against {without * 1000:.1f} ms; {lines} more lines, "
            f"{(with_uses - without) / lines * 1e6:.1f} us each",
        )
        sizes = [values(each.page(), RSS)[""] / 1e6 for each in served]
        detail = f"{sizes[0]:.1f} MB against {sizes[1]:.1f} MB"
        yield Figure(f"RSS with {GPUS * EACH} processes, of the RSS without", sizes[0] / sizes[1], 1.3, detail=detail)


def _machine(folder: Path) -> Scenario:
    (folder / "proc").mkdir()
    proc = FakeProc(folder / "proc")
    later = int((time.time() + 3600) * 1_000_000)
    scenario = models.h100(GPUS)
    for slot in range(GPUS):
        pids = range(1000 * (slot + 1), 1000 * (slot + 1) + EACH)
        for pid in pids:
            proc.run(pid, pod_path(pid))
        samples = tuple(number for pid in pids for number in (pid, later, 2, 1, 0, 0))
        listed = tuple(Process(pid, 1 << 30) for pid in pids)
        scenario = scenario.with_gpu(slot, processes=listed, answers={"nvmlDeviceGetProcessUtilization": samples})
    return scenario
