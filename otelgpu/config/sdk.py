"""The variables that OpenTelemetry's SDK reads by itself, and where it stumbles over them.

Rule 1: only what would end the SDK in a traceback stands here (version 1.45.2), or make its encoder log one for every
        batch. It takes its other variables as it finds them, or says in a line of its own what it makes of them.
Rule 2: they are judged whatever else is set: the SDK reads them when it is imported, or with the first provider.
"""

import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import MappingProxyType

from otelgpu.config.given import Problem
from otelgpu.config.words import one_of, shown

PREFIX = "OTEL_"
_LIMIT = re.compile(r"[0-9]{1,18}")
_FILTERS = ("always_on", "always_off", "trace_based")


def forget_empty(environ: MutableMapping[str, str]) -> None:
    """Take out the variables that are empty: that means "not set" (specification), but not to all of the SDK."""
    for name in [name for name, text in environ.items() if name.startswith(PREFIX) and not text]:
        del environ[name]


def from_sdk(environ: Mapping[str, str]) -> Iterator[Problem]:
    """Say what the SDK would stumble over."""
    for variable, judge in _JUDGES.items():
        text = environ.get(variable, "")
        if text and (expected := judge(text)):
            yield Problem(f"{variable}: expected {expected}, got {shown(text)}")


def _filter(text: str) -> str:
    return "" if text in _FILTERS else one_of(_FILTERS)


def _limit(text: str) -> str:
    return "" if _LIMIT.fullmatch(text.strip()) else "a whole number"


def _context(text: str) -> str:
    from importlib.metadata import entry_points  # here: it costs time, and nearly nobody sets this

    known = sorted(entry_points(group="opentelemetry_context").names)
    return "" if text in known else one_of(known) if known else "no such variable"


def _utf8(text: str) -> str:
    return "text in UTF-8" if any("\ud800" <= char <= "\udfff" for char in text) else ""


_JUDGES: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {
        "OTEL_METRICS_EXEMPLAR_FILTER": _filter,
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": _limit,
        "OTEL_PYTHON_CONTEXT": _context,
        "OTEL_RESOURCE_ATTRIBUTES": _utf8,
        "OTEL_SERVICE_NAME": _utf8,
    }
)
