"""What a request's headers ask for: format, compression, patience.

Rule 1: a header that makes no sense is as good as none; nothing here refuses a request.
"""

import re

from tornado.httputil import HTTPServerRequest

from otelgpu.export.page import Format

SCRAPE_MARGIN = 0.1  # of the scraper's own timeout, kept for sending the page
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]*)?|\.[0-9]+")


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
    """Whether the client takes a gzip stream: what it says of gzip goes over what it says of anything else."""
    takes: dict[str, float] = {}
    for part in request.headers.get("Accept-Encoding", "").split(","):
        coding, *parameters = (piece.strip().lower() for piece in part.split(";"))
        takes[coding] = _quality(parameters)
    return takes.get("gzip", takes.get("x-gzip", takes.get("*", 0.0))) > 0


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            return _number(value) or 0.0
    return 1.0


def scrape_deadline(request: HTTPServerRequest) -> float | None:
    """Work out how long the driver may take from the scraper's timeout; None without one that makes sense."""
    timeout = _number(request.headers.get("X-Prometheus-Scrape-Timeout-Seconds", ""))
    return timeout * (1 - SCRAPE_MARGIN) if timeout else None


def _number(text: str) -> float | None:
    """Read a number as a header has it; `float` alone would also take 1_0, nan and digits of other scripts."""
    return float(text) if _NUMBER.fullmatch(text.strip()) else None
