"""From the settings to the DCGM source.

Rule 1: only here is anything of the settings known in this package.
"""

import logging
from collections.abc import Sequence

from otelgpu.config import Config
from otelgpu.counts import Counting
from otelgpu.errors import SourceDownError, StartError
from otelgpu.events import Told
from otelgpu.fields import Field
from otelgpu.sources.dcgm.library import Library
from otelgpu.sources.dcgm.source import DcgmSource, Paces

logger = logging.getLogger(__name__)

INTERVAL = 1.0  # seconds
ALIVE = 3  # paces without a new value before it is too old, where `sampling.expire` does not say


def engine_source(config: Config, wanted: Sequence[Field], told: Told, counting: Counting) -> DcgmSource | None:
    """Build the source; None where NVML is to be asked instead (`source: auto`), because there is no libdcgm.

    Raise StartError where there is none and DCGM alone was asked for.
    """
    try:
        library = Library(config.dcgm.library, config.driver_root)
    except SourceDownError as error:
        if config.source.kind == "dcgm":
            raise StartError(f"{config.origin('source')}: source: dcgm: {error}") from error
        where = config.origin("dcgm.address")
        logger.warning("%s: no host engine is asked, but the driver of this machine: %s", where, error)
        return None
    return DcgmSource(
        library,
        wanted,
        told,
        address=config.dcgm.address,
        paces=paces_of(config),
        patience=config.sampling.deadline / 4,  # who waits hears the reason then
        counting=counting,
    )


def paces_of(config: Config) -> Paces:
    """Say when the engine samples, and how old what it has may be."""
    sampling = config.sampling
    interval = config.dcgm.interval or sampling.interval or INTERVAL
    usual = max(sampling.expire_after, ALIVE * interval)
    return Paces(interval, usual if sampling.expire is None else sampling.expire)
