"""The thread that sends: one batch after the other, in order, until each is delivered or refused.

Rule 1: only the front of the buffer is sent; while a collector does not take it everything behind it waits.
Rule 2: a collector that says when to come back is taken at its word, from LEAST_ASKED up to LONGEST_ASKED: "at
        once" may be a date on another clock. Else the pause grows from one attempt to the next (pause.py).
Rule 3: a fault is logged when it appears and when it clears, never per attempt.
Rule 4: the thread never dies, and never keeps the process: it is a daemon, and `stop` waits only as long as it is told.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from otelgpu.export.push.buffer import Batch, Buffer
from otelgpu.export.push.outcome import Delivered, Failed, Outcome, Refused, Sender
from otelgpu.pause import Pause

logger = logging.getLogger(__name__)

LEAST_ASKED, LONGEST_ASKED = 1.0, 900.0  # seconds; a Retry-After of a day is a mistake


@dataclass(slots=True)
class Sent:
    """What has been counted; written by the pusher's thread alone."""

    batches: int = 0
    failed: int = 0  # attempts
    rejected_points: int = 0
    payload: int = 0  # bytes of delivered batches, compressed
    points: int = 0  # of delivered batches, without those that were rejected
    last_unix: float | None = None


@dataclass(slots=True)
class _Faults:
    """Which faults are known, so that each is told once."""

    away: bool = False
    told: set[str] = field(default_factory=set)


class Pusher:
    """Sends what is in the buffer. *pause* waits so many seconds, or until `stop`."""

    def __init__(
        self,
        buffer: Buffer,
        sender: Sender,
        *,
        what: str = "metrics",
        pause: Callable[[float], object] | None = None,
        draw: Callable[[], float] = random.random,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.sent = Sent()
        self._buffer = buffer
        self._sender = sender
        self._what = what
        self._wall = wall
        self._guard = threading.Lock()
        self._next: Sender | None = None
        self._is_stopped = False
        self._woken = threading.Event()  # to make the next attempt now
        self._rest = self._woken.wait if pause is None else pause
        self._pause = Pause(draw)
        self._faults = _Faults()
        self._thread = threading.Thread(target=self._run, name="otelgpu-push", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def turn_to(self, sender: Sender) -> None:
        """Send by another way from the next attempt on, which is made at once. What waits goes that way too.

        An attempt under way is not cut short, or a batch might arrive twice.
        """
        with self._guard:
            before, self._next = self._next, sender
        if before is not None:
            before.close()  # it was never used
        self._woken.set()

    def stop(self, timeout: float) -> bool:
        """Send what is left as far as it goes and end, within *timeout* seconds. Safe to call twice.

        Nothing is tried twice any more: a collector that does not answer now gets nothing. False when an attempt is
        still under way; it ends with the process.
        """
        self._is_stopped = True
        self._woken.set()
        self._buffer.close()
        if self._thread.ident is not None:
            self._thread.join(max(timeout, 0))
        is_ended = not self._thread.is_alive()
        self._sender.close()
        left = len(self._buffer)
        if left:
            place = self._sender.place
            logger.warning("%d batches of %s could not be delivered to %s before the end", left, self._what, place)
        return is_ended

    def _run(self) -> None:
        while (batch := self._buffer.head()) is not None:
            self._turn()
            outcome = self._outcome(batch)
            wait = self._settle(batch, outcome)
            if wait is None:
                continue
            if self._is_stopped:
                return
            self._rest(wait)  # ends at once when stopped: then the batch gets its last attempt

    def _turn(self) -> None:
        """Go over to the next sender, if there is one."""
        if not self._is_stopped:
            self._woken.clear()  # first: whoever sets it after this is heard in the pause
        with self._guard:
            following, self._next = self._next, None
        if following is not None:
            self._sender.close()
            self._sender = following
            self._pause.forget()

    def _outcome(self, batch: Batch) -> Outcome:
        try:
            return self._sender.send(batch.payload)
        except Exception as error:
            if "sender" not in self._faults.told:
                self._faults.told.add("sender")
                logger.exception("an attempt to send to %s failed in an unforeseen way", self._sender.place)
            return Failed(f"{type(error).__name__}: {error}")

    def _settle(self, batch: Batch, outcome: Outcome) -> float | None:
        """Act on an outcome; return how long to wait before the same batch is tried again, None for the next one."""
        match outcome:
            case Delivered():
                batch.arrived()
                self._buffer.done(batch)
                self._count(batch, outcome)
            case Refused(reason):
                self._buffer.done(batch, dropped="refused")
                self._pause.forget()
                self.sent.failed += 1
                self._tell("refused", f"%s refuses batches of {self._what}, which are dropped: %s", reason)
            case Failed(reason, after):
                self._buffer.failed(batch)
                self.sent.failed += 1
                if not self._faults.away:
                    self._faults.away = True
                    place = self._sender.place
                    logger.warning("%s takes no %s (%s); they are kept and sent later", place, self._what, reason)
                return self._wait(after)
        return None

    def _wait(self, asked: float | None) -> float:
        seconds = self._pause.take()  # also when it is not waited for: the next one is longer
        return seconds if asked is None or asked < LEAST_ASKED else min(asked, LONGEST_ASKED)

    def _count(self, batch: Batch, delivered: Delivered) -> None:
        self._pause.forget()
        self.sent.batches += 1
        rejected = min(max(delivered.rejected, 0), batch.points)  # no collector may say more of it than there was
        self.sent.points += batch.points - rejected
        self.sent.payload += len(batch.payload)
        self.sent.last_unix = self._wall()
        if self._faults.away:
            self._faults.away = False
            waiting = len(self._buffer)
            place = self._sender.place
            logger.info("%s takes %s again; %d more batches wait for it", place, self._what, waiting)
        if rejected:
            self.sent.rejected_points += rejected
            self._tell("rejected", "%s did not take some of the points: %s", delivered.message)
        elif delivered.message:
            self._tell("warned", "%s says: %s", delivered.message)
        else:
            self._faults.told.clear()

    def _tell(self, fault: str, message: str, reason: str) -> None:
        if fault not in self._faults.told:
            self._faults.told.add(fault)
            logger.warning(message, self._sender.place, reason)
