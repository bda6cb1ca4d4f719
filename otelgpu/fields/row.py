"""What one row of the catalogue holds.

Rule 1: a row is a fact about a field, the same for every machine; whether a GPU can answer is the source's business.
Rule 2: the driver's number and unit stand in the row; a Shape says how one naming scheme shows them, and nothing
        else in otelgpu converts a unit.
Rule 3: rows are compared by identity (there is one row a field).
"""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The Prometheus type of a field as dcgm-exporter declares it; LABEL rows become labels, not families."""

    GAUGE = "gauge"
    COUNTER = "counter"
    LABEL = "label"


class Number(StrEnum):
    """The kind of number a row has in one scheme; fixed, so that a series never changes its kind."""

    INT = "int"
    DOUBLE = "double"
    TEXT = "text"
    BINARY = "binary"


class Level(StrEnum):
    """The kind of entity a field is read from (DCGM's entity level)."""

    GLOBAL = "global"
    GPU = "gpu"
    GPU_I = "gpu_i"
    GPU_CI = "gpu_ci"
    VGPU = "vgpu"
    SWITCH = "switch"
    LINK = "link"
    CPU = "cpu"
    CORE = "core"
    CONNECTX = "connectx"


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """How one naming scheme shows a field: shown value = driver's number * numerator / denominator.

    With Number.INT the result is cut towards zero, as DCGM does; the division comes last and in integers, so
    35 % shown as a ratio is 0.35 exactly. `unit` is UCUM. `attributes` are fixed for the field in this scheme.
    """

    name: str
    unit: str
    number: Number
    numerator: int = 1
    denominator: int = 1
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One DCGM field: identity, meaning and its shape in every naming scheme.

    `unit` (UCUM) and `number` describe the driver's own reading. A reading outside lowest..highest cannot be true
    (a sentinel, all ones, garbage) and is dropped and counted. `semconv` is None where the field has no place under
    the OpenTelemetry names (label rows).
    """

    id: int
    name: str  # as dcgm-exporter up to 4.8 prints it, and as CSV files spell it
    new_name: str  # the name since DCGM 4.6 (the same where it never changed)
    aliases: tuple[str, ...]  # further spellings that are accepted
    kind: Kind
    level: Level
    unit: str
    number: Number
    help: str
    dcgm: Shape
    dcgm49: Shape
    semconv: Shape | None
    lowest: float = 0
    highest: float = 2**63 - 1
    default: bool = False  # one of the fields that dcgm-exporter's image switches on

    @property
    def is_numeric(self) -> bool:
        """Whether the field is a family on the page (and an instrument); the others become labels."""
        return self.kind is not Kind.LABEL and self.number in (Number.INT, Number.DOUBLE)

    @property
    def is_total(self) -> bool:
        """Whether the driver's number only grows: some that dcgm-exporter calls counters are rates or states."""
        return self.kind is Kind.COUNTER and self.unit != "1" and not self.unit.endswith("/s")
