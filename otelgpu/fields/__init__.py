"""WHAT can be read: the catalogue of fields."""

from otelgpu.fields.row import Field, Kind, Level, Number, Shape

__all__ = ["Field", "Kind", "Level", "Number", "Shape"]
