"""What otelgpu says about itself, as OpenTelemetry instruments like the rest.

Rule 1: always served, above all when no GPU answers.
Rule 2: no attribute takes values without bound: GPUs, gaps, fields and status codes are all finite.
Rule 3: names are otelgpu.*; the Prometheus page shows them as otelgpu_* with the unit as suffix.
"""

import os
import platform
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

import opentelemetry.sdk.version
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from otelgpu.config import Config
from otelgpu.fields import Field
from otelgpu.instruments import Pinned
from otelgpu.model import Device, DeviceUse, Snapshot

Observations = Iterable[Observation]

# Seconds: a page from the cache takes a millisecond, one that waits for a stuck GPU the deadline.
SCRAPE_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class Tally:
    """What the server and the sampler count; written by them, read here."""

    sweeps: Callable[[], int]
    dropped: Callable[[], Mapping[str, int]]
    scrapes: Counter[int] = field(default_factory=Counter)


def create_own_instruments(
    meter: Meter,
    *,
    version: str,
    wanted: Sequence[Field],
    pinned: Pinned,
    tally: Tally,
    uses: bool = False,
) -> Callable[[float], None]:
    """Register otelgpu's own instruments; return the function that records how long a scrape took, in seconds."""

    def of_snapshot(report: Callable[[Snapshot], Observations]) -> Callable[[CallbackOptions], Observations]:
        def callback(_: CallbackOptions) -> Observations:
            snapshot = pinned.latest
            return () if snapshot is None else report(snapshot)

        return callback

    def gauge(name: str, unit: str, description: str, callback: Callable[[CallbackOptions], Observations]) -> None:
        meter.create_observable_gauge(name, callbacks=[callback], unit=unit, description=description)

    def total(name: str, unit: str, description: str, callback: Callable[[CallbackOptions], Observations]) -> None:
        meter.create_observable_counter(name, callbacks=[callback], unit=unit, description=description)

    wanted_ids = frozenset(field.id for field in wanted)
    build = {
        "version": version,
        "python": platform.python_version(),
        "opentelemetry": opentelemetry.sdk.version.__version__,
    }
    gauge("otelgpu.build_info", "", "Which otelgpu this is; always 1.", lambda _: [Observation(1, build)])
    gauge("otelgpu.source_info", "", "What answers for the GPUs; always 1.", of_snapshot(_source_info))
    gauge("otelgpu.source_up", "", "Whether the driver answers at all: 1 or 0.", of_snapshot(_source_up))
    gauge("otelgpu.gpu_up", "", "Whether a GPU answered in the last sweep: 1 or 0.", of_snapshot(_gpu_up))
    gauge(
        "otelgpu.gpu_suspended",
        "",
        "Whether the kernel has suspended a GPU, which is not asked then: 1 or 0; absent where it does not tell.",
        of_snapshot(_gpu_suspended),
    )
    gauge(
        "otelgpu.gpu.lost_timestamp",
        "s",
        "Since when a GPU has not answered, in seconds since the epoch, and why; absent while it answers.",
        of_snapshot(_gpu_lost),
    )
    gauge("otelgpu.gpus", "", "How many GPUs are in a state: up, or why they are not.", of_snapshot(_gpus))
    gauge(
        "otelgpu.missing",
        "",
        "How many of the wanted fields have no value, by GPU and reason.",
        of_snapshot(lambda snapshot: _missing(snapshot, wanted_ids)),
    )
    gauge(
        "otelgpu.sweep.duration",
        "s",
        "How long the last sweep over all GPUs took.",
        of_snapshot(lambda snapshot: [Observation(snapshot.seconds)]),
    )
    gauge(
        "otelgpu.snapshot.age",
        "s",
        "How old the readings on this page are.",
        of_snapshot(lambda snapshot: [Observation(max(time.monotonic() - snapshot.at, 0.0))]),
    )
    total("otelgpu.sweeps", "", "Sweeps over all GPUs since the start.", lambda _: [Observation(tally.sweeps())])
    total(
        "otelgpu.values.dropped",
        "",
        "Answers of the driver that cannot be true and were dropped, by field.",
        lambda _: [Observation(count, {"field": name}) for name, count in sorted(tally.dropped().items())],
    )
    total(
        "otelgpu.scrapes",
        "",
        "Answered requests for /metrics by status code.",
        lambda _: [Observation(count, {"code": str(code)}) for code, count in sorted(tally.scrapes.items())],
    )
    total("otelgpu.process.cpu", "s", "CPU time used by this process.", lambda _: [Observation(time.process_time())])
    gauge("otelgpu.process.resident_memory", "By", "Resident memory of this process.", _resident_memory)
    gauge("otelgpu.process.threads", "", "Threads of this process.", lambda _: [Observation(threading.active_count())])
    gauge("otelgpu.process.open_fds", "", "Open file descriptors of this process.", _open_files)
    gauge("otelgpu.process.max_fds", "", "Most file descriptors this process may open.", _max_files)
    if uses:
        _create_use_instruments(meter, pinned)
    scrape = meter.create_histogram(
        "otelgpu.scrape.duration",
        unit="s",
        description="How long requests for /metrics took.",
        explicit_bucket_boundaries_advisory=SCRAPE_BOUNDS,
    )
    return scrape.record


def _create_use_instruments(meter: Meter, pinned: Pinned) -> None:
    """Register what is said about finding out who uses the GPUs; only where that is asked for."""

    def gauge(name: str, description: str, report: Callable[[DeviceUse], Iterable[tuple[int, dict[str, str]]]]) -> None:
        def callback(_: CallbackOptions) -> Observations:
            snapshot = pinned.shown
            for used in () if snapshot is None else snapshot.used:
                labels = _labels(used.device) | _instance(used.device)
                yield from (Observation(value, labels | more) for value, more in report(used))

        meter.create_observable_gauge(name, callbacks=[callback], description=description)

    gauge(
        "otelgpu.owners.missing",
        "What of the owners of a GPU could not be found out, and why; always 1.",
        lambda used: [(1, {"what": what, "gap": gap.value}) for what, gap in used.gaps],
    )
    gauge(
        "otelgpu.owners.folded",
        'Owners of a GPU that are beyond the limits and summed as owner="other".',
        lambda used: [(used.folded, {})],
    )
    gauge(
        "otelgpu.processes.unknown",
        "Processes on a GPU whose owner could not be found.",
        lambda used: [(used.unknown, {})],
    )


def _instance(device: Device) -> dict[str, str]:
    return {} if device.instance_id is None else {"GPU_I_ID": str(device.instance_id)}


def create_settings_instruments(meter: Meter, config: Config) -> None:
    """Register what is said about the settings, where there is something to say."""
    if config.counters or config.skipped_rows:
        meter.create_observable_gauge(
            "otelgpu.config.skipped_rows",
            callbacks=[lambda _: [Observation(config.skipped_rows)]],
            description="Rows of the CSV files that are passed over because they are wrong.",
        )


def _labels(device: Device) -> dict[str, str]:
    return {"gpu": str(device.index), "UUID": device.gpu_uuid}


def _source_info(snapshot: Snapshot) -> Observations:
    facts = snapshot.facts
    labels = {
        "source": facts.name,
        "driver_version": facts.driver_version,
        "library_version": facts.library_version,
        "simulated": str(facts.simulated).lower(),
        "detail": facts.detail,
    }
    yield Observation(1, labels)


def _source_up(snapshot: Snapshot) -> Observations:
    yield Observation(int(snapshot.source_up), {"source": snapshot.facts.name})


def _gpu_up(snapshot: Snapshot) -> Observations:
    for state in snapshot.states:
        yield Observation(int(state.up), _labels(state.device))


def _gpu_suspended(snapshot: Snapshot) -> Observations:
    for state in snapshot.states:
        if state.is_suspended is not None:
            yield Observation(int(state.is_suspended), _labels(state.device))


def _gpu_lost(snapshot: Snapshot) -> Observations:
    for state in snapshot.states:
        if state.gap is not None and not state.up:
            yield Observation(state.since_unix, _labels(state.device) | {"gap": state.gap.value})


def _gpus(snapshot: Snapshot) -> Observations:
    counts = Counter("up" if state.gap is None else state.gap.value for state in snapshot.states)
    for state, count in sorted((counts | {"up": counts["up"]}).items()):
        yield Observation(count, {"state": state})


def _missing(snapshot: Snapshot, wanted_ids: AbstractSet[int]) -> Observations:
    counts: Counter[tuple[str, str, str]] = Counter()
    for gap in snapshot.missing:
        if gap.field.id not in wanted_ids:
            continue  # read for another purpose
        counts[str(gap.device.index), gap.device.gpu_uuid, gap.gap.value] += 1
    for state in snapshot.states:
        if state.gap is not None:
            counts[str(state.device.index), state.device.gpu_uuid, state.gap.value] += len(wanted_ids)
    for (gpu, uuid, reason), count in counts.items():
        yield Observation(count, {"gpu": gpu, "UUID": uuid, "gap": reason})


def _resident_memory(_: CallbackOptions) -> Observations:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return  # no /proc: the value is absent
    yield Observation(pages * resource.getpagesize())


def _open_files(_: CallbackOptions) -> Observations:
    try:
        yield Observation(len(os.listdir("/proc/self/fd")))  # noqa: PTH208 - a count is wanted, not paths
    except OSError:
        return


def _max_files(_: CallbackOptions) -> Observations:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft not in (resource.RLIM_INFINITY, -1, sys.maxsize):
        yield Observation(soft)
