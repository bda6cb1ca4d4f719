"""One reporter per host: a file lock that the kernel gives back when its holder dies.

Rule 1: nobody waits for the lock and nothing polls for it: it is tried when a collection wants it.
Rule 2: the folder and the file must be this user's own; where they are not, the lock is not used and everyone reports.
Rule 3: the lock belongs to the process that took it: a child made by fork closes its copy, which leaves the lock be.
Rule 4: a host that becomes a daemon closes every file, also ours: a number that is another file by now is left alone.
"""

import contextlib
import fcntl
import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from otelgpu.config.given import digest

logger = logging.getLogger(__name__)

SHARED = Path("/tmp")  # noqa: S108 - one place for all processes of the user is the point; whose it is gets checked
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class HostLock:
    """The right to report for this host, among processes of one user that were given the same *scope*.

    Processes that see different GPUs have different scopes: each of them reports its own.
    """

    def __init__(self, scope: str, environ: Mapping[str, str]) -> None:
        whose = digest(scope.encode(errors="surrogateescape")) if scope else "all"
        self._name = f"reporter-{whose}.lock"
        self._folders = tuple(_folders(environ))
        self._file: int | None = None
        self._identity: tuple[int, int] | None = None  # device and inode of the file
        self._is_useless = False

    def take(self) -> bool:
        """Try to become the reporter, or say that we are. Never blocks, never raises."""
        if self._is_useless or self._is_held():
            return True
        try:
            self._file = self._taken()
        except OSError as error:
            self._is_useless = True
            logger.warning("there is no place for the lock of embed.once (%s); every process reports", error)
            return True
        return self._file is not None

    def release(self) -> None:
        """Let another process report. Safe to call twice."""
        if self._is_held() and self._file is not None:
            os.close(self._file)
        self._file = None

    def _is_held(self) -> bool:
        """Whether our file is still the one that we opened."""
        if self._file is None:
            return False
        try:
            return _identity(self._file) == self._identity
        except OSError:
            return False

    def _taken(self) -> int | None:
        """Open the file and lock it; None when another process holds the lock."""
        folder = self._folder()
        with _closing_on_error(self._opened(folder)) as file:
            _check_ours(os.fstat(file), stat.S_ISREG)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                return None
            self._identity = _identity(file)
            os.ftruncate(file, 0)
            os.write(file, f"{os.getpid()}\n".encode())  # for people; nothing reads it
            return file

    def _opened(self, folder: int) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            return os.open(self._name, flags, 0o600, dir_fd=folder)
        finally:
            os.close(folder)

    def _folder(self) -> int:
        """Open the first of the folders that can be had. Raise the OSError of the last."""
        *others, last = self._folders
        for folder in others:
            with contextlib.suppress(OSError):
                return _opened_folder(folder)
        return _opened_folder(last)


def _identity(file: int) -> tuple[int, int]:
    status = os.fstat(file)
    return status.st_dev, status.st_ino


def _folders(environ: Mapping[str, str]) -> Iterator[Path]:
    runtime = Path(environ.get("XDG_RUNTIME_DIR", ""))
    if runtime.is_absolute() and _is_own(runtime):
        yield runtime / "otelgpu"
    yield SHARED / f"otelgpu-{os.geteuid()}"


def _is_own(folder: Path) -> bool:
    """Whether a folder is this user's: under sudo the variable may name that of the user before."""
    try:
        return folder.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _opened_folder(path: Path) -> int:
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    with _closing_on_error(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as folder:
        _check_ours(os.fstat(folder), stat.S_ISDIR)
        return folder


def _check_ours(status: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    """Raise OSError unless this is of the kind that is wanted, ours, and nobody else may write it."""
    if not is_kind(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & _OTHERS_WRITE:
        raise OSError("its folder or file is not this user's own")


@contextlib.contextmanager
def _closing_on_error(file: int) -> Iterator[int]:
    try:
        yield file
    except BaseException:
        os.close(file)
        raise
