"""What holds for the project as a whole: layers, imports, sizes, packaging, versions.

Rule 1: a failure says which file breaks which rule, and what would be right.
Rule 2: an exception is a row of a table here, with its reason.
"""

import ast
import importlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT

PACKAGE = ROOT / "otelgpu"

# The way of the data, top to bottom. A module imports from its own row and from rows above it.
LAYERS = (
    ("errors", "fields"),
    ("model",),
    ("throttle", "counts", "peers", "links", "health", "pause"),
    ("events",),
    ("config",),
    ("processes",),
    ("ledger",),
    ("sources",),
    ("limit", "watch", "worker", "slots", "roster", "views", "snapshots", "rounds", "terms"),
    ("sampler",),
    ("instruments", "itself"),
    ("attribution",),
    ("export",),
    ("embed",),
    ("server",),
    ("instrumentor", "asking", "configmap", "reload"),
    ("pipeline",),
    ("service", "pull", "glance"),
    ("log", "output", "tables", "reference", "completion", "usage"),
    ("check", "compare", "doctor", "record"),
    ("commands",),
    ("cli",),
    ("__main__",),
)
RANKS = {name: rank for rank, row in enumerate(LAYERS) for name in row}

# Which module may be imported from where only, and why. A place that ends in "/" is a folder.
BANNED = {
    "subprocess": ((), "otelgpu runs no other programs"),
    "asyncio": (("otelgpu/server/",), "only the server has an event loop"),
    "pynvml": (("otelgpu/sources/nvml/",), "only this source talks to the driver"),
    "unittest.mock": ((), "write a fake that satisfies the Protocol"),
}

LONGEST = 300
LONG = {  # a data table that is longer, and what it holds
    "otelgpu/sources/simulated/models.py": "a row of facts for each GPU model that can be simulated",
}

# Not loaded by `import otelgpu`: each costs memory and start-up time, or does something when imported.
HEAVY = ("pynvml", "tornado", "opentelemetry", "rich", "grpc", "yaml", "click", "bcrypt", "asyncio")


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module, and where."""

    path: Path
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.module}"


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[Import]:
    """Every import of a file, those inside functions too; `from a import b` counts as a.b where that is a module."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(path, node.lineno, name.name)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            for name in node.names:
                inner = f"{module}.{name.name}"
                yield Import(path, node.lineno, inner if _is_module(inner) else module)


def _is_module(name: str) -> bool:
    place = ROOT.joinpath(*name.split("."))
    return name == "unittest.mock" or place.is_dir() or place.with_suffix(".py").is_file()


def _layer(path: Path) -> str:
    """Name the row of LAYERS that a file of the package belongs to."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def _within(module: str, parent: str) -> bool:
    return module == parent or module.startswith(f"{parent}.")


def test_every_module_has_a_layer() -> None:
    """A module outside the list would escape the rule that data flows one way."""
    unknown = {_layer(path) for path in modules()} - set(RANKS) - {"__init__"}

    assert not unknown, "give these a place in LAYERS: where in the flow of the data do they stand?"


def test_imports_point_up_the_data_flow() -> None:
    """A module that reaches down ties the driver's side to the reader's, and soon nothing can be tested alone."""
    wrong = []
    for path in modules():
        here = _layer(path)
        if here == "__init__":  # the public names, each loaded when it is first used
            continue
        for found in imports(path):
            if not _within(found.module, "otelgpu"):
                continue
            there = found.module.partition(".")[2].partition(".")[0]
            if there and RANKS.get(there, len(LAYERS)) > RANKS[here]:
                wrong.append(str(found))

    assert not wrong, "imports from further down the flow"


def test_the_package_itself_gives_others_only_its_version() -> None:
    """A module that takes public names from `otelgpu` would import in a circle, depending on who came first."""
    wrong = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.module == "otelgpu":
                names = [name.name for name in node.names if not _is_module(f"otelgpu.{name.name}")]
                wrong += [f"{path.relative_to(ROOT)}:{node.lineno}: {n}" for n in names if n != "__version__"]

    assert not wrong


@pytest.mark.parametrize("banned", BANNED)
def test_a_banned_module_is_imported_only_in_its_place(banned: str) -> None:
    """Policy as a check: the linter says the same, but cannot tell which of the four a folder is allowed."""
    allowed, reason = BANNED[banned]
    paths = modules() if banned != "unittest.mock" else [*modules(), *sorted((ROOT / "tests").rglob("*.py"))]
    wrong = [
        str(found)
        for path in paths
        if not path.relative_to(ROOT).as_posix().startswith(allowed)
        for found in imports(path)
        if _within(found.module, banned)
    ]

    assert not wrong, reason


def test_modules_are_short() -> None:
    """A module does one job; past this length it usually does two. A data table may be longer, and says so."""
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules()}
    long = {name: length for name, length in lengths.items() if length > LONGEST and name not in LONG}
    stale = [name for name in LONG if lengths.get(name, 0) <= LONGEST]

    assert not long, f"more than {LONGEST} lines"
    assert not stale, "no longer an exception; take these out of LONG"


def test_importing_otelgpu_does_nothing() -> None:
    """Somebody else's process imports us at its top: no driver, no thread, no log handler, no heavy library yet."""
    script = """
import json, logging, sys, threading
before = dict(logging.Logger.manager.loggerDict)
import otelgpu
print(json.dumps({
    "modules": sorted(sys.modules),
    "threads": threading.active_count(),
    "handlers": len(logging.getLogger().handlers) + len(logging.getLogger("otelgpu").handlers),
}))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    seen = json.loads(ran.stdout)
    heavy = sorted({name for name in seen["modules"] for library in HEAVY if _within(name, library)})

    assert not heavy
    assert seen["threads"] == 1
    assert seen["handlers"] == 0
    assert ran.stderr == ""


def test_every_test_says_why_anyone_would_care() -> None:
    """The name of a test says what happens; without the docstring the next reader cannot tell whether it matters."""
    silent = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]

    assert not silent


def test_every_module_opens_with_what_it_is_for() -> None:
    """A reader who lands in a file learns its one job and its rules before the first line of code."""
    silent = [str(path.relative_to(ROOT)) for path in modules() if not ast.get_docstring(ast.parse(path.read_bytes()))]

    assert not silent


def test_the_version_is_the_same_everywhere() -> None:
    """Users quote the version that `--version` prints and look it up in the changelog."""
    version = importlib.import_module("otelgpu").__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert importlib.metadata.version("otelgpu") == version
    assert newest is not None
    assert newest[1] == version


def test_constraints_pin_what_pyproject_asks_for() -> None:
    """`make` installs by constraints.txt; a dependency without a pin there would be another one on each machine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines if not line.startswith("#"))
    wrong = []
    for text in [*project["dependencies"], *extras["instrumentation"], *extras["dev"]]:
        wanted = Requirement(text)
        pin = pins.get(wanted.name.lower().replace("_", "-"))
        if pin is None or not wanted.specifier.contains(pin, prereleases=True):
            wrong.append(f"{text}: pinned to {pin}")

    assert not wrong


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as whoever has no git builds it: from the sdist."""
    pytest.importorskip("hatchling", reason="hatchling is not installed; `make` installs it")
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (sdist,) = folder.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(sdist)], check=True, timeout=100)
    (made,) = folder.glob("*.whl")
    return made


def test_the_sdist_holds_what_the_tests_need(wheel: Path) -> None:
    """Distributions build and test from it; what lies about in a checkout is not theirs."""
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    tops = {name.partition("/")[0] for name in names}
    tracked = {"otelgpu/py.typed", "tests/conftest.py", "tests/fakenvml/c/fake.h", "docs/metrics.md", ".ci/venv"}

    assert names >= tracked | {"Makefile", "Dockerfile", "requirements.lock", "pyproject.toml", "PKG-INFO"}
    assert not tops & {".cache", ".venv", ".git", "dist", "build"}


def test_what_is_installed_runs(wheel: Path, tmp_path: Path) -> None:
    """The programs, the files that come with it, and the extras that the documentation names."""
    site = tmp_path / "site"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--target",
        str(site),
    ]
    subprocess.run([*pip, str(wheel)], check=True, timeout=100)
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site)}
    csv = "/etc/dcgm-exporter/1.x-compatibility-metrics.csv"  # not there: the one of the package is taken
    once = [str(site / "bin" / "otelgpu"), "once", "--source", "simulated:1xt4", "--fields", csv]
    ran = subprocess.run(once, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=100)
    drop_in = [str(site / "bin" / "dcgm-exporter"), "--version"]
    said = subprocess.run(drop_in, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=100)
    metadata = zipfile.ZipFile(wheel).read(f"{wheel.name.split('-py3')[0]}.dist-info/METADATA").decode()

    assert "dcgm_gpu_temp{" in ran.stdout
    assert ran.returncode == 0, ran.stderr
    assert said.stdout == f"otelgpu {importlib.import_module('otelgpu').__version__}\n"
    assert set(re.findall(r"^Provides-Extra: (\S+)$", metadata, re.MULTILINE)) >= {
        "all",
        "configuration",
        "instrumentation",
        "kubernetes",
    }


def test_the_extras_ask_for_what_there_is(wheel: Path) -> None:
    """`otelgpu[all]`, which is all of them, is resolved out of what is installed for the tests: nothing is missing."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = map(Requirement, extras.pop("all"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-index", "--report", "-"]
    wanted = f"otelgpu[all] @ {wheel.as_uri()}"
    done = subprocess.run([*pip, wanted], capture_output=True, text=True, check=False, timeout=100)

    assert (everything.name, everything.extras) == ("otelgpu", extras.keys() - {"dev"})
    assert done.returncode == 0, done.stderr
    assert [one["metadata"]["name"] for one in json.loads(done.stdout)["install"]] == ["otelgpu"]


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path, tmp_path: Path) -> None:
    """Tests, recordings and notes have no business in site-packages; a data file left out breaks the first run."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=100)
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        packed = {name: file.read(name) for name in names if name.startswith("otelgpu/")}
    written = {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert packed == written
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()  # the checkout's is the sdist's
    assert {name.partition("/")[0] for name in names} == {"otelgpu", f"{wheel.name.split('-py3')[0]}.dist-info"}


def test_the_words_lead_to_files_that_are_there() -> None:
    """Links and paths in backticks: files move, and whoever reads of the old place is lost."""
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/*/*.md")]
    wrong = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r"\]\((?!http)([^)\s]+)\)", text):
            path, _, heading = link.partition("#")
            there = (page.parent / path).resolve() if path else page
            lines = there.read_text(encoding="utf-8").splitlines() if heading else ()
            known = [
                re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in lines if line[:1] == "#"
            ]
            if not there.exists() or (heading and heading not in known):
                wrong.append(f"{page.name}: {link}")
        paths = re.findall(r"`((?:deploy|docs|examples|otelgpu|tests)/[\w./*-]+)`", text)
        wrong += [f"{page.name}: {path}" for path in paths if not list(ROOT.glob(path.rstrip("/")))]

    assert wrong == []


def test_no_file_names_a_place_on_the_authors_machine() -> None:
    """A path that exists on one machine only is wrong for everyone who clones the repository."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is not a git checkout")
    pattern = "|".join(re.escape(f"/{top}/") for top in ("work", "tmp/v"))
    found = subprocess.run(
        ["git", "-c", "safe.directory=*", "grep", "--untracked", "-nIE", rf"(^|[^A-Za-z0-9_.-])({pattern})"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert found.returncode == 1, found.stdout + found.stderr
