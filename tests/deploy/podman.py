"""A container as a runtime makes it: podman, with the rights of a manifest and a device of CDI.

Rule 1: the image is the machine's own system under a layer of its own, with Python and the checkout mounted; the driver
        comes over CDI alone.
Rule 2: podman finds nothing of the machine's and leaves nothing there: its state, its descriptions of devices and its
        locks lie in folders of the test or in mounts that end with it.
Rule 3: where there is no podman, or it may not make containers, the test is skipped and says why.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.deploy.confined import APART, EXEC

Json = dict[str, Any]

# Debian 12's crun takes no mixture of both kinds of cgroups, so it is shown none.
_HIDDEN = ("/run", "/dev/shm", "/sys/fs/cgroup")


def contained(context: Json, variables: Sequence[str], description: Json, folder: Path) -> Sequence[str]:
    """Give the program for `serving`: otelgpu with the rights of a securityContext and the device that is described.

    Of the environment it gets the *variables* alone. *folder* is open to everybody; there its root is made.
    """
    (device,) = description["devices"]
    (folder / "cdi.json").write_text(json.dumps(description))
    flags = _flags(context, folder) + [f"--env={name}" for name in variables]
    flags += [f"--device={description['kind']}={device['name']}"]
    otelgpu = [sys.executable, "-m", "otelgpu", "serve"]
    script = ["set -e", *(f"mount -t tmpfs tmpfs {place}" for place in _HIDDEN)]
    script += ["mkdir /run/cdi", f"cp {shlex.quote(str(folder / 'cdi.json'))} /run/cdi/", 'exec "$@"']
    podman = [*_podman(folder), "run", *flags, "--rootfs", str(folder / "root"), *otelgpu]
    return ("-c", EXEC, *APART, "sh", "-c", "\n".join(script), "sh", *podman)


def needs_podman(folder: Path) -> None:
    """Skip the test where podman cannot run anything."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    if os.geteuid() != 0:
        pytest.skip("podman without root has other mounts")
    script = [f"mount -t tmpfs tmpfs {place}" for place in _HIDDEN]
    context: Json = {"runAsUser": 65534, "runAsGroup": 65534}
    podman = [*_podman(folder), "run", *_flags(context, folder), "--rootfs", str(folder / "root"), "true"]
    command = [*APART, "sh", "-c", "\n".join(["set -e", *script, 'exec "$@"']), "sh", *podman]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        pytest.skip(f"podman runs nothing here: {done.stderr.strip()}")


def _podman(folder: Path) -> list[str]:
    state = [f"--root={folder / 'state'}", f"--runroot={folder / 'run'}", f"--tmpdir={folder / 'tmp'}"]
    return ["podman", *state, "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none"]


def _flags(context: Json, folder: Path) -> list[str]:
    """What a kubelet would ask for, and the system that is the image."""
    root = folder / "root"
    for name in ("usr", "etc", "dev", "proc", "sys", "tmp", "run", "var"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        if not (root / name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    rights = [f"--user={context['runAsUser']}:{context['runAsGroup']}", "--cap-drop=all", "--read-only"]
    rights += ["--security-opt=no-new-privileges", "--read-only-tmpfs=false"]
    limits = ["--cgroups=disabled", "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096", "--network=host"]
    system = ["--volume=/usr:/usr:O", "--volume=/etc:/etc:O"]
    ours = sorted({ROOT, Path(sys.prefix), Path(sys.base_prefix), folder})
    system += [f"--volume={path}:{path}:ro" for path in ours if not path.is_relative_to("/usr")]
    return ["--rm", *rights, *limits, *system]
