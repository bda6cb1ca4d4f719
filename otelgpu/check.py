"""What `otelgpu check FILE...` says of files: settings and web configurations (YAML), fields (CSV); nothing is started.

Rule 1: a file is judged by what reads it when otelgpu starts; nothing is known here that is not known there.
Rule 2: a file is judged alone: no variable and no flag of this shell changes what is said of it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from otelgpu.config.counters import merged, parse, read
from otelgpu.config.given import Problem
from otelgpu.config.load import SpecParser, finished, load
from otelgpu.config.words import whole
from otelgpu.errors import ConfigError

_YAML = (".yaml", ".yml", ".json")
_WEB = re.compile(rb"^(?:tls_server_config|http_server_config|basic_auth_users|rate_limit)\s*:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found in one file: lines for what is wrong and what is odd, and in a few words what it holds."""

    problems: Sequence[str]
    remarks: Sequence[str]
    holds: str = ""


def check(path: str, parse_spec: SpecParser) -> Finding:
    """Judge one file."""
    is_yaml = PurePath(path).suffix.lower() in _YAML
    try:
        content = read(path)
    except ValueError as error:
        return _settings(path, parse_spec) if is_yaml else Finding([f"{whole(path)}: {error}"], [])
    is_yaml = is_yaml or (PurePath(path).suffix.lower() != ".csv" and _is_yaml(content))
    if is_yaml and Path(path).is_fifo():  # what reads settings would find it empty by now
        return Finding([f"{whole(path)}: settings from a pipe cannot be checked; expected a file"], [])
    if is_yaml and _WEB.search(content):
        return _web(path)
    if is_yaml:
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


def _web(path: str) -> Finding:
    from otelgpu.config.webfile import read as read_web  # here: few have such a file, and it brings TLS

    problems: list[Problem] = []
    web = read_web(path, asked_by=whole(path), problems=problems)
    return Finding(finished(problems), web.remarks, "a web configuration")


def _is_yaml(content: bytes) -> bool:
    """Tell settings from fields by the first line that says something: NAME: ... or NAME, ..."""
    for line in content.decode("utf-8-sig", "replace").splitlines():
        if text := line.strip():
            if text.startswith("#"):
                continue
            return text.startswith(("---", "{")) or ":" in text.partition(",")[0]
    return False
