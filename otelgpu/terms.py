"""On which terms a Sampler works: how often it asks, about which GPUs, and who hears of it.

Rule 1: only values; all of them may change while the sampler runs (`Sampler.want`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from otelgpu.model import Device, Enter, Snapshot
from otelgpu.views import View


@dataclass(frozen=True, slots=True)
class Pace:
    """When to ask, in seconds. `interval` None: only when a reader wants a snapshot.

    `insists`: whether a driver that is not there is tried again and again, also while nobody wants a snapshot.
    `expected`: so many GPUs have to answer, or this is not ready.
    """

    reuse: float = 1.0
    deadline: float = 2.0
    interval: float | None = None
    insists: bool = True
    expected: int = 0


class Terms(TypedDict):
    """What of a Sampler can change while it runs; see there for the meaning of each."""

    pace: Pace
    chosen: Callable[[Device], bool]
    all_seen: Callable[[], None]
    view: View | None
    enter: Enter | None
    seen: Callable[[Snapshot], None]
