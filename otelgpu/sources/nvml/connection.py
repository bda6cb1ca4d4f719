"""The connection to the driver: nvmlInit, nvmlShutdown and what lies between them.

Rule 1: nvmlShutdown never overlaps another call: whoever asks the driver does it inside `call`, and the connection is
        closed only when nobody is inside; from then on nobody comes in before it is open again.
Rule 2: no lock is held during a driver call.
Rule 3: `open`, `count` and `close` are called from one thread at a time.
"""

import ctypes
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pynvml

from otelgpu.errors import SourceDownError
from otelgpu.model import Gap, SourceFacts
from otelgpu.sources import DeviceDownError
from otelgpu.sources.nvml.errors import DISCONNECTED, down, text_of

logger = logging.getLogger(__name__)

RENEW = 30.0  # seconds between two new connections that were wanted because a GPU said that the driver is gone


class Connection:
    """This process's connection to the driver. `number` counts them: handles belong to one.

    *release* gives back what was taken from the driver (sample objects, the event set) before the connection closes;
    it returns False when the driver does not let go.
    """

    def __init__(self, *, release: Callable[[], bool], clock: Callable[[], float]) -> None:
        self.number = 0
        self.facts = SourceFacts("nvml")
        self._release = release
        self._clock = clock
        self._lock = threading.Lock()
        self._inside = 0  # calls under way
        self._is_open = False
        self._is_suspect = False
        self._opened_at = 0.0

    @contextmanager
    def call(self) -> Iterator[None]:
        """Hold the connection open. Raise DeviceDownError while there is none."""
        with self._lock:
            if not self._is_open:
                raise DeviceDownError(Gap.FAILED, "there is no connection to the driver")
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1

    def suspect(self) -> None:
        """A GPU has said that the driver is gone: open a new connection before the next count (see RENEW)."""
        self._is_suspect = True

    def count(self) -> int:
        """Count the GPUs, over a new connection where that is wanted. Raise NVMLError or SourceDownError."""
        if self._is_open and self._is_suspect and (self.number == 1 or self._clock() - self._opened_at >= RENEW):
            self.close()
        if not self._is_open:
            self._open()
        try:
            count: int = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            if error.value in DISCONNECTED:
                self.close()
                raise down(error) from error
            raise
        return count

    def close(self) -> None:
        """Let go of the driver. Raise SourceDownError when it holds a call; nothing is asked any more then."""
        with self._lock:
            was_open, self._is_open = self._is_open, False
            inside = self._inside
        if not was_open:
            return
        if inside or not self._release():
            self._is_open = True
            raise SourceDownError("the driver holds a call, so the connection to it cannot be renewed")
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            logger.debug("nvmlShutdown: %s", error)

    def _open(self) -> None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise down(error, _loading_error) from error
        self.facts = SourceFacts(
            "nvml",
            driver_version=_text_or_nothing(pynvml.nvmlSystemGetDriverVersion),
            library_version=_text_or_nothing(pynvml.nvmlSystemGetNVMLVersion),
        )
        self.number += 1
        self._is_suspect = False
        self._opened_at = self._clock()
        self._is_open = True


def _text_or_nothing(ask: Callable[[], object]) -> str:
    try:
        return text_of(ask)
    except pynvml.NVMLError:
        return ""


def _loading_error() -> str:
    """Say why libnvidia-ml.so.1 does not load: pynvml keeps the loader's words to itself."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return str(error)
    return ""
