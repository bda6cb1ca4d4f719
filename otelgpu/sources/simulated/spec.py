"""The short text that says which node is simulated: `8xh100`, `2xa100-mig`, `4xt4+4xl40s`.

Rule 1: `[COUNTx]MODEL[-mig]`, joined by `+`; upper and lower case are the same, COUNT is 1 when it is left out.
Rule 2: a text that is wrong gives one SpecError, which says what is wrong and what would be right.
"""

import re
from typing import NamedTuple

from otelgpu.errors import OtelgpuError
from otelgpu.sources.simulated.models import MODELS, Model

MOST_GPUS = 64

_PART = re.compile(r"(?:([0-9]{1,4}) *x *)?([a-z][a-z0-9]*)(-mig)?")


class SpecError(OtelgpuError, ValueError):
    """The text does not describe a node that can be simulated; also a ValueError, for converters of settings."""

    def __init__(self, text: str, problem: str) -> None:
        partitioned = " ".join(key for key, model in MODELS.items() if model.layout)
        super().__init__(
            f'simulated node "{text}": {problem}; write [COUNTx]MODEL[-mig], joined by "+", such as 8xh100, '
            f"2xa100-mig or 4xt4+4xl40s, for at most {MOST_GPUS} GPUs; models: {' '.join(MODELS)}; "
            f"-mig goes with: {partitioned}"
        )


class Part(NamedTuple):
    """So many GPUs of one model, all partitioned or none."""

    number: int
    key: str
    model: Model
    mig: bool


def parse_spec(text: str) -> tuple[Part, ...]:
    """Read the text into its parts, in the order of the slots. Raise SpecError."""
    # Not `lower` for everything: the Kelvin sign would become a k.
    small = text.lower() if text.isascii() else text
    parts = tuple(_part(text, piece.strip()) for piece in small.split("+"))
    total = sum(part.number for part in parts)
    if total > MOST_GPUS:
        raise SpecError(text, f"{total} GPUs are too many")
    return parts


def _part(text: str, piece: str) -> Part:
    match = _PART.fullmatch(piece)
    if match is None:
        raise SpecError(text, f'"{piece}" is not a count and a model' if piece else "a part is empty")
    number, key, mig = int(match[1] or 1), match[2], match[3] is not None
    model = MODELS.get(key)
    if model is None:
        raise SpecError(text, f'there is no model "{key}"')
    if number == 0:
        raise SpecError(text, f'"{piece}" is no GPU at all')
    if mig and not model.layout:
        raise SpecError(text, f"{key} cannot be partitioned")
    return Part(number, key, model, mig)
