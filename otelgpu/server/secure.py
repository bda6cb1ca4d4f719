"""A connection under TLS.

Rule 1: a handshake holds up nobody: it goes on as its bytes come, and has HANDSHAKE seconds in all.
Rule 2: whoever only knocks (a TCP probe) is nothing to log; any other that fails is one line, with the address alone,
        so that the log can hold back what is said again and again.
Rule 3: tornado's own handshake (6.6) would log the port too, and with it a new line for each attempt.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from tornado.iostream import SSLIOStream

from otelgpu.server.halfclosed import HalfClosed

HANDSHAKE = 5.0  # seconds
_NAMES = ("DNS", "IP Address", "email", "URI")  # as `getpeercert` calls what Go compares
_PLAIN = (
    b"HTTP/1.1 400 Bad Request\r\nServer: otelgpu\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 24\r\n"
    b"Connection: close\r\n\r\nthis port speaks HTTPS.\n"
)


class SecureStream(HalfClosed, SSLIOStream):
    """A connection whose handshake begins by itself. *refused* is told with whom it came to nothing, and why.

    A client's certificate has to hold one of the *sans*, where there are any. Raise OSError: it has gone already.
    """

    def __init__(
        self,
        connection: ssl.SSLSocket,
        *,
        sans: frozenset[str],
        refused: Callable[[str, str], None],
        **kwargs: Any,  # noqa: ANN401 - tornado's own arguments
    ) -> None:
        self._sans = sans
        address = _address(connection)
        self._refused: Callable[[str], None] = lambda why: refused(address, why)
        self._late = asyncio.get_running_loop().call_later(HANDSHAKE, self._give_up)
        super().__init__(connection, **kwargs)

    def close_fd(self) -> None:
        """Close the socket, and wait for no handshake any more."""
        self._late.cancel()
        super().close_fd()

    def _do_ssl_handshake(self) -> None:
        self._handshake_reading = self._handshake_writing = False
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            self._handshake_reading = True
        except ssl.SSLWantWriteError:
            self._handshake_writing = True
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError) as error:
            self.close(exc_info=error)
        except ssl.SSLError as error:
            if error.reason == "HTTP_REQUEST":
                self._answer_plainly()
            self._refuse((error.reason or "it cannot be understood").replace("_", " ").lower(), error)
        except (OSError, ValueError, AttributeError) as error:  # what a socket raises that has gone meanwhile
            self.close(exc_info=error)
        else:
            self._late.cancel()
            self._ssl_accepting = False
            if self._sans and not self._sans & names(self.socket.getpeercert()):
                self._refuse("its certificate holds none of client_allowed_sans")
            else:
                self._finish_ssl_connect()

    def _is_connreset(self, e: BaseException) -> bool:
        # Garbage in the middle is the end of a connection like any other; tornado would log a traceback.
        return isinstance(e, ssl.SSLError) or super()._is_connreset(e)

    def _give_up(self) -> None:
        self._refuse(f"it did not finish within {HANDSHAKE:g} s")

    def _refuse(self, why: str, error: Exception | None = None) -> None:
        self._refused(why)
        self.close(exc_info=error or False)

    def _answer_plainly(self) -> None:
        """Tell somebody who came with http:// what is wrong."""
        with suppress(OSError):
            socket.socket.recv(self.socket, 1 << 16)  # what is left unread would make the kernel drop our answer
            socket.socket.send(self.socket, _PLAIN)


def names(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """Give the names in a certificate, each kind as Go writes it. *certificate* is what `getpeercert` returns."""
    alternatives = (certificate or {}).get("subjectAltName", ())
    return frozenset(canonical(text) for kind, text in alternatives if kind in _NAMES)


def canonical(name: str) -> str:
    """Give an IP address in its shortest form, and any other name as it is."""
    try:
        return ip_address(name).compressed
    except ValueError:
        return name


def _address(connection: socket.socket) -> str:
    peer = connection.getpeername()
    return str(peer[0]) if isinstance(peer, tuple) else "a unix socket"
