"""Dashboards on a real Prometheus that scrapes our page: a query without an answer is an empty panel.

Rule 1: the node has everything that a panel is about: work, pods, processes, a lost GPU, bad memory, throttling.
Rule 2: the queries of dcgm-exporter's own dashboard are a table of what each asks for, written from its meaning.
"""

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from otelgpu.config import Kubernetes, Processes, load
from tests.conftest import ROOT
from tests.deploy import kustomize
from tests.deploy.containers import container, environ_of
from tests.fakekubelet import Kubelet, pod
from tests.fakenvml import Scenario, models
from tests.fakenvml.scenario import Process
from tests.fakeproc import FakeProc, pod_path
from tests.harness import LIMIT, Node, until, values
from tests.test_deploy_prometheus import in_promql, queries
from tests.test_kubernetes import kubelet
from tests.test_prometheus import Prometheus, scraping
from tests.webserver import here

__all__ = ["kubelet"]  # the fixture

GIB = 1 << 30
IDLE, WORN, LOST = 1, 2, 3  # GPUs of the node; GPU 0 works for a pod
THROTTLED = (pynvml.NVML_FI_DEV_PERF_POLICY_POWER, pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL)

# Grafana's dashboard 12239, of dcgm-exporter: aggregation, metric, factor, labels that remain. $Hostname and $gpu
# narrow each of them down, and are the values of these labels on DCGM_FI_DEV_FB_FREE.
DEVICE, INSTANCE = "Hostname, gpu, UUID", "Hostname, gpu, GPU_I_ID, GPU_I_PROFILE"
PANELS_12239 = (
    ("max", "DEV_GPU_TEMP", 1, DEVICE),
    ("avg", "DEV_GPU_TEMP", 1, ""),
    ("max", "DEV_POWER_USAGE", 1, DEVICE),
    ("max", "DEV_POWER_USAGE", 1, "gpu"),
    ("max", "DEV_SM_CLOCK", 1_000_000, DEVICE),
    ("max", "PROF_GR_ENGINE_ACTIVE", 1, INSTANCE),
    ("max", "PROF_PIPE_TENSOR_ACTIVE", 1, INSTANCE),
    ("max", "DEV_FB_USED", 1, INSTANCE),
)


def machine() -> Scenario:
    """Four H100, of which a pod uses one and another pod holds one that does nothing."""
    scenario = models.h100(4).with_gpu(0, processes=(Process(11, 3 * GIB),))
    nothing = dict.fromkeys(scenario.gpus[IDLE].gpm, 0.0)
    return scenario.with_gpu(IDLE, answers={"nvmlDeviceGetUtilizationRates": (0, 0)}, gpm=nothing)


def broken(sound: Scenario) -> Scenario:
    """The same: one GPU is held down by heat and its power limit, and one has worn memory."""
    hot = sound.with_gpu(0, fields=dict.fromkeys(THROTTLED, 1 << 40))
    return hot.with_gpu(WORN, fields={pynvml.NVML_FI_DEV_REMAPPED_FAILURE: 1}).with_xid(0, 48)


@pytest.fixture
def scraped(
    prometheus: Path, node: Callable[..., Node], kubelet: Kubelet, tmp_path: Path
) -> Iterator[tuple[Node, Prometheus]]:
    """A node as the manifests set it up, with processes as well, and a Prometheus that has scraped it."""
    sound = machine()
    kubelet.pods = [pod("train", sound.gpus[0].uuid), pod("notebook", sound.gpus[IDLE].uuid)]
    kubelet.start()
    (tmp_path / "proc").mkdir()
    proc = FakeProc(tmp_path / "proc")
    proc.run(11, pod_path(1))
    manifests = container(kustomize.build(ROOT / "deploy" / "kubernetes" / "base"))
    running = node(
        sound,
        compat="4.8.2",
        fields=load(environ=environ_of(manifests)).fields,
        kubernetes=Kubernetes(enabled=True, socket=str(kubelet.path), refresh=3600, expire=3600),
        processes=Processes(by="process", proc_root=str(proc.folder)),
    )
    assert running.pipeline.attribution.looked(LIMIT)
    with here(running) as served, scraping(prometheus, tmp_path, "    honor_labels: true\n", otelgpu=served) as found:
        until(lambda: len(found.query("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")) == 4, "the GPUs in Prometheus", 2 * LIMIT)
        yield running, found


def shows_what_the_page_says(running: Node, found: Prometheus) -> None:
    """Ask what 12239 asks, with the variables that it fills from our series: each panel has each GPU and its value."""
    known = [dict(labels) for _, labels in found.query("DCGM_FI_DEV_FB_FREE")]
    hosts, gpus = ("|".join(sorted({labels[name] for labels in known})) for name in ("Hostname", "gpu"))
    chosen = f'{{Hostname=~"{hosts}", gpu=~"{gpus}"}}'
    page = running.page()

    assert (hosts, gpus) == ("node-1", "0|1|2|3")
    for over, metric, factor, by in PANELS_12239:
        answer = found.query(f"{over}(DCGM_FI_{metric}{chosen} * {factor}) by ({by})")
        shown = {dict(labels).get("gpu", "all"): value for (_, labels), value in answer.items()}
        told = {gpu: value * factor for gpu, value in values(page, f"DCGM_FI_{metric}").items()}
        assert len(told) == 4, metric
        assert shown == (told if by else {"all": statistics.mean(told.values())}), metric


def test_every_panel_of_every_dashboard_has_something_to_show(scraped: tuple[Node, Prometheus]) -> None:
    """First of a sound node, then of one on which everything happens, when the alerts are evaluated as well.

    One test, since Prometheus takes five seconds before it scrapes anything.
    """
    running, found = scraped
    shows_what_the_page_says(running, found)
    running.show(bad := broken(machine()))
    for slow in ("DCGM_EXP_XID_ERRORS_COUNT > 0", "rate(DCGM_FI_DEV_THERMAL_VIOLATION[1m]) > 0"):
        until(lambda asked=slow: bool(found.query(asked)), slow, 2 * LIMIT)  # type: ignore[misc]
    running.show(bad.with_gpu(LOST, lost=True))
    until(lambda: bool(found.query("otelgpu_gpu_lost_timestamp_seconds")), "the lost GPU", 2 * LIMIT)
    answers = [(one, found.query(in_promql(one.expr))) for one in queries()]
    empty = {f"{one.place}: {one.expr}" for one, answer in answers if ".json" in one.place and not answer}
    firing = {one.place for one, answer in answers if ".json" not in one.place and answer}
    of_gpus = {"GpuDown", "GpuXidError", "GpuRowRemapFailed", "GpuThrottledByHeat", "GpuHeldAndIdle"}

    assert len(answers) > 50
    assert empty == set()
    assert firing == {*of_gpus, "OtelgpuAttributionDown"}  # no API server tells whose the processes are
