"""The catalogue as OpenTelemetry instruments: one observable instrument per wanted field.

Rule 1: a callback reads the pinned snapshot and nothing else: no driver, no lock, no I/O, no log.
Rule 2: a point carries one attribute, its series key. The SDK never forgets an attribute set, and past a limit folds
        all new ones into a single overflow point; names and labels are joined on the way out.
Rule 3: one instrument per field, named after it, with the driver's unit; naming schemes are the join's business.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import (
    Counter,
    Histogram,
    ObservableCounter,
    ObservableGauge,
    ObservableUpDownCounter,
    UpDownCounter,
)

from otelgpu.fields import Field
from otelgpu.model import Snapshot

SERIES = "series"

# Far above any machine (64 GPUs x 8 devices x 18 links): the SDK's own 2,000 is below what a big MIG node has.
CARDINALITY_LIMITS: Mapping[type, int] = dict.fromkeys(
    (Counter, Histogram, ObservableCounter, ObservableGauge, ObservableUpDownCounter, UpDownCounter), 100_000
)


class Pinned:
    """The snapshot that the collection in this thread reads: one for all callbacks, or two sweeps would mix."""

    def __init__(self) -> None:
        self._local = threading.local()

    @property
    def latest(self) -> Snapshot | None:
        """The newest snapshot, however old; None outside a collection."""
        snapshot: Snapshot | None = getattr(self._local, "latest", None)
        return snapshot

    @property
    def shown(self) -> Snapshot | None:
        """The snapshot whose readings may be shown; None when it is too old for that."""
        snapshot: Snapshot | None = getattr(self._local, "shown", None)
        return snapshot

    @contextmanager
    def to(self, latest: Snapshot | None, *, shown: bool) -> Iterator[None]:
        """Pin this thread's collection to one snapshot."""
        self._local.latest = latest
        self._local.shown = latest if shown else None
        try:
            yield
        finally:
            self._local.latest = self._local.shown = None


def create_instruments(meter: Meter, fields: Iterable[Field], pinned: Pinned) -> None:
    """Register one observable instrument per field on *meter*. Label rows have none: they become labels."""
    for field in fields:
        if not field.is_numeric:
            continue
        create = meter.create_observable_counter if field.is_total else meter.create_observable_gauge
        create(field.name, callbacks=[Report(field, pinned)], unit=field.unit, description=field.help)


class Report:
    """The callback of one field: every series of the pinned snapshot, and nothing when there is none to show."""

    __slots__ = ("_field_id", "_pinned")

    def __init__(self, field: Field, pinned: Pinned) -> None:
        self._field_id = field.id
        self._pinned = pinned

    def __call__(self, _: CallbackOptions) -> Iterable[Observation]:
        """Give the points of this collection."""
        snapshot = self._pinned.shown
        if snapshot is None:
            return ()
        numbers = snapshot.numbers.get(self._field_id)
        if numbers is None:
            return ()
        return [Observation(number, {SERIES: key}) for key, number in numbers.items()]
