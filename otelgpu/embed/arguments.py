"""The settings of an embedded otelgpu: arguments over OTELGPU_* variables over defaults.

Rule 1: an argument is the host's own code: what is wrong with any of them is raised, all together.
Rule 2: a variable is not: one that is wrong is logged and counts as not set.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TypedDict

from otelgpu.config import Config, Flag, load
from otelgpu.config.keys import PREFIX, SETTINGS, Shape
from otelgpu.config.words import meant
from otelgpu.errors import ConfigError

logger = logging.getLogger(__name__)


class Settings(TypedDict, total=False):
    """The arguments, as `observe` and the instrumentor take them. None: not given."""

    fields: Iterable[str] | str | None
    devices: Iterable[str | int] | str | None
    source: str | None
    reuse: float | str | None
    deadline: float | str | None
    expire: float | str | None
    only_visible: bool | None
    only_process: bool | None
    once: bool | None


# The arguments that there are, and the settings that they are.
ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {
        "fields": "fields",
        "devices": "devices",
        "source": "source",
        "reuse": "sampling.reuse",
        "deadline": "sampling.deadline",
        "expire": "sampling.expire",
        "only_visible": "embed.only_visible",
        "only_process": "embed.only_process",
        "once": "embed.once",
    }
)


def settings_of(
    arguments: Mapping[str, object], environ: Mapping[str, str], *, known: Mapping[str, str] = ARGUMENTS
) -> Config:
    """Make the settings of *arguments*. Raise ConfigError for wrong ones, never for a wrong variable.

    An argument that is None counts as not given. A list may be a Python one, or one text with commas.
    """
    flags = list(_flags(arguments, known))
    load(environ={}, flags=flags, parse_spec=_parse_spec)  # so that what it raises is about arguments alone
    ours = {name: text for name, text in environ.items() if name.startswith(PREFIX)}
    try:
        return load(environ=ours, flags=flags, parse_spec=_parse_spec)
    except ConfigError as error:
        for problem in error.problems:
            logger.warning("%s; it counts as not set", problem)
    sound = {name: text for name, text in ours.items() if _is_sound(name, text)}
    try:
        return load(environ=sound, flags=flags, parse_spec=_parse_spec)
    except ConfigError:  # they contradict each other, or an argument
        return load(environ={}, flags=flags, parse_spec=_parse_spec)


def _flags(arguments: Mapping[str, object], known: Mapping[str, str]) -> Iterator[Flag]:
    unknown = [f"{name}: no such argument{meant(name, known)}" for name in arguments if name not in known]
    if unknown:
        raise ConfigError(unknown)
    for name, value in arguments.items():
        if value is None:
            continue
        setting = SETTINGS[known[name]]
        if setting.shape is Shape.MAPPING and isinstance(value, Mapping):
            yield from (Flag(name, setting.key, f"{key}={text}") for key, text in value.items())
        else:
            yield Flag(name, setting.key, _text(value, is_list=setting.shape is Shape.LIST))


def _text(value: object, *, is_list: bool) -> str:
    if is_list and isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return ",".join(str(entry) for entry in value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _is_sound(name: str, text: str) -> bool:
    try:
        load(environ={name: text}, parse_spec=_parse_spec)
    except ConfigError:
        return False
    return True


def _parse_spec(text: str) -> object:
    from otelgpu.sources.simulated.spec import parse_spec

    return parse_spec(text)
