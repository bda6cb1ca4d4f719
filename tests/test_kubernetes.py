"""Pods on the page: from what a kubelet answers over its socket to the labels that Prometheus reads."""

import logging
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import grpc
import pytest

from otelgpu.attribution.kubelet import Allocation, KubeletError
from otelgpu.attribution.kubelet import Kubelet as Client
from otelgpu.attribution.messages import allocations_in
from otelgpu.attribution.owners import Attribution
from otelgpu.attribution.podresources_pb2 import GetRequest, GetResponse, ListResponse, Pod
from otelgpu.attribution.pods import SETTLES, Pods, own_pod_of
from otelgpu.config import Config, Kubernetes, Limits, Otlp
from otelgpu.export.page import Format
from otelgpu.export.push.setup import Push
from tests.conftest import ROOT, Golden
from tests.fakekubelet import Kubelet, holding, pod
from tests.fakenvml import Scenario, models
from tests.harness import LIMIT, Line, Node, lines_of, serving, until, values
from tests.push.collectors import collector, pairs
from tests.test_page import OWN

H100 = models.h100(2)
GPU_0, GPU_1 = (gpu.uuid for gpu in H100.gpus)
MIG = models.a100_mig()  # GPU 0 with instances 7, 9 and 5, GPU 1 whole
PARENT, WHOLE = (gpu.uuid for gpu in MIG.gpus)
MIG_7, MIG_9, MIG_5 = (one.uuid for one in MIG.gpus[0].instances if one is not None)
TEMPERATURE, MEMORY = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_FB_USED"
FOR_EVER = 3600.0

Who = tuple[str, str, str]  # GPU, instance, pod


@dataclass
class Cluster:
    """A node of Kubernetes: GPUs with the fake driver, and a kubelet."""

    node: Node
    kubelet: Kubelet

    def owners(self) -> list[Who]:
        """Who owns what, from the memory series of a fresh page."""
        return sorted(owners_on(lines_of(self.node.page())))

    def says(self, *pods: Pod) -> None:
        """Have the kubelet answer this, and wait until it has arrived."""
        self.kubelet.pods = list(pods)
        self.ask()

    def ask(self) -> None:
        """Have the kubelet asked once more, and wait for the end of it."""
        pods = self.node.pipeline.attribution.pods
        assert pods is not None
        before = pods.finished
        pods.hurry()
        until(lambda: pods.finished > before, "an answer")


def owners_on(lines: Iterable[Line], name: str = MEMORY) -> list[Who]:
    """GPU, instance and pod of each sample of a family that has a pod."""
    return [
        (line.labels["gpu"], line.labels.get("GPU_I_ID", ""), line.labels["pod"])
        for line in lines
        if line.name == name and "pod" in line.labels
    ]


@pytest.fixture
def kubelet(open_folder: Path) -> Iterator[Kubelet]:
    """A kubelet that is not started yet; its socket has a short path, as sockets need."""
    made = Kubelet(open_folder / "kubelet.sock")
    yield made
    made.stop()


Starter = Callable[..., Cluster]


@pytest.fixture
def cluster(node: Callable[..., Node], kubelet: Kubelet) -> Starter:
    """Start a node of Kubernetes: `cluster(scenario, pod(...), refresh=1)`. Nothing is asked at a pace by default."""

    def start(
        scenario: Scenario, *pods: Pod, up: bool = True, fields: tuple[str, ...] = Config().fields, **settings: object
    ) -> Cluster:
        kubelet.pods = list(pods)
        if up:
            kubelet.start()
        changes = {"enabled": True, "socket": str(kubelet.path), "refresh": FOR_EVER, "expire": FOR_EVER} | settings
        started = node(scenario, fields=fields, kubernetes=Kubernetes(**changes))  # type: ignore[arg-type]
        assert started.pipeline.attribution.looked(LIMIT)
        return Cluster(started, kubelet)

    return start


def asked_in_vain(started: Cluster) -> Pods:
    """Let the kubelet hang, and whoever asks it wait there."""
    started.kubelet.hang()
    asked = started.kubelet.asked
    pods = started.node.pipeline.attribution.pods
    assert pods is not None
    pods.hurry()
    started.kubelet.was_asked(asked + 1)
    return pods


# ---- what is shown


def test_the_page_of_a_node_with_pods_is_as_reviewed(cluster: Starter, golden: Golden) -> None:
    """Pods on instances, on a whole GPU, and two that share one: every label of every series is seen and meant."""
    text = cluster(
        MIG,
        pod("train-0", MIG_7, resource="nvidia.com/mig-1g.5gb"),
        pod("infer-0", MIG_9, resource="nvidia.com/mig-1g.5gb"),
        pod("notebook-a", f"{WHOLE}::0", resource="nvidia.com/gpu.shared"),
        pod("notebook-b", f"{WHOLE}::1", resource="nvidia.com/gpu.shared"),
    ).node.settled_page()

    golden("page/kubernetes.txt", readings_of(text))


def test_the_page_with_virtual_gpus_is_as_reviewed(cluster: Starter, golden: Golden) -> None:
    """The copies of dcgm-exporter's sharing mode, for those who depend on them."""
    text = cluster(
        MIG,
        pod("train-0", f"{MIG_7}::3", resource="nvidia.com/mig-1g.5gb.shared"),
        pod("notebook-a", f"{WHOLE}::0", resource="nvidia.com/gpu.shared"),
        pod("notebook-b", f"{WHOLE}::1", resource="nvidia.com/gpu.shared"),
        virtual_gpus=True,
    ).node.settled_page()

    golden("page/kubernetes_virtual.txt", readings_of(text))


def readings_of(text: str) -> str:
    return "".join(
        f"{line}\n"
        for line in text.splitlines()
        if not OWN.match(line) and not line.startswith("otelgpu_attribution_age")
    )


# Every form of an id, and whose series it has to label: GPU and instance.
FORMS: Mapping[str, tuple[str, tuple[str, str]]] = {
    "GPU-<uuid>": (WHOLE, ("1", "")),
    "<index>": ("1", ("1", "")),
    "MIG-<uuid>": (MIG_9, ("0", "9")),
    "MIG-GPU-<parent uuid>/<gi>/<ci>": (f"MIG-{PARENT}/5/0", ("0", "5")),
    "<id>::<replica>": (f"{WHOLE}::3", ("1", "")),
    "MIG-<uuid>::<replica>": (f"{MIG_7}::7", ("0", "7")),
    "MIG-GPU-<parent uuid>/<gi>/<ci>::<replica>": (f"MIG-{PARENT}/7/0::2", ("0", "7")),
    "<uuid>-<replica>": (f"{WHOLE}-0", ("1", "")),
    "MIG-<uuid>-<replica>": (f"{MIG_5}-12", ("0", "5")),
    "nvidia<N>": ("nvidia1", ("1", "")),
    "nvidia<N>/vgpu<R>": ("nvidia1/vgpu3", ("1", "")),
    "nvidia<N>/gi<M>": ("nvidia0/gi7", ("0", "7")),
    "nvidia<N>/gi<M>/vgpu<R>": ("nvidia0/gi9/vgpu1", ("0", "9")),
}


def test_an_id_is_recognised_in_every_form(cluster: Starter) -> None:
    """Each device plugin has its own ids; none of them should take a switch to be understood."""
    started = cluster(MIG)
    for form, (device_id, device) in FORMS.items():
        started.says(pod("a", device_id))

        assert started.owners() == [(*device, "a")], form


def test_every_form_that_was_recorded_is_in_the_table(recordings: Path) -> None:
    """The recorded forms are what plugins in the field hand out."""
    rows = (recordings / "pod-resources" / "id-forms.tsv").read_text().splitlines()[1:]
    forms = {row.split("\t")[0] for row in rows}

    assert {form for form in forms if not form.startswith(("DRA", "CDI", "resource"))} <= FORMS.keys()


@pytest.mark.parametrize(
    "device_id",
    [
        *(
            "",
            "GPU-",
            "GPU-0",
            "2",
            "nvidia2",
            "nvidia1/gi7",
            "nvidia0/gi8",
            "nvidia",
            "::1",
            "-1",
            "a::1::2",
            "9" * 50,
        ),
        *(
            f"MIG-{PARENT}/8/0",
            f"MIG-{WHOLE}/7/0",
            f"x{WHOLE}",
            f"{WHOLE}::",
            f"{WHOLE}/vgpu1",
            "\N{ARABIC-INDIC DIGIT ONE}",
            pytest.param(f"nvidia0/gi{'9' * 5000}", id="a number without end"),
            pytest.param(f"{WHOLE}{'-1' * 2000}", id="replicas without end"),
        ),
    ],
)
def test_an_id_that_means_no_device_here_owns_nothing(cluster: Starter, device_id: str) -> None:
    """A wrong owner is worse than no owner."""
    started = cluster(MIG, pod("a", device_id))

    assert started.owners() == []
    assert values(started.node.page(), "otelgpu_attribution_unmatched_devices", "source") == {"kubelet": 1}


def test_a_device_file_is_found_by_its_minor_number(cluster: Starter) -> None:
    """nvidia1 is /dev/nvidia1, which on some machines is not the GPU that NVML counts as 1."""
    swapped = H100.with_gpu(0, minor=1).with_gpu(1, minor=0)
    started = cluster(swapped, pod("a", "nvidia1"), pod("b", "nvidia0/vgpu0"))

    assert started.owners() == [("0", "", "a"), ("1", "", "b")]


def test_a_device_file_whose_number_nobody_tells_is_no_device(cluster: Starter) -> None:
    """That NVML counts in the order of the files is a guess, and a wrong owner is worse than none."""
    untold = H100.with_gpu(0, minor=1).with_gpu(1, errors={"nvmlDeviceGetMinorNumber": 999})
    started = cluster(untold, pod("a", "nvidia1"), pod("b", "nvidia0"))

    assert started.owners() == [("0", "", "a")]


def test_a_uuid_that_ends_in_digits_is_not_taken_for_a_replica(cluster: Starter) -> None:
    """The last group of a UUID may hold digits only, and then looks like the suffix that some plugins add."""
    uuid = "GPU-11111111-2222-4333-8444-555555555555"
    scenario = H100.with_gpu(0, uuid=uuid)
    started = cluster(scenario, pod("a", uuid), pod("b", "GPU-11111111-2222-4333-8444"))

    assert started.owners() == [("0", "", "a")]


@pytest.mark.parametrize(
    ("resource", "owned"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/gpu.shared", True),
        ("nvidia.com/mig-1g.5gb", True),
        ("nvidia.com/mig-1g.5gb.me", True),
        ("nvidia.com/mig-1g.10gb.shared", True),
        ("example.com/gpu", True),
        ("example.com/gpu.shared", True),
        ("vendor.io/a100-large", True),
        ("vendor.io/nic-large", False),
        ("nvidia.com/hostdev", False),
        ("nvidia.com/gpus", False),
        ("intel.com/gpu", False),
        ("", False),
    ],
)
def test_gpus_are_told_by_the_name_of_their_resource(cluster: Starter, resource: str, owned: bool) -> None:  # noqa: FBT001
    """Other resources have ids too, and an index of theirs must not be taken for a GPU's."""
    names = ("example.com/gpu", "vendor.io/a100-*")
    started = cluster(H100, pod("a", GPU_0, resource=resource), resource_names=names)

    assert started.owners() == ([("0", "", "a")] if owned else [])


def test_the_order_of_the_kubelets_answer_does_not_matter(cluster: Starter) -> None:
    """The kubelet lists pods in a random order; series that change their labels with it would be new ones each time."""
    pods = [
        pod("a", f"{GPU_0}::0", f"{GPU_0}::1"),
        pod("b", f"{GPU_0}::2", container="x"),
        holding("c", {"one": {"nvidia.com/gpu": [GPU_1]}, "two": {"nvidia.com/gpu": [GPU_1]}}),
    ]
    started = cluster(H100, *pods, virtual_gpus=True)
    first = [line for line in started.node.page().splitlines() if "pod=" in line and TEMPERATURE in line]
    rng = random.Random(1)
    for _ in range(5):
        rng.shuffle(pods)
        started.says(*pods)

        assert [line for line in started.node.page().splitlines() if "pod=" in line and TEMPERATURE in line] == first


def test_two_containers_on_one_gpu_do_not_push_each_other_out(cluster: Starter) -> None:
    """With dcgm-exporter the last one listed wins; here both are told, and the value stands once."""
    containers = {"one": {"nvidia.com/gpu": [GPU_0]}, "two": {"nvidia.com/gpu": [GPU_0]}}
    lines = lines_of(cluster(H100, holding("a", containers)).node.page())

    assert owners_on(lines) == []
    assert [x.labels["container"] for x in lines if x.name == "otelgpu_gpu_owner"] == ["one", "two"]


def test_gkes_time_sharing_is_told_as_it_was_recorded(cluster: Starter) -> None:
    """The map in the log of a real GKE node: the card itself and four shares of it, held by four pods."""
    extractors = [f"gpu-pod-c69f6664f-{name}" for name in ("vkkcb", "2v922", "wrcxw", "ffs8r")]
    pods = [pod(name, f"nvidia0/vgpu{i}", namespace="default") for i, name in enumerate(extractors)]
    lines = lines_of(cluster(models.t4(1), *pods, virtual_gpus=True).node.page())

    copies = [(x.labels["pod"], x.labels["vgpu"]) for x in lines if x.name == TEMPERATURE]
    assert copies == sorted((name, str(i)) for i, name in enumerate(extractors))


def test_sums_over_a_shared_gpu_are_true(cluster: Starter) -> None:
    """Copies for each sharer multiply a sum over pods by their number; the default has none."""
    replicas = [pod(f"pod-{i}", f"{GPU_0}::{i}") for i in range(10)]
    page = cluster(H100, *replicas).node.page()

    assert len([line for line in lines_of(page) if line.name == TEMPERATURE]) == 2


def test_every_series_of_an_instance_carries_its_pod(cluster: Starter) -> None:
    """On MIG the parent's own series have no single owner, and each instance's series has its own."""
    lines = lines_of(cluster(MIG, pod("a", MIG_7), pod("b", MIG_9)).node.page())
    by_instance: dict[str, set[str]] = {}
    for line in lines:
        if line.name.startswith("DCGM_") and line.labels["gpu"] == "0":
            by_instance.setdefault(line.labels.get("GPU_I_ID", "gpu"), set()).add(line.labels.get("pod", ""))

    assert by_instance == {"gpu": {""}, "7": {"a"}, "9": {"b"}, "5": {""}}


def test_the_exporters_own_pod_owns_nothing(node: Callable[..., Node], kubelet: Kubelet) -> None:
    """An exporter that was given a GPU to see the driver would otherwise hide whose it is."""
    kubelet.pods = [pod("otelgpu-x7", f"{GPU_0}::0", namespace="monitoring"), pod("a", f"{GPU_0}::1")]
    kubelet.start()
    own = own_pod_of({"POD_NAMESPACE": "monitoring", "POD_NAME": "otelgpu-x7", "HOSTNAME": "node-1"})
    pods = Pods(Client(str(kubelet.path)), refresh=1, expire=1, own_pod=own)
    pods.start()
    assert pods.looked(LIMIT)
    snapshot = node(H100).sweep()

    assert [x.pod for x in Attribution(pods=pods, limits=Limits()).owners(snapshot).by_device[GPU_0]] == ["a"]
    assert pods.stop(LIMIT)


def test_the_exporters_own_pod_is_known_without_any_setting(tmp_path: Path) -> None:
    """The host name of a pod is its name; outside Kubernetes it is the machine's, and hides nobody."""
    (tmp_path / "namespace").write_text("monitoring")
    in_a_pod = {"HOSTNAME": "otelgpu-x7", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}

    assert own_pod_of(in_a_pod, str(tmp_path)) == ("monitoring", "otelgpu-x7")
    assert own_pod_of(in_a_pod, str(tmp_path / "nowhere")) == ("", "otelgpu-x7")
    assert own_pod_of({"HOSTNAME": "gpu-node-7"}, str(tmp_path)) == ("", "")


def test_without_kubernetes_no_kubelet_is_asked(node: Callable[..., Node]) -> None:
    """Outside Kubernetes there is neither a label nor a metric about it."""
    page = node(H100).page()

    assert "pod=" not in page
    assert "otelgpu_attribution" not in page


# ---- when the kubelet is asked, and what happens when it does not answer


def test_a_scrape_never_waits_for_the_kubelet(cluster: Starter) -> None:
    """A kubelet that hangs costs no page and no time: the last good answer is shown meanwhile."""
    started = cluster(H100, pod("a", GPU_0))
    asked_in_vain(started)
    began = time.monotonic()

    assert started.owners() == [("0", "", "a")]
    assert time.monotonic() - began < 2
    assert values(started.node.page(), "otelgpu_attribution_up", "source") == {"kubelet": 1}


def test_a_slow_kubelet_is_given_up_after_its_limit(kubelet: Kubelet) -> None:
    """The thread that asks must not hang for ever either."""
    kubelet.start()
    kubelet.hang()

    with pytest.raises(KubeletError, match=r"the kubelet did not answer within 0\.05 s$"):
        Client(str(kubelet.path), limit=0.05).allocations()


def test_a_restarted_kubelet_is_asked_at_once(cluster: Starter) -> None:
    """After a restart the table may be another one; the next regular question is an hour away here."""
    started = cluster(H100, pod("a", GPU_0))
    started.kubelet.stop()
    started.kubelet.pods = [pod("b", GPU_1)]
    started.kubelet.start()

    until(lambda: started.owners() == [("1", "", "b")], "the new owner")


def test_a_kubelet_that_does_not_know_its_pods_yet_is_not_believed(kubelet: Kubelet) -> None:
    """One that was just started listens before it has its pods; they run on, and their GPUs are not free."""
    kubelet.pods = [pod("a", GPU_0)]
    kubelet.start()
    clock = Turned()
    pods = Pods(Client(str(kubelet.path)), refresh=FOR_EVER, expire=FOR_EVER, clock=clock)
    pods.start()
    assert pods.looked(LIMIT)
    kubelet.stop()
    kubelet.pods = []
    kubelet.start()
    kubelet.was_asked(3)
    early = [held.pod for held in pods.table()]
    clock.now += SETTLES
    pods.hurry()
    until(lambda: pods.table() == (), "the end of doubt")

    assert early == ["a"]
    assert pods.stop(LIMIT)


def test_a_kubelet_that_comes_late_is_found(cluster: Starter) -> None:
    """At boot the exporter may be first."""
    started = cluster(H100, pod("a", GPU_0), up=False)

    assert started.owners() == []
    assert values(started.node.page(), "otelgpu_attribution_up", "source") == {"kubelet": 0}
    assert values(started.node.page(), "otelgpu_attribution_age_seconds", "source") == {}
    started.kubelet.start()
    until(lambda: started.owners() == [("0", "", "a")], "the owner")
    assert values(started.node.page(), "otelgpu_attribution_up", "source") == {"kubelet": 1}
    assert 0 <= values(started.node.page(), "otelgpu_attribution_age_seconds", "source")["kubelet"] < LIMIT


def test_a_new_instance_has_the_kubelet_asked_at_once(cluster: Starter) -> None:
    """An instance is made for a pod that is about to start on it; its first figures should have an owner."""
    started = cluster(MIG.without_instance(0, 1), pod("a", MIG_7))
    started.owners()
    asked = started.kubelet.asked
    started.kubelet.pods = [pod("a", MIG_7), pod("b", MIG_9)]
    started.node.show(MIG)
    started.owners()
    started.kubelet.was_asked(asked + 1)

    until(lambda: started.owners() == [("0", "7", "a"), ("0", "9", "b")], "the owner of the new instance")


def test_owners_take_no_question_to_the_driver(cluster: Starter) -> None:
    """dcgm-exporter looks each MIG UUID up in NVML, for each group and scrape: that was seen to take ten cores."""
    pods = pod("a", MIG_7), pod("b", "MIG-no-such"), pod("c", f"MIG-{PARENT}/5/0")
    started = cluster(MIG, *pods, fields=(MEMORY, TEMPERATURE))  # without XIDs, for which a thread asks again and again
    started.node.page()
    started.node.fake.reset_calls()
    for _ in range(3):
        started.says(pod("a", MIG_9), pod("b", "MIG-none"), pod("c", MIG_7))
        started.node.page(sweep=False)

    calls = started.node.fake.calls()
    started.node.sweep()

    assert calls == 0
    assert started.node.fake.calls() > 0


def test_the_kubelet_is_asked_at_its_pace_only(cluster: Starter) -> None:
    """Fifty scrapes and five entity groups were 250 questions with dcgm-exporter."""
    started = cluster(H100, pod("a", GPU_0))
    for _ in range(50):
        started.node.page()

    assert started.kubelet.asked == 1


def _dead(kubelet: Kubelet) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left_over:
        left_over.bind(str(kubelet.path))


def _failing(kubelet: Kubelet) -> None:
    kubelet.error = grpc.StatusCode.INTERNAL
    kubelet.start()


def _old(kubelet: Kubelet) -> None:
    kubelet.error = grpc.StatusCode.UNIMPLEMENTED
    kubelet.start()


def _babbling(kubelet: Kubelet) -> None:
    kubelet.garbage = b"\x0a\x05\x0a\x03\xff\xfe\xfd"
    kubelet.start()


def _crowded(kubelet: Kubelet) -> None:
    kubelet.pods = [pod(f"pod-{i}", "x" * 1024 * 1024) for i in range(17)]
    kubelet.start()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda _: None, "there is no such socket; is the kubelet's folder mounted?"),
        (_dead, "nobody listens on the socket; the kubelet is not running"),
        (_failing, "INTERNAL: scripted"),
        (_old, "whoever listens there has no pod-resources API v1 (Kubernetes 1.20 has it)"),
        (_crowded, "the answer is too large, or the kubelet refuses more: "),
        (_babbling, "whoever listens there sent what is no answer"),
    ],
)
def test_each_failure_says_what_is_wrong(
    kubelet: Kubelet, make: Callable[[Kubelet], None], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    """dcgm-exporter says nothing at all when the socket is not there. A library's own traceback says too much."""
    make(kubelet)

    with pytest.raises(KubeletError) as caught:
        Client(str(kubelet.path), limit=LIMIT).allocations()
    assert str(caught.value).startswith(f"{kubelet.path}: {problem}")
    assert [record.name for record in caplog.records if record.name.startswith("grpc")] == []


def test_a_socket_that_may_not_be_used_is_named_as_that(kubelet: Kubelet) -> None:
    """Without root the kubelet's socket is closed to us, and the message says what to do."""
    if os.getuid() != 0:
        pytest.skip("only root can become somebody who may not")
    kubelet.start()
    kubelet.path.chmod(0o600)
    script = f"""
import os, grpc, otelgpu.attribution.podresources_pb2, encodings.idna
from otelgpu.attribution.kubelet import Kubelet, KubeletError
os.setuid(65534)
try:
    Kubelet({str(kubelet.path)!r}).allocations()
except KubeletError as error:
    print(error)
"""
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)

    assert "this process may not use the socket; it has to run as root" in ran.stdout


class Turned:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_last_answer_holds_until_it_expires(node: Callable[..., Node], kubelet: Kubelet) -> None:
    """A kubelet that is being upgraded keeps its pods running; one that stays away says nothing any more."""
    kubelet.pods = [pod("a", GPU_0)]
    kubelet.start()
    clock = Turned()
    pods = Pods(Client(str(kubelet.path)), refresh=10, expire=60, clock=clock)
    attribution = Attribution(pods=pods, limits=Limits())
    pods.start()
    assert pods.looked(LIMIT)
    started = node(H100)
    kubelet.stop()

    def owners() -> list[Who]:
        snapshot = started.sweep()
        page = started.pipeline.reader.page(snapshot, Format.TEXT, shown=True, owners=attribution.owners(snapshot))
        return owners_on(lines_of(page.decode()))

    shown = []
    for seconds in (0, 59, 2):
        clock.now += seconds
        pods.hurry()
        until(lambda: pods.is_up is False, "a failure")
        shown.append(owners())
    assert shown == [[("0", "", "a")], [("0", "", "a")], []]
    assert pods.age == 61
    assert pods.stop(LIMIT)


def test_a_fault_is_logged_when_it_appears_and_when_it_clears(
    cluster: Starter, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning a group and scrape filled the logs of dcgm-exporter."""
    caplog.set_level(logging.INFO, "otelgpu.attribution")
    started = cluster(H100, pod("a", GPU_0))
    started.kubelet.error = grpc.StatusCode.INTERNAL
    for _ in range(3):
        started.ask()
    started.kubelet.error = None
    for _ in range(3):
        started.ask()

    assert [record.getMessage() for record in caplog.records] == [
        f"owners of GPUs are unknown: {started.kubelet.path}: INTERNAL: scripted; the last answer is shown for 3600 s",
        "the kubelet answers again: owners are shown",
    ]


def test_when_nothing_matches_the_log_has_both_sides(cluster: Starter, caplog: pytest.LogCaptureFixture) -> None:
    """The most common question about dcgm-exporter is why no pod is shown; the two lists of ids answer it."""
    caplog.set_level(logging.INFO, "otelgpu.attribution")
    started = cluster(H100, pod("a", "GPU-other"), pod("b", "nvidia7"))
    for _ in range(3):
        started.node.page()
    started.says()  # which does not make what it said before any truer
    started.node.page()
    started.says(pod("a", GPU_0), pod("b", "nvidia7"))
    page = started.node.page()
    gpus = ", ".join(sorted((GPU_0, GPU_1)))
    both = f"the kubelet speaks of GPU-other, nvidia7, the driver of {gpus}"

    assert [record.getMessage() for record in caplog.records] == [
        f"no owner is shown: {both}, and none of them are the same",
        "what the kubelet speaks of is found among the GPUs again",
    ]
    assert values(page, "otelgpu_attribution_unmatched_devices", "source") == {"kubelet": 1}


def test_the_end_does_not_wait_for_a_hanging_kubelet(cluster: Starter) -> None:
    """A pod that is deleted has to go, whatever the kubelet is doing."""
    started = cluster(H100, pod("a", GPU_0))
    pods = asked_in_vain(started)
    began = time.monotonic()

    assert pods.stop(LIMIT)
    assert time.monotonic() - began < 2
    assert pods.stop(LIMIT)


# ---- size


def test_five_hundred_pods_in_more_than_four_mebibytes_are_read(cluster: Starter) -> None:
    """The limit of gRPC itself is 4 MiB, which a full node passes; the kubelet sends up to 16."""
    crowd = [pod(f"pod-{i:03}", *(f"fpga-{i}-{n:0200}" for n in range(50)), resource="x.io/f") for i in range(500)]
    started = cluster(H100, *crowd, pod("a", GPU_0))

    assert len(ListResponse(pods=started.kubelet.pods).SerializeToString()) > 5_000_000
    assert started.owners() == [("0", "", "a")]


def test_a_crowd_on_one_gpu_does_not_flood_the_page(cluster: Starter, caplog: pytest.LogCaptureFixture) -> None:
    """With copies, 500 sharers would be 500 times all series. Those beyond the limit are counted, and still hold it."""
    crowd = [pod(f"pod-{i:03}", f"{GPU_0}::{i}") for i in range(500)]
    started = cluster(H100, *crowd, virtual_gpus=True)
    page = started.node.page()
    of_one = owners_on(lines_of(page), TEMPERATURE)
    started.says(pod("first", f"{GPU_0}::500"), *crowd[1:])
    after = started.node.page()
    started.says(*crowd[:3])
    calm = started.node.page()

    assert of_one == [("0", "", f"pod-{i:03}") for i in range(100)]
    assert owners_on(lines_of(page), "otelgpu_gpu_owner") == of_one
    assert values(page, "otelgpu_attribution_left_out", "source") == {"": 400}
    assert set(owners_on(lines_of(after), TEMPERATURE)) == {*of_one[1:], ("0", "", "first")}
    assert values(calm, "otelgpu_attribution_left_out", "source") == {"": 0}
    assert len(owners_on(lines_of(calm), TEMPERATURE)) == 3
    assert [record.getMessage() for record in caplog.records if "every owner" in record.getMessage()] == [
        "not every owner is shown: there are more than limits.owners_per_gpu or limits.owners"
    ]


def test_who_is_shown_stays_and_those_who_are_not_still_hold_the_gpu(
    node: Callable[..., Node], kubelet: Kubelet
) -> None:
    """A GPU of two that shows one of them is not that one's alone; a newcomer pushes nobody off the page."""
    kubelet.pods = [pod("m", f"{GPU_0}::0")]
    kubelet.start()
    settings = Kubernetes(enabled=True, socket=str(kubelet.path), refresh=FOR_EVER)
    started = Cluster(node(H100, kubernetes=settings, limits=Limits(owners_per_gpu=1, owners=1)), kubelet)
    assert started.node.pipeline.attribution.looked(LIMIT)
    alone = started.node.page()
    started.says(pod("a", f"{GPU_0}::1"), pod("m", f"{GPU_0}::0"), pod("b", GPU_1))
    both = started.node.page()

    assert owners_on(lines_of(alone), TEMPERATURE) == [("0", "", "m")]
    assert owners_on(lines_of(both), "otelgpu_gpu_owner") == [("0", "", "m")]
    assert owners_on(lines_of(both), TEMPERATURE) == [("1", "", "b")]  # a label there takes no series more
    assert values(both, "otelgpu_gpu_allocated") == {"0": 1, "1": 1}
    assert values(both, "otelgpu_attribution_left_out", "source") == {"": 2}


def test_owners_that_come_and_go_use_up_nothing(cluster: Starter) -> None:
    """Past 2,000 attribute sets an instrument of the SDK folds all new ones into one point: no pod may reach it."""
    started = cluster(H100, fields=(MEMORY, TEMPERATURE))  # the limit is of each instrument; all of them: see below
    pods = started.node.pipeline.attribution.pods
    assert pods is not None
    for turn in range(2100):
        pods._table = (Allocation("team", f"pod-{turn}", "main", "nvidia.com/gpu", GPU_0),)  # noqa: SLF001
        page = started.node.page(sweep=turn % 100 == 99)  # now and then, or the readings would expire on a slow machine

    assert owners_on(lines_of(page)) == [("0", "", "pod-2099")]
    assert page.count("pod-") == sum("pod-2099" in line for line in page.splitlines())
    assert "overflow" not in page


@pytest.mark.soak
def test_ten_thousand_changes_leave_only_the_living(cluster: Starter) -> None:
    """A node that runs short jobs sees as many pods in a month; memory follows what runs now, not what ever ran."""
    scenario = models.h100(8)
    uuids = [gpu.uuid for gpu in scenario.gpus]
    started = cluster(scenario)
    sizes = []
    for turn in range(10_000):
        started.says(*(pod(f"pod-{turn}-{gpu}", uuid) for gpu, uuid in enumerate(uuids)))
        page = started.node.page(sweep=turn % 100 == 99)
        if turn % 1000 == 999:
            sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6)

    assert owners_on(lines_of(page)) == [(str(gpu), "", f"pod-9999-{gpu}") for gpu in range(8)]
    assert page.count("pod-") == page.count("pod-9999-")
    assert "overflow" not in page
    assert sizes[-1] - sizes[0] < 3, sizes


# ---- the protocol


def test_an_answer_of_the_public_api_is_understood() -> None:
    """The fake kubelet shares our message types, so the numbers of the fields are checked against bytes by hand."""
    devices = b"\x0a\x0envidia.com/gpu" + b"\x12\x05GPU-a" + b"\x12\x05GPU-b" + b"\x1a\x04\x0a\x02\x08\x01"  # topology
    container = b"\x0a\x04main" + b"\x12" + bytes([len(devices)]) + devices + b"\x18\x07"  # a CPU id
    answer = b"\x0a\x05train" + b"\x12\x04team" + b"\x1a" + bytes([len(container)]) + container
    (read,) = ListResponse.FromString(b"\x0a" + bytes([len(answer)]) + answer).pods

    assert (read.name, read.namespace, read.containers[0].name) == ("train", "team", "main")
    assert read.containers[0].devices[0].resource_name == "nvidia.com/gpu"
    assert list(read.containers[0].devices[0].device_ids) == ["GPU-a", "GPU-b"]


def test_claims_of_the_public_api_are_understood() -> None:
    """The same for Dynamic Resource Allocation, whose messages have gaps in their numbers."""
    cdi = b"\x0a\x05" + b"\x0a\x03x=y"
    device = cdi + b"\x12\x0egpu.nvidia.com" + b"\x1a\x06node-1" + b"\x22\x05gpu-0" + b"\x2a\x01s"  # a share id
    claim = b"\x12\x03c-1" + b"\x1a\x04team" + b"\x22" + bytes([len(device)]) + device
    container = b"\x0a\x04main" + b"\x2a" + bytes([len(claim)]) + claim
    pod_bytes = b"\x0a\x05train" + b"\x12\x04team" + b"\x1a" + bytes([len(container)]) + container
    answer = GetResponse.FromString(b"\x0a" + bytes([len(pod_bytes)]) + pod_bytes)

    assert list(allocations_in([answer.pod])) == [
        Allocation("team", "train", "main", "gpu.nvidia.com", "gpu-0", "node-1", "team", "c-1")
    ]
    assert GetRequest(name="a", namespace="b").SerializeToString() == b"\x0a\x01a\x12\x01b"


# ---- over OTLP


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_a_collector_is_told_the_pod_of_each_point(
    node: Callable[..., Node], kubelet: Kubelet, temporality: Literal["cumulative", "delta"]
) -> None:
    """The pod that holds the GPU stands on the point; the resource is otelgpu's own, and its pod is not the owner."""
    kubelet.pods = [pod("a", GPU_0), pod("b", f"{GPU_1}::0"), pod("c", f"{GPU_1}::1")]
    kubelet.start()
    with collector() as sink:
        settings = Kubernetes(enabled=True, socket=str(kubelet.path), refresh=FOR_EVER, expire=FOR_EVER)
        started = node(H100, kubernetes=settings, otlp=Otlp(endpoint=sink.url, temporality=temporality))
        assert started.pipeline.attribution.looked(LIMIT)
        (push,) = started.pipeline.pushes
        assert isinstance(push, Push)
        push.pusher.start()
        push.reader.push()
        sink.expect(1)
        Cluster(started, kubelet).says(pod("d", GPU_0))
        started.sweep()
        push.reader.push()
        sink.expect(2)
    powers = [
        (point.attributes["hw.name"], point.attributes.get("k8s.pod.name"))
        for point in sink.points("hw.power")
        if point.name == "hw.power"
    ]

    assert sorted(powers[:2], key=str) == [("GPU 0", "a"), ("GPU 1", None)]
    assert sorted(powers[2:], key=str) == [("GPU 0", "d"), ("GPU 1", None)]
    owned = [
        (point.attributes["hw.id"], point.attributes["k8s.namespace.name"], point.attributes["k8s.pod.name"])
        for point in sink.points("otelgpu.gpu.owner")
    ]
    assert owned == [(GPU_0, "team", "a"), (GPU_1, "team", "b"), (GPU_1, "team", "c"), (GPU_0, "team", "d")]
    resource = pairs(list(sink.received[0].message.resource_metrics[0].resource.attributes))
    assert not {"k8s.pod.name", "k8s.namespace.name"} & resource.keys()


# ---- the program


def test_the_program_names_pods(kubelet: Kubelet, tmp_path: Path) -> None:
    """From the flag to the page, over real sockets at both ends; and it ends as fast as without Kubernetes."""
    kubelet.pods = [pod("a", GPU_0)]
    kubelet.start()
    flags = ("--kubernetes", "--kubernetes-socket", str(kubelet.path))
    with serving(H100, tmp_path, *flags) as served:
        until(lambda: owners_on(lines_of(served.page())) == [("0", "", "a")], "the owner")
        kubelet.hang()

        assert served.stop() == 0


def test_one_look_waits_for_the_kubelets_first_answer(kubelet: Kubelet, tmp_path: Path) -> None:
    """`otelgpu once` makes one page; without the owners it would be wrong every time."""
    kubelet.pods = [pod("a", GPU_0)]
    kubelet.start()
    H100.write(tmp_path / "scenario")
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "FAKENVML_SCENARIO": str(tmp_path / "scenario")}
    environ |= {"LD_LIBRARY_PATH": str(H100.library()), "OTELGPU_KUBERNETES_ENABLED": "true"}
    command = [sys.executable, "-m", "otelgpu", "once", "--kubernetes-socket", str(kubelet.path)]
    ran = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True, timeout=60)

    assert owners_on(lines_of(ran.stdout)) == [("0", "", "a")]
