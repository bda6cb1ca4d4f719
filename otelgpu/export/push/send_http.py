"""OTLP over HTTP.

Rule 1: `requests`, as the stock exporter uses it: proxies, certificates and netrc mean the same for both.
Rule 2: every answer is looked at. The stock exporter is not used for sending, because it shows neither the status nor
        Retry-After, tries again on its own within one call, and takes a partial success for a success.
"""

import contextlib
import email.utils
import gzip
import time
import zlib
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import requests
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from otelgpu import __version__
from otelgpu.config.words import shown
from otelgpu.export.push.outcome import Delivered, Failed, Outcome, Refused
from otelgpu.export.push.within import BoundedAdapter

RETRYABLE = frozenset((429, 502, 503, 504))  # as the OTLP specification says; everything else is for good
MOST_ANSWER = 64 * 1024  # bytes of an answer that are read


class HttpSender:
    """Posts to *url*. *verify* is a file of certificate authorities, or True; *client* a certificate and its key."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout: float,
        compression: str = "gzip",
        verify: str | bool = True,
        client: tuple[str, str] | str | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.place = _without_secrets(url)
        self._url = url
        self._timeout = timeout
        self._compression = compression
        self._wall = wall
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, BoundedAdapter())
        self._verify = verify
        self._client = client
        self._session.headers["User-Agent"] = f"otelgpu/{__version__} {requests.utils.default_user_agent()}"
        self._session.headers["Content-Type"] = "application/x-protobuf"
        if compression != "none":
            self._session.headers["Content-Encoding"] = compression
        self._session.headers.update(headers)

    def send(self, payload: bytes) -> Outcome:
        """Try once; see Sender."""
        until = time.monotonic() + self._timeout
        body = self._body(payload)
        try:
            with self._session.post(
                self._url,
                data=body,
                timeout=self._timeout,
                allow_redirects=False,
                stream=True,
                verify=self._verify,  # REQUESTS_CA_BUNDLE would go over the session's, but not over the call's
                cert=self._client,
            ) as answer:
                content = _content(answer, until)
        except requests.Timeout:
            return Failed(f"no answer within {self._timeout:g} s")
        except requests.ConnectionError as error:
            return Failed(_plain(error))
        except (requests.RequestException, OSError) as error:
            return Failed(f"{type(error).__name__}: {error}")
        return self._judged(answer, content)

    def close(self) -> None:
        """Let go of the connections."""
        self._session.close()

    def _body(self, payload: bytes) -> bytes:
        match self._compression:
            case "gzip":
                return payload
            case "deflate":
                return zlib.compress(gzip.decompress(payload))
            case _:
                return gzip.decompress(payload)

    def _judged(self, answer: requests.Response, content: bytes) -> Outcome:
        status = answer.status_code
        if requests.codes.ok <= status < requests.codes.multiple_choices:
            return _delivered(content)
        reason = f"{status} {answer.reason}"
        if status in RETRYABLE:
            return Failed(reason, self._after(answer.headers.get("Retry-After")))
        said = content.decode("utf-8", "replace").strip() if b"\0" not in content else ""
        return Refused(f"{reason}: {shown(said)}" if said.isprintable() and said else reason)

    def _after(self, text: str | None) -> float | None:
        """Read a Retry-After: seconds, or an HTTP date."""
        if text is None:
            return None
        text = text.strip()
        if text.isascii() and text.isdecimal():
            return float(text)
        try:
            return max(email.utils.parsedate_to_datetime(text).timestamp() - self._wall(), 0.0)
        except (ValueError, OverflowError):
            return None


def _without_secrets(url: str) -> str:
    """Leave away what may be a password: messages name the place."""
    address = urlsplit(url)
    return address._replace(netloc=address.netloc.rpartition("@")[2], query="").geturl()


def _content(answer: requests.Response, until: float) -> bytes:
    """Read the beginning of an answer. One that trickles in or breaks off is given up: its status has been seen."""
    content = b""
    with contextlib.suppress(requests.RequestException, OSError):
        for piece in answer.iter_content(4096):
            content += piece
            if len(content) >= MOST_ANSWER or time.monotonic() > until:
                break
    return content


def _delivered(content: bytes) -> Delivered:
    try:
        partial = ExportMetricsServiceResponse.FromString(content).partial_success
    except DecodeError:
        return Delivered()
    return Delivered(partial.rejected_data_points, partial.error_message)


def _plain(error: BaseException) -> str:
    """Find what the matter is: requests and urllib3 wrap it up to four times."""
    inner: BaseException = error
    while (deeper := _wrapped(inner)) is not None:
        inner = deeper
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return str(inner) or type(inner).__name__


def _wrapped(error: BaseException) -> BaseException | None:
    deeper = (error.__cause__, getattr(error, "reason", None), *error.args)
    return next((one for one in deeper if isinstance(one, BaseException)), None)
