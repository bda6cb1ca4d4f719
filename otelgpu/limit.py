"""How long a round of questions may take, and the lock under which its answers come in.

Rule 1: whoever waits, waits here, and is woken when something has changed.
"""

import threading
from collections.abc import Callable

TOO_SOON = "it was not answered before this reader's time was over"  # why a glance at a round lacks a value


class Limit:
    """When the round under way has to end. `changed` guards all of it and wakes whoever waits.

    `is_looked_at`: somebody wants to see what there is before the end.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.changed = threading.Condition()
        self.until = 0.0
        self.stopped = False
        self.is_looked_at = False
        self.now = clock

    def wait_for(self, met: Callable[[], bool], *, share: float = 1.0, look: Callable[[], None] | None = None) -> None:
        """Wait until *met*, at most for this *share* of the time that is left. *look* is called for `is_looked_at`."""
        with self.changed:
            started = self.now()
            while not met() and not self.stopped:
                if self.is_looked_at and look is not None:
                    self.is_looked_at = False
                    look()
                left = started + (self.until - started) * share - self.now()
                if left <= 0:
                    return
                self.changed.wait(left)
