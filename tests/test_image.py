"""The image: what it is made from, and (`make soak`) the image itself, built by buildah on a Debian and started.

Rule 1: a builder is given the Dockerfile as it is. Only the base is another one, since no registry is asked: a Debian
        with the same release of Python.
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT
from tests.fakenvml import library, models
from tests.fakenvml.build import SONAME
from tests.harness import lines_of, values

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("configuration",)  # that the image has
LOCKED = re.compile(
    r"^([a-z0-9-]+)==(\S+)(?: ; [^\\]*)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)
LARGEST = 60 * 1000 * 1000  # bytes beside the base, compressed
MOST_MEMORY = 50 * 1024 * 1024  # bytes, with two GPUs: a start that compiles takes more
MINUTES = 60.0  # seconds in one


def program(name: str) -> str:
    """The path of a program, also of one that comes in a wheel; skip where there is none."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(*command: str, **more: object) -> str:
    """Run a program that has to succeed; give what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=15 * MINUTES, **more)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return str(done.stdout)


# ---- what it is made from


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


# ---- the image itself


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    """The builder, with a store of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root can build here")
    store = tmp_path_factory.mktemp("store")
    flags = ("--root", str(store / "root"), "--runroot", str(store / "run"), "--storage-driver", "vfs")
    return program("buildah"), *flags


@pytest.fixture(scope="module")
def base(buildah: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Debian with Python, as an image in the builder's store."""
    release = re.search(r"BASE=python:\S+-slim-(\w+)", DOCKERFILE)
    assert release is not None
    root = tmp_path_factory.mktemp("base") / "root"
    packages = "python3,python3-venv,ca-certificates"
    run(program("debootstrap"), "--variant=minbase", f"--include={packages}", release[1], str(root))
    # This machine's authorities, or pip could not reach an index through a proxy.
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc/ssl/certs/ca-certificates.crt")
    container = run(*buildah, "from", "scratch").strip()
    run(*buildah, "add", container, str(root), "/")
    run(*buildah, "config", "--env", "PIP_CERT=/etc/ssl/certs/ca-certificates.crt", container)
    run(*buildah, "commit", container, "localhost/base")
    run(*buildah, "rm", container)
    return "localhost/base"


@pytest.fixture(scope="module")
def image(buildah: Sequence[str], base: str) -> str:
    """The image, built from the Dockerfile."""
    arguments = ("--build-arg", f"BASE={base}", "--build-arg", "VERSION=1.2.3", "--build-arg", "REVISION=abc")
    flags = ("--format", "docker", "--isolation", "chroot", "--network", "host")
    run(*buildah, "build", *flags, *arguments, "--tag", "localhost/otelgpu", str(ROOT))
    return "localhost/otelgpu"


@pytest.fixture(scope="module")
def root(buildah: Sequence[str], image: str) -> Iterator[Path]:
    """The files of the image."""
    container = run(*buildah, "from", image).strip()
    yield Path(run(*buildah, "mount", container).strip())
    run(*buildah, "rm", container)


def settings_of(buildah: Sequence[str], image: str) -> Any:
    """What the image says of itself."""
    return json.loads(run(*buildah, "inspect", "--type", "image", image))["Docker"]["config"]


@pytest.mark.soak
def test_the_image_says_how_it_is_run(buildah: Sequence[str], image: str) -> None:
    """Without a word in the manifest: not as root, the driver asked for, the health known."""
    told = settings_of(buildah, image)

    assert told["User"] == "65534:65534"
    assert told["Entrypoint"] == ["dcgm-exporter"]
    assert told["ExposedPorts"] == {"9400/tcp": {}}
    assert {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"} <= {*told["Env"]}
    assert told["Labels"]["org.opencontainers.image.version"] == "1.2.3"
    assert told["Labels"]["org.opencontainers.image.revision"] == "abc"
    assert told["Healthcheck"]["Test"][0] == "CMD"


@pytest.mark.soak
def test_the_image_holds_what_it_needs_and_no_more(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both programs, the three files, no compiler, no pip; and its layers are small."""
    opt = root / "opt" / "otelgpu"
    tools = {
        path.name for folder in ("usr/bin", "usr/local/bin", "opt/otelgpu/bin") for path in (root / folder).glob("*")
    }
    archive = root.parent / "layers.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=6) as packed:
        packed.add(opt, "opt/otelgpu")
        packed.add(root / "etc/dcgm-exporter", "etc/dcgm-exporter")
    size = archive.stat().st_size
    archive.unlink()
    with capsys.disabled():
        print(f"\nbeside its base the image has {size / 1e6:.1f} MB, compressed")  # noqa: T201 - what was measured

    assert {"otelgpu", "dcgm-exporter"} <= tools
    assert not {"cc", "gcc", "ld", "make", "pip", "pip3"} & tools
    assert {path.name for path in (root / "etc/dcgm-exporter").iterdir()} == {
        path.name for path in (ROOT / "otelgpu/data").iterdir()
    }
    assert not list(opt.glob("lib/*/site-packages/tests"))
    compiled = [path.read_bytes()[4:8] for path in opt.glob("lib/*/site-packages/**/*.pyc")]
    assert len(compiled) > 1000
    assert {*compiled} == {b"\x01\0\0\0"}  # good whatever the times of the files are
    assert size < LARGEST


@pytest.mark.soak
def test_the_image_serves_as_nobody_from_a_root_that_is_read_only(
    buildah: Sequence[str], image: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a driver that is mounted below a folder; its page is asked for, and its health as Docker does it."""
    host = tmp_path / "host"
    (host / "usr/lib64").mkdir(parents=True)
    shutil.copy(library() / SONAME, host / "usr/lib64" / SONAME)
    models.h100(2).write(host / "scenario")
    (host / "scenario").chmod(0o644)
    told = settings_of(buildah, image)
    assert told["Entrypoint"] == ["dcgm-exporter"]
    # By its path, as manifests for dcgm-exporter's image have it.
    command = ["/usr/bin/dcgm-exporter", "-f", "/etc/dcgm-exporter/default-counters.csv", "--driver-root", "/mnt"]
    asked = {
        "root": str(root),
        "host": str(host),
        "user": told["User"],
        "env": [*told["Env"], "FAKENVML_SCENARIO=/mnt/scenario", "OTELGPU_HOSTNAME=node-1"],
        "command": command,
        "health": told["Healthcheck"]["Test"][1:],
    }
    namespaces = (program("unshare"), "--mount", "--net", sys.executable, "-m", "tests.imaged")
    seen = json.loads(run(*namespaces, input=json.dumps(asked), cwd=ROOT))
    with capsys.disabled():
        print(f"\nthe process of the image has {seen['rss_kb'] / 1024:.1f} MiB")  # noqa: T201 - what was measured

    assert set(values(seen["page"], "DCGM_FI_DEV_GPU_TEMP")) == {"0", "1"}
    assert "DCGM_FI_DRIVER_VERSION" in lines_of(seen["page"])[0].labels
    assert re.fullmatch(r"listening on http://\S+:9400/metrics\n", seen["announced"])
    assert seen["rss_kb"] < MOST_MEMORY / 1024
    assert (seen["health"], seen["status"], seen["uid"]) == (0, 0, "65534")
    assert int(seen["caps"], 16) == 0
    assert not seen["could_write"]


@pytest.mark.soak
@pytest.mark.parametrize("processor", ["x86_64", "aarch64"])
def test_the_lock_has_wheels_for_both_processors(processor: str, tmp_path: Path) -> None:
    """What the image is built from on each: every file is there, and is the one whose hash is locked."""
    python = re.search(r"BASE=python:(\d+\.\d+)", DOCKERFILE)
    assert python is not None
    flags = [
        "--require-hashes",
        "--only-binary=:all:",
        "--no-deps",
        "--python-version",
        python[1],
        "--dest",
        str(tmp_path),
    ]
    for glibc in range(17, 37):  # those of Debian 13 and before, each by its name
        flags += ["--platform", f"manylinux_2_{glibc}_{processor}"]
    flags += ["--platform", f"manylinux2014_{processor}", "--requirement", str(ROOT / "requirements.lock")]
    run(sys.executable, "-m", "pip", "download", "--quiet", *flags)
    files = {path.name for path in tmp_path.iterdir()}

    assert len(files) == len(needed())
    assert any(name.startswith("grpcio-") and name.endswith(f"{processor}.whl") for name in files)
