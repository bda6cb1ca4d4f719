"""Collectors for tests: one that is scripted, and a real one.

Rule 1: what was received is kept as parsed messages, in the order of arrival.
"""

import contextlib
import gzip
import importlib.util
import socket
import ssl
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, NumberDataPoint

from tests.harness import LIMIT, until

OPENERS: Mapping[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "deflate": zlib.decompress}


@dataclass(frozen=True)
class Received:
    """One request that arrived."""

    path: str
    headers: Mapping[str, str]  # names in small letters
    message: ExportMetricsServiceRequest

    @cached_property
    def points(self) -> "list[Point]":
        """Every number in it; read once, as tests ask again and again until something has come."""
        return [point for metric in metrics_of(self.message) for point in points_of(metric)]


class Logged(NamedTuple):
    """One request with logs that arrived."""

    path: str
    headers: Mapping[str, str]  # names in small letters
    message: ExportLogsServiceRequest


class Answer(NamedTuple):
    """What to answer."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


class Point(NamedTuple):
    """One point as the collector has it."""

    name: str
    attributes: Mapping[str, object]
    value: float
    start: int
    time: int

    @property
    def key(self) -> tuple[str, frozenset[tuple[str, object]], int]:
        """What must not arrive twice."""
        return self.name, frozenset(self.attributes.items()), self.time


def partial(rejected: int, message: str) -> Answer:
    """A partial success."""
    response = ExportMetricsServiceResponse()
    response.partial_success.rejected_data_points = rejected
    response.partial_success.error_message = message
    return Answer(body=response.SerializeToString())


@dataclass
class Collector:
    """An HTTP server that answers as told: the answers in turn, then 200. While `silent` is set it does not answer."""

    server: ThreadingHTTPServer
    scheme: str = "http"
    answers: list[Answer] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    log_answers: list[Answer] = field(default_factory=list)  # as `answers`, for a path that ends in /logs
    logged: list[Logged] = field(default_factory=list)  # what came there and was taken
    connected: int = 0
    silent: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        """Its address."""
        return f"{self.scheme}://localhost:{self.server.server_port}"

    def expect(self, count: int) -> list[Received]:
        """Wait for so many requests."""
        until(lambda: len(self.received) >= count, f"{count} requests at the collector")
        return self.received[:count]

    def records(self, name: str = "") -> list[LogRecord]:
        """Every log record that arrived, or those of one event name."""
        return [
            record
            for one in list(self.logged)
            for resource in one.message.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
            if record.event_name == name or not name
        ]

    def expect_records(self, count: int, name: str = "") -> list[LogRecord]:
        """Wait for so many log records."""
        until(lambda: len(self.records(name)) >= count, f"{count} log records {name}")
        return self.records(name)[:count]

    def metrics(self) -> list[Metric]:
        """Every metric of every request."""
        return [metric for one in list(self.received) for metric in metrics_of(one.message)]

    def points(self, prefix: str = "hw.") -> list[Point]:
        """Every number of the metrics whose name begins with *prefix*."""
        return [point for one in list(self.received) for point in one.points if point.name.startswith(prefix)]


def metrics_of(message: ExportMetricsServiceRequest) -> list[Metric]:
    """The metrics of a request, of all scopes."""
    return [
        metric for resource in message.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
    ]


def pairs(attributes: "Iterator[KeyValue] | list[KeyValue]") -> dict[str, object]:
    """Attributes as a dictionary."""
    return {one.key: _plain(one.value) for one in attributes}


def _plain(value: AnyValue) -> object:
    if value.WhichOneof("value") == "array_value":
        return [_plain(each) for each in value.array_value.values]
    return getattr(value, value.WhichOneof("value") or "string_value")


def points_of(metric: Metric) -> list[Point]:
    """The points of a gauge or a sum."""
    if metric.WhichOneof("data") not in ("gauge", "sum"):
        return []
    return [
        Point(
            metric.name,
            pairs(list(point.attributes)),
            number(point),
            point.start_time_unix_nano,
            point.time_unix_nano,
        )
        for point in getattr(metric, metric.WhichOneof("data") or "gauge").data_points
    ]


def number(point: NumberDataPoint) -> float:
    """The number of a point, int or double."""
    return point.as_int if point.WhichOneof("value") == "as_int" else point.as_double


@contextmanager
def collector(  # noqa: C901 - a server, in one place
    *answers: Answer, certificate: tuple[Path, Path] | None = None, port: int = 0
) -> Iterator[Collector]:
    """Run a scripted collector; *certificate* and its key make it speak TLS."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            here = running
            body = self._body()
            here.connected += 1
            if here.silent.is_set():
                here.released.wait(LIMIT * 2)
                self.close_connection = True
                return
            is_log = self.path.endswith("/logs")
            answers = here.log_answers if is_log else here.answers
            answer = answers.pop(0) if answers else Answer()
            content = OPENERS.get(self.headers.get("Content-Encoding", ""), bytes)(body)
            headers = {name.lower(): text for name, text in self.headers.items()}
            if not is_log:
                here.received.append(Received(self.path, headers, ExportMetricsServiceRequest.FromString(content)))
            elif answer.status == Answer().status:
                here.logged.append(Logged(self.path, headers, ExportLogsServiceRequest.FromString(content)))
            self.send_response(answer.status)
            for name, text in (*answer.headers, ("Content-Length", str(len(answer.body)))):
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(answer.body)

        def _body(self) -> bytes:
            length = self.headers.get("Content-Length")
            if length is not None:
                return self.rfile.read(int(length))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is BaseHTTPRequestHandler's
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that has gone away is what some tests are about."""

    server = Server(("127.0.0.1", port), Handler)
    running = Collector(server, "https" if certificate else "http", list(answers))
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield running
    finally:
        running.released.set()
        server.shutdown()
        server.server_close()
        thread.join(LIMIT)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass
class Rotel:
    """A real collector: takes OTLP over gRPC and HTTP, and forwards over HTTP to *sink*."""

    program: Path
    sink: str
    folder: Path
    grpc: int = field(default_factory=free_port)
    http: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    exporter: str = "otlp"

    def start(self) -> None:
        """Start it, and return once it listens."""
        flags = {
            "otlp-grpc-endpoint": f"127.0.0.1:{self.grpc}",
            "otlp-http-endpoint": f"127.0.0.1:{self.http}",
            "exporter": self.exporter,
            "otlp-exporter-endpoint": self.sink,
            "otlp-exporter-protocol": "http",
            "batch-timeout": "50ms",
            "pid-file": str(self.folder / "rotel.pid"),
        }
        command = [str(self.program), "start", *(part for name, text in flags.items() for part in (f"--{name}", text))]
        log = (self.folder / "rotel.log").open("ab")
        with log:
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        until(lambda: all(_listens(port) for port in (self.grpc, self.http)), "the collector's ports")

    def kill(self) -> None:
        """Kill it, as a node that fails would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(LIMIT)
            self.process = None

    def url(self, protocol: str) -> str:
        """Where it takes one protocol."""
        return f"http://127.0.0.1:{self.grpc if protocol == 'grpc' else self.http}"


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def rotel_program() -> Path:
    """The collector's program; skips the test where it is not installed."""
    spec = importlib.util.find_spec("rotel")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("rotel is not installed; `make` installs it")
    return Path(spec.submodule_search_locations[0]) / "rotel-agent"
