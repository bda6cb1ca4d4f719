"""OTLP over gRPC. Imported only when gRPC is asked for: it costs 11 MB.

Rule 1: bytes go out as they are: the stub of opentelemetry-proto would parse and write them again.
Rule 2: every answer is looked at. The stock exporter is not used for sending, because it takes messages and no bytes,
        waits and tries again within one call, and takes a partial success for a success.
"""

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from otelgpu import __version__
from otelgpu.export.push.outcome import Delivered, Failed, Outcome, Refused
from otelgpu.export.push.signals import METRICS

# As the OTLP specification says. RESOURCE_EXHAUSTED is among them only when the server says when to come back.
RETRYABLE = frozenset(
    (
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    )
)
COMPRESSIONS = {
    "gzip": grpc.Compression.Gzip,
    "deflate": grpc.Compression.Deflate,
    "none": grpc.Compression.NoCompression,
}
OPTIONS = (
    ("grpc.primary_user_agent", f"otelgpu/{__version__}"),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 2000),  # the pusher has a pause of its own; gRPC's goes up to two minutes
    ("grpc.enable_retries", 0),
)


def credentials(*, authorities: str = "", certificate: str = "", key: str = "") -> grpc.ChannelCredentials:
    """Read the files of a TLS connection; "" is the system's authorities, or no client certificate."""
    read = [Path(path).read_bytes() if path else None for path in (authorities, key, certificate)]
    return grpc.ssl_channel_credentials(*read)


class GrpcSender:
    """Calls *method* of the service at *target* (HOST:PORT), without TLS where *tls* is None."""

    def __init__(
        self,
        target: str,
        *,
        headers: Mapping[str, str],
        timeout: float,
        compression: str = "gzip",
        method: str = METRICS.method,
        tls: grpc.ChannelCredentials | None = None,
    ) -> None:
        self.place = target
        self._timeout = timeout
        self._metadata = tuple((name.lower(), text) for name, text in headers.items())
        packed = COMPRESSIONS[compression]
        self._channel = (
            grpc.insecure_channel(target, OPTIONS, packed)
            if tls is None
            else grpc.secure_channel(target, tls, OPTIONS, packed)
        )
        self._export: grpc.UnaryUnaryMultiCallable[bytes, ExportMetricsServiceResponse] = self._channel.unary_unary(
            method,
            request_serializer=None,
            response_deserializer=ExportMetricsServiceResponse.FromString,
        )

    def send(self, payload: bytes) -> Outcome:
        """Try once; see Sender."""
        try:
            answer = self._export(gzip.decompress(payload), timeout=self._timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            return _judged(error)
        except ValueError as error:  # the channel is closed
            return Failed(str(error))
        partial = answer.partial_success
        return Delivered(partial.rejected_data_points, partial.error_message)

    def close(self) -> None:
        """Close the channel; a call under way ends as cancelled."""
        self._channel.close()


def _judged(error: Any) -> Outcome:  # noqa: ANN401 - an RpcError that is a Call, which grpc does not declare
    code, reason = error.code(), f"{error.code().name}: {error.details()}"
    after = _after(error)
    if code in RETRYABLE or (code is grpc.StatusCode.RESOURCE_EXHAUSTED and after is not None):
        return Failed(reason, after)
    return Refused(reason)


def _after(error: Any) -> float | None:  # noqa: ANN401 - see _judged
    """Read the RetryInfo of an answer, from the status details (the specification) or a trailer of its own."""
    for name, content in error.trailing_metadata() or ():
        try:
            if name == "google.rpc.retryinfo-bin":
                return _seconds(RetryInfo.FromString(content))
            if name == "grpc-status-details-bin":
                for detail in Status.FromString(content).details:
                    info = RetryInfo()
                    if detail.Unpack(info):
                        return _seconds(info)
        except DecodeError:
            continue
    return None


def _seconds(info: RetryInfo) -> float:
    return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
