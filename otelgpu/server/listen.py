"""Sockets to serve on, bound all or none, with one clear line for each that cannot be had.

Rule 1: a file is removed only when it is a socket that nobody listens on, or the very one that was made here.
"""

import errno
import socket
import stat
from collections.abc import Iterable, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path

from tornado.netutil import bind_sockets

from otelgpu.config import Address, Config
from otelgpu.errors import StartError

BACKLOG = 128

WORDS = {
    errno.EADDRINUSE: "another program is using this address",
    errno.EACCES: "this user may not listen there",
    errno.EADDRNOTAVAIL: "this machine has no such address",
}


def sockets_of(config: Config, environ: MutableMapping[str, str]) -> list[socket.socket]:
    """Bind what the settings say, or take over what systemd has bound. Raise StartError."""
    if config.server.systemd_socket:
        from otelgpu.server.activated import passed  # here: hardly anybody has it

        return passed(environ, f"{config.origin('server.systemd_socket')}: server.systemd_socket")
    listen = enumerate(config.server.listen)
    return bound_all((address, config.origin("server.listen", i)) for i, address in listen)


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
    """Remove the files of sockets that have one, unless another process has put its own in the place."""
    for sock in sockets:
        if isinstance(sock, _FileSocket):
            sock.remove_file()


class _FileSocket(socket.socket):
    """A unix socket that knows its own file again: by its number, which the kernel gives to no other file meanwhile."""

    def __init__(self, path: str) -> None:
        """Listen at *path*, where nothing may be. Raise OSError."""
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._file: tuple[int, int] | None = None
        try:
            self.settimeout(0)
            self.bind(path)
            made = Path(path).lstat()
            self._file = made.st_dev, made.st_ino
            Path(path).chmod(0o660)
            self.listen(BACKLOG)
        except OSError:
            self.remove_file()
            self.close()
            raise

    def remove_file(self) -> None:
        """Remove the file; do nothing when it is gone, or is another one by now, as it may be once this is closed."""
        if self._file is None or self.fileno() < 0:
            return
        path = Path(self.getsockname())
        with suppress(OSError):  # gone, or not ours to remove
            found = path.lstat()
            if (found.st_dev, found.st_ino) == self._file:
                path.unlink()


def _bound(address: Address) -> Sequence[socket.socket]:
    if address.path:
        _clear_way(address.path)
        return [_FileSocket(address.path)]
    return bind_sockets(address.port, address.host or None)


def _meaning(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "this host name does not resolve"
    return WORDS.get(error.errno or 0, error.strerror or str(error))


def shown(sock: socket.socket, scheme: str = "http") -> str:
    """Name a bound socket as a URL that a client on this machine can use."""
    if sock.family == socket.AF_UNIX:
        name = sock.getsockname()  # bytes where it is abstract
        return f"unix:{name if isinstance(name, str) else '@' + name[1:].decode(errors='replace')}"
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - named, not bound
        host = "localhost"
    return f"{scheme}://[{host}]:{port}/metrics" if ":" in host else f"{scheme}://{host}:{port}/metrics"


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
