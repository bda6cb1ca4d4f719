"""A thread that runs one job at a time, for calls that may never return.

Rule 1: a job that hangs keeps its own worker busy and nothing else; nobody waits here.
Rule 2: daemon threads only: a hung driver call must not keep the process from leaving.
Rule 3: a thread that cannot be started is tried again with the next job; it is logged when the first worker lacks its
        thread and when none does any more, and `why_no_thread` tells.
Rule 4: a worker is idle again before its answer is delivered, or whoever acts on the answer would find it busy.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


def why_no_thread() -> str | None:
    """Say which workers of this process lack their thread; None while none does."""
    return _LACK.reason


class _Lack:
    """The workers whose thread could not be started. A limit on threads holds for the process, so there is one list."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._lock = threading.Lock()
        self._workers: dict[Worker, None] = {}  # the first one first

    def begins(self, worker: "Worker", problem: str) -> None:
        """Note that this worker lacks its thread."""
        with self._lock:
            self._workers[worker] = None
            first, others = next(iter(self._workers)), len(self._workers) - 1
            more = f" and {others} more" if others else ""
            limits = "ulimit -u, ulimit -v, or pids.max of the container"
            reason = f"no thread for {first.name}{more}: {problem} ({limits})"
            is_new, self.reason = self.reason is None, reason
        if is_new:
            logger.error("%s; it is tried again with every question", reason)

    def ends(self, worker: "Worker", *, has_thread: bool) -> None:
        """Note that this worker has its thread, or needs none any more."""
        with self._lock:
            if worker not in self._workers:
                return
            del self._workers[worker]
            is_over = not self._workers
            if is_over:
                self.reason = None
        if is_over and has_thread:
            logger.info("every worker has its thread again")


_LACK = _Lack()


class Worker:
    """One daemon thread, started with the first job. A second job is refused while one is under way."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._busy_since: float | None = None
        self._stopped = False

    @property
    def busy_since(self) -> float | None:
        """When the job under way was taken (monotonic); None while idle."""
        return self._busy_since

    def why_late(self) -> str:
        """Say why there is no answer."""
        since = self._busy_since
        if since is None:
            return _LACK.reason or "the driver did not answer in time"
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - (time.monotonic() - since)))
        return f"the driver has not answered what was asked at {at}"

    def offer(self, job: Callable[[], T], deliver: Callable[[T], None]) -> bool:
        """Run *job* in the thread and hand what it returns to *deliver*, there too.

        False, and nothing happens, while another job is under way, after `stop`, and when no thread can be started. A
        job that raises is logged and delivers nothing.
        """
        with self._lock:
            if self._busy_since is not None or self._stopped:
                return False
            if self._thread is None and not self._start():
                return False
            self._busy_since = time.monotonic()
            self._jobs.put(partial(self._do, job, deliver))  # under the lock: never behind the end that `stop` puts
            return True

    def stop(self) -> None:
        """Take no more jobs and let the thread end after the one under way. Safe to call twice."""
        with self._lock:
            self._stopped = True
            self._jobs.put(None)
        _LACK.ends(self, has_thread=False)

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end; False when it is still held by its job after *timeout* seconds."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(max(timeout, 0))
        return not thread.is_alive()

    def _start(self) -> bool:
        thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # what Python makes of a failed pthread_create
            _LACK.begins(self, str(error))
            return False
        self._thread = thread
        _LACK.ends(self, has_thread=True)
        return True

    def _do(self, job: Callable[[], T], deliver: Callable[[T], None]) -> None:
        try:
            answer = job()
        finally:
            self._busy_since = None
        deliver(answer)

    def _run(self) -> None:
        while (task := self._jobs.get()) is not None:
            try:
                task()
            except Exception:
                logger.exception("%s: a job failed; the thread goes on", self.name)
            del task  # or an idle thread would keep the last sweep's answers
