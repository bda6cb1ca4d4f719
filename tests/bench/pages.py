"""A page of ours against the stock exporter's with as many instruments and nine attributes."""

from collections.abc import Callable, Iterator

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest

from otelgpu.export.join import DcgmJoin
from otelgpu.export.page import Format, PageReader
from otelgpu.fields import CATALOGUE, Field, Level, Number
from otelgpu.instruments import Pinned, create_instruments
from otelgpu.model import Device, GpuState, Series, Snapshot, SourceFacts
from tests.bench.figures import Figure, interleaved

FIELDS = [field for field in CATALOGUE.values() if field.is_numeric and field.level is Level.GPU][:60]


def page_figures() -> Iterator[Figure]:
    """Compare 480 series (8 GPUs) and 6,720 (112 instances)."""
    for devices in (8, 112):
        ours, stock = interleaved(_ours(devices), _stock(devices))
        count = devices * len(FIELDS)
        yield Figure(
            f"page of {count} series, of the stock reader's time",
            ours / stock,
            0.4,
            detail=f"{ours * 1000:.1f} ms against {stock * 1000:.1f} ms; {ours / count * 1e6:.1f} us a series",
        )


def _ours(devices: int) -> Callable[[], bytes]:
    pinned = Pinned()
    reader = PageReader(FIELDS, DcgmJoin("4.8.2", "node-1"), pinned)
    provider = MeterProvider([reader], shutdown_on_exit=False)
    create_instruments(provider.get_meter("bench"), FIELDS, pinned)
    snapshot = snapshot_of(devices)
    return lambda: reader.page(snapshot, Format.TEXT, shown=True)


def _stock(devices: int) -> Callable[[], bytes]:
    registry = CollectorRegistry()
    provider = MeterProvider([PrometheusMetricReader(registry=registry)], shutdown_on_exit=False)
    meter = provider.get_meter("bench")
    sets = [
        {
            "gpu": str(device.index),
            "UUID": device.uuid,
            "pci_bus_id": device.pci_bus_id,
            "device": f"nvidia{device.index}",
            "modelName": device.model,
            "Hostname": "node-1",
            "DCGM_FI_DRIVER_VERSION": device.driver_version,
            "namespace": "training",
            "pod": "job-0",
        }
        for device in _devices(devices)
    ]

    def callback(field: Field) -> Callable[[CallbackOptions], list[Observation]]:
        return lambda _: [Observation(_number(field, i), attributes) for i, attributes in enumerate(sets)]

    for field in FIELDS:
        create = meter.create_observable_counter if field.is_total else meter.create_observable_gauge
        create(field.name, callbacks=[callback(field)], unit=field.unit, description=field.help)
    return lambda: generate_latest(registry)


def _devices(count: int) -> list[Device]:
    uuids = [f"GPU-{index:08x}-7a4e-4658-8cf8-fe22bc9f9c64" for index in range(count)]
    return [
        Device(uuid, uuid, index, "NVIDIA H100 80GB HBM3", f"00000000:{index:02X}:00.0", driver_version="580.105.08")
        for index, uuid in enumerate(uuids)
    ]


def _number(field: Field, index: int) -> int | float:
    return 12.5 + index if field.number is Number.DOUBLE else 345 + index


def snapshot_of(count: int) -> Snapshot:
    """A sweep over so many devices, with a number for each of FIELDS."""
    devices = _devices(count)
    driver = CATALOGUE[1]
    return Snapshot(
        at=1.0,
        unix=1.0,
        started_unix=1.0,
        identity=1,
        facts=SourceFacts("bench"),
        source_up=True,
        source_reason="",
        states=tuple(GpuState(device, up=True) for device in devices),
        numbers={
            field.id: {device.uuid: _number(field, index) for index, device in enumerate(devices)} for field in FIELDS
        },
        series={device.uuid: Series(device, ()) for device in devices},
        labels={device.uuid: ((driver, device.driver_version),) for device in devices},
        missing=(),
        seconds=0.001,
    )
