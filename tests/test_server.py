"""The server as clients, operators and attackers meet it: a real `otelgpu serve` over the fake driver.

Rule 1: a request that has to overlap another one is held by a driver call that hangs until the test lets it go.
Rule 2: whatever a client does, the log stays free of tracebacks, and the next client is served at once.
"""

import asyncio
import gzip
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from otelgpu.export.page import Format
from otelgpu.model import NOBODY, Owners, Snapshot
from otelgpu.server.application import Site, application
from otelgpu.server.pages import Pages
from tests.conftest import ROOT
from tests.fakenvml import Code, Scenario, models
from tests.harness import LIMIT, Served, refused, serving, until, values

DRIVER_NOT_LOADED = 9
POWER = "DCGM_FI_DEV_POWER_USAGE"
BUSY = "nvmlDeviceGetUtilizationRates"  # asked once a GPU in every sweep
SWEEP = "nvmlDeviceGetCount_v2"  # asked once a sweep
PROMPT = 1.5  # seconds: many times what an answer takes, on a machine that does other things too
TEXT, OPENMETRICS = Format.TEXT.value, Format.OPENMETRICS.value
PROMETHEUS_2_42 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for tests that only ask."""
    with serving(models.h100(2), tmp_path_factory.mktemp("plain")) as served:
        yield served


@pytest.fixture(scope="module")
def semconv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The same under OpenTelemetry's names."""
    with serving(models.h100(2), tmp_path_factory.mktemp("semconv"), "--naming", "semconv") as served:
        yield served


def hung(scenario: Scenario, gpu: int = 0) -> Scenario:
    """The same machine with a GPU whose driver call does not return."""
    return scenario.with_gpu(gpu, hangs={BUSY})


def hold(served: Served, scenario: Scenario) -> None:
    """From now on a sweep hangs until the scenario is shown again."""
    hung(scenario).write(served.scenario)


def asked(served: Served, count: int, *, path: str = "/metrics") -> list[socket.socket]:
    """Connections on which a request was sent that the server has taken in."""
    sockets = [served.connect() for _ in range(count)]
    for sock in sockets:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    for _ in range(3):  # the loop takes connections and requests in turn: what was sent before has been read by then
        assert served.get("/healthz").status == 200
    return sockets


def answer(sock: socket.socket) -> tuple[int, bytes]:
    """Status and body of the answer that comes on a connection."""
    response = HTTPResponse(sock)
    response.begin()
    return response.status, response.read()


def complaints(served: Served) -> list[str]:
    """What was logged beyond information."""
    return [line for line in list(served.log) if not re.match(r"\S+Z INFO ", line)]


# pages


def test_the_page_has_the_content_type_that_prometheus_knows(plain: Served) -> None:
    """Prometheus 3 refuses a page without a content type it knows."""
    reply = plain.get()

    assert reply.status == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert reply.headers["vary"] == "Accept, Accept-Encoding"
    assert "content-encoding" not in reply.headers


def test_the_compressed_page_is_the_page(plain: Served) -> None:
    """Prometheus always asks for gzip: what it unpacks is what a person sees with curl."""

    def is_equal() -> bool:
        before, packed, after = plain.get(), plain.get(Accept_Encoding="gzip"), plain.get()
        if before.body != after.body:  # a new page was due in between
            return False
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["vary"] == "Accept, Accept-Encoding"
        assert len(packed.body) < len(before.body) / 3
        assert gzip.decompress(packed.body) == before.body
        return True

    until(is_equal, "three answers from one page")


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [
        ("gzip", True),
        ("deflate, gzip;q=1.0, *;q=0.5", True),
        ("*", True),
        ("*;q=0, gzip", True),
        ("x-gzip", True),
        ("identity", False),
        ("gzip;q=0", False),
        ("*, gzip;q=0", False),
        ("gzip;q=no", False),
        ("", False),
    ],
)
def test_the_page_is_compressed_only_for_who_takes_it(plain: Served, accepted: str, is_packed: bool) -> None:  # noqa: FBT001
    """A client that cannot unpack gets no gzip."""
    reply = plain.get(Accept_Encoding=accepted)

    assert (reply.headers.get("content-encoding") == "gzip") is is_packed


@pytest.mark.parametrize(
    ("accepted", "in_dcgm", "in_semconv"),
    [
        (PROMETHEUS_2_42, TEXT, OPENMETRICS),
        ("application/openmetrics-text;version=1.0.0", OPENMETRICS, OPENMETRICS),
        ("application/openmetrics-text, text/plain", TEXT, OPENMETRICS),
        ("application/openmetrics-text;q=0.4, text/plain;q=0.5", TEXT, TEXT),
        ("application/openmetrics-text;q=0, text/plain;q=0", TEXT, TEXT),
        ("application/openmetrics-text;q=0", TEXT, TEXT),
        ("application/openmetrics-text;q=much, text/plain;q=0.1", TEXT, TEXT),
        ("text/plain", TEXT, TEXT),
        ("*/*", TEXT, TEXT),
        ("text/html, application/xhtml+xml, */*;q=0.8", TEXT, TEXT),
        ("application/json", TEXT, TEXT),
        (";;,,q=", TEXT, TEXT),
        ("", TEXT, TEXT),
    ],
)
def test_the_format_follows_what_the_client_takes(
    plain: Served, semconv: Served, accepted: str, in_dcgm: str, in_semconv: str
) -> None:
    """OpenMetrics makes unknowns of DCGM's counters: it goes to who takes nothing else, or where nothing is lost."""
    assert plain.get(Accept=accepted).headers["content-type"] == in_dcgm
    assert semconv.get(Accept=accepted).headers["content-type"] == in_semconv


@pytest.mark.parametrize("naming", ["dcgm", "semconv"])
def test_openmetrics_can_be_read(plain: Served, semconv: Served, naming: str) -> None:
    """A strict reader accepts every line, and finds the readings."""
    served = plain if naming == "dcgm" else semconv
    page = served.get(Accept="application/openmetrics-text").text

    families = list(openmetrics_families(page))  # type: ignore[no-untyped-call]
    samples = [sample for family in families for sample in family.samples]
    assert page.endswith("\n# EOF\n")
    assert len({sample.labels["UUID"] for sample in samples if sample.name == "otelgpu_gpu_up"}) == 2
    assert sum(sample.name in (POWER, "hw_power_watts") for sample in samples) >= 2


def test_head_tells_the_size_and_no_more(plain: Served) -> None:
    """Monitors that only want to know whether the page is there pay for no page."""
    reply = plain.request("HEAD", "/metrics")

    assert reply.status == 200
    assert reply.headers["content-type"] == TEXT
    assert int(reply.headers["content-length"]) > 1000
    assert reply.body == b""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND", "TRACE"])
@pytest.mark.parametrize("path", ["/metrics", "/health", "/"])
def test_other_methods_are_refused(plain: Served, method: str, path: str) -> None:
    """The refusal says what is allowed (RFC 9110, 15.5.6)."""
    reply = plain.request(method, path)

    assert reply.status == 405
    assert reply.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/metrics/", "/metric", "/debug/pprof/", "/%ff%00", "/../etc/passwd", "//"])
def test_other_paths_are_not_there(plain: Served, path: str) -> None:
    """A wrong path in a scrape configuration is told apart from a page without readings."""
    reply = plain.get(path)

    assert (reply.status, reply.text) == (404, "not found\n")


def test_health_is_as_of_dcgm_exporter(plain: Served) -> None:
    """Probes that were written for dcgm-exporter go on working."""
    reply = plain.get("/health")

    assert (reply.status, reply.text.strip()) == (200, "OK")
    assert reply.headers["x-registry-available"] == "true"


def test_the_first_page_links_to_the_others(plain: Served) -> None:
    """Whoever opens the address in a browser finds the way; every link leads somewhere."""
    reply = plain.get("/")

    links = re.findall(r'href="([^"]+)"', reply.text)
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert links == ["/metrics", "/readyz", "/healthz", "/health"]
    assert [plain.get(link).status for link in links] == [200, 200, 200, 200]


def test_readiness_waits_for_the_first_good_sweep(tmp_path: Path) -> None:
    """A pod is not ready before the driver is; it is alive, and says on its page what is missing."""
    with serving(models.h100().but(errors={"nvmlInitWithFlags": DRIVER_NOT_LOADED}), tmp_path) as served:
        until(lambda: served.logged("is down") == 1, "a first try")
        before = served.get("/readyz")
        others = [served.get(path).status for path in ("/healthz", "/health", "/metrics")]
        up_before = values(served.page(), "otelgpu_source_up", "source")
        models.h100().write(served.scenario)
        until(lambda: served.get("/readyz").status == 200, "a good sweep")
        page = served.page()

    assert before.status == 503
    assert "modprobe nvidia" in before.text
    assert others == [200, 200, 200]
    assert up_before == {"nvml": 0}
    assert values(page, "otelgpu_source_up", "source") == {"nvml": 1}
    assert len(values(page, POWER)) == 1


# many at once


def test_sixteen_scrapes_at_once_make_one_sweep(tmp_path: Path) -> None:
    """A pair of Prometheus servers and a few people asking cost the driver no more than one of them."""
    with serving(models.h100(2), tmp_path, "--reuse", "0", "--deadline", "30") as served:
        served.page()
        hold(served, models.h100(2))
        before = served.counts.calls(SWEEP)
        sockets = asked(served, 16)
        until(lambda: served.counts.gauge("inflight") > 0, "a sweep under way")
        models.h100(2).write(served.scenario)
        answers = [answer(sock) for sock in sockets]
        after = served.counts.calls(SWEEP)
        for sock in sockets:
            sock.close()

    assert {status for status, _ in answers} == {200}
    assert len({body for _, body in answers}) == 1
    assert after - before == 1


def test_more_requests_than_allowed_are_told_to_come_back(tmp_path: Path) -> None:
    """An overload costs those who came too late, and nothing piles up."""
    flags = ("--reuse", "0", "--deadline", "30", "--server-max-requests", "2")
    with serving(models.h100(2), tmp_path, *flags) as served:
        served.page()
        hold(served, models.h100(2))
        sockets = asked(served, 2)
        refused = served.get()
        models.h100(2).write(served.scenario)
        answers = [answer(sock)[0] for sock in sockets]
        page = served.page()
        for sock in sockets:
            sock.close()

    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert refused.text == "more than 2 requests at once\n"
    assert answers == [200, 200]
    assert values(page, "otelgpu_scrapes_total", "code")["503"] == 1


def test_clients_that_do_not_read_shut_nobody_out(tmp_path: Path) -> None:
    """The limit is for pages being made: answers that nobody reads do not count."""
    with serving(models.crowd(), tmp_path, "--server-max-requests", "2") as served, ExitStack() as stack:
        for _ in range(8):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect((served.host, served.port))
            sock.sendall(REQUEST)
            until(lambda: served.get().status == 200, "a page for somebody else")

        assert served.get().status == 200


def test_clients_that_do_not_read_share_one_page_in_memory(tmp_path: Path) -> None:
    """The page of a large node has megabytes: a copy for each of them would be the end of a small container."""
    flags = ("--reuse", "30", "--expire", "30", "--label", f"note={'x' * 20_000}")
    with serving(models.crowd(), tmp_path, *flags) as served, ExitStack() as stack:
        page = served.page()
        before = values(served.page(), "otelgpu_process_resident_memory_bytes")[""]
        for _ in range(40):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(LIMIT)
            sock.connect((served.host, served.port))
            sock.sendall(REQUEST)
            assert sock.recv(1) == b"H"
        after = values(served.page(), "otelgpu_process_resident_memory_bytes")[""]

    assert len(page) > 8_000_000  # of which the kernel takes 4 MB for each
    assert after - before < 10 * len(page)


def test_the_scrapers_timeout_shortens_the_wait(tmp_path: Path) -> None:
    """Prometheus gets the other GPUs before it gives up, also when its timeout is shorter than our deadline."""
    with serving(models.h100(2), tmp_path, "--reuse", "0", "--deadline", "30") as served:
        served.page()
        hold(served, models.h100(2))
        began = time.monotonic()
        reply = served.get(X_Prometheus_Scrape_Timeout_Seconds="0.5")
        took = time.monotonic() - began

    assert reply.status == 200
    assert took < 5
    assert values(reply.text, POWER)["1"] > 0
    assert values(reply.text, "otelgpu_missing", by="gap")["timeout"] >= 1


def test_a_scraper_in_a_hurry_takes_nothing_away_from_the_others(tmp_path: Path) -> None:
    """It gets what is there by then; who has more patience gets the page of the whole sweep."""
    with serving(models.h100(2), tmp_path, "--reuse", "0", "--deadline", "30") as served:
        served.page()
        hold(served, models.h100(2))
        [patient] = asked(served, 1)
        hurried = [served.get(X_Prometheus_Scrape_Timeout_Seconds=text, timeout=10) for text in ("0.2", "0.001")]
        models.h100(2).write(served.scenario)
        status, body = answer(patient)
        patient.close()
        log = list(served.log)

    assert [reply.status for reply in (*hurried,)] == [200, 200]
    assert status == 200
    assert set(values(body.decode(), POWER)) == {"0", "1"}
    assert values(body.decode(), "otelgpu_gpu_up") == {"0": 1, "1": 1}
    assert not [line for line in log if "is down" in line]


def test_it_is_not_ready_before_a_gpu_could_be_read(tmp_path: Path) -> None:
    """A rollout must stop when the first node shows no GPU at all."""
    unread = models.h100(2).but(delays={})
    for gpu in range(2):
        unread = unread.with_gpu(gpu, errors={"nvmlDeviceGetUUID": 999})
    with serving(unread, tmp_path, "--reuse", "0") as served:
        served.page()
        before = served.get("/readyz")
        models.h100(2).write(served.scenario)
        served.page()
        after = served.get("/readyz")

    assert (before.status, before.text) == (503, "no GPU answers: it cannot be opened: Unknown Error\n")
    assert after.status == 200


def test_it_is_ready_while_the_expected_gpus_answer(tmp_path: Path) -> None:
    """A node that has lost one of its GPUs is to be seen by whoever schedules work; one GPU less is else no reason."""
    with serving(models.h100(2), tmp_path, "--reuse", "0", "--expected-gpus", "2") as served:
        served.page()
        whole = served.get("/readyz")
        models.h100(2).with_gpu(1, lost=True).write(served.scenario)
        served.page()
        short = served.get("/readyz")
        alive = served.get("/healthz").status

    assert whole.status == 200
    assert (short.status, short.text) == (503, "1 of the 2 expected GPUs answer\n")
    assert alive == 200  # a restart would bring nothing back


def test_a_timeout_that_makes_no_sense_is_ignored(tmp_path: Path) -> None:
    """A broken proxy must not cost readings."""
    slow = models.h100().with_gpu(0, delays={BUSY: 0.1})
    timeouts = ("", "soon", "-1", "0", "nan", "inf", "-inf", "1e999", "5, 5", "0x10")
    with serving(slow, tmp_path, "--reuse", "0") as served:
        replies = {each: served.get(X_Prometheus_Scrape_Timeout_Seconds=each) for each in timeouts}

    assert {each: reply.status for each, reply in replies.items()} == dict.fromkeys(timeouts, 200)
    assert {each: len(values(reply.text, POWER)) for each, reply in replies.items()} == dict.fromkeys(timeouts, 1)


def test_the_age_of_the_readings_goes_on_between_sweeps(tmp_path: Path) -> None:
    """A page is kept for a moment only: what it says of otelgpu itself would stand still otherwise."""
    with serving(models.h100(), tmp_path, "--interval", "300") as served:
        until(lambda: values(served.page(), "otelgpu_snapshot_age_seconds", "")[""] > 0.5, "an age")


# clients that do harm


def test_half_open_connections_slow_nobody(tmp_path: Path) -> None:
    """Two hundred clients that stop in the middle of a request cost two hundred descriptors, and no time."""
    with serving(models.h100(), tmp_path) as served, ExitStack() as stack:
        for number in range(200):
            sock = stack.enter_context(served.connect())
            sock.sendall(REQUEST[: number % len(REQUEST)])
        took = [_seconds(served, path) for path in ("/metrics", "/healthz") * 10]
        code = served.stop()

    assert max(took) < PROMPT
    assert complaints(served) == []
    assert code == 0


def _seconds(served: Served, path: str) -> float:
    began = time.monotonic()
    assert served.get(path).status == 200
    return time.monotonic() - began


def test_connections_never_use_up_the_descriptors(tmp_path: Path) -> None:
    """The oldest connection has to go, so that the next scrape gets through and the driver can open its files."""
    with serving(models.h100(), tmp_path) as served, ExitStack() as stack:
        _, hard = resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (64, hard))
        sockets = [stack.enter_context(served.connect()) for _ in range(150)]
        replies = [served.get().status for _ in range(3)]
        page = served.page()
        hung_up = sockets[0].recv(1)

    assert replies == [200, 200, 200]
    assert values(page, "otelgpu_process_open_fds", "")[""] < 64
    assert hung_up == b""
    assert complaints(served) == []


LEAK = """
import os, signal
leaked = []
def leak(*_):
    try:
        while True:
            leaked.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
def mend(*_):
    while leaked:
        os.close(leaked.pop())
signal.signal(signal.SIGRTMIN, leak)
signal.signal(signal.SIGRTMAX, mend)
"""


@pytest.mark.parametrize("naming", ["dcgm", "semconv"])
def test_descriptors_used_up_from_outside_are_got_over(tmp_path: Path, naming: str) -> None:
    """A library that leaks files takes the last one: the page is served on, the log has a line, and no core spins."""
    (tmp_path / "leak").mkdir()
    (tmp_path / "leak" / "sitecustomize.py").write_text(LEAK)
    environ = {"PYTHONPATH": f"{tmp_path / 'leak'}:{ROOT}"}
    with serving(models.h100(), tmp_path, "--naming", naming, environ=environ) as served:
        pid = served.process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (128, hard))
        served.process.send_signal(signal.SIGRTMIN)
        until(lambda: len(list(Path(f"/proc/{pid}/fd").iterdir())) == 128, "a leak")
        replies = [served.get().status for _ in range(3)]
        with ExitStack() as stack:
            replies += [served.get(path).status for path in ("/healthz", "/readyz", "/", "/health")]
            replies.append(served.get(Accept_Encoding="gzip", Accept="application/openmetrics-text").status)
            waiting = [stack.enter_context(served.connect()) for _ in range(200)]
            before = _cpu_seconds(pid)
            answered = _status_of(waiting[-1])
            threading.Event().wait(1.0)  # nothing happens: that is what is measured
            burnt = _cpu_seconds(pid) - before
        served.process.send_signal(signal.SIGRTMAX)
        until(lambda: served.logged("can be accepted again") == 1, "an end")
        replies += [served.get().status for _ in range(3)]
        code = served.stop()

    assert replies == [200] * 11
    assert answered == 200
    assert burnt < 0.5
    assert [line.split(" ", 3)[3] for line in complaints(served)] == [
        "connections cannot be accepted for now: Too many open files\n"
    ]
    assert code == 0


def _status_of(sock: socket.socket) -> int:
    sock.sendall(REQUEST)
    return answer(sock)[0]


def _cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_with_no_descriptor_at_all_clients_wait(tmp_path: Path) -> None:
    """Whoever knocks is taken in as soon as there is a descriptor again, and nobody spins until then."""
    with serving(models.h100(), tmp_path) as served, ExitStack() as stack:
        pid = served.process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
        sock = stack.enter_context(served.connect())
        sock.sendall(REQUEST)
        until(lambda: served.logged("cannot be accepted") == 1, "a failure")
        before = _cpu_seconds(pid)
        threading.Event().wait(1.0)  # nothing happens: that is what is measured
        burnt = _cpu_seconds(pid) - before
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (1024, hard))
        status = answer(sock)[0]
        until(lambda: served.logged("can be accepted again") == 1, "an end")

    assert burnt < 0.3
    assert status == 200
    assert len(complaints(served)) == 1


def test_clients_that_leave_in_the_middle_leave_no_trace(tmp_path: Path) -> None:
    """A scraper that times out or is killed is everyday life, and nothing to log."""
    with serving(models.crowd(), tmp_path, "--reuse", "0") as served:
        for part in (b"", REQUEST[:10], REQUEST, REQUEST * 3):
            for _ in range(5):
                sock = served.connect()
                sock.sendall(part)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no goodbye
                sock.close()
        reading = served.connect()
        reading.sendall(REQUEST * 5)
        reading.recv(100)
        reading.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reading.close()
        took = _seconds(served, "/healthz")
        served.page()
        code = served.stop()

    assert took < PROMPT
    assert complaints(served) == []
    assert code == 0


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\xff\xfe\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\nHost: here\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: here\r\nno colon\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: here\r\nX-Big: " + b"x" * 200_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: here\r\n\r\n",
        b"GET /%zz%ff?%ff=%zz HTTP/1.1\r\nHost: here\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: here\r\nContent-Length: -5\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: here\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nbody\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: here\r\nContent-Type: multipart/form-data\r\nContent-Length: 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost:\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 1\r\n\r\n\xff",
    ],
    ids=lambda sent: repr(sent[:60]),
)
def test_garbage_is_answered_or_hung_up_on(plain: Served, sent: bytes) -> None:
    """A port scanner costs nothing: no traceback, no page, and the next scrape is served."""
    with plain.connect() as sock:
        sock.settimeout(0.5)  # some are not finished as far as HTTP goes: the server waits, and so would we
        try:
            sock.sendall(sent)
            received = sock.recv(10_000)
        except (ConnectionError, TimeoutError):
            received = b""
    took = _seconds(plain, "/metrics")
    logged = complaints(plain)
    plain.log.clear()

    assert not received or re.match(rb"HTTP/1.1 4\d\d ", received)
    assert took < PROMPT
    assert logged == []


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ("GET http://gpu-node:9400/metrics HTTP/1.1\r\nHost: here", 200),
        ("GET HTTP://gpu-node/metrics?name=x HTTP/1.1\r\nHost: here", 200),
        ("GET http://gpu-node HTTP/1.1\r\nHost: here", 200),
        ("GET http://gpu-node/none HTTP/1.1\r\nHost: here", 404),
        ("GET http:///metrics HTTP/1.1\r\nHost: here", 404),
        ("GET ftp://gpu-node/metrics HTTP/1.1\r\nHost: here", 404),
        ("GET /%6Detrics HTTP/1.1\r\nHost: here", 200),
        ("GET /metrics?a=b#c HTTP/1.1\r\nHost: here", 200),
        ("GET //metrics HTTP/1.1\r\nHost: here", 404),
        ("GET metrics HTTP/1.1\r\nHost: here", 404),
        ("GET %2Fmetrics HTTP/1.1\r\nHost: here", 404),
        ("GET * HTTP/1.1\r\nHost: here", 404),
        ("GET /metrics HTTP/1.0", 200),
        ("GET /metrics HTTP/1.1", 400),
        ("get /metrics HTTP/1.1\r\nHost: here", 405),
        ("CONNECT gpu-node:9400 HTTP/1.1\r\nHost: here", 405),
        ("GET  /metrics HTTP/1.1\r\nHost: here", 400),
        ("GET /metrics HTTP/1.1\r\nHost: here\r\nX-Big: " + "x" * 17_000, 431),
        ("GET /metrics HTTP/1.1\r\nHost: here\r\nX-Big: " + "x" * 3_000_000, 431),
        ("GET /" + "x" * 100_000 + " HTTP/1.1\r\nHost: here", 431),
        ("GET /metrics HTTP/1.1\r\n" + "A: b\r\n" * 3000 + "Host: here", 431),
    ],
    ids=lambda sent: str(sent)[:60],
)
def test_odd_requests_get_the_code_they_deserve(plain: Served, sent: str, status: int) -> None:
    """Proxies write whole URLs, people slip: each learns what is wrong, and the log stays as it is."""
    with plain.connect() as sock:
        sock.sendall(f"{sent}\r\n\r\n".encode())
        got = answer(sock)[0]

    assert got == status
    assert complaints(plain) == []


def test_headers_without_end_cost_little(plain: Served) -> None:
    """Many clients that send too much are refused at a time; those beyond are hung up on, and others are served."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(plain.connect()) for _ in range(40)]
        for sock in sockets:
            sock.sendall(b"GET /metrics HTTP/1.1\r\nX-Big: " + b"x" * 20_000)
        assert _seconds(plain, "/metrics") < PROMPT
        statuses = [_status_or_end(sock) for sock in sockets]

    assert set(statuses) == {431, 0}
    assert statuses.count(431) >= 16
    assert complaints(plain) == []


def _status_or_end(sock: socket.socket) -> int:
    try:
        return answer(sock)[0]
    except (HTTPException, OSError):
        return 0


class _Large:
    """Makes pages that no socket buffer holds."""

    def page(self, _: Snapshot | None, form: Format, *, shown: bool, owners: Owners = NOBODY) -> bytes:  # noqa: ARG002
        return b"x" * 32_000_000


def test_a_client_that_does_not_read_is_hung_up_on() -> None:
    """Its page is held in memory only so long."""

    async def received() -> int:
        with ThreadPoolExecutor(1) as executor:
            pages = Pages(
                _Large(),
                refresh=lambda _: None,
                is_fresh=lambda _: True,
                executor=executor,
            )
            site = Site(
                pages=pages,
                max_requests=1,
                version="",
                is_ready=lambda: None,
                is_alive=lambda: None,
                answered=lambda *_: None,
                send_limit=0.05,
            )
            server = HTTPServer(application(lambda: site))
            sockets = bind_sockets(0, "127.0.0.1")
            server.add_sockets(sockets)
            reader, writer = await asyncio.open_connection("127.0.0.1", sockets[0].getsockname()[1], limit=1000)
            writer.write(REQUEST)
            await asyncio.wait_for(reader.readexactly(1), LIMIT)
            await asyncio.wait_for(site.load.idle(), LIMIT)
            rest = 0
            try:
                while part := await asyncio.wait_for(reader.read(1_000_000), LIMIT):
                    rest += len(part)
            except ConnectionError:
                pass
            writer.close()
            server.stop()
            await server.close_all_connections()
            return rest

    assert asyncio.run(received()) < 32_000_000


# connections


def test_a_connection_is_used_again(plain: Served) -> None:
    """Prometheus keeps its connection from scrape to scrape."""
    connection = HTTPConnection(plain.host, plain.port, timeout=LIMIT)
    used = set()
    for path in ("/metrics", "/health", "/nowhere", "/metrics"):
        connection.request("GET", path)
        connection.getresponse().read()
        used.add(connection.sock)
    connection.close()

    assert len(used) == 1


def test_requests_sent_together_are_answered_in_turn(plain: Served) -> None:
    """A client may send the next request before it has read the last answer."""
    with plain.connect() as sock:
        sock.sendall(b"".join(REQUEST.replace(b"/metrics", path) for path in (b"/health", b"/metrics", b"/none")))
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        received = b""
        while part := sock.recv(65536):
            received += part

    assert re.findall(rb"HTTP/1.1 (\d+) ", received) == [b"200", b"200", b"404", b"200"]
    assert received.endswith(b"ok\n")


def test_old_clients_are_hung_up_on_after_the_answer(plain: Served) -> None:
    """HTTP/1.0 ends an answer with the connection."""
    with plain.connect() as sock:
        sock.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        received = b""
        while part := sock.recv(65536):
            received += part

    assert received.endswith(b"OK\n")


# addresses


def test_any_free_port_is_told(plain: Served) -> None:
    """Who asks for any port reads on stdout which one it got."""
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d*/metrics", plain.urls[0])


def test_several_addresses_are_served(tmp_path: Path) -> None:
    """One for the cluster, one for the people on the machine."""
    path = tmp_path / "socket"
    flags = ("--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--listen", f"unix:{path}")
    with serving(models.h100(), tmp_path, *flags) as served:
        until(lambda: len(served.urls) == 3, "three addresses")
        ports = {int(url.split(":")[2].split("/")[0]) for url in served.urls if url.startswith("http")}
        statuses = []
        for port in sorted(ports):
            connection = HTTPConnection("127.0.0.1", port, timeout=LIMIT)
            connection.request("GET", "/metrics")
            statuses.append(connection.getresponse().status)
            connection.close()

    assert len(ports) == 2
    assert statuses == [200, 200]


def test_one_port_of_all_addresses_is_told_once(tmp_path: Path) -> None:
    """`:9400` is IPv4 and IPv6, and one line."""
    with serving(models.h100(), tmp_path, "--listen", ":0") as served:
        until(lambda: served.logged("listening on") > 0, "the address")
        code = served.stop()

    assert code == 0
    assert len(served.urls) == served.logged("listening on") == 1


def test_ipv6_is_served(tmp_path: Path) -> None:
    """Clusters without IPv4 exist."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this machine has no ::1: {error}")
    with serving(models.h100(), tmp_path, "--listen", "[::1]:0") as served:
        reply = served.get()

    assert re.fullmatch(r"http://\[::1\]:\d+/metrics", served.urls[0])
    assert reply.status == 200


def test_a_unix_socket_is_served_and_removed(tmp_path: Path) -> None:
    """A node agent reads without a port; only its user and group may, and nothing is left behind."""
    path = tmp_path / "socket"
    with serving(models.h100(), tmp_path, "--listen", f"unix:{path}") as served:
        until(lambda: bool(served.urls), "an address")
        mode = path.stat().st_mode & 0o777
        status, body = _unix_get(path)
        code = served.stop()

    assert served.urls == [f"unix:{path}"]
    assert mode == 0o660
    assert status == 200
    assert POWER.encode() in body
    assert code == 0
    assert not path.exists()


def _unix_get(path: Path) -> tuple[int, bytes]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(LIMIT)
        sock.connect(str(path))
        sock.sendall(REQUEST)
        return answer(sock)


def test_a_socket_that_another_process_put_in_place_is_left_to_it(tmp_path: Path) -> None:
    """In a rolling update the new exporter listens before the old one goes: the old one may not take its door along."""
    path = tmp_path / "socket"
    with (
        serving(models.h100(), tmp_path, "--listen", f"unix:{path}") as served,
        socket.socket(socket.AF_UNIX) as next_one,
    ):
        until(lambda: bool(served.urls), "an address")
        path.unlink()
        next_one.bind(str(path))
        next_one.listen()
        code = served.stop()

    assert code == 0
    assert path.is_socket()


def test_a_socket_whose_file_was_removed_ends_cleanly(tmp_path: Path) -> None:
    """Somebody tidied up: nothing is left to remove, and nothing to complain of."""
    path = tmp_path / "socket"
    with serving(models.h100(), tmp_path, "--listen", f"unix:{path}") as served:
        until(lambda: bool(served.urls), "an address")
        path.unlink()
        code = served.stop()

    assert (code, complaints(served)) == (0, [])


def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    """After a crash the exporter starts again without help."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with serving(models.h100(), tmp_path, "--listen", f"unix:{path}") as served:
        until(lambda: bool(served.urls), "an address")
        status, _ = _unix_get(path)

    assert status == 200


def test_a_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    """A second exporter does not take the first one's place."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(path))
        live.listen()
        code, log = refused(models.h100(), tmp_path, "--listen", f"unix:{path}")

    assert code == 1
    assert log == [f"otelgpu: --listen: unix:{path}: another program is using this address"]
    assert path.is_socket()


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_file_is_not_replaced_by_a_socket(tmp_path: Path, kind: str) -> None:
    """A slip in a path destroys nothing."""
    path, target = tmp_path / "path", tmp_path / "target"
    target.write_text("precious")
    if kind == "file":
        path.write_text("precious")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(target)
    code, log = refused(models.h100(), tmp_path, "--listen", f"unix:{path}")

    assert code == 1
    assert log == [f"otelgpu: --listen: unix:{path}: there is a file of this name that is no socket"]
    assert path.exists()
    assert target.read_text() == "precious"


def test_addresses_that_cannot_be_had_are_all_named_with_their_place(tmp_path: Path) -> None:
    """Nobody mends one address only to be told of the next; and none of the good ones is served."""
    file, good = tmp_path / "conf.yaml", tmp_path / "good"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        missing = tmp_path / "nowhere" / "socket"
        file.write_text(
            "server:\n  listen:\n"
            f'  - "unix:{good}"\n  - "127.0.0.1:{port}"\n  - "192.0.2.1:9400"\n  - "unix:{missing}"\n'
        )
        code, log = refused(models.h100(), tmp_path, "--config", file.name)

    assert code == 1
    assert log == [
        f"otelgpu: conf.yaml:4: 127.0.0.1:{port}: another program is using this address",
        "otelgpu: conf.yaml:5: 192.0.2.1:9400: this machine has no such address",
        f"otelgpu: conf.yaml:6: unix:{missing}: No such file or directory",
    ]
    assert not good.exists()


# the end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    """Whoever stops it waits for seconds at most and reads of no error; the driver has been let go of."""
    with serving(models.h100(2), tmp_path) as served, served.connect() as idle:
        idle.sendall(REQUEST)
        answer(idle)
        code = served.stop(number, limit=5)

    assert code == 0
    assert complaints(served) == []
    assert served.counts.gauge("inits") == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_under_load(tmp_path: Path, number: signal.Signals) -> None:
    """Requests go on coming on connections that are open; each is answered or hung up on."""
    with serving(models.h100(2), tmp_path, "--reuse", "0") as served, ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(4))
        clients = [pool.submit(_ask_until_hung_up, served) for _ in range(4)]
        until(lambda: served.counts.calls(SWEEP) > 5, "some scrapes")
        code = served.stop(number, limit=5)
        statuses = set[int]().union(*(client.result(LIMIT) for client in clients))

    assert code == 0
    assert statuses == {200}
    assert complaints(served) == []


def _ask_until_hung_up(served: Served) -> set[int]:
    statuses: set[int] = set()
    connection = HTTPConnection(served.host, served.port, timeout=LIMIT)
    connection.connect()
    connection.auto_open = 0
    try:
        while True:
            connection.request("GET", "/metrics")
            response = connection.getresponse()
            response.read()
            statuses.add(response.status)
    except (OSError, HTTPException):
        return statuses
    finally:
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_while_the_driver_hangs(tmp_path: Path, number: signal.Signals) -> None:
    """A call that never returns holds neither the request nor the process; a second signal changes nothing."""
    with serving(models.h100(2), tmp_path, "--reuse", "0", "--deadline", "1") as served:
        served.page()
        hold(served, models.h100(2))
        [waiting] = asked(served, 1)
        began = time.monotonic()
        served.process.send_signal(number)
        until(lambda: served.logged("stopping") > 0, "the first signal")
        code = served.stop(number, limit=5)
        took = time.monotonic() - began
        waiting.close()

    assert code == 0
    assert took < 5
    assert [line for line in served.log if "Traceback" in line] == []
    assert served.logged("leaving while a driver call is still under way") == 1


@pytest.mark.parametrize(("source", "number"), [("auto", signal.SIGTERM), ("nvml", signal.SIGINT)])
def test_a_signal_ends_it_while_it_starts(tmp_path: Path, source: str, number: signal.Signals) -> None:
    """A pod that is deleted while its driver comes up goes at once."""
    coming = models.h100().but(hangs={"nvmlInitWithFlags"})
    with serving(coming, tmp_path, "--source", source, "--deadline", "2", ready=False) as served:
        until(lambda: served.counts.gauge("inflight") > 0, "a start under way")
        code = served.stop(number, limit=5)

    assert code == 0
    assert [line for line in served.log if "Traceback" in line] == []


def test_a_stop_between_pages_waits_for_the_page_under_way(tmp_path: Path) -> None:
    """A rolling update loses no scrape."""
    slow = models.h100().with_gpu(0, delays={BUSY: 0.6})
    with serving(slow, tmp_path, "--reuse", "0") as served:
        [waiting] = asked(served, 1)
        code = served.stop(limit=5)
        status, body = answer(waiting)
        waiting.close()

    assert code == 0
    assert status == 200
    assert POWER in body.decode()


# pace and log


def test_with_an_interval_scrapes_do_not_ask_the_driver(tmp_path: Path) -> None:
    """At a pace of its own the number of scrapers does not matter to the driver."""
    with serving(models.h100(), tmp_path, "--interval", "300") as served:
        until(lambda: served.get("/readyz").status == 200, "the first sweep")
        before = _questions(served)
        pages = [served.page() for _ in range(5)]
        after = _questions(served)

    assert [len(values(page, POWER)) for page in pages] == [1] * 5
    assert after == before


def _questions(served: Served) -> dict[str, int]:
    """Calls so far of each function, but for the wait for events, which goes on by itself."""
    return {name: count for name, count in served.counts.by_function().items() if "EventSetWait" not in name}


def test_with_an_interval_the_driver_is_asked_at_that_pace(tmp_path: Path) -> None:
    """Readings are young when a scraper comes, although nobody waits for the driver."""
    with serving(models.h100(), tmp_path, "--interval", "0.1") as served:
        until(lambda: served.counts.calls(SWEEP) > 4, "sweeps that nobody asked for")
        page = served.page()

    assert len(values(page, POWER)) == 1
    assert values(page, "otelgpu_scrapes_total", "code") == {}


def test_the_log_can_be_read_by_machines(tmp_path: Path) -> None:
    """Each line is one object, whatever happens."""
    odd = models.h100().with_gpu(0, fields={186: Code(999)}).but(errors={"nvmlInitWithFlags": DRIVER_NOT_LOADED})
    with serving(odd, tmp_path, "--log-format", "json", "--log-level", "debug") as served:
        until(lambda: served.logged("is down") > 0, "a warning")
        served.get("/metrics")
        served.get("/no%0Athing")
        code = served.stop()

    lines = [json.loads(line) for line in served.log]
    assert code == 0
    assert {line["level"] for line in lines} == {"info", "warning", "debug"}
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert sum(line["message"].startswith("GET /metrics from 127.0.0.1: 200 in") for line in lines) == 1


def test_a_log_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    """A full pipe on stderr (a stuck log driver) must not stop the sweeps, the pages or the end."""
    reader, writer = os.pipe()
    scenario = models.h100(8)
    path = scenario.write(tmp_path / "scenario")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "FAKENVML_SCENARIO": str(path)}
    env |= {"LD_LIBRARY_PATH": str(scenario.library())}
    command = [sys.executable, "-m", "otelgpu", "serve", "--listen", "127.0.0.1:0", "--reuse", "0"]
    process = subprocess.Popen(
        [*command, "--log-level", "debug"], env=env, stdout=subprocess.PIPE, stderr=writer, text=True
    )
    os.close(writer)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        statuses = set()
        for turn in range(1200):
            if turn % 20 == 0:
                scenario.but(gpus=scenario.gpus[: 8 * (turn % 40 // 20)]).write(path)
            with urllib.request.urlopen(url.replace("/metrics", "/health"), timeout=LIMIT) as reply:
                statuses.add(reply.status)
        with urllib.request.urlopen(url, timeout=LIMIT) as reply:
            page = reply.read().decode()
        process.send_signal(signal.SIGTERM)
        code = process.wait(5)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    read = os.read(reader, 1 << 20)
    os.close(reader)

    assert len(read) > 60_000  # the pipe was full
    assert statuses == {200}
    assert values(page, "otelgpu_snapshot_age_seconds")[""] < 1
    assert code == 0
