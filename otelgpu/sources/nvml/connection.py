"""The connection to the driver: nvmlInit, nvmlShutdown and what lies between them.

Rule 1: nvmlShutdown never overlaps another call: whoever asks the driver does it inside `door.call`.
Rule 2: `count` and `close` are called from one thread at a time.
"""

import logging
from collections.abc import Callable

import pynvml

from otelgpu.errors import SourceDownError
from otelgpu.model import SourceFacts
from otelgpu.sources.door import Door
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
        self.door = Door("there is no connection to the driver")
        self._release = release
        self._root = root
        self._clock = clock
        self._is_suspect = False
        self._renew_at = 0.0  # not before

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
        if not self.door.is_open:
            self._open()
        return int(pynvml.nvmlDeviceGetCount())

    def close(self) -> bool:
        """Let go of the driver. False when it holds a call: then all is left as it is."""
        if not self.door.is_open:
            return True
        if not self.door.shut():
            return False
        if not self._release():
            self.door.open()
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
        self.door.open()


def _text_or_nothing(ask: Callable[[], object]) -> str:
    try:
        return text_of(ask)
    except pynvml.NVMLError:
        return ""
