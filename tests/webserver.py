"""Pages served in this process, also behind a web configuration file, and the certificates that go with it.

Rule 1: everything but the signals is as in `otelgpu serve`: pipeline, pages, server, guard.
Rule 2: certificates are made by `openssl`, once a session; a test that needs them is skipped where it is missing.
"""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import bcrypt
import pytest

from otelgpu.config import Address
from otelgpu.server.beside import Beside
from otelgpu.server.guard import Guard
from otelgpu.server.listen import bound_all
from otelgpu.server.running import Life
from tests.harness import LIMIT, Node

CHEAP = 4  # the least cost of a hash
SECRET = "correct horse"
HASH = bcrypt.hashpw(SECRET.encode(), bcrypt.gensalt(CHEAP)).decode()
NAMES = "DNS:localhost,DNS:{0},IP:127.0.0.1,IP:::1,email:{0}@example.com,URI:spiffe://example.com/{0}"


@dataclass(frozen=True, slots=True)
class Certificates:
    """A folder with ca, server, renewed, client and other, all of that authority, and stranger, of its own."""

    folder: Path

    def file(self, name: str) -> Path:
        """A certificate (`client.pem`) or a key (`client.key`)."""
        return self.folder / name

    def flags(self, name: str) -> tuple[str | Path, ...]:
        """What tells curl to show a certificate."""
        return "--cert", self.file(f"{name}.pem"), "--key", self.file(f"{name}.key")


def make_certificates(folder: Path) -> Certificates:
    """Make them. Skip the test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed (Debian's package openssl)")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "stranger"):
        _openssl(folder, "req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    for number, name in enumerate(("server", "renewed", "client", "other")):
        _openssl(folder, "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "names").write_text(f"subjectAltName={NAMES.format(name)}\n")
        sign = ("-CA", "ca.pem", "-CAkey", "ca.key", "-set_serial", str(number + 1), "-extfile", "names", "-days", "30")
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *sign)
    _openssl(folder, "pkey", "-in", "server.key", "-aes256", "-passout", "pass:x", "-out", "locked.key")
    return Certificates(folder)


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=LIMIT)


@dataclass(frozen=True, slots=True)
class Here:
    """A server in this process, at a port of 127.0.0.1; `guard` where there is a web configuration file."""

    guard: Guard | None
    port: int

    def connect(self) -> socket.socket:
        """Open a bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT)

    def get(self, path: str = "/metrics") -> int:
        """Ask without TLS, and give the status."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def curl(self, path: str, *flags: str | Path, scheme: str = "https") -> tuple[str, str]:
        """Ask with curl; give what came, headers too, and what curl complained of."""
        command = ["curl", "-sS", "-i", "--max-time", str(LIMIT), *map(str, flags)]
        done = subprocess.run(
            [*command, f"{scheme}://localhost:{self.port}{path}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * LIMIT,
        )
        return done.stdout, done.stderr


@contextmanager
def here(node: Node) -> Iterator[Here]:
    """Serve the pages of a node as `otelgpu serve` does."""
    (sock,) = bound_all([(Address("127.0.0.1", 0), "here")])
    with ThreadPoolExecutor(4) as executor:
        site = node.pipeline.site(executor)
        beside = Beside(site, [sock], Life(lambda: None, lambda _: True))
        port = sock.getsockname()[1]
        beside.start()
        try:
            yield Here(site.gate if isinstance(site.gate, Guard) else None, port)
        finally:
            beside.stop()


def status(answer: tuple[str, str]) -> int:
    """The status of what `curl` gave; 0 when nothing came."""
    return int(answer[0].split(" ")[1]) if answer[0] else 0
