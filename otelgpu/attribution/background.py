"""A thread that looks at something again and again.

Rule 1: nobody waits for it but `stop`; what it found is read from wherever *look* has put it.
Rule 2: a look that fails is logged with its traceback, once as long as it fails in the same way, and the thread goes
        on.
"""

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Background:
    """Calls *look* at the start, then every *period* seconds, and at once after `wake`."""

    def __init__(self, name: str, look: Callable[[], None], *, period: float) -> None:
        self._look = look
        self._period = period
        self._woken = threading.Event()
        self._looked = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    def wake(self) -> None:
        """Look again now, or right after the look under way."""
        self._woken.set()

    def looked(self, timeout: float) -> bool:
        """Wait for the end of the first look; False when it takes longer than *timeout* seconds."""
        return self._looked.wait(timeout)

    def stop(self, timeout: float) -> bool:
        """End the thread; False when the look under way has not ended after *timeout* seconds. Safe to call twice."""
        self._stopped = True
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(max(timeout, 0))
        return not self._thread.is_alive()

    def _run(self) -> None:
        failed = ""
        while not self._stopped:
            try:
                self._look()
            except Exception as error:
                if repr(error) != failed:
                    logger.exception("%s: a look failed; the next one starts afresh", self._thread.name)
                failed = repr(error)
            else:
                if failed:
                    logger.info("%s: a look succeeds again", self._thread.name)
                failed = ""
            self._looked.set()
            self._woken.wait(self._period)
            self._woken.clear()
