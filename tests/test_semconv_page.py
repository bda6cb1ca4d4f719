"""The page in `semconv` naming: what the stock Prometheus exporter makes of OpenTelemetry's names."""

from collections.abc import Callable, Iterable

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from otelgpu import __version__
from otelgpu.fields import UP_DOWN, Field
from otelgpu.model import Snapshot
from tests.conftest import Golden
from tests.fakenvml import models
from tests.harness import Node, lines_of, values

Parsed = dict[tuple[str, str, frozenset[tuple[str, str]]], float]


def parsed(page: str, prefix: str = "hw_") -> Parsed:
    """Every sample of a page with the type of its family."""
    return {
        (sample.name, family.type, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith(prefix) and sample.name != "hw_status"  # made by rules, not by a field
    }


def stock_page(fields: Iterable[Field], snapshot: Snapshot) -> str:
    """The stock exporter's page for the same readings, registered by hand under their OpenTelemetry names."""
    registry = CollectorRegistry()
    resource = Resource({"service.name": "otelgpu", "service.version": __version__})
    provider = MeterProvider([PrometheusMetricReader(registry=registry)], resource=resource, shutdown_on_exit=False)
    meter = provider.get_meter("otelgpu", __version__)
    observed: dict[str, list[Observation]] = {}
    shapes = {field.semconv.name: (field, field.semconv) for field in fields if field.semconv is not None}
    for field in fields:
        shape = field.semconv
        if shape is None:
            continue
        for key, number in snapshot.numbers.get(field.id, {}).items():
            device = snapshot.series[key].device
            attributes = {
                "hw.id": device.uuid,
                "hw.name": f"GPU {device.index}",
                "hw.model": device.model,
                "hw.vendor": "NVIDIA",
                "hw.serial_number": device.serial,
                "hw.driver_version": device.driver_version,
                "hw.firmware_version": device.vbios_version,
                **dict(shape.attributes),
            }
            if device.instance_id is not None:
                attributes |= {
                    "hw.parent": device.gpu_uuid,
                    "hw.gpu.nvidia.mig.profile": device.profile,
                    "hw.gpu.nvidia.mig.id": str(device.instance_id),
                }
            attributes = {name: text for name, text in attributes.items() if text}
            value = number * shape.numerator / shape.denominator
            observed.setdefault(shape.name, []).append(Observation(value, attributes))
    for name, observations in observed.items():
        field, shape = shapes[name]

        def callback(_: CallbackOptions, observations: list[Observation] = observations) -> list[Observation]:
            return observations

        if name in UP_DOWN:
            meter.create_observable_up_down_counter(name, callbacks=[callback], unit=shape.unit)
        elif field.is_total:
            meter.create_observable_counter(name, callbacks=[callback], unit=shape.unit)
        else:
            meter.create_observable_gauge(name, callbacks=[callback], unit=shape.unit)
    return generate_latest(registry).decode()


def test_the_page_equals_the_stock_exporters(node: Callable[..., Node]) -> None:
    """A user of OpenTelemetry's names sees the names, labels and values that every other service of theirs has."""
    running = node(models.h100_mig(), naming="semconv")
    page = running.settled_page()
    snapshot = running.pipeline.sampler.latest
    assert snapshot is not None

    ours = parsed(page)

    assert len(ours) > 30
    assert ours == parsed(stock_page(running.pipeline.fields, snapshot))


def test_the_page_is_as_reviewed(node: Callable[..., Node], golden: Golden) -> None:
    """A released name or unit never changes by accident."""
    page = node(models.mixed(), naming="semconv").settled_page()

    shown = [line for line in page.splitlines() if "otelgpu_" not in line]
    golden("page/semconv.txt", "".join(f"{line}\n" for line in shown))


def test_own_metrics_have_one_name_in_both_namings(node: Callable[..., Node]) -> None:
    """An alert on otelgpu itself holds whatever the naming of the GPUs' metrics."""
    pages = [node(models.t4(), naming=naming).page() for naming in ("dcgm", "semconv")]
    # The scrape histogram has no point before the first scrape over HTTP.
    names = [{line.name for line in lines_of(page) if line.name.startswith("otelgpu_")} for page in pages]

    assert names[0] == names[1]


def test_a_ratio_is_exact(node: Callable[..., Node]) -> None:
    """35 % is 0.35, not 0.35000000000000003."""
    scenario = models.t4().with_gpu(0, answers={"nvmlDeviceGetUtilizationRates": (35, 7)})

    page = node(scenario, naming="semconv").page()

    assert 'hw_gpu_task="general"' in page
    assert values(page, "hw_gpu_utilization", by="hw_gpu_task")["general"] == 0.35


def test_the_default_registry_stays_untouched(node: Callable[..., Node]) -> None:
    """A host process with its own prometheus_client page does not find our series on it."""
    page = node(models.t4(), naming="semconv").page()

    assert "hw_temperature" in page
    assert b"hw_" not in generate_latest()
