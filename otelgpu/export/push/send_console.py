"""What would be sent, as text: OTEL_METRICS_EXPORTER=console.

Rule 1: the same bytes as for a collector, shown as OTLP's JSON, one line a batch. Used for OTEL_LOGS_EXPORTER too.
"""

import gzip
import json
import sys

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from otelgpu.export.push.outcome import Delivered, Outcome


class ConsoleSender:
    """Writes to stdout, as the stock console exporter does."""

    place = "the console"

    def __init__(self, kind: type[Message] = ExportMetricsServiceRequest) -> None:
        self._kind = kind

    def send(self, payload: bytes) -> Outcome:
        """Write one batch."""
        request = self._kind.FromString(gzip.decompress(payload))
        sys.stdout.write(json.dumps(MessageToDict(request)) + "\n")
        sys.stdout.flush()
        return Delivered()

    def close(self) -> None:
        """Nothing is held."""
