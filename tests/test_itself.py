"""What otelgpu says about itself is there, right, and never unbounded.

Rule 1: a metric is checked where its value is known from somewhere else: the scenario, the kernel, the requests made.
"""

import os
import platform
import re
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

import opentelemetry.sdk.version
import pytest

import otelgpu
from otelgpu.config import Sampling, SourceChoice
from tests.fakenvml import Fake, Scenario, models
from tests.faults.rig import FEW, POWER, REPLAYS, distinct, up
from tests.harness import Line, Node, lines_of, serving, until, values

Start = Callable[..., Node]

TRIO = distinct(models.h100(3))
NAMES = [gpu.uuid for gpu in TRIO.gpus]

# Each name with its type and its labels: a label that is not here could take values without bound.
OWN = {
    "otelgpu_build_info": ("gauge", {"version", "python", "opentelemetry"}),
    "otelgpu_config_last_reload_successful": ("gauge", set()),
    "otelgpu_config_last_reload_success_timestamp_seconds": ("gauge", set()),
    "otelgpu_source_info": ("gauge", {"source", "driver_version", "library_version", "simulated", "detail"}),
    "otelgpu_source_up": ("gauge", {"source"}),
    "otelgpu_gpu_up": ("gauge", {"gpu", "UUID"}),
    "otelgpu_gpus": ("gauge", {"state"}),
    "otelgpu_missing": ("gauge", {"gpu", "UUID", "gap"}),
    "otelgpu_sweep_duration_seconds": ("gauge", set()),
    "otelgpu_snapshot_age_seconds": ("gauge", set()),
    "otelgpu_sweeps_total": ("counter", set()),
    "otelgpu_gpu_lost_timestamp_seconds": ("gauge", {"gpu", "UUID", "gap"}),
    "otelgpu_values_dropped_total": ("counter", {"field"}),
    "otelgpu_scrapes_total": ("counter", {"code"}),
    "otelgpu_scrape_duration_seconds": ("histogram", set()),
    "otelgpu_process_cpu_seconds_total": ("counter", set()),
    "otelgpu_process_resident_memory_bytes": ("gauge", set()),
    "otelgpu_process_threads": ("gauge", set()),
    "otelgpu_process_open_fds": ("gauge", set()),
    "otelgpu_process_max_fds": ("gauge", set()),
}
TAIL = re.compile(r"_(bucket|sum|count)$")


def own(page: str, name: str) -> Line:
    """The one line of a metric."""
    (line,) = [line for line in lines_of(page) if line.name == name]
    return line


def troubled() -> Scenario:
    """One GPU well, one with a gap and a value that cannot be true, one lost."""
    return TRIO.with_gpu(
        1, errors={"nvmlDeviceGetTemperature": 4}, answers={"nvmlDeviceGetPowerUsage": 3_700_000}
    ).with_gpu(2, lost=True)


@pytest.mark.parametrize("naming", ["dcgm", "semconv"])
def test_every_metric_is_there_with_its_type_and_labels_and_no_other(naming: str, tmp_path: Path, cc: Path) -> None:
    """Whichever names the GPUs have on the page, otelgpu's own stay, and their labels are bounded."""
    assert cc.exists()
    with serving(troubled(), tmp_path, "--naming", naming, "--fields", ",".join(FEW), "--reuse", "0") as served:
        served.page()
        page = served.page()
    types = dict(re.findall(r"^# TYPE (otelgpu_\w+) (\w+)$", page, re.MULTILINE))
    labels: dict[str, set[str]] = {name: set() for name in types}
    for line in lines_of(page):
        if line.name.startswith("otelgpu_"):
            name = line.name if line.name in types else TAIL.sub("", line.name)
            labels[name] |= {label for label in line.labels if label != "le" and not label.startswith("otel_scope_")}

    assert {name: (kind, labels[name]) for name, kind in types.items()} == OWN


def test_the_build_is_named(node: Start) -> None:
    """What a bug report needs."""
    page = node(TRIO, fields=FEW).page()
    line = own(page, "otelgpu_build_info")

    assert line.value == 1
    assert line.labels == {
        "version": otelgpu.__version__,
        "python": platform.python_version(),
        "opentelemetry": opentelemetry.sdk.version.__version__,
    }


def test_the_source_is_named(node: Start) -> None:
    """Which driver answers; nobody takes a simulated node for a real one."""
    page = node(TRIO.but(driver='5"80', nvml="13.1"), fields=FEW).page()
    assert own(page, "otelgpu_source_info").labels == {
        "source": "nvml",
        "driver_version": '5"80',
        "library_version": "13.1",
        "simulated": "false",
        "detail": "",
    }

    simulated = node(TRIO, fields=FEW, source=SourceChoice("simulated", "2xh100")).page()
    labels = own(simulated, "otelgpu_source_info").labels
    assert (labels["source"], labels["simulated"], labels["detail"]) == ("simulated", "true", "2xh100")


def test_states_of_source_and_gpus(node: Start) -> None:
    """What an alert is made on: the source, each GPU, and how many GPUs there are in each state."""
    running = node(TRIO, fields=FEW)
    page = running.page()
    assert own(page, "otelgpu_source_up").value == 1
    assert up(page) == dict.fromkeys(NAMES, 1)
    assert values(page, "otelgpu_gpus", by="state") == {"up": 3}

    running.show(troubled().with_gpu(0, errors={"nvmlDeviceGetPowerUsage": 9}))
    page = running.page()
    assert own(page, "otelgpu_source_up").value == 1
    assert up(page) == {NAMES[0]: 0, NAMES[1]: 1, NAMES[2]: 0}
    assert values(page, "otelgpu_gpus", by="state") == {"up": 1, "lost": 1, "failed": 1}

    running.show(models.none())
    page = running.page()
    assert own(page, "otelgpu_source_up").value == 1
    assert up(page) == dict.fromkeys(NAMES, 0)
    assert values(page, "otelgpu_gpus", by="state") == {"up": 0, "lost": 3}


def test_a_node_without_gpus_has_none(node: Start) -> None:
    """The driver is there and lists nothing: that is no fault of the source."""
    page = node(models.none(), fields=FEW).page()

    assert own(page, "otelgpu_source_up").value == 1
    assert up(page) == {}
    assert values(page, "otelgpu_gpus", by="state") == {"up": 0}


def test_what_is_missing_is_counted_by_gpu_and_reason(node: Start) -> None:
    """Every field that was asked for and is not on the page has a reason; a GPU that is down has it for all."""
    without_memory = troubled().with_gpu(
        0, answers={"nvmlDeviceGetMemoryInfo_v2": None, "nvmlDeviceGetMemoryInfo": None}
    )
    page = node(without_memory, fields=FEW).page()
    counts = {
        (line.labels["UUID"], line.labels["gap"]): line.value
        for line in lines_of(page)
        if line.name == "otelgpu_missing"
    }

    assert counts == {
        (NAMES[0], "unsupported"): 1,
        (NAMES[1], "denied"): 1,
        (NAMES[1], "invalid"): 1,
    } | {(uuid, "lost"): len(FEW) for uuid in up(page) if uuid not in NAMES[:2]}


def test_every_absent_series_has_a_reason(node: Start) -> None:
    """Series on the page and reasons add up to what was asked for."""
    page = node(models.mixed().with_gpu(1, lost=True)).settled_page()
    fields = {line.name for line in lines_of(page) if line.name.startswith("DCGM_")}
    shown = [line for line in lines_of(page) if line.name.startswith("DCGM_")]
    gaps = sum(line.value for line in lines_of(page) if line.name == "otelgpu_missing")
    labels = 1  # DCGM_FI_DRIVER_VERSION is a label of two GPUs, and missing on the third

    assert fields
    assert len(shown) + 2 * labels + gaps == 3 * 26


def test_dropped_values_are_counted_by_field(node: Start) -> None:
    """Garbage from the driver is no reading, but it is news."""
    running = node(troubled(), fields=FEW)
    for _ in range(3):
        page = running.page()
        dropped = own(page, "otelgpu_sweeps_total").value  # one with each sweep
        assert values(page, "otelgpu_values_dropped_total", by="field") == {POWER: dropped}
    assert REPLAYS not in values(running.page(), "otelgpu_values_dropped_total", by="field")


def test_sweeps_and_their_time(node: Start) -> None:
    """How long the driver takes is the first question when scrapes are slow."""
    slow = TRIO.with_gpu(1, delays={"nvmlDeviceGetPowerUsage": 0.1})
    running = node(slow, fields=FEW)
    first = running.page()
    second = running.page()

    assert own(first, "otelgpu_sweeps_total").value + 1 == own(second, "otelgpu_sweeps_total").value >= 3
    assert 0.1 <= own(second, "otelgpu_sweep_duration_seconds").value < 1


def test_the_age_of_what_is_shown(node: Start) -> None:
    """Together with `expire` it tells why a page has no readings."""
    running = node(TRIO, fields=FEW, sampling=Sampling(reuse=60, expire=60))
    snapshot = running.pipeline.sampler.latest
    assert snapshot is not None
    before = time.monotonic() - snapshot.at
    page = running.page(sweep=False)
    after = time.monotonic() - snapshot.at

    assert before <= own(page, "otelgpu_snapshot_age_seconds").value <= after


def test_the_process_is_measured_as_the_kernel_does(node: Start) -> None:
    """CPU, memory, threads and files, so that no second exporter is needed to watch this one."""
    running = node(TRIO, fields=FEW)
    cpu = time.process_time()
    page = running.page()
    pages = int(Path("/proc/self/statm").read_text().split()[1])

    assert cpu <= own(page, "otelgpu_process_cpu_seconds_total").value <= time.process_time()
    memory = own(page, "otelgpu_process_resident_memory_bytes").value
    assert memory == pytest.approx(pages * resource.getpagesize(), rel=0.05)
    assert own(page, "otelgpu_process_threads").value == threading.active_count()
    assert abs(own(page, "otelgpu_process_open_fds").value - len(os.listdir("/proc/self/fd"))) <= 1  # noqa: PTH208
    assert own(page, "otelgpu_process_max_fds").value == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_scrapes_are_counted_by_code_and_timed(tmp_path: Path, cc: Path) -> None:
    """A scrape counts when it is answered, so each page tells of those before it."""
    assert cc.exists()
    with serving(TRIO, tmp_path, "--fields", ",".join(FEW)) as served:
        for _ in range(3):
            served.page()
        served.request("HEAD", "/metrics")
        served.request("POST", "/metrics")
        until(lambda: values(served.page(), "otelgpu_scrapes_total", by="code").get("405") == 1, "all are counted")
        page = served.page()
        codes = values(page, "otelgpu_scrapes_total", by="code")
        buckets = values(page, "otelgpu_scrape_duration_seconds_bucket", by="le")

    assert codes["200"] >= 5
    assert own(page, "otelgpu_scrape_duration_seconds_count").value == sum(codes.values()) == buckets["+Inf"]
    assert list(buckets.values()) == sorted(buckets.values())
    assert own(page, "otelgpu_scrape_duration_seconds_sum").value > 0


def test_labels_do_not_pile_up(node: Start, fake: Fake) -> None:
    """GPUs and instances come and go; what otelgpu says of itself stays as long as the GPUs it has seen."""
    running = node(models.h100_mig(), fields=FEW)
    for round_ in range(30):
        gi = 7 + round_ % 7
        part = models.split(models.h100_mig().gpus[0], (gi, models.H100_1G))
        running.show(models.h100_mig().but(gpus=(part,)))
        running.page()
    lines = [line for line in lines_of(running.page()) if line.name.startswith("otelgpu_")]

    assert len(lines) <= len(OWN)
    assert fake.calls()
