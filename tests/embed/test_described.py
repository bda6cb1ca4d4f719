"""OTEL_CONFIG_FILE: a file of OpenTelemetry's describes the SDK, and `otelgpu serve` adds its instruments."""

import signal
from pathlib import Path

import pytest

from tests.fakenvml import models
from tests.harness import refused, serving, until, values
from tests.push.collectors import Collector, collector

FILE = """\
file_format: "1.0"
resource:
  attributes:
    - name: service.name
      value: node-gpus
meter_provider:
  readers:
    - periodic:
        interval: 200
        timeout: 200
        exporter:
          otlp_http:
            endpoint: {url}/v1/metrics
"""


def described(folder: Path, url: str) -> dict[str, str]:
    """The environment that names a file for a collector."""
    path = folder / "otel.yaml"
    path.write_text(FILE.format(url=url))
    return {"OTEL_CONFIG_FILE": str(path), "OTEL_METRICS_EXPORTER": "none"}


def readings(sink: Collector, name: str) -> dict[str, float]:
    """The newest value of each GPU that arrived under a name, by hw.id."""
    return {str(point.attributes["hw.id"]): point.value for point in sink.points(name)}


def test_the_gpus_are_reported_on_the_provider_that_the_file_describes(tmp_path: Path) -> None:
    """Who configures all of OpenTelemetry by one file gets the GPUs there, and Prometheus its page as before."""
    with collector() as sink, serving(models.h100(2), tmp_path, environ=described(tmp_path, sink.url)) as served:
        until(lambda: len(readings(sink, "hw.power")) == 2, "two GPUs at the collector")
        page = served.page()
        code = served.stop()

    assert code == 0
    assert readings(sink, "hw.power") == values(page, "DCGM_FI_DEV_POWER_USAGE", by="UUID")


def test_the_other_variables_are_passed_over(tmp_path: Path) -> None:
    """As the specification says: the file alone counts (here OTEL_METRICS_EXPORTER=none would take the page away)."""
    with collector() as sink, serving(models.t4(), tmp_path, environ=described(tmp_path, sink.url)) as served:
        page = served.page()

    assert values(page, "otelgpu_gpu_up") == {"0": 1}


def test_a_collector_that_is_gone_does_not_hold_the_end_up(tmp_path: Path) -> None:
    """The provider of the file flushes at the end; that must not keep a pod from ending."""
    environ = described(tmp_path, "http://127.0.0.1:9")
    with serving(models.t4(), tmp_path, environ=environ) as served:
        served.page()
        code = served.stop(signal.SIGTERM, limit=5)

    assert code == 0


CONSOLE = "file_format: '1.0'\nmeter_provider:\n  readers: [{periodic: {exporter: {console: {}}}}]\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "not found"),
        ("file_format: [", "otel.yaml"),
        ("file_format: '1.0'\nmeter_provider: {readers: [{periodic: {interval: often}}]}\n", "otel.yaml"),
        (b"\xff\xfe\x00", "utf-8"),
        ("a: " + "[" * 3000, "recursion"),
        (
            f"{CONSOLE}  views: [{{selector: {{instrument_name: 'hw.*'}}, stream: {{name: x}}}}]\n",
            "wildcard",
        ),
        (
            "file_format: '1.0'\nmeter_provider: {readers: [{pull: {exporter: {dcgm: {port: 0, bogus: 1}}}}]}\n",
            "bogus: no such argument",
        ),
    ],
    ids=["absent", "no YAML", "no number", "no text", "too deep", "view", "option of ours"],
)
def test_a_file_that_the_sdk_does_not_take_is_one_line(tmp_path: Path, content: str | bytes | None, said: str) -> None:
    """A typing mistake in it is told at start, with the file's name."""
    path = tmp_path / "otel.yaml"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, lines = refused(models.t4(), tmp_path, environ={"OTEL_CONFIG_FILE": str(path)})

    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith(f"otelgpu: OTEL_CONFIG_FILE: {path}: ")
    assert said in lines[0]
