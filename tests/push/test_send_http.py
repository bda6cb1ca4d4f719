"""OTLP over HTTP, against a server that is scripted: what each answer means, and what is sent."""

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from otelgpu.export.push.outcome import Delivered, Failed, Outcome, Refused
from otelgpu.export.push.send_http import HttpSender
from tests.push.collectors import Answer, Collector, collector, free_port, partial
from tests.push.conftest import Papers

MESSAGE = ExportMetricsServiceRequest()
MESSAGE.resource_metrics.add().scope_metrics.add().metrics.add(name="hw.power")
PAYLOAD = gzip.compress(MESSAGE.SerializeToString())
NOON = 1_796_040_000.0  # Mon, 30 Nov 2026 12:00:00 GMT

Make = Callable[..., HttpSender]


@pytest.fixture
def sender() -> Iterator[Make]:
    """Make senders, and close them afterwards."""
    made: list[HttpSender] = []

    def make(url: str, **changes: object) -> HttpSender:
        settings = {"headers": {}, "timeout": 5.0, "wall": lambda: NOON} | changes
        made.append(HttpSender(f"{url}/v1/metrics", **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("compression", ["gzip", "deflate", "none"])
def test_a_batch_arrives(compression: str, sink: Collector, sender: Make) -> None:
    """Every receiver knows these three, and some proxies only one."""
    outcome = sender(sink.url, compression=compression, headers={"X-Scope-OrgID": "7"}).send(PAYLOAD)
    (received,) = sink.received

    assert outcome == Delivered()
    assert received.message == MESSAGE
    assert received.path == "/v1/metrics"
    assert received.headers.get("content-encoding", "none") == compression
    assert received.headers["content-type"] == "application/x-protobuf"
    assert received.headers["x-scope-orgid"] == "7"
    assert received.headers["user-agent"].startswith("otelgpu/")


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_these_answers_may_be_better_later(status: int, sender: Make) -> None:
    """As the OTLP specification says."""
    with collector(Answer(status)) as running:
        outcome = sender(running.url).send(PAYLOAD)

    assert isinstance(outcome, Failed)
    assert outcome.reason.startswith(str(status))
    assert outcome.after is None


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 413, 500, 501])
def test_all_others_are_for_good(status: int, sender: Make) -> None:
    """To try again what is malformed holds up what is not."""
    with collector(Answer(status, body=b"control\x0f" if status == 404 else b"why")) as running:
        outcome = sender(running.url).send(PAYLOAD)

    assert isinstance(outcome, Refused)
    assert outcome.reason.startswith(str(status))
    assert ('"why"' in outcome.reason) is (status != 404)


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("0", 0.0),
        ("120", 120.0),
        ("Mon, 30 Nov 2026 12:00:30 GMT", 30.0),
        ("Mon, 30 Nov 2026 11:00:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("", None),
    ],
)
def test_retry_after_is_read(text: str, after: float | None, sender: Make) -> None:
    """Seconds or a date, both are used in the wild; nonsense is as good as nothing."""
    with collector(Answer(503, (("Retry-After", text),))) as running:
        outcome = sender(running.url).send(PAYLOAD)

    assert isinstance(outcome, Failed)
    assert outcome.after == after


def test_a_partial_success_is_seen(sender: Make) -> None:
    """It comes with status 200, in the body."""
    with collector(partial(3, "too old")) as running:
        outcome = sender(running.url).send(PAYLOAD)

    assert outcome == Delivered(3, "too old")


@pytest.mark.parametrize("body", [b"ok\n", b"{}", b"\xff" * 200_000])
def test_an_answer_that_is_no_protobuf_is_a_success_all_the_same(body: bytes, sender: Make) -> None:
    """Many receivers answer with JSON or a word."""
    with collector(Answer(200, body=body)) as running:
        outcome = sender(running.url).send(PAYLOAD)

    assert isinstance(outcome, Delivered)
    assert outcome.rejected == 0


def test_a_server_that_never_answers_is_given_up(sender: Make) -> None:
    """The thread has other batches to see to."""
    with collector() as running:
        running.silent.set()
        outcome = sender(running.url, timeout=0.05).send(PAYLOAD)

    assert outcome == Failed("no answer within 0.05 s")


@pytest.mark.parametrize(
    ("head", "piece", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"x" * 4096, Delivered()),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"x", Delivered()),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", Delivered()),
        (b"HTTP/1.1 503 No\r\nRetry-After: 5\r\n\r\n", b"x", Failed("503 No", 5.0)),
        (b"HTTP/1.1 200 OK\r\n", b"X", Failed("no answer within 0.1 s")),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", Failed("no answer within 0.1 s")),
        (b"", b"H", Failed("no answer within 0.1 s")),
    ],
    ids=["body", "body by bytes", "chunks", "no length", "headers", "interim answers", "status line"],
)
@pytest.mark.parametrize("is_proxy", [False, True], ids=["direct", "proxy"])
def test_an_answer_that_trickles_in_is_given_up(
    head: bytes, piece: bytes, expected: Outcome, sender: Make, monkeypatch: pytest.MonkeyPatch, *, is_proxy: bool
) -> None:
    """A byte a second keeps every timeout of a socket from running out. A status that was seen counts."""
    ended = threading.Event()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def trickle() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(head)
                while not ended.wait(0.02):
                    try:
                        connection.sendall(piece)
                    except OSError:
                        return

        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        if is_proxy:
            monkeypatch.setenv("http_proxy", url)
            url = "http://collector.invalid"
        started = time.monotonic()
        outcome = sender(url, timeout=0.1).send(PAYLOAD)
        took = time.monotonic() - started
        ended.set()
        thread.join()

    assert outcome == expected
    assert took < 2


def test_an_answer_that_breaks_off_counts_by_its_status(sender: Make) -> None:
    """A batch that was taken would arrive twice."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def break_off() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")

        thread = threading.Thread(target=break_off, daemon=True)
        thread.start()
        outcome = sender(f"http://127.0.0.1:{server.getsockname()[1]}").send(PAYLOAD)
        thread.join()

    assert outcome == Delivered()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "Connection refused"),
        ("http://collector.invalid", "not known|name resolution"),
    ],
)
def test_a_server_that_is_not_there_is_told_in_plain_words(url: str, reason: str, sender: Make) -> None:
    """Not with four exceptions in each other."""
    outcome = sender(url or f"http://127.0.0.1:{free_port()}").send(PAYLOAD)

    assert isinstance(outcome, Failed)
    assert any(part in outcome.reason for part in reason.split("|"))
    assert len(outcome.reason) < 80


def test_a_server_that_hangs_up_is_tried_again(sender: Make) -> None:
    """A load balancer that closes idle connections is no fault of the batch."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def hang_up() -> None:
            connection, _ = server.accept()
            connection.close()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        outcome = sender(f"http://127.0.0.1:{server.getsockname()[1]}").send(PAYLOAD)
        thread.join()

    assert isinstance(outcome, Failed)


def test_a_certificate_is_checked(papers: Papers, sender: Make) -> None:
    """With the authority that is named it is good, without it is not."""
    with collector(certificate=papers) as running:
        good = sender(running.url, verify=str(papers.certificate)).send(PAYLOAD)
        bad = sender(running.url).send(PAYLOAD)

    assert good == Delivered()
    assert isinstance(bad, Failed)
    assert "CERTIFICATE_VERIFY_FAILED" in bad.reason
