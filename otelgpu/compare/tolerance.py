"""How far two values may be apart and still be the same reading.

Rule 1: what two exporters of one machine say at two moments differs where nothing is wrong; how far a value may be off
        follows from what it measures (MOVING). What is a state or a code has to be equal.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from otelgpu.fields import Field, Kind, Number, find


class Tolerance(NamedTuple):
    """How far two values may be apart: the larger of a share of the larger one, and so much in its unit."""

    share: float
    least: float

    def allows(self, a: float, b: float) -> bool:
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        if math.isinf(a) or math.isinf(b):
            return a == b
        return abs(a - b) <= max(self.share * max(abs(a), abs(b)), self.least)


_EXACT = Tolerance(0, 0)
_TOTAL = Tolerance(0.01, 0)
_UNKNOWN = Tolerance(0.05, 0)  # a gauge that is in no catalogue
# By unit: what moves between two looks. Shares of 1 are told from codes by their kind of number.
MOVING: Mapping[str, Tolerance] = {
    "Cel": Tolerance(0.05, 3),
    "W": Tolerance(0.1, 10),
    "MHz": Tolerance(0.1, 30),
    "Hz": Tolerance(0.1, 30e6),
    "%": Tolerance(0.1, 10),
    "ratio": Tolerance(0.1, 0.1),
    "MiBy": Tolerance(0.01, 64),
    "By": Tolerance(0.01, 64 << 20),
    "By/s": Tolerance(0.25, 1e6),
    "kBy/s": Tolerance(0.25, 1e3),
    "MBy/s": Tolerance(0.25, 1),
}


def is_total(name: str) -> bool:
    """Whether what is called a counter is one: dcgm-exporter calls some rates and states so."""
    field = find(name)
    return field is None or field.is_total


def tolerance(name: str, kind: str, factor: float) -> Tolerance:
    """Give how far two values of a family may be apart."""
    field = find(name)
    if field is None:
        found = _TOTAL if kind in ("counter", "histogram", "summary") else _UNKNOWN
    elif field.is_total:
        found = _TOTAL
    else:
        found = MOVING.get(_unit(field, name), _EXACT)
    return Tolerance(found.share * factor, found.least * factor)


def _unit(field: Field, name: str) -> str:
    shape = field.dcgm49 if name == field.dcgm49.name != field.dcgm.name else field.dcgm
    is_ratio = shape.unit == "1" and shape.number is Number.DOUBLE and field.kind is Kind.GAUGE
    return "ratio" if is_ratio else shape.unit
