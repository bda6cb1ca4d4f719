"""The table of settings in the README, made from the structs: `python -m otelgpu.config.docs README.md`.

Rule 1: only the lines between the two markers are ours.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from otelgpu.config.keys import NULL, SETTINGS, Setting

BEGIN = "<!-- settings -->"
END = "<!-- /settings -->"
_BAR = "\\|"


def settings_table() -> str:
    """Draw every setting as a row of a Markdown table."""
    return "".join(f"{line}\n" for line in _lines())


def with_settings_table(text: str) -> str:
    """Put the table between the markers of a Markdown text. Raise ValueError without them."""
    return with_table(text, BEGIN, END, settings_table())


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
    readme = Path(sys.argv[1])
    readme.write_text(with_settings_table(readme.read_text(encoding="utf-8")), encoding="utf-8")
