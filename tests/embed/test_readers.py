"""The stock readers and exporters of a host, with our instruments on its provider."""

import http.server
import io
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricExporter, PeriodicExportingMetricReader
from prometheus_client import CollectorRegistry, generate_latest

from tests.embed.conftest import Observe
from tests.embed.host import Host
from tests.fakenvml import Fake, models
from tests.harness import until, values

NEVER = 3_600_000  # milliseconds: these tests export when they say so


def test_the_stock_prometheus_exporter_shows_them(fake: Fake, watch: Observe) -> None:
    """A host that already serves /metrics has its GPUs on that page, under the exporter's own naming rules."""
    fake.show(models.h100(2))
    registry = CollectorRegistry()
    host = Host([PrometheusMetricReader(registry=registry, scope_info_enabled=False)])
    watch(host)
    page = generate_latest(registry).decode()

    assert list(values(page, "hw_power_watts", "hw_name")) == ["GPU 0", "GPU 1"]
    assert len(values(page, "hw_energy_joules_total", "hw_id")) == 2


def test_the_console_exporter_shows_them(fake: Fake, watch: Observe) -> None:
    """The first thing anyone tries."""
    fake.show(models.h100(1))
    out = io.StringIO()
    reader = PeriodicExportingMetricReader(ConsoleMetricExporter(out=out), export_interval_millis=NEVER)
    host = Host([reader])
    watch(host)
    reader.force_flush()
    host.provider.shutdown()

    (first, *_) = out.getvalue().split("\n}\n")
    assert '"hw.power"' in json.dumps(json.loads(first + "\n}"))


@contextmanager
def sink() -> Iterator[tuple[int, list[ExportMetricsServiceRequest]]]:
    """An OTLP/HTTP receiver that keeps what it gets; its port and the requests."""
    got: list[ExportMetricsServiceRequest] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            got.append(ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1], got
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def free_port() -> int:
    """A port that was free just now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def answers(port: int) -> bool:
    """Whether somebody listens."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def collector(to: int, folder: Path) -> Iterator[tuple[int, int]]:
    """A real collector that forwards to a sink; its ports for gRPC and HTTP."""
    rotel = pytest.importorskip("rotel", reason="rotel, an OTLP collector, is not installed; `make` installs it")
    program = Path(rotel.__file__).with_name("rotel-agent")
    if not program.exists() or shutil.which("true") is None:
        pytest.skip("rotel's program is not in its wheel on this platform")
    grpc, web = free_port(), free_port()
    command = [str(program), "start", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}"]
    command += ["--otlp-http-endpoint", f"127.0.0.1:{web}", "--exporter", "otlp", "--otlp-exporter-protocol", "http"]
    command += ["--otlp-exporter-endpoint", f"http://127.0.0.1:{to}", "--pid-file", str(folder / "pid")]
    with (folder / "rotel.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        until(lambda: answers(grpc) and answers(web), "the collector's ports")
        yield grpc, web
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_collector_gets_them_over_otlp(protocol: str, fake: Fake, watch: Observe, tmp_path: Path) -> None:
    """The host's own OTLP exporter carries them through a real collector: names, values and attributes arrive."""
    fake.show(models.h100(2))
    with sink() as (port, got), collector(port, tmp_path) as (grpc, web):
        exporter: MetricExporter = (
            GrpcExporter(endpoint=f"http://127.0.0.1:{grpc}", insecure=True)
            if protocol == "grpc"
            else HttpExporter(endpoint=f"http://127.0.0.1:{web}/v1/metrics")
        )
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=NEVER)
        host = Host([reader])
        watch(host)
        reader.force_flush()
        until(lambda: bool(got), "what the collector forwards")
        host.provider.shutdown()
    metrics = {
        metric.name: metric
        for request in got
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    power = metrics["hw.power"].gauge.data_points

    assert [attribute.value.string_value for attribute in power[0].attributes if attribute.key == "hw.id"] == [
        models.h100(2).gpus[0].uuid
    ]
    assert metrics["hw.power"].unit == "W"
    assert metrics["hw.energy"].sum.is_monotonic
