"""One process that asks the driver: started, asked, and ended from here.

Rule 1: whoever asks waits for the answer in its own thread; when the process ends, all of them hear why.
Rule 2: the program is this Python with this path, started by posix_spawn: multiprocessing would start a second process
        beside it, to look after shared memory that nobody uses here.
Rule 3: the process ends when the socket does. Nothing else has to be done, by anybody, at any kind of end of this one.
"""

import itertools
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from otelgpu import events
from otelgpu.errors import SourceDownError
from otelgpu.sources import DeviceDownError
from otelgpu.sources.isolated.wire import (
    Answer,
    Ask,
    Begin,
    DeviceDown,
    Logged,
    SourceDown,
    Stream,
    Told,
    of_child,
)
from otelgpu.sources.nvml.order import Order

logger = logging.getLogger(__name__)

PROGRAM = "otelgpu.sources.isolated.child"
CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})


class _Wait:
    """Somebody who waits for an answer."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.is_over = threading.Event()


class Process:
    """A running child. Raise OSError when none can be started; *told* hears of XIDs, in a thread of this one."""

    def __init__(self, order: Order, told: events.Told) -> None:
        self.began_at = self.ended_at = time.monotonic()
        self.is_silent = False  # it did not say what it knows by heart (it may be frozen), and nothing since
        self._told = told
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._waits: dict[int, _Wait] = {}
        self._end: str | None = None  # why it is no more
        self._gone = threading.Event()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._pid = _spawned(theirs)
            except OSError:
                ours.close()
                raise
        self._stream = Stream(ours)
        self._socket = ours
        threading.Thread(target=self._listen, name="otelgpu-isolated", daemon=True).start()
        self.want(order, told)

    def want(self, order: Order, told: events.Told) -> None:
        """Have an order carried out."""
        self._told = told
        with suppress(OSError):  # then it has ended already, which whoever asks is told
            self._stream.send(Begin(order, logging.getLogger("otelgpu").getEffectiveLevel()))

    @property
    def end(self) -> str | None:
        """Say why it is no more; None while it runs."""
        return self._end

    def ask(self, ask: Ask, limit: float, late: Callable[[], None] | None = None) -> Answer | None:
        """Have a call made there, and wait for its answer for *limit* seconds; then it is None.

        With *late* it is waited for until it comes; *late* is called each time the limit has passed. Raise the two
        errors of a source that the call may raise, and SourceDownError when the process has ended.
        """
        number = next(self._numbers)
        wait = _Wait()
        with self._lock:
            if self._end is not None:
                raise SourceDownError(self._end)
            self._waits[number] = wait
        try:
            with suppress(OSError):  # _listen sees the end too
                self._stream.send(replace(ask, number=number))
            while not wait.is_over.wait(limit) and late is not None:
                late()
        finally:
            with self._lock:
                self._waits.pop(number, None)
        answer = wait.answer
        if isinstance(answer, DeviceDown):
            raise DeviceDownError(answer.gap, answer.reason)
        if isinstance(answer, SourceDown):
            raise SourceDownError(answer.reason)
        if answer is None and self._end is not None:
            raise SourceDownError(self._end)
        return answer

    def abandon(self, reason: str) -> None:
        """Kill it, and tell everybody who waits *reason*."""
        self._tell_all(reason)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._stream.end()

    def leave(self, reason: str) -> None:
        """Close the connection, on which it ends by itself."""
        self._tell_all(reason)
        self._stream.end()

    def is_gone(self, limit: float = 0.0) -> bool:
        """Whether it has ended, within *limit* seconds."""
        return self._gone.wait(limit)

    def _listen(self) -> None:
        for body in self._stream.messages():
            message = of_child.decode(body)
            self.is_silent = False
            if isinstance(message, Logged):
                logging.getLogger(message.name).log(message.level, "%s", message.text)
            elif isinstance(message, Told):
                self._told(message.xid)
            else:
                with self._lock:
                    wait = self._waits.get(message.number)
                if wait is not None:
                    wait.answer = message
                    wait.is_over.set()
        why = self._ended()
        self._socket.close()
        self._gone.set()
        self._tell_all(why)

    def _ended(self) -> str:
        """Wait for the end, and say how it came."""
        try:
            _, status = os.waitpid(self._pid, 0)
        except ChildProcessError:  # whoever else waits for the children of this process was first
            return "the process that asks the driver has ended"
        if not os.WIFSIGNALED(status):
            return f"the process that asks the driver has ended with status {os.waitstatus_to_exitcode(status)}"
        number = os.WTERMSIG(status)
        if number in CRASHES:
            return f"the driver library has crashed ({signal.Signals(number).name}), and is loaded again"
        return f"the process that asks the driver was ended by {signal.Signals(number).name}, and is started again"

    def _tell_all(self, reason: str) -> None:
        with self._lock:
            if self._end is None:
                self._end, self.ended_at = reason, time.monotonic()
            waits = list(self._waits.values())
        for wait in waits:
            wait.is_over.set()


def _spawned(connection: socket.socket) -> int:
    """Start the program, with *connection* as its standard input; return its process id."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109 - a text is wanted
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-P", "-m", PROGRAM],
        os.environ | {"PYTHONPATH": path, "MALLOC_ARENA_MAX": "1"},  # a heap for each thread would cost megabytes
        file_actions=[(os.POSIX_SPAWN_DUP2, connection.fileno(), 0)],
    )
