"""Who may read the pages, and how the connection is protected: the web configuration file while it is in force.

Rule 1: the file and those that it names are watched (watch.py), and read again when one of them has changed.
Rule 2: a new file that is wrong changes nothing: the last good one stays in force. That is logged when it begins and
        when it is over, and otelgpu_web_config_last_reload_successful is 0 meanwhile.
Rule 3: what is in force is one frozen value, replaced whole. Connections that are open stay as they are.
Rule 4: imported only where there is such a file.
"""

import logging
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

from opentelemetry.metrics import Meter, Observation
from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPServerRequest
from tornado.iostream import IOStream

from otelgpu.config.given import Problem
from otelgpu.config.load import finished
from otelgpu.config.webfile import Web, read
from otelgpu.config.words import whole
from otelgpu.errors import ConfigError
from otelgpu.server.accepting import Stream
from otelgpu.server.passwords import Passwords, TooManyError, credentials
from otelgpu.server.plain import Refusal
from otelgpu.server.secure import SecureStream, canonical
from otelgpu.watch import Watch

logger = logging.getLogger(__name__)

LOOK = 1.0  # seconds

_TOO_MANY = Refusal(HTTPStatus.TOO_MANY_REQUESTS, "too many requests (rate_limit)", {"Retry-After": "1"})
_BUSY = Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many passwords to check", {"Retry-After": "1"})
_UNKNOWN = Refusal(HTTPStatus.UNAUTHORIZED, "unauthorized", {"WWW-Authenticate": 'Basic realm="otelgpu"'})


class Guard:
    """Holds the web configuration of *path* in force. *origin* says where it is named. Raise ConfigError."""

    def __init__(self, path: str, *, origin: str) -> None:
        self._path = path
        self._asked_by = f"{origin}: {whole(path)}"
        self._lock = threading.Lock()
        self._passwords = Passwords()
        self._bucket = _Bucket()
        self._refused: Counter[str] = Counter()
        self._complaint = ""
        self._web, self._problems = self._read()
        if self._problems:
            raise ConfigError(self._problems)
        self._files: Sequence[str] = self._web.files
        self._watch = Watch(lambda: self._files, self._renew, LOOK)

    @property
    def headers(self) -> Mapping[str, str]:
        """What every answer holds."""
        return self._web.headers

    @property
    def scheme(self) -> str:
        """What an address begins with: http or https."""
        return "http" if self._web.context is None else "https"

    def create_instruments(self, meter: Meter) -> None:
        """Register what is said about the file, and about who was refused."""
        meter.create_observable_gauge(
            "otelgpu.web_config.last_reload_successful",
            callbacks=[lambda _: [Observation(int(not self._complaint))]],
            description="Whether the web configuration file as it is now is in force: 1, or 0 while it is wrong.",
        )
        meter.create_observable_counter(
            "otelgpu.web.refused",
            callbacks=[lambda _: [Observation(count, {"reason": why}) for why, count in self._counts()]],
            description="Connections and requests refused: tls, password, or rate (rate_limit).",
        )

    def _counts(self) -> Iterable[tuple[str, int]]:
        return [(why, self._refused[why]) for why in ("tls", "password", "rate")]

    def stream(self, connection: socket.socket, **kwargs: Any) -> IOStream:  # noqa: ANN401 - tornado's own arguments
        """Make a stream of an accepted connection. Raise OSError when it is gone already."""
        web = self._web
        if web.context is None:
            return Stream(connection, **kwargs)
        try:
            wrapped = web.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        except ValueError as error:
            raise OSError(str(error)) from None
        try:
            return SecureStream(wrapped, sans=frozenset(map(canonical, web.sans)), refused=self._refuse_tls, **kwargs)
        except OSError:
            wrapped.close()
            raise

    def _refuse_tls(self, address: str, why: str) -> None:
        self._refused["tls"] += 1
        logger.warning("no TLS with %s: %s", address, why)

    async def refusal(self, request: HTTPServerRequest) -> Refusal | None:
        """Say why a request is not answered; None when it is."""
        web = self._web
        if web.rate is not None and not self._bucket.take(*web.rate):
            self._refused["rate"] += 1
            return _TOO_MANY
        if not web.users:
            return None
        given = credentials(request.headers.get("Authorization", ""))
        if given is None:
            return _UNKNOWN
        try:
            if await self._passwords.is_right(web.users, *given):
                return None
        except TooManyError:
            return _BUSY
        self._refused["password"] += 1
        logger.warning("a wrong user or password from %s", request.remote_ip)
        return _UNKNOWN

    def knows(self, request: HTTPServerRequest) -> bool:
        """Whether a request that is answered came with a password, or over a certificate that was checked."""
        sock = cast("HTTP1Connection", request.connection).stream.socket
        return bool(self._web.users) or (isinstance(sock, ssl.SSLSocket) and bool(sock.getpeercert()))

    def start(self) -> None:
        """Begin to look whether the files have changed. Raise StartError where no thread can be started for it."""
        self._watch.start()

    def stop(self) -> None:
        """Look no more, and check no password any more."""
        self._watch.stop()
        self._passwords.stop()

    def reload(self) -> Sequence[str]:
        """Read the file and put it in force; when anything is wrong with it say so, and keep what is. Blocks."""
        self._watch.read()
        return self._problems

    def _renew(self) -> None:
        with self._lock:
            web, problems = self._read()
            self._problems = problems
            self._files = (*web.files, *self._web.files) if problems else web.files
            if problems:
                more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
                complaint = f"{problems[0]}{more}"
                if complaint != self._complaint:
                    logger.error("%s; the last good web configuration stays in force", complaint)
                self._complaint = complaint
                return
            self._web = web
            if self._complaint:
                logger.info("the web configuration %s is good again, and in force", whole(self._path))
            else:
                logger.info("the web configuration %s was read again", whole(self._path))
            self._complaint = ""

    def _read(self) -> tuple[Web, list[str]]:
        problems: list[Problem] = []
        web = read(self._path, asked_by=self._asked_by, problems=problems)
        return web, finished(problems)


class _Bucket:
    """Tokens that requests take: one more comes each interval, and a burst of them is there at most."""

    def __init__(self) -> None:
        self._taken = 0.0
        self._at = time.monotonic()

    def take(self, interval: float, burst: int) -> bool:
        """Take a token; False when there is none."""
        now = time.monotonic()
        self._taken = max(self._taken - (now - self._at) / interval, 0.0)
        self._at = now
        if self._taken > burst - 1:
            return False
        self._taken += 1
        return True
