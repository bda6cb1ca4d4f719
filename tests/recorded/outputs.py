"""From the numbers of a recording to the outputs of driver functions.

Rule 1: a row says in which recorded numbers the outputs of one function stand; a recording differs from another only
        in how such a number is found.
Rule 2: a function of which one output is not recorded is not answered at all.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

from tests.fakenvml.scenario import Answer, Key

Find: TypeAlias = Callable[[str], Decimal | None]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Outputs:
    """Function (with its arguments), the places of its outputs in order, outputs that no recording shows."""

    key: Key
    places: tuple[str, ...]
    more: tuple[int, ...] = ()
    factor: int = 1  # the driver's unit in the recorded one


def answered(rows: Iterable[Outputs], find: Find) -> dict[Key, Answer]:
    """The answers of all functions of *rows*; None for one that the recording does not (fully) show."""
    answers: dict[Key, Answer] = {}
    for row in rows:
        numbers = [whole(find(place), row.factor) for place in row.places]
        known = [number for number in numbers if number is not None]
        answers[row.key] = (*known, *row.more) if len(known) == len(numbers) else None
    return answers


def whole(number: Decimal | None, factor: int = 1) -> int | None:
    """The number in the driver's unit. ValueError when that is no whole number: the factor is wrong then."""
    if number is None:
        return None
    scaled = number * factor
    if scaled != int(scaled):
        raise ValueError(f"{number} times {factor} is no whole number")
    return int(scaled)
