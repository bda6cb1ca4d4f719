"""What OTLP push says about itself, as OpenTelemetry instruments like the rest.

Rule 1: names are otelgpu.otlp.*; the Prometheus page shows them as otelgpu_otlp_*.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from otelgpu.export.push.buffer import Buffer
from otelgpu.export.push.encode import Encoder
from otelgpu.export.push.pusher import Pusher
from otelgpu.export.push.reader import PushReader

_Rows: TypeAlias = Mapping[str, tuple[str, str, Callable[[], Iterable[Observation]]]]  # unit, description, report


def create_push_instruments(
    meter: Meter, *, reader: PushReader, encoder: Encoder, buffer: Buffer, pusher: Pusher
) -> None:
    """Register the instruments of one way to a collector."""
    sent = pusher.sent

    def last() -> Iterable[Observation]:
        return () if sent.last_unix is None else (Observation(sent.last_unix),)

    def dropped() -> Iterable[Observation]:
        reasons = dict.fromkeys(("expired", "full", "refused"), 0) | dict(buffer.dropped)
        return [Observation(count, {"reason": reason}) for reason, count in sorted(reasons.items())]

    def lost() -> Iterable[Observation]:
        return (
            Observation(buffer.dropped_points, {"reason": "batch"}),
            Observation(sent.rejected_points, {"reason": "rejected"}),
            Observation(encoder.dropped, {"reason": "impossible"}),
        )

    totals: _Rows = {
        "batches.sent": ("", "Batches that the collector has taken.", lambda: [Observation(sent.batches)]),
        "attempts.failed": ("", "Attempts to deliver a batch that failed.", lambda: [Observation(sent.failed)]),
        "batches.dropped": ("", "Batches that were given up, by reason.", dropped),
        "points.dropped": ("", "Points that were not delivered, by reason.", lost),
        "payload": ("By", "Compressed size of the batches delivered.", lambda: [Observation(sent.payload)]),
        "collections.failed": ("", "Collections that went wrong.", lambda: [Observation(reader.failures)]),
    }
    gauges: _Rows = {
        "batches.buffered": ("", "Batches that wait for the collector.", lambda: [Observation(len(buffer))]),
        "buffer.size": ("By", "Compressed size of what waits.", lambda: [Observation(buffer.size)]),
        "last_success.timestamp": ("s", "When a batch was last delivered (Unix time).", last),
    }
    _create(meter, totals, gauges)


def create_event_instruments(
    meter: Meter, *, buffer: Buffer, pusher: Pusher, dropped: Callable[[], dict[str, int]]
) -> None:
    """Register the instruments of one way for log events; *dropped* adds what never got into the buffer, by reason."""
    sent = pusher.sent

    def lost() -> Iterable[Observation]:
        reasons = dict.fromkeys(("expired", "full", "refused"), 0) | dict(buffer.lost) | dropped()
        reasons["rejected"] = sent.rejected_points
        return [Observation(count, {"reason": reason}) for reason, count in sorted(reasons.items())]

    totals: _Rows = {
        "events.sent": ("", "Log events that the collector has taken.", lambda: [Observation(sent.points)]),
        "events.dropped": ("", "Log events that were given up, by reason.", lost),
        "events.attempts.failed": (
            "",
            "Attempts to deliver log events that failed.",
            lambda: [Observation(sent.failed)],
        ),
    }
    gauges: _Rows = {
        "events.buffered": ("", "Batches of log events that wait.", lambda: [Observation(len(buffer))]),
    }
    _create(meter, totals, gauges)


def _create(meter: Meter, totals: _Rows, gauges: _Rows) -> None:
    for rows, create in ((totals, meter.create_observable_counter), (gauges, meter.create_observable_gauge)):
        for name, (unit, description, report) in rows.items():
            create(f"otelgpu.otlp.{name}", callbacks=[_callback(report)], unit=unit, description=description)


def _callback(report: Callable[[], Iterable[Observation]]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: report()
