"""XID errors, as the driver reports them: one thread that waits for events of all GPUs.

Rule 1: the thread runs only when somebody asks for an XID; it makes the event set itself, and each GPU registers in
        its own thread, so that a call that hangs costs the XIDs or that GPU, and nothing else.
Rule 2: no lock is held during a driver call.
Rule 3: it keeps the last code of each GPU; who is asked for it gets 0 while there was none since the start. When
        events cannot be waited for there is no code: an old one would look like the last.
Rule 4: after a wait that failed the set is made anew: one with a GPU that was lost fails for ever. For the moment
        that this takes the codes of the other GPUs hold: they are what stands there afterwards, too.
Rule 5: every event is told at once, equal codes in a row too, to whoever wants to hear; `told` neither blocks nor
        raises.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynvml

from otelgpu.events import Told, Xid, unheard
from otelgpu.model import Gap
from otelgpu.sources.again import Again
from otelgpu.sources.nvml.errors import gap_of, raise_if_whole
from otelgpu.sources.nvml.handles import Handle, address_of

logger = logging.getLogger(__name__)

WAIT = 0.5  # seconds of one wait for an event: the longest that stopping has to wait
OVERDUE = 4 * WAIT  # after this a wait that has not returned hangs
PATIENCE = 0.1  # seconds that a GPU's thread waits for the event set, when that is made
PAUSE = 5.0  # seconds after a failed wait, so that a driver in trouble is not asked in a loop
NO_INSTANCE = 0xFFFFFFFF  # the instance id of an event that concerns the whole GPU

Refusal = tuple[Gap, str]
Clock = Callable[[], float]


class XidEvents:
    """The last XID of each GPU that is watched. Codes outlive a connection to the driver; `stop` ends with it."""

    def __init__(self, clock: Clock, told: Told = unheard) -> None:
        self._clock = clock
        self._told = told
        self._codes: dict[str, int] = {}  # by UUID
        self._names: dict[int, str] = {}  # UUID by address of the device handle
        self._registered: dict[str, object] = {}  # the event set by UUID
        self._refusals: dict[str, Refusal] = {}  # that hold until it is asked again, by UUID
        self._waits: dict[str, Again] = {}
        self._lock = threading.Lock()
        self._watch: _Watch | None = None

    def last(self, handle: Handle, uuid: str) -> int | Refusal:
        """Return the last XID of a GPU, or why there is none. The first call has the driver report them from then on.

        Called in the GPU's own thread. Raise DeviceDownError when the GPU is gone.
        """
        try:
            watch = self._started()
        except RuntimeError as error:  # of the shortage itself the log is told where the GPUs' own threads lack
            return Gap.FAILED, f"XIDs need a thread: {error}"
        current = watch.current
        is_registered = current is not None and self._registered.get(uuid) is current
        if not is_registered or self._names.get(address_of(handle)) != uuid:
            refusal = self._refused(uuid) or watch.overdue() or self._register(watch, handle, uuid)
            if refusal is not None and not (uuid in self._registered and watch.is_renewing()):
                return refusal
        return watch.trouble() or self._codes.get(uuid, 0)

    def heard(self, uuid: str) -> int | None:
        """Return the last XID of a GPU that does not answer; None when it had none."""
        return self._codes.get(uuid)

    def stop(self) -> bool:
        """End the thread and free the event set. False when the driver does not give the thread back."""
        watch = self._watch
        if watch is not None and not watch.stop():
            return False
        self._watch = None
        self._names.clear()
        self._registered.clear()
        self._refusals.clear()
        self._waits.clear()
        return True

    def _started(self) -> "_Watch":
        with self._lock:
            if self._watch is None:
                self._watch = _Watch(self._take, self._clock)
            return self._watch

    def _refused(self, uuid: str) -> Refusal | None:
        """Return the refusal that still holds."""
        if uuid in self._refusals and self._waits[uuid].is_due():
            del self._refusals[uuid]
        return self._refusals.get(uuid)

    def _register(self, watch: "_Watch", handle: Handle, uuid: str) -> Refusal | None:
        with watch.held() as event_set:
            if event_set is None:
                return watch.trouble() or (Gap.TIMEOUT, "nvmlEventSetCreate has not returned")
            self._names[address_of(handle)] = uuid  # first: an event may come before the call has returned
            try:
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, event_set)
            except pynvml.NVMLError as error:
                raise_if_whole(error)
                refusal = gap_of(error.value), f"nvmlDeviceRegisterEvents: {error}"
                if refusal[0] in (Gap.UNSUPPORTED, Gap.DENIED):  # some GeForce and vGPU drivers have no XID events
                    if uuid not in self._waits:
                        logger.info("%s: no XID events (%s); XID fields will be absent", uuid, error)
                    self._refusals[uuid] = refusal
                    self._waits.setdefault(uuid, Again(self._clock)).refused()
                return refusal
            if self._waits.pop(uuid, None) is not None:
                logger.info("%s: XID events are there now", uuid)
            self._registered[uuid] = event_set
            watch.begin(event_set)
            return None

    def _take(self, event: Any) -> None:  # noqa: ANN401 - c_nvmlEventData_t
        uuid = self._names.get(address_of(event.device))
        if event.eventType == pynvml.nvmlEventTypeXidCriticalError and uuid is not None:
            self._codes[uuid] = event.eventData
            instance, compute = (
                None if id_ == NO_INSTANCE else id_ for id_ in (event.gpuInstanceId, event.computeInstanceId)
            )
            self._told(Xid(uuid, event.eventData, time.time(), instance, compute))


class _Watch:
    """One event set at a time, and the thread that makes it, waits for its events and frees it."""

    def __init__(self, take: Callable[[Any], None], clock: Callable[[], float]) -> None:
        self._take = take
        self._clock = clock
        self._set: Any = None
        self._lock = threading.Lock()  # of the set and its holders
        self._holders: Counter[int] = Counter()  # by address of the set
        self._is_made = threading.Event()  # or could not be made
        self._registered = threading.Event()
        self._stopping = threading.Event()
        self._asked_at: float | None = None  # since when the driver is asked something
        self._trouble: Refusal | None = None
        self._failed: str | None = None  # the question that did, of which the log has been told
        self._lost_at: float | None = None  # when waits began to fail, if that was because of a lost GPU
        self._patient_until = clock() + PATIENCE
        self._thread = threading.Thread(target=self._run, name="otelgpu-events", daemon=True)
        self._thread.start()

    @property
    def current(self) -> object:
        """The event set, as an identity: who is registered with another one is not registered."""
        return self._set

    @contextmanager
    def held(self) -> Iterator[Any]:
        """Give the event set, which is not freed before the end; None when there is none, after a moment's patience."""
        self._is_made.wait(max(self._patient_until - self._clock(), 0))
        with self._lock:
            held = self._set
            self._holders[address_of(held)] += 1  # ctypes pointers cannot be hashed
        try:
            yield held
        finally:
            with self._lock:
                self._holders[address_of(held)] -= 1
                is_left = held is not None and held is not self._set and not self._holders[address_of(held)]
            if is_left:
                _freed(held)

    def begin(self, event_set: object) -> None:
        """Start to wait: a GPU is registered."""
        with self._lock:
            if self._set is event_set:
                self._registered.set()

    def trouble(self) -> Refusal | None:
        """Say why events cannot be waited for; None while they can, or will in a moment."""
        return self.overdue() or (None if self.is_renewing() else self._trouble)

    def is_renewing(self) -> bool:
        """Whether the set is just being made anew, or was a moment ago, because a GPU in it was lost."""
        return self._lost_at is not None and self._clock() - self._lost_at <= OVERDUE

    def overdue(self) -> Refusal | None:
        """Say that the driver holds the thread, if it does; None when it does not."""
        return (Gap.TIMEOUT, "nvmlEventSetWait_v2 has not returned") if self._is_overdue() else None

    def stop(self) -> bool:
        """End the thread; False when the driver holds it."""
        self._stopping.set()
        self._registered.set()
        self._thread.join(0 if self._is_overdue() else OVERDUE)
        return not self._thread.is_alive()

    def _is_overdue(self) -> bool:
        asked_at = self._asked_at
        return asked_at is not None and self._clock() - asked_at > OVERDUE

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._make():
                self._registered.wait()
                while not self._stopping.is_set() and self._wait():
                    pass
                self._retire()
            if self._trouble is not None and self._trouble[0] is not Gap.LOST:  # without that GPU it will work
                self._stopping.wait(PAUSE)

    def _make(self) -> bool:
        try:
            made = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            self._fail("nvmlEventSetCreate", error)
        else:
            with self._lock:
                self._registered.clear()
                self._set = made
            if self._stopping.is_set():
                self._registered.set()
            if self._failed == "nvmlEventSetCreate" or (self._trouble and self._trouble[0] is Gap.LOST):
                self._trouble = None  # any other failed wait is got over by a wait that works
        self._is_made.set()
        return self._set is not None

    def _wait(self) -> bool:
        """Wait once; False when the set is of no use any more."""
        self._asked_at = self._clock()
        try:
            event = pynvml.nvmlEventSetWait_v2(self._set, int(WAIT * 1000))
        except pynvml.NVMLError as error:
            self._asked_at = None
            if error.value != pynvml.NVML_ERROR_TIMEOUT:
                self._fail("nvmlEventSetWait_v2", error)
                return False
        else:
            self._asked_at = None
            self._take(event)
        if self._failed is not None:
            logger.info("XID events can be waited for again")
            self._failed = self._trouble = None
        return True

    def _retire(self) -> None:
        """Free the set; while somebody registers with it, that is left to whoever comes out last."""
        with self._lock:
            done, self._set = self._set, None
            is_left = not self._holders[address_of(done)]
        if is_left:
            self._asked_at = self._clock()
            _freed(done)
            self._asked_at = None

    def _fail(self, question: str, error: pynvml.NVMLError) -> None:
        gap = gap_of(error.value)
        if self._failed is None:
            logger.warning("%s: %s; XID fields will be absent until it works", question, error)
            self._lost_at = self._clock() if gap is Gap.LOST else None
        self._failed = question
        self._trouble = gap, f"{question}: {error}"


def _freed(event_set: Any) -> None:  # noqa: ANN401 - c_nvmlEventSet_t
    try:
        pynvml.nvmlEventSetFree(event_set)
    except pynvml.NVMLError as error:
        logger.debug("the event set was not freed: %s", error)
