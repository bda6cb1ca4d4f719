"""One look at the GPUs, for the commands that print something and end.

Rule 1: it is the pipeline of the service that looks, without what pushes; the driver is let go of at once.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from otelgpu.config import Config, Otlp
from otelgpu.errors import LateError
from otelgpu.export.page import Format
from otelgpu.model import Snapshot
from otelgpu.pipeline import Pipeline
from otelgpu.server.running import STOP

WINDOW = 0.15  # seconds between the two sweeps of a look: a little more than the shortest window of a rate


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the GPUs: the snapshot and the page it gives."""

    snapshot: Snapshot
    page: bytes


def unsent(config: Config) -> Config:
    """Leave out what pushes and what guards the page: nobody but who looks gets anything to see."""
    quiet = {"otlp": Otlp(), "logs": None, "exporters": (), "log_exporters": (), "disabled": False, "description": ""}
    return replace(config, server=replace(config.server, web_config=""), **quiet)


def look(config: Config, environ: Mapping[str, str] | None = None) -> Look:
    """Look at the GPUs once and let go of the driver. Rates and windows need two sweeps, which this makes."""
    pipeline = Pipeline(unsent(config), os.environ if environ is None else environ)
    pipeline.start()
    try:
        pipeline.attribution.looked(config.sampling.deadline)
        snapshot = pipeline.sampler.refresh()
        if snapshot is not None and snapshot.source_up:
            time.sleep(WINDOW)
            snapshot = pipeline.sampler.refresh(max_age=0)
        if snapshot is None:
            raise LateError(f"the driver did not answer within {config.sampling.deadline:g} s")
        return Look(snapshot, pipeline.page(snapshot, Format.TEXT, shown=True))
    finally:
        pipeline.stop(STOP)
