"""WHAT can be read: the catalogue of fields."""

from otelgpu.fields.catalogue import CATALOGUE, GROUPS
from otelgpu.fields.names import find, suggest
from otelgpu.fields.row import Field, Kind, Level, Number, Shape
from otelgpu.fields.showing import UP_DOWN, help_in, kind_in

DEFAULT_FIELDS: tuple[Field, ...] = tuple(field for field in CATALOGUE.values() if field.default)
LABEL_FIELDS: tuple[Field, ...] = tuple(field for field in CATALOGUE.values() if field.kind is Kind.LABEL)

__all__ = [
    "CATALOGUE",
    "DEFAULT_FIELDS",
    "GROUPS",
    "LABEL_FIELDS",
    "UP_DOWN",
    "Field",
    "Kind",
    "Level",
    "Number",
    "Shape",
    "find",
    "help_in",
    "kind_in",
    "suggest",
]
