"""From the settings to what is asked: the fields, the GPUs, and the source that reads them.

Rule 1: only whoever builds things calls this: the service, and what embeds otelgpu in another process.
Rule 2: the module of a source is imported when that source is asked for, and not before.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from otelgpu.config import Config
from otelgpu.config.values import is_file
from otelgpu.counts import Counting
from otelgpu.errors import ConfigError
from otelgpu.events import Told, unheard
from otelgpu.fields import CATALOGUE, DEFAULT_FIELDS, GROUPS, Field, find
from otelgpu.model import Device, Enter
from otelgpu.sources import Source

if TYPE_CHECKING:
    from otelgpu.sources.nvml.order import Order

logger = logging.getLogger(__name__)

FB_TOTAL = 250
NAMED = 10  # field names in one warning


def wanted_fields(config: Config) -> list[Field]:
    """Resolve the setting `fields` to catalogue rows, by id."""
    wanted: dict[int, Field] = {}
    for name in config.fields:
        if name == "default":
            wanted |= {field.id: field for field in DEFAULT_FIELDS}
            if "4.9" in config.compat:
                wanted |= {FB_TOTAL: CATALOGUE[FB_TOTAL]}  # dcgm-exporter switches it on from 4.9
        elif name == "all":
            wanted |= CATALOGUE
        elif name in GROUPS:
            wanted |= {field.id: field for field in GROUPS[name]}
        elif name != "none" and not is_file(name):
            field = find(name)
            if field is None:
                raise ConfigError([f"{config.origin('fields')}: fields: {name}: no such field"])
            wanted[field.id] = field
    wanted |= {row.field: field for row in config.counters if (field := find(row.spelling)) is not None}
    return [wanted[id_] for id_ in sorted(wanted)]


def make_source(
    config: Config, wanted: Sequence[Field], told: Told = unheard, *, isolate: bool = False
) -> tuple[Source, frozenset[int]]:
    """Build the source that the settings name; also say which fields it can read.

    *told* hears of each XID at once, if the source hears of them itself (`tells_xids`). With *isolate* the driver is
    asked in another process. Raise ConfigError, and StartError where DCGM is asked for and cannot be loaded.
    """
    if config.dcgm.address and not _wants_dcgm(config):
        where = config.origin("dcgm.address")
        logger.warning("%s: dcgm.address is passed over, as `source` is %s", where, config.source.kind)
    if config.source.kind == "simulated":
        if isolate:
            where = config.origin("sampling.isolate")
            raise ConfigError([f"{where}: sampling.isolate: a simulated node has no driver; leave it off there"])
        from otelgpu.sources.simulated import SimulatedSource

        logger.warning("serving a simulated node (%s): no number here comes from a real GPU", config.source.spec)
        simulated = SimulatedSource(
            wanted, spec=config.source.spec, seed=config.simulated.seed, counting=counting_of(config)
        )
        return simulated, simulated.readable
    if config.source.kind == "replay":
        return _replayed(config, wanted)
    if _wants_dcgm(config):
        from otelgpu.sources.dcgm.setup import engine_source

        engine = engine_source(config, wanted, told, counting_of(config))
        if engine is not None:
            return engine, engine.readable
    from otelgpu.sources.nvml import NvmlSource
    from otelgpu.sources.nvml.order import source_for

    if not isolate:
        return source_for(_order(config, wanted), told, wanted), NvmlSource.readable
    from otelgpu.sources.isolated import IsolatedSource

    return IsolatedSource(_order(config, wanted), told), NvmlSource.readable


def rewanted(config: Config, wanted: Sequence[Field], told: Told) -> Callable[[Source], None]:
    """Prepare to have the source of the same kind ask what other settings name; what is returned is called for that."""
    if config.source.kind == "simulated":
        from otelgpu.sources.simulated import SimulatedSource

        def of_simulated(source: Source) -> None:
            if isinstance(source, SimulatedSource):
                source.want(wanted, counting_of(config))

        return of_simulated
    if config.source.kind == "replay":
        from otelgpu.sources.recorded.replay import ReplaySource

        def of_replay(source: Source) -> None:
            if isinstance(source, ReplaySource):
                source.want(wanted)

        return of_replay
    if _wants_dcgm(config):
        from otelgpu.sources.dcgm import DcgmSource
        from otelgpu.sources.dcgm.setup import paces_of

        def of_engine(source: Source) -> None:
            if isinstance(source, DcgmSource):
                source.want(wanted, told, paces=paces_of(config), counting=counting_of(config))
            else:
                _of_driver(config, wanted, told)(source)

        return of_engine
    return _of_driver(config, wanted, told)


def _of_driver(config: Config, wanted: Sequence[Field], told: Told) -> Callable[[Source], None]:
    from otelgpu.sources.nvml import NvmlSource
    from otelgpu.sources.nvml.order import go_over

    order = _order(config, wanted)

    def of_nvml(source: Source) -> None:
        if isinstance(source, NvmlSource):
            go_over(source, order, told, wanted)
            return
        from otelgpu.sources.isolated import IsolatedSource

        if isinstance(source, IsolatedSource):
            source.want(order, told)

    return of_nvml


def check_source(config: Config) -> None:
    """Raise ConfigError where something is asked of a simulated node, or of DCGM, that it does not have."""
    problems: list[str] = []
    if config.source.kind == "simulated":
        problems += _no_processes(config, "a simulated node has no processes; leave it off there")
    if _wants_dcgm(config):
        problems += _no_processes(
            config, "DCGM is asked, and NVML alone tells of processes; leave it off, or `dcgm` out"
        )
        if config.sampling.isolate:
            where = config.origin("sampling.isolate")
            instead = "run an nv-hostengine, which is a process of its own, and leave it off"
            problems.append(f"{where}: sampling.isolate: DCGM is asked from this process; {instead}")
    if problems:
        raise ConfigError(problems)


def _wants_dcgm(config: Config) -> bool:
    """Whether DCGM is asked, where its library is there."""
    return config.source.kind == "dcgm" or (config.source.kind == "auto" and bool(config.dcgm.address))


def _order(config: Config, wanted: Iterable[Field]) -> "Order":
    """Say what the settings want of NVML."""
    from otelgpu.sources.nvml.order import Order

    processes, jobs = config.processes, config.jobs
    telling = (processes.by, processes.names, processes.users, jobs.slurm, jobs.slurm_user)
    return Order(
        fields=tuple(field.id for field in wanted),
        telling=telling if _wants_processes(config) else None,
        proc_root=processes.proc_root,
        slow_interval=config.sampling.slow_interval,
        counting=counting_of(config),
        sys_root=None if config.suspended.wake else config.suspended.sys_root,
        driver_root=config.driver_root,
    )


def _replayed(config: Config, wanted: Iterable[Field]) -> tuple[Source, frozenset[int]]:
    """Build the source that answers as a recording does."""
    from otelgpu.sources.recorded.form import RecordingError
    from otelgpu.sources.recorded.replay import ReplaySource

    logger.warning("replaying %s: no number here comes from a GPU of this machine", config.source.spec)
    try:
        replayed = ReplaySource(wanted, config.source.spec)
    except RecordingError as error:
        place = f"{config.origin('source')}: source"
        raise ConfigError([f"{place}: {problem}" for problem in error.problems]) from None
    why = "the recording holds no processes; record it with this setting, or leave it off"
    if not replayed.has_processes and (problems := _no_processes(config, why)):
        raise ConfigError(problems)
    return replayed, replayed.readable


def _no_processes(config: Config, why: str) -> list[str]:
    """Say of each setting that wants processes why there are none."""
    wants = {"processes.by": config.processes.by != "off", "jobs.slurm": config.jobs.slurm}
    return [f"{config.origin(key)}: {key}: {why}" for key, is_wanted in wants.items() if is_wanted]


def _wants_processes(config: Config) -> bool:
    """Whether anybody wants to know which processes are on the GPUs."""
    return config.processes.by != "off" or config.jobs.slurm


def ledger_for(config: Config) -> tuple[Enter | None, list[Field]]:
    """Build what enters who uses what, and say which fields it needs; None where nobody wants to know."""
    if not _wants_processes(config):
        return None, []
    from otelgpu.ledger import ENERGY, Ledger

    shows = config.processes.by != "off"
    ledger = Ledger(per_gpu=config.limits.owners_per_gpu, in_all=config.limits.owners, shares_energy=shows)
    return ledger.entered, [CATALOGUE[ENERGY]] if shows else []


def counting_of(config: Config) -> Counting:
    """Say how what happens between two sweeps is counted."""
    return Counting(config.counts.xid_window, config.counts.clock_window, config.counts.clock_interval)


def tells_xids(config: Config) -> bool:
    """Whether the source tells of XIDs by itself; else only the last code of each sweep is known."""
    return config.source.kind in ("auto", "nvml", "dcgm")


class Choice:
    """Says whether the setting `devices` picks a GPU, and which of its entries have picked none."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._idle = set(config.devices)

    def __call__(self, device: Device) -> bool:
        """Whether a GPU is looked at."""
        matching = [
            pick
            for pick in self._config.devices
            if pick.matches(index=device.index, uuid=device.uuid, pci_bus_id=device.pci_bus_id)
        ]
        self._idle.difference_update(matching)
        return bool(matching)

    def complain(self) -> None:
        """Log each entry that no GPU matches; called when all have been seen once."""
        for place, pick in enumerate(self._config.devices):
            if pick in self._idle:
                logger.error("%s: devices: no GPU here matches %s", self._config.origin("devices", place), pick)


def warn_unreadable(config: Config, wanted: Iterable[Field], readable: frozenset[int]) -> None:
    """Log once which of the wanted fields no source here can read. Whoever wants `all` wants what there is."""
    unreadable = [field.name for field in wanted if field.id not in readable]
    if not unreadable or config.fields == ("all",):
        return
    logger.warning(
        "%s: no source here can read %d of the fields asked for, they will be absent: %s%s",
        config.origin("fields"),
        len(unreadable),
        ", ".join(unreadable[:NAMED]),
        " ..." if len(unreadable) > NAMED else "",
    )
