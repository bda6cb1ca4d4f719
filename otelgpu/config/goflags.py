"""Flags as Go's flag library takes them, which dcgm-exporter uses: `-kubernetes`, `-k=true` and `-f=x` are good there.

Rule 1: only what would be no flag otherwise is rewritten, and never the value that a flag before it takes.
Rule 2: letters do not go together behind one dash, nor a value with its letter: `-kn` is one flag, and an unknown one.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

_LETTER = 2  # characters: the dash and the letter


def rewritten(arguments: Sequence[str], flags: AbstractSet[str], switches: AbstractSet[str]) -> Iterator[str]:
    """Give the arguments with a second dash where a flag of more than a letter has one, and a letter from its value.

    *switches* are those of the *flags* that stand alone.
    """
    is_value = False
    for argument in arguments:
        name, sign, value = argument.partition("=")
        if is_value:
            is_value = False
            yield argument
            continue
        if name.startswith("-") and not name.startswith("--") and len(name) > _LETTER:
            name = f"-{name}"
        is_value = not sign and name in flags and name not in switches
        if len(name) == _LETTER and name in flags and sign:
            yield name
            yield value
        else:
            yield name + sign + value


def as_typed(word: str, arguments: Sequence[str]) -> str:
    """Give a word that was rewritten as it stood among the *arguments*."""
    return word[1:] if word not in arguments and word[1:] in arguments else word
