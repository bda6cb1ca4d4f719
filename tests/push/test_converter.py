"""Totals behind a converter to deltas: whatever is lost on the way, no life of a GPU is taken for an increase."""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import combinations

import pytest
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from otelgpu.model import Snapshot
from tests.fakenvml import models
from tests.harness import until
from tests.push.collectors import Answer, Collector, Point, metrics_of, points_of
from tests.push.conftest import Pushing
from tests.push.converter import Converter
from tests.push.snapshots import ENERGY, GPUS, POWER, SECOND, Wire, snapshot

GPU, OTHER = GPUS
LIFE = 5_000_000  # joules before otelgpu came
STEP = 100  # joules from sweep to sweep
START = 1000  # seconds since the epoch
LOSSES = [set(lost) for count in range(4) for lost in combinations(range(4), count)]
BOTH = pytest.mark.parametrize("by_start", [True, False])


def sweep(number: int, pod: str = "", gpus: Iterable[str] = (GPU.uuid,)) -> Snapshot:
    """The sweep of this number: each has used STEP more than the one before."""
    joules = LIFE + STEP * number
    made = snapshot(
        {ENERGY: {gpu: joules * 1000 for gpu in GPUS if gpu.uuid in gpus}, POWER: {GPU: 1}},
        START + number,
        identity=number,
    )
    owner = (("k8s.pod.name", pod),) if pod else ()
    return replace(made, series={key: one._replace(attributes=owner) for key, one in made.series.items()})


def energy(points: Iterable[Point]) -> list[Point]:
    """The points of the total."""
    return [point for point in points if point.name == "hw.energy"]


def pushed(sweeps: Sequence[Snapshot], converter: Converter, lost: AbstractSet[int] = frozenset()) -> list[Point]:
    """Push these, of which some are *lost* on the way, and give the increases that come out behind."""
    wire = Wire([ENERGY, POWER])
    for number, one in enumerate(sweeps):
        points = energy(wire.points(one, lost=number in lost))
        if number not in lost:
            converter.take(points)
    return converter.increases


@BOTH
@pytest.mark.parametrize("lost", LOSSES, ids=str)
def test_no_lost_batch_makes_an_increase_of_a_lifetime(lost: set[int], *, by_start: bool) -> None:
    """Whichever of the first batches are lost: what is passed on is what was used since the first that arrived."""
    increases = pushed([sweep(number) for number in range(7)], Converter(by_start=by_start), lost)
    first = min(set(range(7)) - lost)

    assert sum(point.value for point in increases) == pytest.approx(STEP * (6 - first))
    assert all(point.value > 0 for point in increases)


def test_batches_that_arrive_late_make_no_spike_either() -> None:
    """With the news of an arrival two sweeps behind, the first of three buffered batches may still be dropped."""
    wire, converter = Wire([ENERGY, POWER]), Converter()
    made = [energy(wire.points(sweep(number), lost=True)) for number in range(3)]
    for points in made[1:]:
        converter.take(points)
    wire.encoder.arrived(START + 2)
    for number in range(3, 6):
        converter.take(energy(wire.points(sweep(number))))

    assert [point.value for point in converter.increases] == [STEP] * 3


def test_a_start_is_one_that_has_arrived() -> None:
    """A start that no point had would make another stream of what follows."""
    wire = Wire([ENERGY, POWER])
    seen = [energy(wire.points(sweep(number), lost=number < 2))[0] for number in range(5)]

    assert [(one.start // SECOND - START, one.time // SECOND - START) for one in seen] == [
        (0, 0),
        (1, 1),
        (2, 2),
        (2, 3),
        (2, 4),
    ]


@pytest.mark.parametrize("lost", [set(), {2}, {2, 3}], ids=str)
@BOTH
def test_a_gpu_that_was_missing_while_batches_arrived_starts_with_its_own(*, by_start: bool, lost: set[int]) -> None:
    """What arrived in between held no point of it."""
    both = (GPU.uuid, OTHER.uuid)
    seen = [both if number not in (1, 4) else (GPU.uuid,) for number in range(8)]
    seen[0] = (GPU.uuid,)
    converter = Converter(by_start=by_start)
    pushed([sweep(number, gpus=gpus) for number, gpus in enumerate(seen)], converter, lost)
    of_other = [point for point in converter.increases if point.attributes["hw.id"] == OTHER.uuid]

    assert sum(point.value for point in of_other) <= STEP * 5
    assert of_other


@pytest.mark.parametrize("lost", [set(), {3}, {3, 4}, {2, 3}], ids=str)
@BOTH
def test_a_new_pod_makes_no_spike(lost: set[int], *, by_start: bool) -> None:
    """What the GPU used before is not the pod's, also when the first batch that names the pod is lost."""
    owners = ["a", "a", "a", "b", "b", "b", "b", "b"]
    converter = Converter(by_start=by_start)
    pushed([sweep(number, pod) for number, pod in enumerate(owners)], converter, lost)
    of_b = [point for point in converter.increases if point.attributes.get("k8s.pod.name") == "b"]

    assert 0 < sum(point.value for point in of_b) <= STEP * 4
    assert max(point.value for point in of_b) == STEP


def test_a_pod_that_comes_back_is_not_charged_for_the_others() -> None:
    """The idle GPU is such an owner too: nobody, then a job, then nobody."""
    owners = ["", "", "b", "b", "b", "b", "", "", ""]
    increases = pushed([sweep(number, pod) for number, pod in enumerate(owners)], Converter())
    of_nobody = [point for point in increases if "k8s.pod.name" not in point.attributes]

    assert sum(point.value for point in of_nobody) == STEP * 3


def test_deltas_of_our_own_charge_nobody_for_others_whoever_converts() -> None:
    """Not all converters look at the start; docs/otlp.md names this way out."""
    owners = ["", "", "b", "b", "b", "b", "", "", ""]
    wire = Wire([ENERGY, POWER], delta=True)
    points = [energy(wire.points(sweep(number, pod))) for number, pod in enumerate(owners)]
    by_pod = [point for one in points for point in one]

    assert sum(one.value for one in by_pod if "k8s.pod.name" not in one.attributes) == pytest.approx(STEP * 4)
    assert sum(one.value for one in by_pod if "k8s.pod.name" in one.attributes) == pytest.approx(STEP * 4)


@BOTH
def test_a_driver_that_is_loaded_again_makes_no_spike(*, by_start: bool) -> None:
    """The batch that would have told of it is lost, and the total is below the one before."""
    sweeps = [sweep(number) for number in range(3)]
    sweeps += [replace(sweep(number), numbers={ENERGY.id: {GPU.uuid: 1000 * number}}) for number in range(3, 7)]
    increases = pushed(sweeps, Converter(by_start=by_start), {3})

    assert [point.value for point in increases] == [STEP, STEP, 1, 1]


def test_a_collector_that_starts_later_makes_no_spike() -> None:
    """It sees totals that began before it did."""
    wire, converter = Wire([ENERGY, POWER]), Converter(started=(START + 2) * SECOND + 1)
    for number in range(6):
        points = energy(wire.points(sweep(number)))
        if number > 2:
            converter.take(points)

    assert [point.value for point in converter.increases] == [STEP] * 2


@pytest.mark.parametrize("refused", [0, 1, 3])
def test_the_first_batch_that_is_taken_is_the_start(
    refused: int, sink: Collector, pushing: Callable[..., Pushing]
) -> None:
    """From the driver to a collector that refuses the first batches for good."""
    sink.answers += [Answer(400)] * refused
    running = pushing(models.h100(2), sink.url)
    for _ in range(refused + 3):
        running.batch()
        until(lambda: not running.push.buffer, "a batch that is delivered or refused")
    batches = [
        [point for metric in metrics_of(one.message) if metric.name == "hw.energy" for point in points_of(metric)]
        for one in sink.received
    ]
    taken = [point for points in batches[refused:] for point in points]

    assert [len(points) for points in batches] == [2] * (refused + 3)
    assert {point.start for point in taken} == {batches[refused][0].time}
    assert max((one.value for one in Converter().take(taken)), default=0) < 1000


def test_a_hosts_own_provider_needs_a_converter_that_drops_the_first() -> None:
    """The SDK stamps a total with the start of the process; docs/otlp.md says what helps."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    meter = provider.get_meter("host")
    meter.create_observable_counter("hw.energy", callbacks=[lambda _: [Observation(LIFE, {"hw.id": GPU.uuid})]])
    data = reader.get_metrics_data()
    assert data is not None
    (one,) = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    assert isinstance(one, NumberDataPoint)
    point = Point("hw.energy", dict(one.attributes or {}), one.value, one.start_time_unix_nano, one.time_unix_nano)

    assert [increase.value for increase in Converter().take([point])] == [LIFE]
    assert Converter(initial="drop").take([point]) == []
