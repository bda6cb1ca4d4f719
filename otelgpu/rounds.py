"""One round of questions to every GPU of a source, with a thread for each slot.

Rule 1: a driver call cannot be cancelled. A thread that did not come back in time is not waited for again, so the
        deadline is paid once; what it has to say then is thrown away.
Rule 2: nothing here waits for a lock that is held during a driver call.
Rule 3: when the number of slots changes they may have changed hands: the thread that is stuck in a slot is left with
        the GPU it asks, and the slot gets another.
Rule 4: a GPU that answers, but each time after the deadline, is slow and not stuck: it is shown with what it has
        answered in time.
"""

import logging
import time
from collections.abc import Callable
from functools import partial

from otelgpu.errors import SourceDownError
from otelgpu.limit import TOO_SOON, Limit
from otelgpu.model import Device, Gap, GpuState, Sample, SourceFacts
from otelgpu.slots import Answers, Outcome, Slot
from otelgpu.sources import DeviceDownError, Source
from otelgpu.worker import Worker

logger = logging.getLogger(__name__)

COUNT_SHARE = 0.25  # of the time a round has, for the question how many GPUs there are
MOST_LEFT = 64  # threads that are left with a stuck GPU of an earlier layout
LAST_MOMENT = 0.1  # seconds for a stuck call to return after all, when everything ends
NO_ANSWER = "the driver does not answer"


class Rounds:
    """Asks *source* in rounds; *chosen* says which GPUs are looked at.

    *all_seen* is called once, after the first round in which *chosen* was asked about every GPU there is.
    *returned* is called, with the limit's lock held, when the source answers after it was given up as unknown.
    """

    def __init__(
        self,
        source: Source,
        limit: Limit,
        *,
        chosen: Callable[[Device], bool],
        all_seen: Callable[[], None],
        returned: Callable[[], None],
    ) -> None:
        self._source = source
        self._limit = limit
        self._chosen = chosen
        self._all_seen: Callable[[], None] | None = all_seen
        self._returned = returned
        self._choices: dict[str, bool] = {}
        self._count: int | None = None
        self._layout = 0
        self._slots: dict[int, Slot] = {}
        self._left: list[Worker] = []
        self._driver = Worker("otelgpu-driver")
        self._closer: Worker | None = None
        self._closed: list[bool] = []
        self._sever: Callable[[], None] | None = getattr(source, "sever", None)  # ends what a call hangs in, if it can

    @property
    def facts(self) -> SourceFacts:
        """What is known of the source so far."""
        return self._source.facts()

    def ask(self, look: Callable[[Outcome], None]) -> Outcome:
        """Ask once; come back when all have answered or at the limit.

        *look* is called, with the limit's lock held, when somebody wants to see what there is before that. A GPU that
        has not answered by then is in neither the states nor, but for what it has answered so far, the samples.
        """
        answers = Answers(began=self._limit.now())
        try:
            self._ask_count(answers)
            count = self._count or 0
            self._ask_slots(answers, count, lambda: look(self._so_far(answers, count)))
        finally:
            with self._limit.changed:
                answers.is_over = True
                self._take_count(answers.count)  # it may have come while the slots were asked
        states, samples = self._settle(answers, count)
        if self._all_seen is not None and 0 < count <= len(self._choices):
            self._all_seen()
            self._all_seen = None
        reason = None
        if isinstance(answers.count, SourceDownError):
            reason = str(answers.count)
        elif answers.count is None and not samples and (count or self._count is None):
            reason = NO_ANSWER  # neither the driver as a whole nor any GPU
        return Outcome(reason, self._count is not None, states, samples)

    def choose(self, chosen: Callable[[Device], bool], all_seen: Callable[[], None]) -> None:
        """Look at other GPUs from the next round on."""
        left_out = [number for number, slot in self._slots.items() if self._is_left_out(slot)]
        self._chosen, self._all_seen, self._choices = chosen, all_seen, {}
        for number in left_out:
            del self._slots[number]  # its thread has ended, or is about to: where it is wanted now it gets another

    def stop(self, until: float, patience: float) -> bool:
        """End all threads and let go of the driver by *until* (monotonic); see Sampler.stop.

        A call that has taken longer than *patience* seconds gets no more than a last moment.
        """
        moment = time.monotonic() + LAST_MOMENT
        workers = [self._driver, *(slot.worker for slot in self._slots.values()), *self._left]
        for worker in workers:
            worker.stop()
        for worker in workers:
            since = worker.busy_since
            limit = until if since is None else min(until, max(since + patience, moment))
            if not worker.join(limit - time.monotonic()):
                return False
        if self._closer is None:
            self._closer = Worker("otelgpu-close")
            self._closer.offer(self._close, self._closed.append)
            self._closer.stop()
        return self._closer.join(until - time.monotonic()) and self._closed == [True]

    def release(self) -> str | None:
        """Let go of the driver, within the limit; the next round takes it again. Say why it cannot be let go of."""
        answers: list[bool] = []

        def deliver(is_closed: bool) -> None:  # noqa: FBT001 - a worker's answer
            with self._limit.changed:
                answers.append(is_closed)
                self._limit.changed.notify_all()

        if self._driver.busy_since is not None and self._sever is not None:
            self._sever()
            self._limit.wait_for(lambda: self._driver.busy_since is None)
        if self._driver.offer(self._close, deliver):
            self._limit.wait_for(lambda: bool(answers))
        return None if answers == [True] else "a call to it has not returned"

    def _close(self) -> bool:
        try:
            self._source.close()
        except SourceDownError as error:
            logger.warning("the driver is left as it is: %s", error)
            return False
        return True

    def _ask_count(self, answers: Answers) -> None:
        """Find out how many slots there are. When that hangs, the GPUs that were there are still asked."""
        if self._driver.offer(self._counted, partial(self._deliver_count, answers)):
            share = 1.0 if self._count is None else COUNT_SHARE
            self._limit.wait_for(lambda: answers.count is not None, share=share)
            with self._limit.changed:
                self._take_count(answers.count)
                # With nothing to ask the round ends here: what comes from now on is late.
                answers.is_over = answers.count is None and self._count is None

    def _take_count(self, answer: int | SourceDownError | None) -> None:
        if isinstance(answer, SourceDownError):
            self._count = None
        elif answer is not None and answer != self._count:
            self._count = answer
            self._layout += 1

    def _counted(self) -> int | SourceDownError:
        try:
            return self._source.count()
        except SourceDownError as error:
            return error
        except Exception as error:
            logger.exception("counting the GPUs failed; this is a defect of otelgpu")
            return SourceDownError(f"internal error: {error!r}")

    def _deliver_count(self, answers: Answers, answer: int | SourceDownError) -> None:
        with self._limit.changed:
            if not answers.is_over:
                answers.count = answer
            elif self._count is None and not isinstance(answer, SourceDownError):
                self._take_count(answer)
                self._returned()
            self._limit.changed.notify_all()

    def _so_far(self, answers: Answers, count: int) -> Outcome:
        states, samples = self._settle(answers, count)
        return Outcome(None, self._count is not None, states, samples)

    def _ask_slots(self, answers: Answers, count: int, look: Callable[[], None]) -> None:
        self._left = [worker for worker in self._left if not worker.join(0)]
        for number in range(count):
            slot = self._slot(number)
            if self._is_left_out(slot):
                if not slot.worker.join(0):
                    slot.worker.stop()  # no thread for a GPU that nobody wants; in another layout the slot gets one
                continue
            with self._limit.changed:
                if slot.worker.offer(partial(self._read, number, slot), partial(self._deliver, answers, number, slot)):
                    slot.layout = self._layout
                    answers.pending.add(number)
        self._limit.wait_for(lambda: not answers.pending, look=look)

    def _slot(self, number: int) -> Slot:
        slot = self._slots.get(number)
        if slot is not None and slot.layout != self._layout and self._is_unwanted(slot):
            slot = None
        if slot is not None and slot.worker.busy_since is not None and slot.layout != self._layout:
            if len(self._left) >= MOST_LEFT:
                return slot
            slot.worker.stop()
            self._left.append(slot.worker)
            slot = None
        if slot is None:
            slot = self._slots[number] = Slot(Worker(f"otelgpu-gpu-{number}"))
        return slot

    def _is_left_out(self, slot: Slot) -> bool:
        return slot.layout == self._layout and slot.worker.busy_since is None and self._is_unwanted(slot)

    def _is_unwanted(self, slot: Slot) -> bool:
        return slot.device is not None and not self._is_chosen(slot.device)

    def _read(self, number: int, slot: Slot) -> Sample | DeviceDownError | None:
        """One slot's questions, in the slot's own thread; None for a GPU that is not chosen."""
        try:
            slot.device = self._source.device(number)
            return self._source.read(number) if self._is_chosen(slot.device) else None
        except DeviceDownError as error:
            return error
        except Exception as error:
            if repr(error) != slot.failure:
                slot.failure = repr(error)
                logger.exception("slot %d: reading the GPU failed; this is a defect of otelgpu", number)
            return DeviceDownError(Gap.FAILED, f"internal error: {error!r}")

    def _is_chosen(self, device: Device) -> bool:
        """Whether a GPU is looked at, decided when it is first seen: a number in the choice means the first one."""
        if device.uuid not in self._choices:
            self._choices[device.uuid] = self._chosen(device)
        return self._choices[device.uuid]

    def _deliver(self, answers: Answers, number: int, slot: Slot, answer: Sample | DeviceDownError | None) -> None:
        with self._limit.changed:
            slot.took = self._limit.now() - answers.began if answers.is_over else None
            if answers.is_over:
                return
            if slot.is_slow:
                slot.is_slow = False
                logger.info("slot %d answers before the deadline again", number)
            answers.slots[number] = answer
            answers.pending.discard(number)
            self._limit.changed.notify_all()

    def _settle(self, answers: Answers, count: int) -> tuple[list[GpuState], list[Sample]]:
        """Turn the answers into a state for each GPU in sight, and the samples of those that answered, by slot.

        In a round that goes on, a GPU that is still asked has no state.
        """
        asked = frozenset[int]() if answers.is_over else frozenset(answers.pending)
        found = {number: answer for number, answer in answers.slots.items() if isinstance(answer, Sample)}
        found |= {number: sample for number in answers.pending if (sample := self._begun(answers, number))}
        states = [
            GpuState(found[number].device, up=True, is_suspended=found[number].is_suspended)
            for number in sorted(found.keys() - asked)
        ]
        answering = {state.device.uuid for state in states}
        for number in sorted(set(range(count)) - found.keys() - asked):
            slot = self._slots[number]
            late = DeviceDownError(Gap.TIMEOUT, slot.worker.why_late())
            answer = answers.slots.get(number, late)
            if not isinstance(answer, DeviceDownError):
                continue
            device = slot.device
            if device is None or device.uuid in answering:  # it was never told, or has moved to another slot
                device = nameless(number)
            elif not self._is_chosen(device):
                continue
            sleeps = answer.gap is Gap.SUSPENDED
            states.append(GpuState(device, sleeps, answer.gap, str(answer), is_suspended=sleeps or None))
        return states, [found[number] for number in sorted(found)]

    def _begun(self, answers: Answers, number: int) -> Sample | None:
        """Give what a GPU has answered by now, where its answer as a whole is not there; None for one that is stuck."""
        slot = self._slots[number]
        if slot.device is None or not self._is_chosen(slot.device):
            return None
        if not answers.is_over:
            return self._source.so_far(number, TOO_SOON)
        if slot.took is None:
            return None
        why = f"it takes {slot.took:.1f} s to answer, and `sampling.deadline` is shorter"
        if not slot.is_slow:
            slot.is_slow = True
            logger.warning("%s (slot %d): %s; what it answers later is missing", slot.device.uuid, number, why)
        return self._source.so_far(number, why)


def nameless(number: int) -> Device:
    """A GPU of which nothing is known but its slot."""
    return Device(uuid="", gpu_uuid="", index=number, model="", pci_bus_id="")
