"""Everything of OTLP push, put together from the settings.

Rule 1: imported only when something is pushed: protobuf and the transports cost memory.
Rule 2: what can be known to be wrong at the start (a file that is not there) is told then.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import urlsplit

from opentelemetry.metrics import Meter

from otelgpu.config import Config
from otelgpu.config.words import plain
from otelgpu.errors import ConfigError
from otelgpu.export.join import SemconvJoin
from otelgpu.export.push.buffer import Buffer
from otelgpu.export.push.encode import Encoder
from otelgpu.export.push.outcome import Sender
from otelgpu.export.push.pusher import Pusher
from otelgpu.export.push.reader import PushReader
from otelgpu.export.push.signals import LOGS, METRICS, Signal
from otelgpu.export.push.tell import create_push_instruments
from otelgpu.fields import Field
from otelgpu.instruments import Pinned
from otelgpu.model import NOBODY, Owners, Snapshot

GRPC_PORT = 4317
FILES = ("certificate", "client_certificate", "client_key")


class Push:
    """One way out: a reader to register with the provider, a buffer, and a thread that sends."""

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
    ) -> None:
        otlp = config.otlp
        is_delta = otlp.temporality != "cumulative"
        # `lowmemory` keeps observable counters as totals, and all of our fields are observable.
        join = SemconvJoin(tuple(config.labels.items()))
        self.encoder = Encoder(fields, join, delta=otlp.temporality == "delta")
        self.buffer = Buffer(most_bytes=otlp.buffer_bytes, most_seconds=otlp.buffer_seconds)
        self.pusher = Pusher(self.buffer, sender)
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
        """Begin to collect and to send."""
        self.pusher.start()
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
) -> list[Push]:
    """Build every way out that the settings name; see `make_sender` for what raises."""
    senders: list[Sender] = []
    if config.otlp.endpoint:
        senders.append(make_sender(config))
    if "console" in config.exporters:
        from otelgpu.export.push.send_console import ConsoleSender

        senders.append(ConsoleSender())
    return [
        Push(config, fields, pinned, sender=sender, refresh=refresh, is_fresh=is_fresh, owners=owners)
        for sender in senders
    ]


def make_sender(config: Config, signal: Signal = METRICS) -> Sender:
    """Build the sender that the settings name. Raise ConfigError when a file it needs cannot be read."""
    otlp = signal.otlp(config)
    problems = [
        f"{signal.origin(config, name)}: {plain(path)}: cannot be read"
        for name in FILES
        if (path := getattr(otlp, name)) and not _is_readable(path)
    ]
    if problems:
        raise ConfigError(problems)
    if is_grpc(config, signal):
        from otelgpu.export.push.send_grpc import GrpcSender, credentials

        url = urlsplit(otlp.endpoint)
        tls = None
        if url.scheme == "https":
            tls = credentials(authorities=otlp.certificate, certificate=otlp.client_certificate, key=otlp.client_key)
        return GrpcSender(
            url.netloc,
            headers=otlp.headers,
            timeout=otlp.timeout,
            compression=otlp.compression,
            method=signal.method,
            tls=tls,
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


def url_of(config: Config, signal: Signal = METRICS) -> str:
    """Return where a signal is posted to: below the endpoint, unless that is the signal's own already."""
    url = signal.otlp(config).endpoint
    if signal.origin(config, "endpoint") == signal.endpoint or url.endswith(signal.path):
        return url
    for other in (METRICS, LOGS):
        url = url.removesuffix(other.path)
    return url.rstrip("/") + signal.path


def _port(url: str) -> int | None:
    return urlsplit(url).port


def _is_readable(path: str) -> bool:
    try:
        with Path(path).open("rb"):
            return True
    except (OSError, ValueError):
        return False
