"""Owners on the page: what a series is labelled with once it is known who uses the GPU."""

from collections.abc import Callable, Mapping

import pytest
from opentelemetry.sdk.metrics import MeterProvider

from otelgpu.export.join import DcgmJoin, SemconvJoin
from otelgpu.export.page import Format, PageReader
from otelgpu.export.semconv import JoinedPrometheusReader
from otelgpu.instruments import Pinned, create_instruments
from otelgpu.model import NOBODY, Owner, OwnerKind, Owners
from tests.fakenvml import models
from tests.harness import Line, Node, lines_of

GPU_0, GPU_1 = (gpu.uuid for gpu in models.h100(2).gpus)
TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"


def pod(name: str, container: str = "main", vgpu: str = "") -> Owner:
    """A container of a pod in the namespace "team"."""
    return Owner(OwnerKind.POD, "team", name, container, vgpu=vgpu)


def job(name: str) -> Owner:
    """A batch job."""
    return Owner(OwnerKind.JOB, job=name)


Pager = Callable[..., list[Line]]


@pytest.fixture
def pager(node: Callable[..., Node]) -> Pager:
    """Make the lines of a page of two GPUs: `pager({uuid: owners}, virtual_gpus=True)`."""
    started = node(models.h100(2))
    readers: dict[str, PageReader] = {}
    identities = iter(range(1, 100))

    def page(owned: Mapping[str, tuple[Owner, ...]], **settings: object) -> list[Line]:
        reader = readers.get(repr(settings))
        if reader is None:
            pinned = Pinned()
            join = DcgmJoin("4.8.2", "node-1", **settings)  # type: ignore[arg-type]
            reader = readers[repr(settings)] = PageReader(started.pipeline.fields, join, pinned)
            _provide(reader, started, pinned)
        owners = Owners(next(identities), owned)
        return lines_of(reader.page(started.sweep(), Format.TEXT, shown=True, owners=owners).decode())

    return page


def _provide(reader: PageReader | JoinedPrometheusReader, started: Node, pinned: Pinned) -> None:
    provider = MeterProvider([reader], shutdown_on_exit=False)
    create_instruments(provider.get_meter("test"), started.pipeline.fields, pinned)


def of(lines: list[Line], name: str, **labels: str) -> list[Mapping[str, str]]:
    """The labels of the samples of one family that carry *labels*."""
    return [line.labels for line in lines if line.name == name and labels.items() <= line.labels.items()]


def test_the_only_owner_of_a_gpu_is_named_on_all_its_series(pager: Pager) -> None:
    """A figure is worth something once it says whose it is; a GPU that nobody has carries no empty labels."""
    lines = pager({GPU_0: (pod("train-0"),)})
    own = [line for line in lines if line.name.startswith("DCGM_") and line.labels["gpu"] == "0"]
    others = [line for line in lines if line.name.startswith("DCGM_") and line.labels["gpu"] == "1"]

    assert own
    assert {(x.labels["namespace"], x.labels["pod"], x.labels["container"]) for x in own} == {
        ("team", "train-0", "main")
    }
    assert others
    assert not any({"namespace", "pod", "container", "pod_uid", "vgpu"} & x.labels.keys() for x in others)


def test_owner_labels_come_last_and_by_name(pager: Pager) -> None:
    """dcgm-exporter prints the attributes of a series after its labels, sorted; text tools rely on it."""
    (labels,) = of(pager({GPU_0: (pod("train-0"), job("42"))}), TEMPERATURE, gpu="0")

    assert list(labels)[-5:] == ["DCGM_FI_DRIVER_VERSION", "container", "hpc_job", "namespace", "pod"]


def test_old_label_names_are_given_on_request(pager: Pager) -> None:
    """Dashboards from the days of pod_name go on working."""
    (labels,) = of(pager({GPU_0: (pod("train-0"),)}, old_names=True), TEMPERATURE, gpu="0")

    assert labels["uuid"] == GPU_0
    assert (labels["container_name"], labels["pod_namespace"], labels["pod_name"]) == ("main", "team", "train-0")
    assert not {"UUID", "pod", "namespace", "container"} & labels.keys()


def test_a_shared_gpu_is_shown_once_and_its_owners_in_a_family_of_their_own(pager: Pager) -> None:
    """Copies of one value under each owner's name would make every sum too large by the number of sharers."""
    lines = pager({GPU_0: (pod("a", vgpu="0"), pod("b", vgpu="1")), GPU_1: (pod("c"),)})

    assert [set(labels) & {"pod", "vgpu"} for labels in of(lines, TEMPERATURE, gpu="0")] == [set()]
    assert of(lines, "otelgpu_gpu_owner") == [
        {"gpu": "0", "UUID": GPU_0, "container": "main", "namespace": "team", "pod": "a"},
        {"gpu": "0", "UUID": GPU_0, "container": "main", "namespace": "team", "pod": "b"},
        {"gpu": "1", "UUID": GPU_1, "container": "main", "namespace": "team", "pod": "c"},
    ]


def test_a_container_with_two_replicas_of_a_gpu_is_its_only_owner(pager: Pager) -> None:
    """With time-slicing a container may ask for two replicas; they are one device all the same."""
    lines = pager({GPU_0: (pod("a", vgpu="0"), pod("a", vgpu="1"))})

    assert [labels["pod"] for labels in of(lines, TEMPERATURE, gpu="0")] == ["a"]
    assert len(of(lines, "otelgpu_gpu_owner")) == 1


def test_virtual_gpus_give_a_copy_for_each_replica(pager: Pager) -> None:
    """Whoever depends on dcgm-exporter's rows per pod gets them: one a replica, and none without an owner."""
    lines = pager({GPU_0: (pod("a", vgpu="0"), pod("b", vgpu="1"))}, virtual_gpus=True)

    assert [(x["pod"], x["vgpu"]) for x in of(lines, TEMPERATURE, gpu="0")] == [("a", "0"), ("b", "1")]
    assert ["pod" in labels for labels in of(lines, TEMPERATURE, gpu="1")] == [False]


@pytest.mark.parametrize("name", ["DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"])
def test_virtual_gpus_never_pass_the_devices_use_off_as_a_pods(pager: Pager, name: str) -> None:
    """For these two dcgm-exporter's row is what the pod itself uses; the whole device's would be another figure."""
    lines = pager({GPU_0: (pod("a", vgpu="0"), pod("b", vgpu="1"))}, virtual_gpus=True)

    assert ["pod" in labels for labels in of(lines, name, gpu="0")] == [False]


def test_each_job_on_a_gpu_has_a_copy_of_its_series(pager: Pager) -> None:
    """The series of a job are found by hpc_job alone, as with dcgm-exporter."""
    lines = pager({GPU_0: (pod("a"), job("41"), job("42"))})

    assert [(x["pod"], x["hpc_job"]) for x in of(lines, TEMPERATURE, gpu="0")] == [("a", "41"), ("a", "42")]


def test_owner_texts_are_escaped(pager: Pager) -> None:
    """A quote or a line break in a job's name would break the page for Prometheus."""
    (labels,) = of(pager({GPU_0: (job('a"b\\c\nd'),)}), TEMPERATURE, gpu="0")

    assert labels["hpc_job"] == 'a"b\\c\nd'


def test_a_new_owner_replaces_the_old_one_on_the_next_page(pager: Pager) -> None:
    """Line prefixes are kept between pages; those of the owner before must not be."""
    before = of(pager({GPU_0: (pod("old"),)}), TEMPERATURE, gpu="0")
    after = of(pager({GPU_0: (pod("new"),)}), TEMPERATURE, gpu="0")
    gone = of(pager({}), TEMPERATURE, gpu="0")

    assert [labels.get("pod") for labels in (*before, *after, *gone)] == ["old", "new", None]


def test_owners_of_a_gpu_that_does_not_answer_are_still_told(node: Callable[..., Node]) -> None:
    """Whose GPU is broken is asked when it is broken."""
    started = node(models.h100(2))
    started.show(models.h100(2).with_gpu(0, lost=True))
    owners = Owners(1, {GPU_0: (pod("victim"),)})
    page = started.pipeline.reader.page(started.sweep(), Format.TEXT, shown=True, owners=owners).decode()

    assert [labels["pod"] for labels in of(lines_of(page), "otelgpu_gpu_owner")] == ["victim"]


def test_semconv_names_the_only_owner_and_lists_several(node: Callable[..., Node]) -> None:
    """OpenTelemetry has its own names for pods; a shared GPU has no owner attributes there either."""
    started = node(models.h100(2))
    pinned = Pinned()
    reader = JoinedPrometheusReader(started.pipeline.fields, SemconvJoin(), pinned)
    _provide(reader, started, pinned)
    owners = Owners(1, {GPU_0: (pod("a"), job("42")), GPU_1: (pod("b"), pod("c"))})
    lines = lines_of(reader.page(started.sweep(), Format.TEXT, shown=True, owners=owners).decode())
    (sole,) = of(lines, "hw_power_watts", hw_id=GPU_0)
    (shared,) = of(lines, "hw_power_watts", hw_id=GPU_1)

    assert (sole["k8s_namespace_name"], sole["k8s_pod_name"], sole["k8s_container_name"]) == ("team", "a", "main")
    assert sole["hw_gpu_nvidia_job_id"] == "42"
    assert not [name for name, text in shared.items() if text and name.startswith("k8s")]
    assert [x["k8s_pod_name"] for x in of(lines, "otelgpu_gpu_owner")] == ["a", "", "b", "c"]


def test_a_page_without_owners_is_what_it_was(node: Callable[..., Node]) -> None:
    """Outside Kubernetes nothing changes."""
    started = node(models.h100(1))
    snapshot = started.sweep()
    pages = [
        started.pipeline.reader.page(snapshot, Format.TEXT, shown=True, owners=owners).decode()
        for owners in (NOBODY, Owners(1, {}))
    ]

    assert "otelgpu_gpu_owner" not in pages[0]
    assert len(lines_of(pages[0])) == len(lines_of(pages[1]))
