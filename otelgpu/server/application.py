"""The paths that are served.

Rule 1: handlers only pick and answer; what they need comes in with Site.
Rule 2: a client that is slow, silent or gone costs its own connection and nobody else's.
"""

import asyncio
import html
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tornado.httputil import HTTPServerRequest
from tornado.web import Application, RequestHandler

from otelgpu.export.page import Format
from otelgpu.server.pages import Pages

logger = logging.getLogger(__name__)

SCRAPE_MARGIN = 0.1  # of the scraper's own timeout, kept for sending the page
SMALLEST_DEADLINE = 0.05  # seconds


class Load:
    """How many requests for /metrics are under way; used on the loop alone."""

    def __init__(self) -> None:
        self.under_way = 0
        self._idle: asyncio.Event | None = None

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count a request for as long as it is under way."""
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1
            if self._idle is not None and not self.under_way:
                self._idle.set()

    async def idle(self) -> None:
        """Wait until no request is under way."""
        if self.under_way:
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
    load: Load = field(default_factory=Load)


class _Plain(RequestHandler):
    """A handler for GET and HEAD that answers in a few bytes and without an ETag."""

    site: Site

    def initialize(self, site: Site) -> None:
        self.site = site

    def set_default_headers(self) -> None:
        self.set_header("Server", "otelgpu")
        self.set_header("X-Content-Type-Options", "nosniff")

    def compute_etag(self) -> None:
        return None

    def write_error(self, status_code: int, **_: object) -> None:
        self._say(status_code, self._reason.lower())

    def _say(self, status: int, text: str) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(text + "\n")

    def _allow(self, *methods: str) -> None:
        self.set_header("Allow", ", ".join(methods))
        self._say(405, "method not allowed")

    def post(self, *_: str) -> None:
        self._allow("GET", "HEAD")

    put = patch = delete = options = post


class Metrics(_Plain):
    """The page that Prometheus scrapes."""

    async def get(self) -> None:
        """Answer with the page; 503 when too many ask at once."""
        load = self.site.load
        if load.under_way >= self.site.max_requests:
            self.set_header("Retry-After", "1")
            self._say(503, f"more than {self.site.max_requests} requests at once")
            return
        with load.one_more():
            form = accepted(self.request, openmetrics_first=self.site.openmetrics_first)
            compressed = accepts_gzip(self.request)
            body = await self.site.pages.get(form, scrape_deadline(self.request), compressed=compressed)
        self.set_header("Content-Type", form.value)
        self.set_header("Vary", "Accept, Accept-Encoding")
        if compressed:
            self.set_header("Content-Encoding", "gzip")
        self.finish(body)

    async def head(self) -> None:
        """Answer as GET does, without the page."""
        await self.get()

    def on_finish(self) -> None:
        """Count the request."""
        self.site.answered(self.get_status(), self.request.request_time())


class Health(_Plain):
    """dcgm-exporter's /health: the process serves, and nothing more is said."""

    def get(self) -> None:
        self.set_header("X-Registry-Available", "true")
        self._say(200, "OK")

    head = get


class Alive(_Plain):
    """/healthz: whether the process can still do its work; a restart would help when it cannot."""

    def get(self) -> None:
        problem = self.site.is_alive()
        self._say(200 if problem is None else 503, problem or "ok")

    head = get


class Ready(_Plain):
    """/readyz: whether there has been a good sweep."""

    def get(self) -> None:
        problem = self.site.is_ready()
        self._say(200 if problem is None else 503, problem or "ok")

    head = get


class Home(_Plain):
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


class Nothing(_Plain):
    """Any other path."""

    def prepare(self) -> None:
        self._say(404, "not found")


def application(site: Site) -> Application:
    """Build the tornado application."""
    arguments = {"site": site}
    paths = [("/metrics", Metrics), ("/health", Health), ("/healthz", Alive), ("/readyz", Ready), ("/", Home)]
    return Application(
        [(path, handler, arguments) for path, handler in paths],
        default_handler_class=Nothing,
        default_handler_args=arguments,
        log_function=_log,
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


def accepted(request: HTTPServerRequest, *, openmetrics_first: bool) -> Format:
    """Choose the format: text 0.0.4 whenever the client takes it, unless OpenMetrics loses nothing.

    Prometheus 2.42 prefers OpenMetrics, where a counter that is not named _total can only be `unknown`.
    """
    offered = request.headers.get("Accept", "")
    takes: dict[str, float] = {}
    for part in offered.split(","):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        takes[kind] = max(takes.get(kind, 0.0), _quality(parameters))
    openmetrics = takes.get("application/openmetrics-text", 0.0)
    text = max(takes.get("text/plain", 0.0), takes.get("text/*", 0.0), takes.get("*/*", 0.0))
    if openmetrics and ((openmetrics_first and openmetrics >= text) or not text):
        return Format.OPENMETRICS
    return Format.TEXT


def accepts_gzip(request: HTTPServerRequest) -> bool:
    """Whether the client takes a gzip stream."""
    for part in request.headers.get("Accept-Encoding", "").split(","):
        coding, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if coding in ("gzip", "x-gzip", "*"):
            return _quality(parameters) > 0
    return False


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def scrape_deadline(request: HTTPServerRequest) -> float | None:
    """Work out how long the driver may take from the scraper's timeout; None without one that makes sense."""
    try:
        timeout = float(request.headers.get("X-Prometheus-Scrape-Timeout-Seconds", ""))
    except ValueError:
        return None
    if not math.isfinite(timeout) or timeout <= 0:
        return None
    return max(timeout * (1 - SCRAPE_MARGIN), SMALLEST_DEADLINE)
