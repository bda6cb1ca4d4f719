"""Looks whether files have changed: by what `stat` says of them, every few seconds.

Rule 1: a file is known by where its name leads in the end. Kubernetes swaps a link (`..data`) in a mounted ConfigMap,
        an editor puts another file in the place, and what is on a network drive tells nobody of a change. Of its times
        ctime counts too: a program may put the other one back, and what could not be read may be readable by now.
Rule 2: what changes is left alone until it has been the same for QUIET seconds: half a file is no settings.
Rule 3: in a thread of its own: a file system that hangs keeps nobody else.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from otelgpu.errors import StartError

logger = logging.getLogger(__name__)

QUIET = 0.2  # seconds

Signature: TypeAlias = tuple[object, ...]
Seen: TypeAlias = Mapping[str, Signature]


class Watch:
    """Calls *changed* when one of the *files* has; asks which these are at every look, *interval* seconds apart."""

    def __init__(self, files: Callable[[], Iterable[str]], changed: Callable[[], None], interval: float) -> None:
        self._files = files
        self._changed = changed
        self._interval = interval
        self._ended = threading.Event()
        self._seen = self._look()  # here: a change from now on is one
        self._thread = threading.Thread(target=self._run, name="otelgpu-watch", daemon=True)

    def start(self, outdated: Iterable[str] = ()) -> None:
        """Begin to look; the *outdated* had changed before. Raise StartError where no thread can be started for it."""
        self._seen = {**self._seen, **dict.fromkeys(outdated, ())}
        try:
            self._thread.start()
        except RuntimeError as error:  # what Python makes of a failed pthread_create
            raise StartError(f"no thread to watch files: {error}") from error

    def stop(self) -> None:
        """Look no more; nobody waits for a look that hangs."""
        self._ended.set()

    def read(self) -> None:
        """Have them read now, whoever asks for it: a change before that is none any more."""
        self._seen = self._look()
        self._changed()
        self.note()

    def note(self) -> None:
        """Take files that are new in the list as they are now. Best called before they are read, by who names them."""
        self._seen = {path: self._seen.get(path, seen) for path, seen in self._look().items()}

    def _look(self) -> Seen:
        return {path: signature(path) for path in self._files()}

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            try:
                if (seen := self._look()) != self._seen:
                    self._settle(seen)
            except Exception:
                logger.exception("a look whether files have changed failed; the next one starts afresh")

    def _settle(self, seen: Seen) -> None:
        """Wait until nothing changes any more, and tell."""
        while not self._ended.wait(QUIET):
            before, seen = seen, self._look()
            if seen == before:
                if seen != self._seen:  # else somebody has had it read meanwhile
                    self.read()
                return


def signature(path: str) -> Signature:
    """Give what tells one state of a file from another."""
    try:
        real = os.path.realpath(path)
        found = Path(real).stat()
    except (OSError, ValueError) as error:  # not there; a NUL in the name
        return (type(error),)
    return real, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
