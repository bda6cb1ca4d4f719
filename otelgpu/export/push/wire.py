"""Protocol buffers by hand: the few parts of OTLP that are written once per point.

Rule 1: only what opentelemetry/proto/metrics/v1/metrics.proto says; field numbers stand here and nowhere else.
Rule 2: bytes out, no state: what is worth keeping is kept by the caller.
"""

from collections.abc import Mapping
from struct import Struct

INT_RANGE = range(-(2**63), 2**63)
DELTA, CUMULATIVE = 1, 2  # AggregationTemporality

# Tags: field number and wire type (1 fixed 64 bits, 2 length-delimited).
_REQUEST_RESOURCE_METRICS = b"\x0a"  # 1
_RESOURCE_METRICS_SCOPE_METRICS = b"\x12"  # 2
_SCOPE_METRICS_METRIC = b"\x12"  # 2
_METRIC_NAME, _METRIC_DESCRIPTION, _METRIC_UNIT = b"\x0a", b"\x12", b"\x1a"  # 1, 2, 3
_METRIC_GAUGE, _METRIC_SUM = b"\x2a", b"\x3a"  # 5, 7
_DATA_POINT = b"\x0a"  # 1, of Gauge and Sum
_POINT_START, _POINT_TIME = b"\x11", b"\x19"  # 2, 3
_AS_DOUBLE, _AS_INT = 0x21, 0x31  # 4, 6
_POINT_ATTRIBUTE = b"\x3a"  # 7
_KEY, _VALUE, _STRING = b"\x0a", b"\x12", b"\x0a"  # of KeyValue and AnyValue

_fixed64 = Struct("<Q").pack
_double = Struct("<Bd").pack
_int = Struct("<Bq").pack


def varint(number: int) -> bytes:
    """Write a length."""
    out = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def delimited(tag: bytes, content: bytes) -> bytes:
    """Write a field that is a message or a text."""
    return tag + varint(len(content)) + content


def text(tag: bytes, content: str) -> bytes:
    """Write a text; nothing for an empty one, as proto3 does. What is not UTF-8 becomes a question mark."""
    return delimited(tag, content.encode("utf-8", "replace")) if content else b""


def metric_head(name: str, description: str, unit: str) -> bytes:
    """Write what stands before the points of a metric."""
    return text(_METRIC_NAME, name) + text(_METRIC_DESCRIPTION, description) + text(_METRIC_UNIT, unit)


def attributes(pairs: Mapping[str, str]) -> bytes:
    """Write the attributes of a point."""
    return b"".join(
        delimited(
            _POINT_ATTRIBUTE, text(_KEY, name) + delimited(_VALUE, delimited(_STRING, value.encode("utf-8", "replace")))
        )
        for name, value in pairs.items()
    )


def instant(nanoseconds: int) -> bytes:
    """Write an instant, without its tag."""
    return _fixed64(nanoseconds)


def gauge_prefix(attributes_length: int) -> bytes:
    """Write what stands before the instant of a gauge's point: instant, number and attributes follow."""
    return _DATA_POINT + varint(9 + 9 + attributes_length) + _POINT_TIME


def sum_prefix(attributes_length: int) -> bytes:
    """Write what stands before the start of a sum's point: start, SUM_TIME, instant, number, attributes follow."""
    return _DATA_POINT + varint(9 + 9 + 9 + attributes_length) + _POINT_START


SUM_TIME = _POINT_TIME


def as_int(number: int) -> bytes:
    """Write a point's number as an int, which has to be within INT_RANGE."""
    return _int(_AS_INT, number)


def as_double(number: float) -> bytes:
    """Write a point's number as a double."""
    return _double(_AS_DOUBLE, number)


def gauge(head: bytes, points: bytes) -> bytes:
    """Write a metric with the points of a gauge, as an entry of its scope."""
    return delimited(_SCOPE_METRICS_METRIC, head + delimited(_METRIC_GAUGE, points))


def sums(head: bytes, points: bytes, *, temporality: int, monotonic: bool) -> bytes:
    """Write a metric with the points of a sum, as an entry of its scope."""
    tail = b"\x10" + varint(temporality) + (b"\x18\x01" if monotonic else b"")
    return delimited(_SCOPE_METRICS_METRIC, head + delimited(_METRIC_SUM, points + tail))


def scope(content: bytes) -> bytes:
    """Write a scope with its metrics as an entry of its resource."""
    return delimited(_RESOURCE_METRICS_SCOPE_METRICS, content)


def request(content: bytes) -> bytes:
    """Write a whole ExportMetricsServiceRequest of one resource with its scopes."""
    return delimited(_REQUEST_RESOURCE_METRICS, content)
