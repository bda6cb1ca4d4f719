"""The NVML source in a process of its own: a crash inside the driver library costs that process.

Rule 1: each call of the protocol is made there, and waited for here in the thread that made it: a call that hangs
        costs what it costs without a second process.
Rule 2: after a crash the process is started again by the next `count`, after a pause that grows with each one that did
        not last.
Rule 3: a call that has not returned after PATIENCE ends the process, for good or bad: a lock in the library is gone
        with it. Each time it is waited for twice as long, since the GPUs that do answer lose a sweep.
Rule 4: a process that cannot be killed (its call is in uninterruptible sleep) is left behind, and while it is there
        none is killed any more: they would pile up.
"""

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from otelgpu import events
from otelgpu.errors import SourceDownError
from otelgpu.model import Device, Gap, Reading, Sample, SourceFacts
from otelgpu.pause import Pause
from otelgpu.sources import DeviceDownError
from otelgpu.sources.isolated.process import Process
from otelgpu.sources.isolated.wire import Ask, Broken, Count, Read, There, readings_of, unpacked
from otelgpu.sources.nvml.order import Order

logger = logging.getLogger(__name__)

PATIENCE, MOST_PATIENCE = 60.0, 960.0  # seconds
LASTING = 60.0  # seconds after which a crash is the first one again
AT_ONCE = 0.1  # seconds for what the child answers from memory
END = 1.0  # seconds for the child to do what it is told at the end, and again to be gone
LET_GO = "the driver was let go of"

T = TypeVar("T")


class IsolatedSource:
    """Asks a child that asks NVML. Nothing is started before the first `count`."""

    def __init__(
        self,
        order: Order,
        told: events.Told,
        *,
        patience: float = PATIENCE,
    ) -> None:
        self._order = order
        self._told = told
        self._patience = patience
        self._process: Process | None = None
        self._lock = threading.Lock()
        self._left: Process | None = None  # one that was killed, and may not be gone
        self._facts = SourceFacts("nvml")
        self._pause, self._start_at = Pause(), 0.0
        self._reason = ""

    def want(self, order: Order, told: events.Told) -> None:
        """Have another order carried out from the next sweep on; called between two sweeps."""
        self._order, self._told = order, told
        if self._process is not None:
            self._process.want(order, told)

    def count(self) -> int:
        """Count the GPUs, in a new process where there is none; see the protocol."""
        answer = self._asked(self._running(), Ask("count"), Count)
        self._facts = answer.facts
        return answer.count

    def device(self, slot: int) -> Device:
        """Say which GPU is in a slot; see the protocol."""
        return self._asked_of_gpu(Ask("device", slot), There).device

    def read(self, slot: int) -> Sample:
        """Read the GPU in a slot; see the protocol."""
        return unpacked(self._asked_of_gpu(Ask("read", slot), Read))

    def so_far(self, slot: int, reason: str) -> Sample | None:
        """Give what has been answered; see the protocol."""
        read = self._from_memory(Ask("so_far", slot, reason))
        return None if read is None else unpacked(read)

    def heard(self, device: Device) -> Sequence[Reading]:
        """Give the XIDs of a GPU that does not answer; see the protocol. A process that has crashed took them along."""
        read = self._from_memory(Ask("heard", device=device))
        return () if read is None else readings_of(read)

    def facts(self) -> SourceFacts:
        """Say what the driver told when it was last counted."""
        return self._facts

    def close(self) -> None:
        """Let go of the driver, and end the process; see the protocol. One whose call hangs is killed."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.ask(Ask("close"), END)
        except SourceDownError as error:
            logger.debug("the driver is let go of with its process: %s", error)
        process.leave(LET_GO)
        if process.is_gone(END):
            return
        process.abandon(LET_GO)
        if not process.is_gone(END):
            self._left = process
            raise SourceDownError("the process that asks it cannot be ended: a call is in uninterruptible sleep")

    def sever(self) -> None:
        """Kill the process, so that a call which hangs in it ends, and whoever waits for it hears why."""
        process = self._process
        if process is not None:
            process.abandon(LET_GO)

    def _running(self) -> Process:
        """Give the process; start one where there is none and its time has come. Raise SourceDownError."""
        process = self._process
        if process is not None and process.end is None:
            return process
        if process is not None and process.end is not None:
            self._process, self._reason = None, process.end
            if process.ended_at - process.began_at > LASTING:
                self._pause.forget()
            self._start_at = process.ended_at + self._pause.take()
        if time.monotonic() < self._start_at:
            raise SourceDownError(self._reason)
        try:
            process = self._process = Process(self._order, self._told)
        except OSError as error:
            raise SourceDownError(f"no process to ask the driver can be started: {error}") from error
        return process

    def _asked(self, process: Process, ask: Ask, kind: type[T]) -> T:
        """Have a call made, however long it takes. Another kind of answer is a defect of otelgpu, and logged there."""
        answer = process.ask(ask, self._patience, partial(self._lose_patience, process))
        if not isinstance(answer, kind):
            raise TypeError(f"{ask.what}: {answer.reason if isinstance(answer, Broken) else answer}")
        return answer

    def _asked_of_gpu(self, ask: Ask, kind: type[T]) -> T:
        process = self._process
        if process is None:
            raise DeviceDownError(Gap.FAILED, LET_GO)
        try:
            return self._asked(process, ask, kind)
        except SourceDownError as error:
            raise DeviceDownError(Gap.FAILED, str(error)) from error

    def _lose_patience(self, process: Process) -> None:
        """End a process in which a call has not returned, unless one that was ended before is still there."""
        with self._lock:
            if process.end is not None or (self._left is not None and not self._left.is_gone()):
                return
            waited, self._patience = self._patience, min(2 * self._patience, MOST_PATIENCE)
            self._left = process
        reason = f"a call to the driver had not returned after {waited:g} s; the driver is asked in a new process"
        logger.warning("%s", reason)
        process.abandon(reason)

    def _from_memory(self, ask: Ask) -> Read | None:
        process = self._process
        if process is None or process.is_silent:
            return None
        try:
            answer = process.ask(ask, AT_ONCE)
        except SourceDownError:
            return None
        process.is_silent = answer is None
        return answer if isinstance(answer, Read) else None
