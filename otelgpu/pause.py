"""How long to wait before the next try: of a driver, of the API server, of a collector.

Rule 1: FIRST, and from one try to the next twice as long, up to LONGEST; `forget` begins anew.
Rule 2: where a thousand nodes try the same server, a random part is taken off, half at most, or they would all come in
        step. A driver is tried by its own node alone, which comes when its log says.
"""

from collections.abc import Callable

FIRST, LONGEST = 1.0, 30.0  # seconds


class Pause:
    """The pauses of one series of tries. *draw* gives numbers from 0 to 1: which part of half a pause is taken off."""

    def __init__(self, draw: Callable[[], float] = lambda: 0.0) -> None:
        self.seconds = 0.0  # the last one, whole; 0 where none was taken since the last good try
        self._draw = draw

    def take(self) -> float:
        """Give the seconds to wait before the next try."""
        self.seconds = min(max(2 * self.seconds, FIRST), LONGEST)
        return apart(self.seconds, self._draw)

    def forget(self) -> None:
        """Begin anew: a try was good."""
        self.seconds = 0.0


def apart(seconds: float, draw: Callable[[], float]) -> float:
    """Take a random part off: half at most."""
    return seconds * (1 - draw() / 2)
