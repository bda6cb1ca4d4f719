"""WHEN the driver is asked: the one writer of snapshots.

Rule 1: readers call `refresh` and get an immutable Snapshot; they never meet the driver.
Rule 2: one sweep at a time; whoever wants a snapshot while one is under way waits for that one (single flight).
Rule 3: a snapshot holds what its own sweep read and nothing older. A reader that cannot wait for the end of a sweep
        gets a glance at what is there; it is that reader's alone and changes nothing for the others.
Rule 4: nobody asks, nothing is read, but at the start, at the pace of an interval, while GPUs lack, and after an XID.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Unpack

from otelgpu.fields import Field
from otelgpu.limit import Limit
from otelgpu.model import Device, Enter, Snapshot
from otelgpu.pause import LONGEST, Pause
from otelgpu.rounds import Rounds
from otelgpu.slots import Outcome
from otelgpu.snapshots import Assembler, Times
from otelgpu.sources import Source
from otelgpu.terms import Pace, Terms
from otelgpu.views import View

logger = logging.getLogger(__name__)

LOOK = 1.0  # seconds from one sweep to another that somebody wants without waiting for it
RELEASED = "it was let go of, as somebody asked; SIGUSR2 or POST /-/resume takes it again"
OVERDUE = 1.0  # seconds after its deadline that a sweep may take before something is wrong with this process
GRACE = 0.1  # seconds a reader allows for a sweep to be put together after its deadline


class Sampler:
    """Sweeps over all GPUs of one source, on demand or at a pace, and keeps the last snapshot.

    *wanted* are the fields asked for; *chosen* says which GPUs are looked at, and *all_seen* is called once, when it
    was asked about every GPU. *seen* hears of every sweep in the sampler's thread: it neither blocks nor raises.
    """

    def __init__(  # noqa: PLR0913 - all but two by name
        self,
        source: Source,
        wanted: Iterable[Field],
        *,
        pace: Pace,
        chosen: Callable[[Device], bool] = lambda _: True,
        all_seen: Callable[[], None] = lambda: None,
        view: View | None = None,
        enter: Enter | None = None,
        seen: Callable[[Snapshot], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._pace = pace
        self._clock = clock
        self._wall = wall
        self._seen = seen
        self._assembler = Assembler(wanted, heard=source.heard, view=view, enter=enter)
        self._limit = Limit(clock)
        self._changed = self._limit.changed
        self._rounds = Rounds(source, self._limit, chosen=chosen, all_seen=all_seen, returned=self._look_again)
        self._snapshot: Snapshot | None = None
        self._glance: Snapshot | None = None  # at the sweep under way
        self._finished = 0  # sweeps
        self._began_at: float | None = None  # the last one
        self._sweeping = self._wanted = self._is_released = False
        self._change: tuple[tuple[Field, ...], Callable[[], None], Terms] | None = None  # before the next sweep
        self._held_by: str | None = None  # why it could not be let go of
        self._pause, self._retry_at = Pause(), 0.0  # while the source is not there
        self._look_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="otelgpu-sampler", daemon=True)

    # for readers

    @property
    def sweeps(self) -> int:
        """How many sweeps have been finished."""
        return self._finished

    @property
    def dropped(self) -> dict[str, int]:
        """How many answers were dropped as impossible, by field name."""
        return dict(self._assembler.dropped)

    @property
    def latest(self) -> Snapshot | None:
        """The last snapshot, however old."""
        return self._snapshot

    def refresh(self, deadline: float | None = None, *, max_age: float | None = None) -> Snapshot | None:
        """Return a snapshot no older than *max_age* (`reuse`); block at most *deadline* (the pace's) seconds for it.

        When the sweep takes longer than a *deadline* that is shorter than the pace's: what has been answered by then.
        The last snapshot, however old, when not even that is there in time, and while the sampler waits before its
        next attempt to reach a driver that is not there. None only when there is none at all.
        """
        patience = self._pace.deadline if deadline is None else min(deadline, self._pace.deadline)
        with self._changed:
            if self._is_fresh(self._pace.reuse if max_age is None else max_age):
                return self._snapshot
            if not self._sweeping:
                self._wanted = True
                self._changed.notify_all()
            before = self._finished

            def is_over() -> bool:
                return self._finished != before or self._limit.stopped

            if patience >= self._pace.deadline:
                self._changed.wait_for(is_over, patience + GRACE)
            elif not self._changed.wait_for(is_over, patience):
                return self._looked(is_over) or self._snapshot
            return self._snapshot

    def _looked(self, is_over: Callable[[], bool]) -> Snapshot | None:
        """Glance at the sweep under way; None when it is over instead, or nothing is to be seen yet."""
        self._glance = None
        self._limit.is_looked_at = True
        self._changed.notify_all()
        self._changed.wait_for(lambda: is_over() or self._glance is not None, GRACE)
        return None if is_over() else self._glance

    def want(self, wanted: Iterable[Field], source: Callable[[], None], **terms: Unpack[Terms]) -> None:
        """Ask for something else, on other terms, from the next sweep on; *source*, called before it, tells the source.

        Block until that sweep has been made, for two deadlines at most: a GPU that hangs keeps nobody.
        """
        with self._changed:
            self._change = tuple(wanted), source, terms
            self._swept_anew(max(self._pace.deadline, terms["pace"].deadline))

    def look(self) -> None:
        """Have a sweep made soon, a second after the last one at the earliest; returns at once."""
        with self._changed:
            if self._look_at is None:
                self._look_at = max(self._clock(), (self._began_at or 0.0) + LOOK)
                self._changed.notify_all()

    def release(self) -> str | None:
        """Let go of the driver until `resume`; say why not, where it does not let go. Blocks for two deadlines."""
        with self._changed:
            self._is_released, self._held_by = True, "a sweep has not ended"
            self._swept_anew(self._pace.deadline)
            return self._held_by

    def _swept_anew(self, deadline: float) -> None:
        """Have a sweep made and wait for its end, for two deadlines: the one under way knows nothing of what is new."""
        before = self._finished + self._sweeping
        self._wanted = True
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._finished > before or self._limit.stopped, 2 * deadline + GRACE)

    def resume(self) -> None:
        """Take the driver again; returns at once."""
        with self._changed:
            self._is_released, self._wanted = False, True
            self._changed.notify_all()

    def why_not_ready(self) -> str | None:
        """Say why the last sweep was no good, or there is none; None while all is well. Nobody is waited for."""
        snapshot, began = self._snapshot, self._began_at
        if snapshot is None:
            return "the first sweep is under way"
        if self._sweeping and began is not None and self._clock() - began > self._pace.deadline + OVERDUE:
            return f"a sweep that began {self._clock() - began:.0f} s ago has not ended"
        if not snapshot.source_up:
            return snapshot.source_reason
        up = sum(state.up for state in snapshot.states)
        if up < self._pace.expected:
            return f"{up} of the {self._pace.expected} expected GPUs answer"
        if snapshot.states and not up:
            return f"no GPU answers: {snapshot.states[0].reason}"
        return None

    def why_not_alive(self) -> str | None:
        """Say why only a restart would help; None while all is well."""
        return None if self._thread.is_alive() or self._limit.stopped else "the sampler's thread has ended"

    # life

    def start(self) -> None:
        """Start the thread and the first sweep; returns at once."""
        with self._changed:
            self._wanted = True
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """End all threads and let go of the driver within *timeout* seconds. Safe to call twice.

        False when a driver call is still under way (one that is overdue is not waited for): shutting the driver down
        under a call is undefined, so it is left as it is, and the process has to leave without it.
        """
        until = time.monotonic() + timeout
        with self._changed:
            self._limit.stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive() and self._rounds.stop(until, self._pace.deadline)

    # the sampler's own thread

    def _look_again(self) -> None:
        """The source has answered after all: make a sweep now, or a pod that nobody scrapes would never be ready."""
        self._pause.forget()
        self._wanted = True  # also while a sweep is under way: that one has given the source up already
        self._changed.notify_all()

    def _is_fresh(self, max_age: float) -> bool:
        if self._snapshot is None or self._pace.interval is not None:
            return self._snapshot is not None
        waits = self._pause.seconds > 0 and self._clock() < self._retry_at
        return waits or (max_age > 0 and self._clock() - self._snapshot.at <= max_age)

    def _run(self) -> None:
        while self._await_turn():
            snapshot, is_known = None, False
            try:
                snapshot, is_known = self._sweep()
            except Exception:
                logger.exception("a sweep failed; the next one starts afresh")
            with self._changed:
                if is_known:
                    self._pause.forget()
                else:
                    self._retry_at = self._clock() + self._pause.take()
                self._snapshot = snapshot or self._snapshot
                self._sweeping = False
                self._glance = None
                self._finished += 1
                self._changed.notify_all()
            if snapshot is not None:
                self._seen(snapshot)

    def _await_turn(self) -> bool:
        with self._changed:
            while not self._limit.stopped and not self._wanted:
                left = self._until_next()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            self._limit.until = self._clock() + self._pace.deadline
            self._limit.is_looked_at = self._wanted = False
            self._look_at = None
            self._sweeping = not self._limit.stopped
            return self._sweeping

    def _until_next(self) -> float | None:
        """Seconds until a sweep nobody waits for: another attempt at a driver that is away, the pace's, or a look."""
        due = [] if self._look_at is None else [self._look_at]
        if self._pace.insists and self._began_at is not None and self.why_not_ready() is not None:
            due.append(self._began_at + LONGEST)  # or a pod that nobody scrapes would stay unready
        if self._pause.seconds and self._pace.insists:
            due.append(self._retry_at)
        elif self._pace.interval is not None and self._began_at is not None:
            due.append(self._began_at + self._pace.interval)
        return min(due) - self._clock() if due else None

    def _sweep(self) -> tuple[Snapshot | None, bool]:
        if self._change is not None:
            self._take_on(*self._change)
        started, started_unix = self._clock(), self._wall()
        self._began_at = started

        def snapshot_of(outcome: Outcome, *, is_glance: bool = False) -> Snapshot:
            now = self._clock()
            return self._assembler.snapshot(
                outcome.states,
                outcome.samples,
                facts=self._rounds.facts,
                reason=outcome.reason,
                # What was read for a glance may be as old as the sweep.
                times=Times(started if is_glance else now, self._wall(), started_unix, now - started),
                is_glance=is_glance,
            )

        def look(outcome: Outcome) -> None:
            self._glance = snapshot_of(outcome, is_glance=True)
            self._changed.notify_all()

        outcome = self._let_go() if self._is_released else self._rounds.ask(look)
        if self._limit.stopped:
            return None, True  # cut short: whoever has not answered is not late
        return snapshot_of(outcome), outcome.is_known

    def _take_on(self, wanted: Iterable[Field], source: Callable[[], None], terms: Terms) -> None:
        """Go over to what is wanted by now."""
        self._change = None
        source()
        self._pace, self._seen = terms["pace"], terms["seen"]
        self._limit.until = self._clock() + self._pace.deadline
        self._rounds.choose(terms["chosen"], terms["all_seen"])
        self._assembler.want(wanted, view=terms["view"], enter=terms["enter"], chosen=terms["chosen"])

    def _let_go(self) -> Outcome:
        self._held_by = self._rounds.release()
        reason = RELEASED if self._held_by is None else f"{RELEASED}; it does not let go: {self._held_by}"
        return Outcome(reason, is_known=True, states=[], samples=[])
