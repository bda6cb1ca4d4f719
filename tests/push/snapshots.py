"""Snapshots made by hand, and readers over them."""

from collections.abc import Iterable, Mapping, Sequence

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from opentelemetry.sdk.resources import Resource

from otelgpu.export.join import SemconvJoin
from otelgpu.export.push.encode import Encoder
from otelgpu.fields import CATALOGUE, Field
from otelgpu.instruments import CARDINALITY_LIMITS, Pinned, create_instruments
from otelgpu.model import Device, GpuState, Series, Snapshot, SourceFacts
from tests.push.collectors import Point, metrics_of, points_of

GPUS = tuple(
    Device(
        f"GPU-{index}",
        f"GPU-{index}",
        index,
        "NVIDIA H100 80GB HBM3",
        f"00000000:0{index}:00.0",
        serial="16",
        driver_version="580.1",
    )
    for index in range(2)
)
POWER, ENERGY, REPLAYS, USED = (CATALOGUE[id_] for id_ in (155, 156, 202, 252))
SECOND = 1_000_000_000

Numbers = Mapping[Field, Mapping[Device, int | float]]


def snapshot(numbers: Numbers, at: float, *, identity: int = 1) -> Snapshot:
    """A sweep that ended *at* seconds since the epoch (and by the clock)."""
    devices = list(dict.fromkeys(device for by_device in numbers.values() for device in by_device))
    return Snapshot(
        at=at,
        unix=at,
        started_unix=at,
        identity=identity,
        facts=SourceFacts("test"),
        source_up=True,
        source_reason="",
        states=tuple(GpuState(device, up=True) for device in devices),
        numbers={field.id: {device.uuid: number for device, number in of.items()} for field, of in numbers.items()},
        series={device.uuid: Series(device, ()) for device in devices},
        labels={device.uuid: () for device in devices},
        missing=(),
        seconds=0.001,
    )


class Wire:
    """Fields on their way through the SDK and the encoder, sweep by sweep."""

    def __init__(
        self, fields: Iterable[Field], *, delta: bool = False, labels: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self.fields = tuple(fields)
        self.encoder = Encoder(self.fields, SemconvJoin(labels), delta=delta)
        self.pinned = Pinned()
        self._reader = InMemoryMetricReader(cardinality_limits=dict(CARDINALITY_LIMITS))
        self.provider = MeterProvider(
            [self._reader], resource=Resource({"service.name": "otelgpu", "n": 1}), shutdown_on_exit=False
        )
        self.meter = self.provider.get_meter("otelgpu", "1")
        create_instruments(self.meter, self.fields, self.pinned)

    def collected(self, sweep: Snapshot | None) -> MetricsData:
        """What the SDK collects of a sweep."""
        with self.pinned.to(sweep, shown=True):
            found = self._reader.get_metrics_data()
        return found or MetricsData([])

    def messages(self, sweep: Snapshot | None, *, lost: bool = False) -> list[ExportMetricsServiceRequest]:
        """What a collector reads of a sweep; *lost*: or would, had it arrived."""
        requests = self.encoder.requests(self.collected(sweep), sweep)
        if sweep is not None and not lost:
            self.encoder.arrived(sweep.unix)
        return [ExportMetricsServiceRequest.FromString(request.payload) for request in requests]

    def points(self, sweep: Snapshot, *, lost: bool = False) -> list[Point]:
        """The points of a sweep."""
        found = self.messages(sweep, lost=lost)
        return [point for one in found for metric in metrics_of(one) for point in points_of(metric)]


def values(points: Sequence[Point]) -> list[float]:
    """Only the numbers."""
    return [point.value for point in points]
