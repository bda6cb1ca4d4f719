"""The page in DCGM's names and OTLP in OpenTelemetry's, from one sweep: every value of every field is the same."""

from collections.abc import Callable
from fractions import Fraction

import pytest

from otelgpu.config import Otlp
from otelgpu.export.join import SERIES_ATTRIBUTES
from otelgpu.export.push.setup import Push
from otelgpu.fields import Field, Number, Shape
from otelgpu.model import Snapshot
from tests.fakenvml import models
from tests.harness import Line, Node, lines_of, until
from tests.push.collectors import Collector, Point, collector

MODELS = sorted(set(models.MAKERS) - {"none", "crowd"})
Key = tuple[int, str, frozenset[tuple[str, str]]]  # field, device, what tells the series of a device apart
LABELS = {"gpu", "UUID", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID", "Hostname", "hostname"}
# Labels that say the value in words, or the other GPU a second time: OpenTelemetry's points have none of them.
WORDS = {"err_code", "err_msg", "peer_gpu", *(name for name, shown in SERIES_ATTRIBUTES.items() if not shown)}
OF_SERIES = {shown: name for name, shown in SERIES_ATTRIBUTES.items() if shown}


def by_dcgm(running: Node, page: str, shape: Callable[[Field], Shape]) -> dict[Key, float]:
    """The page, by what each line is of."""
    fields = {shape(field).name: field for field in running.pipeline.fields if field.is_numeric}
    texts = {shape(field).name for field in running.pipeline.fields if not field.is_numeric}
    snapshot = latest(running)
    instances = {
        (series.device.gpu_uuid, str(series.device.instance_id)): series.device.uuid
        for series in snapshot.series.values()
    }

    def key(line: Line) -> Key:
        parent = line.labels["UUID"]
        device = instances[parent, line.labels["GPU_I_ID"]] if "GPU_I_ID" in line.labels else parent
        more = {pair for pair in line.labels.items() if pair[0] not in LABELS | texts | WORDS}
        return fields[line.name].id, device, frozenset(more)

    return {key(line): line.value for line in lines_of(page) if line.name in fields}


def by_semconv(running: Node, points: list[Point]) -> dict[Key, float]:
    """What arrived, by the same."""
    places: dict[str, list[tuple[set[tuple[str, str]], Field]]] = {}
    for field in running.pipeline.fields:
        if field.semconv is not None:
            places.setdefault(field.semconv.name, []).append((set(field.semconv.attributes), field))

    def key(point: Point) -> Key:
        attributes = {(name, str(value)) for name, value in point.attributes.items()}
        (field,) = [field for fixed, field in places[point.name] if fixed <= attributes]
        of_field = {name for name, _ in field.semconv.attributes}  # type: ignore[union-attr]
        more = {(OF_SERIES[name], text) for name, text in attributes if name in OF_SERIES.keys() - of_field}
        return field.id, str(point.attributes["hw.id"]), frozenset(more)

    return {key(point): point.value for point in points if point.name != "hw.status"}


def latest(running: Node) -> Snapshot:
    """The sweep that both were made of."""
    snapshot = running.pipeline.sampler.latest
    assert snapshot is not None
    return snapshot


def agree(page: float, otlp: float, dcgm: Shape, semconv: Shape) -> bool:
    """Whether both say the same, each in its unit. An integer is cut, so it may be less by less than one."""
    scale = Fraction(dcgm.numerator, dcgm.denominator) / Fraction(semconv.numerator, semconv.denominator)
    converted = float(Fraction(otlp) * scale)
    if dcgm.number is Number.INT and semconv.number is Number.INT and scale.denominator == 1:
        return page == converted
    if dcgm.number is Number.INT:
        return -1e-6 <= converted - page < 1 + 1e-6
    return page == pytest.approx(converted, rel=1e-9, abs=5.1e-7)  # dcgm-exporter prints six digits after the point


@pytest.mark.parametrize("compat", ["4.8.2", "4.9"])
@pytest.mark.parametrize("model", MODELS)
def test_page_and_push_agree_in_every_field(model: str, compat: str, node: Callable[..., Node]) -> None:
    """Of each model of GPU, all that can be read: nothing is on one side alone, and no number differs."""
    with collector() as sink:
        running = node(models.MAKERS[model](), fields=("all",), compat=compat, otlp=Otlp(endpoint=sink.url))
        pushed = push(running, sink)
        page = running.page(sweep=False)

        def shape(field: Field) -> Shape:
            return field.dcgm49 if compat == "4.9" else field.dcgm

        shown, sent = by_dcgm(running, page, shape), by_semconv(running, pushed)
        fields = {field.id: field for field in running.pipeline.fields}
        wrong = {
            (fields[key[0]].name, key[1], shown[key], sent[key])
            for key in shown.keys() & sent.keys()
            if not agree(shown[key], sent[key], shape(fields[key[0]]), fields[key[0]].semconv)  # type: ignore[arg-type]
        }

    assert shown.keys() == sent.keys()
    assert wrong == set()
    assert {key[0] for key in shown} == set(latest(running).numbers) & set(fields)
    assert len({key[0] for key in shown}) > 15


def push(running: Node, sink: Collector) -> list[Point]:
    """Make two sweeps, as far apart as a window, push the second, and give what arrived."""
    (way_out,) = running.pipeline.pushes
    assert isinstance(way_out, Push)
    running.settled_page()
    way_out.pusher.start()
    way_out.reader.push()
    until(lambda: not way_out.buffer, "everything at the collector")
    points = sink.points("hw.")
    assert {point.time for point in points} == {int(latest(running).unix * 1e9)}
    return points
