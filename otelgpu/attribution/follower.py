"""A thread that follows something at the API server: it asks, listens to what changes, and asks again.

Rule 1: nobody waits for it but `looked` and `stop`.
Rule 2: after a try that failed comes a growing pause, so that a server in trouble is not kept there; who follows takes
        one of `pause` too where a good try came to nothing.
Rule 3: no error ends the thread: one that is a defect of otelgpu is a try that failed, and its traceback is logged
        where that is news.
"""

import logging
import random
import threading
from collections.abc import Callable

from otelgpu.attribution.apiserver import Api, ApiError
from otelgpu.errors import StartError
from otelgpu.pause import Pause

logger = logging.getLogger(__name__)


class Follower:
    """Calls *step* from `start` to `stop`, each time as many seconds after the last as that has returned.

    A step asks *api*, and raises ApiError where that fails; *failed* is told of it, and says whether it is news.
    """

    def __init__(self, name: str, api: Api, *, step: Callable[[], float], failed: Callable[[ApiError], bool]) -> None:
        self.pause = Pause(random.random)
        self._api = api
        self._step = step
        self._failed = failed
        self._stopped = threading.Event()
        self._looked = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; returns at once. Raise StartError where none can be started."""
        try:
            self._thread.start()
        except RuntimeError as error:  # what Python makes of a failed pthread_create
            raise StartError(f"no thread to follow the API server: {error}") from error

    def looked(self, timeout: float) -> bool:
        """Wait until `has_looked`, or a step has ended or failed; False after *timeout* seconds."""
        return self._looked.wait(timeout)

    def has_looked(self) -> None:
        """Let go whoever waits in `looked`: the step under way has its first answer, and listens on."""
        self._looked.set()

    @property
    def is_stopped(self) -> bool:
        """Whether the end was asked for, so that a failure is none."""
        return self._stopped.is_set()

    def stop(self, timeout: float) -> bool:
        """End the question under way and the thread; False when it did not end in time. Safe to call twice."""
        self._stopped.set()
        self._api.close()
        if self._thread.ident is not None:
            self._thread.join(max(timeout, 0))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self.is_stopped:
            try:
                seconds = self._step()
            except ApiError as error:
                self._failed(error)
                seconds = self.pause.take()
            except Exception as error:
                if self._failed(ApiError(f"an error inside otelgpu: {error!r}")):
                    logger.exception("%s: an attempt failed; the next one starts afresh", self._thread.name)
                seconds = self.pause.take()
            self._looked.set()
            self._stopped.wait(seconds)
