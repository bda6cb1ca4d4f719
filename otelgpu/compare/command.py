"""The command line of `otelgpu compare`.

Rule 1: made also where only its help is wanted, so nothing is loaded here that only the comparing needs.
Rule 2: no setting is read: a page is compared as it is.
"""

import time
from collections.abc import Callable
from typing import Any

import click

from otelgpu.usage import complete_files, help_flag

_FORMS = ("text", "json")
_HELP = (
    "Say in what two pages of metrics differ: dcgm-exporter's and this one's. A and B are URLs, files or - for stdin. "
    "Status 0: in nothing, 1: in something, 2: they could not be compared."
)


def command(wait: Callable[[float], None] = time.sleep) -> click.Command:
    """Make the command; *wait* lets so many seconds pass."""

    def call(a: str, b: str, again: float | None, timeout: float, form: str, **scope: Any) -> int:  # noqa: ANN401 - click's
        from otelgpu.compare.difference import Scope
        from otelgpu.compare.run import compared

        return compared((a, b), Scope(**scope), again=again, timeout=timeout, form=form, wait=wait)

    pages = [
        click.Argument([name], metavar=word, shell_complete=complete_files) for name, word in (("a", "A"), ("b", "B"))
    ]
    seconds = click.FloatRange(min=0, min_open=True)
    options = [
        click.Option(["--format", "form"], type=click.Choice(_FORMS), default=_FORMS[0], help=f"[{_FORMS[0]}]"),
        _several("--only", "PATTERN", "Compare these names alone: 'DCGM_FI_PROF_*'."),
        _several("--ignore", "PATTERN", "Leave these names out."),
        _several("--ignore-label", "LABEL", "As if this label stood nowhere."),
        click.Option(
            ["--tolerance", "factor"],
            type=click.FloatRange(min=0),
            metavar="FACTOR",
            default=1.0,
            help="Values may be so many times as far apart as usual; 0: not at all. [1]",
        ),
        click.Option(["--again"], type=seconds, metavar="SECONDS", help="Look again then: no counter may have fallen."),
        click.Option(
            ["--timeout"], type=seconds, metavar="SECONDS", default=10.0, help="Wait so long for a page. [10]"
        ),
    ]
    return click.Command(
        "compare", callback=call, params=[*pages, *options, help_flag()], help=_HELP, add_help_option=False
    )


def _several(flag: str, word: str, meaning: str) -> click.Option:
    return click.Option([flag], multiple=True, metavar=word, help=meaning)
