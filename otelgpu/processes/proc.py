"""What /proc tells of a process.

Rule 1: a process is its id and its start: an id is used again, and what was known of the one before is forgotten then.
Rule 2: an id means the same to the driver and to /proc only in the host's process id namespace. Elsewhere 7 is
        somebody else, and a wrong owner is worse than none: `obstacle` says so, and nothing is looked up.
Rule 3: nothing that may wait for the process itself is read (its command line, its memory map).
"""

import os
import re
import time
from pathlib import Path
from typing import NamedTuple

_HOST = "pid:[4026531836]"  # PROC_PID_INIT_INO of Linux's include/linux/proc_ns.h
_START = 19  # the place of field 22 (proc(5)) behind the name, which may hold anything, parentheses too
_TICKS = os.sysconf("SC_CLK_TCK")  # a second
_MOST = 65536  # bytes
_LONGEST = 64  # characters of a name; the kernel keeps 15 bytes, and up to 63 of its own threads
_USER = re.compile(r"^Uid:\s+([0-9]+)", re.MULTILINE)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Started(NamedTuple):
    """One process: its start, in clock ticks since the boot, and its name as it gave it."""

    ticks: int
    name: str


class ProcFolder:
    """Reads /proc, or where it is mounted. What is gone is None; so is what makes no sense."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = root

    def obstacle(self) -> str | None:
        """Say why ids here are not those of the driver; None where they are."""
        path = Path(self._root, "self", "ns", "pid")
        try:
            there = str(path.readlink())
        except OSError as error:
            return f"{path}: {error.strerror or error}"
        if there == _HOST:
            return None
        return f"{path} is {there} and not the host's process id namespace (hostPID: true, or --pid=host, gives it)"

    def started(self, pid: int) -> Started | None:
        """Say which process has this id now."""
        text = self._read(pid, "stat")
        head, parenthesis, tail = text.rpartition(")")
        parts = tail.split()
        if not parenthesis or len(parts) <= _START or not parts[_START].isdecimal():
            return None
        return Started(int(parts[_START]), head.partition("(")[2])

    def age(self, ticks: int) -> float:
        """Say how long ago it was that a process started, in seconds, which a clock that is set does not change."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / _TICKS

    def groups(self, pid: int) -> str:
        """Give its control groups, as they stand there; "" for a process that is gone."""
        return self._read(pid, "cgroup")

    def user(self, pid: int) -> str:
        """Give the number of the user it runs as; "" for a process that is gone."""
        found = _USER.search(self._read(pid, "status"))
        return found[1] if found else ""

    def _read(self, pid: int, name: str) -> str:
        try:
            file = os.open(f"{self._root}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            return os.read(file, _MOST).decode("utf-8", "replace")
        except OSError:  # it ended between the two
            return ""
        finally:
            os.close(file)


def printable(name: str) -> str:
    """Make a name fit for a label: a process may call itself anything."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", name)[:_LONGEST]
