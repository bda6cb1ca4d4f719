"""The collecting thread: its pace, what it survives, and what the settings make of it."""

import gzip
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from opentelemetry.metrics import Observation
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.sdk.metrics import MeterProvider

from otelgpu.config import Config, Otlp
from otelgpu.errors import ConfigError
from otelgpu.export.join import SemconvJoin
from otelgpu.export.push.encode import Encoder
from otelgpu.export.push.reader import PushReader
from otelgpu.export.push.setup import make_sender
from otelgpu.instruments import Pinned, create_instruments
from otelgpu.model import Snapshot
from tests.fakenvml import models
from tests.harness import LIMIT, Node, serving, until
from tests.push.collectors import Answer, Collector, metrics_of, points_of
from tests.push.conftest import Papers, Pushing
from tests.push.snapshots import ENERGY, GPUS, POWER, snapshot


class Rig:
    """A reader over sweeps that are handed to it; what it delivers is kept."""

    def __init__(self, *, interval: float = 3600, delta: bool = False, exponential: bool = False) -> None:
        self.sweep: Snapshot | None = None
        self.fresh = True
        self.fault: Exception | None = None
        self.refreshed: list[float | None] = []
        self.delivered: list[list[Metric]] = []
        pinned = Pinned()
        self.reader = PushReader(
            Encoder([POWER, ENERGY], SemconvJoin(), delta=delta),
            pinned,
            refresh=self._refresh,
            is_fresh=lambda _: self.fresh,
            deliver=self._deliver,
            interval=interval,
            delta=delta,
            exponential=exponential,
        )
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.meter = self.provider.get_meter("otelgpu")
        create_instruments(self.meter, [POWER, ENERGY], pinned)

    def _refresh(self, deadline: float | None) -> Snapshot | None:
        self.refreshed.append(deadline)
        if self.fault is not None:
            raise self.fault
        return self.sweep

    def _deliver(self, payload: bytes, points: int, arrived: Callable[[], object]) -> None:
        metrics = metrics_of(ExportMetricsServiceRequest.FromString(gzip.decompress(payload)))
        assert points == sum(len(getattr(one, one.WhichOneof("data") or "").data_points) for one in metrics)
        self.delivered.append(metrics)
        arrived()

    def names(self) -> list[list[str]]:
        return [[metric.name for metric in metrics] for metrics in self.delivered]


def _power(at: float) -> Snapshot:
    return snapshot({POWER: {GPUS[0]: 1000}}, at)


def test_it_collects_at_once_and_then_at_its_pace() -> None:
    """A pod that lives for half a minute would otherwise never be seen."""
    rig = Rig(interval=0.01)
    rig.sweep = _power(1)
    rig.reader.start()
    until(lambda: len(rig.refreshed) > 3, "several collections")
    rig.reader.stop(LIMIT)

    assert rig.names()[0] == ["hw.power"]


def test_a_sweep_is_sent_once() -> None:
    """The same readings a second time with the same timestamp are what backends call a duplicate."""
    rig = Rig()
    rig.meter.create_observable_gauge("otelgpu.up", callbacks=[lambda _: [Observation(1)]])
    for at in (1, 1, 2):
        rig.sweep = _power(at)
        rig.reader.push()

    assert rig.names() == [["otelgpu.up", "hw.power"], ["otelgpu.up"], ["otelgpu.up", "hw.power"]]


def test_readings_that_are_too_old_are_not_sent() -> None:
    """A driver that hangs must show as a gap and not as a flat line."""
    rig = Rig()
    rig.sweep, rig.fresh = _power(1), False
    rig.reader.push()
    rig.sweep = None
    rig.reader.push()

    assert rig.delivered == []


def test_an_exception_costs_one_collection(caplog: pytest.LogCaptureFixture) -> None:
    """The stock reader's thread dies of one. It is told once, and once when it is over."""
    rig = Rig(interval=0.01)
    rig.sweep, rig.fault = _power(1), RuntimeError("boom")
    with caplog.at_level(logging.INFO):
        rig.reader.start()
        until(lambda: rig.reader.failures > 3, "failures")
        rig.fault = None
        until(lambda: bool(rig.delivered), "a batch")
        rig.reader.stop(LIMIT)

    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert "boom" in caplog.text


def test_stopping_collects_once_more_without_waiting_long_for_the_driver() -> None:
    """At SIGTERM there are five seconds for everything."""
    rig = Rig()
    rig.sweep = _power(1)
    rig.reader.start()
    until(lambda: bool(rig.delivered), "the first batch")
    rig.sweep = _power(2)
    rig.provider.shutdown()
    rig.reader.stop(0)

    assert rig.names() == [["hw.power"], ["hw.power"]]
    assert rig.refreshed[0] is None
    assert rig.refreshed[1] is not None
    assert rig.refreshed[1] < 1
    assert "otelgpu-collect" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("delta", [True, False])
def test_histograms_follow_the_temporality_and_the_kind(delta: bool) -> None:  # noqa: FBT001 - a table of two
    """They are the SDK's own, so it is told when the reader is made."""
    rig = Rig(delta=delta, exponential=delta)
    histogram = rig.meter.create_histogram("otelgpu.times")
    for _ in range(2):
        histogram.record(1)
        rig.reader.push()
    kind = "exponential_histogram" if delta else "histogram"
    counts = [getattr(metrics[0], kind).data_points[0].count for metrics in rig.delivered]

    assert counts == ([1, 1] if delta else [1, 2])


@pytest.mark.parametrize(("temporality", "fields", "own"), [("cumulative", 2, 2), ("delta", 1, 1), ("lowmemory", 2, 2)])
def test_the_settings_choose_the_temporality(
    temporality: str, fields: int, own: int, sink: Collector, pushing: Callable[..., Pushing]
) -> None:
    """Delta for all, or (lowmemory) for what is counted in this process; our totals are all observed."""
    running = pushing(models.t4(1), sink.url, temporality=temporality)
    for _ in range(3):
        running.batch()
    sink.expect(3)
    sums = {metric.name: metric.sum.aggregation_temporality for metric in sink.metrics() if metric.sum.is_monotonic}

    assert sums["hw.energy"] == fields
    assert sums["otelgpu.sweeps"] == own


@pytest.mark.usefixtures("fake")
def test_a_tls_collector_is_pushed_to(papers: Papers, tmp_path: Path) -> None:
    """The whole way with a certificate of one's own, by the standard variables alone."""
    from tests.push.collectors import collector

    with collector(certificate=papers) as running:
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": running.url,
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(papers.certificate),
            "OTEL_EXPORTER_OTLP_HEADERS": "x-scope-orgid=7",
            "OTEL_METRIC_EXPORT_INTERVAL": "100",
            "OTEL_SERVICE_NAME": "gpus",
        }
        with serving(models.t4(1), tmp_path, environ=environ):
            received = running.expect(1)[0]

    assert received.headers["x-scope-orgid"] == "7"
    assert received.path == "/v1/metrics"


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("variable", [{"OTEL_METRICS_EXPORTER": "none"}, {"OTEL_SDK_DISABLED": "true"}])
def test_without_an_exporter_the_process_is_healthy_and_says_nothing(variable: dict[str, str], tmp_path: Path) -> None:
    """Whoever switches metrics off for a namespace does not want pods that restart."""
    with serving(models.t4(1), tmp_path, environ=variable) as served:
        until(lambda: served.get("/readyz").status == 200, "readiness")
        page = served.page()

    assert page.startswith("# no metrics here")
    assert "\nDCGM" not in page


@pytest.mark.usefixtures("fake")
def test_the_console_shows_what_would_be_sent(node: Callable[..., Node], capfd: pytest.CaptureFixture[str]) -> None:
    """OTEL_METRICS_EXPORTER=console, to see what a collector would get."""
    running = node(models.t4(1), exporters=("console",))
    (push,) = running.pipeline.pushes
    push.start()
    until(lambda: push.pusher.sent.batches > 0, "a batch")  # type: ignore[attr-defined]
    running.stop()

    assert '"name": "hw.power"' in capfd.readouterr().out


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_files_that_are_not_there_are_told_at_the_start(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first word of it comes a minute later, from TLS, and means nothing to anybody; a pipe is waited for."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    files = {"certificate": "/nowhere/ca.pem", "client_certificate": "pipe", "client_key": "/nowhere"}
    otlp = Otlp(endpoint="https://c:4318", protocol=protocol, **files)  # type: ignore[arg-type]
    config = Config(otlp=otlp, origins={"otlp.certificate": "otelgpu.yaml:7", "otlp.client_key": "--otlp-client-key"})

    with pytest.raises(ConfigError) as caught:
        make_sender(config)
    assert caught.value.problems == (
        "otelgpu.yaml:7: /nowhere/ca.pem: cannot be read",
        "default: pipe: cannot be read",
        "--otlp-client-key: /nowhere: cannot be read",
    )


def test_points_that_a_collector_rejects_are_counted_on_the_page(
    sink: Collector, pushing: Callable[..., Pushing]
) -> None:
    """A partial success is the only trace of a limit at the other end."""
    from tests.harness import values
    from tests.push.collectors import partial

    sink.answers += [partial(3, "too many series"), Answer()]
    running = pushing(models.t4(1), sink.url)
    running.batch()
    until(lambda: running.push.pusher.sent.batches == 1, "a batch")
    page = running.node.page()

    assert values(page, "otelgpu_otlp_points_dropped_total", by="reason")["rejected"] == 3
    assert points_of(metrics_of(sink.received[0].message)[0])
