"""What the API server adds to a pod: its UID and labels, from a watch over real HTTPS to the page."""

import itertools
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from otelgpu import pause
from otelgpu.attribution import apiserver, mirror
from otelgpu.attribution.apiserver import Api, ApiError
from otelgpu.attribution.choice import NoAttribution
from otelgpu.attribution.kubelet import Kubelet as Client
from otelgpu.attribution.mirror import Mirror
from otelgpu.attribution.owners import Attribution
from otelgpu.attribution.podmeta import PodListing
from otelgpu.attribution.podresources_pb2 import Pod
from otelgpu.attribution.pods import Pods
from otelgpu.config import Flag, Kubernetes, Limits, Otlp, Processes, load
from otelgpu.config.keys import SETTINGS
from otelgpu.errors import ConfigError
from otelgpu.export.podlabels import shown_pod_labels
from otelgpu.export.push.setup import Push
from tests.conftest import ROOT, Golden
from tests.fakeapi import PODS, ApiServer, certificate, gpu_device, pod_object, slice_object
from tests.fakekubelet import Get, Kubelet, claiming, pod
from tests.harness import LIMIT, Node, lines_of, patient, serving, until, values
from tests.push.collectors import collector
from tests.test_kubernetes import (
    FOR_EVER,
    GPU_0,
    GPU_1,
    H100,
    MEMORY,
    MIG,
    MIG_7,
    WHOLE,
    Cluster,
    Turned,
    kubelet,
    readings_of,
)

__all__ = ["kubelet"]  # the fixture

Settings = Mapping[str, object]
UIDS: Settings = {"pod_uid": True}
LABELS: Settings = {"pod_labels": True}


@pytest.fixture(scope="session")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the API server's certificate and key."""
    folder = tmp_path_factory.mktemp("papers")
    certificate(folder)
    return folder


@pytest.fixture
def api(papers: Path, open_folder: Path) -> Iterator[ApiServer]:
    """An API server that is not started yet."""
    made = ApiServer(open_folder / "serviceaccount", papers)
    yield made
    made.stop()


class Watched(Cluster):
    """A node of Kubernetes whose pods are known to an API server."""

    def meta(self) -> Mirror[object, object]:
        """The part that watches pods."""
        metas = self.node.pipeline.attribution.metas
        assert metas is not None
        return metas  # type: ignore[return-value]

    def labels(self, name: str = MEMORY) -> list[Mapping[str, str]]:
        """The labels of the series of a family that have a pod."""
        return [line.labels for line in lines_of(self.node.page()) if line.name == name and "pod" in line.labels]

    def uids(self) -> dict[str, str]:
        """The UID of each pod on the page, "-" where there is none."""
        return {labels["pod"]: labels.get("pod_uid", "-") for labels in self.labels()}

    def up(self, source: str = "pods") -> float | None:
        """Whether the page says that the API server answers."""
        return values(self.node.page(), "otelgpu_attribution_up", "source").get(source)


Starter = Callable[..., Watched]


@pytest.fixture
def watched(
    node: Callable[..., Node], kubelet: Kubelet, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Starter]:
    """Start a node: `watched(pod(...), pod_uid=True)`. Both servers are started unless they are told not to be."""
    monkeypatch.setattr(pause, "FIRST", 0.02)
    monkeypatch.setattr(pause, "LONGEST", 0.05)
    attributions: list[Attribution] = []

    def start(
        *pods: Pod,
        scenario: object = H100,
        up: bool = True,
        kubelet_up: bool = True,
        processes: Processes = Processes(),  # noqa: B008 - it is frozen
        limits: Limits = Limits(),  # noqa: B008 - as above
        **settings: object,
    ) -> Watched:
        kubelet.pods = list(pods)
        if kubelet_up:
            kubelet.start()
        if up:
            api.start()
        changes = {"enabled": True, "socket": str(kubelet.path), "refresh": FOR_EVER, "expire": FOR_EVER}
        changes |= {"node": "node-1", "service_account": str(api.folder)} | settings
        kubernetes = Kubernetes(**changes)  # type: ignore[arg-type]
        settings = {"kubernetes": kubernetes, "processes": processes, "limits": limits}
        started = node(scenario, environ=api.environ, **settings)
        assert not isinstance(started.pipeline.attribution, NoAttribution)
        attributions.append(started.pipeline.attribution)
        assert started.pipeline.attribution.looked(LIMIT)
        metas = started.pipeline.attribution.metas  # before its watch, a pod that came meanwhile is in doubt
        until(lambda: metas is None or metas.is_connected or not metas.is_up, "the watch")
        return Watched(started, kubelet)

    yield start
    for attribution in attributions:
        assert attribution.stop(LIMIT)


# ---- what is shown


def test_the_page_with_uids_and_labels_is_as_reviewed(watched: Starter, api: ApiServer, golden: Golden) -> None:
    """A pod's own labels stand where dcgm-exporter puts them, between the device's and the owner's."""
    api.put(pod_object("train-0", app_kubernetes_io__name="llm", team="vision", pod="fake"), pod_object("b", team="x"))
    started = watched(
        pod("train-0", MIG_7), pod("a", f"{WHOLE}::0"), pod("b", f"{WHOLE}::1"), scenario=MIG, **UIDS, **LABELS
    )

    golden("page/kubernetes_labels.txt", readings_of(started.node.settled_page()))


def test_without_a_setting_that_needs_it_the_api_server_is_not_asked(watched: Starter, api: ApiServer) -> None:
    """dcgm-exporter watches pods as soon as a token is mounted, and logs errors for ever where it may not."""
    started = watched(pod("a", GPU_0))

    assert started.owners() == [("0", "", "a")]
    assert api.asked == []
    assert started.up() is None


def test_only_this_nodes_pods_and_their_metadata_are_asked_for(watched: Starter, api: ApiServer) -> None:
    """A watch of the whole cluster from every node is what brings an API server down."""
    api.put(pod_object("a"), pod_object("a", node="node-2", namespace="elsewhere"))
    started = watched(pod("a", GPU_0), **UIDS)
    api.is_watched()

    assert started.uids() == {"a": "uid-of-a"}
    assert [asked.query.get("fieldSelector") for asked in api.asked] == ["spec.nodeName=node-1"] * 2
    assert all("as=PartialObjectMetadata" in asked.accept for asked in api.asked)
    assert api.requests(watches=True)[0].query["allowWatchBookmarks"] == "true"


def test_a_server_that_knows_no_partial_objects_is_read_all_the_same(watched: Starter, api: ApiServer) -> None:
    """Aggregated and old servers answer with whole pods."""
    api.partial = False
    api.put(pod_object("a", team="vision"))
    (labels,) = watched(pod("a", GPU_0), **LABELS).labels()

    assert labels["team"] == "vision"


@pytest.mark.parametrize(
    ("allow", "shown"),
    [
        ((), {"app": "x", "app_kubernetes_io_name": "y", "team": "z"}),
        (("^app$",), {"app": "x"}),
        (("app",), {"app": "x", "app_kubernetes_io_name": "y"}),
        (("kubernetes", "^te.m$"), {"app_kubernetes_io_name": "y", "team": "z"}),
        (("^[a-z]{3,4}$",), {"app": "x", "team": "z"}),
        (("^nothing$",), {}),
    ],
)
def test_labels_are_let_through_by_pattern(
    watched: Starter, api: ApiServer, allow: tuple[str, ...], shown: Mapping[str, str]
) -> None:
    """A pattern is looked for in the key as it stands; none at all lets everything through, as with dcgm-exporter."""
    thing = pod_object("a")
    thing["metadata"]["labels"] = {"app": "x", "app.kubernetes.io/name": "y", "team": "z"}
    api.put(thing)
    (labels,) = watched(pod("a", GPU_0), **LABELS, pod_label_allow=allow).labels()

    assert {name: labels[name] for name in ("app", "app_kubernetes_io_name", "team") if name in labels} == shown


# Keys of a pod, and what they are called on the page.
NAMES = {
    "gpu": "pod_label_gpu",
    "UUID": "pod_label_UUID",
    "modelName": "pod_label_modelName",
    "device": "pod_label_device",
    "Hostname": "pod_label_Hostname",
    "hostname": "pod_label_hostname",
    "pci_bus_id": "pod_label_pci_bus_id",
    "DCGM_FI_DRIVER_VERSION": "pod_label_DCGM_FI_DRIVER_VERSION",
    "pod": "pod_label_pod",
    "namespace": "pod_label_namespace",
    "container": "pod_label_container",
    "hpc_job": "pod_label_hpc_job",
    "job": "pod_label_job",
    "instance": "pod_label_instance",
    "cluster": "pod_label_cluster",  # the user's own label
    "1st": "pod_label_1st",
    "app.kubernetes.io/name": "app_kubernetes_io_name",
    "app_kubernetes-io.name": "pod_label_app_kubernetes_io_name",
    "plain": "plain",
    "Umlaut-0": "Umlaut_0",
}


def test_no_label_of_a_pod_breaks_the_page_or_passes_for_ours(watched: Starter, api: ApiServer) -> None:
    """With dcgm-exporter one pod with a label `gpu`, or one that begins with a digit, takes the node off the charts."""
    thing = pod_object("a")
    thing["metadata"]["labels"] = {key: f"value of {key}" for key in NAMES} | {"quote": 'a"b\\c\nd', "empty": ""}
    api.put(thing)
    started = watched(pod("a", GPU_0), **LABELS)
    page = started.node.page()
    (labels,) = started.labels()

    assert {key: labels.get(name) for key, name in NAMES.items() if key != "cluster"} == {
        key: f"value of {key}" for key in NAMES if key != "cluster"
    }
    assert (labels["quote"], labels["empty"], labels["gpu"], labels["pod"]) == ('a"b\\c\nd', "", "0", "a")
    renamed = sum(name.startswith("pod_label_") for key, name in NAMES.items() if key != "cluster")
    assert [line.value for line in lines_of(page) if line.name == "otelgpu_pod_labels_renamed"] == [renamed]
    for line in page.splitlines():
        names = re.findall(r'([A-Za-z0-9_]+)="(?:[^"\\]|\\.)*"', line)
        assert len(names) == len(set(names)), line


def test_a_pod_with_thousands_of_labels_floods_no_page(
    watched: Starter, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever may make a pod could blind the whole node: each label stands on every series, and names may collide."""
    caplog.set_level(logging.INFO, "otelgpu.attribution")
    thing = pod_object("a")
    keys = ["a" + "".join(marks) + "z" for marks in itertools.product("-._", repeat=7)]
    thing["metadata"]["labels"] = dict.fromkeys(keys, "x" * 63)
    api.put(thing, pod_object("b", team="blue"))
    started = watched(pod("a", GPU_0), pod("b", GPU_1), **LABELS)
    page = started.node.page()
    crowded, other = started.labels()
    api.put(pod_object("a", team="red"))
    until(lambda: [labels.get("team") for labels in started.labels()] == ["red", "blue"], "fewer labels")

    assert len(page) < 3_000_000
    assert sum(name.endswith("a_______z") for name in crowded) == 64
    assert other["team"] == "blue"
    assert values(page, "otelgpu_attribution_labels_left_out", "source") == {"": 3**7 - 64}
    assert values(started.node.page(), "otelgpu_attribution_labels_left_out", "source") == {"": 0}
    assert [record.getMessage() for record in caplog.records] == [
        "not every label is shown: a pod has more than 64",
        "every label of a pod is shown again",
    ]


def test_every_label_of_a_page_is_kept_from_pods() -> None:
    """A label that a field gains one day must not become one that a pod can take."""
    pages = sorted((ROOT / "tests" / "golden" / "page").glob("*.txt"))
    of_pods = {"app_kubernetes_io_name", "team"}
    names = {
        name
        for page in pages
        for line in lines_of(page.read_text())
        if line.name.startswith(("DCGM_", "otelgpu_gpu_owner"))
        for name in line.labels
    }
    kept = {name for name in names if shown_pod_labels(((name, "x"),))[0] == ((f"pod_label_{name}", "x"),)}

    assert {"gpu", "nvlink", "dra_claim_name", "hpc_job", "pod_name"} - names == {"pod_name"}
    assert {name for name in names - kept if not name.startswith("pod_label_")} == of_pods


def test_a_label_that_the_user_sets_for_all_is_not_overwritten_by_a_pods(
    node: Callable[..., Node], kubelet: Kubelet, api: ApiServer
) -> None:
    """`--label cluster=a` says where the node is; a pod may not change that."""
    api.put(pod_object("a", cluster="mine"))
    api.start()
    kubelet.pods = [pod("a", GPU_0)]
    kubelet.start()
    settings = Kubernetes(
        enabled=True, socket=str(kubelet.path), node="node-1", service_account=str(api.folder), pod_labels=True
    )
    started = node(H100, kubernetes=settings, environ=api.environ, labels={"cluster": "east"})
    assert started.pipeline.attribution.looked(LIMIT)
    labels = next(line.labels for line in lines_of(started.page()) if line.name == MEMORY and "pod" in line.labels)

    assert (labels["cluster"], labels["pod_label_cluster"]) == ("east", "mine")


@pytest.mark.parametrize("mode", [{}, {"virtual_gpus": True}, {"old_names": True}])
def test_uids_and_labels_are_shown_in_every_mode(watched: Starter, api: ApiServer, mode: Settings) -> None:
    """With dcgm-exporter a sharing node has no pod labels at all."""
    api.put(pod_object("a", team="vision"))
    page = watched(pod("a", f"{GPU_0}::3"), **UIDS, **LABELS, **mode).node.page()
    lines = [
        line.labels for line in lines_of(page) if line.name == "DCGM_FI_DEV_GPU_TEMP" and line.labels["gpu"] == "0"
    ]

    assert [(labels["pod_uid"], labels["team"]) for labels in lines] == [("uid-of-a", "vision")]


def test_a_collector_is_told_uid_labels_and_claim(node: Callable[..., Node], kubelet: Kubelet, api: ApiServer) -> None:
    """OpenTelemetry has names for the first two; a label keeps its key there, whatever it is called."""
    api.put(pod_object("a", app_kubernetes_io__name="llm", pod="fake"))
    api.put(slice_object("s", gpu_device("gpu-0", GPU_0)), path="slices")
    api.start()
    kubelet.pods = [claiming("a", "gpu-0", claim="a-gpu")]
    kubelet.start()
    with collector() as sink:
        settings = Kubernetes(
            enabled=True,
            socket=str(kubelet.path),
            node="node-1",
            service_account=str(api.folder),
            pod_uid=True,
            pod_labels=True,
            dra=True,
        )
        started = node(H100, kubernetes=settings, environ=api.environ, otlp=Otlp(endpoint=sink.url))
        assert started.pipeline.attribution.looked(LIMIT)
        (push,) = started.pipeline.pushes
        assert isinstance(push, Push)
        push.pusher.start()
        push.reader.push()
        sink.expect(1)
    points = [point for point in sink.points("hw.power") if point.name == "hw.power"]
    (told,) = (point.attributes for point in points if point.attributes["hw.name"] == "GPU 0")
    of_owner = {name: text for name, text in told.items() if name.startswith(("k8s.", "hw.gpu.nvidia.dra."))}

    assert of_owner == {
        "k8s.namespace.name": "team",
        "k8s.pod.name": "a",
        "k8s.pod.uid": "uid-of-a",
        "k8s.container.name": "main",
        "k8s.pod.label.app-kubernetes-io/name": "llm",
        "k8s.pod.label.pod": "fake",
        "hw.gpu.nvidia.dra.claim.name": "a-gpu",
        "hw.gpu.nvidia.dra.claim.namespace": "team",
        "hw.gpu.nvidia.dra.device.name": "gpu-0",
        "hw.gpu.nvidia.dra.driver.name": "gpu.nvidia.com",
        "hw.gpu.nvidia.dra.pool.name": "node-1",
    }


# ---- following changes


def test_changes_arrive_by_the_watch(watched: Starter, api: ApiServer) -> None:
    """A label that is set on a running pod is on the next page; nothing is listed again for it."""
    api.put(pod_object("a", team="old"))
    started = watched(pod("a", GPU_0), pod("b", GPU_1), **LABELS)
    api.is_watched()
    api.put(pod_object("a", team="new"), pod_object("b", team="late"), pod_object("c", node="node-2"))
    until(lambda: [x.get("team") for x in started.labels()] == ["new", "late"], "the changes")
    api.remove("a")
    until(lambda: [x.get("team") for x in started.labels()] == [None, "late"], "the removal")

    assert len(api.requests(watches=False)) == 1


def test_a_pod_of_the_same_name_has_its_own_uid(watched: Starter, api: ApiServer) -> None:
    """The pods of a StatefulSet are made anew under the same name."""
    api.put(pod_object("a-0", uid="first"))
    started = watched(pod("a-0", GPU_0), **UIDS)
    api.is_watched()
    api.remove("a-0")
    api.put(pod_object("a-0", uid="second"))

    until(lambda: started.uids() == {"a-0": "second"}, "the second")


@pytest.mark.parametrize("in_stream", [True, False])
def test_a_version_that_is_gone_has_everything_listed_again(
    watched: Starter, api: ApiServer, *, in_stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """410 Gone is how a server says that it has forgotten what happened since; it is no fault."""
    caplog.set_level(logging.INFO, "otelgpu.attribution")
    api.gone_in_stream = in_stream
    api.put(pod_object("a", team="old"))
    started = watched(pod("a", GPU_0), **LABELS)
    api.is_watched()
    api.silently(pod_object("a", team="new"))
    api.forget()
    api.end_watches()

    until(lambda: [x.get("team") for x in started.labels()] == ["new"], "what was missed")
    assert started.up() == 1
    assert caplog.records == []


def test_a_bookmark_saves_the_list_after_a_long_silence(watched: Starter, api: ApiServer) -> None:
    """A quiet node's version is forgotten by the server while nothing happens; a bookmark moves it on."""
    api.put(pod_object("a"))
    watched(pod("a", GPU_0), **UIDS)
    api.is_watched()
    api.bookmark()
    marked = str(api.version)
    api.end_watches()
    until(lambda: len(api.requests(watches=True)) == 2, "the next watch")

    assert api.requests(watches=True)[1].query["resourceVersion"] == marked
    assert len(api.requests(watches=False)) == 1


def test_a_watch_that_is_cut_is_taken_up_where_it_was(
    watched: Starter, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Load balancers cut what is quiet for a minute; that is no fault, and no reason to list everything again."""
    caplog.set_level(logging.INFO, "otelgpu.attribution")
    api.put(pod_object("a", team="old"))
    started = watched(pod("a", GPU_0), **LABELS)
    for turn in range(3):
        api.is_watched()
        api.put(pod_object("a", team=f"t{turn}"))
        until(lambda: [x.get("team") for x in started.labels()] == [f"t{turn}"], "the change")  # noqa: B023
        watches = len(api.requests(watches=True))
        api.end_watches(breaks=True)
        until(lambda: len(api.requests(watches=True)) > watches, "the next watch")  # noqa: B023

    assert len(api.requests(watches=False)) == 1
    assert caplog.records == []


def test_a_server_that_ends_each_watch_at_once_is_asked_with_pauses(
    watched: Starter, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Something in between may not let long answers through; what can be listed is shown, and one warning says it."""
    api.ends_at_once = True
    api.put(pod_object("a", team="old"))
    started = watched(pod("a", GPU_0), **LABELS)
    api.put(pod_object("a", team="new"))
    until(lambda: [x.get("team") for x in started.labels()] == ["new"], "the change")
    until(lambda: len(api.requests(watches=True)) >= 8, "several attempts")

    assert len(caplog.records) == 1
    assert "the API server ends each watch at once" in caplog.records[0].getMessage()


def test_a_long_list_is_read_in_pages(watched: Starter, api: ApiServer) -> None:
    """500 pods in one answer are megabytes at once; in pages they are never all in memory."""
    api.page = 100
    api.put(*(pod_object(f"pod-{i:03}") for i in range(500)))
    started = watched(pod("pod-499", GPU_0), **UIDS)
    lists = api.requests(watches=False)

    assert started.uids() == {"pod-499": "uid-of-pod-499"}
    assert len(lists) == 5
    assert {asked.query["limit"] for asked in lists} == {"250"}


def test_a_list_without_an_end_is_given_up(
    watched: Starter, api: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever promises more with every page would have the memory grow for ever, and no pod would be known."""
    monkeypatch.setattr(mirror, "MOST_PAGES", 3)
    api.page = 1
    api.put(*(pod_object(f"pod-{i}") for i in range(4)))
    started = watched(pod("pod-0", GPU_0), **UIDS)

    assert started.uids() == {"pod-0": "-"}
    assert started.up() == 0
    assert "the API server's list has more than 3 pages" in caplog.text
    assert max(int(asked.query.get("continue", "0").partition(":")[0]) for asked in api.requests()) < 3


def test_five_hundred_big_pods_are_read(watched: Starter, api: ApiServer) -> None:
    """Pods carry annotations and fields of managers by the kilobyte, also in their metadata."""
    for i in range(500):
        thing = pod_object(f"pod-{i:03}", team=f"t{i}")
        thing["metadata"]["managedFields"] = [{"x": "y" * 20_000}]
        api.put(thing)
    started = watched(pod("pod-499", GPU_0), **LABELS)

    assert [labels["team"] for labels in started.labels()] == ["t499"]


def test_a_new_token_is_used_from_the_next_connection_on(watched: Starter, api: ApiServer) -> None:
    """The kubelet renews a pod's token about every hour, and the old one is refused some time later."""
    api.put(pod_object("a", team="old"))
    started = watched(pod("a", GPU_0), **LABELS)
    api.is_watched()
    api.renew_token("second-token")
    api.end_watches()
    until(lambda: len(api.requests(watches=True)) == 2, "the next watch")
    api.is_watched()
    api.put(pod_object("a", team="new"))

    until(lambda: [x.get("team") for x in started.labels()] == ["new"], "the change")
    assert {asked.status for asked in api.asked} == {200}


@pytest.mark.parametrize("turns", [300, pytest.param(10_000, marks=pytest.mark.soak)])
def test_pods_that_come_and_go_leave_nothing_behind(watched: Starter, api: ApiServer, turns: int) -> None:
    """A node that runs short jobs sees as many pods in a month; the table holds those that are there."""
    api.put(pod_object("stays", team="x"))
    started = watched(pod("stays", GPU_0), **UIDS, **LABELS)
    api.is_watched()
    sizes = []
    for turn in range(turns):
        api.put(pod_object(f"pod-{turn}", team=f"t{turn}"))
        api.remove(f"pod-{turn}")
        if turn % 100 == 99:
            api.put(pod_object("stays", team=f"after-{turn}"))
            until(lambda: [x["team"] for x in started.labels()] == [f"after-{turn}"], "what came last")  # noqa: B023
            with api.changed:
                del api.events[:-10]
            sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6)

    assert started.meta().table().keys() == {("team", "stays")}
    assert len(api.requests(watches=False)) == 1
    assert sizes[-1] - sizes[len(sizes) // 2] < 3, sizes


# ---- when the API server does not answer


def test_what_is_forbidden_costs_only_itself(
    watched: Starter, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Without RBAC there are no labels, one warning and a metric; owners are shown as before."""
    api.forbidden = {"list"}
    started = watched(pod("a", GPU_0), **UIDS)
    until(lambda: len(api.requests()) >= 4, "several attempts")

    assert started.owners() == [("0", "", "a")]
    assert started.uids() == {"a": "-"}
    assert started.up() == 0
    assert started.up("kubelet") == 1
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"the UIDs and labels of pods is unknown: https://127.0.0.1:{api.port}: {PODS}: 403 {PODS} is forbidden"
    )
    caplog.clear()
    caplog.set_level(logging.INFO, "otelgpu.attribution")
    api.put(pod_object("a"))
    api.forbidden = set()
    until(lambda: started.uids() == {"a": "uid-of-a"}, "the UID")
    until(lambda: started.up() == 1, "the metric")
    api.is_watched()
    api.bookmark()
    until(lambda: len(caplog.records) == 1, "the all-clear")
    assert caplog.records[0].getMessage() == "the API server answers again: the UIDs and labels of pods is known"


def test_a_list_without_a_watch_is_still_followed(
    watched: Starter, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A role that lacks the verb `watch` is a common mistake; what can be listed is shown, and one warning says it."""
    api.forbidden = {"watch"}
    api.put(pod_object("a", team="old"))
    started = watched(pod("a", GPU_0), **LABELS)
    api.put(pod_object("a", team="new"))
    until(lambda: [x.get("team") for x in started.labels()] == ["new"], "the change")
    until(lambda: len(api.requests(watches=True)) >= 4, "several attempts")

    assert len(caplog.records) == 1
    assert started.up() == 0


def test_an_api_server_that_is_away_holds_up_nothing(watched: Starter, api: ApiServer) -> None:
    """A node may boot without network; the start, the page and the owners do not wait for it."""
    api.start()
    api.stop()
    started = watched(pod("a", GPU_0), up=False, **UIDS)

    assert started.owners() == [("0", "", "a")]
    assert started.up() == 0
    assert values(started.node.page(), "otelgpu_attribution_age_seconds", "source").keys() == {"kubelet"}
    api.put(pod_object("a"))
    api.start()
    until(lambda: started.uids() == {"a": "uid-of-a"}, "the UID")


def test_a_hanging_api_server_holds_up_no_page_and_no_end(watched: Starter, api: ApiServer) -> None:
    """It takes connections and says nothing: pages go on, and the process ends at once."""
    api.put(pod_object("a", team="old"))
    started = watched(pod("a", GPU_0), **LABELS)
    api.is_watched()
    api.hang()
    api.end_watches()
    until(lambda: api.watching == 0, "the end of the watch")

    assert [x.get("team") for x in started.labels()] == ["old"]
    assert started.meta().stop(2)
    assert started.meta().stop(0)


@pytest.mark.parametrize("what", ["head", "body"])
def test_an_answer_that_comes_byte_by_byte_is_given_up(
    watched: Starter, api: ApiServer, monkeypatch: pytest.MonkeyPatch, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each byte is in time, and the answer never: what is shown would grow old without a word."""
    monkeypatch.setattr(apiserver, "LIMIT", patient(0.5))
    monkeypatch.setattr(apiserver, "WHOLE", patient(0.5))
    api.put(pod_object("a", team="old"))
    started = watched(pod("a", GPU_0), **LABELS)
    api.is_watched()
    api.drips = what
    api.forget()
    api.end_watches()
    until(lambda: started.up() == 0, "the fault")
    api.let_go()

    until(lambda: started.up() == 1, "the server is back")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no answer in time; what was last known" in caplog.records[0].getMessage()


def test_a_quiet_watch_that_is_ended_is_begun_again_at_once(
    watched: Starter, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was a good one, however little happens: with a pause that grows, half of all changes would come late."""
    monkeypatch.setattr(mirror, "_LASTED", 0.0)
    monkeypatch.setattr(pause, "LONGEST", 1000.0)
    watched(**LABELS)
    api.is_watched()
    api.ends_at_once = True
    api.end_watches()

    until(lambda: len(api.requests(watches=True)) >= 16, "the watches")


def test_what_was_known_holds_until_it_expires(api: ApiServer) -> None:
    """While a watch is open silence means that nothing changed; after a loss a wrong UID is worse than none."""
    api.put(pod_object("a"))
    api.start()
    clock = Turned()
    listing = PodListing("node-1", uids=True, labels=False)
    mirrored = Mirror(Api(api.environ, str(api.folder)), listing, expire=60, clock=clock)
    mirrored.start()
    assert mirrored.looked(LIMIT)
    api.is_watched()
    api.bookmark()
    until(lambda: mirrored.is_connected, "the watch")
    clock.now += 3600
    open_watch = (len(mirrored.table()), mirrored.age)
    api.bookmark()
    api.stop()
    until(lambda: mirrored.is_up is False, "the loss")
    seen = []
    for seconds in (0, 59, 60):
        clock.now += seconds
        seen.append(len(mirrored.table()))

    assert open_watch == (1, 0.0)
    assert (seen[0], seen[-1]) == (1, 0)
    assert mirrored.stop(LIMIT)


def _writes(name: str, content: bytes) -> Callable[[ApiServer], object]:
    return lambda api: (api.folder / name).write_bytes(content)


def _echoing(api: ApiServer) -> None:
    api.echoes = True
    api.token = "another"


BROKEN: Mapping[str, tuple[Callable[[ApiServer], object], str]] = {
    "no token": (lambda api: (api.folder / "token").unlink(), "token: No such file or directory; is automount"),
    "an empty token": (_writes("token", b"\n"), "/token holds no token"),
    "a token with a line break": (
        lambda api: (api.folder / "token").write_text("secret\r\nX: y"),
        "/token holds no token",
    ),
    "a wrong token": (_writes("token", b"secret"), "401 Unauthorized"),
    "a server that says it back": (_echoing, "401 Unauthorized"),
    "no authority": (lambda api: (api.folder / "ca.crt").unlink(), "ca.crt: No such file or directory"),
    "an empty authority": (_writes("ca.crt", b""), "ca.crt: there is no certificate in it"),
    "a folder that is text": (_writes("ca.crt", b"\xff\xfe"), "ca.crt: it is not text"),
    "nobody there": (lambda api: api.stop(), "Connection refused"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_each_failure_says_what_is_wrong_and_no_secret(api: ApiServer, how: str) -> None:
    """The message is what an administrator has to go by; a token in a log is a token lost."""
    api.start()
    breaks, problem = BROKEN[how]
    breaks(api)

    with pytest.raises(ApiError) as caught:
        Api(api.environ, str(api.folder)).get(PODS)
    assert problem in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "first-token" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({}, "KUBERNETES_SERVICE_HOST is not set: this process does not run in a pod"),
        (
            {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "tcp"},
            "KUBERNETES_SERVICE_PORT is no number",
        ),
    ],
)
def test_outside_a_pod_it_is_said_that_there_is_no_api_server(
    api: ApiServer, environ: Mapping[str, str], problem: str
) -> None:
    """The switch may have come with a manifest that now runs as a plain service."""
    with pytest.raises(ApiError, match=f"^{problem}$"):
        Api(environ, str(api.folder)).get(PODS)


def test_a_certificate_of_somebody_else_is_refused(api: ApiServer, tmp_path: Path) -> None:
    """The token goes only to the server that the cluster's authority vouches for."""
    certificate(tmp_path)
    (api.folder / "ca.crt").write_bytes((tmp_path / "tls.crt").read_bytes())
    api.start()

    with pytest.raises(ApiError, match=r"its certificate is not good: self.signed certificate"):
        Api(api.environ, str(api.folder)).get(PODS)
    assert api.asked == []


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "the name of this node is not known; set NODE_NAME or kubernetes.node"),
        ("a,b=c", "is not the name of a node"),
    ],
)
def test_without_the_nodes_name_nothing_is_asked(
    watched: Starter, api: ApiServer, caplog: pytest.LogCaptureFixture, name: str, problem: str
) -> None:
    """dcgm-exporter then watches the pods of the whole cluster, from every node."""
    started = watched(pod("a", GPU_0), **UIDS, node=name)

    assert started.owners() == [("0", "", "a")]
    assert started.up() == 0
    assert api.asked == []
    assert problem in caplog.records[0].getMessage()


# ---- Get: asked about one pod


def test_a_new_pod_is_asked_about_alone(watched: Starter, api: ApiServer, kubelet: Kubelet) -> None:
    """Its first figures have an owner: the next list is an hour away here."""
    kubelet.get = Get.THERE
    started = watched(pod("a", GPU_0), **UIDS)
    api.is_watched()
    kubelet.pods = [pod("a", GPU_0), pod("b", GPU_1)]
    api.put(pod_object("b"))
    until(lambda: started.uids() == {"a": "-", "b": "uid-of-b"}, "the new pod")

    assert kubelet.asked == 1
    assert kubelet.got == ["b"]
    api.put(pod_object("a"), pod_object("b", team="x"))  # holders: what they hold is known
    api.put(pod_object("c"))
    until(lambda: "c" in kubelet.got, "the pod that holds nothing")
    assert kubelet.got == ["b", "c"]
    assert kubelet.asked == 1


@pytest.mark.parametrize("get", [Get.MISSING, Get.DISABLED])
def test_a_kubelet_without_get_is_listed(watched: Starter, api: ApiServer, kubelet: Kubelet, get: Get) -> None:
    """Before Kubernetes 1.34 there is no Get, unless a feature gate is set; it is tried once."""
    kubelet.get = get
    started = watched(pod("a", GPU_0), **UIDS)
    api.is_watched()
    kubelet.pods = [pod("a", GPU_0), pod("b", GPU_1)]
    api.put(pod_object("b"))

    until(lambda: [who for _, _, who in started.owners()] == ["a", "b"], "the new pod")
    assert kubelet.asked == 2
    assert len(kubelet.got) == (get is Get.DISABLED)


def test_many_new_pods_are_listed_at_once(watched: Starter, api: ApiServer, kubelet: Kubelet) -> None:
    """A node that is filled in one go is not asked hundred times."""
    kubelet.get = Get.THERE
    started = watched(**UIDS)
    api.is_watched()
    kubelet.pods = [pod("pod-7", GPU_0)]
    asked = kubelet.asked
    api.put(*(pod_object(f"pod-{i}") for i in range(40)))

    until(lambda: [who for _, _, who in started.owners()] == ["pod-7"], "the owner")
    assert kubelet.asked > asked
    assert len(kubelet.got) <= 16


def test_a_gpu_that_was_given_on_is_not_told_of_both(watched: Starter, api: ApiServer, kubelet: Kubelet) -> None:
    """The pod before has ended and is still there, so nothing told of its end; the GPU would pass for shared."""
    kubelet.get = Get.THERE
    api.put(pod_object("ended"), pod_object("other"))
    started = watched(pod("ended", GPU_0), pod("other", GPU_1), **UIDS)
    api.is_watched()
    kubelet.pods = [pod("new", GPU_0), pod("other", GPU_1)]
    api.put(pod_object("new"))
    until(lambda: "new" in kubelet.got, "the question")
    until(lambda: started.owners() != [("0", "", "ended"), ("1", "", "other")], "the new pod")

    assert started.owners() == [("0", "", "new"), ("1", "", "other")]


def test_a_kubelet_that_hangs_is_not_waited_for_pod_by_pod(kubelet: Kubelet) -> None:
    """Each question has its limit, and sixteen of them would be minutes without a list."""
    kubelet.get = Get.THERE
    kubelet.start()
    pods = Pods(Client(str(kubelet.path), limit=0.2), refresh=FOR_EVER, expire=FOR_EVER)
    pods.start()
    assert pods.looked(LIMIT)
    kubelet.hang()
    for i in range(10):
        pods.notice(("team", f"pod-{i}"), is_there=True)
    until(lambda: pods.is_up is False, "the failure")

    assert len(kubelet.got) == 1
    kubelet.let_go()
    assert pods.stop(LIMIT)


def test_a_pod_that_goes_is_no_longer_an_owner(watched: Starter, api: ApiServer, kubelet: Kubelet) -> None:
    """The GPU of a deleted pod is free at once, not at the next regular question."""
    api.put(pod_object("a"))
    started = watched(pod("a", GPU_0), **UIDS)
    api.is_watched()
    kubelet.pods = []
    api.remove("a")

    until(lambda: started.owners() == [], "the end of the owner")


def test_a_pod_that_goes_while_the_kubelet_is_away_is_no_longer_an_owner(
    watched: Starter, api: ApiServer, kubelet: Kubelet
) -> None:
    """The kubelet's last word holds for minutes; that a pod is gone is known earlier. The others stay."""
    api.put(pod_object("a"), pod_object("b"))
    started = watched(pod("a", GPU_0), pod("b", GPU_1), **UIDS)
    api.is_watched()
    kubelet.stop()
    api.remove("a")

    until(lambda: started.owners() == [("1", "", "b")], "the end of the owner")


def test_a_pod_made_anew_while_nothing_is_heard_has_no_uid_of_the_old_one(
    watched: Starter, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The kubelet tells names alone: whoever held nothing in between may be another one; the others keep theirs."""
    caplog.set_level(logging.INFO)
    api.put(pod_object("a-0", uid="first", team="red"), pod_object("b", team="blue"))
    started = watched(pod("a-0", GPU_0), pod("b", GPU_1), **UIDS, **LABELS)
    api.is_watched()
    api.forbidden = {"list", "watch"}
    api.end_watches()
    until(lambda: started.meta().is_up is False, "the end of the watch")
    still = started.uids()
    started.says(pod("b", GPU_1))
    until(lambda: started.owners() == [("1", "", "b")], "the end of the first")
    started.says(pod("a-0", GPU_0), pod("b", GPU_1))
    until(lambda: len(started.owners()) == 2, "the pod of its name")
    doubted, teams = started.uids(), [labels.get("team") for labels in started.labels()]
    api.silently(pod_object("a-0", uid="second", team="green"))
    api.forbidden = set()
    until(lambda: started.uids() == {"a-0": "second", "b": "uid-of-b"}, "the second")

    assert still == {"a-0": "first", "b": "uid-of-b"}
    assert doubted == {"a-0": "-", "b": "uid-of-b"}
    assert teams == [None, "blue"]


def test_a_pod_made_anew_just_before_a_watch_breaks_has_no_uid_of_the_old_one(watched: Starter, api: ApiServer) -> None:
    """A connection is lost before that is noticed: what the kubelet tells meanwhile, no watch has told."""
    api.put(pod_object("a-0", uid="first"), pod_object("b"))
    started = watched(pod("a-0", GPU_0), pod("b", GPU_1), **UIDS)
    api.is_watched()
    started.says(pod("b", GPU_1))
    until(lambda: started.owners() == [("1", "", "b")], "the end of the first")
    started.says(pod("a-0", GPU_0), pod("b", GPU_1))
    until(lambda: len(started.owners()) == 2, "the pod of its name")
    api.forbidden = {"list", "watch"}
    api.end_watches(breaks=True)
    until(lambda: started.meta().is_up is False, "the end of the watch")
    doubted = started.uids()
    api.silently(pod_object("a-0", uid="second"))
    api.forbidden = set()
    until(lambda: started.uids() == {"a-0": "second", "b": "uid-of-b"}, "the second")

    assert doubted == {"a-0": "-", "b": "uid-of-b"}


# ---- the program


def test_the_program_takes_dcgm_exporters_flags(kubelet: Kubelet, api: ApiServer, tmp_path: Path) -> None:
    """A manifest for dcgm-exporter starts otelgpu as it is."""
    api.put(pod_object("a", app="llm", team="vision"))
    api.start()
    kubelet.pods = [pod("a", GPU_0)]
    kubelet.start()
    flags: tuple[str, ...] = ("-k", "-o=true", "-kubernetes-enable-pod-labels", "--kubernetes-enable-pod-uid=true")
    flags += ("--kubernetes-gpu-id-type", "device-name", "-kubernetes-pod-label-allowlist-regex=^app{1,2}$,^x$")
    environ = {**api.environ, "DCGM_POD_RESOURCES_KUBELET_SOCKET": str(kubelet.path), "NODE_NAME": "node-1"}
    environ |= {"OTELGPU_KUBERNETES_SERVICE_ACCOUNT": str(api.folder)}
    with serving(H100, tmp_path, *flags, environ=environ) as served:
        until(lambda: "pod_uid=" in served.page(), "the UID")
        line = next(line.labels for line in lines_of(served.page()) if line.name == MEMORY and "pod_uid" in line.labels)

        assert (line["pod_name"], line["pod_uid"], line["app"]) == ("a", "uid-of-a", "llm")
        assert "team" not in line
        api.hang()
        assert served.stop(limit=3) == 0
    assert "first-token" not in "".join(served.log)


# ---- settings

THEIRS = {
    "DCGM_EXPORTER_KUBERNETES": ("enabled", "true", True),
    "DCGM_EXPORTER_USE_OLD_NAMESPACE": ("old_names", "T", True),
    "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS": ("pod_labels", "1", True),
    "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID": ("pod_uid", "TRUE", True),
    "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE": ("gpu_id_type", "device-name", "device-name"),
    "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX": ("pod_label_allow", "^a{1,3}$,b", ("^a{1,3}$", "b")),
    "DCGM_POD_RESOURCES_KUBELET_SOCKET": ("socket", "/run/k.sock", "/run/k.sock"),
    "NVIDIA_RESOURCE_NAMES": ("resource_names", "a.b/c,d.e/f", ("a.b/c", "d.e/f")),
    "KUBERNETES_VIRTUAL_GPUS": ("virtual_gpus", "true", True),
    "KUBERNETES_ENABLE_DRA": ("dra", "true", True),
    "NODE_NAME": ("node", "node-7", "node-7"),
}


@pytest.mark.parametrize("variable", THEIRS)
def test_dcgm_exporters_variables_are_understood(variable: str) -> None:
    """The environment of a dcgm-exporter manifest means the same here; our own variable of the setting goes over it."""
    name, text, value = THEIRS[variable]
    ours = {f"OTELGPU_KUBERNETES_{name.upper()}": "/ours" if name == "socket" else "false" if value is True else "uid"}

    config = load(environ={variable: text})
    assert getattr(config.kubernetes, name) == value
    assert config.origin(f"kubernetes.{name}") == variable
    assert getattr(load(environ={variable: text, **ours}).kubernetes, name) != value
    assert getattr(load(environ={variable: ""}).kubernetes, name) == getattr(Kubernetes(), name)


FLAGS = {
    "--kubernetes": "kubernetes.enabled",
    "-k": "kubernetes.enabled",
    "--use-old-namespace": "kubernetes.old_names",
    "-o": "kubernetes.old_names",
    "--kubernetes-enable-pod-labels": "kubernetes.pod_labels",
    "--kubernetes-enable-pod-uid": "kubernetes.pod_uid",
    "--kubernetes-gpu-id-type": "kubernetes.gpu_id_type",
    "--kubernetes-pod-label-allowlist-regex": "kubernetes.pod_label_allow",
    "--pod-resources-kubelet-socket": "kubernetes.socket",
    "--nvidia-resource-names": "kubernetes.resource_names",
    "--kubernetes-virtual-gpus": "kubernetes.virtual_gpus",
    "--kubernetes-enable-dra": "kubernetes.dra",
    "--hpc-job-mapping-dir": "jobs.dir",
}


def test_every_flag_of_dcgm_exporter_is_taken() -> None:
    """A flag that is unknown ends the start: the DaemonSet would not come up."""
    taken = {flag: setting.key for setting in SETTINGS.values() for flag in setting.flags}

    assert {flag: taken.get(flag) for flag in FLAGS} == FLAGS


def test_the_variable_of_the_job_folder_is_understood() -> None:
    """It stands in the environment of the prolog's machine as well."""
    assert load(environ={"DCGM_HPC_JOB_MAPPING_DIR": "/run/jobs"}).jobs.dir == "/run/jobs"


def test_what_is_said_more_closely_goes_over_the_rest(tmp_path: Path) -> None:
    """A flag over our variable, ours over dcgm-exporter's, and that over the file."""
    path = tmp_path / "otelgpu.yaml"
    path.write_text("kubernetes:\n  socket: /file\n")
    theirs = {"DCGM_POD_RESOURCES_KUBELET_SOCKET": "/theirs"}
    both = theirs | {"OTELGPU_KUBERNETES_SOCKET": "/ours"}
    flag = [Flag("--pod-resources-kubelet-socket", "kubernetes.socket", "/flag")]

    given = [
        load(environ={}, config_path=str(path)),
        load(environ=theirs, config_path=str(path)),
        load(environ=both, config_path=str(path)),
        load(environ=both, config_path=str(path), flags=flag),
    ]
    assert [config.kubernetes.socket for config in given] == ["/file", "/theirs", "/ours", "/flag"]


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("a,b", ("a", "b")),
        ("a{1,3},b", ("a{1,3}", "b")),
        ("[a,b],c", ("[a,b]", "c")),
        ("(x,y|z){2,},c", ("(x,y|z){2,}", "c")),
        (r"a\,b", (r"a\,b",)),
        (r"a\(,b", (r"a\(", "b")),
        (r"[\]],b", (r"[\]]", "b")),
        (" a , ,b,", ("a", "b")),
    ],
)
def test_a_pattern_may_hold_commas(text: str, patterns: tuple[str, ...]) -> None:
    """dcgm-exporter splits at every comma, so `a{1,3}` cannot be said to it."""
    assert load(environ={"OTELGPU_KUBERNETES_POD_LABEL_ALLOW": text}).kubernetes.pod_label_allow == patterns


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        (
            {"DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE": "uuid"},
            'DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE: expected auto, uid or device-name, got "uuid"',
        ),
        (
            {"DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX": "app,te(am"},
            (
                "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX: expected a regular expression "
                '(missing ), unterminated subpattern at position 2), got "te(am"'
            ),
        ),
        (
            {"KUBERNETES_ENABLE_DRA": "yes please"},
            'KUBERNETES_ENABLE_DRA: expected true or false, got "yes please"',
        ),
    ],
)
def test_a_wrong_value_is_refused_at_the_start(environ: Mapping[str, str], problem: str) -> None:
    """dcgm-exporter starts with each of these: then every scrape fails, or every label is let through."""
    with pytest.raises(ConfigError) as caught:
        load(environ=environ)
    assert caught.value.problems == (problem,)


def test_an_allow_list_alone_shows_nothing_and_says_so(
    watched: Starter, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """As with dcgm-exporter the switch is what turns labels on."""
    api.put(pod_object("a", team="vision"))
    (labels,) = watched(pod("a", GPU_0), pod_label_allow=("team",)).labels()

    assert "team" not in labels
    assert [record.getMessage() for record in caplog.records] == [
        "kubernetes.pod_label_allow has no effect: kubernetes.pod_labels is false"
    ]


def test_patterns_stand_as_a_list_in_the_file(tmp_path: Path) -> None:
    """Each entry is one pattern, whatever it holds."""
    path = tmp_path / "otelgpu.yaml"
    path.write_text("kubernetes:\n  pod_label_allow:\n    - ^a,b$\n    - x{1,2}\n")

    assert load(environ={}, config_path=str(path)).kubernetes.pod_label_allow == ("^a,b$", "x{1,2}")


def test_json_of_a_stranger_is_no_answer(api: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    """Something else may listen there: a proxy's page is no list of pods."""
    api.start()

    class Strange(PodListing):
        def path(self, _: Api) -> str:
            return "/apis/resource.k8s.io"

    mirrored = Mirror(Api(api.environ, str(api.folder)), Strange("node-1", uids=True, labels=False), expire=60)
    mirrored.start()
    assert mirrored.looked(LIMIT)

    assert mirrored.is_up is False
    assert "the API server sent what is no answer" in caplog.records[0].getMessage()
    assert mirrored.table() == {}
    assert mirrored.stop(LIMIT)
