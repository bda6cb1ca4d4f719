"""What all handlers have in common: who may ask, short answers, no ETag, and errors that are the client's affair.

Rule 1: what a web configuration asks for (guard.py) holds for every path, and for paths that are not there.
"""

import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Any, Protocol

from tornado.httputil import HTTPServerRequest
from tornado.iostream import IOStream
from tornado.web import HTTPError, RequestHandler

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer in place of what was asked for."""

    status: int
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)


class Gate(Protocol):
    """What a Guard is for the server."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What every answer holds."""

    @property
    def scheme(self) -> str:
        """What an address begins with: http or https."""

    def stream(self, connection: socket.socket, **kwargs: Any) -> IOStream:  # noqa: ANN401 - tornado's own arguments
        """Make a stream of an accepted connection. Raise OSError when it is gone already."""

    async def refusal(self, request: HTTPServerRequest) -> Refusal | None:
        """Say why a request is not answered; None when it is."""

    def knows(self, request: HTTPServerRequest) -> bool:
        """Whether a request that is answered comes from somebody who proved who he is."""

    def start(self) -> None:
        """Begin to do what has to be done again and again. Raise StartError."""

    def stop(self) -> None:
        """End that."""


class Plain(RequestHandler):
    """A handler that answers in a few bytes and without an ETag."""

    allowed = "GET, HEAD"

    def set_default_headers(self) -> None:
        self.set_header("Server", "otelgpu")
        self.set_header("X-Content-Type-Options", "nosniff")
        if self.gate is not None:
            for name, text in self.gate.headers.items():
                self.set_header(name, text)

    @property
    def gate(self) -> Gate | None:
        """What guards the pages; None where all may read them."""
        gate: Gate | None = self.settings.get("gate")
        return gate

    async def prepare(self) -> None:
        """Answer at once whoever may not ask."""
        refusal = None if self.gate is None else await self.gate.refusal(self.request)
        if refusal is not None:
            for name, text in refusal.headers.items():
                self.set_header(name, text)
            self.say(refusal.status, refusal.text)

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
