"""Fixtures for every test.

Rule 1: only what any test may want; what one area needs stands in that area's own file.
Rule 2: a test whose material is missing is skipped and says what is missing; it never passes for want of it.
"""

import difflib
import gc
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import settings

from otelgpu.config import Dcgm
from otelgpu.log import SparingHandler
from otelgpu.sources import Source
from tests import fakedcgm
from tests.fakenvml import Fake, Scenario, preload
from tests.harness import DCGM, ENGINE, Node, config

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
RECORDINGS = ROOT.parent / "shared" / "recordings"

settings.register_profile("here", deadline=None)  # speed is for `make bench`; machines are noisy
settings.load_profile("here")

Golden: TypeAlias = Callable[[str, str], None]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that compare golden files, so that `make golden` runs those alone."""
    for item in items:
        if "golden" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.golden)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave what stays to the end out of each look for garbage: with all tests loaded that is most of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    """Undo what a command that ran in this process did to the log: the next test would miss messages."""
    root, ours = logging.getLogger(), logging.getLogger("otelgpu")
    levels = root.level, ours.level
    yield
    for handler in tuple(root.handlers):
        if isinstance(handler, SparingHandler):
            root.removeHandler(handler)
            handler.close()
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    logging.captureWarnings(capture=False)


@pytest.fixture(scope="session")
def recordings() -> Path:
    """Recordings of real machines. They are not part of the repository."""
    if not RECORDINGS.is_dir():
        pytest.skip("recordings are not beside this checkout")
    return RECORDINGS


@pytest.fixture
def golden() -> Golden:
    """Compare a whole text with the file of that name in tests/golden, or rewrite the file under `make golden`."""
    return _compare


def _compare(name: str, text: str) -> None:
    __tracebackhide__ = True
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        return
    if not path.exists():
        pytest.fail(f"tests/golden/{name} is not there yet; `make golden` writes it", pytrace=False)
    expected = path.read_bytes().decode()
    if text == expected:
        return
    diff = "".join(
        line if line.endswith("\n") else f"{line}\n\\ no newline at the end\n"
        for line in difflib.unified_diff(
            expected.splitlines(keepends=True), text.splitlines(keepends=True), f"tests/golden/{name}", "now"
        )
    )
    pytest.fail(f"{diff}\nIf this is what you meant, `make golden` writes it; review its diff.", pytrace=False)


def _program(name: str, package: str) -> Path:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian's package {package}; `make test` as root installs it)")
    return Path(found)


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """The Prometheus server's program."""
    return _program("prometheus", "prometheus")


@pytest.fixture(scope="session")
def promtool() -> Path:
    """The program that checks a page as Prometheus would read it."""
    return _program("promtool", "prometheus")


@pytest.fixture(scope="session")
def cc() -> Path:
    """A C compiler, for the fake driver."""
    return _program("cc", "gcc")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may look into, with a path that is short enough for sockets; pytest's own are neither."""
    folder = Path(tempfile.mkdtemp(prefix="otelgpu-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def fake(cc: Path, tmp_path: Path) -> Iterator[Fake]:
    """The fake driver in this process, with nothing left hanging afterwards."""
    assert cc.exists()
    fake = preload(tmp_path / "scenario")
    fake.reset_calls()
    yield fake
    fake.quiet()


@pytest.fixture
def engine(cc: Path, tmp_path: Path) -> Iterator[fakedcgm.Fake]:
    """The fake DCGM in this process, with nothing left hanging afterwards."""
    assert cc.exists()
    engine = fakedcgm.preload(tmp_path / "engine")
    engine.reset_calls()
    yield engine
    engine.quiet()


@pytest.fixture
def dcgm_node(engine: fakedcgm.Fake) -> Iterator[Callable[..., Node]]:
    """Start pipelines over the fake DCGM: `dcgm_node(scenario, **settings)`. All are stopped afterwards."""
    started: list[Node] = []

    def start(scenario: fakedcgm.Scenario, *, address: str = ENGINE, **settings: object) -> Node:
        engine.show(scenario)
        usual = {"source": DCGM, "dcgm": Dcgm(address=address)}
        started.append(Node(engine, config(**(usual | settings))))  # type: ignore[arg-type]
        return started[-1]

    yield start
    engine.release()
    for each in started:
        each.stop()


@pytest.fixture
def node(fake: Fake) -> Iterator[Callable[..., Node]]:
    """Start pipelines over the fake driver: `node(scenario, **settings)`. All are stopped afterwards."""
    started: list[Node] = []

    def start(
        scenario: Scenario,
        *,
        environ: Mapping[str, str] | None = None,
        tap: Callable[[Source], Source] = lambda source: source,
        **settings: object,
    ) -> Node:
        fake.show(scenario)
        started.append(Node(fake, config(**settings), environ or {}, tap))  # type: ignore[arg-type]
        return started[-1]

    yield start
    fake.release()
    with fake.hurried():
        for each in started:
            each.stop()
