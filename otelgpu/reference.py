"""The tables of docs/metrics.md, made from the catalogue: `python -m otelgpu.reference docs/metrics.md`.

Rule 1: nothing is said here that the catalogue, the sources' tables or the exporters do not say themselves; the name on
        a Prometheus page in semconv naming is what the stock exporter makes of it.
Rule 2: only the lines between each two markers are ours.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from opentelemetry.sdk.metrics import MeterProvider

from otelgpu.config.docs import with_table
from otelgpu.export.join import SemconvJoin, text_attribute
from otelgpu.export.page import Format
from otelgpu.export.semconv import JoinedPrometheusReader
from otelgpu.fields import CATALOGUE, UP_DOWN, Field, Kind
from otelgpu.instruments import Pinned, create_instruments
from otelgpu.model import Device, Series, Snapshot, SourceFacts
from otelgpu.sources.nvml.asked import asked_by
from otelgpu.sources.nvml.questions import READABLE
from otelgpu.sources.nvml.source import BESIDE
from otelgpu.sources.nvml.unreadable import unreadable

BEGIN = "<!-- metrics -->"
END = "<!-- /metrics -->"
BEGIN_NOT = "<!-- unreadable -->"
END_NOT = "<!-- /unreadable -->"
HEAD = (
    ("DCGM id", "Name", "Name in 4.9", "Type", "Unit", "Unit in 4.9"),
    ("OpenTelemetry name and attributes", "Instrument", "Unit", "On a Prometheus page", "Read by"),
)


def metrics_table() -> str:
    """Draw every field that NVML can answer as a row of a Markdown table."""
    return "".join(f"{line}\n" for line in _lines())


def unreadable_table() -> str:
    """Draw every other field of the catalogue as a row of a Markdown table, with the reason."""
    lines = ["| DCGM id | Name | Name in 4.9 | Why NVML cannot give it |", "|---|---|---|---|"]
    for id_, reason in unreadable(READABLE | BESIDE).items():
        field = CATALOGUE[id_]
        lines.append(f"| {id_} | `{field.name}` | `{field.dcgm49.name}` | {reason} |")
    return "".join(f"{line}\n" for line in lines)


def with_metrics_table(text: str) -> str:
    """Put the tables between the markers of a Markdown text. Raise ValueError without them."""
    return with_table(with_table(text, BEGIN, END, metrics_table()), BEGIN_NOT, END_NOT, unreadable_table())


def _lines() -> Iterator[str]:
    heads = [*HEAD[0], *HEAD[1]]
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for field in CATALOGUE.values():
        if field.id in READABLE | BESIDE:
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in _cells(field))} |"


def _cells(field: Field) -> tuple[str, ...]:
    named = (str(field.id), f"`{field.name}`", f"`{field.dcgm49.name}`", field.kind.value)
    asked = "; ".join(asked_by(field.id))
    shape = field.semconv
    if shape is None or field.kind is Kind.LABEL:
        attribute = f"`{text_attribute(field)}`" if field.kind is Kind.LABEL else ""
        return (*named, "", "", attribute, "attribute" if attribute else "", "", "", asked)
    attributes = "".join(f" `{name}={value}`" for name, value in shape.attributes)
    return (
        *named,
        field.dcgm.unit,
        field.dcgm49.unit,
        f"`{shape.name}`{attributes}",
        "UpDownCounter" if shape.name in UP_DOWN else "Counter" if field.is_total else "Gauge",
        shape.unit,
        f"`{page_name(field)}`",
        asked,
    )


def page_name(field: Field) -> str:
    """Return the family's name on a page in semconv naming, as the stock exporter writes it."""
    pinned = Pinned()
    reader = JoinedPrometheusReader([field], SemconvJoin(), pinned)
    provider = MeterProvider([reader], shutdown_on_exit=False)
    create_instruments(provider.get_meter("otelgpu"), [field], pinned)
    device = Device("GPU-0", "GPU-0", 0, "", "")
    snapshot = Snapshot(
        at=0.0,
        unix=0.0,
        started_unix=0.0,
        identity=0,
        facts=SourceFacts(""),
        source_up=True,
        source_reason="",
        states=(),
        numbers={field.id: {device.uuid: 1}},
        series={device.uuid: Series(device, ())},
        labels={},
        missing=(),
        seconds=0.0,
    )
    page = reader.page(snapshot, Format.TEXT, shown=True).decode()
    names = [line.partition("{")[0] for line in page.splitlines() if not line.startswith(("#", "target_info"))]
    return names[0]


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(with_metrics_table(document.read_text(encoding="utf-8")), encoding="utf-8")
