"""What happens to GPUs, on its way out as OTLP logs.

Rule 1: a thread of its own makes events of what it is told and puts them into a buffer at once; the same pusher that
        sends metrics sends them, so that what cannot be delivered is kept, in order and with its own times.
Rule 2: who owned a GPU is looked up when the event is made, not when it is sent. Of an instance that is gone with its
        GPU the last known owner counts.
Rule 3: an XID has the GPUs looked at soon: whether one is lost is then known without anybody asking.
Rule 4: the thread never dies: what goes wrong with some events is logged, counted and costs these.
"""

import gzip
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from opentelemetry.metrics import Meter
from opentelemetry.sdk.resources import Resource

from otelgpu.config import Config
from otelgpu.events import FB_USED, XID_ERRORS, Detector, Event, Xid
from otelgpu.export.join import SemconvJoin
from otelgpu.export.outlet import EventOutlet
from otelgpu.export.push.buffer import Buffer
from otelgpu.export.push.mailbox import Mailbox, Told
from otelgpu.export.push.outcome import CONSOLE, Sender
from otelgpu.export.push.pusher import Pusher
from otelgpu.export.push.reader import GZIP_LEVEL
from otelgpu.export.push.records import Records
from otelgpu.export.push.setup import make_sender
from otelgpu.export.push.signals import LOGS
from otelgpu.export.push.tell import create_event_instruments
from otelgpu.model import NOBODY, Owner, Owners, Snapshot
from otelgpu.throttle import Limits

logger = logging.getLogger(__name__)

BUFFER_SHARE = 16  # of the bytes that may wait, events have so much less than metrics
HAND_OVER = 2.0  # seconds for the last events to be made
MOST_EVENTS = 500  # in one request


class Events:
    """Sends events to each of the *senders*. *look* has the GPUs looked at soon, and returns at once."""

    def __init__(
        self,
        config: Config,
        senders: Iterable[Sender],
        *,
        resource: Resource,
        owners: Callable[[Snapshot], Owners],
        look: Callable[[], None],
        codes: bool,
        before: "Events | None" = None,
    ) -> None:
        otlp = config.events_to
        self._throttling = Limits(otlp.throttle_percent / 100, otlp.power_cap_percent / 100)
        self.fields = self._throttling.fields() | {XID_ERRORS, FB_USED}
        self.mailbox = Mailbox()
        self.buffers: list[Buffer] = []
        self.pushers: list[Pusher] = []
        self._limits = max(otlp.buffer_bytes // BUFFER_SHARE, 1), otlp.buffer_seconds
        self._senders = tuple(senders)
        self.follows = before
        if before is None:
            for sender in self._senders:
                buffer = Buffer(most_bytes=self._limits[0], most_seconds=self._limits[1])
                self.buffers.append(buffer)
                self.pushers.append(Pusher(buffer, sender, what=LOGS.word))
        else:
            self.buffers, self.pushers = before.buffers, before.pushers
        self.failed = 0  # events that could not be written
        self._detector = Detector(self._throttling, codes=codes)
        self._records = Records(resource, SemconvJoin(tuple(config.labels.items())))
        self._owners = owners
        self._look = look
        self._snapshot: Snapshot | None = None
        self._owned: Mapping[str, tuple[Owner, ...]] = {}  # by the UUID of an instance, as long as its GPU is known
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="otelgpu-tell", daemon=True)

    def told(self, xid: Xid) -> None:
        """Hear of an XID; see EventOutlet."""
        self.mailbox.put_xid(xid)

    def seen(self, snapshot: Snapshot) -> None:
        """Hear of a sweep; see EventOutlet."""
        self.mailbox.put_sweep(snapshot)

    def create_instruments(self, meter: Meter) -> None:
        """Register what this says about itself; of several ways out the first speaks."""
        create_event_instruments(
            meter,
            buffer=self.buffers[0],
            pusher=self.pushers[0],
            dropped=lambda: {"queue": self.mailbox.dropped, "failed": self.failed},
        )

    def start(self) -> None:
        """Begin to make events and to send them, or go on with it."""
        before, self.follows = self.follows, None
        if before is None:
            for pusher in self.pushers:
                pusher.start()
        else:
            self._follow(before)
        self._thread.start()

    def hand_over(self) -> tuple[Detector, Snapshot | None, Mapping[str, tuple[Owner, ...]]]:
        """End, but for the thread that sends, and give what is known: who goes on with it tells nothing twice."""
        self.mailbox.close()
        self._thread.join(HAND_OVER)
        return self._detector, self._snapshot, self._owned

    def _follow(self, before: "Events") -> None:
        """Take over what another one knows and has not sent yet; what is told by now is told to this one."""
        self._detector, self._snapshot, self._owned = before.hand_over()
        self._detector.limit(self._throttling)
        self.failed += before.failed
        self.mailbox.dropped += before.mailbox.dropped
        for buffer, pusher, sender in zip(self.buffers, self.pushers, self._senders, strict=True):
            buffer.limit(most_bytes=self._limits[0], most_seconds=self._limits[1])
            if sender.place != CONSOLE:
                pusher.turn_to(sender)

    def stop(self, timeout: float) -> bool:
        """Send what has been told so far, end within *timeout* seconds; False when a thread is held."""
        until = time.monotonic() + timeout
        self.mailbox.close()
        if self._thread.ident is not None:
            self._thread.join(max(timeout / 2, 0))
        ended = [pusher.stop(until - time.monotonic()) for pusher in self.pushers]
        return all(ended) and not self._thread.is_alive()

    def _run(self) -> None:
        while (told := self.mailbox.take()) is not None:
            try:
                self._pass_on(told)
            except Exception as error:  # noqa: BLE001 - the top of the thread, which logs it
                self._fail(1, error)

    def _pass_on(self, told: Told) -> None:
        if self._snapshot is None and told.sweeps:
            self._snapshot = told.sweeps.pop(0)  # the first sweep says which GPUs there are
            self._deliver(self._detector.sweep(self._snapshot))
        self._deliver([self._detector.xid(xid) for xid in told.xids])
        if told.xids:
            self._look()
        for snapshot in told.sweeps:
            self._snapshot = snapshot
            self._deliver(self._detector.sweep(snapshot))

    def _deliver(self, events: Sequence[Event]) -> None:
        owners = self._owners_now()
        for start in range(0, len(events), MOST_EVENTS):
            some = events[start : start + MOST_EVENTS]
            try:
                request = gzip.compress(self._records.request(some, owners, time.time()), GZIP_LEVEL, mtime=0)
            except Exception as error:  # noqa: BLE001 - costs these events, and is logged
                self._fail(len(some), error)
                continue
            for buffer in self.buffers:
                buffer.put(request, len(some))
            if self._is_failing:
                logger.info("events can be told again")
            self._is_failing = False

    def _fail(self, count: int, error: Exception) -> None:
        """Count what could not be told, and log why when that begins."""
        self.failed += count
        if not self._is_failing:
            logger.error("an event could not be told; the next one starts afresh", exc_info=error)
        self._is_failing = True

    def _owners_now(self) -> Owners:
        snapshot = self._snapshot
        if snapshot is None:
            return NOBODY
        now = self._owners(snapshot)
        present = snapshot.devices()
        if not self._owned.keys() - present.keys():
            self._owned = now.by_device
            return now
        # What an instance had that is not there any more: it is still wanted for the event that says so.
        gone = {uuid: owners for uuid, owners in self._owned.items() if uuid not in present}
        self._owned = now.by_device
        return Owners(now.identity, MappingProxyType({**gone, **now.by_device}))


def events(
    config: Config,
    *,
    resource: Resource,
    owners: Callable[[Snapshot], Owners],
    look: Callable[[], None],
    codes: bool,
    before: EventOutlet | None = None,
) -> Events:
    """Build the way out of log events that the settings name; see `make_sender` for what raises.

    It goes on with *before* where that has as many ways.
    """
    senders: list[Sender] = []
    if config.events_to.endpoint:
        senders.append(make_sender(config, LOGS))
    if "console" in config.log_exporters:
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

        from otelgpu.export.push.send_console import ConsoleSender

        senders.append(ConsoleSender(ExportLogsServiceRequest))
    known = before if isinstance(before, Events) and len(before.pushers) == len(senders) else None
    return Events(config, senders, resource=resource, owners=owners, look=look, codes=codes, before=known)
