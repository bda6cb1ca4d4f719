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
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after or END in before or END in after:
        raise ValueError(f"expected one {BEGIN} and one {END} after it")
    return f"{before}{BEGIN}\n{settings_table()}{END}{after}"


def default_text(setting: Setting) -> str:
    """Write a default as the user would."""
    match setting.default:
        case None:
            return NULL if setting.nullable else ""
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
        cells = (f"`{setting.key}`", flags, f"`{setting.variable}`", f"`{default}`" if default else "", setting.meaning)
        yield f"| {' | '.join(cell.replace('|', _BAR) for cell in cells)} |"


if __name__ == "__main__":
    readme = Path(sys.argv[1])
    readme.write_text(with_settings_table(readme.read_text(encoding="utf-8")), encoding="utf-8")
