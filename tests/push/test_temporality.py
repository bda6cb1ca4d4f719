"""Totals on their way out: where they start, what a reset does, and what a delta is."""

from dataclasses import replace

import pytest
from opentelemetry.metrics import Observation
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from otelgpu.export.push.temporality import FORGET
from otelgpu.model import Snapshot
from tests.push.collectors import Point, metrics_of, points_of
from tests.push.snapshots import ENERGY, GPUS, POWER, SECOND, USED, Wire, snapshot

GPU, OTHER = GPUS


def _energy(joules: float, at: float, *, identity: int = 1) -> Snapshot:
    return snapshot({ENERGY: {GPU: int(joules * 1000)}}, at, identity=identity)


def _seen(points: list[Point]) -> list[tuple[float, int, int]]:
    """Number, start and time, in seconds."""
    return [(point.value, point.start // SECOND, point.time // SECOND) for point in points]


def _flat(sweeps: list[list[Point]]) -> list[Point]:
    return [point for points in sweeps for point in points]


def _owned(sweep: Snapshot, pod: str) -> Snapshot:
    """The same sweep where somebody else has the GPU, as an attribute of the series."""
    series = {key: one._replace(attributes=(("k8s.pod.name", pod),)) for key, one in sweep.series.items()}
    return replace(sweep, series=series)


def test_a_total_starts_when_it_is_first_seen() -> None:
    """The start of the process would be wrong for a GPU that comes later: its whole life would count as new."""
    wire = Wire([ENERGY])
    first = wire.points(_energy(5_000_000, 100))
    second = wire.points(snapshot({ENERGY: {GPU: 5_000_060_000, OTHER: 9_000_000}}, 160))

    assert _seen(first) == [(5_000_000, 100, 100)]
    assert _seen(second) == [(5_000_060, 100, 160), (9_000, 160, 160)]


def test_a_total_that_went_back_starts_anew() -> None:
    """After the driver was loaded again the counter begins at 0, which is no negative increase."""
    wire = Wire([ENERGY])
    points = [wire.points(_energy(joules, at)) for joules, at in ((500, 100), (600, 160), (7, 220), (9, 280))]

    assert _seen(_flat(points)) == [(500, 100, 100), (600, 100, 160), (7, 220, 220), (9, 220, 280)]


def test_a_new_owner_is_a_new_stream() -> None:
    """A pod that gets a GPU has not used what was used before: start and time are equal, which is no increase."""
    wire = Wire([ENERGY])
    before = [wire.points(_owned(_energy(joules, at), "a")) for joules, at in ((500, 100), (600, 160))]
    after = [wire.points(_owned(_energy(joules, at, identity=2), "b")) for joules, at in ((650, 220), (700, 280))]

    assert _seen(_flat(before)) == [(500, 100, 100), (600, 100, 160)]
    assert _seen(_flat(after)) == [(650, 220, 220), (700, 220, 280)]


def test_another_identity_with_the_same_attributes_is_the_same_stream() -> None:
    """Another GPU that comes or goes must not make all totals start anew."""
    wire = Wire([ENERGY])
    wire.points(_energy(500, 100))
    points = wire.points(_energy(600, 160, identity=2))

    assert _seen(points) == [(600, 100, 160)]


def test_a_level_that_falls_goes_on() -> None:
    """Memory in use is a sum that may fall, and a fall is no reset."""
    wire = Wire([USED])
    wire.points(snapshot({USED: {GPU: 9 << 20}}, 100))
    points = wire.points(snapshot({USED: {GPU: 4 << 20}}, 160))

    assert _seen(points) == [(4 << 20, 100, 160)]


def test_a_delta_begins_with_a_baseline() -> None:
    """The lifetime total as the first delta would be a spike of years."""
    wire = Wire([ENERGY], delta=True)
    points = [wire.points(_energy(joules, at)) for joules, at in ((5_000_000, 100), (5_000_060, 160), (5_000_060, 220))]

    assert [_seen(one) for one in points] == [[], [(60, 100, 160)], [(0, 160, 220)]]


def test_a_delta_is_never_negative() -> None:
    """After a reset the SDK's own delta is -5,000,003."""
    wire = Wire([ENERGY], delta=True)
    points = [wire.points(_energy(joules, at)) for joules, at in ((500, 100), (600, 160), (7, 220), (9, 280))]

    assert _seen(_flat(points)) == [(100, 100, 160), (2, 220, 280)]


def test_a_new_owner_gets_the_delta_and_no_spike() -> None:
    """What the hardware counts is neither lost nor counted twice when a GPU changes hands."""
    wire = Wire([ENERGY], delta=True)
    points = [
        wire.points(_owned(_energy(500, 100), "a")),
        wire.points(_owned(_energy(600, 160), "a")),
        wire.points(_owned(_energy(650, 220, identity=2), "b")),
    ]

    assert _seen(_flat(points)) == [(100, 100, 160), (50, 160, 220)]
    assert [point.attributes["k8s.pod.name"] for point in points[2]] == ["b"]


def test_deltas_add_up_to_the_total() -> None:
    """Whoever sums them up expects what the meter says."""
    wire = Wire([ENERGY], delta=True)
    totals = [1_000, 1_333, 1_999, 2_777, 9_001]
    points = [wire.points(snapshot({ENERGY: {GPU: number}}, at)) for at, number in enumerate(totals, start=1)]

    assert sum(point.value for one in points for point in one) == pytest.approx(8.001)


def test_a_sweep_that_is_missed_is_in_the_next_delta() -> None:
    """A GPU that did not answer once has gone on counting."""
    wire = Wire([ENERGY], delta=True)
    wire.points(_energy(500, 100))
    wire.points(snapshot({POWER: {GPU: 1}}, 160))
    points = wire.points(_energy(900, 220))

    assert _seen(points) == [(400, 100, 220)]


def test_what_is_gone_is_forgotten() -> None:
    """MIG instances come and go for years; memory has to follow the machine and not its past."""
    wire = Wire([ENERGY, POWER], delta=True)
    wire.points(_energy(500, 100))
    for sweep in range(FORGET):
        wire.points(snapshot({POWER: {GPU: 1}}, 160 + sweep))
    points = wire.points(_energy(900, 220))

    assert points == []


def test_a_clock_that_is_set_back_gives_no_point_that_ends_before_it_starts() -> None:
    """Receivers refuse such points, for as long as the process lives."""
    wire = Wire([ENERGY])
    wire.points(_energy(500, 1000))
    points = wire.points(_energy(600, 400)) + wire.points(_energy(700, 460))

    assert _seen(points) == [(600, 400, 400), (700, 400, 460)]


def test_otelgpus_own_totals_are_deltas_too() -> None:
    """One temporality for all, or the collector's conversion has to know which is which."""
    wire = Wire([ENERGY], delta=True)
    count = iter((5, 9))
    wire.meter.create_observable_counter("otelgpu.sweeps", callbacks=[lambda _: [Observation(next(count))]])
    first, second = wire.messages(_energy(1, 1)), wire.messages(_energy(1, 2))
    sweeps = [metric for message in second for metric in metrics_of(message) if metric.name == "otelgpu.sweeps"]

    assert not [metric for message in first for metric in metrics_of(message)]
    assert [point.value for metric in sweeps for point in points_of(metric)] == [4]
    assert sweeps[0].sum.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
