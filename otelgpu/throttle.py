"""When clocks are held down: from the driver's counters of two sweeps to a beginning and an end.

Rule 1: a GPU is held for a reason from when the reason takes at least the limit's share of the time between two sweeps
        until it takes less than half of that: one that comes and goes around the limit is told once.
Rule 2: a counter that is not there, or went back, says nothing. Drivers before 575 and some GPUs lack some: there
        the reason's bit counts, when two sweeps in a row saw it.
Rule 3: reasons that are no fault (idle, clocks that an application asked for, sync boost) have no row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from otelgpu.model import Device, Snapshot

BITS = 112  # the field with a bit for each reason
WINDOW = 0.1  # seconds: the driver's counters move in steps of about that, so a shorter window says nothing
SECOND = 1_000_000_000  # of the counters, which are in nanoseconds


@dataclass(frozen=True, slots=True)
class Reason:
    """Why clocks are held down: the field that counts the time, and the bits that stand for it (0: none).

    With one of the bits *beside* it is another reason, and so it is where the GPU has one of the *finer* counters.
    """

    name: str
    words: str
    counter: int = 0
    bits: int = 0
    beside: int = 0
    finer: tuple[int, ...] = ()
    is_power: bool = False


REASONS = (
    Reason("hw_thermal", "by the hardware, for heat", 1423, 0x40),
    Reason("sw_thermal", "by the driver, for heat", 1422, 0x20),
    Reason("thermal", "for heat", 241, finer=(1422, 1423)),
    Reason("hw_power_brake", "by the power brake signal, which the power supply gives", 1424, 0x80),
    Reason("hw_slowdown", "by the hardware, for heat or power", bits=0x8, beside=0xC0),
    Reason("sw_power_cap", "to stay within the power limit", 1420, 0x4, is_power=True),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """From which share of the time (0 to 1) clocks that are held down are told; 0: never.

    `power` is for the power limit, which a busy GPU may well reach all the time.
    """

    heat: float = 0.1
    power: float = 0.0

    def of(self, reason: Reason) -> float:
        """Return the limit of one reason."""
        return self.power if reason.is_power else self.heat

    def fields(self) -> frozenset[int]:
        """List the fields that have to be read for it."""
        told = [reason for reason in REASONS if self.of(reason)]
        return frozenset(reason.counter for reason in told if reason.counter) | (frozenset((BITS,)) if told else set())


class Held(NamedTuple):
    """Clocks of a GPU began to be held down, or (`is_over`) no longer are.

    `share` is of the last window of `window` seconds. At the end `seconds` says how long it went on, and `held` for how
    much of that the clocks were down, where the driver counts it.
    """

    device: Device
    reason: Reason
    is_over: bool
    share: float
    window: float
    seconds: float = 0.0
    held: float | None = None


class _Count(NamedTuple):
    """What a sweep saw: a counter in nanoseconds, or 0 and 1 for a bit."""

    number: float
    at: float
    unix: float
    is_bit: bool


@dataclass(slots=True)
class _Episode:
    began_unix: float
    held: float = 0.0


class Throttles:
    """Follows every GPU from sweep to sweep."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._reasons = tuple(reason for reason in REASONS if limits.of(reason))
        self._before: dict[tuple[str, str], _Count] = {}
        self._episodes: dict[tuple[str, str], _Episode] = {}

    def limit(self, limits: Limits) -> None:
        """Hold other limits from the next sweep on; a reason that is not looked at any more is forgotten."""
        self._limits = limits
        self._reasons = tuple(reason for reason in REASONS if limits.of(reason))
        names = {reason.name for reason in self._reasons}
        self._before = {key: count for key, count in self._before.items() if key[1] in names}
        self._episodes = {key: episode for key, episode in self._episodes.items() if key[1] in names}

    def changes(self, snapshot: Snapshot) -> Iterator[Held]:
        """Say what has begun or ended since the sweep before."""
        if not self._reasons:
            return
        for state in snapshot.states:
            if state.up and state.gap is None and state.device.uuid:
                for reason in self._reasons:
                    count = _count(snapshot, state.device.uuid, reason)
                    if count is not None:
                        yield from self._change(state.device, reason, count)

    def _change(self, device: Device, reason: Reason, now: _Count) -> Iterator[Held]:
        key = device.uuid, reason.name
        before = self._before.get(key)
        if before is not None and before.is_bit == now.is_bit and now.at - before.at < WINDOW:
            return
        self._before[key] = now
        if before is None or before.is_bit != now.is_bit or (not now.is_bit and now.number < before.number):
            return
        window = now.at - before.at
        held = None if now.is_bit else (now.number - before.number) / SECOND
        share = float(bool(before.number and now.number)) if held is None else min(held / window, 1.0)
        episode = self._episodes.get(key)
        if episode is None:
            if share >= self._limits.of(reason):
                self._episodes[key] = _Episode(before.unix, held or 0.0)
                yield Held(device, reason, is_over=False, share=share, window=window)
        elif share < self._limits.of(reason) / 2:
            del self._episodes[key]
            seconds = max(before.unix - episode.began_unix, 0.0)
            counted = None if held is None else episode.held + held
            yield Held(device, reason, is_over=True, share=share, window=window, seconds=seconds, held=counted)
        else:
            episode.held += held or 0.0


def _count(snapshot: Snapshot, uuid: str, reason: Reason) -> _Count | None:
    if any(_number(snapshot, finer, uuid) is not None for finer in reason.finer):
        return None
    counted = _number(snapshot, reason.counter, uuid)
    if counted is not None:
        return _Count(counted, snapshot.at, snapshot.unix, is_bit=False)
    bits = _number(snapshot, BITS, uuid) if reason.bits else None
    if bits is None:
        return None
    is_set = bool(int(bits) & reason.bits) and not int(bits) & reason.beside
    return _Count(int(is_set), snapshot.at, snapshot.unix, is_bit=True)


def _number(snapshot: Snapshot, field_id: int, uuid: str) -> int | float | None:
    """Give the number of a GPU, which with `mig.parent_values: repeat` stands on each of its instances instead."""
    numbers = snapshot.numbers.get(field_id)
    if numbers is None:
        return None
    own = numbers.get(uuid)
    if own is not None:
        return own
    return next((number for key, number in numbers.items() if snapshot.series[key].device.gpu_uuid == uuid), None)
