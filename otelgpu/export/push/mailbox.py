"""What is told to the thread that makes events of it: XIDs and sweeps, bounded in number and in rate.

Rule 1: whoever tells (the thread that waits for the driver's events, the sampler) never waits, and meets no error.
Rule 2: the first BURST equal XIDs of a GPU in a stretch of STRETCH seconds stand alone; what comes on top, until a
        stretch goes by without any, is one entry a stretch, with how many there were.
Rule 3: what does not fit is dropped and counted. Of the sweeps only the last few are kept: a state that was missed
        between two of them is over anyway.
Rule 4: an XID waits for the first sweep, which says what GPU it is about.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from otelgpu.events import Xid
from otelgpu.model import Snapshot

BURST = 10
STRETCH = 1.0  # seconds
MOST_XIDS = 1000  # that wait, and kinds of XID that are told apart in one stretch
MOST_SWEEPS = 4

_Kind: TypeAlias = tuple[str, int, int | None, int | None]


class Told(NamedTuple):
    """What has been told since the last time."""

    xids: list[Xid]
    sweeps: list[Snapshot]


@dataclass(slots=True)
class _Stretch:
    """What came of one kind of XID. `left`: how many may still stand alone; `rest` are the others, as one."""

    ends_at: float
    left: int = BURST
    rest: Xid | None = None


class Mailbox:
    """Takes XIDs and sweeps from any thread, and gives them to one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.dropped = 0  # XIDs
        self._clock = clock
        self._xids: deque[Xid] = deque()
        self._sweeps: deque[Snapshot] = deque(maxlen=MOST_SWEEPS)
        self._stretches: dict[_Kind, _Stretch] = {}
        self._has_swept = False
        self._closed = False
        self._changed = threading.Condition()

    def put_xid(self, xid: Xid) -> None:
        """Take an XID."""
        with self._changed:
            if self._closed:
                return
            kind = xid.uuid, xid.code, xid.instance_id, xid.compute_id
            stretch = self._stretches.get(kind)
            if stretch is None:
                if len(self._stretches) >= MOST_XIDS:
                    self.dropped += xid.times
                    return
                stretch = self._stretches[kind] = _Stretch(self._clock() + STRETCH)
            if stretch.rest is not None:
                stretch.rest = stretch.rest._replace(times=stretch.rest.times + xid.times)
            elif stretch.left:
                stretch.left -= 1
                self._add(xid)
                self._changed.notify_all()
            else:
                stretch.rest = xid

    def put_sweep(self, snapshot: Snapshot) -> None:
        """Take a sweep."""
        with self._changed:
            self._has_swept = True
            self._sweeps.append(snapshot)
            self._changed.notify_all()

    def take(self) -> Told | None:
        """Wait for something and return all there is; None once the mailbox is closed and empty."""
        with self._changed:
            while True:
                due = self._end_stretches()
                if self._sweeps or (self._xids and (self._has_swept or self._closed)):
                    told = Told(list(self._xids), list(self._sweeps))
                    self._xids.clear()
                    self._sweeps.clear()
                    return told
                if self._closed:
                    return None
                self._changed.wait(due)

    def close(self) -> None:
        """Take nothing any more, and let `take` return None when nothing is left."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _add(self, xid: Xid) -> None:
        if len(self._xids) >= MOST_XIDS:
            self.dropped += xid.times
        else:
            self._xids.append(xid)

    def _end_stretches(self) -> float | None:
        """Tell what came on top in the stretches that are over; return the seconds to the end of the next one."""
        now = self._clock()
        for kind, stretch in list(self._stretches.items()):
            if stretch.ends_at > now and not self._closed:
                continue
            rest = stretch.rest
            if rest is None:
                del self._stretches[kind]
            else:
                self._add(rest)
                self._stretches[kind] = _Stretch(now + STRETCH, left=0)
                if self._closed:
                    del self._stretches[kind]
        ends = [stretch.ends_at for stretch in self._stretches.values()]
        return max(min(ends) - now, 0.0) if ends else None
