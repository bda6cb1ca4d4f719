"""A way out that works on its own, as whoever builds and stops it sees it.

Rule 1: nothing but the Protocol, so that knowing of a way out costs nothing while none is wanted.
"""

from typing import Protocol

from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics.export import MetricReader


class WayOut(Protocol):
    """Something that is started and stopped with the service."""

    def start(self) -> None:
        """Begin."""

    def stop(self, timeout: float) -> bool:
        """Send what can be sent and end within *timeout* seconds; False when a thread is held. Safe to call twice."""


class Outlet(WayOut, Protocol):
    """Something that collects at its own pace and sends what it collected."""

    @property
    def reader(self) -> MetricReader:
        """What the MeterProvider has to know of."""

    def create_instruments(self, meter: Meter) -> None:
        """Register what it says about itself."""
