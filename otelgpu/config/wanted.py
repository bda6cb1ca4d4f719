"""From the setting `fields` to rows of the catalogue.

Rule 1: not imported with the settings, because the catalogue is large and most of what needs settings needs no fields.
"""

from collections.abc import Callable, Iterable, Mapping

from otelgpu.fields import CATALOGUE, Field, find

_WORDS: Mapping[str, Callable[[Field], bool]] = {
    "all": lambda _: True,
    "default": lambda field: field.default,
    "none": lambda _: False,
}


def wanted_fields(names: Iterable[str]) -> tuple[Field, ...]:
    """Give back the fields that names and words ask for, each once, in the order of their ids.

    The names are those of a loaded Config, so every one is known; an unknown one is a KeyError.
    """
    ids: set[int] = set()
    for name in names:
        if name in _WORDS:
            ids.update(field.id for field in CATALOGUE.values() if _WORDS[name](field))
        elif (field := find(name)) is not None:
            ids.add(field.id)
        else:
            raise KeyError(name)
    return tuple(CATALOGUE[number] for number in sorted(ids))
