"""Everything we emit under OpenTelemetry's official names is what the conventions say."""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, Metric, MetricsData, NumberDataPoint, Sum

from otelgpu.export.join import SemconvJoin, text_attribute
from otelgpu.export.semconv import Joiner
from otelgpu.fields import CATALOGUE, UP_DOWN, Field, Kind, Number, Shape, help_in
from otelgpu.fields.process import PROCESS_FIELDS
from otelgpu.instruments import Pinned, create_instruments
from otelgpu.sources.dcgm import DcgmSource
from otelgpu.sources.nvml.source import NvmlSource
from otelgpu.sources.simulated import SimulatedSource
from tests.conftest import ROOT
from tests.fakenvml import models
from tests.harness import Node

FACTS = ROOT.parent / "shared" / "reference" / "semconv.md"
ROW = re.compile(r"^\| (hw\.[a-z_.]+) \| (\w+) \| ([^|]+) \| (int|double) \| ([^|]+) \|$", re.MULTILINE)
GPU_SET = {"hw.name", "hw.model", "hw.vendor", "hw.driver_version"}
STATES = {"ok", "degraded", "failed", "predicted_failure", "needs_cleaning"}
TASKS = {"decoder", "encoder", "general"}
LIMITS = {f"{how}{what}" for how in ("", "high.", "low.") for what in ("critical", "degraded")} | {
    "max",
    "throttled",
    "turbo",
}


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


UNIT = re.compile(r"1|(k|M|m|u|n|Mi|Ki)?(Hz|W|J|By|s|V)(/s)?|Cel|rpm|\{[a-z]+\}(/s)?")
NAME = re.compile(r"hw\.gpu\.nvidia(\.[a-z][a-z0-9_]*)+")
KEYS = {
    "hw.type",
    "hw.gpu.task",
    "hw.sensor_location",
    "hw.limit_type",
    "hw.state",
    "error.type",
    "network.io.direction",
}
READERS = {"nvml": NvmlSource.readable, "dcgm": DcgmSource.readable, "simulated": SimulatedSource.readable}
PASSING_ON = {"isolated", "recorded"}  # what one of the others has read
FIELDS = dict(CATALOGUE) | {field.id: field for field in PROCESS_FIELDS}


def test_every_source_is_looked_at() -> None:
    """A source that is added has to keep to the conventions as well."""
    sources = {path.name for path in (ROOT / "otelgpu" / "sources").iterdir() if (path / "__init__.py").exists()}

    assert sources - PASSING_ON == set(READERS)


@pytest.mark.parametrize(
    "field", [FIELDS[id_] for id_ in sorted(frozenset[int]().union(*READERS.values()))], ids=lambda field: field.name
)
def test_whatever_can_be_read_has_a_place_in_the_conventions(field: Field, official: dict[str, Official]) -> None:
    """A metric of an official or an hw.gpu.nvidia name, with unit, kind, number and attributes; a text an attribute."""
    check_place(field, official)


def test_whatever_may_be_read_one_day_has_a_place_too(official: dict[str, Official]) -> None:
    """A source that learns a field finds its row fit to be shown."""
    for field in FIELDS.values():
        if field.number is not Number.BINARY:
            check_place(field, official)


def check_place(field: Field, official: dict[str, Official]) -> None:
    """Assert that a field is shown as the conventions ask for."""
    if field.kind is Kind.LABEL:
        name = text_attribute(field)
        assert name in GPU_SET | {"hw.id", "hw.serial_number", "hw.firmware_version"} or NAME.fullmatch(name)
        return
    shape = field.semconv
    assert shape is not None
    assert field.is_numeric
    row = official.get(shape.name)
    kind = instrument(shape.name, is_total=field.is_total)
    fixed = dict(shape.attributes)

    assert row is not None or NAME.fullmatch(shape.name), field.name
    assert UNIT.fullmatch(shape.unit), field.name
    assert shape.number in {Number.INT, Number.DOUBLE}
    assert help_in(field, shape)
    assert all(key in KEYS or NAME.fullmatch(key) for key in fixed)
    assert all(fixed.values())
    assert not re.search(r"(_total|\.total|_bytes|_seconds|_celsius|_percent)$", shape.name)  # units are not in names
    if shape.unit == "1" and shape.number is Number.DOUBLE:
        assert shown_highest(field, shape) <= 2, f"{field.name}: a share is of 1, not of 100"
    if kind == "counter":
        assert shape.unit != "1"
        assert not shape.unit.endswith("/s"), "a rate does not add up"
    if row is not None:
        assert (kind, shape.unit, shape.number.value) == (row.instrument, row.unit, row.number)
        assert row.required <= {"hw.id", *fixed}
        assert fixed.get("hw.gpu.task", "general") in TASKS
        assert fixed.get("hw.type", "gpu") == "gpu"
        assert fixed.get("hw.limit_type", "max") in LIMITS


def shown_highest(field: Field, shape: Shape) -> float:
    """The highest number that can be shown."""
    return field.highest * shape.numerator / shape.denominator


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
            assert all(re.fullmatch(r"(hw|error|network)(\.[a-z][a-z0-9_]*)+", key) for key in attributes), metric.name
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


def test_a_text_that_is_asked_for_is_an_attribute(node: Callable[..., Node]) -> None:
    """What dcgm-exporter has as a label is on every point of the device; what stands there anyway stands once."""
    wanted = ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BRAND", "DCGM_FI_DEV_SERIAL", "DCGM_FI_DEV_INFOROM_IMAGE_VER")
    scenario = models.h100(1)
    (power,) = joined(node(scenario, fields=wanted))
    (point,) = power.data.data_points
    attributes = dict(point.attributes or {})

    assert attributes["hw.gpu.nvidia.gpu_brand"] == "NVIDIA"
    assert (
        attributes["hw.gpu.nvidia.inforom_image_version"]
        == scenario.gpus[0].answers["nvmlDeviceGetInforomImageVersion"]
    )
    assert [name for name, text in attributes.items() if text == scenario.gpus[0].serial] == ["hw.serial_number"]
