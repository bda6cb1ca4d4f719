"""Our instruments on a foreign MeterProvider.

Rule 1: the SDK never forgets an instrument: a provider gets each once, and its callback looks up who reports now.
Rule 2: instruments are named as the semantic conventions say, and carry the full, stable attributes of the device:
        no join of ours follows. Fields that share a name are one instrument.
Rule 3: the first callback of a collection fetches the snapshot and the others read the same one. Which is the first
        shows in the order of the callbacks, which is always the same for a provider.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol, Self
from weakref import WeakKeyDictionary

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter_provider

from otelgpu import __version__
from otelgpu.embed.engine import BUILDING
from otelgpu.export.join import SCHEMA_URL, SemconvJoin, scaled
from otelgpu.export.status import HELP, HW_STATUS, status_points
from otelgpu.fields import UP_DOWN, Field, Shape, help_in
from otelgpu.links import Links
from otelgpu.model import Device, SeriesKey, Snapshot


class _Row(NamedTuple):
    """One field of an instrument."""

    field: Field
    shape: Shape
    scaled: Callable[[int | float], int | float]


class Answers(Protocol):
    """Whoever gives snapshots to collections: an Engine, or what stands for one."""

    def snapshot(self, timeout: float) -> Snapshot | None:
        """Give a snapshot to show within *timeout* seconds; None when there is none."""

    def shows(self, device: Device) -> bool:
        """Whether points of a device may be shown."""

    def renewed(self) -> "Answers":
        """Make the one of a child process after a fork."""

    def stop(self) -> bool:
        """End; False while a driver call is under way. Safe to call twice."""


class Session:
    """One observation under way: who answers, and what each instrument shows of the answer."""

    def __init__(self, engine: Answers, fields: Iterable[Field], *, has_status: bool = True) -> None:
        self.engine = engine
        self.has_status = has_status
        self._links = Links()
        self._fields = tuple(fields)
        self.rows: dict[str, list[_Row]] = {}
        for field in self._fields:
            if field.semconv is not None:
                self.rows.setdefault(field.semconv.name, []).append(_Row(field, field.semconv, scaled(field.semconv)))
        self._join = SemconvJoin()
        self._turn = threading.local()
        self._identity = -1
        self._attributes: dict[tuple[int, SeriesKey], Mapping[str, str]] = {}

    def renewed(self) -> Self:
        """Make the session of a child process after a fork."""
        return type(self)(self.engine.renewed(), self._fields, has_status=self.has_status)

    def points(self, name: str, place: int, timeout: float) -> list[Observation]:
        """Give the points of one instrument for the collection that this thread makes."""
        snapshot = self._pinned(place, timeout)
        if snapshot is None:
            return []
        if name == HW_STATUS.name:
            found = status_points(snapshot, self._links, self._join, self.engine.shows) if self.has_status else ()
            return list(found)
        if snapshot.identity != self._identity:
            self._attributes, self._identity = {}, snapshot.identity
        return [
            Observation(row.scaled(number), self._attributes_of(row, key, snapshot))
            for row in self.rows.get(name, ())
            for key, number in snapshot.numbers.get(row.field.id, {}).items()
            if self.engine.shows(snapshot.series[key].device)
        ]

    def _pinned(self, place: int, timeout: float) -> Snapshot | None:
        """Give this collection's snapshot. The place of an instrument grows in a collection: else it is a new one."""
        turn = self._turn
        if place <= getattr(turn, "place", place):
            turn.snapshot = self.engine.snapshot(timeout)
        turn.place = place
        snapshot: Snapshot | None = turn.snapshot
        return snapshot

    def _attributes_of(self, row: _Row, key: SeriesKey, snapshot: Snapshot) -> Mapping[str, str]:
        known = self._attributes.get((row.field.id, key))
        if known is None:
            series = snapshot.series[key]
            known = self._join.attributes(row.shape, series, texts=snapshot.labels.get(series.device.uuid, ()))
            self._attributes[row.field.id, key] = known
        return known


class Registration:
    """All our instruments on one provider, and the session that they report for, if any."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self._places: dict[str, int] = {}

    def create(self, provider: MeterProvider, session: Session) -> None:
        """Create the instruments of *session* that this provider does not have yet."""
        names = session.rows.keys() | ({HW_STATUS.name} if session.has_status else set())
        if names <= self._places.keys():
            return  # the stand-in for the global provider would keep every further meter
        meter = provider.get_meter("otelgpu", __version__, SCHEMA_URL)
        for name, rows in session.rows.items():
            if name in self._places:
                continue
            place = self._places[name] = len(self._places)
            field, shape, _ = rows[0]
            create = meter.create_observable_gauge
            if field.is_total:
                create = meter.create_observable_counter  # type: ignore[assignment]  # called in the same way
            elif name in UP_DOWN:
                create = meter.create_observable_up_down_counter  # type: ignore[assignment]  # the same
            create(name, callbacks=[_Report(self, name, place)], unit=shape.unit, description=help_in(field, shape))
        name = HW_STATUS.name
        if session.has_status and name not in self._places:
            report = _Report(self, name, self._places.setdefault(name, len(self._places)))
            meter.create_observable_up_down_counter(name, callbacks=[report], unit=HW_STATUS.unit, description=HELP)


class _Report:
    """The callback of one instrument."""

    __slots__ = ("_name", "_place", "_registration")

    def __init__(self, registration: Registration, name: str, place: int) -> None:
        self._registration = registration
        self._name = name
        self._place = place

    def __call__(self, options: CallbackOptions) -> Iterable[Observation]:
        """Give the points of this collection; nothing while nobody observes."""
        session = self._registration.session
        return () if session is None else session.points(self._name, self._place, options.timeout_millis / 1000)


class Registry:
    """The registrations of this process. `lock` guards them, also over a fork."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._known: WeakKeyDictionary[MeterProvider, Registration] = WeakKeyDictionary()
        self._of_global: Registration | None = None
        self._watches_forks = False

    def of(self, provider: MeterProvider) -> Registration:
        """Give the registration of *provider*, made where it is new."""
        found = self._known.get(provider)
        if found is None:
            is_global = provider is get_meter_provider()
            # The global provider can be set once; what was global before was the stand-in, whose instruments were
            # handed on to the one that was set.
            found = self._of_global if is_global and self._of_global is not None else Registration()
            if is_global:
                self._of_global = found
            self._known[provider] = found
        if not self._watches_forks:
            self._watches_forks = True
            os.register_at_fork(before=self._hold, after_in_parent=self._let_go, after_in_child=self._start_afresh)
        return found

    def _hold(self) -> None:
        self.lock.acquire()
        BUILDING.acquire()

    def _let_go(self) -> None:
        BUILDING.release()
        self.lock.release()

    def _start_afresh(self) -> None:
        """In the child of a fork: leave the parent's threads, locks and driver alone; begin at the next collection."""
        try:
            for registration in set(self._known.values()):
                if registration.session is not None:
                    registration.session = registration.session.renewed()
        finally:
            self._let_go()


REGISTRY = Registry()
