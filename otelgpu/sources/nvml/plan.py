"""The reading plan of one device: what is asked in a sweep, and in as few calls as possible.

Rule 1: made once per device from the fields that are wanted. What the device does not support is asked once and then
        after longer and longer waits (see `again`); what is fixed is asked once; what is slow seldom.
Rule 2: all of a plan runs in the thread of its GPU; nothing here is shared.
Rule 3: a question that fails costs the fields it would have answered. A GPU that is gone ends the sweep for it.
Rule 4: a target is one series: a field, or a field on one NVLink. A field whose links all refuse is missing once.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import pynvml

from otelgpu.fields import Field
from otelgpu.fields.row import Level
from otelgpu.model import Attributes, Device, Gap, Missing, Reading
from otelgpu.sources.nvml.again import Again
from otelgpu.sources.nvml.errors import gap_of, raise_if_whole
from otelgpu.sources.nvml.handles import Handle
from otelgpu.sources.nvml.questions import (
    FIELD_VALUES,
    LINKS,
    QUESTIONS,
    RATES,
    SUMS,
    FieldValue,
    LinkSum,
    Question,
    Rate,
    Take,
    Version,
)
from otelgpu.sources.nvml.values import FieldValues, Refusal, links_of

Answer: TypeAlias = Reading | Missing
Way: TypeAlias = FieldValue | Question | Rate | LinkSum
Call: TypeAlias = tuple[Way, tuple[Take, ...]]
Target: TypeAlias = tuple[int, int | None]  # field id, link

SLOW = 60.0  # seconds between two questions about what seldom changes, unless the settings say otherwise


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a slow question got, and when."""

    raw: Any
    at: float


class Plan:
    """Reads the wanted *fields* of one device, given its *handle*. `answers` is called once a sweep.

    *refused* are fields that this device is known not to have, with the reason. Raise DeviceDownError when the GPU
    is gone.
    """

    def __init__(
        self,
        fields: Iterable[Field],
        device: Device,
        handle: Handle,
        *,
        refused: Iterable[tuple[Field, str]] = (),
        clock: Callable[[], float],
        slow_interval: float = SLOW,
    ) -> None:
        self._device = device
        self._handle = handle
        self._clock = clock
        self._slow_interval = slow_interval
        self._fields = {field.id: field for field in fields}
        self._again = Again(clock)
        # Answers that hold as long as the device is there, and those that hold until it is asked again.
        self._fixed: dict[Target, Answer] = {
            (field.id, None): Missing(field, device, Gap.UNSUPPORTED, reason) for field, reason in refused
        }
        self._refused: dict[Target, Missing] = {}
        self._answered: set[Target] = set()
        self._kept: dict[Question, _Kept] = {}
        self._targets: list[Target] = []  # in the order in which they are shown, however they are asked
        self._ways: dict[Target, list[Way]] = {}
        self._calls: list[Call] = []
        self._values = FieldValues(handle, clock)
        self._begin()

    def answers(self) -> list[Answer]:
        """Ask everything once. Raise DeviceDownError when the GPU itself is gone."""
        if self._again.is_due():
            self._begin()
        found: dict[Target, Answer] = {**self._fixed, **self._refused}
        calls = self._calls
        while calls:
            settled = len(self._fixed) + len(self._refused)
            turned = self._ask(calls, found)
            if not turned and settled == len(self._fixed) + len(self._refused):
                break
            calls = self._compiled(turned)  # what was refused and has another way is asked again at once
            self._calls = self._compiled(self._ways)
        ordered = [found.pop(target) for target in self._targets if target in found]
        return told([*ordered, *found.values()])

    def _begin(self) -> None:
        """Plan as for a device that has not been asked yet, but for what is fixed."""
        self._refused.clear()
        by_link = {id_ for id_, field in self._fields.items() if field.level is Level.LINK}
        wants_links = any(row.field_id in self._fields for row in SUMS) or by_link
        links = self._values.links = links_of(self._handle, LINKS) if wants_links else 0
        self._targets.clear()
        self._ways = {}
        for id_, field in self._fields.items():
            targets = [(id_, link) for link in range(links)] if id_ in by_link else [(id_, None)]
            if not targets:
                self._refuse_field(field, "this GPU has no NVLink")
            self._targets += targets
            for target in targets:
                if target in self._fixed:
                    continue
                self._ways[target] = list(ways_of(target, self._device))
                if not self._ways[target]:
                    del self._ways[target]
                    self._refuse_field(field, "this driver has no question for it")
        self._calls = self._compiled(self._ways)

    def _refuse_field(self, field: Field, reason: str) -> None:
        self._refused[field.id, None] = Missing(field, self._device, Gap.UNSUPPORTED, reason)

    def _compiled(self, targets: Iterable[Target]) -> list[Call]:
        """List the calls that answer these targets: the first way of each, each call once."""
        calls: dict[Way, list[Take]] = {}
        for target in targets:
            way = self._ways[target][0]
            takes = [take for take in way.takes if target_of(take) == target] if isinstance(way, Question) else []
            calls.setdefault(way, []).extend(takes)
        return [(way, tuple(takes)) for way, takes in calls.items()]

    def _ask(self, calls: list[Call], found: dict[Target, Answer]) -> list[Target]:
        """Put the calls, add to *found*, and give back the targets that have to be asked in another way."""
        turned: list[Target] = []
        batch = [way for way, _ in calls if not isinstance(way, Question)]
        for entry, outcome in self._values.ask(batch) if batch else ():
            target = target_of(entry)
            if isinstance(outcome, Refusal):
                self._refuse(target, outcome, found, turned)
            else:
                self._take(target, outcome, found)
        for way, takes in calls:
            if isinstance(way, Question):
                self._ask_question(way, takes, found, turned)
        return turned

    def _ask_question(
        self, question: Question, takes: tuple[Take, ...], found: dict[Target, Answer], turned: list[Target]
    ) -> None:
        try:
            raw = self._raw(question)
        except pynvml.NVMLError as error:
            raise_if_whole(error)
            refusal = Refusal(gap_of(error.value), f"{question.name}: {error}")
            for take in takes:
                self._refuse(target_of(take), refusal, found, turned)
            return
        for take in takes:
            target = target_of(take)
            number = take.pick(raw)
            if number is None:
                reason = f"{question.name}: the driver has no value for it"
                found[target] = Missing(self._fields[take.field_id], self._device, Gap.UNSUPPORTED, reason)
                continue
            self._take(target, number, found)
            if question.fixed:
                self._fixed[target] = found[target]
                del self._ways[target]

    def _raw(self, question: Question) -> Any:  # noqa: ANN401 - whatever pynvml returns
        kept = self._kept.get(question)
        now = self._clock()
        if kept is not None and now - kept.at < self._slow_interval:
            return kept.raw
        raw = raw_or_text(question, self._handle)
        if question.slow:
            self._kept[question] = _Kept(raw, now)
        return raw

    def _take(self, target: Target, number: float | str, found: dict[Target, Answer]) -> None:
        id_, link = target
        found[target] = Reading(self._fields[id_], self._device, number, attributes_of(link))
        self._answered.add(target)

    def _refuse(self, target: Target, refusal: Refusal, found: dict[Target, Answer], turned: list[Target]) -> None:
        missing = Missing(self._fields[target[0]], self._device, refusal.gap, refusal.reason)
        found[target] = missing
        if refusal.gap is not Gap.UNSUPPORTED:
            return
        self._again.refused(afresh=target in self._answered)
        self._answered.discard(target)
        if len(self._ways[target]) > 1:
            del self._ways[target][0]
            turned.append(target)
        else:
            del self._ways[target]
            self._refused[target] = missing


def target_of(row: FieldValue | Rate | LinkSum | Take) -> Target:
    """Name the series that a row gives."""
    return row.field_id, row.link


def told(answers: Iterable[Answer]) -> list[Answer]:
    """Leave out what some links of a field miss where another link answers, and tell one gap where none does."""
    answers = list(answers)
    there = {answer.field.id for answer in answers if isinstance(answer, Reading)}
    found: list[Answer] = []
    for answer in answers:
        if isinstance(answer, Reading):
            found.append(answer)
        elif answer.field.id not in there:
            there.add(answer.field.id)
            found.append(answer)
    return found


def ways_of(target: Target, device: Device) -> Iterator[Way]:
    """List the ways to read a series, best first. A MIG instance has its own, and none of its GPU's."""
    version = version_of(device.driver_version)
    for way in _ways().get(target, ()):
        if device.instance_id is not None:
            if isinstance(way, Question) and way.instance:
                yield way
        elif not isinstance(way, FieldValue) or _is_known(way, version):
            yield way


@cache
def _ways() -> Mapping[Target, list[Way]]:
    """Put all tables together, by series."""
    found: dict[Target, list[Way]] = {}
    for row in FIELD_VALUES:
        found.setdefault(target_of(row), []).append(row)
    for question in QUESTIONS:
        for take in question.takes:
            found.setdefault(target_of(take), []).append(question)
    for rate in RATES:
        found.setdefault(target_of(rate), []).append(rate)
    for summed in SUMS:
        found.setdefault(target_of(summed), []).append(summed)
    return found


def _is_known(row: FieldValue, version: Version) -> bool:
    """Whether the id means this field in this driver. Where its version is not known a moved id is not asked."""
    if not row.since and not row.before:
        return True
    return bool(version) and row.since <= version and (not row.before or version < row.before)


def version_of(text: str) -> Version:
    """Read a driver version, "580.105.08"; () when it is none."""
    parts = text.split(".")
    return tuple(map(int, parts)) if all(re.fullmatch(r"\d+", part, re.ASCII) for part in parts) else ()


def attributes_of(link: int | None) -> Attributes:
    """Name the link of a series."""
    return () if link is None else (("nvlink", str(link)),)


def raw_or_text(question: Question, handle: Handle) -> Any:  # noqa: ANN401 - whatever pynvml returns
    """Ask; a text that is no UTF-8 comes back with U+FFFD in place of the bad bytes."""
    try:
        return question.ask(handle)
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", errors="replace")
