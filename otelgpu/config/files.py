"""The CSV files that the setting `fields` names: read with the settings, so that all mistakes are told at once.

Rule 1: only files that are asked for in the end are read; one that another layer overrides may be missing.
Rule 2: with `lenient` a bad row is a remark and counted. A file that cannot be read at all is a problem even then.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from otelgpu.config.counters import Parsed, merged, parse, read
from otelgpu.config.given import Given, Problem
from otelgpu.config.listed import Counter, Remark
from otelgpu.config.settings import Config
from otelgpu.config.values import is_file
from otelgpu.config.words import whole


def with_counters(config: Config, given: Iterable[Given], problems: list[Problem]) -> Config:
    """Add the rows of the files that *given*, the texts of the setting `fields`, name."""
    rows: list[Counter] = []
    remarks: list[Remark] = []
    skipped = 0
    for one in given:
        if one.text is None or not is_file(one.text.strip()):
            continue
        parsed = _parsed(one, problems)
        rows += parsed.rows
        remarks += parsed.remarks
        if config.lenient:
            remarks += [Remark(f"{problem.finished(hint=True)}; the row is passed over") for problem in parsed.problems]
            skipped += len(parsed.bad)
        else:
            problems += parsed.problems
    counters = merged(rows, remarks)
    return replace(config, counters=counters, skipped_rows=skipped, remarks=(*config.remarks, *remarks))


def _parsed(one: Given, problems: list[Problem]) -> Parsed:
    path = (one.text or "").strip()
    try:
        return parse(read(path), whole(path))
    except ValueError as error:
        problems.append(one.problem(error))
        return Parsed()
