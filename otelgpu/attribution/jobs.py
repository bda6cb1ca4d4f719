"""Which batch jobs use a GPU: the files that a scheduler's prolog writes.

    0      jobs on GPU 0, one a line
    0.7    jobs on GPU instance 7 of GPU 0

Rule 1: files are read in the background, and only when they have changed; a slow disk costs no scrape.
Rule 2: a file that cannot be read or believed is skipped and counted; the others count.
Rule 3: a fault is logged when it appears and when it clears.
"""

import logging
import os
import re
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from otelgpu.attribution.background import Background

logger = logging.getLogger(__name__)

MOST_BYTES = 1024 * 1024  # of a file; more is no list of jobs
LONGEST_JOB = 1024  # characters
MOST_JOBS = 256  # of a GPU; each of them has a copy of every series, and a file that is never emptied grows
_NUMBER = "0|[1-9][0-9]{0,8}"  # written one way only: each GPU has one file
_NAME = re.compile(rf"({_NUMBER})(?:\.({_NUMBER}))?")

Place = tuple[int, int | None]  # GPU number, and GPU instance where it is one
JobTable = Mapping[Place, tuple[str, ...]]
NO_JOBS: JobTable = MappingProxyType({})


class _Read(NamedTuple):
    """A file as it was read: what told that it is still the same, its jobs, and what is wrong with it."""

    mark: tuple[int, ...]
    jobs: tuple[str, ...]
    problem: str | None = None


class Jobs:
    """Looks at the folder every *refresh* seconds."""

    name = "jobs"

    def __init__(self, folder: str, *, refresh: float) -> None:
        self._folder = Path(folder)
        self._files: dict[str, _Read] = {}
        self._table = NO_JOBS
        self._looked_at: float | None = None
        self._problem: str | None = None
        self._finished = 0
        self._background = Background("otelgpu-jobs", self._look, period=refresh)

    # for readers

    @property
    def is_up(self) -> bool | None:
        """Whether the folder could be read; None before the first look."""
        return self._problem is None if self._finished else None

    @property
    def age(self) -> float | None:
        """Seconds since the folder was last read; None when it never was."""
        looked_at = self._looked_at
        return None if looked_at is None else max(time.monotonic() - looked_at, 0.0)

    @property
    def skipped(self) -> int:
        """How many files are skipped now."""
        return sum(file.problem is not None for file in self._files.values())

    @property
    def finished(self) -> int:
        """How often the folder was looked at."""
        return self._finished

    def table(self) -> JobTable:
        """Return the jobs of each GPU and instance that has any; the same object for as long as nothing changes."""
        return self._table

    # life

    def start(self) -> None:
        """Start looking; returns at once."""
        self._background.start()

    def looked(self, timeout: float) -> bool:
        """Wait for the end of the first look, at most *timeout* seconds."""
        return self._background.looked(timeout)

    def hurry(self) -> None:
        """Look again now."""
        self._background.wake()

    def stop(self, timeout: float) -> bool:
        """End the thread; False when the disk holds it. Safe to call twice."""
        return self._background.stop(timeout)

    # the thread

    def _look(self) -> None:
        try:
            names = sorted(name for name in os.listdir(self._folder) if _NAME.fullmatch(name))  # noqa: PTH208 - names
        except OSError as error:
            names = []
            self._say(f"{self._folder}: {error.strerror or error}; no job is shown")
        else:
            self._looked_at = time.monotonic()
            self._say(None)
        files = {name: file for name in names if (file := self._file(name)) is not None}
        for name, file in files.items():
            self._say_of(name, file)
        self._files = files
        table = {_place(name): file.jobs for name, file in files.items() if file.jobs}
        if table != self._table:
            self._table = MappingProxyType(table)
        self._finished += 1

    def _file(self, name: str) -> _Read | None:
        """Read a file unless it is as it was; None for one that is gone, or is a folder."""
        path = self._folder / name
        mark: tuple[int, ...] = ()  # a file without one is tried again at each look
        try:
            found = path.stat()
            if stat.S_ISDIR(found.st_mode):
                return None
            known = self._files.get(name)
            seen = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
            if known is not None and known.mark == seen:
                return known
            jobs = _jobs(path, found)
            mark = seen
        except FileNotFoundError:
            return None
        except OSError as error:
            return _Read(mark, (), error.strerror or str(error))
        except ValueError as error:
            return _Read(seen, (), str(error))
        return _Read(mark, jobs)

    def _say(self, problem: str | None) -> None:
        if problem == self._problem:
            return
        if problem is None:
            logger.info("%s can be read", self._folder)
        else:
            logger.warning("%s", problem)
        self._problem = problem

    def _say_of(self, name: str, file: _Read) -> None:
        known = self._files.get(name)
        before = None if known is None else known.problem
        if file.problem == before:
            return
        if file.problem is None:
            logger.info("%s/%s can be read", self._folder, name)
        else:
            logger.warning("%s/%s is skipped: %s", self._folder, name, file.problem)


def _jobs(path: Path, found: os.stat_result) -> tuple[str, ...]:
    """List the jobs of a file, each once. Raise ValueError for what cannot be a list of jobs."""
    if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for somebody who writes
        raise ValueError("it is not a regular file")
    if found.st_size > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    jobs = dict.fromkeys(job for line in text.split("\n") if (job := line.strip()))
    if any(len(job) > LONGEST_JOB for job in jobs):
        raise ValueError(f"a line has more than {LONGEST_JOB} characters")
    if len(jobs) > MOST_JOBS:
        raise ValueError(f"it has more than {MOST_JOBS} jobs")
    return tuple(jobs)


def _place(name: str) -> Place:
    gpu, dot, instance = name.partition(".")
    return int(gpu), int(instance) if dot else None
