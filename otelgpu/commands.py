"""What the commands do that look at GPUs: each takes its settings and gives the exit status.

Rule 1: everything that a command needs is imported inside it: `serve` starts fast and never loads what draws tables.
"""

import logging
import os
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING

import click

from otelgpu.config import Config
from otelgpu.config.words import one_line
from otelgpu.errors import OtelgpuError, SourceDownError, StartError
from otelgpu.output import complain, width, write

if TYPE_CHECKING:
    from otelgpu.configmap import ConfigMapFields
    from otelgpu.model import Snapshot

logger = logging.getLogger(__name__)

COULD_NOT_START = 1


def serve(config: Config, _: str) -> int:
    """Serve until a signal comes."""
    # tornado would load it to colour a log that it does not write here: half a megabyte. "None" says it is not there.
    sys.modules.setdefault("curses", None)  # type: ignore[arg-type]
    from otelgpu.reload import Rereading
    from otelgpu.service import serve as run

    read = click.get_current_context().obj
    again = partial(read, again=True)
    _set_up_log(config, otherwise="info")
    with _with_configmap(config) as fields:
        rereading = Rereading(
            read=again if fields is None else lambda: fields.applied(again()),
            files=read.keywords["files"],
            settled=partial(_log, otherwise="info"),
            causes=[] if fields is None else [fields.tell],
        )
        settled = config if fields is None else fields.applied(config)
        rereading.settled(settled)
        return run(settled, announce=_announce, rereading=rereading)


def _announce(address: str) -> None:
    """Print an address that is served. That nobody reads it is no reason to stop serving."""
    with suppress(OSError, OtelgpuError):
        write(f"listening on {address}\n")


def once(config: Config, form: str) -> int:
    """Print one look at the GPUs."""
    from otelgpu.glance import look

    _set_up_log(config)
    with _with_configmap(config) as fields:
        settled = config if fields is None else fields.applied(config)
        _log(settled)
        seen = look(settled)
    if form == "text":
        write(seen.page)
    else:
        from otelgpu.tables import json_text, readings_table, snapshot_record

        snapshot = seen.snapshot
        write(json_text(snapshot_record(snapshot)) if form == "json" else readings_table(snapshot, width=width()))
    return _source_status(up=seen.snapshot.source_up, reason=seen.snapshot.source_reason)


def _with_configmap(config: Config) -> "AbstractContextManager[ConfigMapFields | None]":
    """Follow the ConfigMap that the settings name for the fields, if they name one."""
    if config.kubernetes.configmap is None:
        return nullcontext()
    from otelgpu.configmap import followed  # here, because most nodes have none

    return followed(config, os.environ)


def devices(config: Config, form: str) -> int:
    """Print the GPUs and instances."""
    from otelgpu.glance import look
    from otelgpu.tables import device_records, devices_table, json_text

    _log(config)
    snapshot = look(config).snapshot
    write(json_text(device_records(snapshot)) if form == "json" else devices_table(snapshot, width=width()))
    return _source_status(up=snapshot.source_up, reason=snapshot.source_reason)


def fields(config: Config, form: str) -> int:
    """Print the fields, and who answers them."""
    from otelgpu.glance import look
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


def doctor(config: Config, form: str) -> int:
    """Print what is right and what is not."""
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


def record(config: Config, _: str, *, file: str, sweeps: int) -> int:
    """Write what the GPUs answer into a file."""
    from otelgpu.record import record as write_down
    from otelgpu.record import told

    def progress(number: int, snapshot: "Snapshot | None") -> None:
        with suppress(OSError, OtelgpuError):  # that nobody reads it is no reason to record less
            write(f"sweep {number} of {sweeps}: {told(snapshot)}\n")

    _log(config)
    done = write_down(
        config,
        file,
        sweeps=sweeps,
        environ=os.environ,
        seen=progress,
    )
    write(f"{one_line(file)}: written, with UUIDs, serial numbers and owners masked\n")
    return _source_status(up=done is not None and done.source_up, reason=told(done))


def _log(config: Config, *, level: str = "", otherwise: str = "warning") -> None:
    """Set up the log, and put there what is to be remarked of the settings."""
    _set_up_log(config, level=level, otherwise=otherwise)
    for remark in config.remarks:
        logger.log(remark.level, "%s", remark.text)


def _set_up_log(config: Config, *, level: str = "", otherwise: str = "warning") -> None:
    """Set up the log. A command that prints something else logs only what is wrong, unless it is told otherwise."""
    from otelgpu.log import set_up

    asked_for = config.log.level if "log.level" in config.origins else otherwise
    set_up(level=level or asked_for, form=config.log.format)


def _source_status(*, up: bool, reason: str) -> int:
    if up:
        return 0
    complain(reason)
    return COULD_NOT_START
