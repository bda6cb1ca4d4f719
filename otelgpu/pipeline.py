"""The one place that builds the parts and connects them.

Rule 1: only here (and for embedding, in the instrumentor) is anything constructed; parts get what they need.
"""

import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource

from otelgpu import __version__
from otelgpu.asking import Asking
from otelgpu.attribution.choice import AnyAttribution, asked_for_owners, attribution_of, create_attribution_instruments
from otelgpu.config import Config
from otelgpu.export.join import SemconvJoin
from otelgpu.export.outlet import EventOutlet, NoEvents, Outlet, WayOut
from otelgpu.export.page import Format
from otelgpu.export.resource import full_resource, plain_resource
from otelgpu.export.setup import page_reader
from otelgpu.export.status import also_read, create_status_instrument
from otelgpu.fields import CATALOGUE, Field
from otelgpu.health import also_read as health_reads
from otelgpu.instruments import Pinned, create_instruments
from otelgpu.itself import Tally, create_own_instruments, create_settings_instruments
from otelgpu.model import NOBODY, Snapshot
from otelgpu.reload import LastReload, create_reload_instruments
from otelgpu.server.application import Site
from otelgpu.server.driver import Holding
from otelgpu.server.pages import Pages
from otelgpu.server.running import STOP
from otelgpu.sources import Source
from otelgpu.sources.choice import tells_xids, wanted_fields, warn_unreadable
from otelgpu.worker import why_no_thread

if TYPE_CHECKING:
    from otelgpu.server.guard import Guard

logger = logging.getLogger(__name__)

PAGE_THREADS = 4
LEAST_STOP = 0.2  # seconds that the search for owners has to end even when the driver took all the time
NO_HOSTNAME = "none"
PUSH_SHARE = 0.6  # of the time there is to stop, for delivering what is left


class Pipeline:
    """Source, sampler, instruments and reader, connected. Nothing runs before `start`.

    With *before* it is to take over from that one, with other settings: what that one has going or knows is gone on
    with, so that nothing is lost and no total goes back. Then `take_over` stands before `start`. What *tap* makes of
    the source is asked instead of it.
    """

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        *,
        before: "Pipeline | None" = None,
        reloads: LastReload | None = None,
        tap: Callable[[Source], Source] = lambda source: source,
    ) -> None:
        self.config = config
        self._before = before
        self.guard: Guard | None = before.guard if before else _guard(config)
        self.wanted = wanted_fields(config)
        self._shows_status = config.naming == "semconv" or config.pushes
        is_same = before is not None and asked_for_owners(config) == asked_for_owners(before.config)
        self.attribution: AnyAttribution = before.attribution if before and is_same else attribution_of(config, environ)
        is_full = config.pushes or config.sends_events
        resource = full_resource(environ, hostname_of(config, environ)) if is_full else plain_resource(environ)
        self.events = self._events(resource)
        self.asking: Asking = Asking(
            config,
            self._read,
            told=self.events.told,
            seen=self.events.seen,
            before=None if before is None else before.asking,
            tap=tap,
        )
        self.sampler = self.asking.sampler
        self.fields = [field for field in self.wanted if field.id in self.asking.readable]
        warn_unreadable(config, self.wanted, self.asking.readable)
        if config.disabled:
            logger.warning("OTEL_SDK_DISABLED is true: /metrics holds no metrics, and nothing is pushed")
        sampler = self.sampler
        self.tally: Tally = before.tally if before else Tally(lambda: sampler.sweeps, lambda: sampler.dropped)
        pinned = Pinned()
        readers, self.reader = page_reader(config, self.fields, pinned, hostname_of(config, environ))
        self.pushes = self._pushes(pinned)
        readers += [push.reader for push in self.pushes]
        self._provider = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        create_instruments(meter := self._provider.get_meter("otelgpu", __version__), self.fields, pinned)
        self.record_scrape = create_own_instruments(
            meter, version=__version__, wanted=self.fields, pinned=pinned, tally=self.tally, uses=self.asking.has_uses
        )
        create_settings_instruments(meter, config)
        create_reload_instruments(meter, reloads)
        if self.guard is not None:
            self.guard.create_instruments(meter)
        create_attribution_instruments(meter, self.attribution)
        if self.pushes:
            self.pushes[0].create_instruments(meter)
        self.events.create_instruments(meter)
        if self._shows_status:
            create_status_instrument(meter, SemconvJoin(tuple(config.labels.items())), pinned)
        self.described: WayOut | None = before.described if before else self._description()

    def _read(self, others: Iterable[Field]) -> list[Field]:
        """List the wanted fields, and behind them what is read for hw.status, for events and for *others* alone."""
        more = also_read(self.wanted) if self._shows_status or self.config.description else []
        read = {field.id: field for field in (*self.wanted, *more, *health_reads(self.wanted), *others)}
        return [*read.values(), *(CATALOGUE[id_] for id_ in sorted(self.events.fields - read.keys()))]

    def _events(self, resource: Resource) -> EventOutlet:
        """Build what sends log events, where somebody hears of them."""
        if not self.config.sends_events:
            return NoEvents()
        from otelgpu.export.push.events import events  # here: as for pushes

        return events(
            self.config,
            resource=resource,
            owners=self.attribution.owners,
            look=lambda: self.sampler.look(),  # noqa: PLW0108 - built after who calls it
            codes=not tells_xids(self.config),
            before=self._before.events if self._before else None,
        )

    def _description(self) -> WayOut | None:
        """Build the provider that OTEL_CONFIG_FILE describes, where there is one."""
        if not self.config.description:
            return None
        from otelgpu.embed.described import Described  # here: the SDK's configuration costs memory

        return Described(self.config.description, self.fields, self.sampler, self.is_fresh)

    def _pushes(self, pinned: Pinned) -> Sequence[Outlet]:
        """Build what pushes: nothing, or one way out, hardly ever more."""
        if not self.config.pushes:
            return ()
        from otelgpu.export.push.setup import pushes  # here: protobuf and the transports cost memory

        # Readings as old as the pace itself would be sent every other time only.
        age = min(self.config.sampling.reuse, self.config.otlp.interval / 2)
        refresh = partial(self.sampler.refresh, max_age=age)
        return pushes(
            self.config,
            self.fields,
            pinned,
            refresh=refresh,
            is_fresh=self.is_fresh,
            owners=self.attribution.owners,
            before=self._before.pushes if self._before else (),
        )

    def is_fresh(self, snapshot: Snapshot) -> bool:
        """Whether the readings of *snapshot* may still be shown."""
        return time.monotonic() - snapshot.at <= self.config.sampling.expire_after

    def site(self, executor: Executor) -> Site:
        """Give the server what it needs of this pipeline; pages are made in *executor*."""
        pages = Pages(
            self.reader,
            refresh=self.sampler.refresh,
            is_fresh=self.is_fresh,
            executor=executor,
            owners=self.attribution.owners,
        )
        return Site(
            pages=pages,
            max_requests=self.config.server.max_requests,
            version=__version__,
            is_ready=self.sampler.why_not_ready,
            is_alive=lambda: self.sampler.why_not_alive() or why_no_thread(),
            answered=self._answered,
            openmetrics_first=self.config.naming == "semconv",
            driver=Holding(self.sampler.release, self.sampler.resume, executor),
            gate=self.guard,
        )

    def _answered(self, code: int, seconds: float) -> None:
        self.tally.scrapes[code] += 1
        self.record_scrape(seconds)

    def obstacle(self) -> str | None:
        """Say why there is nothing to serve, after the first sweep. `auto` waits for a driver, `nvml` wants it now."""
        config = self.config
        if config.source.kind != "nvml":
            return None
        snapshot = self.sampler.refresh()
        if snapshot is not None and snapshot.source_up:
            return None
        reason = f"no answer within {config.sampling.deadline:g} s" if snapshot is None else snapshot.source_reason
        return f"{config.origin('source')}: {config.source}: {reason}"

    def start(self) -> None:
        """Begin to ask the driver, and who uses the GPUs, and to push where that is wanted."""
        self.attribution.start()
        self.sampler.start()
        for way_out in self.ways_out():
            way_out.start()

    def take_over(self) -> None:
        """Have the driver asked for what is wanted here; block until there is a page to serve, or nearly so."""
        if self._before is not None and self.attribution is not self._before.attribution:
            self.attribution.start()
            self.attribution.looked(self.config.sampling.deadline)
        self.asking.take_over()

    def go_on(self) -> None:
        """Push from now on in the place of the one before, and end what of that one is not gone on with."""
        before, self._before = self._before, None
        if before is None:
            return
        followed = [self.described, self.events.follows, *(push.follows for push in self.pushes)]
        for way_out in (*self.pushes, self.events):
            way_out.start()
        for way_out in before.ways_out():
            if way_out not in followed:
                way_out.stop(STOP)
        if before.attribution is not self.attribution:
            before.attribution.stop(LEAST_STOP)

    def page(self, snapshot: Snapshot | None, form: Format, *, shown: bool) -> bytes:
        """Write one page of a snapshot as it is now owned."""
        owners = NOBODY if snapshot is None else self.attribution.owners(snapshot)
        return self.reader.page(snapshot, form, shown=shown, owners=owners)

    def ways_out(self) -> Iterable[WayOut]:
        """List whatever sends on its own."""
        described = () if self.described is None else (self.described,)
        return (*self.pushes, *described, self.events)  # events last: they hear of the last sweep too

    def stop(self, timeout: float) -> bool:
        """End everything, and push what can be pushed before; False when the driver holds a thread."""
        until = time.monotonic() + timeout
        for way_out in self.ways_out():
            way_out.stop((until - time.monotonic()) * PUSH_SHARE)
        is_clean = self.sampler.stop(until - time.monotonic())
        self.attribution.stop(max(until - time.monotonic(), LEAST_STOP))  # its threads never keep the process
        self._provider.shutdown()
        return is_clean


def _guard(config: Config) -> "Guard | None":
    """Build what guards the pages, where a web configuration file asks for it. Raise ConfigError."""
    if not (path := config.server.web_config):
        return None
    from otelgpu.server.guard import Guard  # here: TLS and bcrypt are needed for this alone

    return Guard(path, origin=config.origin("server.web_config"))


def hostname_of(config: Config, environ: Mapping[str, str]) -> str:
    """Return the host name that is shown: the setting, else NODE_NAME, else the machine's own; "" for none."""
    if config.hostname == NO_HOSTNAME:
        return ""
    return config.hostname or environ.get("NODE_NAME", "") or socket.gethostname()
