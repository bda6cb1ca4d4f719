"""The manifests on something as near to a node as one machine without a cluster can be.

The pods run over a read-only root, without capabilities and with process ids of their own, one as another user. They
ask a kubelet at its real place, and are found by a Prometheus that looks at their annotations.
"""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.deploy import kustomize
from tests.deploy.confined import child_of, confined, needs_namespaces
from tests.deploy.containers import TOLD, container, daemonset, environ_of
from tests.fakekubelet import Kubelet, pod
from tests.fakenvml import models
from tests.harness import LIMIT, Served, serving, status_of, until
from tests.test_prometheus import Prometheus, Series, started

KUBERNETES = ROOT / "deploy" / "kubernetes"
SCRAPES = ROOT / "examples" / "prometheus-kubernetes.yml"
NODE = models.h100(2)
POD_RESOURCES = "/var/lib/kubelet/pod-resources"


@pytest.fixture
def kubelet(open_folder: Path) -> Iterator[Kubelet]:
    """A kubelet of whose pods one holds a GPU; as on a node, its folder is root's."""
    place = open_folder / "kubelet"
    place.mkdir(mode=0o750)
    made = Kubelet(place / "kubelet.sock", [pod("train", NODE.gpus[1].uuid)])
    made.start()
    yield made
    made.stop()


def found(objects: list[Any], served: Served) -> Any:
    """What Kubernetes would tell Prometheus of a pod."""
    about = daemonset(objects)["spec"]["template"]["metadata"]
    labels = {
        f"__meta_kubernetes_pod_{kind}_{re.sub(r'[^a-zA-Z0-9]', '_', name)}": text
        for kind in ("label", "annotation")
        for name, text in about.get(f"{kind}s", {}).items()
    }
    labels["__meta_kubernetes_pod_annotation_prometheus_io_port"] = str(served.port)  # 9400, if it were alone here
    labels |= {"__meta_kubernetes_pod_phase": "Running", "__meta_kubernetes_pod_node_name": TOLD["spec.nodeName"]}
    labels |= {
        "__meta_kubernetes_namespace": TOLD["metadata.namespace"],
        "__meta_kubernetes_pod_name": TOLD["metadata.name"],
    }
    return {"targets": ["127.0.0.1"], "labels": labels}


def answered(running: Prometheus, text: str) -> dict[Series, float]:
    """Wait for an answer that is not empty."""
    answers: list[dict[Series, float]] = []

    def is_there() -> bool:
        answers.append(running.query(text))
        return answers[-1] != {}

    until(is_there, f"an answer to {text}", LIMIT * 2)
    return answers[-1]


def test_a_node_from_its_manifests_to_prometheus(prometheus: Path, open_folder: Path, kubelet: Kubelet) -> None:
    """Without rights, and with those of the overlay for pods; both end at once when they are told to."""
    needs_namespaces()
    plain = kustomize.build(KUBERNETES / "overlays" / "annotations")
    pods = kustomize.build(KUBERNETES / "overlays" / "pods")
    (open_folder / "plain").mkdir()
    (open_folder / "pods").mkdir()
    programs = [
        confined(container(plain)["securityContext"], {}, open_folder / "plain"),
        confined(container(pods)["securityContext"], {POD_RESOURCES: kubelet.path.parent}, open_folder / "pods"),
    ]
    with (
        serving(NODE, open_folder / "plain", environ=environ_of(container(plain)), program=programs[0]) as first,
        serving(NODE, open_folder / "pods", environ=environ_of(container(pods)), program=programs[1]) as second,
    ):
        inside = [child_of(served.process.pid) for served in (first, second)]
        kept = [status_of(process) for process in inside]
        roots = [Path(f"/proc/{process}/mountinfo").read_text().splitlines() for process in inside]
        config = yaml.safe_load(SCRAPES.read_text())
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "900ms"}
        del config["scrape_configs"][0]["kubernetes_sd_configs"]  # Debian's Prometheus has none
        config["scrape_configs"][0]["file_sd_configs"] = [{"files": [str(open_folder / "targets.json")]}]
        other = found(plain, first)
        other["labels"]["__meta_kubernetes_pod_label_app_kubernetes_io_name"] = "other"
        # The overlay for pods alone has no annotations: both are scraped as the first says.
        both = [found(plain, first), found(plain, second), other]
        (open_folder / "targets.json").write_text(json.dumps(both))
        (open_folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        with started(prometheus, open_folder / "prometheus.yml", open_folder / "prometheus.log") as running:
            gpus = answered(running, "count by (__name__) (DCGM_FI_DEV_GPU_TEMP) == 4")
            owners = answered(running, 'count by (__name__, node, namespace, pod, gpu) (DCGM_FI_DEV_FB_USED{pod!=""})')
            targets = running.query("count by (__name__) (up)")
            strangers = running.query('{__name__=~"DCGM_.*|otelgpu_.*", pod!="", pod!="train"}')
            strangers |= running.query('{__name__=~".+", exported_pod!=""}')
        for process in inside:
            os.kill(process, signal.SIGTERM)
        ended = [served.process.wait(LIMIT) for served in (first, second)]

    assert [one["Uid"].split()[0] for one in kept] == ["65534", "0"]
    for one in kept:
        assert {one[name].strip("0") for name in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")} == {""}
        assert one["NoNewPrivs"] == "1"
        assert one["NSpid"].split()[-1] == "1"  # a process that has to see to its signals itself
    assert all(any(" / / ro" in line for line in lines) for lines in roots)
    assert list(targets.values()) == [2]
    assert list(gpus.values()) == [4]
    assert [dict(labels) for _, labels in owners] == [
        {"node": "node-1", "namespace": "team", "pod": "train", "gpu": "1"}
    ]
    assert strangers == {}
    assert ended == [0, 0]
