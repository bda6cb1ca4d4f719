"""The bytes of a batch: what the stock encoder would have said of the same data."""

import logging
from dataclasses import replace

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.metrics import Observation

from otelgpu.export.join import SCHEMA_URL, SemconvJoin
from otelgpu.export.push import encode
from otelgpu.export.semconv import Joiner
from otelgpu.fields import CATALOGUE, Field, Level, Number
from tests.push.collectors import metrics_of, points_of
from tests.push.snapshots import ENERGY, GPUS, POWER, SECOND, USED, Numbers, Wire, snapshot, values

FIELDS = [field for field in CATALOGUE.values() if field.is_numeric and field.level is Level.GPU]


def _numbers(fields: list[Field], plus: int = 0) -> Numbers:
    return {
        field: {gpu: (12.5 if field.number is Number.DOUBLE else 100) + gpu.index + plus for gpu in GPUS}
        for field in fields
    }


def test_a_batch_says_what_the_stock_encoder_would_say() -> None:
    """Every field there is: names, units, help, kinds, numbers, attributes, resource, and otelgpu's own beside them."""
    wire = Wire(FIELDS, labels=(("rack", "ä"),))
    wire.meter.create_counter("otelgpu.things", unit="1").add(3, {"a": "b"})
    wire.meter.create_histogram("otelgpu.times", unit="s").record(0.3)
    wire.meter.create_observable_gauge("otelgpu.flags", callbacks=[lambda _: [Observation(1.5, {"x": True})]])
    first, second = snapshot(_numbers(FIELDS), 1000.5), snapshot(_numbers(FIELDS, 7), 1060.5)
    wire.messages(first)
    collected = wire.collected(second)
    (ours,) = wire.encoder.requests(collected, second)
    joined = Joiner(FIELDS, SemconvJoin((("rack", "ä"),))).joined(collected, second)
    stock = encode_metrics(joined)
    for resource in stock.resource_metrics:
        resource.schema_url = SCHEMA_URL
        for scope in resource.scope_metrics:
            scope.schema_url = SCHEMA_URL
            for metric in scope.metrics:
                if not metric.name.startswith("otelgpu."):
                    for point in getattr(metric, metric.WhichOneof("data") or "").data_points:
                        point.time_unix_nano = int(1060.5 * SECOND)
                        if metric.HasField("sum"):
                            point.start_time_unix_nano = int(1000.5 * SECOND)
            metrics = sorted(scope.metrics, key=lambda metric: metric.name)
            scope.ClearField("metrics")
            scope.metrics.extend(metrics)
    read = type(stock).FromString(ours.payload)
    (read_scope,) = read.resource_metrics[0].scope_metrics
    metrics = sorted(read_scope.metrics, key=lambda metric: metric.name)
    read_scope.ClearField("metrics")
    read_scope.metrics.extend(metrics)

    assert MessageToDict(read) == MessageToDict(stock)
    assert len(metrics) > 80


def test_a_point_has_the_time_of_its_sweep() -> None:
    """Collected an hour later it would look an hour newer than it is."""
    points = Wire([POWER]).points(snapshot({POWER: {GPUS[0]: 100_000}}, 1234.5))

    assert [(point.value, point.time) for point in points] == [(100.0, 1_234_500_000_000)]


def test_attributes_follow_the_identity() -> None:
    """A driver that was updated must not go on under the version before."""
    wire = Wire([POWER])
    wire.points(snapshot({POWER: {GPUS[0]: 1}}, 1))
    newer = snapshot({POWER: {GPUS[0]: 1}}, 2, identity=2)
    series = newer.series[GPUS[0].uuid]
    changed = series._replace(device=replace(series.device, driver_version="581"))
    newer = replace(newer, series={GPUS[0].uuid: changed})
    (point,) = wire.points(newer)

    assert point.attributes["hw.driver_version"] == "581"


@pytest.mark.parametrize("number", [2**63, 2**70])
def test_a_number_that_otlp_cannot_carry_costs_its_own_point(number: int, caplog: pytest.LogCaptureFixture) -> None:
    """The stock encoder raises on one such number, and the whole batch is gone."""
    wire = Wire([USED])
    sweep = snapshot({USED: {GPUS[0]: number, GPUS[1]: 5 * 2**20}}, 1)
    with caplog.at_level(logging.WARNING):
        first, second = wire.points(sweep), wire.points(sweep)

    assert values(first) == values(second) == [5 * 2**20]
    assert wire.encoder.dropped == 2
    assert len(caplog.records) == 1


def test_without_a_snapshot_only_otelgpus_own_metrics_are_sent() -> None:
    """When the driver is away its readings are absent, and what says so is not."""
    wire = Wire([POWER])
    wire.meter.create_observable_gauge("otelgpu.up", callbacks=[lambda _: [Observation(0)]])
    (message,) = wire.messages(None)

    assert [metric.name for metric in metrics_of(message)] == ["otelgpu.up"]


def test_a_batch_that_is_too_large_is_cut_between_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of gRPC refuse messages beyond 4 MiB, whole."""
    monkeypatch.setattr(encode, "MOST_BYTES", 20_000)
    wire = Wire(FIELDS)
    messages = wire.messages(snapshot(_numbers(FIELDS), 1))
    names = [metric.name for message in messages for metric in metrics_of(message)]
    several = [message.ByteSize() for message in messages if len(metrics_of(message)) > 1]
    points = [point.key for message in messages for metric in metrics_of(message) for point in points_of(metric)]

    assert len(messages) > 4
    assert len(names) == len(set(names))
    assert max(several) < 21_000
    assert len(points) == len(set(points)) == len(GPUS) * sum(field.semconv is not None for field in FIELDS)
    assert {message.resource_metrics[0].schema_url for message in messages} == {SCHEMA_URL}
    assert {message.resource_metrics[0].scope_metrics[0].scope.name for message in messages} == {"otelgpu"}


def test_totals_are_sums_and_levels_are_gauges() -> None:
    """A rate over a gauge, or a sum of levels, is nonsense that nobody notices."""
    wire = Wire([POWER, ENERGY, USED])
    (message,) = wire.messages(snapshot({POWER: {GPUS[0]: 1}, ENERGY: {GPUS[0]: 1}, USED: {GPUS[0]: 1}}, 1))
    kinds = {metric.name: (metric.WhichOneof("data"), metric.sum.is_monotonic) for metric in metrics_of(message)}

    assert kinds == {
        "hw.power": ("gauge", False),
        "hw.energy": ("sum", True),
        "hw.gpu.memory.usage": ("sum", False),
    }
