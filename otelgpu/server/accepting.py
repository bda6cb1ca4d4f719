"""Takes connections in, also when there is no descriptor left for one.

Rule 1: accepting that fails is not tried again and again: a spare descriptor makes room, else the oldest connection,
        and when neither helps nobody is taken in for PAUSE seconds. Whoever knocks waits in the backlog meanwhile.
Rule 2: it is logged when it begins, and when there is room for more again.
Rule 3: a client whose headers are too long is told so before it is hung up on.
"""

import asyncio
import errno
import logging
import os
import resource
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from tornado.iostream import IOStream, UnsatisfiableReadError

from otelgpu.server.halfclosed import HalfClosed

logger = logging.getLogger(__name__)

BATCH = 64  # connections taken in before others on the loop have their turn
PAUSE = 0.2  # seconds
CALM = 1.0  # seconds between looks whether there is room again
SPARES = 4  # descriptors held for connections; less where there may be few altogether
MOST_REFUSED = 16  # clients at a time that are told that their headers are too long; the others are hung up on
LINGER = 2.0  # seconds such a client has to read it; one that still sends when we close would never see the answer
LONGEST_HEADERS = 16 * 1024  # bytes, the request line among them

_TOO_LONG = b"headers longer than %d KiB\n" % (LONGEST_HEADERS >> 10)
_REFUSAL = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nServer: otelgpu\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(_TOO_LONG), _TOO_LONG)
)
# What `accept` passes on of a connection that is broken already: nothing is wrong with the socket we listen on.
_PASSING = frozenset(
    (errno.EAGAIN, errno.EINTR, errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH)
)


class Door:
    """Accepts on listening sockets, and hands each connection to *take* with the address of its other end.

    *hang_up* closes the oldest connection and says whether there was one. To be used on a running loop alone.
    Raise OSError, from the start, where there is no descriptor for a connection at all.
    """

    def __init__(self, take: Callable[[socket.socket, Any], None], hang_up: Callable[[], bool]) -> None:
        self._take = take
        self._hang_up = hang_up
        self._sockets: list[socket.socket] = []
        self._spares: list[int] = []
        self._is_short = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        if not self._refill():
            self.close()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def open(self, sock: socket.socket) -> None:
        """Begin to accept on a socket that listens and does not block."""
        self._sockets.append(sock)
        self._listen(sock)

    def close(self) -> None:
        """Accept no more, and close the sockets."""
        for timer in self._timers.values():
            timer.cancel()
        for sock in self._sockets:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        self._sockets.clear()
        while self._spares:
            os.close(self._spares.pop())

    def _listen(self, sock: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(sock, self._accept, sock)

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(BATCH):
            try:
                connection, address = sock.accept()
            except OSError as error:
                if error.errno not in _PASSING:
                    self._fail(error)
                return
            self._take(connection, address)

    def _fail(self, error: OSError) -> None:
        """Make room; the loop comes back at once, as somebody still waits, or after a pause."""
        if not self._is_short:
            self._is_short = True
            logger.warning("connections cannot be accepted for now: %s", error.strerror)
            self._after(CALM, self._look)
        if error.errno in (errno.EMFILE, errno.ENFILE):
            if self._spares:
                os.close(self._spares.pop())
                return
            if self._hang_up():
                return
        for sock in self._sockets:
            asyncio.get_running_loop().remove_reader(sock)
        self._after(PAUSE, self._resume)

    def _resume(self) -> None:
        for sock in self._sockets:
            self._listen(sock)

    def _look(self) -> None:
        """Look whether the spares are there and one more could be had: only then the trouble is over."""
        if self._refill():
            self._is_short = False
            logger.info("connections can be accepted again")
        else:
            self._after(CALM, self._look)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers[call.__name__] = asyncio.get_running_loop().call_later(seconds, call)

    def _refill(self) -> bool:
        """Open the spares that are lacking; False when there are not as many descriptors, and one more, to be had."""
        with suppress(OSError):
            while len(self._spares) < most_spares():
                self._spares.append(os.open(os.devnull, os.O_RDONLY))
            os.close(os.open(os.devnull, os.O_RDONLY))
            return True
        return False


class Stream(HalfClosed, IOStream):
    """A connection that is answered with 431 when its headers are longer than `read_until_regex` may read."""

    _refused: set[asyncio.Task[None]] = set()  # noqa: RUF012 - of all connections: it bounds what they cost together

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - tornado's own arguments
        super().__init__(*args, **kwargs)
        self._reads_headers = False

    def read_until_regex(self, regex: bytes, max_bytes: int | None = None) -> Awaitable[bytes]:
        """Read the headers: nothing else is asked for in this way."""
        self._reads_headers = True
        return super().read_until_regex(regex, max_bytes)

    def read_until(self, delimiter: bytes, max_bytes: int | None = None) -> Awaitable[bytes]:
        """Read the size of a chunk of a body."""
        self._reads_headers = False
        return super().read_until(delimiter, max_bytes)

    def close_fd(self) -> None:
        """Close the socket, at once or after the answer."""
        is_too_long = self._reads_headers and isinstance(self.error, UnsatisfiableReadError)
        if is_too_long and len(self._refused) < MOST_REFUSED:
            kept = socket.socket(fileno=self.socket.detach())
            task = asyncio.get_running_loop().create_task(_refuse(kept))
            self._refused.add(task)
            task.add_done_callback(self._refused.discard)
        super().close_fd()


async def _refuse(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with sock, suppress(OSError, TimeoutError):
        async with asyncio.timeout(LINGER):
            await loop.sock_sendall(sock, _REFUSAL)
            sock.shutdown(socket.SHUT_WR)
            while await loop.sock_recv(sock, 1 << 16):
                pass


def most_spares() -> int:
    """How many descriptors are held for connections that would find none."""
    return min(SPARES, descriptors() // 8)


def descriptors() -> int:
    """How many descriptors this process may have."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft >= 0 else 1 << 20
