"""Clients that are slow, silent, torn or hostile: each costs a connection, a line in the log at most, and no time.

Rule 1: the server runs in this process, with the pages of the fake driver; `tests/test_server.py` has the same clients
        before a process of its own.
Rule 2: what a client gets is read to its end, so that nothing has to be waited for by the clock.
"""

import contextlib
import logging
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otelgpu.config import Sampling, Server
from otelgpu.server import secure
from otelgpu.server.halfclosed import HalfClosed
from tests.fakenvml import Fake, models
from tests.faults.rig import FEW
from tests.harness import Node, until
from tests.webserver import HASH, Here, here, make_certificates

Start = Callable[..., Node]

PATIENT = Sampling(reuse=0, deadline=60)  # what the driver does is not what is looked at here
PROMPT = 10.0  # seconds: many times what an answer takes, on a machine that does other things too
GET = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n"
BUSY = "nvmlDeviceGetPowerUsage"
HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(20)  # the beginning of a handshake


@pytest.fixture
def plain(node: Start) -> Iterator[Here]:
    """A server without TLS."""
    with here(node(models.h100(), fields=FEW, sampling=PATIENT)) as served:
        yield served


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A web configuration file with TLS and a user."""
    folder = make_certificates(tmp_path_factory.mktemp("certificates")).folder
    tls = "tls_server_config: {cert_file: server.pem, key_file: server.key}\n"
    (folder / "web.yml").write_text(f"{tls}basic_auth_users: {{alice: {HASH}}}\n")
    return folder / "web.yml"


def everything(sock: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := sock.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def statuses(answers: bytes) -> list[int]:
    """The status of each answer."""
    return [int(code) for code in re.findall(rb"^HTTP/1\.1 (\d{3}) ", answers, re.MULTILINE)]


def reset(sock: socket.socket) -> None:
    """Hang up without a goodbye."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def seconds(served: Here) -> float:
    """How long a health check takes."""
    began = time.monotonic()
    assert served.get("/healthz") == 200
    return time.monotonic() - began


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged beyond information."""
    return [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]


# half-closed


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (GET, [200]),
        (GET * 3, [200] * 3),
        (GET + HEALTH + GET[:-1], [200, 200]),
        (GET[:-1], []),
        (b"", []),
        (b"POST /-/none HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\nwhole", [404]),
        (b"POST /-/none HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\ntorn", []),
        (b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nto", []),
        (HEALTH + b"\x00\xff\r\n\r\n", [200, 400]),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_client_that_has_said_all_is_answered(plain: Here, sent: bytes, expected: list[int]) -> None:
    """`nc -N`, and proxies that pass the end of a request on: what came whole is answered, then the server closes."""
    with plain.connect() as sock:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        got = everything(sock)

    assert statuses(got) == expected
    assert got.count(b"\n# TYPE DCGM_FI_DEV_GPU_TEMP") == (sent.count(GET) if 200 in expected else 0)


def test_a_client_that_waits_for_its_page_with_one_half_closed_costs_no_time(
    node: Start, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a request stays readable; a loop that looked at it again and again would burn a core."""
    looked: list[int] = []
    real = HalfClosed._handle_events  # noqa: SLF001 - what the loop calls

    def noted(self: HalfClosed, fd: int, events: int) -> None:
        looked.extend([fd] * self._has_ended)
        real(self, fd, events)

    monkeypatch.setattr(HalfClosed, "_handle_events", noted)
    pair = models.h100(2)
    running = node(pair, fields=FEW, sampling=Sampling(reuse=0, deadline=60))
    with here(running) as served, contextlib.ExitStack() as stack:
        running.show(pair.with_gpu(0, hangs={BUSY}))
        waiting = [stack.enter_context(served.connect()) for _ in range(5)]
        for sock in waiting:
            sock.sendall(GET)
            sock.shutdown(socket.SHUT_WR)
        until(lambda: fake.inflight > 0, "the sweep hangs")
        for _ in range(3):
            served.get("/healthz")
        looked.clear()
        for _ in range(20):
            served.get("/healthz")
        seen = len(looked)
        running.show(pair)
        fake.release()
        got = [statuses(everything(sock)) for sock in waiting]

    assert seen == 0
    assert got == [[200]] * 5


# many


def test_slow_and_silent_clients_slow_nobody(plain: Here, caplog: pytest.LogCaptureFixture) -> None:
    """Five hundred at once: silent, in the middle of a line, of the headers, of a body, a byte at a time."""
    kinds = (b"", GET[:7], GET[:-2], b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 99\r\n\r\nx", GET + GET[:3])
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(plain.connect()) for _ in range(500)]
        for number, sock in enumerate(sockets):
            sock.sendall(kinds[number % len(kinds)])
        took = [seconds(plain)]
        for sock in sockets[1::5]:
            sock.sendall(GET[7:8])
        took += [seconds(plain) for _ in range(3)]
        page = plain.get()

    assert max(took) < PROMPT
    assert page == 200
    assert complaints(caplog) == []


def test_clients_that_hang_up_in_the_middle_leave_nothing(plain: Here, caplog: pytest.LogCaptureFixture) -> None:
    """In the headers, in a body, in the page; with a goodbye and without."""
    for part in (b"", GET[:9], b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 99\r\n\r\nx", GET, GET * 20):
        for hang_up in (reset, socket.socket.close):
            sock = plain.connect()
            sock.sendall(part)
            if part == GET * 20:
                sock.recv(100)
            hang_up(sock)

    assert seconds(plain) < PROMPT
    assert plain.get() == 200
    assert complaints(caplog) == []


def test_what_is_too_much_is_refused(plain: Here, caplog: pytest.LogCaptureFixture) -> None:
    """Headers without end, a body that is none of ours, two hundred requests at once on one connection."""
    for sent, expected in (
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000, [431]),
        (b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 9999999\r\n\r\n", [400]),
        (HEALTH * 200, [200] * 200),
    ):
        with plain.connect() as sock:
            with contextlib.suppress(ConnectionError):
                sock.sendall(sent)
                sock.shutdown(socket.SHUT_WR)
            assert statuses(everything(sock)) == expected

    assert seconds(plain) < PROMPT
    assert complaints(caplog) == []


# TLS


@pytest.fixture
def secured(node: Start, web: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    """A server with TLS and a password, whose patience is short."""
    monkeypatch.setattr(secure, "HANDSHAKE", 0.5)
    with here(node(models.h100(), fields=FEW, sampling=PATIENT, server=Server(web_config=str(web)))) as served:
        yield served


def test_clients_that_stop_in_the_handshake_hold_up_nobody(
    secured: Here, web: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Silent ones, torn ones, those that speak something else: each is hung up on in time, and named once."""
    context = ssl.create_default_context(cafile=str(web.parent / "ca.pem"))
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(secured.connect()) for _ in range(100)]
        torn = [stack.enter_context(secured.connect()) for _ in range(20)]
        for sock in torn:
            sock.sendall(HELLO)
        began = time.monotonic()
        with context.wrap_socket(secured.connect(), server_hostname="localhost") as sock:
            sock.sendall(HEALTH)
            assert statuses(sock.recv(1000)) == [401]
        took = time.monotonic() - began
        assert [everything(sock) for sock in (*silent, *torn)] == [b""] * 120
        with secured.connect() as sock:
            sock.sendall(HEALTH)
            assert b"this port speaks HTTPS" in everything(sock)
        with secured.connect() as sock:
            sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            everything(sock)
        for _ in range(20):
            secured.connect().close()  # a TCP probe
            reset(secured.connect())

    assert took < PROMPT
    said = complaints(caplog)
    assert len(said) <= 122
    assert set(said) == {
        "no TLS with 127.0.0.1: it did not finish within 0.5 s",
        "no TLS with 127.0.0.1: http request",
        "no TLS with 127.0.0.1: wrong version number",
    }


def test_requests_under_tls_are_answered_to_the_end(secured: Here, web: Path) -> None:
    """Several together, a torn one, and all from a client that has said that no more will come."""
    context = ssl.create_default_context(cafile=str(web.parent / "ca.pem"))
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()  # SSLSocket would wait for the server's own goodbye
    client = context.wrap_bio(coming, going, server_hostname="localhost")
    with secured.connect() as sock:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(going.read())
                coming.write(sock.recv(1 << 16))
        client.write(HEALTH * 3 + HEALTH[:5])
        with contextlib.suppress(ssl.SSLWantReadError):
            client.unwrap()
        sock.sendall(going.read())
        coming.write(everything(sock))
    got = b""
    with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
        while part := client.read(1 << 16):
            got += part

    assert statuses(got) == [401] * 3


def test_a_connection_that_is_cut_or_garbled_under_tls_is_closed(
    secured: Here, web: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever sits in between can tear it, and is not to fill the log."""
    context = ssl.create_default_context(cafile=str(web.parent / "ca.pem"))
    for number in range(40):
        with context.wrap_socket(secured.connect(), server_hostname="localhost") as sock:
            if number % 2:
                sock.sendall(HEALTH)
                sock.recv(1000)
            if number % 5 == 0:
                sock.sendall(GET * 20)
                reset(sock)
                continue
            socket.socket.send(sock, b"garbage" * 10 if number % 4 < 2 else HELLO[:3])
            with contextlib.suppress(OSError):  # it is closed already, or says that it cannot read this
                socket.socket.shutdown(sock, socket.SHUT_WR)
                everything(sock)

    assert complaints(caplog) == []


# any bytes at all

_LINES = (
    *(b"GET ", b"HEAD / ", b"POST / HTTP/1.1", b"HTTP/1.1", b"http://[::1", b"%ff", b"/", b"\0", b"\n\n", b" folded"),
    *(b"Host: here", b"Expect: 100-continue", b"Connection: close", b"Upgrade: h2c", b"Accept-Encoding: gzip"),
    *(
        b"Content-Length: 5",
        b"Content-Length: -1",
        b"Transfer-Encoding: chunked",
        b"Content-Encoding: gzip",
        b"5",
        b"0",
    ),
    *(b"Content-Type: multipart/form-data; boundary=x", b"Content-Type: application/x-www-form-urlencoded"),
    *(b"Authorization: Basic \xff", b"Accept: */*;q=\xe9", b"X-Prometheus-Scrape-Timeout-Seconds: 1e9", b"abcde"),
)
_PIECES = st.one_of(
    st.binary(max_size=30),
    st.sampled_from((GET, HEALTH, b"\r\n", b"\r\n\r\n")),
    st.sampled_from(_LINES),
    st.sampled_from(_LINES).map(lambda line: line + b"\r\n"),
)
SENT = st.lists(_PIECES, max_size=12).map(b"".join)


def check_bytes(served: Here, sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever came is answered with HTTP or not at all, the connection ends, and the log stays empty."""
    caplog.clear()
    with served.connect() as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(sent)
            sock.shutdown(socket.SHUT_WR)
        got = everything(sock)

    assert not got or got.startswith(b"HTTP/1.1 ")
    assert 500 not in statuses(got)
    assert complaints(caplog) == []


FIXTURES = (HealthCheck.function_scoped_fixture,)


@settings(max_examples=150, suppress_health_check=FIXTURES)
@given(sent=SENT)
def test_any_bytes_are_answered_or_hung_up_on(plain: Here, caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    """A scanner sends what nobody thought of; a traceback in the log would wake somebody up."""
    check_bytes(plain, sent, caplog)


@pytest.mark.soak
@settings(max_examples=20_000, suppress_health_check=FIXTURES)
@given(sent=SENT)
def test_many_bytes_are_answered_or_hung_up_on(plain: Here, caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    """The same for longer."""
    check_bytes(plain, sent, caplog)
