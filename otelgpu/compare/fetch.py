"""Get the text of a page: from a URL, a file, or standard input.

Rule 1: everything that can go wrong is a ValueError with a finished sentence; user and password of a URL are in none.
Rule 2: the server is asked itself, without a proxy; a redirect is told and not followed, as a password would go along.
"""

import ssl
import sys
import threading
from base64 import b64encode
from concurrent.futures import Future
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from urllib.parse import SplitResult, unquote, urlsplit

from otelgpu.config.given import opened
from otelgpu.config.words import shown, whole

STDIN = "-"
LARGEST = 64 << 20  # bytes of a page
# Asked for by version, as OpenMetrics cannot say of every counter that it is one.
_ACCEPT = "text/plain;version=0.0.4"


def name_of(place: str) -> str:
    """Name a place in messages: a URL without its user and password."""
    if place == STDIN:
        return "standard input"
    scheme, found, rest = place.partition("://")
    if not found:
        return whole(place)
    authority, slash, path = rest.partition("/")
    return whole(f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}")


def fetch(place: str, *, timeout: float) -> str:
    """Give the text that stands at *place*; a URL without a path means /metrics. Blocks for *timeout* seconds at most.

    Raise ValueError.
    """
    try:
        if place == STDIN:
            content = sys.stdin.buffer.read(LARGEST + 1)
        elif "://" in place:
            content = _get(place, timeout)
        else:
            with opened(place) as file:
                content = file.read(LARGEST + 1)
    except TimeoutError:
        raise ValueError(f"no page within {timeout:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise ValueError(
            f"{error.verify_message}; SSL_CERT_FILE names a file with the authority of its certificate"
        ) from None
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from None
    if len(content) > LARGEST:
        raise ValueError(f"more than {LARGEST >> 20} MiB is no page of metrics")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} is not UTF-8 text") from None


def _get(url: str, timeout: float) -> bytes:
    """Wait no longer, whatever a server does: timeouts of a socket begin anew with each byte that it lets drip."""
    answer: Future[bytes] = Future()

    def ask() -> None:
        try:
            answer.set_result(_asked(url, timeout))
        except Exception as error:  # noqa: BLE001 - handed on to whoever waits
            answer.set_exception(error)

    threading.Thread(target=ask, name="otelgpu-fetch", daemon=True).start()
    return answer.result(timeout)


def _asked(url: str, timeout: float) -> bytes:
    parts, port = _parts(url)
    make = HTTPConnection if parts.scheme == "http" else HTTPSConnection
    connection = make(parts.hostname or "", port, timeout=timeout)
    headers = {"Accept": _ACCEPT}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    path = parts.path if parts.path not in ("", "/") else "/metrics"
    try:
        connection.request("GET", f"{path}?{parts.query}" if parts.query else path, headers=headers)
        with connection.getresponse() as response:
            if response.status != 200:  # noqa: PLR2004 - the one status that comes with a page
                raise ValueError(_refusal(response))
            if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
                raise ValueError(f"came in an encoding that was not asked for: {shown(encoding)}")
            content = bytearray()
            while len(content) <= LARGEST and (part := response.read1(1 << 16)):
                content += part
            if response.length and len(content) <= LARGEST:
                raise ValueError(f"the connection ended {response.length} bytes too early")
            return bytes(content)
    except IncompleteRead:
        raise ValueError("the answer is cut off, or its chunks are wrong") from None
    except HTTPException as error:
        raise ValueError(f"no answer in HTTP: {shown(str(error) or type(error).__name__)}") from None
    finally:
        connection.close()


def _parts(url: str) -> tuple[SplitResult, int | None]:
    if not (url.isascii() and url.isprintable() and " " not in url):
        raise ValueError("a URL is of ASCII characters without blanks; %20 stands for one")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"expected http:// or https://, got {shown(parts.scheme)}")
    if not parts.hostname:
        raise ValueError("expected a host after ://")
    try:
        return parts, parts.port
    except ValueError:
        raise ValueError("a port is 0 to 65535") from None


def _refusal(response: HTTPResponse) -> str:
    where = response.headers.get("Location")
    return f"answered {response.status} {response.reason}" + (f"; it points to {name_of(where)}" if where else "")
