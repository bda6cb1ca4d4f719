"""The values of one call: asked into the same memory each time, and judged one by one.

Rule 1: a value is 4 KB, so what a call fills is made once and kept.
Rule 2: a number comes in DCGM's unit, which is what the naming scheme `dcgm` shows, and leaves in the driver's, which
        the catalogue and all that is behind it go by: one comes from the other by the row's own Shape.
Rule 3: a value that the engine has not taken anew for longer than *expire* is none, or a frozen engine would look like
        a GPU at rest. What only changes when something happens is as old as that.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from ctypes import c_uint16
from dataclasses import dataclass
from typing import TypeAlias

from otelgpu.fields import Field
from otelgpu.fields.measures import INT64_HIGHEST
from otelgpu.fields.row import Number
from otelgpu.model import Gap
from otelgpu.sources.dcgm.connection import Connection
from otelgpu.sources.dcgm.errors import DISCONNECTED, DcgmError, blank_number, blank_text, gap_of, told_by
from otelgpu.sources.dcgm.structs import OK, EntityPair, FieldValue1, FieldValue2

Entity: TypeAlias = tuple[int, int]  # dcgm_field_entity_group_t, id
Value: TypeAlias = FieldValue1 | FieldValue2

# Taken when it happens and not at a pace: GPUs that come and go, XIDs, errors of NVLink, and what a diagnostic found.
EVENTS = frozenset((6, 230, 450, *range(350, 364)))
TYPES = {ord("i"): Number.INT, ord("d"): Number.DOUBLE, ord("s"): Number.TEXT}
PLACES = 12  # digits after the point that a share of one has as a percentage: 0.57 is 57.0, and not 56.99999999999999
MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no value."""

    gap: Gap
    reason: str


def refusal_of(error: DcgmError) -> Refusal:
    """Make what a field is missing for of an error; raise the one that says that the connection is gone."""
    if error.code in DISCONNECTED:
        raise error
    return Refusal(gap_of(error.code), str(error))


class Call:
    """Asks *fields* of *entities*; used by one thread at a time."""

    def __init__(self, entities: Sequence[Entity], fields: Sequence[int], flags: int = 0) -> None:
        self._entities = (EntityPair * len(entities))(*(EntityPair(*entity) for entity in entities))
        self._fields = (c_uint16 * len(fields))(*fields)
        self._flags = flags
        self._memory = (FieldValue2 * (len(entities) * len(fields)))()
        self._values = list(self._memory)

    def ask(self, connection: Connection) -> Iterator[tuple[Entity, int, FieldValue2]]:
        """Ask, and give each value with whose and of which field it is. Raise DcgmError when all of it fails."""
        connection.ask(
            "dcgmEntitiesGetLatestValues",
            self._entities,
            len(self._entities),
            self._fields,
            len(self._fields),
            self._flags,
            self._memory,
        )
        for value in self._values:
            yield (value.entityGroupId, value.entityId), value.fieldId, value


class Ages:
    """Since when each value is as it is. With *is_local* the engine's clock is this machine's."""

    def __init__(self, expire: float, *, is_local: bool) -> None:
        self.expire = expire
        self._is_local = is_local
        self._taken: dict[tuple[Entity, int], tuple[int, float]] = {}  # DCGM's time, and when that was by our clock

    def too_old(self, entity: Entity, field: Field, taken: int) -> Refusal | None:
        """Say why a value that was taken then (microseconds since the epoch) is too old; None where it is not."""
        if field.id in EVENTS:
            return None
        now = time.monotonic()
        before = self._taken.get((entity, field.id))
        if before is None or before[0] != taken:
            lag = max(time.time() - taken / MICRO, 0.0) if self._is_local else 0.0
            before = self._taken[entity, field.id] = taken, now - lag
        age = now - before[1]
        if age <= self.expire:
            return None
        return Refusal(Gap.TIMEOUT, f"the engine has taken no value for {age:.0f} s")

    def keep(self, entities: Collection[Entity]) -> None:
        """Forget all but these: instances come and go."""
        # Of a copy: the thread of a slot that was stuck may come back at any moment.
        self._taken = {key: taken for key, taken in list(self._taken.items()) if key[0] in entities}


def judged(value: Value, field: Field) -> int | float | str | Refusal:
    """Give a value as the driver would have given it, or why there is none."""
    if value.status != OK:
        return Refusal(*told_by(value.status))
    kind = TYPES.get(value.fieldType)
    if kind is not field.dcgm.number:
        return Refusal(Gap.INVALID, f"DCGM answered a value of type {value.fieldType}, which is no {field.dcgm.number}")
    if kind is Number.TEXT:
        text = text_of(value.value.str)
        no_text = blank_text(text)
        return text if no_text is None else Refusal(*no_text)
    number: int | float = value.value.i64 if kind is Number.INT else value.value.dbl
    no_number = blank_number(number, field.highest * field.dcgm.numerator / field.dcgm.denominator)
    return drivers_number(field, number) if no_number is None else Refusal(*no_number)


def drivers_number(field: Field, shown: int | float) -> int | float:  # noqa: PYI041 - an int stays one
    """Convert DCGM's number to the driver's unit."""
    shape = field.dcgm
    number = shown * shape.denominator
    if shape.numerator != 1:
        number = number / shape.numerator
    if field.number is Number.INT:
        # What cannot be true stays as it is: it is dropped, and counted, by what it is.
        return round(number) if isinstance(number, float) and abs(number) <= INT64_HIGHEST else number
    return round(float(number), PLACES) if shape.denominator != 1 else float(number)


def text_of(raw: bytes) -> str:
    """Read a text; bytes that are no UTF-8 become U+FFFD."""
    return raw.decode("utf-8", errors="replace")
