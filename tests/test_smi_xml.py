"""What nvidia-smi shows of a machine is what our page shows of it.

Rule 1: the dumps are read here a second time, in another way than tests/recorded/smi.py reads them: an error in the
        converter shows, and cannot hide one of ours.
Rule 2: nvidia-smi and dcgm-exporter's page have the same units (MHz, W, MiB, %), so numbers are compared as they
        stand, and what nvidia-smi shows without a number must not be on the page.
Rule 3: the text of `nvidia-smi -q` is brought into the form of the XML and compared like it.
Rule 4: a number that only one of the two shows is in NOT_IN_XML or ON_INSTANCES, with the reason.
"""

import xml.dom.minidom as dom
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from otelgpu.fields import CATALOGUE
from otelgpu.sources.nvml.questions import READABLE
from tests.conftest import RECORDINGS
from tests.harness import Node, lines_of
from tests.recorded import smi, smi_text

FOLDER = RECORDINGS / "smi-xml"
ABSENT = pytest.mark.skip(reason="recordings/smi-xml is not beside this checkout")
TEXTUAL = RECORDINGS / "smi-q"
DUMPS = [path.name for path in sorted(FOLDER.glob("*.xml"))] + [path.name for path in sorted(TEXTUAL.glob("*.txt"))]
# Eight GPUs; the old manner of showing limits; no row is in neither.
STIRRED = ("h100-80gb-hbm3-x8-580.105.08.xml", "quadro-p2000-418.56.xml", "gb200-x4-580.173.02.xml")

NO_YES: Mapping[str, float] = {"No": 0, "Yes": 1}
OFF_ON: Mapping[str, float] = {"Disabled": 0, "Enabled": 1}
STATES: Mapping[str, float] = {f"P{state}": state for state in range(16)}
MODES: Mapping[str, float] = {"None": 0, "Pass-Through": 1}
COMPUTE: Mapping[str, float] = {"Default": 0, "Exclusive_Process": 3}
FABRIC: Mapping[str, float] = {"Not Started": 1, "Completed": 3}
SUMMARY: Mapping[str, float] = {"Healthy": 1}
SUCCESS: Mapping[str, float] = {"Success": 0}
PEERS: Mapping[str, float] = {"Direct Connected": 0, "Switch Connected": 1}
ACTIONS: Mapping[str, float] = {"None": 0}
HEX = "hex"


@dataclass(frozen=True, slots=True)
class Row:
    """A field of ours, where nvidia-smi shows it (the first place with a number counts) and in which unit.

    Two places with a + between them are one number, the sum. A unit with words is for what is shown as a word.
    """

    field: str
    places: tuple[str, ...]
    unit: str | Mapping[str, float] = ""
    factor: int = 1  # our unit in that of nvidia-smi
    highest: int = 97  # that can be true


def _older(span: str, bits: str, place: str) -> str:
    return f"ecc_errors/{span}/{bits}_bit/{place}"


def _ecc() -> Iterator[Row]:
    """Errors by kind, span and place, which older and newer versions show in different places."""
    words = {"L1": "l1_cache", "L2": "l2_cache", "REG": "register_file", "TEX": "texture_memory"}
    words |= {"SHM": "texture_shm", "CBU": "cbu"}
    for bit, bits, word in (("SBE", "single", "correctable"), ("DBE", "double", "uncorrectable")):
        for span, when in (("VOL", "volatile"), ("AGG", "aggregate")):
            name = f"DCGM_FI_DEV_ECC_{bit}_{span}_"
            newer = f"ecc_errors/{when}/"
            yield Row(f"{name}TOTAL", (_older(when, bits, "total"),))
            yield Row(f"{name}DEV", (f"{newer}dram_{word}", _older(when, bits, "device_memory")))
            parts = f"{newer}sram_{word}_parity+{newer}sram_{word}_secded"
            yield Row(f"{name}SRM", (f"{newer}sram_{word}", *([parts] if bit == "DBE" else [])))
            yield from (Row(f"{name}{place}", (_older(when, bits, shown),)) for place, shown in words.items())


_POWERS = (  # ours, since 535, before
    ("POWER_MGMT_LIMIT", "requested_power_limit", "power_limit"),
    ("POWER_MGMT_LIMIT_MIN", "min_power_limit", "min_power_limit"),
    ("POWER_MGMT_LIMIT_MAX", "max_power_limit", "max_power_limit"),
    ("POWER_MGMT_LIMIT_DEF", "default_power_limit", "default_power_limit"),
    ("ENFORCED_POWER_LIMIT", "current_power_limit", "enforced_power_limit"),
)
_COUNTERS = (
    ("SW_POWER_CAP", "sw_power_cap"),
    ("SYNC_BOOST", "sync_boost"),
    ("SW_THERM_SLOWDOWN", "sw_therm_slowdown"),
    ("HW_THERM_SLOWDOWN", "hw_therm_slowdown"),
    ("HW_POWER_BRAKE_SLOWDOWN", "hw_power_brake"),
)
_COUNTED = "clocks_event_reasons_counters/clocks_event_reasons_counters_"
_PCIE = "pci/pci_gpu_link_info/"

ROWS = (
    Row("DCGM_FI_DEV_MINOR_NUMBER", ("minor_number",)),
    Row("DCGM_FI_DEV_PCI_COMBINED_ID", ("pci/pci_device_id",), HEX),
    Row("DCGM_FI_DEV_PCI_SUBSYS_ID", ("pci/pci_sub_system_id",), HEX),
    Row("DCGM_FI_DEV_COMPUTE_MODE", ("compute_mode",), COMPUTE),
    Row("DCGM_FI_DEV_PERSISTENCE_MODE", ("persistence_mode",), OFF_ON),
    Row("DCGM_FI_DEV_MIG_MODE", ("mig_mode/current_mig",), OFF_ON),
    Row("DCGM_FI_DEV_BAR1_TOTAL", ("bar1_memory_usage/total",), "MiB"),
    Row("DCGM_FI_DEV_BAR1_USED", ("bar1_memory_usage/used",), "MiB"),
    Row("DCGM_FI_DEV_BAR1_FREE", ("bar1_memory_usage/free",), "MiB"),
    Row("DCGM_FI_DEV_SM_CLOCK", ("clocks/sm_clock",), "MHz"),
    Row("DCGM_FI_DEV_MEM_CLOCK", ("clocks/mem_clock",), "MHz"),
    Row("DCGM_FI_DEV_VIDEO_CLOCK", ("clocks/video_clock",), "MHz"),
    Row("DCGM_FI_DEV_APP_SM_CLOCK", ("applications_clocks/graphics_clock",), "MHz"),
    Row("DCGM_FI_DEV_APP_MEM_CLOCK", ("applications_clocks/mem_clock",), "MHz"),
    Row("DCGM_FI_DEV_MAX_SM_CLOCK", ("max_clocks/sm_clock",), "MHz"),
    Row("DCGM_FI_DEV_MAX_MEM_CLOCK", ("max_clocks/mem_clock",), "MHz"),
    Row("DCGM_FI_DEV_MAX_VIDEO_CLOCK", ("max_clocks/video_clock",), "MHz"),
    Row("DCGM_FI_DEV_MEMORY_TEMP", ("temperature/memory_temp",), "C"),
    Row("DCGM_FI_DEV_GPU_TEMP", ("temperature/gpu_temp",), "C"),
    Row("DCGM_FI_DEV_MEM_MAX_OP_TEMP", ("temperature/gpu_temp_max_mem_threshold",), "C"),
    Row("DCGM_FI_DEV_GPU_MAX_OP_TEMP", ("temperature/gpu_temp_max_gpu_threshold",), "C"),
    Row("DCGM_FI_DEV_GPU_TEMP_LIMIT", ("temperature/gpu_temp_tlimit",), "C"),
    Row("DCGM_FI_DEV_SLOWDOWN_TEMP", ("temperature/gpu_temp_slow_threshold",), "C"),
    Row("DCGM_FI_DEV_SHUTDOWN_TEMP", ("temperature/gpu_temp_max_threshold",), "C"),
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
    Row("DCGM_FI_DEV_POWER_USAGE_INSTANT", ("gpu_power_readings/instant_power_draw",), "W"),
    *(
        Row(f"DCGM_FI_DEV_{ours}", (f"gpu_power_readings/{newer}", f"power_readings/{older}"), "W")
        for ours, newer, older in _POWERS
    ),
    Row("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", ("fabric/state",), FABRIC),
    Row("DCGM_FI_DEV_FABRIC_MANAGER_ERROR_CODE", ("fabric/status",), SUCCESS),
    Row("DCGM_FI_DEV_FABRIC_CLIQUE_ID", ("fabric/cliqueId",)),
    Row("DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY", ("fabric/health/summary",), SUMMARY),
    Row("DCGM_FI_DEV_PSTATE", ("performance_state",), STATES),
    Row("DCGM_FI_DEV_FAN_SPEED", ("fan_speed",), "%"),
    Row("DCGM_FI_DEV_PCIE_TX_THROUGHPUT", ("pci/tx_util",), "KB/s"),
    Row("DCGM_FI_DEV_PCIE_RX_THROUGHPUT", ("pci/rx_util",), "KB/s"),
    Row("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", ("pci/replay_counter",)),
    Row("DCGM_FI_DEV_GPU_UTIL", ("utilization/gpu_util",), "%"),
    Row("DCGM_FI_DEV_MEM_COPY_UTIL", ("utilization/memory_util",), "%"),
    Row("DCGM_FI_DEV_ENC_UTIL", ("utilization/encoder_util",), "%"),
    Row("DCGM_FI_DEV_DEC_UTIL", ("utilization/decoder_util",), "%"),
    Row("OTELGPU_JPEG_UTIL", ("utilization/jpeg_util",), "%"),
    Row("OTELGPU_OFA_UTIL", ("utilization/ofa_util",), "%"),
    *(
        Row(f"OTELGPU_{ours}_{word}", (f"{group}/{place}",))
        for ours, group in (("ENC", "encoder_stats"), ("FBC", "fbc_stats"))
        for word, place in (
            ("SESSIONS", "session_count"),
            ("FRAME_RATE", "average_fps"),
            ("LATENCY", "average_latency"),
        )
    ),
    *(
        Row(
            f"OTELGPU_{ours}_POWER",
            (f"{group}/average_power_draw", f"{group}/power_draw", f"{group}/instant_power_draw"),
            "W",
        )
        for ours, group in (("MODULE", "module_power_readings"), ("MEMORY", "gpu_memory_power_readings"))
    ),
    Row("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", (f"{_PCIE}pcie_gen/max_link_gen",), highest=16),
    Row("DCGM_FI_DEV_PCIE_LINK_GEN", (f"{_PCIE}pcie_gen/current_link_gen",), highest=16),
    Row("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", (f"{_PCIE}link_widths/max_link_width",), "x", highest=64),
    Row("DCGM_FI_DEV_PCIE_LINK_WIDTH", (f"{_PCIE}link_widths/current_link_width",), "x", highest=64),
    Row("DCGM_FI_DEV_POWER_VIOLATION", (f"{_COUNTED}sw_power_cap",), "us", 1000),
    Row("DCGM_FI_DEV_SYNC_BOOST_VIOLATION", (f"{_COUNTED}sync_boost",), "us", 1000),
    Row("DCGM_FI_DEV_FB_TOTAL", ("fb_memory_usage/total",), "MiB"),
    Row("DCGM_FI_DEV_FB_FREE", ("fb_memory_usage/free",), "MiB"),
    Row("DCGM_FI_DEV_FB_USED", ("fb_memory_usage/used",), "MiB"),
    Row("DCGM_FI_DEV_FB_RESERVED", ("fb_memory_usage/reserved",), "MiB"),
    Row("DCGM_FI_DEV_ECC_CURRENT", ("ecc_mode/current_ecc",), OFF_ON),
    Row("DCGM_FI_DEV_ECC_PENDING", ("ecc_mode/pending_ecc",), OFF_ON),
    *_ecc(),
    Row("DCGM_FI_DEV_THRESHOLD_SRM", ("ecc_errors/aggregate/sram_threshold_exceeded",), NO_YES),
    *(
        Row(
            f"DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_{word.upper()}",
            (f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{word}",),
            "bank(s)",
        )
        for word in ("max", "high", "partial", "low", "none")
    ),
    Row("DCGM_FI_DEV_RETIRED_SBE", ("retired_pages/multiple_single_bit_retirement/retired_count",)),
    Row("DCGM_FI_DEV_RETIRED_DBE", ("retired_pages/double_bit_retirement/retired_count",)),
    Row("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", ("remapped_rows/remapped_row_corr",)),
    Row("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", ("remapped_rows/remapped_row_unc",)),
    Row("DCGM_FI_DEV_RETIRED_PENDING", ("retired_pages/pending_retirement",), NO_YES),
    Row("DCGM_FI_DEV_ROW_REMAP_PENDING", ("remapped_rows/remapped_row_pending",), NO_YES),
    Row("DCGM_FI_DEV_ROW_REMAP_FAILURE", ("remapped_rows/remapped_row_failure",), NO_YES),
    Row("DCGM_FI_DEV_VIRTUAL_MODE", ("gpu_virtualization_mode/virtualization_mode",), MODES),
    Row("DCGM_FI_DEV_PLATFORM_CHASSIS_SLOT_NUMBER", ("platformInfo/slot_number",)),
    Row("DCGM_FI_DEV_PLATFORM_TRAY_INDEX", ("platformInfo/tray_index",)),
    Row("DCGM_FI_DEV_PLATFORM_HOST_ID", ("platformInfo/host_id",)),
    Row("DCGM_FI_DEV_PLATFORM_PEER_TYPE", ("platformInfo/peer_type",), PEERS),
    Row("DCGM_FI_DEV_PLATFORM_MODULE_ID", ("platformInfo/module_id", "gpu_module_id")),
    *(
        Row(f"DCGM_FI_DEV_CLOCKS_EVENT_REASON_{ours}_NS", (f"{_COUNTED}{place}",), "us", 1000)
        for ours, place in _COUNTERS
    ),
    Row("DCGM_FI_DEV_MEMORY_UNREPAIRABLE_FLAG", ("ecc_errors/unrepairable_memory",), NO_YES),
    Row("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", ("gpu_recovery_action",), ACTIONS),
)

# Shown of a MIG instance; of a GPU with instances nvidia-smi shows it too, and our page does not: what instances
# answer is theirs, or a sum over the page would count it twice (dcgm-exporter's page has it on the instances only).
ON_INSTANCES = frozenset(
    {f"DCGM_FI_DEV_FB_{word}" for word in ("TOTAL", "FREE", "USED", "RESERVED")}
    | {f"DCGM_FI_DEV_BAR1_{word}" for word in ("TOTAL", "FREE", "USED")}
)

NOT_IN_XML = {  # numbers that we read and `nvidia-smi -q -x` does not show, and why; a name may end in *
    "DCGM_FI_DEV_COUNT": "told once for the machine",
    "DCGM_FI_CUDA_DRIVER_VERSION": "told once for the machine",
    "DCGM_FI_DEV_NVML_INDEX": "not shown; the order of the GPUs is the order of the indices",
    "DCGM_FI_DEV_CUDA_COMPUTE_CAPABILITY": "not shown",
    "DCGM_FI_DEV_MIG_MAX_SLICES": "not shown",
    "DCGM_FI_DEV_CPU_AFFINITY_*": "only `nvidia-smi topo` shows it",
    "DCGM_FI_DEV_MEM_AFFINITY_*": "only `nvidia-smi topo` shows it",
    "DCGM_FI_DEV_CC_MODE": "only `nvidia-smi conf-compute` shows it",
    "DCGM_FI_DEV_INFOROM_CONFIG_*": "not shown",
    "DCGM_FI_DEV_GPM_SUPPORT": "not shown",
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": "shown as words, one for each reason",
    "DCGM_FI_DEV_AUTOBOOST": "no dump shows more than N/A",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "nvidia-smi shows no energy",
    "DCGM_FI_DEV_FABRIC_HEALTH_MASK": "shown as words, one for each concern",
    "DCGM_FI_DEV_*_VIOLATION": "the counters of the perf policies that are no clocks event reason are not shown",
    "DCGM_FI_DEV_FB_USED_PERCENT": "not shown; it follows from the others",
    "DCGM_FI_DEV_C2C_*": "only `nvidia-smi c2c` shows it",
    "DCGM_FI_DEV_XID_ERRORS": "an XID is an event; nvidia-smi has no memory of them",
    "DCGM_FI_DEV_NVLINK_*": "only `nvidia-smi nvlink` shows NVLink counters",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": "shown as words, and on virtual GPUs alone; none was recorded",
    "DCGM_FI_DEV_PWR_SMOOTHING_*": "no dump shows more than N/A",
    "DCGM_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS": "not shown",
    "DCGM_FI_DEV_*_UTIL_SAMPLES": "not shown",
    "DCGM_FI_PROF_*": "only `nvidia-smi gpm` and `dmon` show profiling values",
}
# Rows whose place no dump fills with a number: the machines are of other kinds, or none had an error of that kind.
NEVER_SEEN = frozenset(
    row.field for row in _ecc() if row.field.endswith(("_TEX", "_SHM")) or ("SBE" in row.field and "CBU" in row.field)
)

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
    "DCGM_FI_DEV_PLATFORM_CHASSIS_SERIAL_NUMBER": "platformInfo/chassis_serial_number",
    "DCGM_FI_DEV_PLATFORM_INFINIBAND_GUID": "platformInfo/gpu_fabric_guid",
}
DRIVER = "DCGM_FI_DRIVER_VERSION"
FIELDS = (*(row.field for row in ROWS), *(label for label in TEXTS if label.startswith("DCGM_")), DRIVER)
NOTHING = ("N/A", "Requested functionality has been deprecated", "")
SCRUBBED = "[REDACTED]"  # a number that the machine's owner keeps to himself


@dataclass(frozen=True, slots=True)
class Shown:
    """What nvidia-smi shows of one field of one device: the number, or None for N/A."""

    field: str
    gpu: str
    instance: str
    number: float | None


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """The pages that were made so far, by the dump."""
    return {}


@pytest.fixture
def page_of(made: dict[str, str], tmp_path: Path, node: Callable[..., Node]) -> Callable[[str], str]:
    """Give the page of a dump, which is made once."""

    def look(name: str) -> str:
        if name not in made:
            made[name] = node(smi.scenario(_dump(name, tmp_path)), fields=FIELDS).page()
        return made[name]

    return look


@pytest.mark.parametrize("name", DUMPS or [pytest.param("", marks=ABSENT)])
def test_every_number_of_nvidia_smi_is_the_number_on_our_page(
    name: str, tmp_path: Path, page_of: Callable[[str], str]
) -> None:
    """Whoever compares the two on a machine sees one truth; what nvidia-smi calls N/A is absent, not 0."""
    shown = list(_shown(_root(_dump(name, tmp_path))))

    page = page_of(name)

    assert shown, "the dump shows none of our fields; the places in ROWS are wrong"
    assert _numbers(page) == {(s.field, s.gpu, s.instance): s.number for s in shown if s.number is not None}


@pytest.mark.parametrize("name", STIRRED if DUMPS else [pytest.param("", marks=ABSENT)])
def test_no_two_numbers_of_nvidia_smi_are_mixed_up(name: str, tmp_path: Path, node: Callable[..., Node]) -> None:
    """Idle machines show many zeros, which hide that two numbers are swapped: here a dump has only different ones."""
    path = _stirred(name, tmp_path)
    shown = list(_shown(_root(path)))

    page = node(smi.scenario(path), fields=FIELDS).page()

    assert _numbers(page) == {(s.field, s.gpu, s.instance): s.number for s in shown if s.number is not None}


@pytest.mark.skipif(not DUMPS, reason="recordings/smi-xml is not beside this checkout")
def test_every_row_is_stirred_somewhere(tmp_path: Path) -> None:
    """A row that is in none of the stirred dumps could be swapped with another, and nobody would notice."""
    shown = [each for name in STIRRED for each in _shown(_root(_stirred(name, tmp_path)))]

    zeros = {row.field for row in ROWS if isinstance(row.unit, Mapping) and not any(row.unit.values())}
    assert {each.field for each in shown if each.number} == {row.field for row in ROWS} - zeros


def _stirred(name: str, folder: Path) -> Path:
    """A dump in which each row of each GPU has another number."""
    root = _root(FOLDER / name)
    for index, gpu in enumerate(_elements(root, "gpu")):
        for number, row in enumerate(ROWS):
            for place in row.places:
                for part in place.split("+"):
                    _write(gpu, part, _different(row, 7 * number + 13 * index))
    path = folder / name
    path.write_text(root.toxml())
    return path


@pytest.mark.parametrize("name", DUMPS or [pytest.param("", marks=ABSENT)])
def test_every_text_of_nvidia_smi_is_the_label_on_our_page(
    name: str, tmp_path: Path, page_of: Callable[[str], str]
) -> None:
    """A number is of use only with the right GPU beside it; a text that nvidia-smi lacks makes no empty label."""
    root = _root(_dump(name, tmp_path))
    gpus = _elements(root, "gpu")
    uuids = Counter(_words(gpu, "uuid") for gpu in gpus)
    expected = []
    for gpu in gpus:
        texts = {label: _words(gpu, place) for label, place in TEXTS.items()}
        if texts["DCGM_FI_DEV_PLATFORM_INFINIBAND_GUID"] == "0x0":  # no GUID, and no N/A either
            del texts["DCGM_FI_DEV_PLATFORM_INFINIBAND_GUID"]
        texts |= {"pci_bus_id": gpu.getAttribute("id"), DRIVER: _words(root, "driver_version")}
        if uuids[texts["UUID"]] > 1:  # scrubbed: not the machine's
            del texts["UUID"]
        expected.append({label: text for label, text in texts.items() if text not in NOTHING})

    page = page_of(name)

    for line in lines_of(page):
        if line.name.startswith("DCGM_"):
            texts = expected[int(line.labels["gpu"])]
            labels = {label: text for label, text in line.labels.items() if label in texts or label in FIELDS}
            assert labels == texts


def test_every_field_we_read_is_compared_or_known_to_be_missing_from_the_xml() -> None:
    """A field that is read from now on gets its row here and in tests/recorded/smi.py, or its reason in NOT_IN_XML."""
    read = {CATALOGUE[identity].name for identity in READABLE if CATALOGUE[identity].is_numeric}

    missing = read - {row.field for row in ROWS}
    assert {row.field for row in ROWS} <= read
    assert {name for name in missing if not any(fnmatchcase(name, pattern) for pattern in NOT_IN_XML)} == set()
    assert {pattern for pattern in NOT_IN_XML if not any(fnmatchcase(name, pattern) for name in missing)} == set()


@pytest.mark.skipif(not DUMPS, reason="recordings/smi-xml is not beside this checkout")
def test_every_row_meets_a_number_in_some_dump(tmp_path: Path) -> None:
    """A row whose place does not exist would compare nothing, and nobody would notice."""
    numbers: Counter[str] = Counter()
    for name in DUMPS:
        numbers.update(shown.field for shown in _shown(_root(_dump(name, tmp_path))) if shown.number is not None)

    assert set(numbers) == {row.field for row in ROWS} - NEVER_SEEN
    assert sum(numbers.values()) > 9000  # 9,503 when this was written


def _dump(name: str, folder: Path) -> Path:
    """The dump as XML; of a text it is written into *folder*."""
    if (FOLDER / name).exists():
        return FOLDER / name
    path = folder / f"{name}.xml"
    path.write_bytes(ET.tostring(smi_text.xml((TEXTUAL / name).read_text(errors="replace"))))
    return path


def _numbers(page: str) -> dict[tuple[str, str, str], float]:
    """All of our numbers on a page, by field, GPU and instance. A series that is there twice is an error."""
    lines = [line for line in lines_of(page) if line.name in FIELDS]
    numbers = {(line.name, line.labels["gpu"], line.labels.get("GPU_I_ID", "")): line.value for line in lines}
    assert len(numbers) == len(lines)
    return numbers


def _different(row: Row, number: int) -> str:
    """The text of a number that can be true of the field."""
    if isinstance(row.unit, Mapping):
        words = list(row.unit)
        return words[max(len(words) - 1 - number % 3, 1 % len(words))]
    found = 1 + number % row.highest
    if row.unit == HEX:
        return f"{found:08X}"
    return f"{found}x" if row.unit == "x" else f"{found} {row.unit}".strip()


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
        texts = [texts for place in row.places if (texts := [_words(device, part) for part in place.split("+")])]
        numbers = [_sum(parts, row) for parts in texts if all(parts)]
        if numbers and row.field not in without:
            yield Shown(row.field, gpu, instance, next((number for number in numbers if number is not None), None))


def _sum(texts: list[str], row: Row) -> float | None:
    """The number that stands in one place, or in several together; None for N/A."""
    if any(text in (*NOTHING, SCRUBBED) for text in texts):
        return None
    return sum(_number(text, row.unit) for text in texts) * row.factor


def _number(text: str, unit: str | Mapping[str, float]) -> float:
    """The number; a text that is neither one in this unit nor one of NOTHING is an error."""
    if isinstance(unit, Mapping):
        return unit[text]
    if unit == HEX:
        return int(text.removeprefix("0x"), 16)
    number, _, found = (text[:-1], "", text[-1]) if unit == "x" else text.partition(" ")
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
