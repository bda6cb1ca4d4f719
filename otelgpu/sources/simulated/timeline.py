"""What an engine does at any instant, in closed form.

Rule 1: a day of segments is laid out once and repeated; the state at an instant is a bisection and a few sines,
        however long after the start.
Rule 2: inside a segment power is a constant plus two sines, so energy is its exact integral; temperature is the exact
        answer of a first-order lag to it (the fast sine, which a heat sink does not notice, is left out).
Rule 3: power, energy and temperature are what comes on top of an idle board; so those of several engines add up.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from itertools import cycle
from random import Random
from typing import NamedTuple

from otelgpu.sources.simulated.stages import REST, SETTLE, Job, Stage

DAY_S = 86400.0
_LAG_S = 75.0  # time constant of a GPU's temperature
_AWAKE = 0.05  # share of the power budget that full clocks take without any load
_IDLE_WOBBLE = 0.01  # share of the idle power
_OVERSHOOT_C = 3.0  # how far the demand of a job in warm air lies above the highest temperature


class Cooling(NamedTuple):
    """How a board gets rid of heat, and its power budget above idle. `highest_c` is above the idle temperature."""

    idle_w: float
    budget_w: float
    c_per_w: float
    highest_c: float
    warm: bool = False  # its demanding jobs run in warm air, into the thermal limit


class Wave(NamedTuple):
    """A mean and two sines on top."""

    mean: float
    swell: float
    ripple: float


class Segment(NamedTuple):
    """A stage that has got its place, and the totals at its beginning."""

    start: float
    stage: Stage
    load: Wave
    power: Wave  # W above idle
    swell_rate: float
    swell_phase: float
    ripple_rate: float
    rise_c: float  # where the temperature settles, above that of an idle board
    rise_swell_c: float
    rise_lag: float
    rise_left_c: float  # what is still missing to there at the beginning
    memory: float  # share of the memory that jobs can have
    hot: bool
    energy_j: float
    capped_s: float
    hot_s: float
    idle_s: float


class Totals(NamedTuple):
    """What has summed up since the beginning of a day."""

    energy_j: float
    capped_s: float
    hot_s: float
    idle_s: float


class State(NamedTuple):
    """An engine at one instant; energy and seconds are since the start."""

    stage: Stage
    load: float  # 0..1
    power_w: float
    rise_c: float
    memory: float
    swell: float  # the two waves, -1..1
    ripple: float
    hot: bool
    totals: Totals


class _Draft(NamedTuple):
    """A stage with what chance decided about it."""

    stage: Stage
    seconds: float
    calm: float  # 0.8..1: scales the waves
    phase: float
    memory: float
    hot: bool = False


class Timeline:
    """The endlessly repeated day of one engine."""

    def __init__(self, jobs: tuple[Job, ...], cooling: Cooling, plan: Random, *, own: Random, share: float) -> None:
        """Lay out the day. GPUs that work together have the same *plan*; *own* is what differs between them."""
        self._offset = plan.random() * DAY_S
        drafts = _day(jobs, plan, own)
        self._segments = tuple(_segments(drafts, cooling, share))
        self._starts = [segment.start for segment in self._segments]
        self._begun = tuple(_begun(self._segments))
        self._day = _totals(self._segments[-1], DAY_S - self._starts[-1])
        self._before = _totals(*self._find(self._offset))

    def at(self, seconds: float) -> State:
        """Give the state so long after the start."""
        days, instant = divmod(max(seconds, 0.0) + self._offset, DAY_S)
        segment, inside = self._find(instant)
        swell = math.sin(segment.swell_rate * inside + segment.swell_phase)
        ripple = math.sin(segment.ripple_rate * inside)
        load, power = segment.load, segment.power
        energy_j, capped_s, hot_s, idle_s = _totals(segment, inside)
        day, before = self._day, self._before
        return State(
            segment.stage,
            load[0] + load[1] * swell + load[2] * ripple,
            power[0] + power[1] * swell + power[2] * ripple,
            _rise(segment, inside),
            segment.memory,
            swell,
            ripple,
            segment.hot,
            Totals(
                days * day[0] + energy_j - before[0],
                days * day[1] + capped_s - before[1],
                days * day[2] + hot_s - before[2],
                days * day[3] + idle_s - before[3],
            ),
        )

    def begun(self, seconds: float) -> tuple[int, ...]:
        """Say how often since the start it began to be idle, held by the power limit, and held for heat."""
        days, instant = divmod(max(seconds, 0.0) + self._offset, DAY_S)
        now, first = (self._begun[bisect_right(self._starts, at) - 1] for at in (instant, self._offset))
        return tuple(int(days) * day + n - f for day, n, f in zip(self._begun[-1], now, first, strict=True))

    def _find(self, instant: float) -> tuple[Segment, float]:
        segment = self._segments[bisect_right(self._starts, instant) - 1]
        return segment, instant - segment.start


def _held(segment: Segment) -> tuple[bool, ...]:
    return not segment.stage.awake, segment.stage.capped and not segment.hot, segment.hot


def _begun(segments: tuple[Segment, ...]) -> Iterator[tuple[int, ...]]:
    """Count in each segment what has begun since the day did; the last segment goes on in the first."""
    counts: tuple[int, ...] = (0, 0, 0)
    before = _held(segments[-1])
    for segment in segments:
        held = _held(segment)
        counts = tuple(n + (now and not was) for n, now, was in zip(counts, held, before, strict=True))
        before = held
        yield counts


def _totals(segment: Segment, inside: float) -> Totals:
    _, swell, ripple = segment.power
    rate, phase, fast = segment.swell_rate, segment.swell_phase, segment.ripple_rate
    energy_j = (
        segment.power[0] * inside
        + swell / rate * (math.cos(phase) - math.cos(rate * inside + phase))
        + ripple / fast * (1.0 - math.cos(fast * inside))
    )
    return Totals(
        segment.energy_j + energy_j,
        segment.capped_s + inside * (segment.stage.capped and not segment.hot),
        segment.hot_s + inside * segment.hot,
        segment.idle_s + inside * (not segment.stage.awake),
    )


def _rise(segment: Segment, inside: float) -> float:
    swell = math.sin(segment.swell_rate * inside + segment.swell_phase - segment.rise_lag)
    return segment.rise_c + segment.rise_swell_c * swell + segment.rise_left_c * math.exp(-inside / _LAG_S)


def _day(jobs: tuple[Job, ...], plan: Random, own: Random) -> Iterator[_Draft]:
    """Fill a day with jobs and rests; it ends as it begins, at rest for so long that no heat is carried over."""

    def draft(stage: Stage, peak: float = 0.0) -> _Draft:
        seconds = plan.uniform(*stage.seconds)
        return _Draft(stage, seconds, own.uniform(0.8, 1.0), own.uniform(0.0, math.tau), stage.memory * peak)

    left = DAY_S - SETTLE.seconds[0]
    yield draft(SETTLE)
    for job in cycle(plan.sample(jobs, len(jobs))):
        peak = plan.uniform(0.45, 0.94)
        stages = [*job.opening, *(job.repeated * plan.randint(*job.times)), REST]
        drafts = [draft(stage, peak) for stage in stages]
        seconds = sum(draft.seconds for draft in drafts)
        if seconds + SETTLE.seconds[0] > left:
            break
        left -= seconds
        yield from drafts
    yield draft(SETTLE)._replace(seconds=left)


def _segments(drafts: Iterator[_Draft], cooling: Cooling, share: float) -> Iterator[Segment]:
    """Place the stages one after the other, each beginning with the heat and the totals that the last one left."""
    start, heat, totals = 0.0, 0.0, Totals(0.0, 0.0, 0.0, 0.0)
    for draft in drafts:
        for seconds, segment in _pieces(draft, cooling, share, heat=heat):
            placed = segment._replace(
                start=start,
                energy_j=totals.energy_j,
                capped_s=totals.capped_s,
                hot_s=totals.hot_s,
                idle_s=totals.idle_s,
            )
            yield placed
            start, heat, totals = start + seconds, _rise(placed, seconds), _totals(placed, seconds)


def _pieces(draft: _Draft, cooling: Cooling, share: float, *, heat: float) -> Iterator[tuple[float, Segment]]:
    """Make the segment of a stage; in warm air two, where it meets the thermal limit and is held there."""
    if not (cooling.warm and draft.stage.capped):
        yield draft.seconds, _segment(draft, cooling, share, heat=heat)
        return
    target = cooling.highest_c + _OVERSHOOT_C
    demand = _segment(draft, cooling, share, heat=heat, rise=target)
    until = min(_LAG_S * math.log((target - heat) / _OVERSHOOT_C), draft.seconds)
    yield until, demand._replace(rise_swell_c=0.0, rise_left_c=heat - target)
    if until < draft.seconds:
        held = demand.power.mean - _OVERSHOOT_C / cooling.c_per_w
        yield (
            draft.seconds - until,
            demand._replace(
                power=Wave(held, 0.0, 0.0), rise_c=cooling.highest_c, rise_swell_c=0.0, rise_left_c=0.0, hot=True
            ),
        )


def _segment(draft: _Draft, cooling: Cooling, share: float, *, heat: float, rise: float | None = None) -> Segment:
    stage = draft.stage
    load = Wave(stage.load, stage.swell * draft.calm, stage.ripple * draft.calm)
    awake = _AWAKE * stage.awake
    draw = stage.draw if stage.capped else stage.draw * (0.75 + 0.25 * draft.calm)
    watts = cooling.budget_w * (1 - _AWAKE) * draw * share
    power = Wave(
        cooling.budget_w * awake * share + watts * load.mean,
        watts * load.swell or cooling.idle_w * _IDLE_WOBBLE * share * (not stage.awake),
        watts * load.ripple,
    )
    rate = math.tau / stage.swell_s
    lag = math.atan(rate * _LAG_S)
    rise_c = cooling.c_per_w * power.mean if rise is None else rise
    rise_swell_c = cooling.c_per_w * power.swell * math.cos(lag)
    return Segment(
        start=0.0,
        stage=stage,
        load=load,
        power=power,
        swell_rate=rate,
        swell_phase=draft.phase,
        ripple_rate=math.tau / stage.ripple_s,
        rise_c=rise_c,
        rise_swell_c=rise_swell_c,
        rise_lag=lag,
        rise_left_c=heat - rise_c - rise_swell_c * math.sin(draft.phase - lag),
        memory=draft.memory,
        hot=False,
        energy_j=0.0,
        capped_s=0.0,
        hot_s=0.0,
        idle_s=0.0,
    )
