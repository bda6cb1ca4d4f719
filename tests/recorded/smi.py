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

NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(?:x| (?:MiB|MHz|C|W|%))?")
NO_TEXT = frozenset({"", "N/A", "Requested functionality has been deprecated", "Insufficient Permissions"})
BRANDS: Mapping[str, int] = {
    "Quadro": pynvml.NVML_BRAND_QUADRO,
    "Grid": pynvml.NVML_BRAND_GRID,
    "GeForce": pynvml.NVML_BRAND_GEFORCE,
    "NVIDIA RTX": pynvml.NVML_BRAND_NVIDIA_RTX,
    "NVIDIA": pynvml.NVML_BRAND_NVIDIA,
}
YES_NO: Mapping[str, int] = {"No": 0, "Yes": 1}
MIG_MODES: Mapping[str, tuple[int, int]] = {"Disabled": (0, 0), "Enabled": (1, 1)}  # now, after the next reset

_WINDOW = 167_000  # us: over how long the driver measured the load of an engine; nvidia-smi does not show it
_ROWS = "remapped_rows/remapped_row_"

ANSWERS = (
    Outputs(("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM), ("clocks/sm_clock",)),
    Outputs(("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM), ("clocks/mem_clock",)),
    Outputs(("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU), ("temperature/gpu_temp",)),
    Outputs("nvmlDeviceGetPcieReplayCounter", ("pci/replay_counter",)),
    Outputs("nvmlDeviceGetCurrPcieLinkWidth", ("pci/pci_gpu_link_info/link_widths/current_link_width",)),
    Outputs("nvmlDeviceGetUtilizationRates", ("utilization/gpu_util", "utilization/memory_util")),
    Outputs("nvmlDeviceGetEncoderUtilization", ("utilization/encoder_util",), (_WINDOW,)),
    Outputs("nvmlDeviceGetDecoderUtilization", ("utilization/decoder_util",), (_WINDOW,)),
    Outputs("nvmlDeviceGetRemappedRows", (*(_ROWS + word for word in ("corr", "unc", "pending", "failure")),)),
)
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
}
FIELD_VALUES_SINCE = 410  # the first driver with the fields above; an older one has only the functions
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
    has_fields = driver is not None and int(driver.split(".")[0]) >= FIELD_VALUES_SINCE
    return Scenario(
        driver=driver,
        nvml=None,  # not shown
        cuda=None if cuda is None else 1000 * int(cuda[1]) + 10 * int(cuda[2]),
        gpus=tuple(_gpu(element, uuid, has_fields=has_fields) for element, uuid in zip(elements, uuids, strict=True)),
    )


def _gpu(element: ET.Element, uuid: str, *, has_fields: bool) -> Gpu:
    instances = element.findall("mig_devices/mig_device")
    answers = answered(ANSWERS, partial(_number, element)) | _memory(element)
    answers["nvmlDeviceGetPowerUsage"] = _power(element)
    answers["nvmlDeviceGetMigMode"] = MIG_MODES.get(element.findtext("mig_mode/current_mig", ""))
    answers["nvmlDeviceGetMaxMigDeviceCount"] = 7 if instances else None
    answers |= {key: _text(element, place) for key, place in TEXTS.items()}
    fields: dict[FieldKey, FieldAnswer] = {
        identity: whole(_number(element, place)) for identity, place in FIELDS.items()
    }
    return Gpu(
        uuid=uuid,
        name=_text(element, "product_name"),
        pci=_text(element, "pci/pci_bus_id") or element.get("id"),  # a trimmed dump may have no <pci>
        architecture=None,
        brand=BRANDS.get(element.findtext("product_brand", "")),
        serial=_text(element, "serial"),
        minor=whole(_number(element, "minor_number")),
        vbios=_text(element, "vbios_version"),
        answers=answers,
        fields=fields if has_fields else {},
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


def _memory(element: ET.Element) -> dict[Key, Answer]:
    """Both versions of the question. The first knows no reserved memory and counts it as used."""
    shown = {word: _number(element, f"fb_memory_usage/{word}") for word in ("total", "reserved", "free", "used")}
    first, second = MEMORY
    used, reserved = shown["used"], shown["reserved"]
    both = None if used is None else used + (reserved or 0)
    return answered([first], (shown | {"used": both}).get) | answered([second], shown.get)


def _power(element: ET.Element) -> int | None:
    draws = (_number(element, place) for place in POWER)
    return whole(next((draw for draw in draws if draw is not None), None), 1000)


def _number(element: ET.Element, place: str) -> Decimal | None:
    text = element.findtext(place, "").strip()
    match = NUMBER.fullmatch(str(YES_NO.get(text, text)))
    return Decimal(match[1]) if match is not None else None


def _text(element: ET.Element, place: str) -> str | None:
    text = element.findtext(place, "").strip()
    return None if text in NO_TEXT else text


def _unique(uuids: Iterable[str]) -> list[str]:
    """The UUIDs, with a number at the end of one that an earlier GPU has too: scrubbing gave both the same."""
    unique: list[str] = []
    for number, uuid in enumerate(uuids):
        unique.append(uuid if uuid not in unique else f"{uuid[:-2]}{number:02x}")
    return unique
