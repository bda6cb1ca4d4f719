"""A container's confinement without a container runtime: namespaces, user and capabilities of a manifest.

Rule 1: what Kubernetes would make of a securityContext is made here by util-linux: a user, no capabilities, no new
        privileges, a read-only root; mounts and process ids of its own.
Rule 2: where the kernel or the user running the tests does not allow that, the test is skipped and says why.
"""

import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

Json = dict[str, Any]

APART = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
EXEC = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


def needs_namespaces() -> None:
    """Skip the test where no namespaces can be made."""
    if os.geteuid() != 0:
        pytest.skip("namespaces and another user need root")
    for name in ("unshare", "setpriv", "mount"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed (Debian's package util-linux)")
    script = "mount -t tmpfs tmpfs /mnt && mount -o remount,bind,ro /"
    done = subprocess.run([*APART, "sh", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        pytest.skip(f"no namespaces can be made here: {done.stderr.strip()}")


def confined(context: Json, mounts: Mapping[str, Path], folder: Path) -> Sequence[str]:
    """Give the program for `serving`: otelgpu with the rights of a securityContext and folders mounted at their places.

    *folder* is open to everybody; what is set aside for a while lies there.
    """
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    script = ["set -e", *_reachable(folder), *_mounted(mounts), "mount -o remount,bind,ro /", 'exec "$@"']
    user = ["setpriv", f"--reuid={context['runAsUser']}", f"--regid={context['runAsGroup']}", "--clear-groups"]
    user += ["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--pdeathsig=KILL"]
    return ("-c", EXEC, *APART, "sh", "-c", "\n".join(script), "sh", *user, sys.executable, "-m", "otelgpu", "serve")


def _mounted(mounts: Mapping[str, Path]) -> Iterable[str]:
    """Mount folders at places that need not be there: the folder two above them is replaced."""
    for place, source in mounts.items():
        top = "/" + "/".join(Path(place).parts[1:3])
        yield f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(top)}"
        yield f"mkdir -p {shlex.quote(place)}"
        yield f"mount --bind {shlex.quote(str(source))} {shlex.quote(place)}"


def _reachable(folder: Path) -> Iterable[str]:
    """Make Python and the checkout reachable for everybody, where a folder above them (/root) is closed."""
    closed: dict[Path, list[Path]] = {}
    for path in {Path(sys.base_prefix), Path(sys.prefix), ROOT}:
        above = [parent for parent in reversed(path.parents) if not parent.stat().st_mode & stat.S_IXOTH]
        if above:
            closed.setdefault(above[0], []).append(path)
    for number, (top, paths) in enumerate(closed.items()):
        asides = [folder / f"aside-{number}-{index}" for index in range(len(paths))]
        for path, aside in zip(paths, asides, strict=True):
            aside.mkdir()
            yield f"mount --rbind {shlex.quote(str(path))} {shlex.quote(str(aside))}"
        yield f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(top))}"
        for path, aside in zip(paths, asides, strict=True):
            yield f"mkdir -p {shlex.quote(str(path))}"
            yield f"mount --rbind {shlex.quote(str(aside))} {shlex.quote(str(path))}"


def child_of(process: int) -> int:
    """Give the process id of its one child, as it is outside."""
    return int(Path(f"/proc/{process}/task/{process}/children").read_text().split()[0])


def below(process: int) -> Iterator[Path]:
    """Give the folders in /proc of all processes that it started, directly or not."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        for child in (thread / "children").read_text().split():
            yield Path(f"/proc/{child}")
            yield from below(int(child))
