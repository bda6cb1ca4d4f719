"""Which NVML question answers a field, and from when on, in NVML's own words: for the documentation (Markdown)."""

import re
from collections.abc import Iterator, Mapping
from functools import cache

import pynvml

from otelgpu.sources.nvml.questions import (
    FIELD_VALUES,
    GPM_METRICS,
    QUESTIONS,
    RATES,
    SUMS,
    XID_ERRORS,
    FieldValue,
    Version,
)
from otelgpu.sources.nvml.since import since_of_function, since_of_value

LINK = re.compile(r"_L\d+")

# What no table of questions has: what is counted of events and samples, by the calls that these come from, and more.
_BESIDE = (
    (9001, "`nvmlEventSetWait_v2`, counted"),
    (9002, "`nvmlDeviceGetCurrentClocksEventReasons` at a pace of its own, counted"),
    (9003, "the signs that are listed above"),
    (9004, "`nvmlDeviceGetP2PStatus(NVLINK)` for each pair of GPUs"),
    (9005, "`nvmlEventSetWait_v2`, counted"),
    (9006, "`nvmlDeviceGetCurrentClocksEventReasons` at a pace of its own, counted"),
)


def asked_by(field_id: int) -> Iterator[str]:
    """List the ways in which a field is asked for, the preferred one first; ways that differ by the link are one."""
    return iter(_asked().get(field_id, {}))


@cache
def _asked() -> Mapping[int, Mapping[str, None]]:
    found: dict[int, dict[str, None]] = {}
    told = (XID_ERRORS, "`nvmlEventSetWait_v2`")
    for field_id, words in (*_values(), *_calls(), *_counters(), *_metrics(), told, *_BESIDE):
        found.setdefault(field_id, {})[words] = None
    return found


def _values() -> Iterator[tuple[int, str]]:
    for row in FIELD_VALUES:
        # The field that has a series for each link; its constants differ by the link alone.
        name = LINK.sub("_L<link>", _constant("NVML_FI_", row.nvml_id)) if row.link is not None else ""
        # What pynvml calls an id is what it means in the newest driver.
        words = f"field value {row.nvml_id}" if row.before else f"`{name or _constant('NVML_FI_', row.nvml_id)}`"
        if row.scope and row.link is None:
            words += f" of `{_constant('NVML_POWER_SCOPE_', row.scope)}`"
        yield row.field_id, words + (_drivers(row) or since_of_value(row.nvml_id))


def _calls() -> Iterator[tuple[int, str]]:
    for question in QUESTIONS:
        for take in question.takes:
            name = question.name if take.link is None else question.name.replace(f"{take.link})", "<link>)")
            yield take.field_id, f"`{name}`{since_of_function(name)}"


def _counters() -> Iterator[tuple[int, str]]:
    for rate in RATES:
        yield rate.field_id, " + ".join(f"`{_constant('NVML_FI_', counter)}`" for counter, _ in rate.counters)
    for summed in SUMS:
        links = "summed over the links" if summed.fold is sum else "of the worst link"
        words = f"`{_constant('NVML_FI_', summed.nvml_id)}`, {links},{since_of_value(summed.nvml_id)}"
        yield summed.field_id, words.removesuffix(",")


def _metrics() -> Iterator[tuple[int, str]]:
    for row in GPM_METRICS:
        name = _constant("NVML_GPM_METRIC_", row.metric_id)
        yield row.field_id, f"`{name if row.link is None else LINK.sub('_L<link>', name)}` from Hopper on"


def _drivers(value: FieldValue) -> str:
    """Say in which drivers the id means the field, where that is not all that know it."""
    since = f" from driver {_dotted(value.since)} on" if value.since else ""
    return since + (f", before {_dotted(value.before)}" if value.before else "")


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _constant(prefix: str, number: int) -> str:
    """Find the name of one of NVML's numbers; the number itself where pynvml has no name for it."""
    names = [name for name, value in vars(pynvml).items() if name.startswith(prefix) and value == number]
    return names[0] if names else f"{prefix}{number}"
