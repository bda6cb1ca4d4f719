"""Everything of OTLP push, put together from the settings.

Rule 1: imported only when something is pushed: protobuf and the transports cost memory.
Rule 2: what can be known to be wrong at the start (a file that is not there) is told then.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import urlsplit

from opentelemetry.metrics import Meter

from otelgpu.config import Config
from otelgpu.config.words import plain
from otelgpu.errors import ConfigError
from otelgpu.export.join import SemconvJoin
from otelgpu.export.outlet import WayOut
from otelgpu.export.push import tls
from otelgpu.export.push.buffer import Buffer
from otelgpu.export.push.encode import Encoder
from otelgpu.export.push.outcome import CONSOLE, Sender
from otelgpu.export.push.own import Totals
from otelgpu.export.push.pusher import Pusher
from otelgpu.export.push.reader import PushReader
from otelgpu.export.push.signals import LOGS, METRICS, Signal
from otelgpu.export.push.tell import create_push_instruments
from otelgpu.fields import Field
from otelgpu.instruments import Pinned
from otelgpu.model import NOBODY, Owners, Snapshot

GRPC_PORT = 4317
LAST_COLLECTION = 5.0  # seconds for a reader to end that is followed by another one
_GRPC_HEADER = re.compile(r"[a-z0-9_.-]+(?<!-bin)")


class Push:
    """One way out: a reader to register with the provider, a buffer, and a thread that sends.

    With *before* it goes on, from its start, with the buffer and the thread of that one, whose reader ends then;
    `follows` is that one until then.
    """

    def __init__(
        self,
        config: Config,
        fields: Iterable[Field],
        pinned: Pinned,
        *,
        sender: Sender,
        refresh: Callable[[float | None], Snapshot | None],
        is_fresh: Callable[[Snapshot], bool],
        owners: Callable[[Snapshot], Owners] = lambda _: NOBODY,
        before: "Push | None" = None,
    ) -> None:
        otlp = config.otlp
        self.follows = before
        self.is_console = sender.place == CONSOLE
        self._sender = sender
        is_delta = otlp.temporality != "cumulative"
        # `lowmemory` keeps observable counters as totals, and all of our fields are observable.
        join = SemconvJoin(tuple(config.labels.items()))
        self._limits = otlp.buffer_bytes, otlp.buffer_seconds
        is_all_delta = otlp.temporality == "delta"
        totals: Totals | None = None if before is None else before.encoder.totals
        if totals is not None and totals.delta != is_all_delta:
            totals = None
        self.encoder: Encoder = Encoder(fields, join, delta=is_all_delta, totals=totals)
        if before is None:
            self.buffer = Buffer(most_bytes=otlp.buffer_bytes, most_seconds=otlp.buffer_seconds)
            self.pusher = Pusher(self.buffer, sender)
        else:
            self.buffer, self.pusher = before.buffer, before.pusher
        self.reader = PushReader(
            self.encoder,
            pinned,
            refresh=refresh,
            is_fresh=is_fresh,
            deliver=self.buffer.put,
            interval=otlp.interval,
            owners=owners,
            delta=is_delta,
            exponential=otlp.histograms == "base2_exponential_bucket_histogram",
        )

    def create_instruments(self, meter: Meter) -> None:
        """Register what this says about itself."""
        create_push_instruments(meter, reader=self.reader, encoder=self.encoder, buffer=self.buffer, pusher=self.pusher)

    def start(self) -> None:
        """Begin to collect and to send, or go on with it: what the one before has not sent yet is sent first."""
        before, self.follows = self.follows, None
        if before is None:
            self.pusher.start()
        else:
            self.reader.follow(before.reader, LAST_COLLECTION)
            self.encoder.dropped = before.encoder.dropped
            self.buffer.limit(most_bytes=self._limits[0], most_seconds=self._limits[1])
            if not self.is_console:  # which may be in the middle of a line
                self.pusher.turn_to(self._sender)
        self.reader.start()

    def stop(self, timeout: float) -> bool:
        """Collect once more, send what can be sent, end within *timeout* seconds; False when a thread is held."""
        until = time.monotonic() + timeout
        self.reader.stop(timeout / 2)
        return self.pusher.stop(until - time.monotonic())


def pushes(
    config: Config,
    fields: Iterable[Field],
    pinned: Pinned,
    *,
    refresh: Callable[[float | None], Snapshot | None],
    is_fresh: Callable[[Snapshot], bool],
    owners: Callable[[Snapshot], Owners] = lambda _: NOBODY,
    before: Iterable[WayOut] = (),
) -> list[Push]:
    """Build every way out that the settings name; see `make_sender` for what raises.

    Each goes on with the one of *before* that was for the same: a collector, or the console.
    """
    known = {push.is_console: push for push in before if isinstance(push, Push)}
    senders: list[Sender] = []
    if config.otlp.endpoint:
        senders.append(make_sender(config))
    if "console" in config.exporters:
        from otelgpu.export.push.send_console import ConsoleSender

        senders.append(ConsoleSender())
    return [
        Push(
            config,
            fields,
            pinned,
            sender=sender,
            refresh=refresh,
            is_fresh=is_fresh,
            owners=owners,
            before=known.get(sender.place == CONSOLE),
        )
        for sender in senders
    ]


def make_sender(config: Config, signal: Signal = METRICS) -> Sender:
    """Build the sender that the settings name. Raise ConfigError when a file it needs cannot be read."""
    otlp = signal.otlp(config)
    url = urlsplit(otlp.endpoint)
    problems = list(tls.problems(otlp, lambda name: signal.origin(config, name), is_used=url.scheme == "https"))
    if is_grpc(config, signal):
        problems += _of_grpc(config, signal)
    if problems:
        raise ConfigError(problems)
    if is_grpc(config, signal):
        from otelgpu.export.push.send_grpc import GrpcSender, credentials

        channel = None
        if url.scheme == "https":
            certificate = otlp.client_certificate
            key = otlp.client_key or certificate  # one file may hold both
            channel = credentials(authorities=otlp.certificate, certificate=certificate, key=key)
        return GrpcSender(
            url.netloc,
            headers=otlp.headers,
            timeout=otlp.timeout,
            compression=otlp.compression,
            method=signal.method,
            tls=channel,
        )
    from otelgpu.export.push.send_http import HttpSender

    client = (otlp.client_certificate, otlp.client_key) if otlp.client_key else otlp.client_certificate or None
    return HttpSender(
        url_of(config, signal),
        headers=otlp.headers,
        timeout=otlp.timeout,
        compression=otlp.compression,
        verify=otlp.certificate or True,
        client=client,
    )


def is_grpc(config: Config, signal: Signal = METRICS) -> bool:
    """Whether gRPC is meant."""
    otlp = signal.otlp(config)
    return otlp.protocol == "grpc" or (otlp.protocol == "auto" and _port(otlp.endpoint) == GRPC_PORT)


def _of_grpc(config: Config, signal: Signal) -> Iterator[str]:
    """Say what gRPC cannot do of what HTTP can."""
    otlp = signal.otlp(config)
    url = urlsplit(otlp.endpoint)
    if "@" in url.netloc:
        yield f"{signal.origin(config, 'endpoint')}: gRPC takes no user name in an address; say it in a header"
    for name in otlp.headers:
        if not _GRPC_HEADER.fullmatch(name.lower()):
            rule = "for gRPC a header name is letters, digits, _, - and ., and does not end with -bin"
            yield f"{signal.origin(config, 'headers')}: {plain(name)}: {rule}"


def url_of(config: Config, signal: Signal = METRICS) -> str:
    """Return where a signal is posted to: below the endpoint, unless that is the signal's own already."""
    url, mark, query = signal.otlp(config).endpoint.partition("?")
    if signal.origin(config, "endpoint") != signal.endpoint and not url.endswith(signal.path):
        for other in (METRICS, LOGS):
            url = url.removesuffix(other.path)
        url = url.rstrip("/") + signal.path
    return url + mark + query


def _port(url: str) -> int | None:
    return urlsplit(url).port
