"""How something gets to stdout and stderr.

Rule 1: the only module that prints.
"""

import os
import sys
from contextlib import suppress
from shutil import get_terminal_size

from otelgpu.config.words import one_line
from otelgpu.errors import OtelgpuError


def width() -> int | None:
    """Give the columns of the terminal; None where stdout is none."""
    return get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def write(content: bytes | str) -> None:
    """Print to stdout. Raise OtelgpuError where that takes nothing, BrokenPipeError where nobody reads it any more."""
    if sys.stdout is None:  # closed before we began: `otelgpu once >&-`
        return
    data = content if isinstance(content, bytes) else content.encode(sys.stdout.encoding, "backslashreplace")
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        give_up_stdout()
        raise OtelgpuError(f"cannot write to stdout: {error.strerror}") from None


def give_up_stdout() -> None:
    """Let what is still in the buffer go nowhere: Python writes it at the end, and a failure there is status 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(*problems: str) -> None:
    """Print lines to stderr, after the name of the program."""
    if sys.stderr is None:  # print would take stdout instead
        return
    with suppress(OSError):  # nobody listens; the exit status still tells
        for problem in problems:
            print(f"otelgpu: {one_line(problem)}", file=sys.stderr)
