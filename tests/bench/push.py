"""OTLP push: time and bytes of a batch, against the stock path, and memory with each protocol."""

import gzip
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otelgpu.config import Config, Otlp
from otelgpu.export.join import SemconvJoin
from otelgpu.export.push.encode import Encoder
from otelgpu.export.push.outcome import Delivered
from otelgpu.export.push.reader import GZIP_LEVEL
from otelgpu.export.push.setup import make_sender
from otelgpu.fields import Field
from otelgpu.instruments import CARDINALITY_LIMITS, Pinned, create_instruments
from otelgpu.model import Snapshot
from tests.bench.figures import Figure, interleaved, median
from tests.bench.pages import FIELDS, snapshot_of
from tests.bench.process import RSS
from tests.fakenvml import models
from tests.harness import serving, until, values
from tests.push.collectors import Rotel, rotel_program

BATCHES = 100
JOIN = SemconvJoin()


def push_figures() -> Iterator[Figure]:
    """Compare 480 points (8 GPUs) and 6,720 (112 instances); then push for real."""
    for devices in (8, 112):
        ours, stock = _ours(devices), _stock(devices)
        count = devices * len(FIELDS)
        seconds, theirs = interleaved(ours, stock)
        yield Figure(
            f"OTLP batch of {count} points from collect to bytes, of the stock path's time",
            seconds / theirs,
            0.6,
            detail=f"{seconds * 1000:.1f} ms against {theirs * 1000:.1f} ms; {seconds / count * 1e6:.1f} us a point",
        )
        payload = ours()
        packed = gzip.compress(payload, GZIP_LEVEL, mtime=0)
        yield Figure(
            f"OTLP batch of {count} points",
            len(payload) / count,
            420,
            "bytes a point",
            f"{len(payload) / 1e3:.0f} kB, {len(packed) / 1e3:.1f} kB gzipped in "
            f"{median(lambda data=payload: gzip.compress(data, GZIP_LEVEL)) * 1000:.1f} ms",  # type: ignore[misc]
        )
    folder = Path(tempfile.mkdtemp(prefix="otelgpu-bench-"))
    rotel = Rotel(rotel_program(), "http://127.0.0.1:9", folder, exporter="blackhole")
    rotel.start()
    try:
        for protocol in ("http/protobuf", "grpc"):
            yield _sent(protocol, rotel, gzip.compress(_ours(8)(), GZIP_LEVEL))
            yield _memory(protocol, rotel, folder)
    finally:
        rotel.kill()


def _ours(devices: int) -> Callable[[], bytes]:
    pinned, sweep = Pinned(), snapshot_of(devices)
    reader = InMemoryMetricReader(cardinality_limits=dict(CARDINALITY_LIMITS))
    provider = MeterProvider([reader], shutdown_on_exit=False)
    create_instruments(provider.get_meter("bench"), FIELDS, pinned)
    encoder = Encoder(FIELDS, JOIN)

    def batch() -> bytes:
        with pinned.to(sweep, shown=True):
            collected = reader.get_metrics_data()
        assert collected is not None
        return b"".join(request.payload for request in encoder.requests(collected, sweep))

    return batch


def _stock(devices: int) -> Callable[[], bytes]:
    """The same points with all their attributes, as instruments under OpenTelemetry's names would give them."""
    sweep = snapshot_of(devices)
    reader = InMemoryMetricReader(cardinality_limits=dict(CARDINALITY_LIMITS))
    provider = MeterProvider([reader], shutdown_on_exit=False)
    meter = provider.get_meter("bench")
    for field in FIELDS:
        create = meter.create_observable_counter if field.is_total else meter.create_observable_gauge
        create(field.name, callbacks=[_callback(field, sweep)], unit=field.unit, description=field.help)

    def batch() -> bytes:
        collected = reader.get_metrics_data()
        assert collected is not None
        return bytes(encode_metrics(collected).SerializeToString())

    return batch


def _callback(field: Field, sweep: Snapshot) -> Callable[[CallbackOptions], list[Observation]]:
    shape = field.semconv
    assert shape is not None
    sets = {key: JOIN.attributes(shape, series) for key, series in sweep.series.items()}
    return lambda _: [Observation(number, sets[key]) for key, number in sweep.numbers[field.id].items()]


def _config(protocol: str, rotel: Rotel) -> Config:
    return Config(otlp=Otlp(endpoint=rotel.url(protocol), protocol=protocol))  # type: ignore[arg-type]


def _sent(protocol: str, rotel: Rotel, payload: bytes) -> Figure:
    sender = make_sender(_config(protocol, rotel))
    try:
        assert sender.send(payload) == Delivered()
        seconds = median(lambda: sender.send(payload), rounds=50)
    finally:
        sender.close()
    return Figure(f"sending a batch of {8 * len(FIELDS)} points by {protocol}", seconds * 1000, 25, "ms")


def _memory(protocol: str, rotel: Rotel, folder: Path) -> Figure:
    flags = ("--otlp", rotel.url(protocol), "--otlp-protocol", protocol, "--otlp-interval", "0.05", "--reuse", "0")
    with serving(models.h100(8), folder, *flags) as served:
        until(lambda: values(served.page(), "otelgpu_otlp_batches_sent_total")[""] >= BATCHES, "batches", limit=60)
        size = values(served.page(), RSS)[""] / 1e6
    return Figure(f"RSS after {BATCHES} batches by {protocol}", size, 75 if protocol == "grpc" else 65, "MB")
