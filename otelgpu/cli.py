"""The command line: the commands, their flags, and what is printed.

Rule 1: the only module that decides what is printed, by output.py.
Rule 2: flags follow from the settings (usage.py); none of them is written down here.
Rule 3: what a command does stands in commands.py, check.py and completion.py.

Exit status: 0, 1 (could not start, or nobody answers), 2 (wrong usage or settings); see __main__.py for signals.
"""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import click

from otelgpu import commands
from otelgpu.commands import COULD_NOT_START
from otelgpu.config import load
from otelgpu.config.sdk import forget_empty
from otelgpu.config.words import one_line
from otelgpu.errors import ConfigError, OtelgpuError
from otelgpu.output import complain, give_up_stdout, write
from otelgpu.usage import Command, Form, Program, complete_files, flags_of, help_flag, problems_of, version_flag

logger = logging.getLogger(__name__)

DROP_IN = "dcgm-exporter"
COMPLETE = "_OTELGPU_COMPLETE"  # set by the script that completes command lines
WRONG_USAGE, INTERRUPTED = 2, 130

Run: TypeAlias = Callable[..., int]  # takes the settings, the value of --format, and what else its command takes

_EPILOG = (
    "Every setting is also a key of the file (sampling.reuse), a variable (OTELGPU_SAMPLING_REUSE) and a long flag "
    "(--sampling-reuse); a flag goes over a variable, a variable over the file. Durations are seconds, or 500ms, 1m."
)


def main(arguments: Sequence[str] | None = None, *, drop_in: bool = False) -> int:
    """Run one command and give back the exit status. Every failure that can be foreseen is told in one line each.

    With *drop_in* this is the program `dcgm-exporter`, which takes its flags and serves.
    """
    try:
        status = _run(list(sys.argv[1:] if arguments is None else arguments), drop_in=drop_in)
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.UsageError as error:
        complain(error.format_message())
        return WRONG_USAGE
    except ConfigError as error:
        complain(*error.problems)
        return WRONG_USAGE
    except OtelgpuError as error:
        complain(*str(error).splitlines())
        return COULD_NOT_START
    except BrokenPipeError:  # whoever read has seen enough: `otelgpu once | head -1`
        give_up_stdout()
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _run(arguments: list[str], *, drop_in: bool) -> int:
    program = _drop_in() if drop_in else _program()
    if not drop_in and (instruction := os.environ.get(COMPLETE)):
        from otelgpu.completion import complete

        return complete(program, COMPLETE, instruction)
    try:
        with program.make_context(program.name, arguments) as context:
            return int(context.command.invoke(context) or 0)
    except click.exceptions.Exit as done:
        return done.exit_code


_COMMANDS: dict[str, tuple[Run, tuple[str, ...], str]] = {
    "serve": (commands.serve, (), "Serve the pages until stopped; what `otelgpu` alone does."),
    "once": (commands.once, ("text", "json", "table"), "Ask once and print the readings, by default as the page."),
    "devices": (commands.devices, ("table", "json"), "Print the GPUs and MIG instances, and which of them answer."),
    "doctor": (
        commands.doctor,
        ("text", "json"),
        "Check all that must be right, and say what is not and what helps.",
    ),
    "fields": (commands.fields, ("table", "json"), "Print the fields there are, and what each GPU answers."),
}


def _program() -> click.Group:
    makers = {
        name: partial(_command, name, run, forms=forms, meaning=meaning)
        for name, (run, forms, meaning) in _COMMANDS.items()
    }
    return Program(
        "otelgpu",
        {**makers, "check": _check, "record": _recording, "compare": _comparing, "completion": _completion},
        meaning="Show the GPUs of this machine as Prometheus metrics.",
        epilog="`otelgpu serve --help` shows the settings; every command but `check` and `compare` takes them.",
    )


def _recording() -> click.Command:
    meaning = "Write this machine's answers to a new file, names masked."
    sweeps = click.Option(["--sweeps"], type=click.IntRange(1), default=2, help="Ask so many times [2]")
    file = click.Argument(["file"], metavar="FILE")
    return _command("record", commands.record, forms=(), meaning=meaning, own=(file, sweeps))


def _check() -> click.Command:
    def call(files: Sequence[str]) -> int:
        from otelgpu.check import check

        is_good = True
        for path in files:
            found = check(path, _parse_spec)
            complain(*found.problems)
            complain(*(f"warning: {remark}" for remark in found.remarks))
            if found.problems:
                is_good = False
            else:
                write(f"{one_line(path)}: good ({found.holds})\n")
        return 0 if is_good else WRONG_USAGE

    meaning = "Say what is wrong with files of settings (YAML) or fields (CSV); status 2 where anything is."
    files = click.Argument(["files"], nargs=-1, required=True, metavar="FILE...", shell_complete=complete_files)
    return click.Command("check", callback=call, params=[files, help_flag()], help=meaning, add_help_option=False)


def _comparing() -> click.Command:
    from otelgpu.compare.command import command

    return command()


def _completion() -> click.Command:
    def call(shell: str) -> int:
        from otelgpu.completion import script

        write(script(_program(), shell, COMPLETE))
        return 0

    meaning = 'Print what completes commands, flags and fields: eval "$(otelgpu completion bash)" in ~/.bashrc.'
    shells = click.Argument(["shell"], type=click.Choice(("bash", "zsh", "fish")))
    return click.Command("completion", callback=call, params=[shells, help_flag()], help=meaning, add_help_option=False)


def _drop_in() -> click.Command:
    meaning = "Serve the GPUs of this machine as dcgm-exporter does, with its flags, variables and defaults."
    program = _command(DROP_IN, commands.serve, forms=(), meaning=meaning, drop_in=True)
    program.params.append(version_flag())
    return program


def _command(
    name: str,
    run: Run,
    *,
    forms: tuple[str, ...],
    meaning: str,
    drop_in: bool = False,
    own: Sequence[click.Parameter] = (),
) -> click.Command:
    def call(config: str | None, form: str = "", **more: object) -> int:
        context = click.get_current_context()
        forget_empty(os.environ)
        context.obj = read = partial(  # `serve` reads again
            load,
            environ=os.environ,
            flags=flags_of(context),
            config_path=config,
            parse_spec=_parse_spec,
            more=problems_of(context),
            drop_in=drop_in,
            files={},
        )
        return run(read(), form, **more)

    parameters: list[click.Parameter] = [*own]
    is_look = bool(forms or own)
    if forms:
        parameters.append(click.Option(["--format", "form"], type=Form(forms), default=forms[0], help=f"[{forms[0]}]"))
    # Sections that this command has no use for.
    idle = ("server.", "otlp.", "embed.") if is_look and name != "doctor" else ("embed.",)
    config_help = "Settings file, YAML [OTELGPU_CONFIG]"
    parameters.append(click.Option(["--config"], metavar="FILE", help=config_help, shell_complete=complete_files))
    parameters.append(help_flag())
    return Command(
        name,
        call,
        parameters=parameters,
        hidden=idle,
        names=() if drop_in else _COMMANDS,
        meaning=meaning,
        epilog=_EPILOG,
        drop_in=drop_in,
    )


def _parse_spec(text: str) -> object:
    from otelgpu.sources.simulated.spec import parse_spec

    return parse_spec(text)
