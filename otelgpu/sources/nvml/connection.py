"""The connection to the driver: nvmlInit, nvmlShutdown and what lies between them.

Rule 1: nvmlShutdown never overlaps another call: whoever asks the driver does it inside `call`, and the connection is
        closed only when nobody is inside; from then on nobody comes in before it is open again.
Rule 2: no lock is held during a driver call.
Rule 3: `open`, `count` and `close` are called from one thread at a time.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pynvml

from otelgpu.errors import SourceDownError
from otelgpu.model import Gap, SourceFacts
from otelgpu.sources import DeviceDownError
from otelgpu.sources.nvml.errors import DISCONNECTED, down, text_of
from otelgpu.sources.nvml.loading import loaded, loading_error, unload

logger = logging.getLogger(__name__)

RENEW = 30.0  # seconds between two new connections that were wanted because a GPU said that the driver is gone


class Connection:
    """This process's connection to the driver. `number` counts them: handles belong to one.

    *release* gives back what was taken from the driver (sample objects, the event set) before the connection closes;
    it returns False when the driver does not let go. *root* is where the driver's files are mounted ("": as usual).
    """

    def __init__(self, *, release: Callable[[], bool], clock: Callable[[], float], root: str = "") -> None:
        self.number = 0
        self.facts = SourceFacts("nvml")
        self._release = release
        self._root = root
        self._clock = clock
        self._lock = threading.Lock()
        self._inside = 0  # calls under way
        self._is_open = False
        self._is_suspect = False
        self._renew_at = 0.0  # not before

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
        """Count the GPUs, over a new connection where the one before is gone.

        Raise SourceDownError when there is none, NVMLError when only this question fails.
        """
        if self._is_suspect and self._clock() >= self._renew_at and self.close():
            self._renew_at = self._clock() + RENEW
        try:
            return self._counted()
        except pynvml.NVMLError as error:
            if error.value not in DISCONNECTED:
                raise
            if not self.close():
                raise SourceDownError(f"{error}; and a call to the driver has not returned") from error
        try:
            return self._counted()
        except pynvml.NVMLError as error:
            if error.value in DISCONNECTED:
                self.close()
            raise down(error) from error

    def _counted(self) -> int:
        if not self._is_open:
            self._open()
        return int(pynvml.nvmlDeviceGetCount())

    def close(self) -> bool:
        """Let go of the driver. False when it holds a call: then all is left as it is."""
        with self._lock:
            if not self._is_open:
                return True
            if self._inside:
                return False
            self._is_open = False
        if not self._release():
            self._is_open = True
            return False
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            logger.debug("nvmlShutdown: %s", error)
        return True

    def _open(self) -> None:
        try:
            with loaded(self._root):
                pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
                unload()  # it may be of the driver before; another one may be on the disk by the next attempt
            loading = loading_error(self._root) if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND else ""
            raise down(error, loading) from error
        self.facts = SourceFacts(
            "nvml",
            driver_version=_text_or_nothing(pynvml.nvmlSystemGetDriverVersion),
            library_version=_text_or_nothing(pynvml.nvmlSystemGetNVMLVersion),
        )
        self.number += 1
        self._is_suspect = False
        self._is_open = True


def _text_or_nothing(ask: Callable[[], object]) -> str:
    try:
        return text_of(ask)
    except pynvml.NVMLError:
        return ""
