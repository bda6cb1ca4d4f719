"""XID errors, as the driver reports them: one thread that waits for events of all GPUs.

Rule 1: the thread runs only when somebody wants an XID field.
Rule 2: it starts and ends before the driver is let go of: a wait is at most WAIT seconds.
Rule 3: it keeps the last code of each GPU; who is asked for it gets 0 while there was none since the start.
"""

import logging
import threading
from typing import Any

import pynvml

from otelgpu.model import Gap
from otelgpu.sources.nvml.errors import gap_of
from otelgpu.sources.nvml.handles import Handle, address_of

logger = logging.getLogger(__name__)

WAIT = 0.5  # seconds of one wait for an event: the longest that stopping has to wait
PAUSE = 5.0  # seconds after a failed wait, so that a driver in trouble is not asked in a loop


class XidEvents:
    """The last XID of each GPU that is watched. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[int, int] = {}  # by address of the device handle
        self._refusals: dict[int, tuple[Gap, str]] = {}
        self._set: Any = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def last(self, handle: Handle, uuid: str) -> int | tuple[Gap, str]:
        """Return the last XID of a GPU, or why there is none. The first call has the driver report them from then on."""
        address = address_of(handle)
        with self._lock:
            if address not in self._last:
                refusal = self._refusals.get(address) or self._register(handle, address, uuid)
                if refusal is not None:
                    return refusal
            return self._last[address]

    def _register(self, handle: Handle, address: int, uuid: str) -> tuple[Gap, str] | None:
        try:
            if self._set is None:
                self._set = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
        except pynvml.NVMLError as error:
            refusal = gap_of(error.value), f"nvmlDeviceRegisterEvents: {error}"
            if refusal[0] in (Gap.UNSUPPORTED, Gap.DENIED):  # some GeForce and vGPU drivers have no XID events
                self._refusals[address] = refusal
                logger.info("%s: no XID events (%s); XID fields will be absent", uuid, error)
            return refusal
        self._last[address] = 0
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="otelgpu-events", daemon=True)
            self._thread.start()
        return None

    def stop(self, *, free: bool = True) -> bool:
        """End the thread and *free* the event set (not when the driver it came from is gone).

        False when the driver does not give the thread back.
        """
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(WAIT * 4)
            if thread.is_alive():
                return False
        event_set, self._set = self._set, None
        if event_set is not None and free:
            try:
                pynvml.nvmlEventSetFree(event_set)
            except pynvml.NVMLError as error:
                logger.debug("the event set was not freed: %s", error)
        return True

    def _run(self) -> None:
        failing = False
        while not self._stopping.is_set():
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, int(WAIT * 1000))
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_TIMEOUT:
                    continue
                if not failing:
                    logger.warning("waiting for XID events fails: %s; trying again", error)
                failing = True
                self._stopping.wait(PAUSE)
                continue
            if failing:
                logger.info("XID events can be waited for again")
                failing = False
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                with self._lock:
                    self._last[address_of(event.device)] = event.eventData
