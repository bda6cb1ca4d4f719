"""From `nvidia-smi -q -x` to a scenario of that state, for drivers 352 to 595.

Rule 1: what nvidia-smi shows as a number is what the driver answered. Whatever else it shows in the place of one
        (N/A, a deprecation, an error, nothing) is NOT_SUPPORTED here, which is how NVML says nearly all of them.
Rule 2: nvidia-smi shows MiB, and rounds or cuts by version; the driver here answers whole MiB, where both are exact.
        Used, free and reserved are as shown, so they need not add up to the total.
Rule 3: made up is only what scrubbing took away or nvidia-smi does not show: a second GPU's equal UUID, the UUIDs and
        profiles of MIG instances.
Rule 4: to convert one more number: a row in ANSWERS or FIELDS.
"""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import pynvml

from tests.fakenvml.scenario import Answer, FieldAnswer, FieldKey, Gpu, Instance, Key, Scenario
from tests.recorded.outputs import MIB, Outputs, answered, whole

NUMBER = re.compile(r"P?(-?\d+(?:\.\d+)?)(?:x| (?:MiB|MHz|C|W|%|KB/s|us|bank\(s\)))?")
NO_TEXT = frozenset({"", "N/A", "Requested functionality has been deprecated", "Insufficient Permissions"})
BRANDS: Mapping[str, int] = {
    "Quadro": pynvml.NVML_BRAND_QUADRO,
    "Grid": pynvml.NVML_BRAND_GRID,
    "GeForce": pynvml.NVML_BRAND_GEFORCE,
    "NVIDIA RTX": pynvml.NVML_BRAND_NVIDIA_RTX,
    "NVIDIA": pynvml.NVML_BRAND_NVIDIA,
}
# Words that nvidia-smi writes for a number of the driver.
WORDS: Mapping[str, int] = {
    "No": 0,
    "Yes": 1,
    "Disabled": 0,
    "Enabled": 1,
    "Default": 0,
    "Exclusive_Process": 3,
    "None": 0,
    "Pass-Through": 1,
    "Completed": 3,
    "Success": 0,
    "Healthy": 1,
    "Direct Connected": 0,
    "Switch Connected": 1,
}
MIG_MODES: Mapping[str, tuple[int, int]] = {"Disabled": (0, 0), "Enabled": (1, 1)}  # now, after the next reset

_WINDOW = 167_000  # us: over how long the driver measured the load of an engine; nvidia-smi does not show it
_ROWS = "remapped_rows/remapped_row_"

_ECC = "ecc_errors/"
_LINK = "pci/pci_gpu_link_info/"
_HISTOGRAM = "remapped_rows/row_remapper_histogram/row_remapper_histogram_"
_PLATFORM = "platformInfo/"
_PLACE = ("slot_number", "tray_index", "host_id", "peer_type", "module_id")
_SPANS = ("volatile", "aggregate")  # in NVML's order
_NEWER_PLACES = {2: "dram", 7: "sram"}  # Turing and newer, by NVML's location
_OLDER_PLACES = ("l1_cache", "l2_cache", "device_memory", "register_file", "texture_memory", "texture_shm", "cbu")

ANSWERS = (
    Outputs(("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM), ("clocks/sm_clock",)),
    Outputs(("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM), ("clocks/mem_clock",)),
    Outputs(("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_VIDEO), ("clocks/video_clock",)),
    Outputs(("nvmlDeviceGetApplicationsClock", pynvml.NVML_CLOCK_GRAPHICS), ("applications_clocks/graphics_clock",)),
    Outputs(("nvmlDeviceGetApplicationsClock", pynvml.NVML_CLOCK_MEM), ("applications_clocks/mem_clock",)),
    Outputs(("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM), ("max_clocks/sm_clock",)),
    Outputs(("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM), ("max_clocks/mem_clock",)),
    Outputs(("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_VIDEO), ("max_clocks/video_clock",)),
    Outputs(("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU), ("temperature/gpu_temp",)),
    *(
        Outputs(("nvmlDeviceGetTemperatureThreshold", kind), (f"temperature/gpu_temp_{word}_threshold",))
        for kind, word in enumerate(("max", "slow", "max_mem", "max_gpu"))
    ),
    Outputs("nvmlDeviceGetMarginTemperature", ("temperature/gpu_temp_tlimit",)),
    Outputs("nvmlDeviceGetFanSpeed", ("fan_speed",)),
    Outputs("nvmlDeviceGetPerformanceState", ("performance_state",)),
    Outputs("nvmlDeviceGetPcieReplayCounter", ("pci/replay_counter",)),
    Outputs(("nvmlDeviceGetPcieThroughput", pynvml.NVML_PCIE_UTIL_TX_BYTES), ("pci/tx_util",)),
    Outputs(("nvmlDeviceGetPcieThroughput", pynvml.NVML_PCIE_UTIL_RX_BYTES), ("pci/rx_util",)),
    Outputs("nvmlDeviceGetMaxPcieLinkGeneration", (f"{_LINK}pcie_gen/max_link_gen",)),
    Outputs("nvmlDeviceGetCurrPcieLinkGeneration", (f"{_LINK}pcie_gen/current_link_gen",)),
    Outputs("nvmlDeviceGetMaxPcieLinkWidth", (f"{_LINK}link_widths/max_link_width",)),
    Outputs("nvmlDeviceGetCurrPcieLinkWidth", (f"{_LINK}link_widths/current_link_width",)),
    Outputs("nvmlDeviceGetUtilizationRates", ("utilization/gpu_util", "utilization/memory_util")),
    Outputs("nvmlDeviceGetEncoderUtilization", ("utilization/encoder_util",), (_WINDOW,)),
    Outputs("nvmlDeviceGetDecoderUtilization", ("utilization/decoder_util",), (_WINDOW,)),
    Outputs("nvmlDeviceGetJpgUtilization", ("utilization/jpeg_util",), (_WINDOW,)),
    Outputs("nvmlDeviceGetOfaUtilization", ("utilization/ofa_util",), (_WINDOW,)),
    *(
        Outputs(function, (f"{group}/session_count", f"{group}/average_fps", f"{group}/average_latency"))
        for function, group in (("nvmlDeviceGetEncoderStats", "encoder_stats"), ("nvmlDeviceGetFBCStats", "fbc_stats"))
    ),
    Outputs("nvmlDeviceGetPersistenceMode", ("persistence_mode",)),
    Outputs("nvmlDeviceGetComputeMode", ("compute_mode",)),
    Outputs("nvmlDeviceGetVirtualizationMode", ("gpu_virtualization_mode/virtualization_mode",)),
    Outputs("nvmlDeviceGetEccMode", ("ecc_mode/current_ecc", "ecc_mode/pending_ecc")),
    *(
        Outputs(("nvmlDeviceGetMemoryErrorCounter", error, span, location), (f"{_ECC}{when}/{place}_{word}",))
        for error, word in enumerate(("correctable", "uncorrectable"))
        for span, when in enumerate(_SPANS)
        for location, place in _NEWER_PLACES.items()
    ),
    Outputs(
        "nvmlDeviceGetSramEccErrorStatus",
        (
            *(
                f"{_ECC}{when}/sram_{word}"
                for when in reversed(_SPANS)
                for word in ("uncorrectable_parity", "uncorrectable_secded", "correctable")
            ),
            *(
                f"{_ECC}aggregate_uncorrectable_sram_sources/sram_{word}"
                for word in ("l2", "sm", "pcie", "microcontroller", "other")
            ),
            f"{_ECC}aggregate/sram_threshold_exceeded",
        ),
    ),
    Outputs("nvmlDeviceGetUnrepairableMemoryFlag_v1", (f"{_ECC}unrepairable_memory",), (0,)),
    Outputs("nvmlDeviceGetRemappedRows", (*(_ROWS + word for word in ("corr", "unc", "pending", "failure")),)),
    Outputs(
        "nvmlDeviceGetRowRemapperHistogram",
        (*(_HISTOGRAM + word for word in ("max", "high", "partial", "low", "none")),),
    ),
    # The places of the health mask are words; nothing here reads them, so the mask is made up.
    Outputs("nvmlDeviceGetGpuFabricInfoV", ("fabric/state", "fabric/status", "fabric/cliqueId"), (0,)),
)
# Volta and older: by place, single-bit and double-bit errors.
OLDER = tuple(
    Outputs(("nvmlDeviceGetMemoryErrorCounter", error, span, location), (f"{_ECC}{when}/{word}_bit/{place}",))
    for error, word in enumerate(("single", "double"))
    for span, when in enumerate(_SPANS)
    for location, place in enumerate(_OLDER_PLACES)
)
TOTALS = tuple(
    Outputs(("nvmlDeviceGetTotalEccErrors", error, span), (f"{_ECC}{when}/{word}_bit/total",))
    for error, word in enumerate(("single", "double"))
    for span, when in enumerate(_SPANS)
)
BAR1 = Outputs("nvmlDeviceGetBAR1MemoryInfo", ("total", "free", "used"), factor=MIB)
MEMORY = (
    Outputs("nvmlDeviceGetMemoryInfo", ("total", "free", "used"), factor=MIB),
    Outputs("nvmlDeviceGetMemoryInfo_v2", ("total", "reserved", "free", "used"), factor=MIB),
)
FIELDS: Mapping[int, str] = {
    pynvml.NVML_FI_DEV_MEMORY_TEMP: "temperature/memory_temp",
    pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER: "pci/replay_counter",
    pynvml.NVML_FI_DEV_RETIRED_PENDING: "retired_pages/pending_retirement",
    pynvml.NVML_FI_DEV_REMAPPED_COR: f"{_ROWS}corr",
    pynvml.NVML_FI_DEV_REMAPPED_UNC: f"{_ROWS}unc",
    pynvml.NVML_FI_DEV_REMAPPED_PENDING: f"{_ROWS}pending",
    pynvml.NVML_FI_DEV_REMAPPED_FAILURE: f"{_ROWS}failure",
    pynvml.NVML_FI_DEV_RETIRED_SBE: "retired_pages/multiple_single_bit_retirement/retired_count",
    pynvml.NVML_FI_DEV_RETIRED_DBE: "retired_pages/double_bit_retirement/retired_count",
    pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: "gpu_recovery_action",
}
# Watts, and times in microseconds: the driver's units are a thousandth of these.
THOUSANDS: Mapping[int, str] = {
    pynvml.NVML_FI_DEV_POWER_INSTANT: "gpu_power_readings/instant_power_draw",
    pynvml.NVML_FI_DEV_POWER_REQUESTED_LIMIT: "gpu_power_readings/requested_power_limit",
    pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT: "gpu_power_readings/current_power_limit",
    pynvml.NVML_FI_DEV_POWER_MIN_LIMIT: "gpu_power_readings/min_power_limit",
    pynvml.NVML_FI_DEV_POWER_MAX_LIMIT: "gpu_power_readings/max_power_limit",
    pynvml.NVML_FI_DEV_POWER_DEFAULT_LIMIT: "gpu_power_readings/default_power_limit",
    pynvml.NVML_FI_DEV_PERF_POLICY_POWER: "clocks_event_reasons_counters/clocks_event_reasons_counters_sw_power_cap",
    pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST: "clocks_event_reasons_counters/clocks_event_reasons_counters_sync_boost",
}
# By scope: the mean (which is all that 535 shows of it), then the power at this moment.
SCOPES: Mapping[int, str] = {
    pynvml.NVML_POWER_SCOPE_MODULE: "module_power_readings",
    pynvml.NVML_POWER_SCOPE_MEMORY: "gpu_memory_power_readings",
}
# Three counters whose ids moved: the first of them by driver (newest first), then the places.
MOVED = (((580, 82), 269), ((575, 51), 251))
MOVING = tuple(
    f"clocks_event_reasons_counters/clocks_event_reasons_counters_{word}"
    for word in ("sw_therm_slowdown", "hw_therm_slowdown", "hw_power_brake")
)
# What a driver before 535 answers with functions alone.
LIMITS = (
    Outputs("nvmlDeviceGetPowerManagementLimit", ("power_readings/power_limit",), factor=1000),
    Outputs("nvmlDeviceGetEnforcedPowerLimit", ("power_readings/enforced_power_limit",), factor=1000),
    Outputs("nvmlDeviceGetPowerManagementDefaultLimit", ("power_readings/default_power_limit",), factor=1000),
    Outputs(
        "nvmlDeviceGetPowerManagementLimitConstraints",
        ("power_readings/min_power_limit", "power_readings/max_power_limit"),
        factor=1000,
    ),
)
FIELD_VALUES_SINCE = (410,)  # the first driver with the fields above; an older one has only the functions
TEXTS: Mapping[Key, str] = {
    ("nvmlDeviceGetInforomVersion", pynvml.NVML_INFOROM_OEM): "inforom_version/oem_object",
    ("nvmlDeviceGetInforomVersion", pynvml.NVML_INFOROM_ECC): "inforom_version/ecc_object",
    ("nvmlDeviceGetInforomVersion", pynvml.NVML_INFOROM_POWER): "inforom_version/pwr_object",
    "nvmlDeviceGetInforomImageVersion": "inforom_version/img_version",
}
# nvmlDeviceGetPowerUsage answers what nvidia-smi called power_draw until 535.54: the mean of the last second on Ampere
# and newer without GA100, the power at this moment on all others. Later versions show both, and the mean as N/A just
# on those others. So the first of these that is a number is what the function answers.
POWER = (
    "power_readings/power_draw",
    "gpu_power_readings/power_draw",
    "gpu_power_readings/average_power_draw",
    "gpu_power_readings/instant_power_draw",
)


def scenario(path: Path) -> Scenario:
    """The machine of one dump: its driver and the GPUs that the dump shows, in that order."""
    log = ET.parse(path).getroot()  # noqa: S314 - a file that we keep ourselves
    driver = _text(log, "driver_version")
    cuda = re.fullmatch(r"(\d+)\.(\d+)", log.findtext("cuda_version", ""))
    elements = log.findall("gpu")
    uuids = _unique(element.findtext("uuid", "") for element in elements)
    version = tuple(map(int, driver.split("."))) if driver is not None else ()
    return Scenario(
        driver=driver,
        nvml=None,  # not shown
        cuda=None if cuda is None else 1000 * int(cuda[1]) + 10 * int(cuda[2]),
        gpus=tuple(_gpu(element, uuid, version=version) for element, uuid in zip(elements, uuids, strict=True)),
    )


def _gpu(element: ET.Element, uuid: str, *, version: tuple[int, ...]) -> Gpu:
    instances = element.findall("mig_devices/mig_device")
    find = partial(_number, element)
    answers = answered((*ANSWERS, *TOTALS, *LIMITS), find) | _memory(element)
    if element.find(f"{_ECC}volatile/single_bit") is not None:
        answers |= answered(OLDER, find)
    answers["nvmlDeviceGetPowerUsage"] = _power(element)
    answers["nvmlDeviceGetMigMode"] = MIG_MODES.get(element.findtext("mig_mode/current_mig", ""))
    answers["nvmlDeviceGetMaxMigDeviceCount"] = 7 if instances else None
    answers |= {key: _text(element, place) for key, place in TEXTS.items()}
    for cause, place in enumerate(("multiple_single_bit_retirement", "double_bit_retirement")):
        count = whole(find(f"retired_pages/{place}/retired_count"))
        answers["nvmlDeviceGetRetiredPages", cause] = None if count is None else tuple(range(count))
    answers |= _joined(element, answers)
    fields: dict[FieldKey, FieldAnswer] = {identity: whole(find(place)) for identity, place in FIELDS.items()}
    fields |= {identity: whole(find(place), 1000) for identity, place in THOUSANDS.items()}
    for scope, group in SCOPES.items():
        mean = next(
            (found for word in ("average_", "") if (found := find(f"{group}/{word}power_draw")) is not None), None
        )
        fields[pynvml.NVML_FI_DEV_POWER_AVERAGE, scope] = whole(mean, 1000)
        fields[pynvml.NVML_FI_DEV_POWER_INSTANT, scope] = whole(find(f"{group}/instant_power_draw"), 1000)
    first = next((first for since, first in MOVED if version >= since), None)
    if first is not None:
        fields |= {first + offset: whole(find(place), 1000) for offset, place in enumerate(MOVING)}
    return Gpu(
        uuid=uuid,
        name=_text(element, "product_name"),
        pci=_text(element, "pci/pci_bus_id") or element.get("id"),  # a trimmed dump may have no <pci>
        pci_ids=(_hex(element, "pci/pci_device_id"), _hex(element, "pci/pci_sub_system_id")),
        architecture=None,
        brand=BRANDS.get(element.findtext("product_brand", "")),
        serial=_text(element, "serial"),
        minor=whole(_number(element, "minor_number")),
        vbios=_text(element, "vbios_version"),
        answers=answers,
        fields=fields if version >= FIELD_VALUES_SINCE else {},
        instances=tuple(_instance(instance, element, uuid) for instance in instances),
    )


def _instance(element: ET.Element, gpu: ET.Element, uuid: str) -> Instance:
    """A MIG device. Its name, as NVML makes it, holds the profile: slices (7 to a GPU) and memory in GB."""
    index, gi, ci = (int(element.findtext(word, "")) for word in ("index", "gpu_instance_id", "compute_instance_id"))
    processors = int(element.findtext("device_attributes/shared/multiprocessor_count", ""))
    gigabytes = round((_number(element, "fb_memory_usage/total") or Decimal(0)) / 1024)
    return Instance(
        uuid=f"MIG{uuid.removeprefix('GPU')[:-2]}{index:02x}",
        gi=gi,
        ci=ci,
        name=f"{gpu.findtext('product_name')} MIG {processors // 14}g.{gigabytes}gb",
        answers=_memory(element),
    )


def _joined(element: ET.Element, answers: Mapping[Key, Answer]) -> dict[Key, Answer]:
    """The structs that hold texts beside the numbers, and numbers that older drivers do not show."""
    joined: dict[Key, Answer] = {}
    fabric = answers["nvmlDeviceGetGpuFabricInfoV"]
    cluster = element.findtext("fabric/clusterUuid", "").replace("-", "")
    summary = whole(_number(element, "fabric/health/summary"))
    if isinstance(fabric, tuple) and summary is not None:
        joined["nvmlDeviceGetGpuFabricInfoV"] = (*fabric, summary, cluster)
    modules = (whole(_number(element, where)) for where in ("gpu_module_id", f"{_PLATFORM}module_id"))
    joined["nvmlDeviceGetModuleId"] = next((number for number in modules if number is not None), None)
    place = [whole(_number(element, f"{_PLATFORM}{word}")) for word in _PLACE]
    if place[2] is not None:
        guid = element.findtext(f"{_PLATFORM}gpu_fabric_guid", "").removeprefix("0x").zfill(16)
        serial = _text(element, f"{_PLATFORM}chassis_serial_number") or ""
        joined["nvmlDeviceGetPlatformInfo"] = (*(255 if part is None else part for part in place), guid, serial)
    return joined


def _hex(element: ET.Element, place: str) -> int:
    """The word; all ones, which is no id, where the dump is scrubbed or trimmed."""
    text = element.findtext(place, "").removeprefix("0x")
    return int(text, 16) if re.fullmatch("[0-9A-Fa-f]{8}", text) else 0xFFFFFFFF


def _memory(element: ET.Element) -> dict[Key, Answer]:
    """Both versions of the question. The first knows no reserved memory and counts it as used."""
    shown = {word: _number(element, f"fb_memory_usage/{word}") for word in ("total", "reserved", "free", "used")}
    first, second = MEMORY
    used, reserved = shown["used"], shown["reserved"]
    both = None if used is None else used + (reserved or 0)
    bar1 = {word: _number(element, f"bar1_memory_usage/{word}") for word in ("total", "free", "used")}
    return answered([first], (shown | {"used": both}).get) | answered([second], shown.get) | answered([BAR1], bar1.get)


def _power(element: ET.Element) -> int | None:
    draws = (_number(element, place) for place in POWER)
    return whole(next((draw for draw in draws if draw is not None), None), 1000)


def _number(element: ET.Element, place: str) -> Decimal | None:
    text = element.findtext(place, "").strip()
    match = NUMBER.fullmatch(str(WORDS.get(text, text)))
    return Decimal(match[1]) if match is not None else None


def _text(element: ET.Element, place: str) -> str | None:
    text = element.findtext(place, "").strip()
    return None if text in NO_TEXT else text


def _unique(uuids: Iterable[str]) -> list[str]:
    """The UUIDs, with a number at the end of one that an earlier GPU has too: scrubbing gave both the same."""
    unique: list[str] = []
    for number, uuid in enumerate(uuids):
        told = uuid or "GPU-00"  # some dumps hide it
        unique.append(told if told not in unique else f"{told[:-2]}{number:02x}")
    return unique
