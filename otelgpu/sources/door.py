"""Who is inside a library that may not be shut down under a call.

Rule 1: nobody comes in while it is shut, and it is shut only when nobody is inside.
Rule 2: no lock is held while somebody is inside: a call may hang, and others go in and out meanwhile.
Rule 3: `open` and `shut` are called from one thread at a time.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from otelgpu.model import Gap
from otelgpu.sources import DeviceDownError


class Door:
    """Shut at first; *why* is told to whoever comes then."""

    def __init__(self, why: str) -> None:
        self.is_open = False
        self._why = why
        self._lock = threading.Lock()
        self._inside = 0  # calls under way

    @contextmanager
    def call(self) -> Iterator[None]:
        """Be inside. Raise DeviceDownError while it is shut."""
        with self._lock:
            if not self.is_open:
                raise DeviceDownError(Gap.FAILED, self._why)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1

    def open(self) -> None:
        """Let them in."""
        self.is_open = True

    def shut(self) -> bool:
        """Let nobody in any more. False when somebody is inside: then it is as it was."""
        with self._lock:
            if self._inside:
                return False
            self.is_open = False
            return True
