"""Everything we emit under OpenTelemetry's official names is what the conventions say."""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, Metric, MetricsData, NumberDataPoint, Sum

from otelgpu.export.join import SemconvJoin
from otelgpu.export.semconv import Joiner
from otelgpu.fields import CATALOGUE, UP_DOWN, Number
from otelgpu.instruments import Pinned, create_instruments
from tests.conftest import ROOT
from tests.fakenvml import models
from tests.harness import Node

FACTS = ROOT.parent / "shared" / "reference" / "semconv.md"
ROW = re.compile(r"^\| (hw\.[a-z_.]+) \| (\w+) \| ([^|]+) \| (int|double) \| ([^|]+) \|$", re.MULTILINE)
GPU_SET = {"hw.name", "hw.model", "hw.vendor", "hw.driver_version"}
STATES = {"ok", "degraded", "failed", "predicted_failure", "needs_cleaning"}
TASKS = {"decoder", "encoder", "general"}


class Official(NamedTuple):
    """One row of the table in semconv.md."""

    instrument: str
    unit: str
    number: str
    required: frozenset[str]


@pytest.fixture(scope="module")
def official() -> dict[str, Official]:
    """The conventions, by metric name."""
    if not FACTS.exists():
        pytest.skip("the reference is not beside this checkout")
    rows = {
        name: Official(kind, unit.strip(), number, frozenset(re.findall(r"([a-z_.]+)\*", attributes)))
        for name, kind, unit, number, attributes in ROW.findall(FACTS.read_text())
    }
    assert len(rows) >= 13
    return rows


def instrument(name: str, *, is_total: bool) -> str:
    """Name the kind of instrument of one of our metrics."""
    return "updowncounter" if name in UP_DOWN else "counter" if is_total else "gauge"


def test_every_row_of_the_catalogue_keeps_to_the_conventions(official: dict[str, Official]) -> None:
    """Name, instrument, unit, kind of number and fixed attributes, of all fields whoever reads them."""
    seen = set()
    for field in CATALOGUE.values():
        shape = field.semconv
        if shape is None or shape.name not in official:
            assert shape is None or shape.name.startswith("hw.gpu.nvidia."), field.name
            continue
        row = official[shape.name]
        seen.add(shape.name)
        fixed = dict(shape.attributes)

        assert instrument(shape.name, is_total=field.is_total) == row.instrument, field.name
        assert shape.unit == row.unit, field.name
        assert (shape.number is Number.DOUBLE) == (row.number == "double"), field.name
        assert row.required - {"hw.id"} <= set(fixed), field.name
        assert fixed.get("hw.gpu.task", "general") in TASKS, field.name
    assert {"hw.gpu.utilization", "hw.gpu.memory.usage", "hw.power", "hw.energy", "hw.temperature", "hw.errors"} <= seen


def joined(running: Node) -> Iterator[Metric]:
    """What OTLP and the semconv page are made of: the metrics of one sweep, joined."""
    pinned = Pinned()

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    create_instruments(provider.get_meter("semconv"), running.pipeline.fields, pinned)
    snapshot = running.sweep()
    with pinned.to(snapshot, shown=True):
        data = reader.get_metrics_data()
    assert isinstance(data, MetricsData)
    for resource in Joiner(running.pipeline.fields, SemconvJoin()).joined(data, snapshot).resource_metrics:
        for scope in resource.scope_metrics:
            yield from scope.metrics


@pytest.mark.parametrize("model", sorted(set(models.MAKERS) - {"none", "crowd"}))
def test_every_point_keeps_to_the_conventions(
    model: str, node: Callable[..., Node], official: dict[str, Official]
) -> None:
    """Of each model of GPU: kinds of metric, units, numbers and the attributes that the conventions ask for."""
    for metric in joined(node(models.MAKERS[model](), fields=("all",))):
        row = official.get(metric.name)
        assert row is not None or metric.name.startswith("hw.gpu.nvidia."), metric.name
        points = [point for point in metric.data.data_points if isinstance(point, NumberDataPoint)]
        assert points
        for point in points:
            attributes = dict(point.attributes or {})
            assert {"hw.id"} | GPU_SET <= set(attributes), metric.name
            if row is not None:
                assert row.required <= set(attributes), metric.name
                assert isinstance(point.value, float if row.number == "double" else int), metric.name
        if row is not None:
            assert metric.unit == row.unit
            assert isinstance(metric.data, Gauge if row.instrument == "gauge" else Sum)
            if isinstance(metric.data, Sum):
                assert metric.data.is_monotonic is (row.instrument == "counter")


def test_the_status_keeps_to_the_conventions(node: Callable[..., Node], official: dict[str, Official]) -> None:
    """hw.status has no field behind it and is made on its own."""
    page = node(models.mixed(), naming="semconv").page()
    shown = set(re.findall(r'hw_status\{[^}]*hw_state="([a-z_]+)"', page))
    row = official["hw.status"]

    assert (row.instrument, row.unit, row.number) == ("updowncounter", "1", "int")
    assert shown < STATES
    assert re.search(r'hw_status\{[^}]*hw_type="gpu"', page)
