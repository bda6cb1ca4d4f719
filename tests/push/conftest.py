"""Fixtures of the push tests: collectors, certificates, pushing nodes."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from otelgpu import pause
from otelgpu.config import Otlp
from otelgpu.export.push.setup import Push
from tests.fakenvml import Scenario
from tests.harness import Node
from tests.push.collectors import Collector, Rotel, collector, rotel_program


class Pushing(NamedTuple):
    """A node that pushes when told to; its pusher is running."""

    node: Node
    push: Push

    def batch(self) -> None:
        """Make a sweep and put it into the buffer."""
        self.push.reader.push()


@pytest.fixture
def sink() -> Iterator[Collector]:
    """A collector that takes everything."""
    with collector() as running:
        yield running


@pytest.fixture
def rotel(sink: Collector, tmp_path: Path) -> Iterator[Rotel]:
    """A real collector that forwards to the sink."""
    running = Rotel(rotel_program(), sink.url, tmp_path)
    running.start()
    yield running
    running.kill()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of milliseconds between attempts."""
    monkeypatch.setattr(pause, "FIRST", 0.01)
    monkeypatch.setattr(pause, "LONGEST", 0.02)


@pytest.fixture
def pushing(node: Callable[..., Node], quick: None) -> Callable[..., Pushing]:
    """Start nodes that push to an endpoint: `pushing(scenario, url, **otlp settings)`."""
    assert quick is None

    def start(scenario: Scenario, url: str, **settings: object) -> Pushing:
        running = node(scenario, otlp=Otlp(endpoint=url, **settings))  # type: ignore[arg-type]
        (push,) = running.pipeline.pushes
        assert isinstance(push, Push)
        push.pusher.start()
        return Pushing(running, push)

    return start


class Papers(NamedTuple):
    """A certificate for localhost, signed by itself, and its key."""

    certificate: Path
    key: Path


@pytest.fixture(scope="session")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    """Make a certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed (Debian's package openssl)")
    return make_papers(tmp_path_factory.mktemp("papers"))


def make_papers(folder: Path) -> Papers:
    """Make other ones."""
    made = Papers(folder / "certificate.pem", folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(made.key), "-out", str(made.certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return made
