"""Flags as Go's flag library takes them, which dcgm-exporter uses: `-kubernetes` and `-k=true` are good there.

Rule 1: only what would be no flag otherwise is rewritten.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

_LETTER = 2  # characters: the dash and the letter


def rewritten(arguments: Sequence[str], flags: AbstractSet[str]) -> Iterator[str]:
    """Give the arguments with a second dash where a long flag has one, and without the = after a letter."""
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name.startswith("-") and not name.startswith("--") and len(name) > _LETTER and f"-{name}" in flags:
            yield f"-{argument}"
        elif len(name) == _LETTER and name in flags and value:
            yield name + value
        else:
            yield argument
