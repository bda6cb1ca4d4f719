"""From the settings to the reader behind /metrics.

Rule 1: only the service calls this; whatever else is exported has a setup of its own (push/setup.py).
"""

from collections.abc import Iterable
from dataclasses import replace

from opentelemetry.sdk.metrics.export import MetricReader

from otelgpu.config import Config
from otelgpu.export.join import DcgmJoin, SemconvJoin
from otelgpu.export.page import NoPage, PageReader, PageSource
from otelgpu.fields import Field
from otelgpu.instruments import Pinned


def page_reader(
    config: Config, fields: Iterable[Field], pinned: Pinned, hostname: str
) -> tuple[list[MetricReader], PageSource]:
    """Build the reader for the page, once as the SDK sees it and once as the server does."""
    if not config.has_page:
        return [], NoPage()
    labels = tuple(config.labels.items())
    if config.naming == "semconv":
        from otelgpu.export.semconv import JoinedPrometheusReader  # here: the stock exporter costs memory

        joined = JoinedPrometheusReader(fields, SemconvJoin(labels), pinned)
        return [joined], joined
    kubernetes = config.kubernetes
    first, *others = config.compat
    join = DcgmJoin(
        first,
        hostname,
        labels,
        old_names=kubernetes.old_names,
        virtual_gpus=kubernetes.virtual_gpus,
        model_dashes=config.replace_blanks_in_model_name,
        label_names={row.field: row.name for row in config.counters if row.name},
    )
    also = [replace(join, compat=compat) for compat in others]
    plain = PageReader(fields, join, pinned, config.counters, also=also)
    return [plain], plain
