"""The readers behind /metrics.

Rule 1: a reader pins one snapshot for the whole collection, and collects under a lock of its own.
Rule 2: what was collected before is thrown away first: the SDK says nothing when nothing was observed, and the old
        page would stay for ever.
"""

import threading
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Protocol

from opentelemetry.sdk.metrics.export import MetricReader, MetricsData

from otelgpu.config.listed import Counter
from otelgpu.export.join import DcgmJoin
from otelgpu.export.text import TextPage
from otelgpu.fields import Field
from otelgpu.instruments import CARDINALITY_LIMITS, Pinned
from otelgpu.model import NOBODY, Owners, Snapshot


class Format(StrEnum):
    """The formats a page is written in, by their content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class PageSource(Protocol):
    """Whatever writes pages: a reader registered with the MeterProvider."""

    def page(self, snapshot: Snapshot | None, form: Format, *, shown: bool, owners: Owners = NOBODY) -> bytes:
        """Collect and write one page of *snapshot* and its *owners*; its readings are left away unless *shown*."""


class NoPage:
    """Stands in where no page is wanted: the server goes on answering whether the process is well."""

    def page(  # as PageSource
        self,
        snapshot: Snapshot | None,  # noqa: ARG002
        form: Format,  # noqa: ARG002
        *,
        shown: bool,  # noqa: ARG002
        owners: Owners = NOBODY,  # noqa: ARG002
    ) -> bytes:
        """Say why there is nothing."""
        return b"# no metrics here: OTEL_METRICS_EXPORTER does not name prometheus, or OTEL_SDK_DISABLED is true\n"


class PageReader(MetricReader):
    """Writes dcgm-exporter's page from what the SDK collects."""

    def __init__(
        self,
        fields: Iterable[Field],
        join: DcgmJoin,
        pinned: Pinned,
        counters: Iterable[Counter] = (),
        *,
        also: Sequence[DcgmJoin] = (),
    ) -> None:
        super().__init__(cardinality_limits=dict(CARDINALITY_LIMITS))
        self._lock = threading.Lock()
        self._pinned = pinned
        self._text = TextPage(fields, join, counters, also)
        self._collected: MetricsData | None = None

    def page(self, snapshot: Snapshot | None, form: Format, *, shown: bool, owners: Owners = NOBODY) -> bytes:
        """Collect and write one page; see PageSource. Callers wait for each other."""
        with self._lock:
            self._collected = None
            with self._pinned.to(snapshot, shown=shown):
                self.collect()
            return self._text.write(
                self._collected, snapshot, owners, openmetrics=form is Format.OPENMETRICS, shown=shown
            )

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:  # noqa: ANN401, ARG002
        self._collected = metrics_data

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:  # noqa: ANN401
        """Nothing is held."""
