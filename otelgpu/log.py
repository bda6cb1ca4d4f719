"""The log: one line a message on stderr, as text or as JSON.

Rule 1: only cli.py calls this; inside somebody else's process the logging of that process is left alone.
Rule 2: one record is one line of plain print, whatever stands in it; a traceback too.
"""

import json
import logging
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


def set_up(*, level: str, form: Literal["text", "json"]) -> None:
    """Send otelgpu's messages from this level on to stderr, and the warnings of everything else. Can be repeated."""
    handler = logging.StreamHandler(sys.stderr)
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
