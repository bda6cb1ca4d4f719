"""The loop that serves, from bound sockets to the end after a signal.

Rule 1: SIGTERM and SIGINT end it, also before the loop runs; a second signal changes nothing until the process is gone.
        Inside another process (beside.py) its owner ends it, and signals are left alone.
Rule 2: whoever was let in has MOMENT to say what he wants, requests under way get DRAIN, everything together STOP.
Rule 3: connections are held to half of the descriptors this process may have, and to those that leave some to the
        driver: it opens files of its own, and so does whatever else runs here.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from tornado.http1connection import HTTP1ServerConnection
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop
from tornado.iostream import IOStream

from otelgpu.errors import StartError
from otelgpu.server.accepting import LONGEST_HEADERS, Door, Stream, descriptors
from otelgpu.server.application import Site, application
from otelgpu.server.halfclosed import HalfClosed
from otelgpu.server.listen import remove_files, shown
from otelgpu.server.plain import Gate
from otelgpu.server.threads import ready

if TYPE_CHECKING:
    from otelgpu.server.notify import Notify

logger = logging.getLogger(__name__)

STOP = 4.0  # seconds from the signal until the process is gone
DRAIN = 1.0  # of these, for requests under way
MOMENT = 0.5  # before that, for requests on their way: a connection was let in, and nothing has come over it yet
ASIDE = 2  # threads: one may still look for an obstacle when the other stops everything
MOST_CONNECTIONS = 1000
SHARE = 0.5  # of the descriptors, for connections
LEFT_TO_OTHERS = 32  # descriptors at least; less where there may be few altogether


@dataclass(frozen=True, slots=True)
class Life:
    """What is started before the first request is answered, and stopped after the last.

    `obstacle` blocks until it is known whether there is anything to serve, and says why not if there is not. `stop`
    blocks up to so many seconds and says whether everything ended.
    """

    start: Callable[[], None]
    stop: Callable[[float], bool]
    obstacle: Callable[[], str | None] = lambda: None


class Ending(Protocol):
    """Whatever ends the serving."""

    async def wait(self) -> None:
        """Wait until it is to end."""


class Signals:
    """SIGTERM and SIGINT, from when this is made until the process is gone. To be made in the main thread.

    Other signals are noted until the loop runs, and then cause what they were taken for, in a thread of its own.
    """

    def __init__(self) -> None:
        self._came = False
        self._acts: dict[signal.Signals, Callable[[], object]] = {}
        self._noted: list[Callable[[], object]] = []
        self._wake: Callable[[], object] = lambda: None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take)

    async def wait(self) -> None:
        """Wait for the first signal, which may have come before."""
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        for number, act in self._acts.items():
            loop.add_signal_handler(number, self._begin, act)
        for act in self._noted:
            self._begin(act)
        self._wake = lambda: loop.call_soon_threadsafe(came.set)
        if not self._came:
            await came.wait()

    def take(self, number: signal.Signals, act: Callable[[], object]) -> None:
        """Have a signal cause something that may block. To be called in the main thread, before `wait`."""
        self._acts[number] = act
        signal.signal(number, lambda *_: self._noted.append(act))

    def _begin(self, act: Callable[[], object]) -> None:
        try:
            threading.Thread(target=act, name="otelgpu-signal", daemon=True).start()
        except RuntimeError as error:
            logger.error("a signal is not heeded: %s", error)  # noqa: TRY400 - its sentence says it all

    def _take(self, *_: object) -> None:
        if not self._came:
            self._came = True
            self._wake()


def manager_of(environ: Mapping[str, str]) -> "Notify | None":
    """Give the service manager that started this process and wants to be told; None where there is none."""
    if not environ.get("NOTIFY_SOCKET"):
        return None
    from otelgpu.server.notify import Notify  # here: most are not started by systemd

    return Notify(environ)


def serve_until(
    ending: Ending,
    site: Callable[[], Site],
    sockets: Sequence[socket.socket],
    life: Life,
    *,
    announce: Callable[[str], None],
    manager: "Notify | None" = None,
) -> bool:
    """Serve what *site* gives until the *ending*; say whether *life* ended within the time it has.

    Raise StartError when there is an obstacle; *life* has been stopped then.
    """
    try:
        return asyncio.run(_serve(ending, site, sockets, life, announce, manager))
    finally:
        remove_files(sockets)
        if (gate := site().gate) is not None:  # the same from the begin to the end; a request may need it until here
            gate.stop()


class _Server(HTTPServer):
    """Hangs up on the oldest connection when there are too many: whoever comes is served, whoever only waits is not."""

    def initialize(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - tornado's own arguments
        self._gate: Gate | None = kwargs.pop("gate")
        super().initialize(*args, **kwargs)
        self._open: dict[IOStream, None] = {}  # oldest first
        self._door = Door(self._take, self._hang_up)

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        IOLoop.current()  # it imports a module at its first call: later there may be no descriptor left for that
        for sock in sockets:
            self._door.open(sock)

    def stop(self) -> None:
        self._door.close()

    def is_awaiting(self) -> bool:
        """Whether somebody was let in who has not sent anything yet."""
        return any(isinstance(stream, HalfClosed) and stream.is_silent for stream in self._open)

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        self._open[stream] = None
        super().handle_stream(stream, address)

    def _take(self, connection: socket.socket, address: tuple[Any, ...]) -> None:
        most = descriptors()
        # The kernel gives the lowest number that is free: this one says how many are in use, whoever has them.
        if connection.fileno() >= most - min(LEFT_TO_OTHERS, most // 8):
            self._hang_up()
        while len(self._open) >= min(max(int(most * SHARE), 1), MOST_CONNECTIONS):
            self._hang_up()
        make = Stream if self._gate is None else self._gate.stream
        try:
            stream = make(connection, max_buffer_size=self.max_buffer_size)
        except OSError:  # gone before TLS could begin
            connection.close()
        else:
            self.handle_stream(stream, address)

    def _hang_up(self) -> bool:
        """Close the oldest connection; False when there is none."""
        oldest = next(iter(self._open), None)
        if oldest is None:
            return False
        del self._open[oldest]
        oldest.close()
        return True

    def on_close(self, server_conn: object) -> None:
        self._open.pop(cast(HTTP1ServerConnection, server_conn).stream, None)
        super().on_close(server_conn)


async def _serve(
    ending: Ending,
    site: Callable[[], Site],
    sockets: Sequence[socket.socket],
    life: Life,
    announce: Callable[[str], None],
    manager: "Notify | None",
) -> bool:
    ended = asyncio.ensure_future(ending.wait())
    aside = partial(asyncio.get_running_loop().run_in_executor, ready(ASIDE, "otelgpu-life"))
    gate = site().gate
    server = _Server(
        application(site),
        gate=gate,
        max_header_size=LONGEST_HEADERS,
        max_body_size=64 * 1024,
        body_timeout=10.0,
        idle_connection_timeout=300.0,
    )
    if gate is not None:
        gate.start()
    life.start()
    obstacle = asyncio.ensure_future(aside(life.obstacle))
    await asyncio.wait((obstacle, ended), return_when=asyncio.FIRST_COMPLETED)
    if obstacle.done() and obstacle.result() is not None:
        await aside(life.stop, STOP)
        raise StartError(str(obstacle.result()))
    if not ended.done():
        server.add_sockets(sockets)
        scheme = "http" if gate is None else gate.scheme
        addresses = list(dict.fromkeys(shown(sock, scheme) for sock in sockets))
        _announce(addresses, announce)
        if manager is not None:
            manager.ready(f"serving {', '.join(addresses)}")
            _beat(manager, site)
    await ended
    logger.info("stopping")
    if manager is not None:
        manager.stopping()
    return await _end(server, site(), sockets, lambda seconds: aside(life.stop, seconds))


def _beat(manager: "Notify", site: Callable[[], Site]) -> None:
    """Give signs of life as long as the loop goes round and /healthz would be good; a restart would help then."""
    if manager.pulse is None:
        return
    if site().is_alive() is None:
        manager.alive()
    asyncio.get_running_loop().call_later(manager.pulse, _beat, manager, site)


def _announce(addresses: Iterable[str], announce: Callable[[str], None]) -> None:
    for address in addresses:
        logger.info("listening on %s", address)
        announce(address)


async def _end(
    server: _Server, site: Site, sockets: Sequence[socket.socket], stop: Callable[[float], Awaitable[bool]]
) -> bool:
    until = time.monotonic() + STOP
    remove_files(sockets)
    server.stop()
    if server.is_awaiting():
        await asyncio.sleep(MOMENT)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(site.load.idle(), DRAIN)
    is_clean = await stop(until - time.monotonic())
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(server.close_all_connections(), max(until - time.monotonic(), 0.1))
    return is_clean
