"""What the design rests on in the OpenTelemetry SDK; when one of these fails, a newer SDK changed a fact."""

from collections.abc import Callable

import pytest
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricReader, NumberDataPoint

from otelgpu.config import Sampling
from otelgpu.export.join import DcgmJoin
from otelgpu.export.page import Format, PageReader
from otelgpu.fields import CATALOGUE
from otelgpu.instruments import CARDINALITY_LIMITS, SERIES, Pinned, create_instruments
from tests.fakenvml import models
from tests.harness import Node, lines_of, series, values


def points(reader: InMemoryMetricReader) -> list[NumberDataPoint]:
    """All number points of one collection."""
    data = reader.get_metrics_data()
    if data is None:
        return []
    return [
        point
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if isinstance(point, NumberDataPoint)
    ]


def provider_with(callback: Callable[[CallbackOptions], list[Observation]]) -> InMemoryMetricReader:
    """A reader on a provider with one observable gauge."""
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("facts")
    meter.create_observable_gauge("Mixed.Case", callbacks=[callback])
    return reader


def test_past_two_thousand_attribute_sets_all_new_ones_become_one_point() -> None:
    """Why a point carries a bounded series key and never a pod's name."""
    round_ = iter(range(3))

    def report(_: CallbackOptions) -> list[Observation]:
        start = next(round_) * 1500
        return [Observation(1, {"pod": str(start + i)}) for i in range(1500)]

    reader = provider_with(report)
    first, second = points(reader), points(reader)

    assert len(first) == 1500
    assert any("otel.metric.overflow" in dict(point.attributes or {}) for point in second)


def test_names_are_lower_cased() -> None:
    """Why the page's names come from the catalogue and not from the instrument."""
    data = provider_with(lambda _: [Observation(1)]).get_metrics_data()

    assert data is not None
    assert data.resource_metrics[0].scope_metrics[0].metrics[0].name == "mixed.case"


def test_a_collection_without_points_is_not_handed_to_the_reader() -> None:
    """Why a reader throws away what it collected before: it would show the old page for ever."""

    class Counting(MetricReader):
        received = 0

        def _receive_metrics(self, *_: object, **__: object) -> None:
            self.received += 1

        def shutdown(self, *_: object, **__: object) -> None:
            """Nothing is held."""

    reader = Counting()
    meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("facts")
    observed = [Observation(1)]
    meter.create_observable_gauge("one", callbacks=[lambda _: observed])
    reader.collect()
    observed.clear()
    reader.collect()

    assert reader.received == 1


def test_an_empty_snapshot_clears_the_page() -> None:
    """When readings are too old to be shown, the page does not keep the last ones."""
    field = CATALOGUE[150]
    pinned = Pinned()
    reader = PageReader([field], DcgmJoin(), pinned)
    create_instruments(MeterProvider([reader], shutdown_on_exit=False).get_meter("facts"), [field], pinned)

    assert reader.page(None, Format.TEXT, shown=False) == b""


def test_the_same_key_twice_loses_a_value() -> None:
    """Why the snapshot refuses a second reading of one series."""
    reader = provider_with(lambda _: [Observation(1, {SERIES: "a"}), Observation(2, {SERIES: "a"})])

    assert len(points(reader)) == 1


def test_series_keys_are_unique_on_a_full_node(node: Callable[..., Node]) -> None:
    """No GPU or instance of a node with 112 instances shares its key with another."""
    running = node(models.crowd())
    snapshot = running.sweep()

    devices = {key: (found.device.uuid, found.attributes) for key, found in snapshot.series.items()}

    assert len(set(devices.values())) == len(devices) == 16 * 8


def test_the_limit_of_our_readers_is_beyond_any_node() -> None:
    """A node with more than 2,000 devices (the SDK's own limit) loses none."""
    devices = 2100
    reader = PageReader([], DcgmJoin(), Pinned())
    meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("facts")
    meter.create_observable_gauge(
        "otelgpu.many", callbacks=[lambda _: [Observation(1, {"device": str(i)}) for i in range(devices)]]
    )

    page = reader.page(None, Format.TEXT, shown=False).decode()

    assert len(lines_of(page)) == devices


@pytest.mark.parametrize("naming", ["dcgm", "semconv"])
def test_past_the_limit_of_our_readers_the_page_lacks_series_and_is_there(
    naming: str, node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK's point for all that is left over has no series key: it is nobody's value."""
    few = dict.fromkeys(CARDINALITY_LIMITS, 3)
    for module in ("page", "semconv"):
        monkeypatch.setattr(f"otelgpu.export.{module}.CARDINALITY_LIMITS", few)
    page = node(models.h100(5), fields=("DCGM_FI_DEV_GPU_TEMP",), naming=naming).page()

    name = "DCGM_FI_DEV_GPU_TEMP" if naming == "dcgm" else "hw_temperature_celsius"
    assert 0 < len([line for line in lines_of(page) if line.name == name]) <= 3
    assert "overflow" not in "".join(line for line in page.splitlines() if line.startswith(name))


def test_one_collection_reads_one_snapshot(node: Callable[..., Node]) -> None:
    """Counters and gauges of two sweeps never stand side by side."""
    running = node(models.h100())
    old = running.sweep()
    running.show(models.h100().with_gpu(0, answers={("nvmlDeviceGetTemperature", 0): 77}))
    running.sweep()

    page = running.pipeline.reader.page(old, Format.TEXT, shown=True).decode()

    assert values(page, "DCGM_FI_DEV_GPU_TEMP") == {"0": 29}


def test_an_expired_snapshot_gives_no_readings_and_all_of_our_own(node: Callable[..., Node]) -> None:
    """An old value would look new, since a scrape stamps it with its own time."""
    running = node(models.h100(), sampling=Sampling(reuse=60, expire=60))
    snapshot = running.sweep()

    page = running.pipeline.reader.page(snapshot, Format.TEXT, shown=False).decode()

    assert not series(page)
    assert values(page, "otelgpu_gpu_up") == {"0": 1}
