"""The reading plan of one device: what is asked in a sweep, and in as few calls as possible.

Rule 1: made once per device from the fields that are wanted. What the device does not support is asked once and then
        after longer and longer waits (see `again`); what is fixed is asked once; what is slow seldom.
Rule 2: all of a plan runs in the thread of its GPU; nothing here is shared.
Rule 3: a question that fails costs the fields it would have answered. A GPU that is gone ends the sweep for it.
Rule 4: a question that took long last time is put last, so that it costs only itself when the time is over.
Rule 5: a field whose links all refuse is missing once.
Rule 6: a total keeps to the way that gave it first, as long as the device is there: another way may count from another
        time, or in another manner, and the step between the two would be an increase that never was, or a reset.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pynvml

from otelgpu.fields import Field
from otelgpu.fields.measures import INT64_HIGHEST
from otelgpu.fields.row import Level, Number
from otelgpu.model import Attributes, Device, Gap, Missing, Reading
from otelgpu.sources import DeviceDownError
from otelgpu.sources.again import Again
from otelgpu.sources.nvml.errors import gap_of, raise_if_whole
from otelgpu.sources.nvml.handles import Handle
from otelgpu.sources.nvml.questions import (
    LINKS,
    SUMS,
    Question,
    Take,
)
from otelgpu.sources.nvml.values import FieldValues, Refusal, links_of
from otelgpu.sources.nvml.ways import Target, Way, target_of, ways_of

Answer: TypeAlias = Reading | Missing
Call: TypeAlias = tuple[Way, tuple[Take, ...]]

MUTE = 3  # targets that have to fail, and none to be answered, before a GPU counts as down
LONG = 0.1  # seconds: NVML's own longest question, PCIe throughput, takes 20 ms
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
        self._counting: dict[Target, Way] = {}  # where each total came from
        self._kept: dict[Question, _Kept] = {}
        self._targets: list[Target] = []  # in the order in which they are shown, however they are asked
        self._ways: dict[Target, list[Way]] = {}
        self._calls: list[Call] = []
        self._values = FieldValues(handle, clock)
        self._found: dict[Target, Answer] = {}  # in this sweep
        self._failures: list[str] = []  # why, of the targets that failed in this sweep
        self._is_answered = False  # any of them
        self._long: set[str] = set()  # names of questions
        self._begin()

    def answers(self) -> list[Answer]:
        """Ask everything once. Raise DeviceDownError when the GPU itself is gone, or fails every question."""
        if self._again.is_due():
            self._begin()
        self._failures.clear()
        self._is_answered = False
        found = self._found = {**self._fixed, **self._refused}
        calls = self._calls
        while calls:
            settled = len(self._fixed) + len(self._refused)
            turned = self._ask(calls, found)
            if not turned and settled == len(self._fixed) + len(self._refused):
                break
            calls = self._compiled(turned)  # what was refused and has another way is asked again at once
            self._calls = self._compiled(self._ways)
        if len(self._failures) >= MUTE and not self._is_answered:
            raise DeviceDownError(Gap.FAILED, f"every question fails: {self._failures[0]}, and others")
        return self._ordered(found)

    def clear(self) -> None:
        """Begin a sweep: nothing has been answered yet."""
        self._found = {}

    def so_far(self) -> list[Answer]:
        """Give what has been answered of the sweep under way; called by another thread."""
        return self._ordered(self._found.copy())

    def _ordered(self, found: dict[Target, Answer]) -> list[Answer]:
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
                kept = self._counting.get(target)
                self._ways[target] = list(ways_of(target, self._device)) if kept is None else [kept]
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
                self._is_answered = True
                self._take(target, outcome, found, entry)
        questions = [(way, takes) for way, takes in calls if isinstance(way, Question)]
        for question, takes in sorted(questions, key=lambda call: call[0].name in self._long):
            began = self._clock()
            self._ask_question(question, takes, found, turned)
            if self._clock() - began > LONG:
                self._long.add(question.name)
            else:
                self._long.discard(question.name)
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
            self._take(target, number, found, question)
            if question.fixed:
                self._fixed[target] = found[target]
                del self._ways[target]

    def _raw(self, question: Question) -> Any:  # noqa: ANN401 - whatever pynvml returns
        kept = self._kept.get(question)
        now = self._clock()
        if kept is not None and now - kept.at < self._slow_interval:
            return kept.raw
        raw = raw_or_text(question, self._handle)
        self._is_answered = True
        if question.slow:
            self._kept[question] = _Kept(raw, now)
        return raw

    def _take(self, target: Target, number: float | str, found: dict[Target, Answer], way: Way) -> None:
        id_, link = target
        field = self._fields[id_]
        found[target] = Reading(field, self._device, in_kind(field, number), attributes_of(link))
        self._answered.add(target)
        if field.is_total and target not in self._counting:
            self._counting[target] = way

    def _refuse(self, target: Target, refusal: Refusal, found: dict[Target, Answer], turned: list[Target]) -> None:
        missing = Missing(self._fields[target[0]], self._device, refusal.gap, refusal.reason)
        found[target] = missing
        if refusal.gap is Gap.FAILED:
            self._failures.append(refusal.reason)
        if refusal.gap is not Gap.UNSUPPORTED:
            return
        self._again.refused(afresh=target in self._answered)
        self._answered.discard(target)
        if len(self._ways[target]) > 1 and target not in self._counting:
            del self._ways[target][0]
            turned.append(target)
        else:
            del self._ways[target]
            self._refused[target] = missing


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


def in_kind(field: Field, number: float | str) -> float | str:
    """Cut a number that the driver gave as a double where the field's are whole; what cannot be true stays as it is."""
    is_double = field.number is Number.INT and isinstance(number, float) and abs(number) <= INT64_HIGHEST
    return int(number) if is_double else number


def attributes_of(link: int | None) -> Attributes:
    """Name the link of a series."""
    return () if link is None else (("nvlink", str(link)),)


def raw_or_text(question: Question, handle: Handle) -> Any:  # noqa: ANN401 - whatever pynvml returns
    """Ask; a text that is no UTF-8 comes back with U+FFFD in place of the bad bytes."""
    try:
        return question.ask(handle)
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", errors="replace")
