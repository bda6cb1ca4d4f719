"""Compare two pages and print what they differ in.

Rule 1: as of diff, the status is 0 without differences, 1 with, and 2 where there was nothing to compare.
Rule 2: what is wrong with both pages is told at once.
"""

from collections.abc import Callable, Sequence

import click

from otelgpu.compare.difference import Scope, compare, went_back
from otelgpu.compare.fetch import STDIN, fetch, name_of
from otelgpu.compare.page import Page, read_page
from otelgpu.compare.told import record, text
from otelgpu.errors import ConfigError
from otelgpu.output import write
from otelgpu.tables import json_text

DIFFERENT = 1


def compared(
    places: tuple[str, str],
    scope: Scope,
    *,
    again: float | None,
    timeout: float,
    form: str,
    wait: Callable[[float], None],
) -> int:
    """Print the comparison as *form* says, and give the exit status. With *again* URLs are asked twice, so far apart.

    Raise UsageError for places that cannot go together, ConfigError for pages that cannot be had.
    """
    if places == (STDIN, STDIN):
        raise click.UsageError("only one of the pages can be read from standard input")
    if again is not None and not any(map(_may_change, places)):
        raise click.UsageError("--again: neither of the pages is asked for by URL")
    a, b = _pages(places, timeout)
    found = compare(a, b, scope)
    fallen = []
    if again is not None:
        wait(again)
        urls = [
            (side, place, page) for side, place, page in zip("AB", places, (a, b), strict=True) if _may_change(place)
        ]
        later = _pages([place for _, place, _ in urls], timeout)
        for (side, _, before), after in zip(urls, later, strict=True):
            fallen += [(side, one) for one in went_back(before, after, scope)]
    write(text(found, fallen) if form == "text" else json_text(record(found, fallen)))
    return DIFFERENT if found.count or fallen else 0


def _may_change(place: str) -> bool:
    return "://" in place


def _pages(places: Sequence[str], timeout: float) -> Sequence[Page]:
    """Get all pages, or raise ConfigError with what is wrong with each."""
    pages, problems = [], []
    for place in places:
        try:
            pages.append(read_page(name_of(place), fetch(place, timeout=timeout)))
        except ValueError as error:
            problems.append(f"{name_of(place)}: {error}")
    if problems:
        raise ConfigError(problems)
    return pages
