"""From a page that dcgm-exporter served to a scenario with the same readings.

Rule 1: the driver answers what the page shows, and nothing else. Where a value cannot come from NVML on that GPU
        (profiling before Hopper is DCGM's own) it is answered all the same unless the caller names it in *without*:
        our page shows what the driver answers, so this is a fair test of how it is written, and no claim about the
        driver of that machine. tests/test_recorded_pages.py compares both ways.
Rule 2: numbers are taken so that the shown ones come back exactly: W and MiB as whole mW and bytes, a rate in B/s as
        MiB/s (a division by a power of two), a ratio as percent, which is off by far less than its six decimals.
Rule 3: of a GPU whose values stand on each of its MIG instances the first one is the driver's.
Rule 4: to convert one more field: a row in ANSWERS, FIELDS, PERCENTAGES or RATES.
"""

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import NamedTuple, Self, TypeAlias

import pynvml

from tests.fakenvml.scenario import ALL_LINKS, Answer, FieldAnswer, FieldKey, Gpu, Instance, Key, Scenario
from tests.recorded.outputs import MIB, Outputs, answered, whole

Numbers: TypeAlias = dict[str, Decimal]  # by field name, in the page's units

_SAMPLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\{([^}]*)\} (\S+)")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="([^"]*)"')

FREE, USED, TOTAL, SHARE, XID, BANDWIDTH = (
    f"DCGM_FI_DEV_{word}"
    for word in ("FB_FREE", "FB_USED", "FB_TOTAL", "FB_USED_PERCENT", "XID_ERRORS", "NVLINK_BANDWIDTH_TOTAL")
)
_WINDOW = 167_000  # us: over how long the driver measured the load of an engine; the page does not show it

ANSWERS = (
    Outputs(("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM), ("DCGM_FI_DEV_SM_CLOCK",)),
    Outputs(("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM), ("DCGM_FI_DEV_MEM_CLOCK",)),
    Outputs(("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU), ("DCGM_FI_DEV_GPU_TEMP",)),
    Outputs("nvmlDeviceGetPowerUsage", ("DCGM_FI_DEV_POWER_USAGE",), factor=1000),
    Outputs("nvmlDeviceGetPowerManagementLimit", ("DCGM_FI_DEV_POWER_MGMT_LIMIT",), factor=1000),
    Outputs("nvmlDeviceGetUtilizationRates", ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL")),
    Outputs("nvmlDeviceGetEncoderUtilization", ("DCGM_FI_DEV_ENC_UTIL",), (_WINDOW,)),
    Outputs("nvmlDeviceGetDecoderUtilization", ("DCGM_FI_DEV_DEC_UTIL",), (_WINDOW,)),
    Outputs("nvmlDeviceGetPerformanceState", ("DCGM_FI_DEV_PSTATE",)),
    Outputs(("nvmlDeviceGetTemperatureThreshold", 1), ("DCGM_FI_DEV_SLOWDOWN_TEMP",)),
    Outputs("nvmlDeviceGetCurrentClocksEventReasons", ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",)),
    Outputs("nvmlDeviceGetGridLicensableFeatures_v4", ("DCGM_FI_DEV_VGPU_LICENSE_STATUS",)),  # 0: no such feature
)
MEMORY = Outputs("nvmlDeviceGetMemoryInfo_v2", ("total", "reserved", FREE, USED), factor=MIB)
FIELDS: Mapping[FieldKey, str] = {
    pynvml.NVML_FI_DEV_MEMORY_TEMP: "DCGM_FI_DEV_MEMORY_TEMP",
    pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER: "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    pynvml.NVML_FI_DEV_REMAPPED_UNC: "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    pynvml.NVML_FI_DEV_REMAPPED_COR: "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
    pynvml.NVML_FI_DEV_REMAPPED_FAILURE: "DCGM_FI_DEV_ROW_REMAP_FAILURE",
    # A rate: counters that stand still are its 0.
    (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS): BANDWIDTH,
    (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS): BANDWIDTH,
}
PERCENTAGES: Mapping[int, str] = {
    pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL: "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: "DCGM_FI_PROF_DRAM_ACTIVE",
    pynvml.NVML_GPM_METRIC_FP64_UTIL: "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
    pynvml.NVML_GPM_METRIC_FP32_UTIL: "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
    pynvml.NVML_GPM_METRIC_FP16_UTIL: "DCGM_FI_PROF_PIPE_FP16_ACTIVE",
}
RATES: Mapping[int, str] = {
    pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: "DCGM_FI_PROF_PCIE_TX_BYTES",
    pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: "DCGM_FI_PROF_PCIE_RX_BYTES",
    pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC: "DCGM_FI_PROF_NVLINK_TX_BYTES",
}
COUNT = "DCGM_FI_DEV_COUNT"  # the driver counts the GPUs of the page
XID_COUNT = "DCGM_EXP_XID_ERRORS_COUNT"  # the driver tells of so many
BRANDS = {"NVIDIA": 14}  # NVML's number for what nvidia-smi shows of every T4, too
ZERO_ONLY = (XID, BANDWIDTH, "DCGM_FI_DEV_VGPU_LICENSE_STATUS")  # no recording holds another value, so none is made
OF_INSTANCES = frozenset({FREE, USED, *PERCENTAGES.values()})  # what a MIG instance answers for itself
CONVERTED = frozenset(
    {XID, XID_COUNT, FREE, USED, TOTAL, SHARE, COUNT, *FIELDS.values(), *PERCENTAGES.values(), *RATES.values()}
    | {place for row in ANSWERS for place in row.places}
)


class Sample(NamedTuple):
    """One sample line; `str` gives the line back, byte for byte."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: str

    def __str__(self) -> str:
        labels = ",".join(f'{name}="{text}"' for name, text in self.labels)
        return f"{self.name}{{{labels}}} {self.value}"

    def label(self, name: str) -> str:
        """The text of a label, "" without it."""
        return dict(self.labels).get(name, "")

    def without(self, names: AbstractSet[str]) -> Self:
        """The sample without these labels."""
        return self._replace(labels=tuple(pair for pair in self.labels if pair[0] not in names))


@dataclass(frozen=True, slots=True)
class Recording:
    """The sample lines of a page in their order, and its TYPE lines."""

    samples: tuple[Sample, ...]
    types: tuple[str, ...]


def recording(page: str) -> Recording:
    """Read a page. ValueError for a line that is none of dcgm-exporter's."""
    lines = page.splitlines()
    samples = tuple(sample(line) for line in lines if line and not line.startswith("#"))
    return Recording(samples, tuple(line for line in lines if line.startswith("# TYPE ")))


def sample(line: str) -> Sample:
    """Read a sample line. ValueError when it would not be written again as it stands."""
    match = _SAMPLE.fullmatch(line)
    read = Sample(match[1], tuple(_LABEL.findall(match[2])), match[3]) if match is not None else None
    if read is None or str(read) != line:
        raise ValueError(f"not a sample line of dcgm-exporter: {line!r}")
    return read


def scenario(samples: Iterable[Sample], *, without: AbstractSet[str] = frozenset()) -> Scenario:
    """The machine on whose page these samples stand, in which nothing answers the fields *without*.

    ValueError for a field that has no row here, and for GPUs that are not numbered from 0.
    """
    by_gpu: dict[str, list[Sample]] = {}
    for each in samples:
        by_gpu.setdefault(each.label("gpu"), []).append(each)
    if list(by_gpu) != [str(number) for number in range(len(by_gpu))]:
        raise ValueError(f"GPUs {', '.join(by_gpu)}: the driver numbers them from 0")
    driver, nvml, cuda = (
        min({each.label(name) for own in by_gpu.values() for each in own} - {""}, default=None)
        for name in ("DCGM_FI_DRIVER_VERSION", "DCGM_FI_NVML_VERSION", "DCGM_FI_CUDA_DRIVER_VERSION")
    )
    gpus = tuple(_gpu(own, without) for own in by_gpu.values())
    machine = Scenario(driver=driver, nvml=nvml, cuda=None if cuda is None else int(cuda), gpus=gpus)
    for slot, own in enumerate(by_gpu.values()):
        for each in own:
            for _ in range(int(each.value) if each.name == XID_COUNT and each.name not in without else 0):
                machine = machine.with_xid(slot, int(each.label("xid")))
    return machine


def _gpu(samples: list[Sample], without: AbstractSet[str]) -> Gpu:
    own, by_instance = _numbers(samples, without)
    instances = tuple(_instance(samples, place, numbers) for place, numbers in by_instance.items())
    answers: dict[Key, Answer] = answered(ANSWERS, own.get) | _memory(own)
    if XID in own or XID_COUNT in own:
        answers["nvmlDeviceGetSupportedEventTypes"] = pynvml.nvmlEventTypeXidCriticalError
    if instances:
        answers |= {"nvmlDeviceGetMigMode": (1, 1), "nvmlDeviceGetMaxMigDeviceCount": 7}
    if any(instance.gpm for instance in instances):
        answers["nvmlGpmQueryDeviceSupport"] = 1
    fields: dict[FieldKey, FieldAnswer] = {key: whole(own.get(name)) for key, name in FIELDS.items()}
    label = samples[0].label
    return Gpu(
        uuid=label("UUID"),
        name=label("modelName") or None,
        pci=label("pci_bus_id") or None,
        serial=label("DCGM_FI_DEV_SERIAL") or None,
        vbios=label("DCGM_FI_DEV_VBIOS_VERSION") or None,
        brand=BRANDS.get(label("DCGM_FI_DEV_BRAND")),
        minor=int(label("DCGM_FI_DEV_MINOR_NUMBER") or 0),
        architecture=None,
        answers=answers,
        fields=fields,
        gpm=_gpm(own),
        instances=instances,
    )


def _numbers(samples: Iterable[Sample], without: AbstractSet[str]) -> tuple[Numbers, dict[str, Numbers]]:
    """The numbers that the GPU answers, and those of its instances by their id."""
    own: Numbers = {}
    instances: dict[str, Numbers] = {}
    for each in samples:
        place = each.label("GPU_I_ID")
        theirs = instances.setdefault(place, {}) if place else own
        if each.name in without:
            continue
        if each.name not in CONVERTED:
            raise ValueError(f"tests/recorded/dcgm_page.py has no row for {each.name}")
        number = Decimal(each.value)
        if each.name in ZERO_ONLY and number != 0:
            raise ValueError(f"only made for 0: {each}")
        (theirs if each.name in OF_INSTANCES else own).setdefault(each.name, number)
    return own, instances


def _instance(samples: Iterable[Sample], place: str, own: Numbers) -> Instance:
    first = next(each for each in samples if each.label("GPU_I_ID") == place)
    number = int(place)
    return Instance(
        uuid=f"MIG{first.label('UUID').removeprefix('GPU')[:-2]}{number:02x}",
        gi=number,
        name=f"{first.label('modelName')} MIG {first.label('GPU_I_PROFILE')}",
        answers=_memory(own),
        gpm=_gpm(own),
    )


def _memory(own: Numbers) -> dict[Key, Answer]:
    """What the page shows, and nothing reserved: old pages do not say how much that was."""
    total = own[FREE] + own[USED] if FREE in own and USED in own else own.get(TOTAL)
    if total is not None and SHARE in own:
        used = own[SHARE] * total * MIB // 1 / MIB  # whole bytes
        own = own | {USED: used, FREE: total - used}
    return answered([MEMORY], partial({**own, "total": total, "reserved": Decimal(0)}.get))


def _gpm(own: Numbers) -> dict[int, float]:
    percentages = {metric: float(own[name] * 100) for metric, name in PERCENTAGES.items() if name in own}
    return percentages | {metric: float(own[name]) / MIB for metric, name in RATES.items() if name in own}
