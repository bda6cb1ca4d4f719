"""OTLP over gRPC, against a real server of gRPC that is scripted."""

import gzip
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)

from otelgpu.export.push.outcome import Delivered, Failed, Refused
from otelgpu.export.push.send_grpc import GrpcSender, credentials
from otelgpu.export.push.setup import Push
from tests.harness import LIMIT, until
from tests.push.collectors import free_port, partial
from tests.push.conftest import Papers, make_papers
from tests.push.test_send_http import MESSAGE, PAYLOAD
from tests.test_reload import FEW, PAIR, Start, start

__all__ = ["start"]  # the fixture

Trailers = tuple[tuple[str, bytes], ...]
LATER = ("CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS")
NEVER = (
    *("UNKNOWN", "INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED"),
    *("UNAUTHENTICATED", "UNIMPLEMENTED", "INTERNAL", "RESOURCE_EXHAUSTED"),
)
WHOLE = RetryInfo(retry_delay=Duration(seconds=7, nanos=500_000_000))


@dataclass
class _Server(MetricsServiceServicer):
    code: grpc.StatusCode = grpc.StatusCode.OK
    trailers: Trailers = ()
    response: ExportMetricsServiceResponse = field(default_factory=ExportMetricsServiceResponse)
    received: list[ExportMetricsServiceRequest] = field(default_factory=list)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    silent: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    def Export(self, request: ExportMetricsServiceRequest, context: Any) -> ExportMetricsServiceResponse:  # noqa: N802
        self.received.append(request)
        self.metadata = dict(context.invocation_metadata())
        if self.silent.is_set():
            self.released.wait(LIMIT)
        if self.code is not grpc.StatusCode.OK:
            context.set_trailing_metadata(self.trailers)
            context.abort(self.code, "because")
        return self.response

    @property
    def target(self) -> str:
        return f"localhost:{self.port}"


@pytest.fixture
def served() -> Iterator[Callable[..., _Server]]:
    """Start servers: `served(code=..., trailers=...)`; *tls* with credentials."""
    running: list[tuple[grpc.Server, _Server]] = []

    def start(*, tls: grpc.ServerCredentials | None = None, **settings: Any) -> _Server:
        server = grpc.server(ThreadPoolExecutor(2))
        scripted = _Server(**settings)
        add_MetricsServiceServicer_to_server(scripted, server)  # type: ignore[no-untyped-call]
        address = "localhost:0"
        scripted.port = server.add_insecure_port(address) if tls is None else server.add_secure_port(address, tls)
        server.start()
        running.append((server, scripted))
        return scripted

    yield start
    for server, scripted in running:
        scripted.released.set()
        server.stop(0).wait(LIMIT)


@pytest.fixture
def sender() -> Iterator[Callable[..., GrpcSender]]:
    """Make senders, and close them afterwards."""
    made: list[GrpcSender] = []

    def make(target: str, **changes: Any) -> GrpcSender:
        settings: dict[str, Any] = {"headers": {}, "timeout": 5.0} | changes
        made.append(GrpcSender(target, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


Servers = Callable[..., _Server]
Senders = Callable[..., GrpcSender]


@pytest.mark.parametrize("compression", ["gzip", "deflate", "none"])
def test_a_batch_arrives(compression: str, served: Servers, sender: Senders) -> None:
    """As the bytes that were made once."""
    server = served()
    outcome = sender(server.target, compression=compression, headers={"X-Scope-OrgID": "7"}).send(PAYLOAD)

    assert outcome == Delivered()
    assert server.received == [MESSAGE]
    assert server.metadata["x-scope-orgid"] == "7"
    assert server.metadata["user-agent"].startswith("otelgpu/")


@pytest.mark.parametrize("name", LATER)
def test_these_codes_may_be_better_later(name: str, served: Servers, sender: Senders) -> None:
    """As the OTLP specification says."""
    outcome = sender(served(code=grpc.StatusCode[name]).target).send(PAYLOAD)

    assert outcome == Failed(f"{name}: because")


@pytest.mark.parametrize("name", NEVER)
def test_all_others_are_for_good(name: str, served: Servers, sender: Senders) -> None:
    """Also a server that has no room, unless it says when it has."""
    outcome = sender(served(code=grpc.StatusCode[name]).target).send(PAYLOAD)

    assert outcome == Refused(f"{name}: because")


def _details(*messages: RetryInfo | Duration) -> bytes:
    packed = []
    for message in messages:
        packed.append(AnyMessage())
        packed[-1].Pack(message)
    return bytes(Status(details=packed).SerializeToString())


@pytest.mark.parametrize(
    "trailers",
    [
        (("google.rpc.retryinfo-bin", WHOLE.SerializeToString()),),
        (("grpc-status-details-bin", _details(Duration(seconds=1), WHOLE)),),
        (("google.rpc.retryinfo-bin", b"\xff"), ("grpc-status-details-bin", _details(WHOLE))),
    ],
)
@pytest.mark.parametrize("name", ["RESOURCE_EXHAUSTED", "UNAVAILABLE"])
def test_a_server_may_say_when_to_come_back(trailers: Trailers, name: str, served: Servers, sender: Senders) -> None:
    """In the status details as the specification has it, or as the stock exporter looks for it."""
    outcome = sender(served(code=grpc.StatusCode[name], trailers=trailers).target).send(PAYLOAD)

    assert outcome == Failed(f"{name}: because", 7.5)


def test_a_partial_success_is_seen(served: Servers, sender: Senders) -> None:
    """The stock exporter takes it for a success."""
    response = ExportMetricsServiceResponse.FromString(partial(3, "too old").body)
    outcome = sender(served(response=response).target).send(PAYLOAD)

    assert outcome == Delivered(3, "too old")


def test_a_server_that_never_answers_is_given_up(served: Servers, sender: Senders) -> None:
    """The thread has other batches to see to."""
    server = served()
    server.silent.set()
    outcome = sender(server.target, timeout=0.2).send(PAYLOAD)

    assert isinstance(outcome, Failed)
    assert outcome.reason.startswith("DEADLINE_EXCEEDED")


def test_a_server_that_is_not_there_may_come(sender: Senders) -> None:
    """The collector is started after the exporter as often as before."""
    outcome = sender(f"localhost:{free_port()}").send(PAYLOAD)

    assert isinstance(outcome, Failed)
    assert outcome.reason.startswith("UNAVAILABLE")


def test_a_certificate_is_checked(papers: Papers, served: Servers, sender: Senders) -> None:
    """With the authority that is named it is good, without it is not."""
    pair = (papers.key.read_bytes(), papers.certificate.read_bytes())
    server = served(tls=grpc.ssl_server_credentials([pair]))
    good = sender(server.target, tls=credentials(authorities=str(papers.certificate))).send(PAYLOAD)
    bad = sender(server.target, tls=credentials()).send(PAYLOAD)

    assert good == Delivered()
    assert isinstance(bad, Failed)


def test_a_certificate_is_shown_where_the_server_wants_one(papers: Papers, served: Servers, sender: Senders) -> None:
    """Mutual TLS is how clusters keep strangers out of their collectors."""
    pair = (papers.key.read_bytes(), papers.certificate.read_bytes())
    tls = grpc.ssl_server_credentials([pair], papers.certificate.read_bytes(), require_client_auth=True)
    server = served(tls=tls)
    authority = str(papers.certificate)
    shown = credentials(authorities=authority, certificate=authority, key=str(papers.key))
    good = sender(server.target, tls=shown).send(PAYLOAD)
    bad = sender(server.target, tls=credentials(authorities=authority)).send(PAYLOAD)

    assert good == Delivered()
    assert isinstance(bad, Failed)


@pytest.mark.usefixtures("quick")
def test_a_renewed_certificate_is_shown_without_a_restart(
    papers: Papers, served: Servers, start: Start, tmp_path: Path
) -> None:
    """It is renewed each month, while gRPC reads it once; the collector turns the one before away."""
    pair = (papers.key.read_bytes(), papers.certificate.read_bytes())
    server = served(tls=grpc.ssl_server_credentials([pair], papers.certificate.read_bytes(), require_client_auth=True))
    old = make_papers(tmp_path)
    files = f"certificate: {papers.certificate}, client_certificate: {old.certificate}, client_key: {old.key}"
    rig = start(PAIR, f"{FEW}otlp: {{endpoint: 'https://{server.target}', protocol: grpc, interval: 0.1, {files}}}\n")
    rig.reloading.watched(0.02)
    (push,) = rig.node.pipeline.pushes
    assert isinstance(push, Push)
    until(lambda: push.pusher.sent.failed > 0, "the old one is turned away")
    assert server.received == []
    old.key.write_bytes(pair[0])
    old.certificate.write_bytes(pair[1])

    until(lambda: push.pusher.sent.batches > 0, "the new one is let in")
    assert server.received != []


def test_settings_that_wait_for_a_certificate_are_in_force_once_it_is_there(
    papers: Papers, start: Start, tmp_path: Path
) -> None:
    """The file with the settings is there first, and the operator that makes certificates takes its time."""
    rig = start(PAIR)
    rig.reloading.watched(0.02)
    text = f"{FEW}otlp: {{endpoint: 'https://127.0.0.1:1', certificate: {tmp_path / 'ca.pem'}}}\n"
    rig.path.write_text(text, encoding="utf-8")
    until(lambda: not rig.last.is_good, "the settings are refused")
    (tmp_path / "ca.pem").write_bytes(papers.certificate.read_bytes())

    until(lambda: rig.last.is_good, "the certificate")
    assert len(rig.reloading.site().pushes) == 1


def test_after_closing_nothing_is_sent(served: Servers, sender: Senders) -> None:
    """The end of the process closes the channel under the thread that sends."""
    one = sender(served().target)
    one.close()
    one.close()

    assert isinstance(one.send(gzip.compress(b"")), Failed)
