"""What each pod of a shared GPU uses, under the pod's name: processes, /proc and the API server together."""

from pathlib import Path
from typing import Literal

import pytest

from otelgpu.config import Limits, Processes
from tests.conftest import Golden
from tests.fakeapi import ApiServer, pod_object
from tests.fakekubelet import pod
from tests.fakeproc import FakeProc, pod_path, uid
from tests.harness import lines_of, until
from tests.test_kubernetes import GPU_0
from tests.test_kubernetes_api import Starter, api, kubelet, papers, watched
from tests.test_processes import ENERGY, GIB, MEMORY, PAST, REST, SM, counter, owned, owners, sample, using

__all__ = ["api", "kubelet", "papers", "watched"]  # the fixtures

A, B = ("namespace=team", "pod=notebook-a"), ("namespace=team", "pod=notebook-b")


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """A host with two pods, one of them with two containers."""
    folder = tmp_path / "proc"
    folder.mkdir()
    made = FakeProc(folder)
    for pid, number, container in ((11, 1, 7), (12, 1, 8), (21, 2, 9)):
        made.run(pid, pod_path(number, container))
    return made


SHARED = (pod("notebook-a", f"{GPU_0}::0"), pod("notebook-a", f"{GPU_0}::1", container="b"), pod("notebook-b", GPU_0))
USED = using({11: 1, 12: 2, 21: 4}, sample(11, 40), sample(12, 5), sample(21, 30))


def told(api: ApiServer) -> None:
    """The API server knows both pods."""
    api.put(pod_object("notebook-a", uid=uid(1), team="vision"), pod_object("notebook-b", uid=uid(2)))


def test_pods_that_share_a_gpu_are_measured_and_named(watched: Starter, api: ApiServer, proc: FakeProc) -> None:
    """Each pod once, however many containers and replicas it has: sums over pods are the GPU's."""
    told(api)
    started = watched(*SHARED, scenario=USED, processes=Processes(by="pod", proc_root=str(proc.folder)))
    page = started.node.page()
    uids = (f"pod_uid={uid(1)}",), (f"pod_uid={uid(2)}",)

    assert owners(page) == {(*A, *uids[0]): 3 * GIB, (*B, *uids[1]): 4 * GIB}
    assert owners(page, SM) == {(*A, *uids[0]): 0.45, (*B, *uids[1]): 0.3}
    assert not any("pod_uid" in line.labels for line in lines_of(page) if not line.name.startswith("otelgpu_owner_"))


def test_virtual_gpus_show_what_each_pod_uses(watched: Starter, api: ApiServer, proc: FakeProc) -> None:
    """dcgm-exporter's sharing mode: two fields are measured by pod, once for each; the GPU's own line stays."""
    told(api)
    api.put(pod_object("idle", uid=uid(3)))
    shared = (*SHARED, pod("idle", f"{GPU_0}::2"), pod("unknown", f"{GPU_0}::3"))
    settings = Processes(by="process", proc_root=str(proc.folder))
    started = watched(*shared, scenario=USED, processes=settings, virtual_gpus=True)

    def rows(name: str) -> list[tuple[str, str, float]]:
        lines = [line for line in lines_of(started.node.page()) if line.name == name and line.labels["gpu"] == "0"]
        return [(line.labels.get("pod", ""), line.labels.get("pod_uid", ""), line.value) for line in lines]

    used = rows("DCGM_FI_DEV_FB_USED")
    assert used[0][:2] == ("", "")
    assert used[1:] == [("idle", uid(3), 0), ("notebook-a", uid(1), 3072), ("notebook-b", uid(2), 4096)]
    assert rows("DCGM_FI_DEV_GPU_UTIL")[1:] == [
        ("idle", uid(3), 0),
        ("notebook-a", uid(1), 45),
        ("notebook-b", uid(2), 30),
    ]
    proc.end(21)  # from now on it is not known whose it is, so that it may be the idle one's
    started.node.show(using({11: 1, 12: 2, 22: 4}))
    assert rows("DCGM_FI_DEV_FB_USED")[1:] == [("notebook-a", uid(1), 3072)]
    assert rows("DCGM_FI_DEV_GPU_UTIL")[1:] == [("notebook-a", uid(1), 0)]


@pytest.mark.parametrize(
    ("by", "most", "shown"),
    [
        ("process", 3, {"notebook-a", "notebook-b"}),
        ("process", 2, set()),
        ("pod", 2, {"notebook-a", "notebook-b"}),
    ],
)
def test_a_pod_of_which_a_part_is_folded_has_no_row(
    by: Literal["pod", "process"], most: int, shown: set[str], watched: Starter, api: ApiServer, proc: FakeProc
) -> None:
    """The sum over those of its processes that have a place would pass for all that it uses."""
    told(api)
    settings, limits = Processes(by=by, proc_root=str(proc.folder)), Limits(owners_per_gpu=most)
    shared = (pod("notebook-a", f"{GPU_0}::0"), pod("notebook-b", f"{GPU_0}::1"))
    started = watched(*shared, scenario=USED, processes=settings, limits=limits, virtual_gpus=True)

    assert {labels["pod"] for labels in started.labels("DCGM_FI_DEV_FB_USED")} == shown


def test_the_page_is_as_reviewed(watched: Starter, api: ApiServer, proc: FakeProc, golden: Golden) -> None:
    """With the pods' labels, by container."""
    told(api)
    settings = Processes(by="container", proc_root=str(proc.folder))
    started = watched(*SHARED, scenario=counter(1000, USED), processes=settings, pod_labels=True)
    started.node.show(counter(3000, USED))

    golden("page/processes_pods.txt", owned(started.node.page()))


def test_a_pod_whose_name_nobody_tells_goes_by_its_uid(watched: Starter, api: ApiServer, proc: FakeProc) -> None:
    """Without the API server the figures are there all the same, and are named once it answers."""
    told(api)
    settings = Processes(by="pod", proc_root=str(proc.folder))
    api.forbidden = {"list"}
    started = watched(*SHARED, scenario=counter(1000, USED), processes=settings)
    before = owners(started.node.page())
    api.forbidden = set()
    until(lambda: (*A, f"pod_uid={uid(1)}") in owners(started.node.page()), "the name")

    assert before == {(f"pod_uid={uid(1)}",): 3 * GIB, (f"pod_uid={uid(2)}",): 4 * GIB}
    assert owners(started.node.page(), ENERGY).keys() == owners(started.node.page(), MEMORY).keys() | {
        REST,
        PAST,
    }


def test_the_uid_is_on_other_series_only_when_asked_for(watched: Starter, api: ApiServer, proc: FakeProc) -> None:
    """`kubernetes.pod_uid` says that; what processes need does not change the page of the others."""
    told(api)
    settings = Processes(by="pod", proc_root=str(proc.folder))
    started = watched(pod("notebook-a", GPU_0), scenario=USED, processes=settings, pod_uid=True)

    assert {labels.get("pod_uid") for labels in started.labels()} == {uid(1)}


def test_no_label_of_a_pod_passes_for_one_of_ours(watched: Starter, api: ApiServer, proc: FakeProc) -> None:
    """A pod that calls itself owner="other" is not the rest; on all other series its labels keep their names."""
    labels = {"owner": "other", "user": "root", "process": "x", "unit": "y", "container-id": "z"}
    api.put(pod_object("notebook-a", uid=uid(1), **labels))
    settings = Processes(by="process", users=True, proc_root=str(proc.folder))
    started = watched(pod("notebook-a", GPU_0), scenario=using({11: 1}), processes=settings, pod_labels=True)
    page = started.node.page()
    (shown,) = owners(page)
    (others, *_) = started.labels()

    assert {"pod_label_owner=other", "pod_label_user=root", "pod_label_process=x", "pod_label_unit=y"} <= set(shown)
    assert {"pod_label_container_id=z", "user=0"} <= set(shown)
    assert (others["owner"], others["user"], others["process"], others["unit"]) == ("other", "root", "x", "y")
