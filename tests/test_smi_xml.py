"""What nvidia-smi shows of a machine is what our page shows of it.

Rule 1: the dumps are read here a second time, in another way than tests/recorded/smi.py reads them: an error in the
        converter shows, and cannot hide one of ours.
Rule 2: nvidia-smi and dcgm-exporter's page have the same units (MHz, W, MiB, %), so numbers are compared as they
        stand, and what nvidia-smi shows without a number must not be on the page.
Rule 3: a number that only one of the two shows is in NOT_IN_XML or ON_INSTANCES, with the reason.
"""

import xml.dom.minidom as dom
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from otelgpu.fields import CATALOGUE
from otelgpu.sources.nvml.questions import READABLE
from tests.conftest import RECORDINGS
from tests.harness import Node, lines_of
from tests.recorded import smi

FOLDER = RECORDINGS / "smi-xml"
ABSENT = pytest.mark.skip(reason="recordings/smi-xml is not beside this checkout")
DUMPS = [path.name for path in sorted(FOLDER.glob("*.xml"))]
STIRRED = "h100-80gb-hbm3-x8-580.105.08.xml"  # eight GPUs, and all of ROWS


@dataclass(frozen=True, slots=True)
class Row:
    """A field of ours, where nvidia-smi shows it (the first place with a number counts) and in which unit."""

    field: str
    places: tuple[str, ...]
    unit: str = ""


ROWS = (
    Row("DCGM_FI_DEV_SM_CLOCK", ("clocks/sm_clock",), "MHz"),
    Row("DCGM_FI_DEV_MEM_CLOCK", ("clocks/mem_clock",), "MHz"),
    Row("DCGM_FI_DEV_MEMORY_TEMP", ("temperature/memory_temp",), "C"),
    Row("DCGM_FI_DEV_GPU_TEMP", ("temperature/gpu_temp",), "C"),
    Row(
        "DCGM_FI_DEV_POWER_USAGE",
        (
            "power_readings/power_draw",
            "gpu_power_readings/power_draw",
            "gpu_power_readings/average_power_draw",
            "gpu_power_readings/instant_power_draw",
        ),
        "W",
    ),
    Row("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", ("pci/replay_counter",)),
    Row("DCGM_FI_DEV_PCIE_LINK_WIDTH", ("pci/pci_gpu_link_info/link_widths/current_link_width",), "x"),
    Row("DCGM_FI_DEV_GPU_UTIL", ("utilization/gpu_util",), "%"),
    Row("DCGM_FI_DEV_MEM_COPY_UTIL", ("utilization/memory_util",), "%"),
    Row("DCGM_FI_DEV_ENC_UTIL", ("utilization/encoder_util",), "%"),
    Row("DCGM_FI_DEV_DEC_UTIL", ("utilization/decoder_util",), "%"),
    Row("DCGM_FI_DEV_FB_TOTAL", ("fb_memory_usage/total",), "MiB"),
    Row("DCGM_FI_DEV_FB_FREE", ("fb_memory_usage/free",), "MiB"),
    Row("DCGM_FI_DEV_FB_USED", ("fb_memory_usage/used",), "MiB"),
    Row("DCGM_FI_DEV_FB_RESERVED", ("fb_memory_usage/reserved",), "MiB"),
    Row("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", ("remapped_rows/remapped_row_corr",)),
    Row("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", ("remapped_rows/remapped_row_unc",)),
    Row("DCGM_FI_DEV_RETIRED_PENDING", ("retired_pages/pending_retirement",), "No or Yes"),
    Row("DCGM_FI_DEV_ROW_REMAP_PENDING", ("remapped_rows/remapped_row_pending",), "No or Yes"),
    Row("DCGM_FI_DEV_ROW_REMAP_FAILURE", ("remapped_rows/remapped_row_failure",), "No or Yes"),
)

# Shown of a MIG instance; of a GPU with instances nvidia-smi shows it too, and our page does not: what instances
# answer is theirs, or a sum over the page would count it twice (dcgm-exporter's page has it on the instances only).
ON_INSTANCES = frozenset(
    {"DCGM_FI_DEV_FB_TOTAL", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_RESERVED"}
)

REASONS = ("SW_POWER_CAP", "SW_THERM_SLOWDOWN", "HW_THERM_SLOWDOWN", "HW_POWER_BRAKE_SLOWDOWN")
NOT_IN_XML = {  # numbers that we read and `nvidia-smi -q -x` does not show
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "nvidia-smi shows no energy",
    "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION": "shown as words",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "shown by place in memory by the dumps that show it, not as a total",
    "DCGM_FI_DEV_XID_ERRORS": "an XID is an event; nvidia-smi has no memory of them",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": "only `nvidia-smi nvlink` shows NVLink counters",
    "DCGM_FI_DEV_NVLINK_GET_STATE": "only `nvidia-smi nvlink` shows the links",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": "shown as words, and on virtual GPUs alone; none was recorded",
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": "shown as a line for each reason",
    "DCGM_FI_DEV_THERMAL_VIOLATION": "nvidia-smi shows no violation times",
    **dict.fromkeys(
        (f"DCGM_FI_DEV_CLOCKS_EVENT_REASON_{name}_NS" for name in REASONS),
        "shown in microseconds, cut off",
    ),
    **dict.fromkeys(
        (field.name for field in CATALOGUE.values() if field.name.startswith("DCGM_FI_PROF_") and field.id in READABLE),
        "only `nvidia-smi gpm` and `dmon` show profiling values",
    ),
}

TEXTS = {  # label: place of the text in <gpu>
    "UUID": "uuid",
    "modelName": "product_name",
    "DCGM_FI_DEV_NAME": "product_name",
    "DCGM_FI_DEV_SERIAL": "serial",
    "DCGM_FI_DEV_VBIOS_VERSION": "vbios_version",
    "DCGM_FI_DEV_OEM_INFOROM_VER": "inforom_version/oem_object",
    "DCGM_FI_DEV_ECC_INFOROM_VER": "inforom_version/ecc_object",
    "DCGM_FI_DEV_POWER_INFOROM_VER": "inforom_version/pwr_object",
    "DCGM_FI_DEV_INFOROM_IMAGE_VER": "inforom_version/img_version",
}
DRIVER = "DCGM_FI_DRIVER_VERSION"
FIELDS = (*(row.field for row in ROWS), *(label for label in TEXTS if label.startswith("DCGM_")), DRIVER)
NOTHING = ("N/A", "Requested functionality has been deprecated", "")


@dataclass(frozen=True, slots=True)
class Shown:
    """What nvidia-smi shows of one field of one device: the number, or None for N/A."""

    field: str
    gpu: str
    instance: str
    number: float | None


@pytest.mark.parametrize("name", DUMPS or [pytest.param("", marks=ABSENT)])
def test_every_number_of_nvidia_smi_is_the_number_on_our_page(name: str, node: Callable[..., Node]) -> None:
    """Whoever compares the two on a machine sees one truth; what nvidia-smi calls N/A is absent, not 0."""
    path = FOLDER / name
    shown = list(_shown(_root(path)))

    page = node(smi.scenario(path), fields=FIELDS).page()

    assert shown, "the dump shows none of our fields; the places in ROWS are wrong"
    assert _numbers(page) == {(s.field, s.gpu, s.instance): s.number for s in shown if s.number is not None}


@pytest.mark.skipif(not DUMPS, reason="recordings/smi-xml is not beside this checkout")
def test_no_two_numbers_of_nvidia_smi_are_mixed_up(tmp_path: Path, node: Callable[..., Node]) -> None:
    """Idle machines show many zeros, which hide that two numbers are swapped: here a dump has only different ones."""
    root = _root(FOLDER / STIRRED)
    for index, gpu in enumerate(_elements(root, "gpu")):
        for number, row in enumerate(ROWS):
            for place in row.places:
                _write(gpu, place, _different(row, 7 * number + 13 * index))
    path = tmp_path / STIRRED
    path.write_text(root.toxml())
    shown = list(_shown(_root(path)))

    page = node(smi.scenario(path), fields=FIELDS).page()

    assert {s.field for s in shown if s.number} == {row.field for row in ROWS}
    assert _numbers(page) == {(s.field, s.gpu, s.instance): s.number for s in shown}


@pytest.mark.parametrize("name", DUMPS or [pytest.param("", marks=ABSENT)])
def test_every_text_of_nvidia_smi_is_the_label_on_our_page(name: str, node: Callable[..., Node]) -> None:
    """A number is of use only with the right GPU beside it; a text that nvidia-smi lacks makes no empty label."""
    root = _root(FOLDER / name)
    gpus = _elements(root, "gpu")
    uuids = Counter(_words(gpu, "uuid") for gpu in gpus)
    expected = []
    for gpu in gpus:
        texts = {label: _words(gpu, place) for label, place in TEXTS.items()}
        texts |= {"pci_bus_id": gpu.getAttribute("id"), DRIVER: _words(root, "driver_version")}
        if uuids[texts["UUID"]] > 1:  # scrubbed: not the machine's
            del texts["UUID"]
        expected.append({label: text for label, text in texts.items() if text not in NOTHING})

    page = node(smi.scenario(FOLDER / name), fields=FIELDS).page()

    for line in lines_of(page):
        if line.name.startswith("DCGM_"):
            texts = expected[int(line.labels["gpu"])]
            labels = {label: text for label, text in line.labels.items() if label in texts or label in FIELDS}
            assert labels == texts


def test_every_field_we_read_is_compared_or_known_to_be_missing_from_the_xml() -> None:
    """A field that is read from now on gets its row here and in tests/recorded/smi.py, or its reason in NOT_IN_XML."""
    read = {CATALOGUE[identity].name for identity in READABLE if CATALOGUE[identity].is_numeric}

    assert {row.field for row in ROWS} | set(NOT_IN_XML) == read
    assert not {row.field for row in ROWS} & set(NOT_IN_XML)


@pytest.mark.skipif(not DUMPS, reason="recordings/smi-xml is not beside this checkout")
def test_every_row_meets_a_number_in_some_dump() -> None:
    """A row whose place does not exist would compare nothing, and nobody would notice."""
    numbers: Counter[str] = Counter()
    for name in DUMPS:
        numbers.update(shown.field for shown in _shown(_root(FOLDER / name)) if shown.number is not None)

    assert set(numbers) == {row.field for row in ROWS}


def _numbers(page: str) -> dict[tuple[str, str, str], float]:
    """All of our numbers on a page, by field, GPU and instance. A series that is there twice is an error."""
    lines = [line for line in lines_of(page) if line.name.startswith("DCGM_")]
    numbers = {(line.name, line.labels["gpu"], line.labels.get("GPU_I_ID", "")): line.value for line in lines}
    assert len(numbers) == len(lines)
    return numbers


def _different(row: Row, number: int) -> str:
    """The text of a number that is true of any field, up to 97; up to 61 of a link's lanes."""
    if row.unit == "x":
        return f"{1 + number % 61}x"
    return "Yes" if row.unit == "No or Yes" else f"{1 + number % 97} {row.unit}".strip()


def _shown(root: dom.Element) -> Iterator[Shown]:
    """What one dump shows of our fields, GPU by GPU and instance by instance."""
    for index, gpu in enumerate(_elements(root, "gpu")):
        instances = [part for parts in _elements(gpu, "mig_devices") for part in _elements(parts, "mig_device")]
        theirs = ON_INSTANCES if instances else frozenset[str]()
        yield from _rows(gpu, str(index), "", without=theirs)
        for instance in instances:
            yield from _rows(instance, str(index), _words(instance, "gpu_instance_id"))


def _rows(device: dom.Element, gpu: str, instance: str, *, without: frozenset[str] = frozenset()) -> Iterator[Shown]:
    for row in ROWS:
        texts = [text for place in row.places if (text := _words(device, place))]
        if texts and row.field not in without:
            numbers = (_number(text, row.unit) for text in texts if text not in NOTHING)
            yield Shown(row.field, gpu, instance, next(numbers, None))


def _number(text: str, unit: str) -> float:
    """The number; a text that is neither one in this unit nor one of NOTHING is an error."""
    if unit == "No or Yes":
        return ("No", "Yes").index(text)
    number, _, found = text.replace("x", " x").partition(" ")
    assert found == unit
    return float(number)


def _write(element: dom.Element, place: str, text: str) -> None:
    """Replace the text at a place, where there is one."""
    for step in place.split("/"):
        found = _elements(element, step)
        if not found:
            return
        element = found[0]
    for node in element.childNodes:
        if isinstance(node, dom.Text):
            node.data = text


def _words(element: dom.Element, place: str) -> str:
    """The text at a place below an element; nothing where there is no such place, or more elements in it."""
    for step in place.split("/"):
        found = _elements(element, step)
        if not found:
            return ""
        element = found[0]
    if any(isinstance(node, dom.Element) for node in element.childNodes):
        return ""
    return "".join(node.data for node in element.childNodes if isinstance(node, dom.Text)).strip()


def _elements(element: dom.Element, name: str) -> list[dom.Element]:
    return [node for node in element.childNodes if isinstance(node, dom.Element) and node.tagName == name]


def _root(path: Path) -> dom.Element:
    root = dom.parse(str(path)).documentElement  # noqa: S318 - a file that we keep ourselves
    assert root is not None
    return root
