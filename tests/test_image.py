"""What the image is made from. The image itself, built and started: test_image_built.py."""

import importlib.metadata
import re
import tomllib

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.building import DOCKERFILE, program, run
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("configuration",)  # that the image has
LOCKED = re.compile(
    r"^([a-z0-9-]+)==(\S+)(?: ; [^\\]*)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)


def test_the_dockerfile_keeps_the_rules() -> None:
    """hadolint's, all of them: pinned, no shell surprises, no root."""
    assert run(program("hadolint"), str(ROOT / "Dockerfile")) == ""


def test_the_context_is_what_the_image_is_made_of() -> None:
    """A file too few breaks the build; one too many sends what nobody wants, and breaks the cache."""
    copied = {
        name for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE) for name in line.split()[:-1]
    }
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}

    assert sent == copied
    assert "*" in lines
    assert all((ROOT / name).exists() for name in copied)


def needed() -> dict[str, str]:
    """Every package that otelgpu of the image runs on, and its release, as installed here."""
    found: dict[str, str] = {}
    environment = {name: str(text) for name, text in default_environment().items()}
    more = [text for extra in EXTRAS for text in PROJECT["optional-dependencies"][extra]]
    waiting = [Requirement(text) for text in (*PROJECT["dependencies"], *more)]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in found:
            continue
        installed = importlib.metadata.distribution(name)
        found[name] = installed.version
        extras = wanted.extras or {""}
        for text in installed.requires or ():
            below = Requirement(text)
            marker = below.marker
            if marker is None or any(marker.evaluate(environment | {"extra": extra}) for extra in extras):
                waiting.append(below)
    return found


def test_the_lock_is_what_otelgpu_runs_on() -> None:
    """Each package with the release that the tests ran with, and with the hashes of all its files; `make lock`."""
    locked = {
        name: (release, hashes) for name, release, hashes in LOCKED.findall((ROOT / "requirements.lock").read_text())
    }
    build = {name: release for name, release, _ in LOCKED.findall((ROOT / "requirements-build.lock").read_text())}
    releases = {name: release for name, (release, _) in locked.items()}
    expected = needed()

    assert releases == expected, "requirements.lock is out of date: run `make lock`"
    assert f"hatchling=={build['hatchling']}" in PROJECT["optional-dependencies"]["dev"]
    assert len(locked["grpcio"][1].splitlines()) > 20  # wheels for each processor, C library and Python
