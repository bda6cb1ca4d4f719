"""The process that asks the driver for another one: `python -m otelgpu.sources.isolated.child`, its socket as stdin.

Rule 1: the main thread reads the socket and never calls the driver. When the other end is gone it leaves at once,
        whatever the driver holds: this process never outlives the one it works for, but for a call that is in
        uninterruptible sleep.
Rule 2: every call is made in a thread of its own until it returns; threads that are free are used again.
Rule 3: it decides nothing. Signals are for the other process too, which ends this one.
"""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue

from otelgpu.errors import SourceDownError
from otelgpu.events import Xid
from otelgpu.sources import DeviceDownError, Source
from otelgpu.sources.isolated.wire import (
    Answer,
    Ask,
    Begin,
    Broken,
    Count,
    DeviceDown,
    Done,
    Logged,
    SourceDown,
    Stream,
    There,
    Told,
    of_parent,
    packed,
    packed_readings,
)
from otelgpu.sources.nvml.order import fields_of, go_over, source_for

logger = logging.getLogger(__name__)

Job = Callable[[], None]


class Threads:
    """Runs jobs at the same time, in daemon threads. Used by one thread."""

    def __init__(self) -> None:
        self._free: SimpleQueue[SimpleQueue[Job]] = SimpleQueue()

    def run(self, job: Job) -> None:
        """Run a job in a thread that is free, or a new one."""
        if self._free.empty():
            jobs: SimpleQueue[Job] = SimpleQueue()
            jobs.put(job)
            threading.Thread(target=self._work, args=(jobs,), daemon=True).start()
        else:
            self._free.get().put(job)

    def _work(self, jobs: SimpleQueue[Job]) -> None:
        while True:
            jobs.get()()
            self._free.put(jobs)


class Passing(logging.Handler):
    """Passes log messages to the other process, which has the log."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one on, a traceback with it."""
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
        with suppress(OSError):  # the main thread sees that too, and leaves
            self._stream.send(Logged(record.name, record.levelno, text))


def main() -> None:
    """Work until the other process closes the connection, or ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    try:
        _serve(Stream(socket.socket(fileno=0)))
    finally:
        os._exit(0)


def _serve(stream: Stream) -> None:
    messages = map(of_parent.decode, stream.messages())
    begin = next(messages, None)
    if not isinstance(begin, Begin):
        return
    logging.getLogger().addHandler(Passing(stream))
    logging.getLogger("otelgpu").setLevel(begin.level)

    def told(xid: Xid) -> None:
        with suppress(OSError):
            stream.send(Told(xid))

    source = source_for(begin.order, told, fields_of(begin.order))
    threads = Threads()
    for ask in messages:
        if not isinstance(ask, Ask):
            logging.getLogger("otelgpu").setLevel(ask.level)
            go_over(source, ask.order, told, fields_of(ask.order))
        elif ask.what in _AT_ONCE:
            _answer(stream, source, ask)
        else:
            threads.run(partial(_answer, stream, source, ask))


_AT_ONCE = frozenset({"so_far", "heard"})  # these do not ask the driver


def _answer(stream: Stream, source: Source, ask: Ask) -> None:
    try:
        answer = _called(source, ask)
    except DeviceDownError as error:
        answer = DeviceDown(ask.number, error.gap, str(error))
    except SourceDownError as error:
        answer = SourceDown(ask.number, str(error))
    except Exception as error:
        logger.exception("%s failed; this is a defect of otelgpu", ask.what)
        answer = Broken(ask.number, repr(error))
    with suppress(OSError):
        stream.send(answer)


def _called(source: Source, ask: Ask) -> Answer:
    number = ask.number
    if ask.what == "count":
        return Count(number, source.count(), source.facts())
    if ask.what == "device":
        return There(number, source.device(ask.slot))
    if ask.what == "read":
        return packed(number, source.read(ask.slot))
    if ask.what == "so_far":
        sample = source.so_far(ask.slot, ask.reason)
        return Done(number) if sample is None else packed(number, sample)
    if ask.what == "heard" and ask.device is not None:
        return packed_readings(number, ask.device, source.heard(ask.device))
    source.close()
    return Done(number)


if __name__ == "__main__":
    main()
