"""A way out that works on its own, as whoever builds and stops it sees it.

Rule 1: nothing but Protocols, and what stands for nobody, so that knowing of a way out costs nothing while none is
        wanted.
"""

from typing import Protocol

from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics.export import MetricReader

from otelgpu.events import Xid
from otelgpu.model import Snapshot


class WayOut(Protocol):
    """Something that is started and stopped with the service."""

    def start(self) -> None:
        """Begin."""

    def stop(self, timeout: float) -> bool:
        """Send what can be sent and end within *timeout* seconds; False when a thread is held. Safe to call twice."""


class Outlet(WayOut, Protocol):
    """Something that collects at its own pace and sends what it collected."""

    @property
    def follows(self) -> "Outlet | None":
        """Whose work it goes on with, until it is started."""

    @property
    def reader(self) -> MetricReader:
        """What the MeterProvider has to know of."""

    def create_instruments(self, meter: Meter) -> None:
        """Register what it says about itself."""


class EventOutlet(WayOut, Protocol):
    """Something that sends what happens to GPUs as log events."""

    @property
    def fields(self) -> frozenset[int]:
        """Which fields have to be read for it."""

    @property
    def follows(self) -> "EventOutlet | None":
        """Whose work it goes on with, until it is started."""

    def told(self, xid: Xid) -> None:
        """Hear of an XID. Neither blocks nor raises."""

    def seen(self, snapshot: Snapshot) -> None:
        """Hear of a sweep. Neither blocks nor raises."""

    def create_instruments(self, meter: Meter) -> None:
        """Register what it says about itself."""


class NoEvents:
    """In place of an EventOutlet where no events are wanted."""

    fields: frozenset[int] = frozenset()
    follows: None = None

    def told(self, xid: Xid) -> None:
        """Nobody hears of it."""

    def seen(self, snapshot: Snapshot) -> None:
        """Nobody hears of it."""

    def create_instruments(self, meter: Meter) -> None:
        """There is nothing to say."""

    def start(self) -> None:
        """Nothing begins."""

    def stop(self, timeout: float) -> bool:  # noqa: ARG002 - nothing takes time
        """Nothing has to end."""
        return True
