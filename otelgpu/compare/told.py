"""What is said of a comparison: text for a person, a record for a script.

Rule 1: the text says how many there are of everything and shows EXAMPLES of it; the record holds all.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from otelgpu.compare.difference import Comparison, LabelDifference, OneSided, ValueDifference
from otelgpu.compare.page import Sample
from otelgpu.config.words import one_line

EXAMPLES = 3  # of the series of one family, and of the names of one device
# Labels that say more of a device than is needed to tell it from others.
_LONG = frozenset({"pci_bus_id", "device", "modelName", "Hostname", "hostname", "err_code", "err_msg"})


def text(found: Comparison, fallen: Sequence[tuple[str, ValueDifference]]) -> str:
    """Write it as lines. *fallen* are the counters that went back, with the side on which they did."""
    return "".join(f"{one_line(line)}\n" for line in _lines(found, fallen))


def _lines(found: Comparison, fallen: Sequence[tuple[str, ValueDifference]]) -> Iterator[str]:
    for side, page in (("A", found.a), ("B", found.b)):
        yield f"{side}: {page.name} ({_many(len({each.name for each in page.samples}), 'name')})"
    yield from _section("Names only in A", (_one_sided(one, "B") for one in found.only_in_a))
    yield from _section("Names only in B", (_one_sided(one, "A") for one in found.only_in_b))
    yield from _section("Types", (f"{one.name}: {one.a} in A, {one.b} in B" for one in found.types))
    yield from _section("Labels", (_label(one) for one in found.labels if not one.aside))
    for side, series in (("A", found.series_only_in_a), ("B", found.series_only_in_b)):
        yield from _section(f"Series only in {side}", _by_device(series))
    yield from _section("Values", _by_family(found.values))
    yield from _section(
        "Counters that went back",
        (f"{_series(one.name, one)}: from {one.a:.15g} to {one.b:.15g} in {side}" for side, one in fallen),
    )
    yield from _section("Not counted", _not_counted(found))
    number = found.count + len(fallen)
    both = f"{_many(found.series, 'series', 'series')} of {_many(found.families, 'name')} on both"
    yield f"{_many(number, 'difference') if number else 'no differences'}; {both}"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    listed = list(lines)
    if listed:
        yield title
        yield from (f"  {line}" for line in listed)


def _one_sided(one: OneSided, other: str) -> str:
    renamed = f"; {other} calls it {one.other_name}" if one.other_name else ""
    return f"{one.name}: {_many(one.series, 'series', 'series')}{renamed}"


def _label(one: LabelDifference) -> str:
    where = f"{_many(one.series, 'series', 'series')} of {_many(len(one.families), 'name')}"
    if one.a is None or one.b is None:
        return f"{one.label}: only in {'B' if one.a is None else 'A'}, on {where}"
    return f'{one.label}: "{one.a}" in A, "{one.b}" in B, on {where}'


def _value(one: ValueDifference) -> str:
    return f"{_series(one.name, one)}: {one.a:.15g} in A, {one.b:.15g} in B"


def _series(name: str, one: Sample | ValueDifference) -> str:
    """Name a series by what tells it from others, so that a line stays readable."""
    short = (pair for pair in one.labels.items() if pair[0] not in _LONG and not pair[0].startswith("DCGM_"))
    inner = ",".join(f'{label}="{value}"' for label, value in short)
    return f"{name}{{{inner}}}"


def _by_device(found: Iterable[Sample]) -> Iterator[str]:
    """Draw series by what they are of: a MIG instance that is on one page alone lacks all its names on the other."""
    devices: defaultdict[str, list[str]] = defaultdict(list)
    for one in found:
        devices[_series("", one)].append(one.name)
    for device, names in devices.items():
        different = list(dict.fromkeys(names))
        more = f" and {len(different) - EXAMPLES} more names" if len(different) > EXAMPLES else ""
        yield f"{device}: {', '.join(different[:EXAMPLES])}{more}"


def _by_family(found: Iterable[ValueDifference]) -> Iterator[str]:
    families: defaultdict[str, list[str]] = defaultdict(list)
    for one in found:
        families[one.name].append(_value(one))
    for name, lines in families.items():
        yield from lines[:EXAMPLES]
        if len(lines) > EXAMPLES:
            yield f"{name}: {len(lines) - EXAMPLES} more"


def _not_counted(found: Comparison) -> Iterator[str]:
    yield from (f"{_label(one)}: {one.aside}" for one in found.labels if one.aside)
    yield from found.twice
    if found.own:
        yield f"{_many(len(found.own), 'name')} of what exporters say of themselves"


def _many(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or f'{one}s'}"


def record(found: Comparison, fallen: Sequence[tuple[str, ValueDifference]]) -> dict[str, object]:
    """Give all of it as what JSON can hold."""
    return {
        "a": found.a.name,
        "b": found.b.name,
        "differences": found.count + len(fallen),
        "names_on_both": found.families,
        "series_on_both": found.series,
        "names_only_in_a": [one._asdict() for one in found.only_in_a],
        "names_only_in_b": [one._asdict() for one in found.only_in_b],
        "types": [one._asdict() for one in found.types],
        "labels": [one._asdict() for one in found.labels],
        "series_only_in_a": [{"name": one.name, "labels": one.labels} for one in found.series_only_in_a],
        "series_only_in_b": [{"name": one.name, "labels": one.labels} for one in found.series_only_in_b],
        "values": [_value_record(one) for one in found.values],
        "went_back": [{"side": side, **_value_record(one)} for side, one in fallen],
        "twice": found.twice,
        "own": found.own,
    }


def _value_record(one: ValueDifference) -> dict[str, object]:
    return {**one._asdict(), "a": _number(one.a), "b": _number(one.b)}


def _number(value: float) -> float | str:
    """JSON has no word for NaN and infinity."""
    return value if math.isfinite(value) else f"{value:g}"
