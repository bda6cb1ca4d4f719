"""What differs between the two things that are sent: metrics, and events as logs.

Rule 1: a path, a method, a message and the settings; how they are sent, kept and tried again is the same for both.
Rule 2: both answers look the same on the wire (partial_success: how many were rejected, and why), so the message for
        metrics reads either.
"""

from dataclasses import dataclass

from otelgpu.config import Config, Otlp
from otelgpu.config.standard import LOGS_ENDPOINT, METRICS_ENDPOINT


@dataclass(frozen=True, slots=True)
class Signal:
    """One kind of thing that is sent."""

    word: str  # in log lines
    path: str  # of HTTP, below the endpoint
    method: str  # of gRPC
    endpoint: str  # the variable that holds the whole address

    def otlp(self, config: Config) -> Otlp:
        """Return the settings by which it is sent."""
        return config.events_to if self is LOGS else config.otlp

    def origin(self, config: Config, name: str) -> str:
        """Say where one of these settings came from."""
        section = "logs" if self is LOGS and config.logs is not None else "otlp"
        return config.origin(f"{section}.{name}")


METRICS = Signal(
    "metrics", "/v1/metrics", "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export", METRICS_ENDPOINT
)
LOGS = Signal("events", "/v1/logs", "/opentelemetry.proto.collector.logs.v1.LogsService/Export", LOGS_ENDPOINT)
