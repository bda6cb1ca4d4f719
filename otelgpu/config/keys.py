"""The rows that follow from the settings structs: one Setting for each field that has a meaning.

Rule 1: spellings (key, flag, variable) are made here and nowhere else.
Rule 2: what a value must look like is read off the field's type; the sentences for it are made here too.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import NoneType
from typing import Annotated, Literal, cast, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from otelgpu.config.settings import Config
from otelgpu.config.values import parse_seconds
from otelgpu.config.words import one_of

PREFIX = "OTELGPU_"
NULL = "null"
# What Go's strconv.ParseBool takes beyond what msgspec does; manifests for dcgm-exporter may hold it.
_GO_TRUTHS = {"t": "true", "T": "true", "f": "false", "F": "false"}


class Shape(StrEnum):
    """How many values a setting takes."""

    ONE = "one"
    LIST = "list"
    MAPPING = "mapping"


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """One setting: how it is spelt everywhere, and how a text becomes its value (or one entry of it)."""

    key: str
    default: object
    meaning: str
    group: str  # what it has in common with its neighbours: the first line about their struct
    short: str  # "--reuse", or ""
    letter: str  # "-k", or ""
    theirs: str  # dcgm-exporter's variable, or ""
    word: str  # stands for the value in help: --listen ADDRESS
    shape: Shape
    nullable: bool
    leaf: object  # the type of one value, with its limits, as msgspec takes it
    parse: Callable[[str], object] | None  # instead of msgspec
    split: Callable[[str], list[str]]  # a list that was written as one text

    @property
    def flags(self) -> tuple[str, ...]:
        """Every flag of this setting, the one to show first."""
        full = "--" + self.key.replace(".", "-").replace("_", "-")
        return tuple(flag for flag in (self.short, full, self.letter) if flag)

    @property
    def is_switch(self) -> bool:
        """Whether the flag alone, without a value, means true."""
        return leaf_kind(self) is bool

    @property
    def variable(self) -> str:
        """The environment variable: OTELGPU_SAMPLING_REUSE."""
        return PREFIX + self.key.replace(".", "_").upper()

    def value(self, text: str) -> object:
        """Make one value of a text. Raise ValueError with a sentence that says what would be right."""
        if not text.isascii() and not _is_utf8(text):
            raise ValueError("expected text in UTF-8")
        if self.shape is Shape.MAPPING:
            return text
        text = text.strip()
        if self.nullable and text.lower() == NULL:
            return None
        if self.parse is not None:
            return self.parse(text)
        return self._plain_value(text)

    def _plain_value(self, text: str) -> object:
        kind, notes = _noted(self.leaf)
        or_null = " or null" if self.nullable else ""
        raw: object = text
        if get_origin(kind) is Literal:
            raw = text.lower() if text.isascii() else text  # or a Kelvin sign would pass for a K
        elif kind is bool:
            raw = _GO_TRUTHS.get(text, text)
        elif kind is float:
            try:
                raw = parse_seconds(text)
            except ValueError:
                raise ValueError(f"expected a number of seconds{or_null}") from None
        try:
            return cast("object", msgspec.convert(raw, self.leaf, strict=False))
        except ValueError:  # msgspec.ValidationError is one
            raise ValueError(f"expected {_expected(kind, notes)}{or_null}") from None


def settings(struct: type[Struct] = Config, *, prefix: str = "") -> Iterator[Setting]:
    """Derive the settings from the structs, in the order in which they stand there."""
    for field in msgspec.structs.fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, Struct):
            yield from settings(field.type, prefix=f"{prefix}{field.name}.")
            continue
        about = next((note for note in _noted(field.type)[1] if note.extra is not None), None)
        if about is None or about.extra is None:
            continue
        leaf, shape, nullable = _leaf(field.type)
        yield Setting(
            key=prefix + field.name,
            default=field.default if field.default is not msgspec.NODEFAULT else None,
            meaning=about.description or "",
            group=(struct.__doc__ or "").partition("\n")[0].rstrip("."),
            short=about.extra["flag"],
            letter=about.extra["letter"],
            theirs=about.extra["variable"],
            word=about.extra["word"] or _word(leaf),
            shape=shape,
            nullable=nullable,
            leaf=leaf,
            parse=about.extra["parse"],
            split=about.extra["split"] or commas,
        )


def commas(text: str) -> list[str]:
    """Split a list that was written as one text; a comma too many does no harm."""
    return [piece for part in text.split(",") if (piece := part.strip())]


def _leaf(annotated: object) -> tuple[object, Shape, bool]:
    declared, _ = _noted(annotated)
    arguments = get_args(declared)
    if get_origin(declared) is tuple:
        return arguments[0], Shape.LIST, False
    if get_origin(declared) is Mapping:
        return arguments[1], Shape.MAPPING, False
    if NoneType in arguments:
        return next(argument for argument in arguments if argument is not NoneType), Shape.ONE, True
    return annotated, Shape.ONE, False


def _word(leaf: object) -> str:
    kind, _ = _noted(leaf)
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    words = {float: "SECONDS", int: "NUMBER", bool: "true|false"}
    return words.get(kind, "TEXT") if isinstance(kind, type) else "TEXT"


def leaf_kind(setting: Setting) -> object:
    """Return the type of one value of a setting, without its limits: float, int, bool, str, a Literal, ..."""
    return _noted(setting.leaf)[0]


def _noted(annotated: object) -> tuple[object, list[Meta]]:
    if get_origin(annotated) is not Annotated:
        return annotated, []
    declared, *notes = get_args(annotated)
    return declared, [note for note in notes if isinstance(note, Meta)]


def _expected(kind: object, notes: list[Meta]) -> str:
    if get_origin(kind) is Literal:
        return one_of(get_args(kind))
    if kind is bool:
        return one_of(("true", "false"))
    limits = next((note for note in notes if note.le is not None), Meta())
    if kind is int:
        return f"a whole number from {limits.ge} to {limits.le}"
    low = f"{limits.ge:g} to" if limits.ge is not None else f"more than {limits.gt:g} and at most"
    return f"{low} {limits.le:g} seconds"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


SETTINGS: Mapping[str, Setting] = {setting.key: setting for setting in settings()}
SECTIONS = frozenset(key.partition(".")[0] for key in SETTINGS if "." in key)
