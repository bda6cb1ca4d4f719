"""Pages that dcgm-exporter served on real machines, and ours of a driver with the same readings.

Rule 1: series lines are compared byte for byte and in order, TYPE lines too where the recording has them; HELP is
        our own words and is left aside.
Rule 2: a difference is a row here with its reason, and is given to each recording that shows it. It takes from one
        side only: when it no longer occurs, it finds nothing to change or the sides differ, and the test fails.
Rule 3: each recording is compared in two ways. With a driver that answers all of it, which is about how we write
        (profiling values are answered by GPM even on a T4, where a real driver has none); and with a driver that
        leaves out what NVML does not know on that GPU, which is about what a user of that machine has without DCGM.
Rule 4: each file of the folder is in PAGES or, with the reason, in UNUSED.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pytest

from otelgpu.attribution.podresources_pb2 import Pod
from otelgpu.config import Kubernetes, Mig
from otelgpu.config.counters import parse
from otelgpu.fields import find
from otelgpu.sources.nvml.questions import READABLE
from otelgpu.sources.nvml.source import BESIDE
from tests.conftest import RECORDINGS
from tests.fakekubelet import Kubelet, pod
from tests.fakenvml import Scenario
from tests.harness import LIMIT, Node, lines_of, series, until
from tests.recorded.dcgm_page import OF_INSTANCES, XID_COUNT, Recording, Sample, recording, sample, scenario
from tests.test_kubernetes import kubelet

__all__ = ["kubelet"]  # the fixture

FOLDER = RECORDINGS / "dcgm-exporter"
READ = READABLE | BESIDE
PROCESS = "DCGM_FI_PROCESS_NAME"
LINES = 359  # sample lines of all pages

Samples: TypeAlias = tuple[Sample, ...]
Change: TypeAlias = Callable[[Samples], Samples]


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """What is taken from the recorded lines or from ours before they are compared, and why that is right."""

    reason: str
    change: Change
    side: Literal["theirs", "ours"] = "theirs"


@dataclass(frozen=True, slots=True, eq=False)
class Beyond:
    """Fields that DCGM showed on that GPU and NVML cannot read there: absent from our page, and why."""

    reason: str
    prefix: str


@dataclass(frozen=True, slots=True)
class Row:
    """One recording: its differences, what NVML does not know, and whether the parents' values were repeated."""

    differences: tuple[Difference, ...] = ()
    beyond: tuple[Beyond, ...] = ()
    parent_values: Literal["once", "repeat"] = "once"


# ---- differences


def _labels(*names: str) -> Change:
    """Take these labels off all lines."""
    return lambda samples: tuple(each.without(frozenset(names)) for each in samples)


def _no_pod(samples: Samples) -> Samples:
    """Take the labels of the pod off the lines on which they are empty."""
    names = frozenset({"container", "namespace", "pod"})
    return tuple(each if each.label("pod") else each.without(names) for each in samples)


def _by_field(samples: Samples) -> Samples:
    """Bring the lines of a field together, in the order of DCGM's ids."""
    return tuple(sorted(samples, key=lambda each: _identity(each.name)))


def _identity(name: str) -> int:
    field = find(name)
    assert field is not None
    return field.id


def _first_half(samples: Samples) -> Samples:
    """Leave out the second of two equal pages; nothing when they are not equal."""
    half = len(samples) // 2
    return samples[:half] if samples[:half] == samples[half:] else samples


def _first_power(samples: Samples) -> Samples:
    """Give the power, which is repeated on instances, as it stands on the first of them."""
    first: dict[str, str] = {}
    return tuple(
        each._replace(value=first.setdefault(each.label("gpu"), each.value))
        if each.name == "DCGM_FI_DEV_POWER_USAGE"
        else each
        for each in samples
    )


def _not(wrong: Callable[[Sample], bool]) -> Change:
    """Leave out the lines that are *wrong*."""
    return lambda samples: tuple(each for each in samples if not wrong(each))


NO_BUS_ID = Difference("that exporter had no label pci_bus_id yet", _labels("pci_bus_id"), "ours")
NO_MODEL = Difference("2.x had no label modelName yet", _labels("modelName"), "ours")
NO_XID_TEXT = Difference("that exporter did not yet say what an XID means", _labels("err_code", "err_msg"), "ours")
NO_POD = Difference("3.x wrote empty pod labels on a GPU that no pod holds; 4.8.2 writes none", _no_pod)
PROCESS_NAME = Difference("names DCGM's own process, which here is not there", _labels(PROCESS))
TWO_PAGES = Difference("the file holds the same page twice", _first_half)
INSTANTS = Difference(
    "DCGM read the power once for each instance, moments apart; here all instances show one reading", _first_power
)
BLOCKS = Difference("2.x wrote the families of GPUs, then those of instances once more", _by_field)
CSV_ORDER = Difference("3.0 wrote families in the order of its CSV file; 4.8.2 goes by field id", _by_field)
THEIRS = Difference(
    "what its instances answer is not shown for the GPU too, or a sum would count it twice",
    _not(lambda each: each.name in OF_INSTANCES and not each.label("GPU_I_ID")),
)
XID_ONCE = Difference(
    "an XID is the GPU's, and with parent_values=once it is shown there alone",
    _not(lambda each: each.name == "DCGM_FI_DEV_XID_ERRORS" and each.label("GPU_I_ID") != ""),
)
NO_NAME = Difference("the manual leaves labels away", _labels("device", "modelName"), "ours")
BLANK = Difference(
    "what DCGM cannot read was a number to exporters of 2020; here it is absent",
    _not(lambda each: each.value == "9223372036854775794"),
)
ZEROS = Difference(
    "codes that matter stand at 0 before they come, so that `increase()` sees the first",
    _not(lambda each: each.name == XID_COUNT and each.value == "0"),
    "ours",
)

PROFILING = Beyond("before Hopper the driver has no GPM: only DCGM's profiling module reads these", "DCGM_FI_PROF_")
NO_LINKS = Beyond("a T4 has no NVLink; DCGM shows 0 of it", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL")
NO_MEMORY_TEMP = Beyond("a T4 has no sensor there; DCGM shows 0", "DCGM_FI_DEV_MEMORY_TEMP")

MIG_520 = Row((NO_BUS_ID, NO_XID_TEXT, NO_POD), (PROFILING,), "repeat")

PAGES = {
    "a100-80gb-pcie-mig-dra-560.35.03.prom": Row(beyond=(PROFILING,)),
    "a100-mig-on-one-instance-2.4.0rc2.prom": Row(
        (NO_BUS_ID, NO_MODEL, NO_XID_TEXT, BLOCKS, THEIRS, XID_ONCE), (PROFILING,)
    ),
    "a100-sxm4-40gb-mig-1g-active-520.56.06.prom": MIG_520,
    "a100-sxm4-40gb-mig-1g-idle-520.56.06.prom": MIG_520,
    "a100-sxm4-40gb-mig-3-instances-520.56.06.prom": Row((*MIG_520.differences, INSTANTS), (PROFILING,), "repeat"),
    "a100-sxm4-40gb-mig-4-instances-520.56.06.prom": Row((*MIG_520.differences, INSTANTS), (PROFILING,), "repeat"),
    "a100-sxm4-40gb-mig-off-520.56.06.prom": Row((*MIG_520.differences, TWO_PAGES, CSV_ORDER), (PROFILING,)),
    "a100-sxm4-40gb-mig-on-empty-520.56.06.prom": Row(MIG_520.differences, (PROFILING,)),
    "a30-mig-2g.12gb-issue68.prom": Row((NO_BUS_ID, NO_POD), (PROFILING,)),
    "dcgmproftester-2.1.prom": Row((NO_BUS_ID, NO_MODEL), (PROFILING,)),
    "dgx-a100-nvlink-535.154.05.prom": Row((NO_BUS_ID,), (PROFILING,)),
    "h100-mig-1g.10gb-535.129.03.prom": Row(),
    "quadro-rtx-blank-sentinel-2.1.4.prom": Row((NO_BUS_ID, NO_NAME, BLANK)),
    "t400-xid-injected-545.29.02.prom": Row((NO_BUS_ID, ZEROS)),
    "tesla-t4-460.106.00-docker.prom": Row((NO_BUS_ID, NO_XID_TEXT, PROCESS_NAME, CSV_ORDER), (NO_LINKS,)),
    "tesla-t4-470.182.03-label-fields.prom": Row((NO_BUS_ID, CSV_ORDER)),
    "tesla-t4-frac-pod-550.54.14.prom": Row((), (PROFILING, NO_LINKS, NO_MEMORY_TEMP)),
    "tesla-t4-idle-550.54.14.prom": Row((), (PROFILING, NO_LINKS, NO_MEMORY_TEMP)),
    "tesla-t4-whole-pod-550.54.14.prom": Row((), (PROFILING, NO_LINKS, NO_MEMORY_TEMP)),
    "tesla-t4-x2-525.60.13.prom": Row((NO_BUS_ID, NO_XID_TEXT, NO_POD), (PROFILING, NO_LINKS)),
    "v100-sxm2-32gb-x4-issue250.prom": Row((NO_BUS_ID,)),
}

UNUSED = {
    "blank-and-garbage-values.tsv": "a table of values, no page",
    "rtx-4090-prometheus-honor-labels-545.29.06.prom": "series as Prometheus has them, without values",
}

ANSWERS = ("all of the recording", "what NVML knows")


@pytest.mark.parametrize("answers", ANSWERS)
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.usefixtures("recordings")
def test_the_same_readings_make_the_same_page(
    name: str, answers: str, node: Callable[..., Node], kubelet: Kubelet
) -> None:
    """A dashboard, an alert and a recording rule made for dcgm-exporter find what they look for."""
    row, page = PAGES[name], _recording(name)
    recorded = page.samples
    beyond = row.beyond if answers == "what NVML knows" else ()
    lost = frozenset(each.name for each in recorded if any(each.name.startswith(part.prefix) for part in beyond))
    theirs = _settled(recorded, row, "theirs")
    expected = tuple(each for each in theirs if each.name not in lost)

    machine = scenario(recorded, without=lost)
    settings = _settings(recorded, row, page.types)
    if pods := _pods(recorded, machine):
        kubelet.pods = pods
        kubelet.start()
        settings["kubernetes"] = Kubernetes(enabled=True, socket=str(kubelet.path))
    running = node(machine, **settings)
    assert running.pipeline.attribution.looked(LIMIT)
    until(lambda: _xids(running.page()) == sum(int(each.value) for each in expected if each.name == XID_COUNT), "XIDs")
    shown = running.settled_page()

    ours = tuple(map(sample, series(shown)))
    settled = _settled(ours, row, "ours") if expected else ours
    names = {each.name for each in expected}
    types = {line for line in page.types if line.split()[2] in names}
    assert theirs, "no line is compared"
    assert [str(each) for each in settled] == [str(each) for each in expected]
    assert types <= set(shown.splitlines())


@pytest.mark.parametrize(("name", "part"), [(name, part) for name, row in PAGES.items() for part in row.beyond])
@pytest.mark.usefixtures("recordings")
def test_what_nvml_does_not_know_was_recorded(name: str, part: Beyond) -> None:
    """An exception for lines that are not there would excuse the next ones."""
    assert any(each.name.startswith(part.prefix) for each in _recording(name).samples), part.reason


@pytest.mark.usefixtures("recordings")
def test_each_recording_is_compared_or_listed_with_the_reason() -> None:
    """A new recording is used, or somebody has said why not."""
    assert {path.name for path in FOLDER.iterdir()} == set(PAGES) | set(UNUSED)
    assert not set(PAGES) & set(UNUSED)


@pytest.mark.usefixtures("recordings")
def test_each_recorded_field_is_read() -> None:
    """A field that is no longer read would take its recorded lines along."""
    names = {each.name for name in PAGES for each in _recording(name).samples}

    assert [name for name in names if _identity(name) not in READ] == []
    assert sum(len(_recording(name).samples) for name in PAGES) == LINES


def _xids(page: str) -> float:
    return sum(line.value for line in lines_of(page) if line.name == XID_COUNT)


def _recording(name: str) -> Recording:
    return recording((FOLDER / name).read_text().replace('", ', '",'))  # the manual has a blank there


def _pods(samples: Samples, machine: Scenario) -> list[Pod]:
    """The pods whose labels stand on these lines, as the kubelet tells of them."""
    held: dict[tuple[str, ...], dict[str, None]] = {}
    for each in samples:
        gpu, place = machine.gpus[int(each.label("gpu"))], each.label("GPU_I_ID")
        devices = [one.uuid for one in gpu.instances if one is not None and place == str(one.gi)] or [gpu.uuid]
        if each.label("pod"):
            owner = tuple(map(each.label, ("pod", "container", "namespace")))
            held.setdefault(owner, {}).update(dict.fromkeys(devices))
    return [pod(name, *ids, container=inside, namespace=space) for (name, inside, space), ids in held.items()]


def _settled(samples: Samples, row: Row, side: str) -> Samples:
    """The lines of one side without their differences, each of which has to be there."""
    for difference in row.differences:
        if difference.side == side:
            before, samples = samples, difference.change(samples)
            assert samples != before, f"no longer a difference: {difference.reason}"
    return samples


def _settings(recorded: Iterable[Sample], row: Row, types: Iterable[str]) -> dict[str, object]:
    """The settings under which dcgm-exporter would have written these lines, its CSV file among them."""
    samples = tuple(recorded)
    kinds = {name: find(name).kind.value for name in (each.name for each in samples)}  # type: ignore[union-attr]
    kinds |= {name: kind for _, _, name, kind in map(str.split, types) if name in kinds}
    kinds |= dict.fromkeys(
        (name for name, _ in samples[0].labels if name.startswith("DCGM_") and name != PROCESS), "label"
    )
    rows = "".join(f"{name}, {kind}, as recorded\n" for name, kind in kinds.items())
    return {
        "compat": "4.8.2",
        "fields": ("recorded.csv",),
        "counters": tuple(parse(rows.encode(), "recorded.csv").rows),
        "hostname": samples[0].label("Hostname") or "none",
        "mig": Mig(parent_values=row.parent_values),
    }
