"""When to ask again what was refused for good.

A GPU does not learn to answer while it is there, but for a while it may say "not supported" to what it does answer:
during a reset, while the driver starts. So a refusal holds for a while, and each one after it for twice as long.
"""

from collections.abc import Callable

FIRST = 30.0  # seconds
LONGEST = 3600.0


class Again:
    """The waits between two looks at what was refused. Nothing is due before the first refusal."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wait = FIRST
        self._due_at: float | None = None

    def refused(self, *, afresh: bool = False) -> None:
        """Note a refusal. *afresh*: of something that was answered before, which makes a short wait worth while."""
        now = self._clock()
        if afresh:
            self._wait = FIRST
            self._due_at = now + FIRST
        elif self._due_at is None:
            self._due_at = now + self._wait

    def is_due(self) -> bool:
        """Say whether to ask again now; the next wait is twice as long then."""
        if self._due_at is None or self._clock() < self._due_at:
            return False
        self._due_at = None
        self._wait = min(2 * self._wait, LONGEST)
        return True
