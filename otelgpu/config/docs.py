"""The tables of settings in the README and of dcgm-exporter's flags in the page on moving, made from the structs.

    python -m otelgpu.config.docs README.md docs/migrate-from-dcgm-exporter.md

Rule 1: only the lines between the markers are ours.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from otelgpu.config.keys import NULL, SETTINGS, Setting
from otelgpu.config.theirs import DEFAULTS, ROWS, Answer

BEGIN, END = "<!-- settings -->", "<!-- /settings -->"
BEGIN_FLAGS, END_FLAGS = "<!-- flags -->", "<!-- /flags -->"
_BAR = "\\|"


def settings_table() -> str:
    """Draw every setting as a row of a Markdown table."""
    return "".join(f"{line}\n" for line in _lines())


def with_settings_table(text: str) -> str:
    """Put the table between the markers of a Markdown text. Raise ValueError without them."""
    return with_table(text, BEGIN, END, settings_table())


def flags_table() -> str:
    """Draw every flag and variable of dcgm-exporter as a row of a Markdown table, with what becomes of it."""
    head = "| dcgm-exporter's flag | Its variable | Here |\n|---|---|---|\n"
    return head + "".join(f"| {' | '.join(cells)} |\n" for cells in sorted(_flags()))


def with_flags_table(text: str) -> str:
    """Put the table of flags between its markers. Raise ValueError without them."""
    return with_table(text, BEGIN_FLAGS, END_FLAGS, flags_table())


def _flags() -> Iterator[tuple[str, str, str]]:
    for setting in SETTINGS.values():
        if setting.theirs:
            # Of a setting that has their variable the first flag is theirs too; NODE_NAME alone has none.
            is_flag = not setting.flags[0].startswith("--kubernetes-node")
            letters = [flag for flag in setting.flags if len(flag) == len("-x") or flag == "--rbmn"]
            flags = _code([setting.flags[0], *letters]) if is_flag else ""
            yield flags, _code([setting.theirs]), _taken(setting.key)
    for row in ROWS:
        here = _taken(row.key) if row.answer is Answer.TAKEN else f"{row.answer.value}: {row.why}"
        yield _code(row.flags), _code([row.variable] if row.variable else []), here


def _taken(key: str) -> str:
    """Say that a flag is taken: for which setting, and what it is without the flag where that differs."""
    theirs = DEFAULTS.get(key)
    return f"taken: `{key}`" + (f"; without it `{theirs}`, as there" if theirs else "")


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def with_table(text: str, begin: str, end: str, table: str) -> str:
    """Replace what stands between two markers, each of which is there once. Raise ValueError without them."""
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed or begin in after or end in before or end in after:
        raise ValueError(f"expected one {begin} and one {end} after it")
    return f"{before}{begin}\n{table}{end}{after}"


def default_text(setting: Setting) -> str:
    """Write a default as the user would."""
    match setting.default:
        case None:
            return NULL if setting.nullable else ""
        case bool(truth):
            return str(truth).lower()
        case float(number):
            return f"{number:g}"
        case tuple(entries):
            return ",".join(str(entry) for entry in entries)
        case other:
            return str(other)


def _lines() -> Iterator[str]:
    yield "| Key | Flag | Variable | Default | Meaning |"
    yield "|---|---|---|---|---|"
    for setting in SETTINGS.values():
        flags = ", ".join(f"`{flag}`" for flag in setting.flags)
        default = default_text(setting)
        variables = ", ".join(f"`{name}`" for name in (setting.variable, setting.theirs) if name)
        cells = (f"`{setting.key}`", flags, variables, f"`{default}`" if default else "", setting.meaning)
        yield f"| {' | '.join(cell.replace('|', _BAR) for cell in cells)} |"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        document = Path(name)
        text = document.read_text(encoding="utf-8")
        fill = with_flags_table if BEGIN_FLAGS in text else with_settings_table
        document.write_text(fill(text), encoding="utf-8")
