"""The loop that serves, from bound sockets to the end after a signal.

Rule 1: SIGTERM and SIGINT end it; a second signal changes nothing.
Rule 2: requests under way get DRAIN seconds, everything together STOP.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tornado.httpserver import HTTPServer

from otelgpu.server.application import Site, application
from otelgpu.server.listen import shown

logger = logging.getLogger(__name__)

STOP = 4.0  # seconds from the signal until the process is gone
DRAIN = 1.0  # of these, for requests under way


@dataclass(frozen=True, slots=True)
class Life:
    """What is started before the first request is answered, and stopped after the last.

    `stop` blocks up to so many seconds and says whether everything ended.
    """

    start: Callable[[], None]
    stop: Callable[[float], bool]


def serve_until_signal(
    site: Site, sockets: Sequence[socket.socket], life: Life, *, announce: Callable[[str], None]
) -> bool:
    """Serve *site* until a signal comes; say whether *life* ended within the time it has."""
    return asyncio.run(_serve(site, sockets, life, announce))


async def _serve(site: Site, sockets: Sequence[socket.socket], life: Life, announce: Callable[[str], None]) -> bool:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = HTTPServer(
        application(site),
        max_header_size=16 * 1024,
        max_body_size=64 * 1024,
        body_timeout=10.0,
        idle_connection_timeout=300.0,
    )
    life.start()
    server.add_sockets(sockets)
    for sock in sockets:
        logger.info("listening on %s", shown(sock))
        announce(shown(sock))
    await stopped.wait()
    logger.info("stopping")
    until = time.monotonic() + STOP
    server.stop()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(site.load.idle(), DRAIN)
    is_clean = await asyncio.to_thread(life.stop, until - time.monotonic())
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(server.close_all_connections(), max(until - time.monotonic(), 0.1))
    return is_clean
