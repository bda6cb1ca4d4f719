"""The ways to read a series: all tables of questions put together.

Rule 1: a target is one series: a field, or a field on one NVLink.
Rule 2: an id that means something else in this driver is no way.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TypeAlias

from otelgpu.model import Device
from otelgpu.sources.nvml.questions import (
    FIELD_VALUES,
    QUESTIONS,
    RATES,
    SUMS,
    FieldValue,
    LinkSum,
    Question,
    Rate,
    Take,
    Version,
)

Way: TypeAlias = FieldValue | Question | Rate | LinkSum
Target: TypeAlias = tuple[int, int | None]  # field id, link


def target_of(row: FieldValue | Rate | LinkSum | Take) -> Target:
    """Name the series that a row gives."""
    return row.field_id, row.link


def ways_of(target: Target, device: Device) -> Iterator[Way]:
    """List the ways to read a series, best first. A MIG instance has its own, and none of its GPU's."""
    version = version_of(device.driver_version)
    for way in _ways().get(target, ()):
        if device.instance_id is not None:
            if isinstance(way, Question) and way.instance:
                yield way
        elif not isinstance(way, FieldValue) or _is_known(way, version):
            yield way


@cache
def _ways() -> Mapping[Target, list[Way]]:
    """Put all tables together, by series."""
    found: dict[Target, list[Way]] = {}
    for row in FIELD_VALUES:
        found.setdefault(target_of(row), []).append(row)
    for question in QUESTIONS:
        for take in question.takes:
            found.setdefault(target_of(take), []).append(question)
    for rate in RATES:
        found.setdefault(target_of(rate), []).append(rate)
    for summed in SUMS:
        found.setdefault(target_of(summed), []).append(summed)
    return found


def _is_known(row: FieldValue, version: Version) -> bool:
    """Whether the id means this field in this driver. Where its version is not known a moved id is not asked."""
    if not row.since and not row.before:
        return True
    return bool(version) and row.since <= version and (not row.before or version < row.before)


def version_of(text: str) -> Version:
    """Read a driver version, "580.105.08"; () when it is none."""
    parts = text.split(".")
    return tuple(map(int, parts)) if all(re.fullmatch(r"\d+", part, re.ASCII) for part in parts) else ()
