"""Reads one GPU and its instances by what is watched of them.

Rule 1: all of it belongs to the thread of the slot; others look at `answers` while they grow.
Rule 2: of a GPU whose every value fails for a reason that may pass nothing is told but that it is down.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from otelgpu.fields import Field
from otelgpu.model import Device, Gap, Missing, Reading, Sample
from otelgpu.sources import DeviceDownError
from otelgpu.sources.dcgm.connection import Connection
from otelgpu.sources.dcgm.counted import Counted
from otelgpu.sources.dcgm.devices import Found
from otelgpu.sources.dcgm.errors import NO_VALUE, NOT_WATCHED
from otelgpu.sources.dcgm.readable import OF_INSTANCE, PROFILING
from otelgpu.sources.dcgm.structs import MOST_ASKED
from otelgpu.sources.dcgm.values import Ages, Call, Entity, Refusal, judged
from otelgpu.sources.dcgm.watches import Refused, pieces

MUTE = 3  # values that have to fail, and none to be there, before a GPU counts as down
UNANSWERED = Refusal(Gap.FAILED, "the engine left it out of its answer")

Answer: TypeAlias = Reading | Missing


class Reader:
    """Reads *gpu*. *fields* are wanted of it, *refused* are those that the engine does not watch, with the reason."""

    def __init__(self, gpu: Found, device: Device, fields: Sequence[Field], refused: Refused, ages: Ages) -> None:
        self.device = device
        self.entity = gpu.itself
        self.is_read = False  # just now, or for ever: the thread may be stuck
        self.is_unwatched = False  # the engine has ceased to watch something
        self._watched: set[tuple[Entity, int]] = set()  # what it has watched
        self._is_proven = False  # there was a value
        self.answers: list[Answer] = []
        self.there = tuple(instance for _, instance in gpu.instances)
        self._fields = tuple(fields)
        self._refused = refused
        self._ages = ages
        self._devices = {gpu.itself: device, **dict(gpu.instances)}
        theirs = OF_INSTANCE if gpu.instances else frozenset[int]()
        own = [field for field in fields if field.id not in theirs]
        self._calls = [*_calls([gpu.itself], own, refused)]
        if gpu.instances:
            of_instances = [field for field in fields if field.id in OF_INSTANCE]
            self._calls += _calls([entity for entity, _ in gpu.instances], of_instances, refused)
        self._not_asked = [field for field in fields if field.id in refused]

    def sample(self, connection: Connection, counted: Counted) -> Sample:
        """Read once. Raise DcgmError when the engine is gone, DeviceDownError when the GPU is."""
        self.answers = []  # before anybody looks at them
        self.is_read = True
        try:
            return self._read(connection, counted)
        finally:
            self.is_read = False

    def _read(self, connection: Connection, counted: Counted) -> Sample:
        answers = self.answers
        failures: list[Refusal] = []
        for call, entities, fields in self._calls:
            told = {(entity, id_): value for entity, id_, value in call.ask(connection)}
            for entity in entities:
                for field in fields:
                    value = told.get((entity, field.id))
                    number: int | float | str | Refusal = UNANSWERED
                    if value is not None:
                        self._note(entity, field, value.status)
                        number = judged(value, field)
                        if not isinstance(number, Refusal):
                            number = self._ages.too_old(entity, field, value.ts) or number
                    answers.append(self._answer(field, self._devices[entity], number, failures))
        for field in self._not_asked:
            refusal = self._refused[field.id]
            answers.append(Missing(field, self.device, refusal.gap, refusal.reason))
        readings = [answer for answer in answers if isinstance(answer, Reading)]
        if not readings and len(failures) >= MUTE:
            raise DeviceDownError(failures[0].gap, f"every value is missing: {failures[0].reason}")
        self._is_proven |= bool(readings)
        answers += counted.answers(self.device)
        return self._sample(answers)

    def so_far(self, reason: str, counted: Counted) -> Sample:
        """Give what is there of a read under way, and what is counted; what is not is missing for this reason."""
        answers = list(self.answers)
        told = {answer.field.id for answer in answers if answer.device is self.device}
        late = (Missing(field, self.device, Gap.TIMEOUT, reason) for field in self._fields if field.id not in told)
        beside = (answer for answer in counted.answers(self.device) if answer.field.id not in told)
        return self._sample([*answers, *late, *beside])

    def _note(self, entity: Entity, field: Field, status: int) -> None:
        """Note whether the engine watches; what it never did another look would not change."""
        if status != NOT_WATCHED:
            self._watched.add((entity, field.id))
        elif (entity, field.id) in self._watched:
            self.is_unwatched = True

    def _answer(self, field: Field, device: Device, number: float | str | Refusal, failures: list[Refusal]) -> Answer:
        if not isinstance(number, Refusal):
            return Reading(field, device, number)
        if number.gap is Gap.LOST:
            raise DeviceDownError(Gap.LOST, f"{field.name}: {number.reason}")
        # A watch that has only just begun, or profiling that somebody has paused: neither is a GPU that is down.
        is_quiet = number.reason == NO_VALUE and (field.id in PROFILING or not self._is_proven)
        if number.gap in (Gap.FAILED, Gap.TIMEOUT) and not is_quiet:
            failures.append(number)
        return Missing(field, device, number.gap, number.reason)

    def _sample(self, answers: Iterable[Answer]) -> Sample:
        answers = list(answers)
        return Sample(
            self.device,
            self.there,
            tuple(answer for answer in answers if isinstance(answer, Reading)),
            tuple(answer for answer in answers if isinstance(answer, Missing)),
        )


def _calls(
    entities: Sequence[Entity], fields: Iterable[Field], refused: Refused
) -> Iterable[tuple[Call, Sequence[Entity], Sequence[Field]]]:
    """Make the calls that answer *fields* of *entities*: one, unless there are more than a call takes."""
    asked = [field for field in fields if field.id not in refused]
    for piece in pieces(asked, MOST_ASKED):
        yield Call(entities, [field.id for field in piece]), entities, piece
