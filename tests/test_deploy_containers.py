"""The containers of deploy/, started with the variables and arguments of their manifests.

Rule 1: each way of installing is tried: every overlay, and every file of values of the chart.
Rule 2: each is a process of its own, over a driver, a kubelet and Secrets that are the test's.
"""

import base64
import json
import re
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from otelgpu.config.owning import KUBELET_SOCKET
from tests import fakedcgm
from tests.conftest import ROOT
from tests.deploy import helm, kustomize
from tests.deploy.containers import container, containers, environ_of, laid_out, moved
from tests.fakeapi import certificate
from tests.fakedcgm import models as engines
from tests.fakekubelet import Kubelet, pod
from tests.fakenvml import library, models
from tests.fakenvml.build import SONAME
from tests.harness import LIMIT, Served, lines_of, serving, until, values
from tests.push.collectors import collector, pairs
from tests.test_kubernetes import owners_on

KUSTOMIZE = ROOT / "deploy" / "kubernetes" / "overlays"


def _chart(path: Path) -> list[Any]:
    return helm.render(helm.values_of(path))[0]


WAYS: dict[str, Callable[[], list[Any]]] = {
    **{f"kustomize {path.name}": partial(kustomize.build, path) for path in sorted(KUSTOMIZE.iterdir())},
    **{f"helm {path.stem}": partial(_chart, path) for path in helm.VALUES},
}
LOOKED_INTO = ("kustomize otlp", "kustomize tls", "helm otlp-values")  # by tests of their own
PROFILED = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
NODE = models.a100(2)  # of which the driver has no profiling
HEADERS = {("otelgpu-otlp", "headers"): "authorization=Bearer secret"}


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the Secrets hold: a certificate, its authority, and the web configuration with a password."""
    folder = tmp_path_factory.mktemp("secret")
    certificate(folder)
    shutil.copy(folder / "tls.crt", folder / "ca.crt")
    hashed = bcrypt.hashpw(b"hunter2", bcrypt.gensalt(4)).decode()
    lines = ["tls_server_config: {cert_file: tls.crt, key_file: tls.key}", f"basic_auth_users: {{scrape: {hashed}}}"]
    (folder / "web-config.yml").write_text("\n".join(lines))
    return folder


@pytest.fixture
def kubelet(open_folder: Path) -> Iterator[Kubelet]:
    """A kubelet of whose pods one holds a GPU; its socket has the name and the short path that it needs."""
    made = Kubelet(open_folder / "kubelet.sock", [pod("train", NODE.gpus[1].uuid)])
    made.start()
    yield made
    made.stop()


@dataclass
class Container:
    """A container that runs."""

    served: Served
    secret: Path
    host: str

    def get(self, password: str = "hunter2") -> str:  # noqa: S107
        """Read its page, as Prometheus does that has the authority and the password of the Secret."""
        url = re.sub(r"//[^/]*:", f"//{self.host}:", self.served.urls[0])
        basic = base64.b64encode(f"scrape:{password}".encode()).decode()
        request = urllib.request.Request(url, headers={"Authorization": f"Basic {basic}"})
        context = ssl.create_default_context(cafile=self.secret / "ca.crt")
        with urllib.request.urlopen(request, timeout=LIMIT, context=context) as reply:
            return str(reply.read().decode())


def copied(objects: list[Any], folder: Path, places: dict[str, Path]) -> None:
    """Run the container that copies DCGM's library, out of folders as they are in NVIDIA's image."""
    image = folder / "image" / "x86_64-linux-gnu"
    image.mkdir(parents=True)
    shutil.copy(fakedcgm.library() / "libdcgm.so.4", image / "libdcgm.so.4.5.2")
    (image / "libdcgm.so.4").symlink_to("libdcgm.so.4.5.2")
    (copier,) = (one for one in containers(objects) if one["name"] == "dcgm-library")
    command = [moved(text, places | {"/usr/lib": image.parent}) for text in copier["command"]]
    subprocess.run(command, check=True, timeout=LIMIT)


@contextmanager
def started(way: str, folder: Path, kubelet: Kubelet, secret: Path, **changes: str) -> Iterator[Container]:
    """Start the container with its arguments and variables; only the port and the paths of mounts are others."""
    objects = WAYS[way]()
    (folder / "driver" / "lib64").mkdir(parents=True)
    shutil.copy(library() / SONAME, folder / "driver" / "lib64")
    given = {"pod-resources": kubelet.path.parent, "web": secret, "collector": secret, "driver": folder / "driver"}
    places = laid_out(objects, folder, given)
    told = environ_of(container(objects), HEADERS)
    if "OTELGPU_KUBERNETES_ENABLED" in told:
        told.setdefault("OTELGPU_KUBERNETES_SOCKET", f"{KUBELET_SOCKET}")
    if given["driver"] in places.values():
        told["LD_LIBRARY_PATH"] = ""
    engine = engines.a100(2).but(addresses=(told.get("OTELGPU_DCGM_ADDRESS", ""),))
    if "OTELGPU_DCGM_LIBRARY" in told:
        copied(objects, folder, places)
        engine.but(gone=True).write(folder / "engine")
        told |= {"LD_LIBRARY_PATH": "", "FAKEDCGM_SCENARIO": str(folder / "engine")}
    told["OTELGPU_SERVER_LISTEN"] = re.sub(r":\d+$", ":0", told.get("OTELGPU_SERVER_LISTEN", "127.0.0.1:9400"))
    told = {name: moved(text, places) for name, text in (told | changes).items()}
    arguments = [moved(text, places) for text in container(objects).get("args", ())]
    with serving(NODE, folder, *arguments, environ=told) as served:
        engine.write(folder / "engine")  # it starts at the same time, and takes longer
        yield Container(served, secret, "[::1]" if "[::]" in told["OTELGPU_SERVER_LISTEN"] else "127.0.0.1")


@pytest.mark.parametrize("way", [way for way in WAYS if way not in LOOKED_INTO])
def test_a_container_starts_and_shows_the_gpus(way: str, tmp_path: Path, kubelet: Kubelet, secret: Path) -> None:
    """A variable or argument that is spelt wrong, or a file that lies elsewhere, would stop each pod of the cluster."""
    mounted = {one["name"] for one in container(WAYS[way]()).get("volumeMounts") or ()}
    owners = ["train"] if "pod-resources" in mounted else []

    def shown() -> list[str]:
        return [owner for *_, owner in owners_on(lines_of(running.get()), "otelgpu_gpu_owner")]

    with started(way, tmp_path, kubelet, secret) as running:
        until(lambda: shown() == owners, "the owner")
        if "dcgm" in mounted:
            until(
                lambda: set(values(running.get(), "DCGM_FI_PROF_GR_ENGINE_ACTIVE")) == {"0", "1"}, "what DCGM measures"
            )
        lines = lines_of(running.get())

    assert {line.labels["gpu"] for line in lines if line.name == "DCGM_FI_DEV_GPU_TEMP"} == {"0", "1"}
    assert {line.labels["Hostname"] for line in lines if "Hostname" in line.labels} == {"node-1"}


def test_the_overlay_for_otlp_pushes(tmp_path: Path, kubelet: Kubelet, secret: Path) -> None:
    """With the header of its Secret."""
    with collector() as there:
        # A port other than 4317, so over HTTP.
        changes = {"OTELGPU_OTLP_ENDPOINT": there.url, "OTELGPU_OTLP_INTERVAL": "1s"}
        with started("kustomize otlp", tmp_path, kubelet, secret, **changes) as running:
            until(lambda: bool(there.received), "a batch")
            assert running.served.stop() == 0

    assert there.received[0].headers["authorization"] == "Bearer secret"
    resource = there.received[0].message.resource_metrics[0].resource
    assert pairs(list(resource.attributes))["host.name"] == "node-1"


def test_the_overlay_for_tls_guards_the_page(tmp_path: Path, kubelet: Kubelet, secret: Path) -> None:
    """With the certificate and password of its Secret, and not without the password."""
    with started("kustomize tls", tmp_path, kubelet, secret) as running:
        page = running.get()
        with pytest.raises(urllib.error.HTTPError) as refused:
            running.get("hunter3")
        refused.value.close()
        assert running.served.stop() == 0

    assert set(values(page, "DCGM_FI_DEV_GPU_TEMP")) == {"0", "1"}
    assert refused.value.code == 401


def test_the_chart_with_everything_starts(tmp_path: Path, kubelet: Kubelet, secret: Path) -> None:
    """Its arguments too, and its files: settings, and the list of metrics."""
    changes = {"OTELGPU_OTLP_ENDPOINT": "https://127.0.0.1:1"}
    with started("helm otlp-values", tmp_path, kubelet, secret, **changes) as running:
        page = running.get()
        until(lambda: running.served.logged("127.0.0.1:1") > 0, "a complaint about the collector")
        assert running.served.stop() == 0
    shown = {line.name for line in lines_of(page) if line.name.startswith("DCGM_")}

    assert shown == {"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_FB_USED"}
    assert {line.labels["cluster"] for line in lines_of(page) if line.name in shown} == {"east"}
    assert all(json.loads(line)["level"] for line in running.served.log)
