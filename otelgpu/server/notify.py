"""Tells systemd how the service stands: sd_notify(3), without its library.

Rule 1: one datagram a message, never waited for: a service manager that does not read keeps nobody.
Rule 2: what cannot be told is logged once; the service goes on without.
"""

import logging
import os
import socket
import time
from collections.abc import Mapping

logger = logging.getLogger(__name__)

MICROSECONDS = 1_000_000


class Notify:
    """Sends to the socket that NOTIFY_SOCKET in *environ* names: a path, or after `@` an abstract name."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._is_failing = False
        self._status = ""
        self.pulse = _pulse(environ)

    def ready(self, status: str = "") -> None:
        """Say that pages are served, or are again after a reload; the status before stands where none is given."""
        self._status = self._status or status
        self._send("READY=1", f"STATUS={status or self._status}")

    def reloading(self) -> None:
        """Say that settings are read again; `ready` ends it. systemd tells an old message by its time."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now}", "STATUS=reading the settings again")

    def alive(self) -> None:
        """Give a sign of life."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Say that the end has begun."""
        self._send("STOPPING=1", "STATUS=stopping")

    def _send(self, *lines: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(0)
                sock.sendto("\n".join(lines).encode(), self._address)
        except (OSError, ValueError) as error:
            if not self._is_failing:
                logger.warning("systemd is not told how things stand: NOTIFY_SOCKET: %s", error)
            self._is_failing = True
        else:
            self._is_failing = False


def _pulse(environ: Mapping[str, str]) -> float | None:
    """Give half of the time after which systemd takes this process for dead when it is silent; None for never."""
    period, process = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not period.isdecimal() or not int(period) or process not in ("", str(os.getpid())):
        return None
    return int(period) / MICROSECONDS / 2
