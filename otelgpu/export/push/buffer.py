"""Batches that are not delivered yet: bounded in bytes and in age, the oldest dropped first and counted.

Rule 1: a batch is compressed bytes with its own timestamps inside; nothing here looks into it.
Rule 2: in at the end, out at the front; the batch that is being sent stays at the front until it is done with.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One request, gzipped, with so many points (or log records); `made_at` is monotonic.

    `arrived` is called once it was delivered.
    """

    payload: bytes
    points: int
    made_at: float
    arrived: Callable[[], object] = lambda: None


class Buffer:
    """A queue of batches, of at most *most_bytes* and *most_seconds*. Safe to use from any thread."""

    def __init__(self, *, most_bytes: int, most_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.dropped: Counter[str] = Counter()  # batches, by reason
        self.lost: Counter[str] = Counter()  # points (or log records), by reason
        self._most_bytes = most_bytes
        self._most_seconds = most_seconds
        self._clock = clock
        self._batches: deque[Batch] = deque()
        self._bytes = 0
        self._closed = False
        self._out: Batch | None = None  # what `head` gave: an attempt to deliver it is under way
        self._doomed = ""  # why there was no room for it any more, until it is known whether it has arrived
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._batches)

    def limit(self, *, most_bytes: int, most_seconds: float) -> None:
        """Hold other limits from the next batch on."""
        self._most_bytes, self._most_seconds = most_bytes, most_seconds

    @property
    def dropped_points(self) -> int:
        """How many points were in the batches that were dropped."""
        return self.lost.total()

    @property
    def size(self) -> int:
        """How many bytes are waiting."""
        return self._bytes

    def put(self, payload: bytes, points: int, arrived: Callable[[], object] = lambda: None) -> None:
        """Add a batch, and drop the oldest ones where it does not fit."""
        with self._changed:
            self._batches.append(Batch(payload, points, self._clock(), arrived))
            self._bytes += len(payload)
            while self._bytes > self._most_bytes:
                self._drop("full")
            self._drop_old()
            self._changed.notify_all()

    def head(self) -> Batch | None:
        """Wait for a batch and return it without taking it out; None once the buffer is closed and empty."""
        with self._changed:
            while True:
                self._drop_old()
                if self._batches:
                    self._out = self._batches[0]
                    return self._out
                if self._closed:
                    return None
                self._changed.wait()

    def done(self, batch: Batch, *, dropped: str = "") -> None:
        """Take out the batch that `head` gave, if it is still there; *dropped* says why, when it was not delivered."""
        with self._changed:
            if batch is self._out:
                self._bury(is_gone=bool(dropped))
            if self._batches and self._batches[0] is batch:
                if dropped:
                    self._drop(dropped)
                else:
                    self._take()

    def failed(self, batch: Batch) -> None:
        """Note that an attempt with the batch that `head` gave has failed; it stays where it is."""
        with self._changed:
            if batch is self._out:
                self._bury()

    def close(self) -> None:
        """Let `head` return None when nothing is left."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _take(self) -> Batch:
        batch = self._batches.popleft()
        self._bytes -= len(batch.payload)
        return batch

    def _drop(self, reason: str) -> None:
        batch = self._take()
        if batch is self._out:
            self._doomed = reason
        else:
            self._count(batch, reason)

    def _bury(self, *, is_gone: bool = True) -> None:
        """Count a batch that was dropped during an attempt to deliver it, unless that was the one that succeeded."""
        if self._doomed and self._out is not None and is_gone:
            self._count(self._out, self._doomed)
        self._out, self._doomed = None, ""

    def _count(self, batch: Batch, reason: str) -> None:
        self.dropped[reason] += 1
        self.lost[reason] += batch.points

    def _drop_old(self) -> None:
        oldest = self._clock() - self._most_seconds
        while self._batches and self._batches[0].made_at < oldest:
            self._drop("expired")
