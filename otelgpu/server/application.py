"""The paths that are served.

Rule 1: handlers only pick and answer; what they need comes in with Site.
Rule 2: a client that is slow, silent or gone costs its own connection and nobody else's.
"""

import asyncio
import html
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import unquote

from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPServerRequest
from tornado.iostream import StreamClosedError
from tornado.web import Application, RequestHandler

from otelgpu.server.driver import Holding, driver_paths
from otelgpu.server.headers import accepted, accepts_gzip, scrape_deadline
from otelgpu.server.pages import Pages
from otelgpu.server.plain import Gate, Plain

logger = logging.getLogger(__name__)

_AUTHORITY = re.compile(r"https?://[^/]+", re.IGNORECASE | re.ASCII)
SEND = 30.0  # seconds a client may take to read its page; nobody's memory is held for longer
LARGE = 64 * 1024  # bytes of a page; below, one packet more is worse than a copy


class Load:
    """How many requests for /metrics are under way; used on the loop alone.

    `waiting` are those whose page is being made: only these count against `server.max_requests`, or a few clients
    that read slowly would shut out all the others.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self._open = 0
        self._idle: asyncio.Event | None = None

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count a request until its page has been sent."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if self._idle is not None and not self._open:
                self._idle.set()

    @contextmanager
    def one_more_waiting(self) -> Iterator[None]:
        """Count a request while its page is being made."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    async def idle(self) -> None:
        """Wait until no request is under way."""
        if self._open:
            self._idle = asyncio.Event()
            await self._idle.wait()


@dataclass(frozen=True, slots=True)
class Site:
    """What the handlers need to know."""

    pages: Pages
    max_requests: int
    version: str
    is_ready: Callable[[], str | None]  # None, or why not
    is_alive: Callable[[], str | None]
    answered: Callable[[int, float], None]  # status code and seconds of each request for /metrics
    openmetrics_first: bool = False  # semconv names lose nothing in OpenMetrics; DCGM's do
    send_limit: float = SEND
    driver: Holding | None = None  # whoever can let go of the driver
    gate: Gate | None = None  # who guards the pages
    load: Load = field(default_factory=Load)


class _Here(Plain):
    """A handler of the site that is served when the request comes."""

    site: Site

    def initialize(self, site: Callable[[], Site]) -> None:
        self.site = site()

    post = put = patch = delete = options = Plain.refuse


class Metrics(_Here):
    """The page that Prometheus scrapes."""

    async def get(self) -> None:
        """Answer with the page; 503 when too many ask at once."""
        load = self.site.load
        if load.waiting >= self.site.max_requests:
            self.set_header("Retry-After", "1")
            self.say(503, f"more than {self.site.max_requests} requests at once")
            return
        form = accepted(self.request, openmetrics_first=self.site.openmetrics_first)
        compressed = accepts_gzip(self.request)
        with load.one_more():
            with load.one_more_waiting():
                body = await self.site.pages.get(form, scrape_deadline(self.request), compressed=compressed)
            self.set_header("Content-Type", form.value)
            self.set_header("Vary", "Accept, Accept-Encoding")
            if compressed:
                self.set_header("Content-Encoding", "gzip")
            await self._send(body)

    async def _send(self, body: bytes) -> None:
        """Answer, and hang up on a client that does not read."""
        stream = cast(HTTP1Connection, self.request.connection).stream
        if len(body) > LARGE:
            # On their own: sent together with its headers, a page would be copied for each client that reads slowly.
            self.set_header("Content-Length", str(len(body)))
            self.flush()
        self.finish(body)
        try:
            # Not what `finish` returns: that never comes about when the client leaves (tornado 6.6).
            await asyncio.wait_for(stream.write(b""), self.site.send_limit)
        except TimeoutError:
            stream.close()
        except StreamClosedError:
            pass  # the client has gone

    async def head(self) -> None:
        """Answer as GET does, without the page."""
        await self.get()

    def on_finish(self) -> None:
        """Count the request."""
        self.site.answered(self.get_status(), self.request.request_time())


class Health(_Here):
    """dcgm-exporter's /health: the process serves, and nothing more is said."""

    def get(self) -> None:
        self.set_header("X-Registry-Available", "true")
        self.say(200, "OK")

    head = get


class Alive(_Here):
    """/healthz: whether the process can still do its work; a restart would help when it cannot."""

    def get(self) -> None:
        problem = self.site.is_alive()
        self.say(200 if problem is None else 503, problem or "ok")

    head = get


class Ready(_Here):
    """/readyz: whether the last sweep was good; nobody waits for the driver here."""

    def get(self) -> None:
        problem = self.site.is_ready()
        self.say(200 if problem is None else 503, problem or "ok")

    head = get


class Home(_Here):
    """A plain page with links."""

    def get(self) -> None:
        links = "".join(
            f'<li><a href="{path}">{path}</a> {html.escape(text)}</li>\n'
            for path, text in (
                ("/metrics", "the readings, for Prometheus"),
                ("/readyz", "whether GPUs have been read"),
                ("/healthz", "whether this process works"),
                ("/health", "the same path as dcgm-exporter's"),
            )
        )
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(
            '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>otelgpu</title></head>\n'
            f"<body>\n<h1>otelgpu {html.escape(self.site.version)}</h1>\n<ul>\n{links}</ul>\n</body>\n</html>\n"
        )

    head = get


class _Site(Application):
    """Finds the handler of a path, however a client spells the path."""

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:  # noqa: ANN401 - tornado's own
        request.path = _path(request.uri or "")
        return super().find_handler(request, **kwargs)


def _path(target: str) -> str:
    """Give the path that a request is for (RFC 9112, 3.2): proxies may write the whole URL; %6D is an m."""
    path = target.partition("?")[0]
    if found := _AUTHORITY.match(path):
        path = path[found.end() :] or "/"
    return unquote(path) if path.startswith("/") else path


class Nothing(_Here):
    """Any other path."""

    async def prepare(self) -> None:
        await super().prepare()
        if not self._finished:
            self.say(404, "not found")


def application(site: Callable[[], Site]) -> Application:
    """Build the tornado application; *site* says at each request what is served. Whoever holds the driver stays."""
    arguments = {"site": site}
    paths = [("/metrics", Metrics), ("/health", Health), ("/healthz", Alive), ("/readyz", Ready), ("/", Home)]
    return _Site(
        [
            *((path, handler, arguments) for path, handler in paths),
            *driver_paths(site().driver),
        ],
        default_handler_class=Nothing,
        default_handler_args=arguments,
        log_function=_log,
        gate=site().gate,
    )


def _log(handler: RequestHandler) -> None:
    request = handler.request
    logger.debug(
        "%s %s from %s: %d in %.1f ms",
        request.method,
        request.path,
        request.remote_ip,
        handler.get_status(),
        request.request_time() * 1000,
    )
