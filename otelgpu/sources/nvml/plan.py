"""The reading plan of one device: what is asked in a sweep, and in as few calls as possible.

Rule 1: made once per device from the fields that are wanted; what a device does not support is asked once and
        then not again until the device (or the driver) is another one.
Rule 2: all of a plan runs in the thread of its GPU; nothing here is shared.
Rule 3: a question that fails costs the fields it would have answered. A GPU that is gone ends the sweep for it.
Rule 4: a question that took long last time is put last, so that it costs only itself when the time is over.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pynvml

from otelgpu.fields import Field
from otelgpu.model import Device, Gap, Missing, Reading
from otelgpu.sources import DeviceDownError
from otelgpu.sources.nvml.errors import gap_of, raise_if_whole
from otelgpu.sources.nvml.handles import Handle
from otelgpu.sources.nvml.questions import FIELD_VALUES, QUESTIONS, RATES, WINDOW, FieldValue, Question, Rate, Take

Answer: TypeAlias = Reading | Missing
Way: TypeAlias = FieldValue | Question | Rate
Call: TypeAlias = tuple[Way, tuple[Take, ...]]

MUTE = 3  # fields that have to fail, and none to be answered, before a GPU counts as down
SLOW = 0.1  # seconds: NVML's own slowest question, PCIe throughput, takes 20 ms

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


@dataclass(frozen=True, slots=True)
class _Counter:
    """What a rate was worked out from last time, and what it was."""

    total: int
    at: float
    answer: Answer


@dataclass(frozen=True, slots=True)
class _Refusal:
    gap: Gap
    reason: str


class Plan:
    """Reads the wanted *fields* of one device, given its *handle*. `ask` is called once a sweep.

    *refused* are fields that this device is known not to have, with the reason.
    """

    def __init__(
        self,
        fields: Iterable[Field],
        device: Device,
        handle: Handle,
        *,
        refused: Iterable[tuple[Field, str]] = (),
        clock: Callable[[], float],
    ) -> None:
        self._device = device
        self._handle = handle
        self._clock = clock
        self._fields = {field.id: field for field in fields}
        is_instance, driver = device.instance_id is not None, device.driver_version
        self._ways = {id_: list(ways_of(id_, instance=is_instance, driver=driver)) for id_ in self._fields}
        # Answers that hold as long as the device is there.
        self._settled: list[Answer] = [Missing(field, device, Gap.UNSUPPORTED, reason) for field, reason in refused]
        self._counters: dict[int, _Counter] = {}
        self._slow: set[str] = set()  # names of questions
        self._failures: list[str] = []  # why, of the questions that failed in this sweep
        self._is_answered = False  # any of them
        for id_ in [id_ for id_, ways in self._ways.items() if not ways]:
            self._settle(Missing(self._fields[id_], device, Gap.UNSUPPORTED, "NVML has no question for it"))
        self._calls = self._compiled(self._ways)

    def ask(self, answers: list[Answer]) -> None:
        """Ask everything once and add to *answers* as they come in. Another thread may look at them meanwhile.

        Raise DeviceDownError when the GPU itself is gone, or is there and fails every question.
        """
        self._failures.clear()
        self._is_answered = False
        answers += self._settled
        calls = self._calls
        while calls:
            settled = len(self._settled)
            turned = self._ask(calls, answers)
            if not turned and settled == len(self._settled):
                break
            calls = self._compiled(turned)  # what was refused and has another way is asked again at once
            self._calls = self._compiled(self._ways)
        if len(self._failures) >= MUTE and not self._is_answered:
            raise DeviceDownError(Gap.FAILED, f"every question fails: {self._failures[0]}, and others")

    def _settle(self, answer: Answer) -> None:
        self._settled.append(answer)
        del self._ways[answer.field.id]

    def _compiled(self, field_ids: Iterable[int]) -> list[Call]:
        """List the calls that answer these fields: the first way of each, each call once."""
        calls: dict[Way, list[Take]] = {}
        for field_id in field_ids:
            way = self._ways[field_id][0]
            takes = [take for take in way.takes if take.field_id == field_id] if isinstance(way, Question) else []
            calls.setdefault(way, []).extend(takes)
        return [(way, tuple(takes)) for way, takes in calls.items()]

    def _ask(self, calls: list[Call], answers: list[Answer]) -> list[int]:
        """Put the calls, add to *answers*, and give back the fields that have to be asked in another way."""
        turned: list[int] = []
        batch = [way for way, _ in calls if not isinstance(way, Question)]
        if batch:
            self._ask_values(batch, answers, turned)
        questions = [(way, takes) for way, takes in calls if isinstance(way, Question)]
        for question, takes in sorted(questions, key=lambda call: call[0].name in self._slow):
            began = self._clock()
            self._ask_question(question, takes, answers, turned)
            if self._clock() - began > SLOW:
                self._slow.add(question.name)
            else:
                self._slow.discard(question.name)
        return turned

    def _ask_question(
        self, question: Question, takes: tuple[Take, ...], answers: list[Answer], turned: list[int]
    ) -> None:
        try:
            raw = raw_or_text(question, self._handle)
        except pynvml.NVMLError as error:
            raise_if_whole(error)
            for take in takes:
                self._refuse(take.field_id, gap_of(error.value), f"{question.name}: {error}", answers, turned)
            return
        self._is_answered = True
        for take in takes:
            field, picked = self._fields[take.field_id], take.pick(raw)
            if isinstance(picked, Mapping):
                answers.extend(Reading(field, self._device, number, which) for which, number in picked.items())
                continue
            reading = Reading(field, self._device, picked)
            answers.append(reading)
            if question.fixed:
                self._settle(reading)

    def _ask_values(self, batch: list[Any], answers: list[Answer], turned: list[int]) -> None:
        """Carry all field values and the counters of all rates in one call."""
        ids = list(dict.fromkeys(pair for way in batch for pair in _pairs(way)))
        try:
            values = dict(zip(ids, pynvml.nvmlDeviceGetFieldValues(self._handle, ids), strict=True))
        except pynvml.NVMLError as error:
            raise_if_whole(error)
            for way in batch:
                self._refuse(way.field_id, gap_of(error.value), f"nvmlDeviceGetFieldValues: {error}", answers, turned)
            return
        now = self._clock()
        for way in batch:
            numbers: list[int | float] = []
            for pair in _pairs(way):
                number = _number(values[pair])
                if isinstance(number, _Refusal):
                    reason = f"field value {pair[0]}: {number.reason}"
                    self._refuse(way.field_id, number.gap, reason, answers, turned)
                    break
                numbers.append(number)
            else:
                self._is_answered = True
                answers.append(self._answer(way, numbers, now))

    def _answer(self, way: FieldValue | Rate, numbers: list[int | float], now: float) -> Answer:
        field = self._fields[way.field_id]
        if isinstance(way, FieldValue):
            return Reading(field, self._device, numbers[0])
        summed = sum(numbers)
        if not math.isfinite(summed):
            return Reading(field, self._device, math.nan)  # no number: dropped and counted like any other
        total = int(summed)
        before = self._counters.get(way.field_id)
        answer: Answer = Missing(field, self._device, Gap.FAILED, "a rate needs two sweeps")
        if before is not None:
            seconds = now - before.at
            if seconds < WINDOW:
                return before.answer  # the window before has only just ended: it is still the newest there can be
            if total >= before.total:
                answer = Reading(field, self._device, (total - before.total) * way.factor / seconds)
        self._counters[way.field_id] = _Counter(total, now, answer)
        return answer

    def _refuse(self, field_id: int, gap: Gap, reason: str, answers: list[Answer], turned: list[int]) -> None:
        missing = Missing(self._fields[field_id], self._device, gap, reason)
        if gap is Gap.FAILED:
            self._failures.append(reason)
        if gap is not Gap.UNSUPPORTED:
            answers.append(missing)
        elif len(self._ways[field_id]) > 1:
            del self._ways[field_id][0]
            turned.append(field_id)
        else:
            answers.append(missing)
            self._settle(missing)


def ways_of(field_id: int, *, instance: bool, driver: str = "") -> Iterator[Way]:
    """List the ways to read a field, best first. A MIG instance has its own, and none of its GPU's."""
    if not instance:
        yield from (row for row in FIELD_VALUES if row.field_id == field_id and row.holds_for(driver))
    for question in QUESTIONS:
        if (question.instance or not instance) and any(take.field_id == field_id for take in question.takes):
            yield question
    if not instance:
        yield from (row for row in RATES if row.field_id == field_id)


def raw_or_text(question: Question, handle: Handle) -> Any:  # noqa: ANN401 - whatever pynvml returns
    """Ask; a text that is no UTF-8 comes back with U+FFFD in place of the bad bytes."""
    try:
        return question.ask(handle)
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", errors="replace")


def _pairs(way: FieldValue | Rate) -> tuple[tuple[int, int], ...]:
    return ((way.nvml_id, way.scope),) if isinstance(way, FieldValue) else way.counters


def _number(value: Any) -> int | float | _Refusal:  # noqa: ANN401 - c_nvmlFieldValue_t
    code = value.nvmlReturn
    if code == pynvml.NVML_SUCCESS:
        member = VALUE_MEMBERS.get(value.valueType)
        if member is None:
            return _Refusal(Gap.INVALID, f"a value of the unknown type {value.valueType}")
        number: int | float = getattr(value.value, member)
        return number
    # A driver that does not know the field id, or a GPU without the scope, says so with "invalid argument".
    gap = Gap.UNSUPPORTED if code == pynvml.NVML_ERROR_INVALID_ARGUMENT else gap_of(code)
    error = pynvml.NVMLError(code)
    raise_if_whole(error)
    return _Refusal(gap, str(error))
