"""`otelgpu record FILE`: this machine's answers, with the names masked, for a bug report.

Rule 1: the driver is asked as `serve` asks it, so that what is wrong there is wrong in the recording too.
Rule 2: a sweep is in the file as soon as it is over: a GPU that hangs, or a crash, costs what comes after.
Rule 3: a file that is there already is not touched.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from otelgpu import __version__
from otelgpu.config import Config
from otelgpu.config.owning import Kubernetes
from otelgpu.config.words import whole
from otelgpu.errors import StartError
from otelgpu.glance import WINDOW, unsent
from otelgpu.model import Snapshot
from otelgpu.pipeline import Pipeline
from otelgpu.server.running import STOP
from otelgpu.sources import Source
from otelgpu.sources.recorded.form import FORM, Head, line
from otelgpu.sources.recorded.mask import Mask
from otelgpu.sources.recorded.tap import Tap

ANY_AGE = 3600.0
NO_ANSWER = "the driver did not answer in time"


def record(
    config: Config,
    path: str,
    *,
    sweeps: int,
    environ: Mapping[str, str],
    seen: Callable[[int, Snapshot | None], None] = lambda _number, _snapshot: None,
) -> Snapshot | None:
    """Record so many *sweeps* to a new file at *path*; the last snapshot. None: the driver did not answer at all.

    Sweeps are `sampling.interval` apart, and never less than the shortest window of a rate. Without the setting
    `fields` all fields are asked for. *seen* is called after each sweep. A source that is down is recorded once. Raise
    StartError when the file cannot be written.
    """
    taps: list[Tap] = []

    def tapped(source: Source) -> Source:
        taps.append(Tap(source))
        return taps[0]

    if not path or not path.isprintable():
        raise StartError(f"{whole(path)}: not a file name")
    if path == "-":  # which means standard output to whoever types it
        raise StartError("-: a recording is a file; ./- is one of that name")
    pipeline = Pipeline(_settings(config), environ, tap=tapped)
    ours = {config.driver_root: "/driver-root", config.dcgm.address: "ENGINE", config.dcgm.library: "/libdcgm"}
    mask = Mask({name: shown for name, shown in ours.items() if name})
    snapshot: Snapshot | None = None
    try:
        with Path(path).open("xb") as file:
            pipeline.start()
            file.write(line(Head(FORM, __version__, tuple(field.name for field in pipeline.fields))))
            for number in range(1, sweeps + 1):
                began = time.monotonic()
                snapshot = pipeline.sampler.refresh(max_age=ANY_AGE if number == 1 else 0)
                reason = NO_ANSWER if snapshot is None else snapshot.source_reason
                file.write(line(mask.sweep(taps[0].taken(reason))))
                file.flush()
                seen(number, snapshot)
                if snapshot is None or not snapshot.source_up:
                    break
                if number < sweeps:
                    pause = (config.sampling.interval or WINDOW) - (time.monotonic() - began)
                    time.sleep(max(pause, WINDOW))
    except OSError as error:
        raise StartError(f"{whole(path)}: {(error.strerror or str(error)).lower()}") from None
    finally:
        pipeline.stop(STOP)
    return snapshot


def told(snapshot: Snapshot | None) -> str:
    """Say in a few words what a sweep gave."""
    if snapshot is None:
        return NO_ANSWER
    if not snapshot.source_up:
        return snapshot.source_reason
    up = sum(state.up for state in snapshot.states)
    readings = sum(map(len, (*snapshot.numbers.values(), *snapshot.labels.values())))
    return f"{up} of {len(snapshot.states)} GPUs answer: {readings} readings, {len(snapshot.missing)} missing"


def _settings(config: Config) -> Config:
    """Ask at our own pace, nobody but the driver (and /proc, where processes are wanted), and send nothing anywhere."""
    fields = config.fields if "fields" in config.origins else ("all",)
    sampling = replace(config.sampling, interval=None)
    return replace(unsent(config), fields=fields, sampling=sampling, kubernetes=Kubernetes())
