"""The way to the driver: source, ledger and sampler as the settings want them, built once and changed from then on.

Rule 1: what has a memory or may be stuck in the driver outlives the settings: source, sampler, the counts in them, and
        the ledger while the same owners are told apart. So nothing that counts goes back, no thread is started beside
        one that hangs, and a lost GPU is not forgotten.
Rule 2: building changes nothing; `take_over` does, in the sampler's own thread between two sweeps.
"""

from collections.abc import Callable, Iterable

from otelgpu.config import Config
from otelgpu.events import Told
from otelgpu.fields import Field
from otelgpu.model import Enter, Snapshot
from otelgpu.sampler import Sampler
from otelgpu.sources import Source
from otelgpu.sources.choice import Choice, check_source, ledger_for, make_source, rewanted
from otelgpu.terms import Pace, Terms
from otelgpu.views import View


class Asking:
    """Asks the driver on behalf of *config*. Goes on with the source and the sampler of *before*, from `take_over` on.

    *read* completes the fields that the ledger needs to all that are read. *told* hears of XIDs, *seen* of sweeps. What
    *tap* makes of the source is asked instead of it.
    """

    def __init__(
        self,
        config: Config,
        read: Callable[[Iterable[Field]], list[Field]],
        *,
        told: Told,
        seen: Callable[[Snapshot], None],
        before: "Asking | None" = None,
        tap: Callable[[Source], Source] = lambda source: source,
    ) -> None:
        self.config = config
        self._told = told
        self.enter, self.its_fields = _ledger(config, before)
        self._read = read(self.its_fields)
        self.source: Source
        self.readable: frozenset[int]
        check_source(config)
        if before is None:
            source, self.readable = make_source(config, self._read, told, isolate=config.sampling.isolate)
            self.source = tap(source)
        else:
            self.source, self.readable = before.source, before.readable
        choice = Choice(config)
        sampling = config.sampling.reuse, config.sampling.deadline, config.sampling.interval
        self._terms = Terms(
            pace=Pace(*sampling, expected=config.server.expected_gpus),
            chosen=choice,
            all_seen=choice.complain,
            view=View(config.devices, repeat=config.mig.parent_values == "repeat"),
            enter=self.enter,
            seen=seen,
        )
        self.sampler: Sampler = Sampler(self.source, self._read, **self._terms) if before is None else before.sampler

    @property
    def has_uses(self) -> bool:
        """Whether it is asked who uses the GPUs."""
        return self.enter is not None

    def take_over(self) -> None:
        """Ask for what these settings want, from now on; block until a sweep has been made of it, or is overdue."""
        change = rewanted(self.config, self._read, self._told)
        self.sampler.want(self._read, lambda: change(self.source), **self._terms)


def _ledger(config: Config, before: Asking | None) -> tuple[Enter | None, list[Field]]:
    """Go on with the ledger while it would be kept in the same way; else begin a new one."""
    if before is not None and _kept_by(config) == _kept_by(before.config):
        return before.enter, before.its_fields
    return ledger_for(config)


def _kept_by(config: Config) -> object:
    return config.processes, config.jobs.slurm, config.limits
