"""The image, built here for a processor by buildah, in a store of its own.

Rule 1: buildah is given the Dockerfile as it is. Only the base is another one, since no registry is asked: a Debian
        with the same release of Python.
Rule 2: nothing of another processor is run, neither for its base, whose packages are unpacked, nor by the Dockerfile.
"""

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
MINUTES = 60.0  # seconds in one
AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
_BASE = "localhost/base"


@dataclass(frozen=True, slots=True)
class Processor:
    """One that there are images for."""

    name: str  # as images have it
    machine: str  # as `uname -m` has it
    elf: int  # its number in files that were compiled for it

    @property
    def is_this(self) -> bool:
        """Whether the tests run on it."""
        return self.machine == platform.machine()


AMD64 = Processor("amd64", "x86_64", 62)
ARM64 = Processor("arm64", "aarch64", 183)
PROCESSORS = (AMD64, ARM64)


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


def bootstrap(folder: Path, processor: Processor, *packages: str) -> None:
    """Make the files of the Debian that the image stands on, with more packages; another processor's as they unpack."""
    release = re.search(r"BASE=python:\S+-slim-(\w+)", DOCKERFILE)
    assert release is not None
    flags = ["--variant=minbase", f"--include={','.join(packages)}", f"--arch={processor.name}"]
    if not processor.is_this:
        flags.append("--foreign")
    run(program("debootstrap"), *flags, release[1], str(folder))
    if not processor.is_this:
        for package in (folder / "var/cache/apt/archives").glob("*.deb"):
            run(program("dpkg-deb"), "--extract", str(package), str(folder))
        (folder / "mnt").mkdir()  # a script's work


class Builder:
    """Buildah with a store in *folder*."""

    def __init__(self, folder: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can build here")
        self._folder = folder
        flags = ("--root", str(folder / "root"), "--runroot", str(folder / "run"), "--storage-driver", "vfs")
        self._command = program("buildah"), *flags

    def do(self, *words: str) -> str:
        """Run one of its commands; what it printed, without the line's end."""
        return run(*self._command, *words).strip()

    def make_base(self) -> None:
        """Make the base for each processor, all under one name."""
        self.do("manifest", "create", _BASE)
        for processor in PROCESSORS:
            root = self._folder / processor.name
            bootstrap(root, processor, "python3", "python3-venv", "ca-certificates")
            # This machine's authorities, or no index could be reached through a proxy.
            shutil.copy(AUTHORITIES, root / AUTHORITIES[1:])
            container = self.do("from", "--arch", processor.name, "scratch")
            self.do("add", container, str(root), "/")
            environ = (f"--env=PIP_CERT={AUTHORITIES}", f"--env=SSL_CERT_FILE={AUTHORITIES}")
            self.do("config", "--arch", processor.name, *environ, container)
            self.do("commit", container, f"{_BASE}-{processor.name}")
            self.do("rm", container)
            self.do("manifest", "add", _BASE, f"containers-storage:{_BASE}-{processor.name}")
            shutil.rmtree(root)

    def build(self, processor: Processor) -> str:
        """Build the image as `make image` does; its name."""
        name = f"localhost/otelgpu-{processor.name}"
        (this,) = (each.name for each in PROCESSORS if each.is_this)
        given = (f"BASE={_BASE}", f"BUILDPLATFORM=linux/{this}")  # the second for Debian 12's buildah
        flags = ["--pull=never", "--platform", f"linux/{processor.name}", "--isolation", "chroot", "--network", "host"]
        flags += [word for text in given for word in ("--build-arg", text)]
        run(
            program("make"),
            "image",
            f"BUILDER={shlex.join(self._command)}",
            f"ARGS={shlex.join(flags)} --tag {name}",
            cwd=ROOT,
        )
        return name

    def settings(self, image: str) -> Any:
        """What an image says of itself."""
        return json.loads(self.do("inspect", "--type", "image", image))["Docker"]
