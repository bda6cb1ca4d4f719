"""The Kubernetes API server: one request, or one watch, at a time.

Rule 1: what goes wrong leaves as ApiError with a sentence; neither the token nor a header is ever part of one.
Rule 2: each connection is made with the token and the authorities that the files hold at that moment: both are renewed
        while the process runs.
Rule 3: everything is bounded in time and size, and `close` from another thread ends it.

Why the client is our own: this needs a list, a watch and a lookup, and http.client and ssl are loaded anyway. Measured
on CPython 3.11 in a process that had loaded the SDK, tornado, gRPC and msgspec before, imports alone:

    http.client and ssl            1 ms     0.6 MB
    requests 2                    49 ms     7.3 MB
    lightkube 1.0                 56 ms     7.0 MB
    kr8s 0.20                    178 ms    19.8 MB
    kubernetes 37                191 ms    19.5 MB
    kubernetes-asyncio 36        385 ms    47.6 MB
"""

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import msgspec

from otelgpu.errors import OtelgpuError

LIMIT = 10.0  # seconds for each step of a request: to connect, to send, and until the answer begins
WHOLE = 60.0  # seconds for the rest of an answer
WATCH_SECONDS = 240  # after which the server is to end a watch
LONGEST_ANSWER = 64 * 1024 * 1024  # bytes of one page of a list
LONGEST_LINE = 4 * 1024 * 1024  # bytes of one event; an object in etcd has 1.5 MiB at most
_SHOWN = 200  # characters of what the server says
# A peer that vanished without a word is noticed after half a minute, where a quiet watch is silent for minutes.
_ALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))

OK, FORBIDDEN, NOT_FOUND, GONE = 200, 403, 404, 410


class ApiError(OtelgpuError):
    """The API server did not answer, or not as it should; asking later may help. `status`: 0 where it said nothing."""

    def __init__(self, text: str, *, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class _Status(msgspec.Struct):
    """What the server sends in place of an answer."""

    message: str = ""
    reason: str = ""
    code: int = 0


class _Socket(ssl.SSLSocket):
    """Reads `until` an instant: a timeout alone begins anew with each byte, and bytes may come one by one for ever."""

    until = 0.0  # monotonic

    def recv_into(self, *arguments: Any, **named: Any) -> int:  # noqa: ANN401 - those of the library
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(left)
        return super().recv_into(*arguments, **named)


class Api:
    """The API server that a pod finds in its environment, asked as the service account in *folder*."""

    def __init__(self, environ: Mapping[str, str], folder: str) -> None:
        self._host = environ.get("KUBERNETES_SERVICE_HOST", "")
        self._port = environ.get("KUBERNETES_SERVICE_PORT", "") or "443"
        self._folder = Path(folder)
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._closed = False

    def get(self, path: str, query: Mapping[str, str] | None = None, *, accept: str = "application/json") -> bytes:
        """Ask for *path*. Raise ApiError."""
        connection, response = self._asked(path, query or {}, accept, WHOLE)
        try:
            content = response.read(LONGEST_ANSWER + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._lost(error) from None
        finally:
            response.close()
            connection.close()
        if len(content) > LONGEST_ANSWER:
            raise ApiError(f"{self._place()}: an answer of more than {LONGEST_ANSWER} bytes")
        return content

    def watch(self, path: str, query: Mapping[str, str], *, accept: str = "application/json") -> Iterator[bytes]:
        """Open a watch; what is given back is one event a line, until the server ends it. Raise ApiError, there too."""
        wanted = {**query, "watch": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        return self._lines(*self._asked(path, wanted, accept, WATCH_SECONDS + LIMIT))

    def _lines(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            while line := response.readline(LONGEST_LINE + 1):
                if len(line) > LONGEST_LINE:
                    raise ApiError(f"{self._place()}: an event of more than {LONGEST_LINE} bytes")
                if not line.endswith(b"\n"):
                    raise ApiError(f"{self._place()}: the watch broke off within an event")
                if line.strip():
                    yield line
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._lost(error) from None
        finally:
            response.close()
            connection.close()

    def close(self) -> None:
        """End what is under way, if anything, and ask nothing more. Safe to call twice."""
        with self._lock:
            self._closed = True
            if self._socket is not None:
                with suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # SSLSocket's own lets go of its state

    def _asked(
        self, path: str, query: Mapping[str, str], accept: str, patience: float
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send a request; for the rest of the answer, of which nothing is read yet, there are *patience* seconds."""
        token = self._token()
        headers = {"Authorization": f"Bearer {token}", "Accept": accept, "User-Agent": "otelgpu"}
        secure = self._connected()
        secure.until = time.monotonic() + LIMIT
        connection = http.client.HTTPConnection(self._host, int(self._port))
        connection.sock = secure
        try:
            connection.request("GET", f"{path}?{urlencode(query)}" if query else path, headers=headers)
            response = connection.getresponse()
            if response.status == OK:
                secure.until = time.monotonic() + patience
                return connection, response
            said = response.read(LONGEST_LINE).replace(token.encode(), b"...")  # some say back what they were sent
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            raise self._lost(error) from None
        connection.close()
        raise ApiError(f"{self._place()}: {path}: {_spoken(response.status, said)}", status=response.status)

    def _token(self) -> str:
        text = self._read("token").strip()
        if not text or not text.isascii() or not text.isprintable() or " " in text:
            raise ApiError(f"{self._folder / 'token'} holds no token")
        return text

    def _read(self, name: str) -> str:
        path = self._folder / name
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            hint = "; is automountServiceAccountToken true?" if isinstance(error, FileNotFoundError) else ""
            raise ApiError(f"{path}: {error.strerror or error}{hint}") from None
        except UnicodeDecodeError:
            raise ApiError(f"{path}: it is not text") from None

    def _connected(self) -> _Socket:
        """Connect, so that `close` can end each step of it."""
        if not self._host:
            raise ApiError("KUBERNETES_SERVICE_HOST is not set: this process does not run in a pod")
        if not self._port.isdecimal():
            raise ApiError("KUBERNETES_SERVICE_PORT is no number")
        # Not ssl.create_default_context: from Python 3.13 on it refuses the authorities that many clusters have.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.sslsocket_class = _Socket
        try:
            context.load_verify_locations(cadata=self._read("ca.crt"))
        except (ssl.SSLError, ValueError, TypeError):
            raise ApiError(f"{self._folder / 'ca.crt'}: there is no certificate in it") from None
        opened: socket.socket | None = None
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)[0]
            opened = self._held(socket.socket(family, kind, protocol))
            opened.settimeout(LIMIT)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _ALIVE:
                opened.setsockopt(socket.IPPROTO_TCP, option, value)
            opened.connect(address)
            opened.getpeername()  # of a connection that was cut already, wrap_socket would lose the socket
            wrapped = context.wrap_socket(opened, server_hostname=self._host, do_handshake_on_connect=False)
            secure = cast("_Socket", wrapped)
            opened = self._held(secure)
            secure.do_handshake()
        except (OSError, ValueError) as error:
            if opened is not None:
                opened.close()
            raise self._lost(error) from None
        return secure

    def _held(self, opened: socket.socket) -> socket.socket:
        with self._lock:
            if self._closed:
                opened.close()
                raise ApiError(f"{self._place()}: closed")
            self._socket = opened
        return opened

    def _place(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"https://{host}:{self._port}"

    def _lost(self, error: Exception) -> ApiError:
        if self._closed:
            return ApiError(f"{self._place()}: closed while it was being asked")
        return ApiError(f"{self._place()}: {_reason(error)}")


def _reason(error: Exception) -> str:
    """Say what kept the answer away. Texts of exceptions that can quote what was sent are not shown."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not good: {error.verify_message}"
    if isinstance(error, OSError):
        return error.strerror or "the connection broke"
    if isinstance(error, http.client.HTTPException):
        return f"it does not speak HTTP ({type(error).__name__})"
    return "the connection broke"


def _spoken(status: int, said: bytes) -> str:
    """Give back what the server said to refuse, in one line."""
    try:
        message = msgspec.json.decode(said, type=_Status).message
    except msgspec.MsgspecError:
        message = ""
    words = " ".join(message.split())
    return f"{status} {words[:_SHOWN]}" if words else f"{status} {http.client.responses.get(status, '')}".rstrip()
