"""Completion in shells: what `otelgpu completion SHELL` prints, and what it then asks for at each Tab.

Rule 1: the scripts and their protocol are click's; only what may stand behind a flag is known here.
Rule 2: imported only for that: whoever serves has no use for it.
"""

import sys
from collections.abc import Iterable
from typing import get_args

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class, shell_complete

from otelgpu.config.keys import Setting, Shape, leaf_kind
from otelgpu.config.values import CSV, FIELD_WORDS
from otelgpu.errors import OtelgpuError

_SOURCES = ("auto", "nvml", "dcgm", "simulated:8xh100", "simulated:8xh200", "simulated:8xa100", "simulated:4xt4+4xl40s")
_DEVICES = ("all", "f", "g", "i", "g+i")


def script(program: click.Command, shell: str, variable: str) -> str:
    """Give the text that the start-up file of a shell evaluates."""
    found = get_completion_class(shell)
    if found is None:
        raise OtelgpuError(f"there is no completion for {shell}")
    # Not its own `source`: that of bash runs bash to learn its release.
    return ShellComplete.source(found(program, {}, program.name or "", variable))


def complete(program: click.Command, variable: str, instruction: str) -> int:
    """Answer what the script of a shell asks (`bash_complete`); return the exit status."""
    return shell_complete(program, {}, program.name or sys.argv[0], variable, instruction)


def values(setting: Setting, begun: str) -> list[CompletionItem]:
    """Say what may stand behind a flag that begins with *begun*: of a list its last entry is completed."""
    if setting.key == "fields" and _is_path(begun.rpartition(",")[2]):
        return [CompletionItem(begun, type="file")]
    if setting.word in ("FILE", "PATH"):
        return [CompletionItem(begun, type="file")]
    head, comma, last = begun.rpartition(",") if setting.shape is Shape.LIST else ("", "", begun)
    return [CompletionItem(f"{head}{comma}{word}") for word in _words(setting) if word.startswith(last)]


def _is_path(entry: str) -> bool:
    return entry.startswith((".", "/")) or "/" in entry or entry.lower().endswith(CSV)


def _words(setting: Setting) -> Iterable[str]:
    if setting.key == "fields":
        from otelgpu.fields import CATALOGUE, GROUPS

        return (*FIELD_WORDS, *GROUPS, *(field.name for field in CATALOGUE.values()))
    known = {"source": _SOURCES, "devices": _DEVICES}
    return known.get(setting.key) or get_args(leaf_kind(setting))
