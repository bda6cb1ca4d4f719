"""The one place that builds the parts and connects them: start, serve, stop.

Rule 1: only here (and for embedding, in the instrumentor) is anything constructed; parts get what they need.
Rule 2: the main thread runs the loop and never calls the driver, so that signals are always heard.
Rule 3: after a signal everything ends within STOP seconds, if need be without the threads the driver holds.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from tornado.httpserver import HTTPServer

from otelgpu import __version__
from otelgpu.config import Config
from otelgpu.errors import ConfigError, StartError
from otelgpu.export.join import DcgmJoin, SemconvJoin
from otelgpu.export.page import Format, PageReader, PageSource
from otelgpu.fields import CATALOGUE, DEFAULT_FIELDS, Field, find
from otelgpu.instruments import Pinned, create_instruments
from otelgpu.itself import Tally, create_own_instruments
from otelgpu.model import Device, Snapshot
from otelgpu.sampler import Pace, Sampler
from otelgpu.server.application import Load, Site, application
from otelgpu.server.listen import bound, problem, shown
from otelgpu.server.pages import Pages
from otelgpu.sources import Source

logger = logging.getLogger(__name__)

STOP = 4.0  # seconds from the signal until the process is gone
DRAIN = 1.0  # of these, for requests under way
WINDOW = 0.15  # seconds between the two sweeps of a look: a little more than the shortest window of a rate
NO_HOSTNAME = "none"
NAMED = 10  # field names in one warning


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the GPUs: the snapshot and the page it gives."""

    snapshot: Snapshot
    page: bytes


class Pipeline:
    """Source, sampler, instruments and reader, connected. Nothing runs before `start`."""

    def __init__(self, config: Config, environ: Mapping[str, str]) -> None:
        self.config = config
        self.wanted = wanted_fields(config)
        source, readable = make_source(config, self.wanted)
        self.fields = [field for field in self.wanted if field.id in readable]
        _warn_unreadable(config, self.wanted, readable)
        self.sampler = Sampler(
            source,
            self.fields,
            pace=Pace(config.sampling.reuse, config.sampling.deadline, config.sampling.interval),
            chosen=_chosen(config),
            repeat_parent=config.mig.parent_values == "repeat",
        )
        self.tally = Tally(sweeps=lambda: self.sampler.sweeps, dropped=lambda: self.sampler.dropped)
        pinned = Pinned()
        reader = _reader(config, self.fields, pinned, hostname_of(config, environ))
        self.reader: PageSource = reader
        resource = Resource({"service.name": "otelgpu", "service.version": __version__})
        self._provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("otelgpu", __version__)
        create_instruments(meter, self.fields, pinned)
        self.record_scrape = create_own_instruments(
            meter, version=__version__, wanted=self.fields, pinned=pinned, tally=self.tally
        )

    def is_fresh(self, snapshot: Snapshot) -> bool:
        """Whether the readings of *snapshot* may still be shown."""
        return time.monotonic() - snapshot.at <= self.config.sampling.expire_after

    def stop(self, timeout: float) -> bool:
        """End everything; False when the driver holds a thread."""
        is_clean = self.sampler.stop(timeout)
        self._provider.shutdown()
        return is_clean


def wanted_fields(config: Config) -> list[Field]:
    """Resolve the setting `fields` to catalogue rows, by id."""
    wanted: dict[int, Field] = {}
    for name in config.fields:
        if name == "default":
            wanted |= {field.id: field for field in DEFAULT_FIELDS}
        elif name == "all":
            wanted |= CATALOGUE
        elif name != "none":
            field = find(name)
            if field is None:
                raise ConfigError([f"{config.origin('fields')}: fields: {name}: no such field"])
            wanted[field.id] = field
    return [wanted[id_] for id_ in sorted(wanted)]


def make_source(config: Config, wanted: Iterable[Field]) -> tuple[Source, frozenset[int]]:
    """Build the source that the settings name; also say which fields it can read."""
    if config.source.kind == "simulated":
        from otelgpu.sources.simulated import SimulatedSource

        logger.warning("serving a simulated node (%s): no number here comes from a real GPU", config.source.spec)
        simulated = SimulatedSource(wanted, spec=config.source.spec, seed=config.simulated.seed)
        return simulated, simulated.readable
    from otelgpu.sources.nvml import NvmlSource

    return NvmlSource(wanted), NvmlSource.readable


def hostname_of(config: Config, environ: Mapping[str, str]) -> str:
    """Return the host name that is shown: the setting, else NODE_NAME, else the machine's own; "" for none."""
    if config.hostname == NO_HOSTNAME:
        return ""
    return config.hostname or environ.get("NODE_NAME", "") or socket.gethostname()


def look(config: Config, environ: Mapping[str, str] | None = None) -> Look:
    """Look at the GPUs once and let go of the driver. Rates and windows need two sweeps, which this makes."""
    pipeline = Pipeline(config, os.environ if environ is None else environ)
    pipeline.sampler.start()
    try:
        snapshot = pipeline.sampler.refresh()
        if snapshot is not None and snapshot.source_up:
            time.sleep(WINDOW)
            snapshot = pipeline.sampler.refresh(max_age=0)
        if snapshot is None:
            raise StartError(f"the driver did not answer within {config.sampling.deadline:g} s")
        return Look(snapshot, pipeline.reader.page(snapshot, Format.TEXT, shown=True))
    finally:
        pipeline.stop(STOP)


def serve(
    config: Config,
    *,
    announce: Callable[[str], None] = lambda _: None,
    environ: Mapping[str, str] | None = None,
) -> int:
    """Serve until a signal comes; return the exit code. *announce* is told each address once it is bound.

    Raise StartError or ConfigError when it cannot start. When the driver holds a thread at the end the process
    leaves from here, without returning: nothing else could end it.
    """
    service = Service(config, os.environ if environ is None else environ)
    code = asyncio.run(service.run(announce))
    if service.is_held:
        logger.warning("leaving while a driver call is still under way")
        logging.shutdown()
        os._exit(code)
    return code


class Service:
    """The pipeline with a server in front."""

    def __init__(self, config: Config, environ: Mapping[str, str]) -> None:
        self._config = config
        self._pipeline = Pipeline(config, environ)
        self._stop = asyncio.Event()
        self.is_held = False

    async def run(self, announce: Callable[[str], None]) -> int:
        """Bind, start the sampler, serve until stopped."""
        config, pipeline = self._config, self._pipeline
        sockets = _bind(config)
        executor = ThreadPoolExecutor(max_workers=4, thread_name_prefix="otelgpu-page")
        pages = Pages(
            pipeline.reader,
            refresh=pipeline.sampler.refresh,
            hasten=pipeline.sampler.hasten,
            is_fresh=pipeline.is_fresh,
            executor=executor,
        )
        site = Site(
            pages=pages,
            max_requests=config.server.max_requests,
            version=__version__,
            is_ready=pipeline.sampler.why_not_ready,
            is_alive=pipeline.sampler.why_not_alive,
            answered=self._answered,
            openmetrics_first=config.naming == "semconv",
        )
        server = HTTPServer(application(site), max_header_size=16 * 1024, max_body_size=64 * 1024, body_timeout=10.0)
        server.idle_connection_timeout = 300.0
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        pipeline.sampler.start()
        server.add_sockets(sockets)
        for sock in sockets:
            logger.info("listening on %s", shown(sock))
            announce(shown(sock))
        await self._stop.wait()
        logger.info("stopping")
        return await self._end(server, site.load, executor)

    def _answered(self, code: int, seconds: float) -> None:
        self._pipeline.tally.scrapes[code] += 1
        self._pipeline.record_scrape(seconds)

    async def _end(self, server: HTTPServer, load: Load, executor: ThreadPoolExecutor) -> int:
        """Let the requests under way finish, then end everything within STOP seconds."""
        until = time.monotonic() + STOP
        server.stop()
        drained = time.monotonic() + DRAIN
        while load.under_way and time.monotonic() < drained:
            await asyncio.sleep(0.01)
        is_clean = await asyncio.to_thread(self._pipeline.stop, until - time.monotonic())
        self.is_held = not is_clean
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.close_all_connections(), max(until - time.monotonic(), 0.1))
        executor.shutdown(wait=False, cancel_futures=True)
        return 0


def _bind(config: Config) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    problems: list[str] = []
    for place, address in enumerate(config.server.listen):
        try:
            sockets.extend(bound(address))
        except OSError as error:
            problems.append(f"{config.origin('server.listen', place)}: {address}: {problem(error)}")
    if problems:
        for sock in sockets:
            sock.close()
        raise StartError("\n".join(problems))
    return sockets


def _chosen(config: Config) -> Callable[[Device], bool]:
    picks = config.devices
    return lambda device: any(
        pick.matches(index=device.index, uuid=device.uuid, pci_bus_id=device.pci_bus_id) for pick in picks
    )


def _reader(
    config: Config, fields: Iterable[Field], pinned: Pinned, hostname: str
) -> "PageReader | JoinedPrometheusReader":
    labels = tuple(config.labels.items())
    if config.naming == "semconv":
        from otelgpu.export.semconv import JoinedPrometheusReader  # here: the stock exporter costs memory

        return JoinedPrometheusReader(fields, SemconvJoin(labels), pinned)
    return PageReader(fields, DcgmJoin(config.compat, hostname, labels), pinned)


def _warn_unreadable(config: Config, wanted: Iterable[Field], readable: frozenset[int]) -> None:
    unreadable = [field.name for field in wanted if field.id not in readable]
    if not unreadable:
        return
    logger.warning(
        "%s: no source here can read %d of the fields asked for, they will be absent: %s%s",
        config.origin("fields"),
        len(unreadable),
        ", ".join(unreadable[:NAMED]),
        " ..." if len(unreadable) > NAMED else "",
    )
