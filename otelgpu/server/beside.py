"""The server in a thread of its own, inside a process that has a life of its own.

Rule 1: no signal is touched, and the thread is a daemon: it never keeps the process from leaving.
Rule 2: a child made by fork serves nothing: it closes its copies of the sockets, or the port would stay taken.
"""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from otelgpu.errors import StartError
from otelgpu.server.application import Site
from otelgpu.server.running import STOP, Life, serve_until

if TYPE_CHECKING:
    from otelgpu.server.notify import Notify

logger = logging.getLogger(__name__)


class _Call:
    """An ending that is called for, from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._came = asyncio.Event()

    async def wait(self) -> None:
        """Wait for the call."""
        self._loop = asyncio.get_running_loop()
        await self._came.wait()

    def end(self) -> None:
        """Call for the end, once it is waited for."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._came.set)


class Beside:
    """Serves *site* on bound *sockets* from `start` to `stop`."""

    def __init__(
        self, site: Site, sockets: Sequence[socket.socket], life: Life, *, manager: "Notify | None" = None
    ) -> None:
        self._sockets = sockets
        self._owner = os.getpid()
        self._call = _Call()
        self._serving = threading.Event()
        serve = partial(
            serve_until,
            self._call,
            lambda: site,
            sockets,
            life,
            announce=lambda _: self._serving.set(),
            manager=manager,
        )
        self._thread = threading.Thread(target=self._run, args=(serve,), name="otelgpu-server", daemon=True)

    def start(self) -> None:
        """Start the thread; come back when it serves."""
        os.register_at_fork(after_in_child=self._leave)
        self._thread.start()
        self._serving.wait(STOP)

    def stop(self) -> None:
        """End it all; blocks for STOP seconds at most. Safe to call twice, and in a child."""
        if os.getpid() == self._owner and self._thread.is_alive():
            self._call.end()
            self._thread.join(STOP)

    def _leave(self) -> None:
        for sock in self._sockets:
            sock.close()

    def _run(self, serve: Callable[[], bool]) -> None:
        try:
            serve()
        except (OSError, StartError) as error:
            logger.error("the page is not served: %s", error)  # noqa: TRY400 - its sentence says it all
        except Exception:
            logger.exception("the page is not served any more")
        finally:
            self._serving.set()
