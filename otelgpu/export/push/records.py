"""From events to OTLP log records.

Rule 1: a record has the event's name, severity and sentence, the attributes that the same GPU has on its metrics, the
        owner of that moment among them, and what the event says beyond that.
Rule 2: it bears two times: when it happened, and when it was written down here.
Rule 3: messages of opentelemetry-proto, since events are few; resource and scope are encoded by the stock encoder.
"""

from collections.abc import Iterable, Mapping

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs, SeverityNumber
from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otelgpu import __version__
from otelgpu.events import NAMELESS, Event, Value
from otelgpu.export.join import SCHEMA_URL, SemconvJoin, holders
from otelgpu.export.push.wire import INT_RANGE
from otelgpu.fields import Number, Shape
from otelgpu.model import Owner, OwnerKind, Owners, Series

GPU = Shape("hw.gpu.nvidia", "1", Number.INT, attributes=(("hw.type", "gpu"),))
OWNERS = "hw.gpu.nvidia.owners"
_NANOSECONDS = 1_000_000_000


class Records:
    """Writes requests for one *resource*."""

    def __init__(self, resource: Resource, join: SemconvJoin) -> None:
        self._join = join
        scope = InstrumentationScope("otelgpu", __version__, SCHEMA_URL)
        empty = ResourceMetrics(resource, [ScopeMetrics(scope, [], SCHEMA_URL)], SCHEMA_URL)
        (encoded,) = encode_metrics(MetricsData([empty])).resource_metrics
        self._resource = encoded.resource
        self._scope = encoded.scope_metrics[0].scope

    def request(self, events: Iterable[Event], owners: Owners, observed_unix: float) -> bytes:
        """Write an ExportLogsServiceRequest; *owners* are those of the moment in which the events happened."""
        records = [self._record(event, owners, observed_unix) for event in events]
        scope = ScopeLogs(scope=self._scope, log_records=records, schema_url=SCHEMA_URL)
        logs = ResourceLogs(resource=self._resource, scope_logs=[scope], schema_url=SCHEMA_URL)
        return ExportLogsServiceRequest(resource_logs=[logs]).SerializeToString()

    def _record(self, event: Event, owners: Owners, observed_unix: float) -> LogRecord:
        attributes: dict[str, Value] = {**self._join.attributes(GPU, Series(event.device, ()), owners)}
        if event.device.index == NAMELESS:
            del attributes["hw.name"]
        attributes |= event.attributes
        concerned = [owner for device in (event.device, *event.also) for owner in owners.by_device.get(device.uuid, ())]
        names = tuple(dict.fromkeys(_named(owner) for owner in holders(concerned)))
        if len(names) > 1 or event.also:  # else the attributes say it already
            attributes |= {OWNERS: names} if names else {}
        return LogRecord(
            time_unix_nano=int(event.unix * _NANOSECONDS),
            observed_time_unix_nano=int(observed_unix * _NANOSECONDS),
            severity_number=SeverityNumber.ValueType(event.severity.value),
            severity_text=event.severity.name,
            event_name=event.name,
            body=AnyValue(string_value=_text(event.body)),
            attributes=_pairs(attributes),
        )


def _named(owner: Owner) -> str:
    if owner.kind is OwnerKind.JOB:
        return f"job {owner.job}"
    return "/".join(part for part in (owner.namespace, owner.pod, owner.container) if part)


def _pairs(attributes: Mapping[str, Value]) -> list[KeyValue]:
    return [KeyValue(key=_text(name), value=_value(value)) for name, value in sorted(attributes.items())]


def _value(value: Value) -> AnyValue:
    match value:
        case str():
            return AnyValue(string_value=_text(value))
        case int() if value in INT_RANGE:
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case int():  # a code that no driver should give must not cost the batch
            return AnyValue(string_value=str(value))
        case _:
            return AnyValue(array_value=ArrayValue(values=[_value(each) for each in value]))


def _text(text: str) -> str:
    """Make a text fit for UTF-8: a lone surrogate of a job file's name becomes a question mark."""
    return text.encode("utf-8", "replace").decode()
