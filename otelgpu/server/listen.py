"""Sockets to serve on, bound all or none, with one clear line for each that cannot be had."""

import errno
import socket
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from tornado.netutil import bind_sockets, bind_unix_socket

from otelgpu.config import Address
from otelgpu.errors import StartError

WORDS = {
    errno.EADDRINUSE: "another program is using this address",
    errno.EACCES: "this user may not listen there",
    errno.EADDRNOTAVAIL: "this machine has no such address",
}


def bound_all(addresses: Iterable[tuple[Address, str]]) -> list[socket.socket]:
    """Bind the sockets of every address, given with the place of its setting, or none.

    Raise StartError with a line for each address that cannot be had.
    """
    sockets: list[socket.socket] = []
    problems: list[str] = []
    for address, place in addresses:
        try:
            sockets.extend(_bound(address))
        except OSError as error:
            problems.append(f"{place}: {address}: {_meaning(error)}")
    if problems:
        remove_files(sockets)
        for sock in sockets:
            sock.close()
        raise StartError("\n".join(problems))
    return sockets


def remove_files(sockets: Iterable[socket.socket]) -> None:
    """Remove the files of sockets that have one. Done while they still listen, nobody else's file can be meant."""
    for sock in sockets:
        if sock.family == socket.AF_UNIX:
            Path(sock.getsockname()).unlink(missing_ok=True)


def _bound(address: Address) -> Sequence[socket.socket]:
    if address.path:
        _clear_way(address.path)
        return [bind_unix_socket(address.path, mode=0o660)]
    return bind_sockets(address.port, address.host or None)


def _meaning(error: OSError) -> str:
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
        except ConnectionRefusedError:  # nobody listens any more
            Path(path).unlink(missing_ok=True)
            return
        except (FileNotFoundError, TimeoutError, BlockingIOError):  # it is going away, or too busy to take us
            pass
    raise OSError(errno.EADDRINUSE, "in use")
