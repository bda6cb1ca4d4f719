"""Which of the driver's samples of processes are of just now.

Rule 1: the driver takes a sample of each process that works at least every second, and keeps old ones; what was done
        then is not done now. It stamps them with the system's clock.
Rule 2: after that clock was set back old samples are ahead of it. Those are as old as the others that are left out; but
        one that is ahead of all that the clock has ever shown is not from before that.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

RECENT = 2.0  # seconds: how old a sample may be
_MICRO = 1_000_000


class Recently(NamedTuple):
    """A moment, in microseconds since the epoch, as the driver's time stamps are."""

    now: int
    since: int
    ahead: int
    before: int

    def newest(self, samples: Iterable[Any]) -> list[Any]:
        """Give those of nvmlProcessUtilizationSample_t that are of just now, the newest last."""
        fresh = [one for one in samples if one.timeStamp > self.since and not self.ahead < one.timeStamp <= self.before]
        return sorted(fresh, key=lambda one: int(one.timeStamp))

    def age(self, sample: Any) -> float:  # noqa: ANN401 - as above
        """Give the age of a sample in seconds."""
        return (self.now - int(sample.timeStamp)) / _MICRO


class Recent:
    """Remembers the latest time that the clock has ever shown."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._latest = 0.0

    def moment(self) -> Recently:
        """Look at the clock."""
        now = self._wall()
        self._latest = max(self._latest, now)
        since, ahead, before = now - RECENT, now + RECENT, self._latest + RECENT
        return Recently(*(int(at * _MICRO) for at in (now, since, ahead, before)))
