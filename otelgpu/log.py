"""The log: one line a message on stderr, as text or as JSON.

Rule 1: only cli.py calls this; inside somebody else's process the logging of that process is left alone.
Rule 2: one record is one line of plain print, whatever stands in it; a traceback too.
Rule 3: nobody waits for whoever reads the log: a line that stderr does not take at once is lost, and counted.
Rule 4: what is said again and again (a GPU that comes and goes) is said MOST times in WINDOW seconds. Then the last of
        what was held back follows, with the number of the others; it says how things stand.
"""

import copy
import json
import logging
import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from otelgpu.config.words import one_line

MOST = 5  # times that one message is logged
WINDOW = 60.0  # seconds
KNOWN = 256  # messages that are remembered
LEAVE = 1.0  # seconds for the thread that has been told to end

_OURS = "otelgpu"
_INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z")


class TextFormatter(logging.Formatter):
    """`2026-11-30T03:46:56Z INFO otelgpu.sampler: message`; line breaks inside are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{_instant(record.created)}Z {record.levelname} {record.name}: {record.getMessage()}"
        return one_line("\n".join((text, *_traces(record))))


class JsonFormatter(logging.Formatter):
    """One object a line: time (RFC 3339, UTC), level, logger, message, and exception where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": f"{_instant(record.created)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if traces := _traces(record):
            line["exception"] = "\n".join(traces)
        return json.dumps(line)


class UnwaitingHandler(logging.Handler):
    """Writes lines to a descriptor without ever waiting for it: a full pipe would stop every thread that logs."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLOUT)
        self._lost = 0
        self._is_torn = False  # the last line was written in part

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, or count it as lost."""
        try:
            line = self.format(record).encode("utf-8", errors="backslashreplace") + b"\n"
        except Exception:  # noqa: BLE001 - whatever a message's arguments do when they are formatted
            self.handleError(record)
            return
        head = f"(lost {self._lost} log lines: stderr was not read)\n".encode() if self._lost else b""
        if self._write((b"\n" if self._is_torn else b"") + head + line):
            self._lost = 0
        else:
            self._lost += 1

    def _write(self, text: bytes) -> bool:
        # A pipe that is ready takes PIPE_BUF bytes without waiting, whatever is in it.
        for start in range(0, len(text), select.PIPE_BUF):
            try:
                if not self._ready.poll(0):
                    self._is_torn = self._is_torn or start > 0
                    return False
                os.write(self._descriptor, text[start : start + select.PIPE_BUF])
            except OSError:
                return False  # closed, or a full disk: there is nobody to tell
            self._is_torn = False
        return True


@dataclass(slots=True)
class _Seen:
    """How often a message came since a moment, and the last one that was held back."""

    since: float
    times: int = 0
    held: logging.LogRecord | None = None


class SparingHandler(logging.Handler):
    """Passes records on to *target*, but one message at most MOST times in *window* seconds; debugging is not spared.

    Two messages are the same when they read the same, but for times of day.
    """

    def __init__(
        self, target: logging.Handler, *, window: float = WINDOW, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._target = target
        self._window = window
        self._clock = clock
        self._seen: dict[tuple[str, int, str], _Seen] = {}  # by when the window began
        self._guard = threading.RLock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def setFormatter(self, fmt: logging.Formatter | None) -> None:  # noqa: N802 - logging's own name
        super().setFormatter(fmt)
        self._target.setFormatter(fmt)

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one record on, or hold it back."""
        if record.levelno < logging.INFO:
            self._target.handle(record)
            return
        try:
            text = _INSTANT.sub("", record.getMessage())
        except Exception:  # noqa: BLE001 - whatever a message's arguments do when they are formatted
            self._target.handle(record)  # which knows what to do with it
            return
        with self._guard:
            self._pass_or_hold(record, (record.name, record.levelno, text))

    def pass_due(self) -> float | None:
        """Pass on what was held back long enough; return the seconds until more is due, None when nothing is held."""
        with self._guard:
            now = self._clock()
            over = [key for key, seen in self._seen.items() if now - seen.since >= self._window]
            for key in over:
                self._end(key)
            held = [seen.since for seen in self._seen.values() if seen.held is not None]
            return min(held) + self._window - now if held else None

    def close(self) -> None:
        """Pass on all that is held back; nothing is lost at the end."""
        self._ended.set()
        with self._guard:
            for key in tuple(self._seen):
                self._end(key)
            thread = self._thread
        if thread is not None:
            thread.join(LEAVE)
        self._target.close()
        super().close()

    def _pass_or_hold(self, record: logging.LogRecord, key: tuple[str, int, str]) -> None:
        self.pass_due()
        if len(self._seen) >= KNOWN and key not in self._seen:
            self._end(next(iter(self._seen)))
        seen = self._seen.setdefault(key, _Seen(self._clock()))
        seen.times += 1
        if seen.times <= MOST:
            self._target.handle(record)
        else:
            seen.held = record
            self._watch()

    def _end(self, key: tuple[str, int, str]) -> None:
        seen = self._seen.pop(key)
        if seen.held is None:
            return
        last = copy.copy(seen.held)
        others = seen.times - MOST - 1
        last.msg, last.args = f"{last.getMessage()} (and {others} times more in {self._window:g} s)", ()
        self._target.handle(seen.held if not others else last)

    def _watch(self) -> None:
        """See to it that what is held back is passed on although nothing else is logged."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="otelgpu-log", daemon=True)
            with suppress(RuntimeError):  # no thread to be had: the next record passes it on
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        left: float | None = self._window
        while left is not None and not self._ended.wait(left):
            with self._guard:
                left = self.pass_due()
                if left is None:
                    self._thread = None


def _handler() -> logging.Handler:
    try:
        return UnwaitingHandler(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # no stderr at all, or one that is no file
        return logging.StreamHandler(sys.stderr)


def set_up(*, level: str, form: Literal["text", "json"]) -> None:
    """Send otelgpu's messages from this level on to stderr, and the warnings of everything else. Can be repeated."""
    handler = SparingHandler(_handler())
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    old = [one for one in root.handlers if isinstance(one.formatter, TextFormatter | JsonFormatter)]
    # All at once: with none for a moment, logging would write what comes then as it stands.
    root.handlers = [*(one for one in root.handlers if one not in old), handler]
    for one in old:
        one.close()
    root.setLevel(logging.WARNING)
    logging.getLogger(_OURS).setLevel(level.upper())
    logging.captureWarnings(capture=True)


def _instant(created: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))


def _traces(record: logging.LogRecord) -> list[str]:
    traces = []
    if record.exc_info:
        traces.append(logging.Formatter().formatException(record.exc_info))
    if record.stack_info:
        traces.append(record.stack_info)
    return traces
