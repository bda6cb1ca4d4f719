"""The whole way: what the driver answers, through a real collector, to what arrives behind it."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otelgpu.export.status import State
from tests.conftest import ROOT
from tests.fakenvml import models
from tests.harness import LIMIT, serving, until, values
from tests.push.collectors import Answer, Collector, Rotel, collector, free_port, metrics_of, pairs
from tests.push.conftest import Papers, Pushing

PROTOCOLS = ("grpc", "http/protobuf")


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_collector_gets_names_values_attributes_and_resource(
    protocol: str, rotel: Rotel, sink: Collector, tmp_path: Path
) -> None:
    """The first thing anybody tries: point it at a collector and look at what comes out behind."""
    flags = ("--otlp", rotel.url(protocol), "--otlp-protocol", protocol, "--otlp-interval", "0.2", "--label", "rack=a")
    environ = {"NODE_NAME": "node-7", "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test"}
    with serving(models.h100(2), tmp_path, *flags, environ=environ):
        until(lambda: len({point.time for point in sink.points("hw.")}) > 1, "two sweeps")
    resource = pairs(list(sink.received[0].message.resource_metrics[0].resource.attributes))
    powers = [point for point in sink.points("hw.power") if point.name == "hw.power"]
    first = next(point for point in powers if point.attributes["hw.name"] == "GPU 0")

    assert resource["service.name"] == "otelgpu"
    assert resource["service.instance.id"] == "node-1"  # the host name that is set
    assert resource["k8s.node.name"] == "node-7"
    assert resource["deployment.environment.name"] == "test"
    assert {"process.pid", "os.type", "host.arch"} <= resource.keys()
    assert {point.attributes["hw.name"] for point in powers} == {"GPU 0", "GPU 1"}
    assert first.attributes["hw.vendor"] == "NVIDIA"
    assert str(first.attributes["hw.id"]).startswith("GPU-")
    assert first.attributes["rack"] == "a"
    assert 10 < first.value < 1000
    assert {metric.unit for metric in sink.metrics() if metric.name == "hw.power"} == {"W"}
    assert [metric for metric in sink.metrics() if metric.name == "otelgpu.sweeps"]


def test_page_and_push_show_one_sweep(sink: Collector, pushing: Callable[..., Pushing]) -> None:
    """Dashboards over the page and over the collector must not differ by a sweep, or nobody trusts either."""
    running = pushing(models.h100(2), sink.url)
    running.batch()
    page = running.node.page(sweep=False)
    sink.expect(1)
    by_gpu = {
        name: {str(point.attributes["hw.name"])[4:]: point.value for point in sink.points(name) if point.name == name}
        for name in ("hw.power", "hw.energy")
    }
    used = {
        str(point.attributes["hw.name"])[4:]: point.value
        for point in sink.points("hw.gpu.memory.usage")
        if point.name == "hw.gpu.memory.usage"
    }
    latest = running.node.pipeline.sampler.latest

    assert by_gpu["hw.power"] == values(page, "DCGM_FI_DEV_POWER_USAGE")
    assert {gpu: joules * 1000 for gpu, joules in by_gpu["hw.energy"].items()} == values(
        page, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    )
    assert {gpu: number / 2**20 for gpu, number in used.items()} == values(page, "DCGM_FI_DEV_FB_USED")
    assert latest is not None
    assert {point.time for point in sink.points("hw.")} == {int(latest.unix * 1e9)}


def test_an_outage_of_five_minutes_loses_no_point(
    rotel: Rotel, sink: Collector, pushing: Callable[..., Pushing]
) -> None:
    """300 batches are five minutes at one a second. The collector is killed after 20, started again after 320."""
    running = pushing(models.h100(2), rotel.url("http/protobuf"))
    made: dict[int, int] = {}  # points of each sweep, by its time
    shown = {item.id for item in running.node.pipeline.fields if item.semconv is not None}

    def batches(count: int) -> None:
        for _ in range(count):
            running.batch()
            latest = running.node.pipeline.sampler.latest
            assert latest is not None
            readings = sum(len(numbers) for id_, numbers in latest.numbers.items() if id_ in shown)
            made[int(latest.unix * 1e9)] = readings + len(State) * len(latest.states)  # and hw.status

    def arrived() -> set[int]:
        return {point.time for point in sink.points("hw.power")}

    batches(20)
    until(lambda: arrived() == made.keys(), "the batches before the outage")
    rotel.kill()
    batches(300)
    waiting = len(running.push.buffer)
    rotel.start()
    batches(20)
    until(lambda: arrived() == made.keys(), "every batch")
    until(lambda: not len(running.push.buffer), "an empty buffer")
    points = Counter(point.key for point in sink.points())
    each = Counter(time for _, _, time in points)

    assert waiting == 300
    assert len(made) == 340
    assert set(points.values()) == {1}
    assert each == made  # every sweep arrived whole
    assert not running.push.buffer.dropped
    assert running.push.pusher.sent.batches == 340


def test_a_batch_that_is_refused_does_not_hold_up_the_next(sink: Collector, pushing: Callable[..., Pushing]) -> None:
    """A collector that cannot stand one batch would otherwise get no other for fifteen minutes."""
    sink.answers.append(Answer(400))
    running = pushing(models.t4(1), sink.url)
    running.batch()
    running.batch()
    sink.expect(2)
    until(lambda: running.push.pusher.sent.batches == 1, "the second batch")

    assert running.push.buffer.dropped == {"refused": 1}
    assert len({point.time for point in sink.points("hw.")}) == 2


def test_the_page_tells_what_became_of_the_batches(sink: Collector, pushing: Callable[..., Pushing]) -> None:
    """Who is woken because data is missing behind the collector looks at the exporter first."""
    sink.answers += [Answer(400), Answer(503)]
    running = pushing(models.t4(1), sink.url)
    running.batch()
    running.batch()
    until(lambda: running.push.pusher.sent.batches == 1, "the second batch")
    page = running.node.page()

    assert values(page, "otelgpu_otlp_batches_sent_total") == {"": 1}
    assert values(page, "otelgpu_otlp_attempts_failed_total") == {"": 2}
    assert values(page, "otelgpu_otlp_batches_dropped_total", by="reason") == {"refused": 1, "full": 0, "expired": 0}
    assert values(page, "otelgpu_otlp_batches_buffered") == {"": 0}
    assert values(page, "otelgpu_otlp_buffer_size_bytes") == {"": 0}
    assert values(page, "otelgpu_otlp_payload_bytes_total")[""] > 100
    assert abs(values(page, "otelgpu_otlp_last_success_timestamp_seconds")[""] - time.time()) < 60


@contextmanager
def _silent() -> Iterator[str]:
    """Accepts and never answers."""
    with collector() as running:
        running.silent.set()
        yield running.url


@contextmanager
def _busy() -> Iterator[str]:
    with collector(*[Answer(503, (("Retry-After", "600"),))] * 9999) as running:
        yield running.url


@contextmanager
def _deaf() -> Iterator[str]:
    """Accepts nothing: the queue of connections is full."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"


@contextmanager
def _gone() -> Iterator[str]:
    yield f"http://127.0.0.1:{free_port()}"


@contextmanager
def _nameless() -> Iterator[str]:
    yield "http://collector.invalid:4318"


BAD = {"silent": _silent, "busy": _busy, "deaf": _deaf, "gone": _gone, "nameless": _nameless}


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_collector_costs_neither_the_page_nor_the_end(kind: str, protocol: str, tmp_path: Path) -> None:
    """Whatever is wrong with the collector: scrapes are as fast as without, and SIGTERM ends all within 5 s."""
    with BAD[kind]() as url:
        flags = ("--otlp", url, "--otlp-protocol", protocol, "--otlp-interval", "0.1", "--reuse", "0")
        with serving(models.t4(1), tmp_path, *flags) as served:
            if kind not in ("silent", "deaf"):
                until(lambda: served.logged("takes no metrics") == 1, "a failed attempt")
            until(lambda: values(served.page(), "otelgpu_otlp_batches_buffered")[""] > 2, "batches that wait")
            times = []
            for _ in range(20):
                started = time.perf_counter()
                served.page()
                times.append(time.perf_counter() - started)
            started = time.perf_counter()
            code = served.stop(signal.SIGTERM)
            took = time.perf_counter() - started

            assert sorted(times)[10] < 0.25
            assert code == 0
            assert took < 5
            assert served.logged("takes no metrics") <= 1
            assert not served.logged("Traceback")


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_certificate_that_nobody_vouches_for_is_not_accepted(protocol: str, papers: Papers, tmp_path: Path) -> None:
    """Metrics go to whom they were meant for, or nowhere; and the reason is in the log."""
    with collector(certificate=papers) as running:
        flags = ("--otlp", running.url, "--otlp-protocol", protocol, "--otlp-interval", "0.1")
        with serving(models.t4(1), tmp_path, *flags) as served:
            until(lambda: served.logged("takes no metrics") == 1, "a failed attempt")
            served.page()
            started = time.perf_counter()

            assert served.stop() == 0
            assert time.perf_counter() - started < 5
    assert not running.received


@pytest.mark.usefixtures("fake")
def test_what_waits_is_sent_before_the_end(sink: Collector, tmp_path: Path) -> None:
    """The last seconds of a node that is drained are the ones somebody will ask for."""
    with serving(models.t4(1), tmp_path, "--otlp", sink.url, "--otlp-interval", "3600", "--reuse", "0") as served:
        sink.expect(1)
        served.stop()

        assert served.process.returncode == 0
    assert len(sink.received) == 2
    assert any(metric.name == "hw.temperature" for metric in metrics_of(sink.received[1].message))


@pytest.mark.parametrize("reader", ["nobody", "full disk", "gone"])
def test_a_console_that_takes_nothing_holds_nothing_up(reader: str, tmp_path: Path) -> None:
    """A terminal that was stopped with Ctrl-S, a full disk, `| head -1`: the page goes on, and so does the end."""
    environ = {"OTEL_METRICS_EXPORTER": "console,prometheus", "OTEL_METRIC_EXPORT_INTERVAL": "50"}
    path = tmp_path / "console"
    os.mkfifo(path)
    inside = os.open(path, os.O_RDWR)  # or nobody could open it for writing
    out = os.open("/dev/full" if reader == "full disk" else path, os.O_WRONLY)
    if reader == "gone":
        inside, gone = os.pipe()
        os.close(out)
        out = gone
        os.close(inside)
    flags = ("--source", "simulated:8xh100", "--listen", f"unix:{tmp_path / 'page'}")
    command = [sys.executable, "-m", "otelgpu", "serve", *flags]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)} | environ
    process = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stderr is not None
    log: list[str] = []
    follower = threading.Thread(target=log.extend, args=(process.stderr,), daemon=True)
    follower.start()
    try:
        # What cannot even take the address that is served is given up then.
        told = "takes no metrics (nobody reads it)" if reader == "nobody" else "listening on"
        until(lambda: any(told in line for line in log), "it is told of")
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert process.wait(LIMIT) == 0
        assert time.monotonic() - began < 6
    finally:
        process.kill()
        process.wait(LIMIT)
        follower.join(LIMIT)
        process.stderr.close()
        os.close(out)
        if reader != "gone":
            os.close(inside)

    assert "Traceback" not in "".join(log)
    assert sum("takes no metrics" in line for line in log) <= 1
