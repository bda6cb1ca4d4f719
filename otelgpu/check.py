"""What `otelgpu check FILE...` says of files: settings (YAML) and fields (CSV), without starting anything.

Rule 1: a file is judged by what reads it when otelgpu starts; nothing is known here that is not known there.
Rule 2: a file is judged alone: no variable and no flag of this shell changes what is said of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from otelgpu.config.counters import merged, parse, read
from otelgpu.config.load import SpecParser, finished, load
from otelgpu.config.words import whole
from otelgpu.errors import ConfigError

_YAML = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found in one file: lines for what is wrong and what is odd, and in a few words what it holds."""

    problems: Sequence[str]
    remarks: Sequence[str]
    holds: str = ""


def check(path: str, parse_spec: SpecParser) -> Finding:
    """Judge one file."""
    if PurePath(path).suffix.lower() in _YAML:
        return _settings(path, parse_spec)
    try:
        content = read(path)
    except ValueError as error:
        return Finding([f"{whole(path)}: {error}"], [])
    if PurePath(path).suffix.lower() != ".csv" and _is_yaml(content):
        return _settings(path, parse_spec)
    parsed = parse(content, whole(path))
    rows = merged(parsed.rows, parsed.remarks)
    remarks = [remark.text for remark in parsed.remarks]
    return Finding(finished(parsed.problems), remarks, f"{len(rows)} field{'' if len(rows) == 1 else 's'}")


def _settings(path: str, parse_spec: SpecParser) -> Finding:
    try:
        config = load(environ={}, config_path=path, parse_spec=parse_spec)
    except ConfigError as error:
        return Finding([problem.removeprefix("--config ") for problem in error.problems], [])
    return Finding([], [remark.text for remark in config.remarks], "settings")


def _is_yaml(content: bytes) -> bool:
    """Tell settings from fields by the first line that says something: NAME: ... or NAME, ..."""
    for line in content.decode("utf-8-sig", "replace").splitlines():
        if text := line.strip():
            if text.startswith("#"):
                continue
            return text.startswith(("---", "{")) or ":" in text.partition(",")[0]
    return False
