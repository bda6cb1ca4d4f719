"""A client that sends its request and then no more is answered all the same, as HTTP allows (RFC 9112, 9.6).

tornado (6.6) closes a connection as soon as the other side has closed its half of it: `printf ... | nc -N` would never
see its page, and neither would a client behind a proxy that passes the end on.

Rule 1: whatever was sent whole is answered; then, or when less than a request is left, the connection is closed.
Rule 2: the end is looked at once. It stays readable for ever, so nobody may wait for it again, or the loop would spin.
"""

from typing import Any

from tornado.ioloop import IOLoop
from tornado.iostream import BaseIOStream


class HalfClosed(BaseIOStream):
    """To be put before IOStream or SSLIOStream among the bases of a stream. `is_silent` until the client has sent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - tornado's own arguments
        self._has_ended = False
        self.is_silent = True
        super().__init__(*args, **kwargs)

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        """Read; the end is noted, and told as "nothing yet"."""
        if self._has_ended:
            return None
        count = super().read_from_fd(buf)
        if count == 0:
            self._has_ended = True
            return None
        if count:
            self.is_silent = False
        return count

    def _read_to_buffer_loop(self) -> int | None:
        position = super()._read_to_buffer_loop()
        if position is None and self._has_ended and self.reading():
            self.close()  # what is waited for will never come
        return position

    def _add_io_state(self, state: int) -> None:
        super()._add_io_state(state & ~IOLoop.READ if self._has_ended else state)

    def _handle_events(self, fd: int | Any, events: int) -> None:  # noqa: ANN401 - as tornado has it
        super()._handle_events(fd, events)
        if self._has_ended and self._state is not None and self._state & IOLoop.READ:
            self._state &= ~IOLoop.READ
            self.io_loop.update_handler(self.fileno(), self._state)
