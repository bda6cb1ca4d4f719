"""What a GPU is paid for and used for: otelgpu_gpu_allocated and otelgpu_gpu_state."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from otelgpu.config import Jobs as JobSettings
from otelgpu.config import Kubernetes, Otlp
from otelgpu.export.page import Format
from otelgpu.export.push.setup import Push
from tests.fakekubelet import Kubelet, pod
from tests.fakenvml import Scenario, models
from tests.harness import LIMIT, Node, lines_of, until, values
from tests.push.collectors import collector
from tests.test_kubernetes import Starter, cluster, kubelet

__all__ = ["cluster", "kubelet"]  # the fixtures

UTILIZATION, MEMORY_INFO = "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo_v2"
MIB = 1024 * 1024
A100 = models.a100(2)
GPU = A100.gpus[0].uuid


def states(page: str, uuid: str = "hw_id") -> dict[str, str]:
    """The state of each device, by GPU and instance; the other three have to be 0."""
    found: dict[str, dict[str, float]] = {}
    for line in lines_of(page):
        if line.name == "otelgpu_gpu_state":
            device = line.labels.get(uuid) or "/".join(filter(None, (line.labels["gpu"], line.labels.get("GPU_I_ID"))))
            found.setdefault(device, {})[line.labels["state"]] = line.value
    for each in found.values():
        assert sorted(each.values()) == [0, 0, 0, 1], found
    return {device: next(state for state, value in each.items() if value) for device, each in found.items()}


def using(*, util: int | None = 0, used: int | None = 0) -> Scenario:
    """Two A100 (no GPM there), GPU 0 this busy (percent), and so many MiB of its memory in use; None: not told."""
    total = 40 * 1024 * MIB
    memory = None if used is None else (total, 0, total - used * MIB, used * MIB)
    answers = {UTILIZATION: None if util is None else (util, 0), MEMORY_INFO: memory, "nvmlDeviceGetMemoryInfo": None}
    return A100.with_gpu(0, answers=answers)


# What the driver tells of a GPU, and its state when a pod holds it and when none does. None: no state is shown.
STATES = [
    ({"util": 37, "used": 9000}, "in_use", "used_outside_kubernetes"),
    ({"util": 0, "used": 9000}, "allocated_idle", "used_outside_kubernetes"),
    ({"util": 0, "used": 3}, "allocated_idle", "unallocated"),
    ({"util": 0, "used": 64}, "allocated_idle", "unallocated"),
    ({"util": 0, "used": 65}, "allocated_idle", "used_outside_kubernetes"),
    ({"util": 1, "used": 0}, "in_use", "used_outside_kubernetes"),
    ({"util": None, "used": 9000}, "in_use", "used_outside_kubernetes"),
    ({"util": None, "used": 3}, "allocated_idle", "unallocated"),
    ({"util": 0, "used": None}, "allocated_idle", "unallocated"),
    ({"util": 5, "used": None}, "in_use", "used_outside_kubernetes"),
    ({"util": None, "used": None}, None, None),
]


@pytest.mark.parametrize(("told", "held", "free"), STATES)
def test_the_state_follows_what_the_gpu_does_and_whose_it_is(
    cluster: Starter, told: Mapping[str, int | None], held: str | None, free: str | None
) -> None:
    """A GPU that is paid for and idle, and one that somebody uses past Kubernetes, are what people look for."""
    started = cluster(using(**told), pod("a", GPU))
    with_pod = started.node.page()
    started.says()
    without = started.node.page()

    assert (states(with_pod).get("0"), states(without).get("0")) == (held, free)
    assert (values(with_pod, "otelgpu_gpu_allocated")["0"], values(without, "otelgpu_gpu_allocated")["0"]) == (1, 0)


def test_on_mig_each_instance_has_a_state_and_the_whole_has_none(cluster: Starter) -> None:
    """A partitioned GPU is given out in parts; counting it as well would count it twice."""
    scenario = models.h100_mig()
    second = scenario.gpus[0].instances[1]
    assert second is not None
    page = cluster(scenario, pod("a", second.uuid)).node.settled_page()
    allocated = {line.labels["GPU_I_ID"]: line.value for line in lines_of(page) if line.name == "otelgpu_gpu_allocated"}

    assert allocated == {"2": 0, "3": 1, "9": 0, "10": 0}
    assert states(page).keys() == {"0/2", "0/3", "0/9", "0/10"}
    assert states(page)["0/3"] in {"in_use", "allocated_idle"}


def test_an_instance_without_activity_is_told_by_its_memory(cluster: Starter) -> None:
    """An A100 has no activity by instance; that a program has it open is the next best that can be known."""
    scenario = models.a100_mig()
    used, empty = (each for each in scenario.gpus[0].instances[:2] if each is not None)
    scenario = scenario.with_instance(0, 0, memory_used=900 * MIB).with_instance(0, 1, memory_used=12 * MIB)
    page = cluster(scenario, pod("a", used.uuid), pod("b", empty.uuid)).node.settled_page()

    assert states(page)[f"0/{used.gi}"] == "in_use"
    assert states(page)[f"0/{empty.gi}"] == "allocated_idle"


def test_activity_that_was_not_told_this_time_leaves_the_state_open(cluster: Starter) -> None:
    """A question that failed may be answered the next time; memory that is held does not say that something runs."""
    started = cluster(using(util=5, used=9000), pod("a", GPU))
    started.node.page()
    started.node.show(using(util=5, used=9000).with_gpu(0, errors={UTILIZATION: 999}))
    page = started.node.page()

    assert "0" not in states(page)
    assert {line.labels["gap"] for line in lines_of(page) if line.name == "otelgpu_missing"} >= {"failed"}


def test_a_gpu_that_does_not_answer_has_no_state(cluster: Starter) -> None:
    """Whose it is, is known all the same."""
    started = cluster(using(util=5), pod("a", GPU))
    started.node.page()
    started.node.show(using(util=5).with_gpu(0, lost=True))
    page = started.node.page()

    assert states(page).keys() == {"1"}
    assert values(page, "otelgpu_gpu_allocated") == {"0": 1, "1": 0}


def test_readings_that_are_too_old_tell_no_state(cluster: Starter) -> None:
    """The state is of this moment; the table of owners is not that of the driver."""
    started = cluster(using(util=5), pod("a", GPU))
    snapshot = started.node.sweep()
    owners = started.node.pipeline.attribution.owners(snapshot)
    page = started.node.pipeline.reader.page(snapshot, Format.TEXT, shown=False, owners=owners).decode()

    assert states(page) == {}
    assert values(page, "otelgpu_gpu_allocated") == {"0": 1, "1": 0}


def test_before_the_kubelet_has_answered_nothing_is_said(cluster: Starter) -> None:
    """That no pod is known does not mean that no pod holds it."""
    started = cluster(using(util=5), pod("a", GPU), up=False)
    before = started.node.page()
    started.kubelet.start()
    until(lambda: states(started.node.page()).get("0") == "in_use", "the state")

    assert "otelgpu_gpu_allocated" not in before
    assert "otelgpu_gpu_state" not in before


def test_a_batch_job_is_a_use_outside_kubernetes(node: Callable[..., Node], kubelet: Kubelet, tmp_path: Path) -> None:
    """A node that serves both: a job holds nothing in Kubernetes."""
    (tmp_path / "0").write_text("41")
    kubelet.start()
    settings = Kubernetes(enabled=True, socket=str(kubelet.path))
    started = node(using(util=5), kubernetes=settings, jobs=JobSettings(dir=str(tmp_path)))
    assert started.pipeline.attribution.looked(LIMIT)

    assert states(started.page())["0"] == "used_outside_kubernetes"
    assert values(started.page(), "otelgpu_gpu_allocated") == {"0": 0, "1": 0}


def test_outside_kubernetes_there_is_no_state(node: Callable[..., Node]) -> None:
    """Nobody allocates anything there."""
    page = node(using(util=5)).page()

    assert "otelgpu_gpu_allocated" not in page
    assert "otelgpu_gpu_state" not in page


def test_the_semconv_page_tells_the_same(node: Callable[..., Node], kubelet: Kubelet) -> None:
    """Under OpenTelemetry's names of the device."""
    kubelet.pods = [pod("a", GPU)]
    kubelet.start()
    settings = Kubernetes(enabled=True, socket=str(kubelet.path))
    started = node(using(util=5), kubernetes=settings, naming="semconv")
    assert started.pipeline.attribution.looked(LIMIT)
    page = started.page()

    assert states(page, "hw_id")[GPU] == "in_use"
    assert values(page, "otelgpu_gpu_allocated", "hw_id")[GPU] == 1


def test_a_collector_is_told_too(node: Callable[..., Node], kubelet: Kubelet) -> None:
    """Over OTLP, with the pod of each owner beside it."""
    kubelet.pods = [pod("a", GPU)]
    kubelet.start()
    with collector() as sink:
        settings = Kubernetes(enabled=True, socket=str(kubelet.path))
        started = node(using(util=5), kubernetes=settings, otlp=Otlp(endpoint=sink.url))
        assert started.pipeline.attribution.looked(LIMIT)
        (push,) = started.pipeline.pushes
        assert isinstance(push, Push)
        push.pusher.start()
        push.reader.push()
        sink.expect(1)
    told = {
        point.attributes["state"]: point.value
        for point in sink.points("otelgpu.gpu.state")
        if point.attributes["hw.id"] == GPU
    }

    assert told == {"in_use": 1, "unallocated": 0, "allocated_idle": 0, "used_outside_kubernetes": 0}
