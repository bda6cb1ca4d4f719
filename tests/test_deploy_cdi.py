"""The manifests on a node whose runtime has CDI: a real one, and the driver described as NVIDIA's toolkit does it."""

import os
import signal
import sysconfig
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from tests.deploy import kustomize
from tests.deploy.confined import below, child_of, needs_namespaces
from tests.deploy.containers import container, environ_of
from tests.deploy.podman import contained, needs_podman
from tests.fakenvml import library, models
from tests.fakenvml.build import SONAME
from tests.harness import LIMIT, serving, status_of, values

OVERLAYS = ROOT / "deploy" / "kubernetes" / "overlays"
DEVICES = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2")
Json = dict[str, Any]


def description(folder: Path) -> Json:
    """What `nvidia-ctk cdi generate --mode=management` writes: all device files, and libraries under their whole names.

    The links that programs look for are made by the toolkit's hook, whose place a script with the same work takes.
    """
    libraries = f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"
    hook = folder / "nvidia-cdi-hook"
    hook.write_text(f'#!/bin/sh\n[ "$1" = update-ldcache ] && exec /sbin/ldconfig -r {folder}/root -n "$3"\n')
    hook.chmod(0o755)
    nodes = [{"path": f"/dev/{name}", "hostPath": "/dev/null"} for name in DEVICES]
    mount = {"hostPath": str(library() / SONAME), "containerPath": f"{libraries}/libnvidia-ml.so.580.95.05"}
    cache = {"hookName": "createContainer", "path": str(hook)}
    return {
        "cdiVersion": "0.5.0",
        "kind": "management.nvidia.com/gpu",
        "devices": [{"name": "all", "containerEdits": {"deviceNodes": nodes}}],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "hooks": [{**cache, "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", libraries]}],
            "mounts": [{**mount, "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"]}],
        },
    }


def test_the_driver_comes_over_cdi_and_no_right_is_needed(open_folder: Path) -> None:
    """Nobody, without a capability, on a read-only root, finds the library and may open all device files."""
    needs_namespaces()
    needs_podman(open_folder)
    found = container(kustomize.build(OVERLAYS / "mig"))
    told = environ_of(found)
    described = description(open_folder)
    asked = told["NVIDIA_VISIBLE_DEVICES"]  # NVIDIA's runtime takes a whole name for a device of CDI
    assert asked == f"{described['kind']}={described['devices'][0]['name']}"
    passed = [*told, "PYTHONPATH", "FAKENVML_SCENARIO", "OTELGPU_SUSPENDED_SYS_ROOT"]
    program = contained(found["securityContext"], passed, described, open_folder)
    with serving(models.h100(2), open_folder, environ=told, program=program) as served:
        page = served.page()
        (inside,) = (one for one in below(served.process.pid) if one.stat().st_uid == 65534)
        status = status_of(int(inside.name))
        nodes = {name: (inside / "root" / "dev" / name).stat() for name in DEVICES}
        os.kill(child_of(served.process.pid), signal.SIGTERM)
        ended = served.process.wait(LIMIT)

    assert set(values(page, "DCGM_FI_DEV_GPU_TEMP")) == {"0", "1"}
    assert {text for name, text in status.items() if name.startswith("Cap")} == {"0" * 16}
    assert {node.st_uid for node in nodes.values()} == {65534}  # of cap1, which changes MIG, too: docs/security.md
    assert ended == 0
