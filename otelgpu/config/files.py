"""The CSV files that the setting `fields` names: read with the settings, so that all mistakes are told at once.

Rule 1: only files that are asked for in the end are read; one that another layer overrides may be missing.
Rule 2: a path in dcgm-exporter's image that is not there stands for the file of that name that comes with otelgpu.
        Where such a file says no more than a word does, the word is taken: its names follow `compat`.
Rule 3: with `lenient` a bad row is a remark and counted. A file that cannot be read at all is a problem even then.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from otelgpu.config.counters import Parsed, merged, parse, read
from otelgpu.config.given import Files, Given, Problem, digest
from otelgpu.config.listed import Counter, Remark
from otelgpu.config.settings import Config
from otelgpu.config.values import is_file
from otelgpu.config.words import whole

THEIRS = "/etc/dcgm-exporter/"
DATA = Path(__file__).resolve().parent.parent / "data"  # shipping.py makes what is there
# The files there, and the words that say the same.
WORDS = {"default-counters.csv": "default", "dcp-metrics-included.csv": "default", "1.x-compatibility-metrics.csv": ""}


def with_counters(config: Config, given: Iterable[Given], problems: list[Problem], files: Files) -> Config:
    """Add the rows of the files that *given*, the texts of the setting `fields`, name; *files* is told of each."""
    rows: list[Counter] = []
    fields = list(config.fields)
    remarks: list[Remark] = []
    skipped = 0
    for one in given:
        path = (one.text or "").strip()
        if not is_file(path):
            continue
        files[path] = ""  # also one that is not there yet
        if (shipped := _shipped(path)) is not None:
            text = f"{one.origin}: {path} is not there; what comes with otelgpu under that name is shown"
            remarks.append(Remark(text, logging.INFO))
            if word := WORDS[shipped.name]:
                fields = [word if field == path else field for field in fields]
                continue
        parsed = _parsed(one, str(shipped or path), problems, files)
        rows += parsed.rows
        remarks += parsed.remarks
        if config.lenient:
            remarks += [Remark(f"{problem.finished(hint=True)}; the row is passed over") for problem in parsed.problems]
            skipped += len(parsed.bad)
        else:
            problems += parsed.problems
    counters = merged(rows, remarks)
    known = {"fields": tuple(fields), "counters": counters, "skipped_rows": skipped}
    return replace(config, **known, remarks=(*config.remarks, *remarks))


def _shipped(path: str) -> Path | None:
    """Give the file that comes with otelgpu and stands for one that dcgm-exporter's image has, and this machine not."""
    name = path.removeprefix(THEIRS)
    if name == path or name not in WORDS or Path(path).exists():
        return None
    return DATA / name


def _parsed(one: Given, path: str, problems: list[Problem], files: Files) -> Parsed:
    try:
        content = read(path)
        files[path] = digest(content)
        return parse(content, whole(path))
    except ValueError as error:
        problems.append(one.problem(error))
        return Parsed()
