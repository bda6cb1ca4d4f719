"""Sockets to serve on, bound all or none, with one clear line for each that cannot be had."""

import errno
import os
import socket
import stat
from collections.abc import Sequence
from pathlib import Path

from tornado.netutil import bind_sockets, bind_unix_socket

from otelgpu.config import Address

WORDS = {
    errno.EADDRINUSE: "another program is using this address",
    errno.EACCES: "this user may not listen there",
    errno.EADDRNOTAVAIL: "this machine has no such address",
}


def bound(address: Address) -> Sequence[socket.socket]:
    """Bind the sockets of one address; OSError when it cannot be had."""
    if address.path:
        _clear_way(address.path)
        return [bind_unix_socket(address.path, mode=0o660)]
    return bind_sockets(address.port, address.host or None)


def problem(error: OSError) -> str:
    """Say what an error of `bound` means."""
    if isinstance(error, socket.gaierror):
        return "this host name does not resolve"
    return WORDS.get(error.errno or 0, error.strerror or str(error))


def shown(sock: socket.socket) -> str:
    """Name a bound socket as a URL that a client on this machine can use."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - named, not bound
        host = "localhost"
    return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"


def _clear_way(path: str) -> None:
    """Remove the socket that a process left behind; one that still answers, or another kind of file, is left alone."""
    try:
        mode = Path(path).lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "there is a file of this name that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            os.unlink(path)  # noqa: PTH108
            return
    raise OSError(errno.EADDRINUSE, "in use")
