"""What nvmlDeviceGetFieldValues carries: field values, the counters of rates and the links of sums, in few calls.

Rule 1: each entry of the call has a return code of its own and is judged alone.
Rule 2: a rate is worked out here from two sweeps; what it remembers goes with the device.
Rule 3: what is made of a number that cannot be true is NaN, which is dropped and counted like any other.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pynvml

from otelgpu.fields.measures import INT64_HIGHEST
from otelgpu.model import Gap
from otelgpu.sources.nvml.errors import gap_of, raise_if_whole
from otelgpu.sources.nvml.handles import Handle
from otelgpu.sources.nvml.questions import WINDOW, FieldValue, LinkSum, Rate

Batched: TypeAlias = FieldValue | Rate | LinkSum
Pair: TypeAlias = tuple[int, int]  # NVML field id, scope

# How the union of a field value is read, by its type; a type that a newer driver adds is no number to us.
VALUE_MEMBERS: Mapping[int, str] = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}


# Entries of one call. nvml.h names no limit; still a call is kept to what a long list of fields comes to, and only a
# wish for everything on many links takes more calls than one.
MOST = 128


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no number."""

    gap: Gap
    reason: str


Outcome: TypeAlias = int | float | Refusal


@dataclass(frozen=True, slots=True)
class _Counter:
    """What a rate was worked out from last time, and what it was."""

    total: int
    at: float
    outcome: Outcome


class FieldValues:
    """Asks the field values of one device. `links`: how many NVLinks it has."""

    def __init__(self, handle: Handle, clock: Callable[[], float]) -> None:
        self.links = 0
        self._handle = handle
        self._clock = clock
        self._counters: dict[Rate, _Counter] = {}
        self._summed: dict[LinkSum, tuple[Pair, ...]] = {}  # the links that answered first: a sum keeps to them

    def ask(self, batch: Iterable[Batched]) -> list[tuple[Batched, Outcome]]:
        """Put all of *batch* in as few calls as there may be. Raise DeviceDownError when the GPU is gone."""
        wanted = {way: self._pairs(way) for way in batch}
        ids = list(dict.fromkeys(pair for pairs in wanted.values() for pair in pairs))
        if not ids:
            return [(way, Refusal(Gap.UNSUPPORTED, "this GPU has no NVLink")) for way in wanted]
        numbers = {pair: number for ids_ in _chunks(ids) for pair, number in self._numbers(ids_).items()}
        now = self._clock()
        return [(way, self._outcome(way, pairs, numbers, now)) for way, pairs in wanted.items()]

    def _numbers(self, ids: list[Pair]) -> dict[Pair, Outcome]:
        """Put one call; where it fails as a whole, each of its entries has."""
        try:
            values = pynvml.nvmlDeviceGetFieldValues(self._handle, ids)
        except pynvml.NVMLError as error:
            raise_if_whole(error)
            return dict.fromkeys(ids, Refusal(gap_of(error.value), f"nvmlDeviceGetFieldValues: {error}"))
        return {pair: _number(value, pair[0]) for pair, value in zip(ids, values, strict=True)}

    def _pairs(self, way: Batched) -> tuple[Pair, ...]:
        if isinstance(way, FieldValue):
            return ((way.nvml_id, way.scope),)
        if isinstance(way, Rate):
            return way.counters
        return self._summed.get(way) or tuple((way.nvml_id, link) for link in range(self.links))

    def _outcome(self, way: Batched, pairs: tuple[Pair, ...], numbers: Mapping[Pair, Outcome], now: float) -> Outcome:
        if isinstance(way, LinkSum):
            return self._sum(way, pairs, numbers)
        parts: list[int | float] = []
        for pair in pairs:
            number = numbers[pair]
            if isinstance(number, Refusal):
                return number
            parts.append(number)
        if isinstance(way, FieldValue):
            return parts[0]
        return self._rate(way, sum(parts), now) if _can_be(parts) else math.nan

    def _sum(self, way: LinkSum, pairs: tuple[Pair, ...], numbers: Mapping[Pair, Outcome]) -> Outcome:
        """Make one of the links. One that never answered is left out; one that no longer does makes all unknown."""
        if not pairs:
            return Refusal(Gap.UNSUPPORTED, "this GPU has no NVLink")
        refused: list[Refusal] = []
        answered: dict[Pair, int | float] = {}
        for pair in pairs:
            number = numbers[pair]
            if isinstance(number, Refusal):
                refused.append(number)
            else:
                answered[pair] = number
        passing = [refusal for refusal in refused if refusal.gap is not Gap.UNSUPPORTED]
        if passing or not answered:
            return (passing or refused)[0]
        if way in self._summed and refused:
            return Refusal(Gap.FAILED, f"{refused[0].reason}; without it a sum would go back, or the worst be hidden")
        if not _can_be(answered.values()):
            return math.nan
        self._summed[way] = tuple(answered)
        return way.fold(map(int, answered.values()))  # numbers of things and codes, whatever type they came in

    def _rate(self, rate: Rate, summed: float, now: float) -> Outcome:
        total = int(summed)
        before = self._counters.get(rate)
        outcome: Outcome = Refusal(Gap.FAILED, "a rate needs two sweeps")
        if before is not None:
            seconds = now - before.at
            if seconds < WINDOW:
                return before.outcome  # the window before has only just ended: it is still the newest there can be
            if total >= before.total:
                outcome = (total - before.total) * rate.factor / seconds
        self._counters[rate] = _Counter(total, now, outcome)
        return outcome


def _chunks(ids: list[Pair]) -> list[list[Pair]]:
    return [ids[first : first + MOST] for first in range(0, len(ids), MOST)]


def _can_be(parts: Iterable[int | float]) -> bool:
    """Whether all of the numbers that one is made of can be true; if not it is none, whatever it would come to."""
    return all(0 <= part <= INT64_HIGHEST for part in parts)  # NaN is within no bounds


def _number(value: Any, nvml_id: int) -> Outcome:  # noqa: ANN401 - c_nvmlFieldValue_t
    code = value.nvmlReturn
    if code == pynvml.NVML_SUCCESS:
        member = VALUE_MEMBERS.get(value.valueType)
        if member is None:
            return Refusal(Gap.INVALID, f"field value {nvml_id}: a value of the unknown type {value.valueType}")
        number: int | float = getattr(value.value, member)
        return number
    # A driver that does not know the field id, or a GPU without the scope, says so with "invalid argument".
    gap = Gap.UNSUPPORTED if code == pynvml.NVML_ERROR_INVALID_ARGUMENT else gap_of(code)
    error = pynvml.NVMLError(code)
    raise_if_whole(error)
    return Refusal(gap, f"field value {nvml_id}: {error}")


def links_of(handle: Handle, most: int) -> int:
    """Say how many NVLinks a GPU has; *most* where that cannot be told now, or cannot be true.

    Raise DeviceDownError when it is gone.
    """
    try:
        (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [(pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT, 0)])
        count = _number(value, pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT)
    except pynvml.NVMLError as error:
        raise_if_whole(error)
        return most  # a driver without field values may still know its links
    if isinstance(count, Refusal):
        return 0 if count.gap is Gap.UNSUPPORTED else most
    return int(count) if 0 <= count <= most else most  # NaN is within no bounds
