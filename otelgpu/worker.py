"""A thread that runs one job at a time, for calls that may never return.

Rule 1: a job that hangs keeps its own worker busy and nothing else; nobody waits here.
Rule 2: daemon threads only: a hung driver call must not keep the process from leaving.
Rule 3: a worker is idle again before its answer is delivered, or whoever acts on the answer would find it busy.
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
            return "the driver did not answer in time"
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - (time.monotonic() - since)))
        return f"the driver has not answered what was asked at {at}"

    def offer(self, job: Callable[[], T], deliver: Callable[[T], None]) -> bool:
        """Run *job* in the thread and hand what it returns to *deliver*, there too.

        False, and nothing happens, while another job is under way or after `stop`. A job that raises is logged and
        delivers nothing.
        """
        with self._lock:
            if self._busy_since is not None or self._stopped:
                return False
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                thread.start()
                self._thread = thread
            self._busy_since = time.monotonic()
            self._jobs.put(partial(self._do, job, deliver))  # under the lock: never behind the end that `stop` puts
            return True

    def stop(self) -> None:
        """Take no more jobs and let the thread end after the one under way. Safe to call twice."""
        with self._lock:
            self._stopped = True
            self._jobs.put(None)

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end; False when it is still held by its job after *timeout* seconds."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(max(timeout, 0))
        return not thread.is_alive()

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
