"""What all handlers have in common: short answers, no ETag, and errors that are the client's affair."""

import logging
from http import HTTPStatus
from types import TracebackType

from tornado.web import HTTPError, RequestHandler

logger = logging.getLogger(__name__)


class Plain(RequestHandler):
    """A handler that answers in a few bytes and without an ETag."""

    allowed = "GET, HEAD"

    def set_default_headers(self) -> None:
        self.set_header("Server", "otelgpu")
        self.set_header("X-Content-Type-Options", "nosniff")

    def compute_etag(self) -> None:
        return None

    def write_error(self, status_code: int, **_: object) -> None:
        if status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            self.refuse()
        else:
            self.say(status_code, self._reason.lower())

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """What is wrong with a request is the client's affair; a defect of ours is logged."""
        if isinstance(value, HTTPError):
            logger.debug("%s %s: %s", self.request.method, self.request.path, value)
        else:
            super().log_exception(typ, value, tb)

    def say(self, status: int, text: str) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(text + "\n")

    def refuse(self, *_: str) -> None:
        """Say which methods there are."""
        self.set_header("Allow", self.allowed)
        self.say(HTTPStatus.METHOD_NOT_ALLOWED, "method not allowed")
