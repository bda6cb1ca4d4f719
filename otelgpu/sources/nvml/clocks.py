"""Clock events: a thread for each GPU that asks what holds its clocks, at a pace of its own.

Rule 1: a short throttle between two sweeps is seen by whoever looks often. So these threads run, and ask, whether
        anybody looks at a page or not; but only while such a field is wanted.
Rule 2: the first look is made in the thread of the GPU's slot: there a refusal is told, and a hang costs that GPU. From
        then on a call that hangs costs the clock events of its GPU and nothing else, and no second thread is started
        beside it.
Rule 3: no lock is held during a driver call. A thread ends by itself when its GPU is gone; the next sweep that finds
        the GPU there begins anew, and goes on counting.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial

import pynvml

from otelgpu.counts import CLOCK_COUNTS, ClockCounts, Counting
from otelgpu.fields import CATALOGUE, Field
from otelgpu.model import Device, Gap, Missing
from otelgpu.sources.again import Again
from otelgpu.sources.nvml.errors import gap_of, raise_if_whole
from otelgpu.sources.nvml.handles import Handle, address_of
from otelgpu.sources.nvml.plan import Answer

logger = logging.getLogger(__name__)

REASONS = CATALOGUE[112]  # DCGM_FI_DEV_CLOCKS_EVENT_REASONS: of the same question
OVERDUE = 2.0  # seconds: after this a call that has not returned hangs

Refusal = tuple[Gap, str]


class ClockEvents:
    """The counts of every GPU that is watched. They outlive a connection to the driver; `stop` ends with it."""

    def __init__(
        self,
        fields: Iterable[Field],
        counting: Counting,
        clock: Callable[[], float],
        is_asleep: Callable[[str], bool | None] = lambda _: None,
    ) -> None:
        self._fields = [field for field in fields if field.id in CLOCK_COUNTS]
        self._is_asleep = is_asleep  # by the PCI bus id
        self._counting = counting
        self._clock = clock
        self._counts: dict[str, ClockCounts] = {}  # by UUID, as all that follows
        self._watches: dict[str, _Watch] = {}
        self._refusals: dict[str, Refusal] = {}  # that hold until it is asked again
        self._waits: dict[str, Again] = {}
        self._lock = threading.Lock()

    def answers(self, handle: Handle, device: Device) -> list[Answer]:
        """Give the counts of a GPU, or why there are none; the first call has it watched from then on.

        Called in the GPU's own thread. Raise DeviceDownError when the GPU is gone.
        """
        refusal = self._watched(handle, device)
        if refusal is not None:
            return [Missing(field, device, *refusal) for field in self._fields]
        return [*self._counts[device.uuid].readings(device)]

    def want(self, fields: Iterable[Field], counting: Counting) -> None:
        """Give other fields from now on, and look at another pace; where nothing is wanted nobody looks."""
        self._fields = [field for field in fields if field.id in CLOCK_COUNTS]
        is_other_pace = counting.clock_interval != self._counting.clock_interval
        self._counting = counting
        for counts in list(self._counts.values()):
            counts.want(self._fields, counting)
        if is_other_pace or not self._fields:
            for watch in list(self._watches.values()):
                watch.stop()  # the next sweep that wants one finds it gone, and begins anew

    def stop(self) -> bool:
        """End the threads. False when the driver holds one of them."""
        watches = list(self._watches.values())
        for watch in watches:
            watch.stop()
        held = [watch for watch in watches if not watch.join()]
        if held:
            return False
        self._watches.clear()
        self._refusals.clear()
        self._waits.clear()
        return True

    def _watched(self, handle: Handle, device: Device) -> Refusal | None:
        uuid = device.uuid
        if uuid in self._refusals and self._waits[uuid].is_due():
            del self._refusals[uuid]
        if uuid in self._refusals:
            return self._refusals[uuid]
        watch = self._watches.get(uuid)
        if watch is not None and watch.is_of(handle):
            return watch.trouble()
        if watch is not None:
            watch.stop()
            if not watch.join():
                return watch.trouble()
            del self._watches[uuid]
        return self._begun(handle, device)

    def _begun(self, handle: Handle, device: Device) -> Refusal | None:
        uuid = device.uuid
        try:
            ask, reasons = _asked(handle)
        except pynvml.NVMLError as error:
            raise_if_whole(error)
            refusal = gap_of(error.value), f"{error}"
            if refusal[0] in (Gap.UNSUPPORTED, Gap.DENIED):
                self._refusals[uuid] = refusal
                self._waits.setdefault(uuid, Again(self._clock)).refused()
            return refusal
        if (untrue := _untrue(reasons)) is not None:
            return untrue
        counts = self._counts.get(uuid)
        if counts is None:
            counts = self._counts[uuid] = ClockCounts(self._fields, self._counting, self._clock)
        counts.add(reasons)
        self._waits.pop(uuid, None)
        try:
            with self._lock:  # a thread that was stuck in this GPU's slot may come here beside the one that replaced it
                if uuid not in self._watches:
                    rests = partial(self._is_asleep, device.pci_bus_id)
                    interval = self._counting.clock_interval
                    self._watches[uuid] = _Watch(
                        uuid, handle, ask, counts.add, rests, interval=interval, clock=self._clock
                    )
        except RuntimeError as error:  # of the shortage itself the log is told where the GPUs' own threads lack
            return Gap.FAILED, f"clock events need a thread: {error}"
        return None


class _Watch:
    """The thread of one GPU, over one handle."""

    def __init__(
        self,
        uuid: str,
        handle: Handle,
        ask: Callable[[Handle], int],
        take: Callable[[int], None],
        rests: Callable[[], bool | None],
        *,
        interval: float,
        clock: Callable[[], float],
    ) -> None:
        self._uuid = uuid
        self._handle = handle
        self._ask = ask
        self._take = take
        self._rests = rests
        self._interval = interval
        self._clock = clock
        self._stopping = threading.Event()
        self._asked_at: float | None = None  # since when the driver is asked
        self._trouble: Refusal | None = None
        self._thread = threading.Thread(target=self._run, name="otelgpu-clocks", daemon=True)
        self._thread.start()

    def is_of(self, handle: Handle) -> bool:
        """Whether it runs, and asks over this handle."""
        return self._thread.is_alive() and address_of(self._handle) == address_of(handle)

    def trouble(self) -> Refusal | None:
        """Say why there is nothing to count; None while there is."""
        if self._is_overdue():
            return Gap.TIMEOUT, "the driver has not said what holds the clocks"
        return self._trouble

    def stop(self) -> None:
        """Let the thread end."""
        self._stopping.set()

    def join(self) -> bool:
        """Wait for the end; False when the driver holds the thread."""
        self._thread.join(0 if self._is_overdue() else OVERDUE)
        return not self._thread.is_alive()

    def _is_overdue(self) -> bool:
        asked_at = self._asked_at
        return asked_at is not None and self._clock() - asked_at > OVERDUE

    def _run(self) -> None:
        while not self._stopping.wait(self._interval) and self._look():
            pass

    def _look(self) -> bool:
        """Look once, but at a GPU that sleeps; False when the GPU is gone."""
        if self._rests():
            return True
        self._asked_at = self._clock()
        try:
            reasons = self._ask(self._handle)
        except pynvml.NVMLError as error:
            gap = gap_of(error.value)
            if gap in (Gap.LOST, Gap.UNSUPPORTED):  # the next sweep finds out which, and says so
                return False
            self._turn((gap, str(error)))
        else:
            self._turn(_untrue(reasons))
            if self._trouble is None:
                self._take(reasons)
        finally:
            self._asked_at = None
        return True

    def _turn(self, trouble: Refusal | None) -> None:
        if trouble is not None and self._trouble is None:
            logger.warning("%s: %s; clock events will be absent until it works", self._uuid, trouble[1])
        elif trouble is None and self._trouble is not None:
            logger.info("%s: clock events can be seen again", self._uuid)
        self._trouble = trouble


def _untrue(reasons: int) -> Refusal | None:
    """Say that the reasons cannot be true: all ones is what a device that is gone answers, and no nine events."""
    if reasons <= REASONS.highest:
        return None
    return Gap.INVALID, f"the driver answered {reasons:#x}, which cannot be the reasons that hold the clocks"


def _asked(handle: Handle) -> tuple[Callable[[Handle], int], int]:
    """Look for the first time: the answer, and the function that gave it. Drivers before 535 know the older name."""
    try:
        return pynvml.nvmlDeviceGetCurrentClocksEventReasons, pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except pynvml.NVMLError as error:
        if gap_of(error.value) is not Gap.UNSUPPORTED:
            raise
    return pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
