"""What a recording looks like: lines of JSON, described in docs/recordings.md.

Rule 1: a line stands for itself, so that what was recorded before a crash can be read.
Rule 2: a change that an older otelgpu would misread gets another FORM.
Rule 3: every problem of a file is told with its line, as far as MOST_PROBLEMS; nothing of a wrong file is replayed.
Rule 4: a last line without its end is no problem: `record` was killed while it wrote. What is before it is replayed.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from otelgpu.config.given import content_of
from otelgpu.config.words import shown, whole
from otelgpu.fields import Field, find
from otelgpu.fields.names import suggest
from otelgpu.model import Device, DeviceUse, Gap, Missing, Reading, Sample, SourceFacts

FORM = 1
LARGEST = 1 << 30  # bytes; hours of a large machine
MOST_PROBLEMS = 20
MOST = 1 << 64  # what JSON's writer takes is below
NO_RECORDING = "not a recording; `otelgpu record FILE` makes one"

logger = logging.getLogger(__name__)


class Head(Struct, frozen=True, forbid_unknown_fields=True):
    """The first line. `fields` are those that were asked for: no other is known of this machine."""

    otelgpu_recording: int  # FORM
    version: str  # of the otelgpu that recorded
    fields: tuple[str, ...]


class Answer(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A reading. `number` null: the driver answered what is no number. `on`: 0 the GPU, 1 its first instance, ..."""

    field: str
    number: int | float | str | None
    on: int = 0
    attributes: Mapping[str, str] = msgspec.field(default_factory=dict)


class Absence(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A field without a value, and why."""

    field: str
    gap: Gap
    reason: str
    on: int = 0


class Down(Struct, frozen=True, forbid_unknown_fields=True):
    """Why a GPU could not be asked, or gave no answer in time."""

    gap: Gap
    reason: str


class Slot(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What came back for one slot. `device` is missing where nobody could tell which GPU is there."""

    device: Device | None = None
    down: Down | None = None
    instances: tuple[Device, ...] = ()
    readings: tuple[Answer, ...] = ()
    missing: tuple[Absence, ...] = ()
    used: tuple[DeviceUse, ...] = ()


class Sweep(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Any other line: one sweep. `down`: why the source as a whole did not answer. `heard`: what was told, by UUID."""

    seconds: float  # since the first sweep
    facts: SourceFacts
    slots: tuple[Slot, ...] = ()
    down: str = ""
    heard: Mapping[str, tuple[Answer, ...]] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recording:
    """A whole file."""

    fields: frozenset[int]
    sweeps: tuple[Sweep, ...]


class RecordingError(ValueError):
    """A file cannot be replayed; each of `problems` begins with the file and its line."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def line(value: Struct) -> bytes:
    """Write one line. Numbers that JSON does not know become null."""
    return msgspec.json.encode(value) + b"\n"


def load(path: str) -> Recording:
    """Read a recording. Raise RecordingError."""
    name = whole(path)
    try:
        content = content_of(path, largest=LARGEST, kind="a recording")
    except ValueError as error:
        raise RecordingError([f"{name}: {error}"]) from None
    lines = [(at, text) for at, text in enumerate(content.split(b"\n"), 1) if text.strip()]
    if not lines:
        raise RecordingError([f"{name}: {NO_RECORDING}"])
    fields = _head(name, *lines[0])
    problems: list[str] = []
    sweeps: list[Sweep] = []
    last = 0 if content.endswith(b"\n") else lines[-1][0]
    cut = 0
    for at, text in lines[1:]:
        try:
            sweep = msgspec.json.decode(text, type=Sweep)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            if at == last and not isinstance(error, msgspec.ValidationError):
                cut = at
                continue
            found = [f"expected a sweep: {_said(error)}"]
        else:
            found = list(_wrong(sweep))
            sweeps.append(sweep)
        problems += (f"{name}:{at}: {one}" for one in found)
    if problems:
        more = len(problems) - MOST_PROBLEMS
        raise RecordingError([*problems[:MOST_PROBLEMS], *([f"{name}: and {more} more"] if more > 0 else [])])
    if not sweeps:
        raise RecordingError([f"{name}: it holds no sweep; it was broken off before the first one"])
    if cut:
        logger.warning("%s:%d: the line is cut off; replayed are the sweeps before it", name, cut)
    return Recording(fields, tuple(sweeps))


def _head(name: str, at: int, text: bytes) -> frozenset[int]:
    """Read the first line; give the ids of the fields."""
    try:
        form = msgspec.json.decode(text, type=_Form).otelgpu_recording
        head = msgspec.json.decode(text, type=Head) if form == FORM else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise RecordingError([f"{name}:{at}: {NO_RECORDING}"]) from None
    if head is None:
        raise RecordingError([f"{name}:{at}: of form {form}; this otelgpu reads form {FORM}"])
    unknown = [_no_field(field) for field in head.fields if find(field) is None]
    if unknown:
        raise RecordingError([f"{name}:{at}: {problem}" for problem in unknown])
    return frozenset(row.id for field in head.fields if (row := find(field)) is not None)


class _Form(Struct):
    otelgpu_recording: int


def _said(error: Exception) -> str:
    said = str(error) if isinstance(error, msgspec.MsgspecError) else "not UTF-8"
    return said if said[:2].isupper() else said[:1].lower() + said[1:]  # JSON stays JSON


def _no_field(name: str) -> str:
    near = suggest(name)
    return f"no such field: {shown(name)}" + (f"; did you mean {near}?" if near else "")


def _wrong(sweep: Sweep) -> Iterator[str]:
    """Say what is wrong with a sweep that can be read."""
    for number, slot in enumerate(sweep.slots):
        place = f"slot {number}"
        answers: tuple[Answer | Absence, ...] = (*slot.readings, *slot.missing)
        for answer in answers:
            yield from (f"{place}: {problem}" for problem in _wrong_answer(answer, 1 + len(slot.instances)))
    for told in sweep.heard.values():
        yield from (f"heard: {problem}" for one in told for problem in _wrong_answer(one, 1))


def _wrong_answer(answer: Answer | Absence, devices: int) -> Iterator[str]:
    row = find(answer.field)
    if row is None:
        yield _no_field(answer.field)
    elif isinstance(answer, Answer) and isinstance(answer.number, str) == row.is_numeric:
        yield f"{answer.field}: expected {'a number' if row.is_numeric else 'a text'}"
    if not 0 <= answer.on < devices:
        yield f"{answer.field}: on {answer.on}: expected 0 to {devices - 1}"


def slot_of(sample: Sample) -> Slot:
    """Write what was read of a slot. What is said of an instance that went meanwhile is left out."""
    place = {device.uuid: number for number, device in enumerate((sample.device, *sample.instances))}
    return Slot(
        device=sample.device,
        instances=sample.instances,
        readings=tuple(
            answer_of(reading, place[reading.device.uuid])
            for reading in sample.readings
            if reading.device.uuid in place
        ),
        missing=tuple(
            Absence(one.field.name, one.gap, one.reason, place[one.device.uuid])
            for one in sample.missing
            if one.device.uuid in place
        ),
        used=sample.used,
    )


def answer_of(reading: Reading, on: int = 0) -> Answer:
    """Write one reading."""
    number = reading.number
    if isinstance(number, int) and number >= MOST:
        number = float(number)  # far beyond what any field may be: it is dropped either way
    return Answer(reading.field.name, number, on, dict(reading.attributes))


def sample_of(slot: Slot, device: Device, wanted: Mapping[int, Field]) -> Sample:
    """Read a slot back, as far as its fields are *wanted*."""
    devices = (device, *slot.instances)
    return Sample(
        device,
        slot.instances,
        tuple(reading for one in slot.readings if (reading := reading_of(one, devices[one.on], wanted)) is not None),
        tuple(
            Missing(row, devices[one.on], one.gap, one.reason)
            for one in slot.missing
            if (row := _row(one, wanted)) is not None
        ),
        slot.used,
    )


def reading_of(answer: Answer, device: Device, wanted: Mapping[int, Field]) -> Reading | None:
    """Read one answer back; None where its field is not *wanted*."""
    row = _row(answer, wanted)
    if row is None:
        return None
    number = math.nan if answer.number is None else answer.number
    return Reading(row, device, number, tuple(answer.attributes.items()))


def _row(answer: Answer | Absence, wanted: Mapping[int, Field]) -> Field | None:
    row = find(answer.field)
    return None if row is None else wanted.get(row.id)
