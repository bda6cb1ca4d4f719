"""The containers of deploy/, started with the variables and arguments of their manifests.

Rule 1: each way of installing is tried: every overlay, and every file of values of the chart.
Rule 2: what says something new about a whole process (TLS, push, arguments) is run as one; the rest in this process.
"""

import base64
import json
import shutil
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from otelgpu.config import load
from tests.conftest import ROOT
from tests.deploy import helm, kustomize
from tests.deploy.containers import container, environ_of, laid_out, moved
from tests.fakeapi import certificate
from tests.fakekubelet import Kubelet, pod
from tests.fakenvml import Fake, models
from tests.harness import LIMIT, Node, lines_of, serving, until, values
from tests.push.collectors import collector, pairs
from tests.test_kubernetes import owners_on

KUSTOMIZE = ROOT / "deploy" / "kubernetes" / "overlays"


def _chart(path: Path) -> list[Any]:
    return helm.render(helm.values_of(path))[0]


WAYS: dict[str, Callable[[], list[Any]]] = {
    **{f"kustomize {path.name}": partial(kustomize.build, path) for path in sorted(KUSTOMIZE.iterdir())},
    **{f"helm {path.stem}": partial(_chart, path) for path in helm.VALUES},
}
NODE = models.h100(2)
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
def kubelet() -> Iterator[Kubelet]:
    """A kubelet of whose pods one holds a GPU; its socket has the name and the short path that it needs."""
    folder = Path(tempfile.mkdtemp(prefix="kubelet-"))
    made = Kubelet(folder / "kubelet.sock", [pod("train", NODE.gpus[1].uuid)])
    made.start()
    yield made
    made.stop()
    shutil.rmtree(folder)


def environ(objects: list[Any], folder: Path, kubelet: Kubelet, secret: Path) -> dict[str, str]:
    """The variables of the container, with the paths of its mounts moved here."""
    given = {"pod-resources": kubelet.path.parent, "web": secret, "collector": secret}
    places = laid_out(objects, folder, given)
    found = environ_of(container(objects), HEADERS)
    if any(name.startswith("OTELGPU_KUBERNETES_") for name in found):
        found.setdefault("OTELGPU_KUBERNETES_SOCKET", "/var/lib/kubelet/pod-resources/kubelet.sock")
    return {name: moved(text, places) for name, text in found.items()}


@pytest.mark.parametrize("way", WAYS)
def test_a_container_starts_and_shows_the_gpus(
    way: str, fake: Fake, tmp_path: Path, kubelet: Kubelet, secret: Path
) -> None:
    """A variable that is spelt wrong, or a file that lies elsewhere, would stop every pod of the cluster."""
    objects = WAYS[way]()
    told = environ(objects, tmp_path, kubelet, secret)
    config = load(environ=told)
    fake.show(NODE)
    node = Node(fake, config, told)
    try:
        assert node.pipeline.attribution.looked(LIMIT)
        page = node.settled_page()
    finally:
        node.stop()

    assert set(values(page, "DCGM_FI_DEV_GPU_TEMP")) == {"0", "1"}
    assert {line.labels["Hostname"] for line in lines_of(page) if "Hostname" in line.labels} == {"node-1"}
    owners = owners_on(lines_of(page), "otelgpu_gpu_owner")
    assert [owner for *_, owner in owners] == (["train"] if config.kubernetes.enabled else [])


def test_the_overlay_for_otlp_pushes(tmp_path: Path, kubelet: Kubelet, secret: Path) -> None:
    """With the header of its Secret."""
    with collector() as there:
        told = environ(WAYS["kustomize otlp"](), tmp_path, kubelet, secret)
        told["OTELGPU_OTLP_ENDPOINT"] = there.url  # a port other than 4317, so over HTTP
        with serving(NODE, tmp_path, environ=told | {"OTELGPU_OTLP_INTERVAL": "1s"}) as served:
            until(lambda: bool(there.received), "a batch")
            assert served.stop() == 0

    assert there.received[0].headers["authorization"] == "Bearer secret"
    resource = there.received[0].message.resource_metrics[0].resource
    assert pairs(list(resource.attributes))["host.name"] == "node-1"


def test_the_overlay_for_tls_guards_the_page(tmp_path: Path, kubelet: Kubelet, secret: Path) -> None:
    """With the certificate and password of its Secret, and not without the password."""
    told = environ(WAYS["kustomize tls"](), tmp_path, kubelet, secret)
    context = ssl.create_default_context(cafile=secret / "ca.crt")
    password = base64.b64encode(b"scrape:hunter2").decode()
    with serving(NODE, tmp_path, environ=told) as served:
        url = served.urls[0]
        request = urllib.request.Request(url, headers={"Authorization": f"Basic {password}"})
        with urllib.request.urlopen(request, timeout=LIMIT, context=context) as reply:
            page = reply.read().decode()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url, timeout=LIMIT, context=context)
        refused.value.close()
        assert served.stop() == 0

    assert set(values(page, "DCGM_FI_DEV_GPU_TEMP")) == {"0", "1"}
    assert refused.value.code == 401


def test_the_chart_with_everything_starts(tmp_path: Path, kubelet: Kubelet, secret: Path) -> None:
    """Its arguments too, and its files: settings, and the list of metrics."""
    objects = WAYS["helm otlp-values"]()
    told = environ(objects, tmp_path, kubelet, secret) | {"OTELGPU_OTLP_ENDPOINT": "https://127.0.0.1:1"}
    with serving(NODE, tmp_path, *container(objects)["args"], environ=told) as served:
        page = served.page()
        until(lambda: served.logged("127.0.0.1:1") > 0, "a complaint about the collector")
        assert served.stop() == 0
    shown = {line.name for line in lines_of(page) if line.name.startswith("DCGM_")}

    assert shown == {"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_FB_USED"}
    assert {line.labels["cluster"] for line in lines_of(page) if line.name in shown} == {"east"}
    assert all(json.loads(line)["level"] for line in served.log)
