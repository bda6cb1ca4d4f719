"""A copy of some objects of the API server, kept up to date by a list and then a watch.

Rule 1: readers take the table as it is, whole; none of them ever waits for the server.
Rule 2: the table holds while a watch is open, and `expire` seconds longer; then nothing is known.
Rule 3: a fault is logged when it appears (or becomes another one) and when it clears.
"""

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

import msgspec

from otelgpu.attribution.apiobjects import Event, Failure, List, Object, decoded
from otelgpu.attribution.apiserver import GONE, Api, ApiError
from otelgpu.attribution.follower import Follower

logger = logging.getLogger(__name__)

PAGE = "250"  # objects of one page of a list
MOST_PAGES = 1000  # of one list: a quarter of a million objects, more than any cluster has
_LASTED = 5.0  # seconds after which a watch that ends without an event was a watch all the same
_MOST_SHORT = 5  # watches in a row that may end without having been one

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
_Key_co = TypeVar("_Key_co", bound=Hashable, covariant=True)
_Item_co = TypeVar("_Item_co", covariant=True)


class Listing(Protocol[_Key_co, _Item_co]):
    """What is mirrored: where it is listed, and what is kept of each object."""

    name: str  # as label `source`
    what: str  # for the log: what is unknown without it
    accept_list: str
    accept_watch: str

    def path(self, api: Api) -> str:
        """Find where the objects are listed; may ask the server. Raise ApiError."""

    def query(self) -> dict[str, str]:
        """Narrow the list down. Raise ApiError when it cannot be narrowed down."""

    def read(self, raw: bytes | msgspec.Raw) -> tuple[_Key_co, _Item_co]:
        """Read one object. Raise msgspec.MsgspecError."""


@dataclass(slots=True)
class _State:
    """What only the thread writes. `connected`: a watch is open; `heard_at`: when the server was last in reach.

    `told_at` is when it last said something: a connection is lost before that is noticed, and may look ended then.
    """

    connected: bool = False
    heard_at: float | None = None
    told_at: float | None = None
    problem: str | None = None
    finished: int = 0  # lists that were answered, or attempts that failed


class Mirror(Generic[Key, Item]):
    """Mirrors *listing*. *changed* is told, in the mirror's thread, each object that came, changed or went."""

    def __init__(
        self,
        api: Api,
        listing: Listing[Key, Item],
        *,
        expire: float,
        changed: Callable[[Key, bool], None] = lambda _key, _is_there: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = listing.name
        self._api = api
        self._listing = listing
        self._expire = expire
        self._changed = changed
        self._clock = clock
        self._table: Mapping[Key, Item] = MappingProxyType({})
        self._nothing: Mapping[Key, Item] = MappingProxyType({})
        self._state = _State()
        self._path = ""
        self._version = ""  # to watch from; "" before a list, and where nothing is known any more
        self._short = 0
        self._follower = Follower(f"otelgpu-{listing.name}", api, step=self._step, failed=self._failed)

    # for readers

    @property
    def is_up(self) -> bool | None:
        """Whether the server answered the last time; None before the first attempt has ended."""
        state = self._state
        return None if state.finished == 0 else state.connected or state.problem is None

    @property
    def age(self) -> float | None:
        """Seconds for which the table has not been kept up to date: 0 while a watch is open. None: never was."""
        state = self._state
        if state.heard_at is None:
            return None
        return 0.0 if state.connected else max(self._clock() - state.heard_at, 0.0)

    @property
    def told_at(self) -> float | None:
        """When the server last said something, by the clock; None when it never has."""
        return self._state.told_at

    @property
    def is_connected(self) -> bool:
        """Whether a watch is open, so that every change arrives."""
        return self._state.connected

    @property
    def finished(self) -> int:
        """How often a list was answered, or an attempt failed."""
        return self._state.finished

    def table(self) -> Mapping[Key, Item]:
        """Return what there is; the same object for as long as nothing changes."""
        age = self.age
        return self._table if age is not None and age <= self._expire else self._nothing

    # life

    def start(self) -> None:
        """Start to mirror; returns at once."""
        self._follower.start()

    def looked(self, timeout: float) -> bool:
        """Wait for the first list or failure, at most *timeout* seconds."""
        return self._follower.looked(timeout)

    def stop(self, timeout: float) -> bool:
        """End the question under way and the thread; False when it did not end in time. Safe to call twice."""
        return self._follower.stop(timeout)

    # the thread

    def _step(self) -> float:
        """List everything where that has to be, and watch until the server ends that; return the seconds to wait."""
        version, self._version = self._version, ""  # an error causes another list
        self._version, is_paused = self._watch(version or self._list())
        return self._follower.pause.take() if is_paused else 0.0

    def _list(self) -> str:
        """Read everything anew and return the version to watch from."""
        path = self._listing.path(self._api)
        query = self._listing.query() | {"limit": PAGE}
        found: dict[Key, Item] = {}
        for _ in range(MOST_PAGES):
            page = decoded(self._api.get(path, query, accept=self._listing.accept_list), List)
            for raw in page.items or ():
                key, item = self._read(raw)
                found[key] = item
            if not page.metadata.rest:
                break
            query["continue"] = page.metadata.rest
        else:
            raise ApiError(f"the API server's list has more than {MOST_PAGES} pages")
        self._path = path
        self._replace(found)
        self._heard()
        self._state.finished += 1
        self._follower.has_looked()
        return page.metadata.resource_version

    def _replace(self, found: dict[Key, Item]) -> None:
        before = self._table
        if found == before:
            return
        self._table = MappingProxyType(found)
        for key in before.keys() | found.keys():
            if before.get(key) != found.get(key):
                self._changed(key, key in found)

    def _watch(self, version: str) -> tuple[str, bool]:
        """Follow the changes until the server ends that; return the version to go on from, and if a pause is due."""
        began_at, events = self._clock(), 0
        query = self._listing.query() | {"resourceVersion": version, "allowWatchBookmarks": "true"}
        watch = self._api.watch(self._path, query, accept=self._listing.accept_watch)
        self._state.connected = True
        cut: ApiError | None = None
        while line := _next(watch):
            if isinstance(line, ApiError):
                cut = line
                break
            version = self._take(decoded(line, Event)) or version
            events += 1
            self._heard()
            self._say(None)  # not before: a watch that breaks each time would fill the log
            self._follower.pause.forget()
        self._state.heard_at = self._clock()
        self._state.connected = False
        if events or self._clock() - began_at >= _LASTED:
            # A watch may be cut by whatever stands in between, and is no fault: if nobody is there, the next one tells.
            self._short = 0
            self._say(None)
            self._follower.pause.forget()
        elif cut is not None:
            raise cut
        else:
            # A server that restarts ends a watch early; one, or something in between, that always does is in trouble.
            self._short += 1
            if self._short >= _MOST_SHORT:
                raise ApiError("the API server ends each watch at once")
        return version, cut is not None or not events or not version

    def _take(self, event: Event) -> str:
        if event.type == "ERROR":
            failure = decoded(event.object, Failure)
            raise ApiError(f"the watch ended: {failure.code} {failure.message[:200]}", status=failure.code)
        version = decoded(event.object, Object).metadata.resource_version
        if event.type in {"ADDED", "MODIFIED", "DELETED"}:
            key, item = self._read(event.object)
            table = {k: v for k, v in self._table.items() if k != key}
            is_there = event.type != "DELETED"
            if is_there:
                table[key] = item
            if table != self._table:
                self._table = MappingProxyType(table)
            self._changed(key, is_there)
        return version

    def _read(self, raw: bytes | msgspec.Raw) -> tuple[Key, Item]:
        try:
            return self._listing.read(raw)
        except msgspec.MsgspecError as error:
            raise ApiError(f"the API server sent an object that cannot be read: {error}") from None

    def _heard(self) -> None:
        self._state.heard_at = self._state.told_at = self._clock()

    def _failed(self, error: ApiError) -> bool:
        """Note a failure. That the server has forgotten a version (410) is none: everything is listed again."""
        self._state.connected = False
        if error.status == GONE or self._follower.is_stopped:
            return False
        is_news = self._say(str(error))
        self._state.finished += 1
        return is_news

    def _say(self, problem: str | None) -> bool:
        """Log what is wrong, or that nothing is any more, where that is news."""
        if problem == self._state.problem:
            return False
        if problem is None:
            logger.info("the API server answers again: %s is known", self._listing.what)
        else:
            logger.warning(
                "%s is unknown: %s; what was last known is shown for %g s", self._listing.what, problem, self._expire
            )
        self._state.problem = problem
        return True


def _next(watch: Iterator[bytes]) -> bytes | ApiError | None:
    """Take the next line of a watch: None at its end, an error where it was cut."""
    try:
        return next(watch, None)
    except ApiError as error:
        return error
