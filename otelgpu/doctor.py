"""`otelgpu doctor`: what a person would check, in the order in which he would check it.

Rule 1: a check finds out one thing and says it in one sentence; what helps stands beside it. Nothing is mended here.
Rule 2: what cannot work is a problem; what a GPU of this kind does not have, or nobody asked for, is a note.
Rule 3: whoever is asked (driver, kubelet, collector) is asked as `serve` would ask, so that the answer is the true one.
"""

import http.client
import os
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from otelgpu.config import Address, Config
from otelgpu.errors import ConfigError, LateError, OtelgpuError
from otelgpu.fields import Field
from otelgpu.glance import look
from otelgpu.model import DeviceUse, Gap, Snapshot
from otelgpu.server.listen import bound_all, remove_files
from otelgpu.sources.choice import wanted_fields
from otelgpu.tables import gap_records, named_group

DEV = Path("/dev")
MAPS = Path("/proc/self/maps")
LIBRARY, ENGINE_LIBRARY = "libnvidia-ml", "libdcgm.so"
ASK = 2.0  # seconds that whoever holds the port has to answer
ENGINE_ADVICE = "see whether nv-hostengine runs there (nv-hostengine -b ALL), and whether the address can be reached"
NAMED = 6  # settings or fields in one sentence

# What a gap means for somebody who wants the value: nothing to be done, or something wrong.
HARMLESS = frozenset({Gap.UNSUPPORTED, Gap.SUSPENDED})
ADVICE: Mapping[Gap, str] = {
    Gap.DENIED: "run as a user that may ask (see the field in NVIDIA's documentation), or leave the field out",
    Gap.LOST: "reset the GPU (nvidia-smi --gpu-reset) or reboot; if it comes again have the board and its seat checked",
    Gap.FAILED: "look at the kernel's log (dmesg | grep NVRM)",
    Gap.TIMEOUT: "look at the kernel's log (dmesg | grep NVRM); a slow driver wants a longer sampling.deadline",
    Gap.INVALID: "the driver answers nonsense; a newer driver may not",
}


class Verdict(StrEnum):
    """What a finding means."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found out, and what helps where something is wrong."""

    topic: str
    verdict: Verdict
    text: str
    advice: str = ""


def examine(config: Config, environ: Mapping[str, str], *, dev: Path = DEV) -> Iterator[Finding]:
    """Check everything that the settings name, and say what was found as soon as it is."""
    yield _settings(config)
    snapshot: Snapshot | None = None
    wrong: list[Finding] = []
    try:
        snapshot = look(config, environ).snapshot
    except ConfigError as error:
        wrong += (Finding("settings", Verdict.PROBLEM, problem) for problem in error.problems)
    except OtelgpuError as error:
        advice = ADVICE[Gap.TIMEOUT] if isinstance(error, LateError) else ""  # the others say what to do
        wrong.append(Finding("driver", Verdict.PROBLEM, str(error), advice))
    if snapshot is not None and snapshot.facts.name == "dcgm":
        yield Finding("library", Verdict.OK, ", ".join(_loaded(ENGINE_LIBRARY)))
    elif config.source.kind in ("auto", "nvml"):
        yield _library()
        yield from _permissions(dev)
    if snapshot is None:
        yield from wrong
    else:
        yield _driver(snapshot, config.dcgm.address)
        yield from _gpus(snapshot)
        yield from _fields(wanted_fields(config), snapshot)
    for place, address in enumerate(config.server.listen):
        yield _port(address, config.origin("server.listen", place))
    yield from _kubelet(config)
    if config.processes.by != "off" or config.jobs.slurm:
        yield from _processes(config.processes.proc_root, () if snapshot is None else snapshot.used)
    if config.pushes or config.sends_events:
        yield from _collectors(config)


def _settings(config: Config) -> Finding:
    given = sorted(key for key in config.origins if "[" not in key)
    if not given:
        return Finding("settings", Verdict.OK, "all settings are the defaults")
    shown = ", ".join(f"{key} ({config.origins[key]})" for key in given[:NAMED])
    more = f" and {len(given) - NAMED} more" if len(given) > NAMED else ""
    return Finding("settings", Verdict.OK, f"given: {shown}{more}")


def _loaded(library: str) -> list[str]:
    """List the files that a library was loaded from: the loader's words, not a guess."""
    try:
        maps = MAPS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        maps = ""
    return sorted({line.split(maxsplit=5)[5] for line in maps.splitlines() if library in line})


def _library() -> Finding:
    """Say which file the driver library was loaded from."""
    if paths := _loaded(LIBRARY):
        return Finding("library", Verdict.OK, ", ".join(paths))
    return Finding(
        "library",
        Verdict.PROBLEM,
        "libnvidia-ml.so.1 is not loaded",
        "install the NVIDIA driver; in a container use the NVIDIA runtime with NVIDIA_DRIVER_CAPABILITIES=utility",
    )


def _permissions(dev: Path) -> Iterator[Finding]:
    """Look at the driver's device files. On some systems (WSL2) it has others, and none of these."""
    files = sorted(path for path in dev.glob("nvidia*") if _is_device(path))
    closed = [str(path) for path in files if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        text = f"this user may not use {', '.join(closed)}"
        yield Finding("permissions", Verdict.PROBLEM, text, "see the rights and the group of these files")
    elif files:
        yield Finding("permissions", Verdict.OK, f"{len(files)} device files of the driver may be used")
    else:
        yield Finding("permissions", Verdict.NOTE, f"the driver has no device files in {dev}")


def _is_device(path: Path) -> bool:
    try:
        return stat.S_ISCHR(path.stat().st_mode)
    except OSError:
        return False


def _driver(snapshot: Snapshot, engine: str) -> Finding:
    facts = snapshot.facts
    if not snapshot.source_up:
        advice = ENGINE_ADVICE if facts.name == "dcgm" and engine else ""
        return Finding("driver", Verdict.PROBLEM, snapshot.source_reason, advice)
    version = facts.driver_version or "of an unknown version"
    if facts.name == "dcgm":
        what = f"DCGM {facts.library_version}".strip() + (f" at {engine}" if engine else " in this process")
        return Finding("driver", Verdict.OK, f"{what} answers, driver {version}")
    kind = " (simulated: no number comes from a real GPU)" if facts.simulated else ""
    kind += " (recorded: no number comes from this machine)" if facts.name == "replay" else ""
    return Finding("driver", Verdict.OK, f"{facts.name} answers, driver {version}{kind}")


def _gpus(snapshot: Snapshot) -> Iterator[Finding]:
    if not snapshot.states and snapshot.source_up:
        yield Finding("gpus", Verdict.PROBLEM, "there is no GPU", "see the setting `devices`, and `nvidia-smi -L`")
    for state in snapshot.states:
        device = state.device
        name = f"GPU {device.index} {device.uuid} {device.model} at {device.pci_bus_id}"
        if state.gap is None:
            instances = f", {len(state.instances)} MIG instances" if state.instances else ""
            yield Finding("gpus", Verdict.OK, f"{name} answers{instances}")
        elif state.gap in HARMLESS:
            yield Finding("gpus", Verdict.NOTE, f"{name}: {state.gap}: {state.reason}")
        else:
            yield Finding("gpus", Verdict.PROBLEM, f"{name}: {state.gap}: {state.reason}", ADVICE.get(state.gap, ""))


def _fields(wanted: list[Field], snapshot: Snapshot) -> Iterator[Finding]:
    """Say of each wanted field who gives it, and of the others why not."""
    these = named_group(snapshot)
    gaps = gap_records(snapshot)
    told = {gap["field"] for gap in gaps}
    whole = sum(field.name not in told for field in wanted if _is_read(field, snapshot))
    if any(state.up for state in snapshot.states):
        yield Finding("fields", Verdict.OK, f"{whole} of {len(wanted)} fields have a value on every GPU")
    names = {field.name for field in wanted}
    for gap in gaps:
        if gap["field"] in names:
            kind = Gap(gap["gap"])
            verdict = Verdict.NOTE if kind in HARMLESS else Verdict.PROBLEM
            text = f"{gap['field']} on {these(gap['devices'])}: {kind}: {gap['reason']}"
            yield Finding("fields", verdict, text, "" if kind in HARMLESS else ADVICE[kind])
    if not snapshot.source_up:
        return
    unread = [field.name for field in wanted if field.name not in told and not _is_read(field, snapshot)]
    if unread and any(state.up for state in snapshot.states):
        shown = ", ".join(unread[:NAMED]) + (f" and {len(unread) - NAMED} more" if len(unread) > NAMED else "")
        yield Finding("fields", Verdict.NOTE, f"no source here reads {shown}")


def _is_read(field: Field, snapshot: Snapshot) -> bool:
    if field.is_numeric:
        return field.id in snapshot.numbers
    return any(row is field for rows in snapshot.labels.values() for row, _ in rows)


def _port(address: Address, place: str) -> Finding:
    """Try to have the address. That otelgpu itself has it already is as it should be."""
    try:
        sockets = bound_all([(address, place)])
    except OtelgpuError as error:
        if _is_ours(address):
            return Finding("listen", Verdict.OK, f"{address}: otelgpu is serving there")
        return Finding("listen", Verdict.PROBLEM, str(error), "choose another with --listen, or stop the other program")
    remove_files(sockets)
    for sock in sockets:
        sock.close()
    return Finding("listen", Verdict.OK, f"{address}: free")


def _is_ours(address: Address) -> bool:
    connection = http.client.HTTPConnection(address.host or "localhost", address.port or None, timeout=ASK)
    try:
        if address.path:
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.settimeout(ASK)
            connection.sock.connect(address.path)
        connection.request("GET", "/health")
        return connection.getresponse().headers.get("Server") == "otelgpu"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _processes(proc_root: str, used: Iterable[DeviceUse]) -> Iterator[Finding]:
    """Look at what it takes to find the owners of processes."""
    from otelgpu.processes.proc import ProcFolder  # here: only where it is wanted

    obstacle = ProcFolder(proc_root).obstacle()
    if obstacle is not None:
        yield Finding(
            "processes", Verdict.PROBLEM, obstacle, "show otelgpu the host's processes; see docs/processes.md"
        )
        return
    gaps = [(each.device.uuid, what, gap) for each in used for what, gap in each.gaps]
    for uuid, what, gap in gaps:
        verdict = Verdict.NOTE if gap in HARMLESS else Verdict.PROBLEM
        yield Finding("processes", verdict, f"{uuid}: {what} of its processes: {gap}", ADVICE.get(gap, ""))
    if not gaps:
        yield Finding("processes", Verdict.OK, f"they are found in {proc_root}, with the host's process ids")


def _kubelet(config: Config) -> Iterator[Finding]:
    if not config.kubernetes.enabled:
        return
    from otelgpu.attribution.kubelet import Kubelet, KubeletError  # here: only who asks for pods pays for gRPC

    kubelet = Kubelet(config.kubernetes.socket)
    try:
        held = kubelet.allocations()
    except KubeletError as error:
        yield Finding("kubelet", Verdict.PROBLEM, str(error))
    else:
        yield Finding("kubelet", Verdict.OK, f"{config.kubernetes.socket}: containers hold {len(held)} devices")
    finally:
        kubelet.close()


def _collectors(config: Config) -> Iterator[Finding]:
    """Send each collector an empty request: it says whether it would take a full one."""
    import gzip

    from otelgpu.export.push.outcome import Delivered
    from otelgpu.export.push.setup import make_sender
    from otelgpu.export.push.signals import LOGS, METRICS

    wanted = {METRICS: config.pushes, LOGS: config.sends_events}
    for signal in (signal for signal, is_wanted in wanted.items() if is_wanted and signal.otlp(config).endpoint):
        sender = make_sender(config, signal)
        try:
            outcome = sender.send(gzip.compress(b"", mtime=0))
        finally:
            sender.close()
        if isinstance(outcome, Delivered):
            yield Finding("otlp", Verdict.OK, f"{sender.place}: the collector takes {signal.word}")
        else:
            yield Finding("otlp", Verdict.PROBLEM, f"{sender.place}: {signal.word}: {outcome.reason}")
