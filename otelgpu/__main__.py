"""The command `otelgpu`, which is `python -m otelgpu` too: what has to be done before anything is imported.

Rule 1: from here on a signal ends the process quietly. Until `serve` takes the signals over nothing is worth a word
        to the driver or to a client, and a command that only looks has nothing to tidy up at any time.
Rule 2: a standard stream that is closed is opened on /dev/null: a socket would else get its number, and with it all
        that is printed.
Rule 3: too few descriptors, threads or too little memory to start with is one line and status 1. With this little even
        an import fails, so nothing is imported for it.
"""

import errno
import os
import sys
from types import FrameType

FAILED = 1  # the status of what could not start


def dcgm_exporter() -> int:
    """Run this process as `dcgm-exporter`, which serves whatever its arguments are."""
    return main(drop_in=True)


def main(*, drop_in: bool = False) -> int:
    """Run the command of this process's arguments and give back the exit status."""
    try:
        _open_streams()
        _heed_signals(drop_in=drop_in)
        from otelgpu.cli import main as run

        status = run(drop_in=drop_in)
        _heed_no_signals()
    except Exception as error:
        lacking = _lacking(error)
        if lacking is None:
            raise
        _say(f"otelgpu: cannot start: {lacking}\n")
        os._exit(FAILED)  # at once: what is half built complains when Python tidies it up
    return status


def _open_streams() -> None:
    for number, mode in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # gets the lowest number that is free, which is this one


def _heed_signals(*, drop_in: bool) -> None:
    import signal  # here, so that a failure to import it is one line

    is_service = drop_in or _is_service(sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGINT):
        # A shell's script starts what it puts in the background with SIGINT ignored: a look leaves it at that.
        if is_service or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave_well if is_service else _leave)
    if is_service:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what it asks for, to read the settings, is about to be done


def _leave_well(_: int, __: FrameType | None) -> None:
    os._exit(0)


def _leave(number: int, _: FrameType | None) -> None:
    """End the process from within a signal handler; an exception could be lost in an import, or be printed."""
    os._exit(128 + number)


def _heed_no_signals() -> None:
    """From now on the status is known, and a signal while Python tidies up changes nothing."""
    import signal

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _is_service(arguments: list[str]) -> bool:
    """Tell whether this is `serve`, whose end is wanted whenever a signal comes."""
    return not arguments or arguments[0] == "serve" or arguments[0].startswith("-")


def _lacking(error: BaseException | None) -> str | None:
    """Say what the machine does not give; None when the error or what led to it is of another kind."""
    while error is not None:
        number = error.errno if isinstance(error, OSError) else None
        text = str(error) if isinstance(error, ImportError | RuntimeError | SystemError) else ""
        if isinstance(error, MemoryError) or number == errno.ENOMEM or any(words in text for words in _NO_MEMORY):
            return "there is not enough memory (ulimit -v, or the limit of the container)"
        if number in (errno.EMFILE, errno.ENFILE) or os.strerror(errno.EMFILE) in text:
            return "there are not enough file descriptors (ulimit -n)"
        if "can't start new thread" in text:
            return "there are not enough threads (ulimit -u, ulimit -v, or pids.max of the container)"
        error = error.__cause__ or error.__context__
    return None


# As the dynamic loader says it, and as Python does where it had no memory for the exception itself.
_NO_MEMORY = (
    "failed to map segment",
    os.strerror(errno.ENOMEM),
    "error return without exception set",
    "without setting an exception",
)


def _say(line: str) -> None:
    try:
        os.write(2, line.encode())
    except OSError:
        return  # nobody listens; the exit status still tells


if __name__ == "__main__":
    sys.exit(main())
