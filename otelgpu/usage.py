"""The command line as such: its commands, their flags, and what is said when they are typed wrong.

Rule 1: flags follow from the settings; what was typed is kept as text, in order, for `load` to judge.
Rule 2: every mistake is noted and told with those of the settings: whoever mends one must not be told of the next.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from otelgpu import __version__
from otelgpu.config import Flag
from otelgpu.config.docs import default_text
from otelgpu.config.given import Problem
from otelgpu.config.goflags import as_typed, rewritten
from otelgpu.config.keys import SETTINGS, Setting
from otelgpu.config.theirs import ROWS, Row
from otelgpu.config.words import UnknownWordError, meant, one_of, plain
from otelgpu.output import write

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_FLAGS = "otelgpu.flags"  # where the flags wait in click's context, in the order in which they were typed
_PROBLEMS = "otelgpu.problems"


class Program(click.Group):
    """The group of commands; `serve` is meant when the first argument is a flag, or there is none.

    *makers* make a command when it is asked for: each has a hundred flags, which `serve` would keep for ever.
    """

    def __init__(
        self, name: str, makers: Mapping[str, Callable[[], click.Command]], *, meaning: str, epilog: str
    ) -> None:
        super().__init__(name, help=meaning, epilog=epilog, add_help_option=False)
        self._makers = makers
        self.params += [version_flag(), help_flag()]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # a shell completes the line
            return super().parse_args(ctx, ["serve", *args] if args and args[0].startswith("-") else args)
        own = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        if not args or (args[0].startswith("-") and args[0] not in own):
            args = ["serve", *args]
        elif not args[0].startswith("-") and args[0] not in self._makers:
            raise click.UsageError(f"no such command: {plain(args[0])}{meant(args[0], self._makers)}", ctx)
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["CompletionItem"]:
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            known = {item.value for item in found}
            found += [
                item for item in self._makers["serve"]().shell_complete(ctx, incomplete) if item.value not in known
            ]
        return found

    def list_commands(self, _: click.Context) -> list[str]:
        return list(self._makers)  # in our order, not by the alphabet

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        return self._makers[name]() if name in self._makers else None


class Command(click.Command):
    """A command that takes every setting as a flag, in groups.

    The flags of *hidden* sections are not shown. *names* are those of all commands. With *drop_in* dcgm-exporter's
    flags are shown too.
    """

    def __init__(
        self,
        name: str,
        call: Callable[..., int],
        *,
        parameters: Sequence[click.Parameter],
        hidden: tuple[str, ...],
        names: Collection[str],
        meaning: str,
        epilog: str,
        drop_in: bool = False,
    ) -> None:
        flags = [
            _SettingFlag(setting, spelling, hidden=spelling != setting.flags[0] or setting.key.startswith(hidden))
            for setting in SETTINGS.values()
            for spelling in setting.flags
        ]
        # So that `parse_args` learns of everything that is not understood, and not only of the first.
        taken = {"allow_extra_args": True, "ignore_unknown_options": True}
        theirs = [
            _TheirFlag(row, spelling, hidden=spelling != row.flags[0] or not drop_in)
            for row in ROWS
            for spelling in row.flags
        ]
        params = [*parameters, *theirs, *flags]
        super().__init__(name, taken, callback=call, params=params, help=meaning, epilog=epilog, add_help_option=False)
        self._names = names

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (line := parameter.get_help_record(ctx)) is not None:
                groups.setdefault(getattr(parameter, "group", "Options"), []).append(line)
        for title, lines in groups.items():
            with formatter.section(title):
                formatter.write_dl(lines)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        typed = args
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        flags = {name for one in options for name in one.opts}
        args = list(rewritten(typed, flags, {name for one in options if _stands_alone(one) for name in one.opts}))
        try:
            rest = super().parse_args(ctx, args[:])
        except click.BadOptionUsage:  # a flag without its value, which can only be the last one
            _note(ctx, Problem(f"{plain(args[-1])}: expected a value"))
            rest = super().parse_args(ctx, args[:-1])
        for problem in self._not_understood([as_typed(word, typed) for word in ctx.args]):
            _note(ctx, problem)
        return rest

    def _not_understood(self, words: Sequence[str]) -> Iterator[Problem]:
        may_be_value = False
        for word in words:
            if len(word) > 1 and word.startswith("-"):
                name, sign, _ = word.partition("=")
                unknown = UnknownWordError("no such flag", partial(self._near, name))
                yield Problem(f"{unknown.sentence}: {plain(name)}", unknown=unknown)
                may_be_value = not sign
                continue
            if not may_be_value:
                is_command = word in self._names
                yield Problem(
                    f"the command comes first: otelgpu {word} ..." if is_command else f"not understood: {plain(word)}"
                )
            may_be_value = False

    def _near(self, name: str) -> str:
        shown = [spelling for one in self.params if not getattr(one, "hidden", False) for spelling in one.opts]
        return meant(name, shown)


class Form(click.Choice[str]):
    """The choice of --format. A wrong one is noted."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.choices and param is not None and ctx is not None:
            _note(ctx, Problem(f"{param.opts[0]} {plain(value)}: expected {one_of(self.choices)}"))
        return value


def complete_files(_: click.Context, __: click.Parameter, begun: str) -> list["CompletionItem"]:
    """Tell a shell that a file is to stand here."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(begun, type="file")]


def flags_of(context: click.Context) -> Sequence[Flag]:
    """Give the flags that were typed."""
    return tuple(context.meta.get(_FLAGS, ()))


def problems_of(context: click.Context) -> Sequence[Problem]:
    """Give what is wrong with the words that were typed, beyond the values of settings."""
    return tuple(context.meta.get(_PROBLEMS, ()))


def version_flag() -> click.Parameter:
    """Make the flag that shows the version."""
    return _telling(("--version", "-v"), lambda _: f"otelgpu {__version__}\n", "Show the version.")


def help_flag() -> click.Parameter:
    """Make the flag that shows the help."""
    # Not click's own: that one ends in a traceback where stdout takes nothing.
    return _telling(("--help", "-h"), lambda context: f"{context.get_help()}\n", "Show this message and exit.")


def _telling(flags: Sequence[str], text: Callable[[click.Context], str], meaning: str) -> click.Parameter:
    """Make a flag that prints a text instead of running the command."""

    def show(context: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001  (click calls it so)
        if value and not context.resilient_parsing:  # which is so while a shell completes the line
            write(text(context))
            context.exit()

    return click.Option(list(flags), is_flag=True, is_eager=True, expose_value=False, callback=show, help=meaning)


class _SettingFlag(click.Option):
    """One spelling of a setting's flag."""

    def __init__(self, setting: Setting, spelling: str, *, hidden: bool) -> None:
        default = default_text(setting)
        alone: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if setting.is_switch else {}
        super().__init__(
            [spelling, spelling.strip("-").replace("-", "_")],
            multiple=True,
            expose_value=False,
            hidden=hidden,
            metavar=setting.word,
            help=setting.meaning.replace("`", "") + (f" [{default}]" if default else ""),
            callback=partial(_keep, setting.key, spelling),
            **alone,
        )
        self.group = setting.group
        self.is_switch = setting.is_switch
        self._setting = setting

    def shell_complete(self, _: click.Context, incomplete: str) -> list["CompletionItem"]:
        from otelgpu.completion import values

        return [] if self.is_switch else values(self._setting, incomplete)


def _stands_alone(option: click.Option) -> bool:
    return option.is_flag or (isinstance(option, _SettingFlag | _TheirFlag) and option.is_switch)


class _TheirFlag(click.Option):
    """One spelling of a flag that dcgm-exporter alone has."""

    def __init__(self, row: Row, spelling: str, *, hidden: bool) -> None:
        alone: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if row.is_switch else {}
        meaning = f"{row.answer.value}: {row.why}" if row.why else f"See {SETTINGS[row.key].flags[0]}"
        super().__init__(
            [spelling, spelling.strip("-").replace("-", "_")],
            multiple=True,
            expose_value=False,
            hidden=hidden,
            metavar="true|false" if row.is_switch else "TEXT",
            help=f"{', '.join(row.flags[1:])}{'; ' if row.flags[1:] else ''}{meaning}.".replace("`", ""),
            callback=partial(_keep, "", spelling),
            **alone,
        )
        self.is_switch = row.is_switch
        self.group = "Flags that dcgm-exporter alone has"


def _keep(key: str, spelling: str, context: click.Context, _: click.Parameter, texts: Sequence[str]) -> None:
    context.meta.setdefault(_FLAGS, []).extend(Flag(spelling, key, text) for text in texts)


def _note(context: click.Context, problem: Problem) -> None:
    context.meta.setdefault(_PROBLEMS, []).append(problem)
