"""What became of one attempt to deliver a batch.

Rule 1: a sender says only what it saw; what to do about it (keep, drop, wait) is the pusher's business.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Delivered:
    """The collector has it. `rejected` points of it were not taken, `message` says why (a partial success)."""

    rejected: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The collector will never take this batch, so it must not be sent again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """It may be taken later: in `after` seconds where the collector has said so, else when we think fit."""

    reason: str
    after: float | None = None


Outcome: TypeAlias = Delivered | Refused | Failed


CONSOLE = "the console"


class Sender(Protocol):
    """One way to a collector. Used by one thread."""

    @property
    def place(self) -> str:
        """Where it sends to, for messages."""

    def send(self, payload: bytes) -> Outcome:
        """Try once to deliver a gzipped request of its signal; block about as long as the timeout at most."""

    def close(self) -> None:
        """Let go of the connection. Safe to call twice, and from another thread."""
