"""examples/kubernetes.yaml: what it grants, sets and asks for is what the program needs, takes and answers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from otelgpu.config import Config
from otelgpu.config.owning import KUBELET_SOCKET
from tests.conftest import ROOT
from tests.fakeapi import GROUP, PODS, ApiServer, gpu_device, pod_object, slice_object
from tests.fakekubelet import Kubelet, claiming, pod
from tests.harness import lines_of, serving, until
from tests.test_kubernetes import GPU_0, GPU_1, H100, kubelet, owners_on
from tests.test_kubernetes_api import api, papers

__all__ = ["api", "kubelet", "papers"]  # the fixtures

MANIFEST = ROOT / "examples" / "kubernetes.yaml"
# The paths of the API that a rule of RBAC is about.
PATHS = {("", "pods"): PODS, ("resource.k8s.io", "resourceslices"): f"{GROUP}/v1/resourceslices"}


def objects() -> Mapping[str, Any]:
    """The objects of the manifest by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text())}


def container() -> Any:
    """The one container of the DaemonSet."""
    (only,) = objects()["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    return only


def test_the_role_grants_what_is_asked_and_nothing_else(kubelet: Kubelet, api: ApiServer, tmp_path: Path) -> None:
    """Run with the arguments of the manifest: each right is used, and nothing is asked that it does not give."""
    api.put(pod_object("a", team="vision", other="x"), pod_object("otelgpu-x7", namespace="monitoring"))
    api.put(slice_object("s", gpu_device("gpu-1", GPU_1)), path="slices")
    api.start()
    kubelet.pods = [pod("a", GPU_0), pod("otelgpu-x7", GPU_0, namespace="monitoring"), claiming("b", "gpu-1")]
    kubelet.start()
    told = {"spec.nodeName": "node-1", "metadata.name": "otelgpu-x7", "metadata.namespace": "monitoring"}
    environ = {
        one["name"]: one.get("value") or told[one["valueFrom"]["fieldRef"]["fieldPath"]] for one in container()["env"]
    }
    environ |= api.environ | {"OTELGPU_KUBERNETES_SERVICE_ACCOUNT": str(api.folder)}
    environ["OTELGPU_KUBERNETES_SOCKET"] = str(kubelet.path)
    with serving(H100, tmp_path, *container()["args"], environ=environ) as served:
        until(lambda: owners_on(lines_of(served.page())) == [("0", "", "a"), ("1", "", "b")], "the owners")
        until(lambda: "pod_uid=" in served.page(), "the UID")
        api.is_watched(2)
        (labels,) = (
            line.labels for line in lines_of(served.page()) if line.labels.get("pod_uid") and "err_code" in line.labels
        )
        probes = [
            served.get(container()[probe]["httpGet"]["path"]).status for probe in ("readinessProbe", "livenessProbe")
        ]
        assert served.stop() == 0
    granted = {
        (PATHS[group, resource], verb)
        for rule in objects()["ClusterRole"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }

    # Discovery is granted to everybody by Kubernetes itself.
    assert {(one.path, "watch" if one.is_watch else "list") for one in api.asked if one.path != GROUP} == granted
    assert (labels["team"], "other" in labels) == ("vision", False)
    assert probes == [200, 200]


def test_the_manifest_fits_together() -> None:
    """A name that is spelt in two ways is found by nobody until it runs."""
    found = objects()
    template = found["DaemonSet"]["spec"]["template"]
    account = found["ServiceAccount"]["metadata"]
    (port,) = container()["ports"]
    (mount,) = container()["volumeMounts"]
    (volume,) = template["spec"]["volumes"]
    (endpoint,) = found["PodMonitor"]["spec"]["podMetricsEndpoints"]

    assert template["spec"]["serviceAccountName"] == account["name"]
    assert [(one["name"], one["namespace"]) for one in found["ClusterRoleBinding"]["subjects"]] == [
        (account["name"], account["namespace"])
    ]
    assert found["ClusterRoleBinding"]["roleRef"]["name"] == found["ClusterRole"]["metadata"]["name"]
    assert found["DaemonSet"]["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert found["PodMonitor"]["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert endpoint["port"] == port["name"]
    assert endpoint["honorLabels"] is True
    assert port["containerPort"] == Config().server.listen[0].port
    assert mount["name"] == volume["name"]
    assert mount["mountPath"] == volume["hostPath"]["path"] == str(Path(KUBELET_SOCKET).parent)
