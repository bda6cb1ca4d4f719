"""Who is asked for the owners of GPUs, if anybody is.

Rule 1: where nobody is asked nothing of it is imported: it costs more than half a megabyte.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from opentelemetry.metrics import Meter

from otelgpu.config import Config
from otelgpu.model import NOBODY, Owners, Snapshot

if TYPE_CHECKING:
    from otelgpu.attribution.owners import Attribution


class NoAttribution:
    """Knows no owners. What can be asked of an Attribution can be asked of it."""

    pods: None = None
    jobs: None = None
    metas: None = None
    slices: None = None

    def owners(self, _: Snapshot) -> Owners:
        """Say that nobody is known."""
        return NOBODY

    def start(self) -> None:
        """Start nothing."""

    def looked(self, _: float) -> bool:
        """Say that there is nothing to wait for."""
        return True

    def stop(self, _: float) -> bool:
        """End nothing."""
        return True


AnyAttribution: TypeAlias = "Attribution | NoAttribution"


def asked_for_owners(config: Config) -> object:
    """Give what of the settings decides who is asked, and how."""
    return config.kubernetes, config.jobs, config.processes.by != "off"


def attribution_of(config: Config, environ: Mapping[str, str]) -> "Attribution | NoAttribution":
    """Build what the settings ask for; nothing runs before `start`."""
    if not (config.kubernetes.enabled or config.jobs.dir is not None or config.jobs.slurm):
        return NoAttribution()
    from otelgpu.attribution.setup import attribution_for

    return attribution_for(config, environ)


def create_attribution_instruments(meter: Meter, attribution: "Attribution | NoAttribution") -> None:
    """Register on *meter* what is told of whoever is asked."""
    if isinstance(attribution, NoAttribution):
        return
    from otelgpu.attribution.itself import create_attribution_instruments

    create_attribution_instruments(meter, attribution)
