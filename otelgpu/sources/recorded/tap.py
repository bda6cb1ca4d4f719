"""A source that passes every question on to another one, and keeps what came back.

Rule 1: whoever asks gets the very answers (or errors) of the source that is asked; nothing is slower or refused.
Rule 2: what comes after a sweep was taken is nobody's: the sampler throws it away too.
Rule 3: what a slow GPU had answered in time goes over what it answered later, as on the page.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from otelgpu.errors import SourceDownError
from otelgpu.model import Device, Gap, Reading, Sample, SourceFacts
from otelgpu.sources import DeviceDownError, Source
from otelgpu.sources.recorded.form import Answer, Down, Slot, Sweep, answer_of, slot_of

NO_ANSWER = Down(Gap.TIMEOUT, "it gave no answer while it was recorded")
NOT_ASKED = Down(Gap.UNSUPPORTED, "it was not asked when it was recorded: `devices` did not name it")


@dataclass(slots=True, eq=False)
class _Kept:
    """What has come back in one sweep."""

    began: float
    count: int = 0
    down: str = ""
    slots: dict[int, Slot] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)  # slots of which only a part came in time
    heard: dict[str, tuple[Answer, ...]] = field(default_factory=dict)


class Tap:
    """Stands between a sampler and *source*, see the protocol. `taken` gives the sweep that was finished last."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._first: float | None = None
        self._sweep: _Kept | None = None
        self._devices: dict[int, Device] = {}  # as they were told last
        self._asked: set[int] = set()  # slots with a question under way

    def taken(self, reason: str = "") -> Sweep:
        """Give what came back since the last `count`. *reason*: why the source is down, where it did not say so."""
        facts = self._source.facts()
        with self._lock:
            kept, self._sweep = self._sweep or _Kept(time.monotonic()), None
            if self._first is None:
                self._first = kept.began
            count = max([kept.count, *(number + 1 for number in kept.slots)])
            return Sweep(
                seconds=round(kept.began - self._first, 3),
                facts=facts,
                slots=tuple(kept.slots.get(number) or self._silent(number) for number in range(count)),
                down=kept.down or ("" if count else reason),
                heard=kept.heard,
            )

    def count(self) -> int:
        """Begin a sweep; see the protocol."""
        kept = _Kept(time.monotonic())
        with self._lock:
            self._sweep = kept
        try:
            kept.count = self._source.count()
        except SourceDownError as error:
            kept.down = str(error)
            raise
        return kept.count

    def device(self, slot: int) -> Device:
        """Pass it on; see the protocol."""
        with self._passed_on(slot):
            device = self._devices[slot] = self._source.device(slot)
        return device

    def read(self, slot: int) -> Sample:
        """Pass it on; see the protocol."""
        kept = self._sweep
        with self._passed_on(slot):
            sample = self._source.read(slot)
        self._keep(kept, slot, slot_of(sample))
        return sample

    def so_far(self, slot: int, reason: str) -> Sample | None:
        """Pass it on; see the protocol."""
        sample = self._source.so_far(slot, reason)
        if sample is not None and (kept := self._sweep) is not None:
            self._keep(kept, slot, slot_of(sample))
            kept.late.add(slot)
        return sample

    def heard(self, device: Device) -> Sequence[Reading]:
        """Pass it on; see the protocol."""
        told = self._source.heard(device)
        if told and (kept := self._sweep) is not None:
            kept.heard[device.uuid] = tuple(map(answer_of, told))
        return told

    def facts(self) -> SourceFacts:
        """Pass it on; see the protocol."""
        return self._source.facts()

    def close(self) -> None:
        """Pass it on; see the protocol."""
        self._source.close()

    @contextmanager
    def _passed_on(self, slot: int) -> Iterator[None]:
        """Keep why a question failed, and that it is under way until it has not."""
        kept, known = self._sweep, self._devices.get(slot)
        self._asked.add(slot)
        try:
            yield
        except DeviceDownError as error:
            self._keep(kept, slot, Slot(device=known, down=Down(error.gap, str(error))))
            raise
        finally:
            self._asked.discard(slot)

    def _keep(self, kept: _Kept | None, slot: int, found: Slot) -> None:
        with self._lock:
            if kept is not None and slot not in kept.late:
                kept.slots[slot] = found

    def _silent(self, slot: int) -> Slot:
        return Slot(device=self._devices.get(slot), down=NO_ANSWER if slot in self._asked else NOT_ASKED)
