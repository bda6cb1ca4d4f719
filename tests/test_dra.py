"""Dynamic Resource Allocation: from claims that the kubelet tells, through ResourceSlices, to the labels of a page."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from tests.conftest import Golden
from tests.fakeapi import GROUP, ApiServer, gpu_device, mig_device, pod_object, slice_object
from tests.fakekubelet import claiming, pod
from tests.fakenvml import Scenario
from tests.harness import lines_of, until, values
from tests.test_kubernetes import (
    GPU_0,
    GPU_1,
    MEMORY,
    MIG,
    MIG_5,
    MIG_7,
    MIG_9,
    PARENT,
    TEMPERATURE,
    WHOLE,
    kubelet,
    owners_on,
    readings_of,
)
from tests.test_kubernetes_api import Starter, Watched, api, papers, watched

__all__ = ["api", "kubelet", "papers", "watched"]  # the fixtures

DRA: Mapping[str, object] = {"dra": True}
BOTH = slice_object("node-1-gpus", gpu_device("gpu-0", GPU_0), gpu_device("gpu-1", GPU_1))
# Where the driver tells the place: the two 1g.5gb of GPU 0 begin at memory slices 4 and 2, the 2g.10gb at 0.
PLACED = MIG.with_instance(0, 0, placement=(19, 4, 1)).with_instance(0, 1, placement=(19, 2, 1))
PLACED = PLACED.with_instance(0, 2, placement=(14, 0, 2))


def claims(started: Watched, name: str = MEMORY) -> list[Mapping[str, str]]:
    """The labels of the series of a family that tell of a claim, without the prefix."""
    return [
        {key.removeprefix("dra_"): text for key, text in line.labels.items() if key.startswith("dra_")}
        for line in lines_of(started.node.page())
        if line.name == name and "dra_claim_name" in line.labels
    ]


def test_the_page_with_claims_is_as_reviewed(watched: Starter, api: ApiServer, golden: Golden) -> None:
    """A claimed GPU, a claimed instance, and one that a device plugin gave out: each series has its labels."""
    part = mig_device("gpu-0-mig-1g5gb-19-4", parent=PARENT, profile="1g.5gb", uuid=MIG_7)
    api.put(slice_object("s", gpu_device("gpu-1", WHOLE), part), path="slices")
    pods = (claiming("train-0", "gpu-1"), claiming("infer-0", "gpu-0-mig-1g5gb-19-4"), pod("old", MIG_9))
    started = watched(*pods, scenario=MIG, **DRA)

    golden("page/kubernetes_dra.txt", readings_of(started.node.settled_page()))


@pytest.mark.parametrize(
    ("offered", "asked"),
    [
        (("v1", "v1beta2", "v1beta1"), "v1"),
        (("v1beta1", "v1beta2"), "v1beta2"),
        (("v1alpha3", "v1beta1"), "v1beta1"),
    ],
)
def test_the_newest_version_that_is_offered_is_asked(
    watched: Starter, api: ApiServer, offered: tuple[str, ...], asked: str
) -> None:
    """dcgm-exporter knows v1beta1 alone, and hangs at the start where it is not served: from Kubernetes 1.34 on."""
    api.versions = offered
    api.put(BOTH, path="slices")
    started = watched(claiming("a", "gpu-1"), **DRA)

    assert started.owners() == [("1", "", "a")]
    assert {one.path for one in api.asked} == {GROUP, f"{GROUP}/{asked}/resourceslices"}
    assert {one.query.get("fieldSelector") for one in api.asked if one.path != GROUP} == {
        "spec.nodeName=node-1,spec.driver=gpu.nvidia.com"
    }


def test_a_claim_is_told_by_dcgm_exporters_labels(watched: Starter, api: ApiServer) -> None:
    """Dashboards join on them."""
    api.put(BOTH, path="slices")
    (labels,) = claims(watched(claiming("a", "gpu-0", claim="a-gpu-x7"), **DRA))

    assert labels == {
        "claim_name": "a-gpu-x7",
        "claim_namespace": "team",
        "device_name": "gpu-0",
        "driver_name": "gpu.nvidia.com",
        "pool_name": "node-1",
    }


# A MIG device as a slice tells it, and the instance it is.
PARTS: Mapping[str, tuple[Mapping[str, Any], str | None]] = {
    "its UUID": ({"uuid": MIG_5, "profile": "2g.10gb"}, "5"),
    "its place": ({"profile": "1g.5gb", "slices": range(2, 3)}, "9"),
    "its place, the other one": ({"profile": "1g.5gb", "slices": range(4, 5)}, "7"),
    "a place of two slices": ({"profile": "2g.10gb", "slices": range(2)}, "5"),
    "a place where there is none": ({"profile": "1g.5gb", "slices": range(6, 7)}, None),
    "another profile at that place": ({"profile": "2g.10gb", "slices": range(4, 6)}, None),
    "no place": ({"profile": "1g.5gb"}, None),
    "a UUID that is not here": ({"uuid": "MIG-x", "profile": "1g.5gb", "slices": range(4, 5)}, None),
}


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
@pytest.mark.parametrize("how", PARTS)
def test_a_mig_claim_is_found_by_its_uuid_or_its_place(
    watched: Starter, api: ApiServer, how: str, version: str
) -> None:
    """dcgm-exporter looks for the parent's UUID, which no series of an instance is known by: it never finds one."""
    told, instance = PARTS[how]
    api.versions = (version,)
    api.put(slice_object("s", mig_device("gpu-0-mig", parent=PARENT, **told)), path="slices")
    started = watched(claiming("a", "gpu-0-mig"), scenario=PLACED, **DRA)

    assert started.owners() == ([("0", instance, "a")] if instance else [])
    labels = claims(started)
    assert [one["mig_profile"] for one in labels] == ([told["profile"]] if instance else [])


@pytest.mark.parametrize(
    ("scenario", "owned"),
    [(MIG, []), (MIG.without_instance(0, 1), [("0", "7", "a")])],
)
def test_where_the_driver_tells_no_place_only_the_one_of_its_kind_is_sure(
    watched: Starter, api: ApiServer, scenario: Scenario, owned: object
) -> None:
    """The driver tells the place to root alone; of two that could be meant neither is named."""
    device = mig_device("gpu-0-mig", parent=PARENT, profile="1g.5gb", slices=range(4, 5))
    api.put(slice_object("s", device), path="slices")

    assert watched(claiming("a", "gpu-0-mig"), scenario=scenario, **DRA).owners() == owned


def test_older_slices_tell_the_place_among_the_capacities(watched: Starter, api: ApiServer) -> None:
    """NVIDIA's driver for v1beta1 has `memorySlice4` there, and attributes may carry the driver's domain."""
    device = mig_device("gpu-0-mig", parent=PARENT, profile="1g.5gb")
    device["attributes"] = {f"gpu.nvidia.com/{name}": value for name, value in device["attributes"].items()}
    device["capacity"] = {"gpu.nvidia.com/memorySlice4": {"value": "1"}, "memory": {"value": "4864Mi"}}
    del device["consumesCounters"]
    api.versions = ("v1beta1",)
    api.put(slice_object("s", device), path="slices")

    assert watched(claiming("a", "gpu-0-mig"), scenario=PLACED, **DRA).owners() == [("0", "7", "a")]


def test_a_slice_that_changes_is_followed(watched: Starter, api: ApiServer) -> None:
    """What a slice no longer lists is no longer there; with dcgm-exporter it stays for ever."""
    api.put(slice_object("s", gpu_device("gpu-0", GPU_0)), path="slices")
    started = watched(claiming("a", "gpu-0"), claiming("b", "gpu-1"), **DRA)
    api.is_watched()
    first = started.owners()
    api.put(slice_object("s", gpu_device("gpu-1", GPU_1)), path="slices")
    until(lambda: started.owners() == [("1", "", "b")], "the other GPU")

    assert first == [("0", "", "a")]
    assert values(started.node.page(), "otelgpu_attribution_unmatched_devices", "source") == {"kubelet": 1}
    api.remove("s", path="slices")
    until(lambda: started.owners() == [], "the end of the slice")


def test_only_the_newest_generation_of_a_pool_counts(watched: Starter, api: ApiServer) -> None:
    """While a driver publishes a pool anew, slices of both generations are there, and may use names again."""
    api.put(
        slice_object("old", gpu_device("gpu-0", GPU_1), generation=1),
        slice_object("new", gpu_device("gpu-0", GPU_0), generation=2),
        slice_object("other", gpu_device("gpu-0", GPU_1), generation=1, pool="another"),
        path="slices",
    )
    started = watched(claiming("a", "gpu-0"), claiming("b", "gpu-0", pool="another"), **DRA)

    assert started.owners() == [("0", "", "a"), ("1", "", "b")]


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_a_name_that_two_slices_give_to_different_gpus_means_none(
    watched: Starter, api: ApiServer, names: tuple[str, str]
) -> None:
    """Which of them is meant nobody can tell, and least of all the order of the list; what is said twice is sure."""
    twice = gpu_device("gpu-1", GPU_1)
    api.put(
        slice_object(names[0], gpu_device("gpu-0", GPU_0), twice),
        slice_object(names[1], gpu_device("gpu-0", GPU_1), twice),
        path="slices",
    )
    started = watched(claiming("x", "gpu-0"), claiming("y", "gpu-1"), **DRA)

    assert started.owners() == [("1", "", "y")]


def test_other_nodes_and_drivers_are_left_alone(watched: Starter, api: ApiServer) -> None:
    """Names of devices are the same on every node."""
    api.put(
        slice_object("s", gpu_device("gpu-0", GPU_0)),
        slice_object("t", gpu_device("gpu-1", GPU_1), node="node-2"),
        slice_object("u", gpu_device("nic-0", GPU_1), driver="nic.example.com"),
        path="slices",
    )
    nic = claiming("c", "nic-0", driver="nic.example.com")
    started = watched(claiming("a", "gpu-0"), claiming("b", "gpu-1", pool="node-2"), nic, **DRA)

    assert started.owners() == [("0", "", "a")]


def test_claims_are_left_alone_without_the_switch(watched: Starter, api: ApiServer) -> None:
    """No API server is needed by those who do not use claims."""
    api.put(BOTH, path="slices")
    started = watched(claiming("a", "gpu-0"), pod("b", GPU_1))

    assert started.owners() == [("1", "", "b")]
    assert api.asked == []


@pytest.mark.parametrize(
    ("versions", "forbidden", "problem"),
    [
        ((), set(), "this Kubernetes has no Dynamic Resource Allocation (resource.k8s.io)"),
        (("v9",), set(), "the API server has resource.k8s.io in v9, otelgpu knows v1, v1beta2, v1beta1"),
        (("v1",), {f"{GROUP}/v1/resourceslices"}, f"{GROUP}/v1/resourceslices: 403"),
        (("v1",), {GROUP}, f"{GROUP}: 403"),
    ],
)
def test_a_cluster_without_it_costs_only_the_claims(
    watched: Starter,
    api: ApiServer,
    versions: tuple[str, ...],
    forbidden: set[str],
    problem: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """dcgm-exporter waits for its first answer without a limit, before it serves anything."""
    api.versions, api.forbidden = versions, forbidden
    started = watched(claiming("a", "gpu-0"), pod("b", GPU_1), **DRA)
    until(lambda: len(api.asked) >= 3, "several attempts")

    assert started.owners() == [("1", "", "b")]
    assert started.up("resourceslices") == 0
    (record,) = caplog.records
    assert problem in record.getMessage()


def test_an_unknown_slice_is_no_reason_to_say_that_nothing_matches(
    watched: Starter, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start the kubelet may answer before the API server; a warning each time would be one too many."""
    caplog.set_level(logging.WARNING, "otelgpu.attribution")
    started = watched(claiming("a", "gpu-0"), **DRA)
    api.is_watched()
    none = started.owners()
    api.put(BOTH, path="slices")
    until(lambda: started.owners() == [("0", "", "a")], "the slice")

    assert none == []
    assert caplog.records == []


@pytest.mark.parametrize("mode", [{"virtual_gpus": True}, {"old_names": True}, {"pod_uid": True, "pod_labels": True}])
def test_claims_go_with_every_mode(watched: Starter, api: ApiServer, mode: Mapping[str, object]) -> None:
    """With dcgm-exporter a claimed GPU has neither the pod's UID nor its labels."""
    api.put(BOTH, path="slices")
    api.put(pod_object("a", team="vision"))
    started = watched(claiming("a", "gpu-0"), **DRA, **mode)
    lines = lines_of(started.node.page())
    (line,) = (x.labels for x in lines if x.name == TEMPERATURE and "dra_pool_name" in x.labels)

    assert line.get("pod_name" if "old_names" in mode else "pod") == "a"
    if "pod_uid" in mode:
        assert (line["pod_uid"], line["team"]) == ("uid-of-a", "vision")


def test_two_that_share_a_claim_are_told_and_the_value_stands_once(watched: Starter, api: ApiServer) -> None:
    """A claim may be used by several pods; none of them has the GPU alone."""
    api.put(BOTH, path="slices")
    page = watched(claiming("a", "gpu-0", claim="c"), claiming("b", "gpu-0", claim="c"), **DRA).node.page()

    assert owners_on(lines_of(page)) == []
    assert owners_on(lines_of(page), "otelgpu_gpu_owner") == [("0", "", "a"), ("0", "", "b")]


def test_a_claim_of_an_old_kubelet_is_left_out(watched: Starter, api: ApiServer) -> None:
    """Before Kubernetes 1.31 the kubelet tells the CDI name alone."""
    api.put(BOTH, path="slices")

    assert watched(claiming("a", ""), pod("b", GPU_1), **DRA).owners() == [("1", "", "b")]
