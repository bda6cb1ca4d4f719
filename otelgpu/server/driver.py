"""/-/release and /-/resume: let go of the driver, so that it can be unloaded, and take it again.

Rule 1: for whoever is on this machine: from its own addresses or over a unix socket; from elsewhere for those who came
        with a password or a certificate that was checked. A page in a browser is not meant: it says where it is from.
Rule 2: looking changes nothing: only POST does.
"""

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, cast

from tornado.http1connection import HTTP1Connection

from otelgpu.server.plain import Plain


@dataclass(frozen=True, slots=True)
class Holding:
    """Whoever holds the driver. `release` blocks, in *executor*, and says why the driver is not let go of, or None."""

    release: Callable[[], str | None]
    resume: Callable[[], None]
    executor: Executor


class _Driver(Plain):
    """Either of the two paths."""

    allowed = "POST"
    holding: Holding

    def initialize(self, holding: Holding) -> None:
        self.holding = holding

    get = head = put = patch = delete = options = Plain.refuse

    async def post(self) -> None:
        """Do it, and say what became of it."""
        if not (self._is_local() or self._is_known()) or "Origin" in self.request.headers:
            self.say(HTTPStatus.FORBIDDEN, "only from this machine or with a password, and not from a browser")
        elif self.request.path == "/-/resume":
            self.holding.resume()
            self.say(HTTPStatus.OK, "the driver is taken again")
        else:
            loop = asyncio.get_running_loop()
            problem = await loop.run_in_executor(self.holding.executor, self.holding.release)
            if problem is None:
                self.say(HTTPStatus.OK, "the driver is let go of")
            else:
                self.say(HTTPStatus.SERVICE_UNAVAILABLE, f"the driver is not let go of: {problem}")

    def _is_known(self) -> bool:
        return self.gate is not None and self.gate.knows(self.request)

    def _is_local(self) -> bool:
        stream = cast(HTTP1Connection, self.request.connection).stream
        sock = getattr(stream, "socket", None)
        if sock is not None and sock.family == socket.AF_UNIX:
            return True
        try:
            return ip_address((self.request.remote_ip or "").partition("%")[0]).is_loopback
        except ValueError:
            return False


def driver_paths(holding: Holding | None) -> list[tuple[str, type[Plain], dict[str, Any]]]:
    """List the paths for the application; none where nobody holds a driver."""
    if holding is None:
        return []
    return [(path, _Driver, {"holding": holding}) for path in ("/-/release", "/-/resume")]
