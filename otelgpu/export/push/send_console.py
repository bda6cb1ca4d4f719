"""What would be sent, as text: OTEL_METRICS_EXPORTER=console.

Rule 1: the same bytes as for a collector, shown as OTLP's JSON, one line a batch. Used for OTEL_LOGS_EXPORTER too.
Rule 2: a terminal or a pipe that nobody reads is a collector that is slow: the batch waits, and the end does not. So
        it is written past Python's own buffer, whose lock the end would wait for.
"""

import gzip
import json
import os
import select
import time

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from otelgpu.export.push.outcome import CONSOLE, Delivered, Failed, Outcome

STDOUT = 1
PIECE = 512  # bytes: a pipe that has room at all takes so many at once (PIPE_BUF, as POSIX has it)
PATIENCE = 1.0  # seconds that whoever reads may take for a piece


class ConsoleSender:
    """Writes to stdout, as the stock console exporter does."""

    place = CONSOLE

    def __init__(self, kind: type[Message] = ExportMetricsServiceRequest) -> None:
        self._kind = kind
        self._rest = b""  # of a line that was begun

    def send(self, payload: bytes) -> Outcome:
        """Write one batch."""
        request = self._kind.FromString(gzip.decompress(payload))
        line = json.dumps(MessageToDict(request)).encode() + b"\n"
        try:
            if self._rest and not self._is_written(self._rest):
                return Failed("nobody reads it")
            return Delivered() if self._is_written(line) else self._begun(line)
        except OSError as error:
            self._rest = b""
            return Failed(error.strerror or str(error))

    def _begun(self, line: bytes) -> Outcome:
        """Decide about a line of which a part is written: then it is delivered as soon as the rest can be."""
        return Failed("nobody reads it") if len(self._rest) == len(line) else Delivered()

    def _is_written(self, text: bytes) -> bool:
        """Write as much of *text* as is taken, and keep the rest."""
        self._rest = text
        until = time.monotonic() + PATIENCE
        while self._rest:
            _, ready, _ = select.select((), (STDOUT,), (), max(until - time.monotonic(), 0))
            if not ready:
                return False
            self._rest = self._rest[os.write(STDOUT, self._rest[:PIECE]) :]
            until = time.monotonic() + PATIENCE
        return True

    def close(self) -> None:
        """Nothing is held."""
