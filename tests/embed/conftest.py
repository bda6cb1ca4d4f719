"""Fixtures for embedding.

Rule 1: what is observed here is stopped here, or its threads would meet the next test.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otelgpu import Observation, observe
from tests.embed.host import Host
from tests.fakenvml import Fake, Scenario

Observe = Callable[..., Observation]


@pytest.fixture(autouse=True)
def _own_runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def host() -> Iterator[Host]:
    """A host with a provider and a reader."""
    host = Host()
    yield host
    host.provider.shutdown()


@pytest.fixture
def watch(fake: Fake) -> Iterator[Observe]:
    """`otelgpu.observe` over the fake driver, without reuse unless asked for; all are stopped afterwards."""
    started: list[Observation] = []

    def start(host: Host, **settings: object) -> Observation:
        started.append(observe(host.provider, **({"source": "nvml", "reuse": 0} | settings)))  # type: ignore[arg-type]
        return started[-1]

    yield start
    fake.show(Scenario())  # or nvmlShutdown would hang as well
    fake.release()
    with fake.hurried():
        for each in started:
            each.stop()
