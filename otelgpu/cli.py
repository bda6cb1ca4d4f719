"""The command line: the commands, their flags, and what is printed.

Rule 1: the only module that decides what is printed, by output.py.
Rule 2: flags follow from the settings (usage.py); none of them is written down here.
Rule 3: everything that a command needs is imported inside it: `serve` starts fast and never loads what draws tables.

Exit status: 0, 1 (could not start, or nobody answers), 2 (wrong usage or settings); see __main__.py for signals.
"""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TypeAlias

import click

from otelgpu.config import Config, load
from otelgpu.config.sdk import forget_empty
from otelgpu.config.words import one_line
from otelgpu.errors import ConfigError, OtelgpuError, SourceDownError, StartError
from otelgpu.output import complain, give_up_stdout, width, write
from otelgpu.usage import Command, Form, Program, complete_files, flags_of, help_flag, problems_of, version_flag

logger = logging.getLogger(__name__)

DROP_IN = "dcgm-exporter"
COMPLETE = "_OTELGPU_COMPLETE"  # set by the script that completes command lines
COULD_NOT_START, WRONG_USAGE, INTERRUPTED = 1, 2, 130

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


def _serve(config: Config, _: str) -> int:
    # tornado would load it to colour a log that it does not write here: half a megabyte. "None" says it is not there.
    sys.modules.setdefault("curses", None)  # type: ignore[arg-type]
    from otelgpu.service import serve

    _log(config, level=config.log.level)
    with _with_configmap(config) as settled:
        return serve(settled, announce=_announce)


def _announce(address: str) -> None:
    """Print an address that is served. That nobody reads it is no reason to stop serving."""
    with suppress(OSError, OtelgpuError):
        write(f"listening on {address}\n")


def _once(config: Config, form: str) -> int:
    from otelgpu.service import look

    _log(config)
    with _with_configmap(config) as settled:
        seen = look(settled)
    if form == "text":
        write(seen.page)
    else:
        from otelgpu.tables import json_text, readings_table, snapshot_record

        snapshot = seen.snapshot
        write(json_text(snapshot_record(snapshot)) if form == "json" else readings_table(snapshot, width=width()))
    return _source_status(up=seen.snapshot.source_up, reason=seen.snapshot.source_reason)


def _with_configmap(config: Config) -> AbstractContextManager[Config]:
    """Give the settings with the fields of the ConfigMap that they name, if they name one; see configmap.py."""
    if config.kubernetes.configmap is None:
        return nullcontext(config)
    from otelgpu.configmap import followed  # here, because most nodes have none

    return followed(config, os.environ)


def _devices(config: Config, form: str) -> int:
    from otelgpu.service import look
    from otelgpu.tables import device_records, devices_table, json_text

    _log(config)
    snapshot = look(config).snapshot
    write(json_text(device_records(snapshot)) if form == "json" else devices_table(snapshot, width=width()))
    return _source_status(up=snapshot.source_up, reason=snapshot.source_reason)


def _fields(config: Config, form: str) -> int:
    from otelgpu.service import look
    from otelgpu.sources.choice import wanted_fields
    from otelgpu.tables import field_records, fields_table, json_text

    _log(config)
    wanted = wanted_fields(config)
    try:
        snapshot = look(config).snapshot
        down = "" if snapshot.source_up else snapshot.source_reason
    except (SourceDownError, StartError) as error:
        snapshot, down = None, str(error)
    known = None if down else snapshot
    write(json_text(field_records(wanted, known)) if form == "json" else fields_table(wanted, known, width=width()))
    if down:
        complain(f"{down}; so it is not known who answers which field")
    return 0


def _doctor(config: Config, form: str) -> int:
    from dataclasses import asdict

    from otelgpu.doctor import Verdict, examine
    from otelgpu.tables import json_text

    _log(config, level="critical")  # what is wrong is said in the findings
    findings = []
    for finding in examine(config, os.environ):
        findings.append(finding)
        if form == "text":
            advice = f"\n{'':21}{one_line(finding.advice)}" if finding.advice else ""
            write(f"{finding.verdict:8} {finding.topic:11} {one_line(finding.text)}{advice}\n")
    if form == "json":
        write(json_text([asdict(finding) for finding in findings]))
    return COULD_NOT_START if any(finding.verdict is Verdict.PROBLEM for finding in findings) else 0


def _record(config: Config, _: str, *, file: str, sweeps: int) -> int:
    from otelgpu.record import record, told

    _log(config)
    done = record(
        config,
        file,
        sweeps=sweeps,
        environ=os.environ,
        seen=lambda number, snapshot: write(f"sweep {number} of {sweeps}: {told(snapshot)}\n"),
    )
    write(f"{one_line(file)}: written, with UUIDs, serial numbers and owners masked\n")
    return _source_status(up=done is not None and done.source_up, reason=told(done))


_COMMANDS: dict[str, tuple[Run, tuple[str, ...], str]] = {
    "serve": (_serve, (), "Serve the pages until stopped; what `otelgpu` alone does."),
    "once": (_once, ("text", "json", "table"), "Ask once and print the readings, by default as the page."),
    "devices": (_devices, ("table", "json"), "Print the GPUs and MIG instances, and which of them answer."),
    "doctor": (_doctor, ("text", "json"), "Check everything that has to be right, and say what is not and what helps."),
    "fields": (_fields, ("table", "json"), "Print the fields that can be asked for, and who answers them."),
}


def _program() -> click.Group:
    from otelgpu.compare.command import command as comparing

    program = Program(
        "otelgpu",
        help="Show the GPUs of this machine as Prometheus metrics.",
        epilog="`otelgpu serve --help` shows the settings; every command but `check` and `compare` takes them.",
        add_help_option=False,
    )
    program.params += [version_flag(), help_flag()]
    for name, (run, forms, meaning) in _COMMANDS.items():
        program.add_command(_command(name, run, forms=forms, meaning=meaning))
    program.add_command(_check())
    program.add_command(_completion(program))
    program.add_command(_recording())
    program.add_command(comparing())
    return program


def _recording() -> click.Command:
    meaning = "Write this machine's answers to a new file, names masked."
    sweeps = click.Option(["--sweeps"], type=click.IntRange(1), default=2, help="Ask so many times [2]")
    file = click.Argument(["file"], metavar="FILE")
    return _command("record", _record, forms=(), meaning=meaning, own=(file, sweeps))


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


def _completion(program: click.Group) -> click.Command:
    def call(shell: str) -> int:
        from otelgpu.completion import script

        write(script(program, shell, COMPLETE))
        return 0

    meaning = 'Print what completes commands, flags and fields: eval "$(otelgpu completion bash)" in ~/.bashrc.'
    shells = click.Argument(["shell"], type=click.Choice(("bash", "zsh", "fish")))
    return click.Command("completion", callback=call, params=[shells, help_flag()], help=meaning, add_help_option=False)


def _drop_in() -> click.Command:
    meaning = "Serve the GPUs of this machine as dcgm-exporter does, with its flags, variables and defaults."
    program = _command(DROP_IN, _serve, forms=(), meaning=meaning, drop_in=True)
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
        settings = load(
            environ=os.environ,
            flags=flags_of(context),
            config_path=config,
            parse_spec=_parse_spec,
            more=problems_of(context),
            drop_in=drop_in,
        )
        return run(settings, form, **more)

    parameters: list[click.Parameter] = [*own]
    is_look = bool(forms or own)
    if forms:
        parameters.append(click.Option(["--format", "form"], type=Form(forms), default=forms[0], help=f"[{forms[0]}]"))
    idle = (
        ("server.", "otlp.", "embed.") if is_look and name != "doctor" else ("embed.",)
    )  # sections that this command has no use for
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


def _log(config: Config, *, level: str = "") -> None:
    """Set up the log. A command that prints something else logs only what is wrong, unless it is told otherwise."""
    from otelgpu.log import set_up

    asked_for = config.log.level if "log.level" in config.origins else "warning"
    set_up(level=level or asked_for, form=config.log.format)
    for remark in config.remarks:
        logger.log(remark.level, "%s", remark.text)


def _source_status(*, up: bool, reason: str) -> int:
    if up:
        return 0
    complain(reason)
    return COULD_NOT_START
