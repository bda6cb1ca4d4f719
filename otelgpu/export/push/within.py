"""HTTP answers that are all there within the time of one attempt, however slowly they come.

Rule 1: the timeout of a socket runs anew with every byte; here the time of an answer runs once, from its first byte
        to its last, headers too. A collector that trickles cannot hold the thread that sends.
Rule 2: only the reading of answers is changed; proxies, TLS and the pool of connections are those of requests.
"""

import http.client
import io
import socket
import time
from typing import Any

import requests.adapters
import urllib3


class BoundedAdapter(requests.adapters.HTTPAdapter):
    """An adapter whose answers end with TimeoutError once the timeout of the request is over."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - passed on as they are
        """Make the pools of direct connections."""
        super().init_poolmanager(*args, **kwargs)
        _bound(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:  # noqa: ANN401 - as the base class has it
        """Make the pools of connections through a proxy, or give those that there are."""
        manager = super().proxy_manager_for(proxy, **kwargs)
        _bound(manager)
        return manager


def _bound(manager: urllib3.PoolManager) -> None:
    pools = manager.pool_classes_by_scheme
    manager.pool_classes_by_scheme = {scheme: _bounded(pool) for scheme, pool in pools.items()}


def _bounded(pool: Any) -> Any:  # noqa: ANN401 - a class of urllib3's, of which SOCKS has its own
    connection = pool.ConnectionCls
    if connection.response_class is _Response:
        return pool
    bounded = type(connection.__name__, (connection,), {"response_class": _Response})
    return type(pool.__name__, (pool,), {"ConnectionCls": bounded})


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - passed on as they are
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Until(self.fp.detach(), sock))


class _Until(io.RawIOBase):
    """What a socket receives within its timeout, counted from here."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        self._raw = raw
        self._sock = sock
        seconds = sock.gettimeout()
        self._until = None if seconds is None else time.monotonic() + seconds

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any, /) -> int | None:  # noqa: ANN401 - whatever can be written to
        """Receive into *buffer*. Raise TimeoutError when the time is over."""
        if self._until is not None:
            left = self._until - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        """Let go of the socket's file."""
        self._raw.close()
        super().close()
