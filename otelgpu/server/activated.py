"""Sockets that systemd has bound already, and passes: sd_listen_fds(3).

Rule 1: what is passed is used as it is, and never closed or removed before the end: systemd keeps it for the next one.
Rule 2: what is no listening stream socket is refused, with what is wrong in the .socket unit.
"""

import os
import socket
from collections.abc import MutableMapping

from otelgpu.errors import StartError

FIRST = 3  # descriptor
VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
_STREAMS = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)


def passed(environ: MutableMapping[str, str], place: str) -> list[socket.socket]:
    """Take the sockets over, and the variables out of *environ*: they are not meant for a child.

    Raise StartError, whose lines begin with the *place* of the setting that asks for them.
    """
    process, number = environ.get("LISTEN_PID", ""), environ.get("LISTEN_FDS", "")
    for variable in VARIABLES:
        environ.pop(variable, None)
    if process != str(os.getpid()) or not number.isdecimal() or not int(number):
        why = "LISTEN_FDS is not set" if not number else f"they are meant for process {process or '(none)'}"
        raise StartError(f"{place}: systemd has passed no sockets ({why}); it does for a .socket unit of this service")
    sockets: list[socket.socket] = []
    problems: list[str] = []
    for descriptor in range(FIRST, FIRST + int(number)):
        try:
            sock = socket.socket(fileno=descriptor)
            is_served = sock.family in _STREAMS and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as error:
            problems.append(f"{place}: descriptor {descriptor}: {(error.strerror or str(error)).lower()}")
            continue
        if not is_served:
            problems.append(
                f"{place}: descriptor {descriptor} is no listening stream socket; "
                "the .socket unit needs ListenStream= and Accept=no"
            )
        sock.set_inheritable(False)
        sock.settimeout(0)
        sockets.append(sock)
    if problems:
        raise StartError("\n".join(problems))
    return sockets
