"""deploy/kubernetes: what it grants, sets and asks for is what the program needs, takes and answers."""

import copy
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from otelgpu.config import Config
from otelgpu.config.owning import KUBELET_SOCKET
from tests.conftest import ROOT
from tests.deploy import helm, kustomize
from tests.deploy.checks import OPERATOR, VERSIONS, misfits, problems
from tests.deploy.containers import container, containers, daemonset, environ_of
from tests.fakeapi import GROUP, PODS, ApiServer, gpu_device, pod_object, slice_object
from tests.fakekubelet import Kubelet, claiming, pod
from tests.harness import lines_of, serving, until
from tests.test_kubernetes import GPU_0, GPU_1, H100, kubelet, owners_on
from tests.test_kubernetes_api import api, papers

__all__ = ["api", "kubelet", "papers"]  # the fixtures

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(path.name for path in (FOLDER / "overlays").iterdir())
# The paths of the API that a rule of RBAC is about.
PATHS = {("", "pods"): PODS, ("resource.k8s.io", "resourceslices"): f"{GROUP}/v1/resourceslices"}
Json = dict[str, Any]


_built = cache(kustomize.build)


def overlay(name: str) -> list[Json]:
    return copy.deepcopy(_built(FOLDER / "overlays" / name))


def by_name(objects: list[Json]) -> list[Json]:
    return sorted(objects, key=lambda one: (one["kind"], one["metadata"]["name"]))


def builder() -> list[str]:
    """A program that builds overlays."""
    for command in (["kubectl", "kustomize"], ["kustomize", "build"]):
        if shutil.which(command[0]) is not None:
            return command
    pytest.skip("neither kubectl nor kustomize is installed")


@pytest.mark.parametrize("name", [*OVERLAYS, "../base"])
def test_kubernetes_takes_an_overlay(name: str) -> None:
    """A key that is spelt wrong is passed over by Kubernetes, and missed when it matters."""
    objects = overlay(name)

    assert list(problems(objects)) == []
    assert list(misfits(objects)) == []


def test_what_kubernetes_would_not_take_is_found() -> None:
    """The checks themselves would notice."""
    objects = overlay("tls")
    template = daemonset(objects)["spec"]["template"]
    template["spec"]["hostPid"] = True
    template["spec"]["containers"][0]["volumeMounts"][0]["name"] = "webb"
    template["metadata"]["labels"] = {"app.kubernetes.io/name": "other"}
    for one in objects:
        if one["kind"] in OPERATOR:
            one["spec"]["honorLabels"] = True

    said = list(problems(objects))
    assert len(said) == len(VERSIONS) + len(OPERATOR), said
    assert set(misfits(objects)) == {
        "DaemonSet selects other pods",
        "Service selects other pods",
        "NetworkPolicy selects other pods",
        "volumes and where they are mounted differ",
    }


def test_every_component_has_an_overlay_and_is_combined_freely(tmp_path: Path) -> None:
    """All at once is the hardest case: whatever one of them sets, no other takes away."""
    components = sorted(path.name for path in (FOLDER / "components").iterdir())
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    folder = tmp_path / "kubernetes" / "overlays" / "all"
    folder.mkdir()
    said = {"resources": ["../../base"], "components": [f"../../components/{name}" for name in components]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(said))
    objects = kustomize.build(folder)
    variables = set(environ_of(container(objects)))

    assert components == OVERLAYS
    assert list(problems(objects)) == list(misfits(objects)) == []
    for name in components:
        assert set(environ_of(container(overlay(name)))) <= variables


def test_no_two_components_contradict_each_other() -> None:
    """Of two that do the one that comes last would win, and nobody thinks of their order."""
    said: dict[str, Any] = {}
    contradictions = []
    for path in sorted(FOLDER.glob("components/*/daemonset.yaml")):
        for key, value in keys(yaml.safe_load(path.read_text())):
            if said.setdefault(key, value) != value:
                contradictions.append((path.parent.name, key, value))

    assert "spec.template.spec.containers.otelgpu.resources.limits.memory" in said
    assert contradictions == []


def keys(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key that a patch sets, entries of lists by what they are told apart by."""
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        value = {one.get("name") if "mountPath" not in one else one["mountPath"]: one for one in value}
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from keys(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value


@pytest.mark.parametrize("name", OVERLAYS)
def test_kustomize_builds_the_same(name: str) -> None:
    """What the other tests look at is what `kubectl apply -k` would apply."""
    done = subprocess.run(
        [*builder(), str(FOLDER / "overlays" / name)], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert by_name(list(yaml.safe_load_all(done.stdout))) == by_name(overlay(name))


@pytest.fixture
def examples(tmp_path: Path) -> list[list[Json]]:
    """What is built from each kustomization in docs/kubernetes.md, in their order."""
    command = builder()
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    here = os.path.relpath(FOLDER, tmp_path / "0")
    found = []
    for number, example in enumerate(re.findall(r"```yaml\n# kustomization.yaml.*?\n(.*?)```", text, re.DOTALL)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "kustomization.yaml").write_text(re.sub(r"https:\S+?//deploy/kubernetes", here, example))
        done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        found.append(list(yaml.safe_load_all(done.stdout)))
    return found


def test_the_examples_of_the_documentation_are_built(examples: list[list[Json]]) -> None:
    """What everybody has to write: another namespace, another image, settings, less rights or more, over components."""
    assert [[*problems(objects), *misfits(objects)] for objects in examples] == [[]] * 3
    own, mig, operator = examples

    assert {one["kind"] for one in own} >= {"ServiceMonitor", "ClusterRoleBinding"}
    assert daemonset(own)["metadata"]["namespace"] == "gpu-monitoring"
    assert container(own)["image"] == "registry.example.com/otelgpu:0.1.0"
    assert environ_of(container(own))["OTELGPU_SAMPLING_INTERVAL"] == "15s"
    (policy,) = (one["spec"] for one in own if one["kind"] == "NetworkPolicy")
    there = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert policy["ingress"] == [{"from": [there], "ports": [{"port": "metrics"}]}]

    # The same as the chart's, which says why in its values.
    theirs = container(helm.render({"mig": {"monitor": True, "sysAdmin": True}})[0])
    assert container(mig)["securityContext"] == theirs["securityContext"]
    assert environ_of(container(mig))["NVIDIA_MIG_MONITOR_DEVICES"] == "all"

    assert [one["name"] for one in containers(operator)] == ["dcgm-library", "otelgpu"]
    assert is_restricted(operator)
    assert environ_of(container(operator))["OTELGPU_DCGM_ADDRESS"] == "nvidia-dcgm.gpu-operator.svc:5555"


def test_the_quota_of_the_documentation_is_for_the_class_of_the_pods() -> None:
    """Without one for it no pod is made on Google's clusters."""
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    (quota,) = (yaml.safe_load(one) for one in re.findall(r"```yaml\n(apiVersion.*?)```", text, re.DOTALL))
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    pods = daemonset(overlay("pods"))

    assert list(problems([quota])) == []
    assert scope["values"] == [pods["spec"]["template"]["spec"]["priorityClassName"]]
    assert quota["metadata"]["namespace"] == pods["metadata"]["namespace"]


def test_kubectl_reads_every_daemonset(tmp_path: Path) -> None:
    """Kubernetes' own types, without a cluster."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    files = []
    for name in OVERLAYS:
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(daemonset(overlay(name))))
        files += ["-f", str(path)]
    command = ["kubectl", "set", "image", "--local", *files, "otelgpu=registry/otelgpu:1", "-o", "name"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert done.stderr == ""
    assert done.stdout.split() == ["daemonset.apps/otelgpu"] * len(OVERLAYS)


# User, capabilities, and what else a cluster's administrator looks at.
PLAIN = (65534, (), ())
RIGHTS: Mapping[str, tuple[int, tuple[str, ...], tuple[str, ...]]] = {
    "annotations": PLAIN,
    "cdi": PLAIN,
    "dcgm": PLAIN,
    "mig": PLAIN,
    "otlp": PLAIN,
    "pod-metadata": (0, (), ("token", "ClusterRole", "hostPath")),
    "pods": (0, (), ("hostPath",)),
    "processes": (0, (), ("hostPID", "token", "ClusterRole", "hostPath")),
    "prometheus-operator": PLAIN,
    "runtime-class": PLAIN,
    "tls": PLAIN,
}


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_asks_for_no_more_rights_than_it_says(name: str) -> None:
    """docs/kubernetes.md has this table; a right that slips in is seen here."""
    objects = overlay(name)
    spec = daemonset(objects)["spec"]["template"]["spec"]
    context = container(objects)["securityContext"]
    more = [key for key in ("hostPID", "hostNetwork", "hostIPC") if spec.get(key)]
    more += ["token"] if spec["automountServiceAccountToken"] else []
    more += ["ClusterRole"] if any(one["kind"] == "ClusterRole" for one in objects) else []
    more += ["hostPath"] if any("hostPath" in volume for volume in spec.get("volumes", ())) else []

    assert (context["runAsUser"], tuple(context["capabilities"].get("add", ())), tuple(more)) == RIGHTS[name]
    assert context["runAsNonRoot"] is (context["runAsUser"] != 0)
    assert context["capabilities"]["drop"] == ["ALL"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "privileged" not in context


def test_only_the_engine_of_dcgm_has_a_capability() -> None:
    """It profiles, for which the driver wants SYS_ADMIN; whoever serves a page to the network has no part in that."""
    rights = {
        (name, one["name"]): (one["securityContext"]["runAsUser"], one["securityContext"]["capabilities"])
        for name in OVERLAYS
        for one in containers(overlay(name))
        if one["name"] != "otelgpu"
    }

    assert rights == {
        ("dcgm", "dcgm-library"): (65534, {"drop": ["ALL"]}),
        ("dcgm", "dcgm"): (0, {"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
    }


def test_the_words_say_where_pod_security_lets_a_pod_in() -> None:
    """An overlay that they call restricted, and that is not, makes no pod at all in such a namespace."""
    text = " ".join((ROOT / "docs" / "kubernetes.md").read_text().split())
    match = re.search(r"Under Pod Security admission the base and (.*?) pass as `restricted`", text)
    assert match is not None

    assert sorted(re.findall(r"`(.*?)`", match[1])) == [name for name in OVERLAYS if is_restricted(overlay(name))]


def is_restricted(objects: list[Json]) -> bool:
    """Whether the profile `restricted` of the Pod Security Standards has nothing against the pods."""
    spec = daemonset(objects)["spec"]["template"]["spec"]
    contexts = [one["securityContext"] for one in containers(objects)]
    return (
        not any(spec.get(key) for key in ("hostPID", "hostNetwork", "hostIPC"))
        and all({*volume} <= {"name", "configMap", "secret", "emptyDir"} for volume in spec.get("volumes", ()))
        and all(one["runAsNonRoot"] and one["runAsUser"] and not one["allowPrivilegeEscalation"] for one in contexts)
        and all(one["capabilities"] == {"drop": ["ALL"]} for one in contexts)
        and all(one["seccompProfile"]["type"] == "RuntimeDefault" for one in contexts)
    )


def test_the_engine_of_dcgm_is_where_otelgpu_asks() -> None:
    """At an address that nobody outside of the pod reaches, with the library that was copied, both of one release."""
    objects = overlay("dcgm")
    library, engine = (one for one in containers(objects) if one["name"] != "otelgpu")
    told = environ_of(container(objects))
    given = dict(zip(engine["args"][1::2], engine["args"][2::2], strict=False))

    assert told["OTELGPU_DCGM_ADDRESS"] == f"{given['-b']}:{given['-p']}" == "127.0.0.1:5555"
    assert library["command"][-1].endswith(f" {told['OTELGPU_DCGM_LIBRARY']}/")
    assert library["image"] == engine["image"]


def test_the_role_grants_what_is_asked_and_nothing_else(kubelet: Kubelet, api: ApiServer, tmp_path: Path) -> None:
    """Run as the manifest says: each right is used, and nothing is asked that it does not give."""
    objects = overlay("pod-metadata")
    api.put(pod_object("a", team="vision", other="x"), pod_object("otelgpu-x7", namespace="monitoring"))
    api.put(slice_object("s", gpu_device("gpu-1", GPU_1)), path="slices")
    api.start()
    kubelet.pods = [pod("a", GPU_0), pod("otelgpu-x7", GPU_0, namespace="monitoring"), claiming("b", "gpu-1")]
    kubelet.start()
    environ = environ_of(container(objects))
    environ |= api.environ | {"OTELGPU_KUBERNETES_SERVICE_ACCOUNT": str(api.folder)}
    environ["OTELGPU_KUBERNETES_SOCKET"] = str(kubelet.path)
    with serving(H100, tmp_path, environ=environ) as served:
        until(lambda: owners_on(lines_of(served.page())) == [("0", "", "a"), ("1", "", "b")], "the owners")
        until(lambda: "pod_uid=" in served.page(), "the UID")
        api.is_watched(2)
        (labels,) = (
            line.labels for line in lines_of(served.page()) if line.labels.get("pod_uid") and "err_code" in line.labels
        )
        probes = [
            served.get(container(objects)[probe]["httpGet"]["path"]).status
            for probe in ("readinessProbe", "livenessProbe")
        ]
        assert served.stop() == 0
    (role,) = (one for one in objects if one["kind"] == "ClusterRole")
    granted = {
        (PATHS[group, resource], verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }

    # Discovery is granted to everybody by Kubernetes itself.
    assert {(one.path, "watch" if one.is_watch else "list") for one in api.asked if one.path != GROUP} == granted
    assert (labels["team"], "other" in labels) == ("vision", False)
    assert probes == [200, 200]


def test_the_manifest_has_the_defaults_of_the_program() -> None:
    """The port and the socket are not set, so they have to be what the program takes by itself."""
    found = container(overlay("pods"))
    (port,) = found["ports"]
    (mount,) = found["volumeMounts"]

    assert port["containerPort"] == Config().server.listen[0].port
    assert mount["mountPath"] == str(Path(KUBELET_SOCKET).parent)
