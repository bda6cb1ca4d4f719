"""The reader behind OTLP push: collects at its own pace and hands over bytes.

Rule 1: refresh, pin, collect, encode, hand over; nothing here knows who takes the bytes or whether they arrive.
Rule 2: the thread never dies: what goes wrong with one collection is logged, counted and costs that collection.
Rule 3: a sweep's readings are sent once; when the sampler has no newer sweep only otelgpu's own metrics go out.

The stock periodic reader is not used: an exception in `_receive_metrics` ends its thread, and its shutdown waits out
whatever the exporter is doing.
"""

import gzip
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from opentelemetry.sdk.metrics import Counter, Histogram
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricReader, MetricsData
from opentelemetry.sdk.metrics.view import Aggregation, ExponentialBucketHistogramAggregation

from otelgpu.export.push.encode import Encoder
from otelgpu.instruments import CARDINALITY_LIMITS, Pinned
from otelgpu.model import NOBODY, Owners, Snapshot

logger = logging.getLogger(__name__)

GZIP_LEVEL = 2  # attributes repeat: higher levels cost time and gain little
LAST_DEADLINE = 0.3  # seconds that the last collection waits for the driver


class PushReader(MetricReader):
    """Collects every *interval* seconds, the first time at once.

    *deliver* gets gzipped requests, their points, and what to call when a request has arrived.
    """

    def __init__(  # noqa: PLR0913 - all but two by name
        self,
        encoder: Encoder,
        pinned: Pinned,
        *,
        refresh: Callable[[float | None], Snapshot | None],
        is_fresh: Callable[[Snapshot], bool],
        deliver: Callable[[bytes, int, Callable[[], object]], None],
        interval: float,
        owners: Callable[[Snapshot], Owners] = lambda _: NOBODY,
        delta: bool = False,
        exponential: bool = False,
    ) -> None:
        # Observable counters stay cumulative here: their deltas are made on the way out.
        kinds = (Counter, Histogram) if delta else ()
        temporality: dict[type, AggregationTemporality] = dict.fromkeys(kinds, AggregationTemporality.DELTA)
        aggregation: dict[type, Aggregation] = (
            {Histogram: ExponentialBucketHistogramAggregation()} if exponential else {}
        )
        super().__init__(
            preferred_temporality=temporality,
            preferred_aggregation=aggregation,
            cardinality_limits=dict(CARDINALITY_LIMITS),
        )
        self.failures = 0
        self._encoder = encoder
        self._pinned = pinned
        self._refresh = refresh
        self._is_fresh = is_fresh
        self._deliver = deliver
        self._owners = owners
        self._interval = interval
        self._lock = threading.Lock()
        self._collected: MetricsData | None = None
        self.sent_at: float | None = None  # of the last sweep that was sent
        self._is_failing = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otelgpu-collect", daemon=True)

    def start(self) -> None:
        """Begin to collect."""
        self._thread.start()

    def follow(self, before: "PushReader", timeout: float) -> None:
        """Go on where another reader ends, within *timeout* seconds: no sweep is sent twice."""
        before.stop(timeout)
        self.sent_at, self.failures = before.sent_at, before.failures

    def stop(self, timeout: float) -> None:
        """Collect once more and end, within *timeout* seconds. Safe to call twice."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(max(timeout, 0))

    def push(self, deadline: float | None = None) -> None:
        """Collect now, waiting at most *deadline* seconds for the driver (None: as long as the sampler allows)."""
        snapshot = self._refresh(deadline)
        with self._lock:
            shown = snapshot is not None and self._is_fresh(snapshot) and snapshot.at != self.sent_at
            with self._pinned.to(snapshot, shown=shown):
                collected = self._collect_now()
            if collected is None:
                return
            owners = NOBODY if snapshot is None or not shown else self._owners(snapshot)
            requests = self._encoder.requests(collected, snapshot if shown else None, owners)
            if snapshot is not None:
                self.sent_at = snapshot.at
            arrived = self._arrival(len(requests), snapshot if shown else None)
            for request in requests:
                self._deliver(gzip.compress(request.payload, GZIP_LEVEL, mtime=0), request.points, arrived)

    def _arrival(self, requests: int, snapshot: Snapshot | None) -> Callable[[], object]:
        """Make what is called once for each request that was delivered; a sweep has arrived when all of its have."""
        if snapshot is None:
            return lambda: None
        counted = itertools.count(1)

        def arrived() -> None:
            if next(counted) == requests:
                self._encoder.arrived(snapshot.unix)

        return arrived

    def _collect_now(self) -> MetricsData | None:
        # Cleared first: the SDK says nothing when nothing was observed.
        self._collected = None
        self.collect()
        collected, self._collected = self._collected, None
        return collected

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:  # noqa: ANN401, ARG002
        self._collected = metrics_data

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:  # noqa: ANN401, ARG002
        """End; what a provider calls."""
        self.stop(timeout_millis / 1000)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopped.wait(max(due - time.monotonic(), 0)):
            self._try_push(None)
            due = max(due + self._interval, time.monotonic())
        self._try_push(LAST_DEADLINE)

    def _try_push(self, deadline: float | None) -> None:
        try:
            self.push(deadline)
        except Exception:
            self.failures += 1
            if not self._is_failing:
                logger.exception("a collection for OTLP failed; the next one starts afresh")
            self._is_failing = True
        else:
            if self._is_failing:
                logger.info("collections for OTLP work again")
            self._is_failing = False
