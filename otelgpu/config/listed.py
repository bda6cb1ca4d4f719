"""What a CSV file says of a field, and what is to be logged about settings.

Rule 1: plain values, that the structs of the settings can hold; counters.py makes them.
"""

import logging
from dataclasses import dataclass
from typing import NamedTuple

LABEL = "label"


@dataclass(frozen=True, slots=True)
class Counter:
    """One row: the field by its id, the name it is shown by ("" where a number was written), type and help."""

    field: int
    spelling: str
    name: str
    kind: str
    help: str
    place: str  # "metrics.csv:7"
    line: int


class Remark(NamedTuple):
    """Something to log once, at a level of `logging`: no mistake, but not to be passed over in silence."""

    text: str
    level: int = logging.WARNING
