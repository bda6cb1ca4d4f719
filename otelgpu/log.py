"""The log: one line a message on stderr, as text or as JSON.

Rule 1: only cli.py calls this; inside somebody else's process the logging of that process is left alone.
Rule 2: one record is one line of plain print, whatever stands in it; a traceback too.
Rule 3: nobody waits for whoever reads the log: a line that stderr does not take at once is lost, and counted.
"""

import json
import logging
import os
import select
import sys
import time
from typing import Literal

from otelgpu.config.words import one_line

_OURS = "otelgpu"


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


def _handler() -> logging.Handler:
    try:
        return UnwaitingHandler(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # no stderr at all, or one that is no file
        return logging.StreamHandler(sys.stderr)


def set_up(*, level: str, form: Literal["text", "json"]) -> None:
    """Send otelgpu's messages from this level on to stderr, and the warnings of everything else. Can be repeated."""
    handler = _handler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    for old in tuple(root.handlers):
        if isinstance(old.formatter, TextFormatter | JsonFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
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
