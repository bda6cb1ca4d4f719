"""Machines that are not like the others: no frame buffer, three powers, a guest, another order of the GPUs.

Rule 1: as in `models`: facts read off recordings and manuals in our own words; what is not known is not answered.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from tests.fakenvml.drivers import DRIVERS, under
from tests.fakenvml.models import A100, B200, H100, MIB, RTX_3090, T4, machine, uuid
from tests.fakenvml.scenario import Answer, FieldAnswer, FieldKey, Gpu, Key, Scenario

KEPLER = 2

K80 = replace(
    T4,
    name="Tesla K80",
    driver="470.256.02",
    cuda=11040,
    architecture=KEPLER,
    compute=(3, 7),
    brand=2,
    pci="00000000:86:00.0",
    pci_ids=(0x102D10DE, 0x106C10DE),
    vbios="80.21.1B.00.01",
    inforom="2080.0200.00.04",
    board_part="900-22080-0000-000",
    memory=(11441, 0, 4),
    bar1=16384,
    bus_width=384,
    cores=2496,
    clocks=(324, 324, 405),
    max_clocks=(875, 2505, 540),
    pstate=8,
    power=26.1,
    power_limits=(100, 149),
    temperature=34,
    thresholds=(93, 88, 0),
    pcie=(1, 3, 16, 16),
    jpeg_ofa=False,
    reason_counters=None,
)
GH200 = replace(
    H100,
    name="NVIDIA GH200 480GB",
    driver="570.148.08",
    cuda=12080,
    pci="00000009:01:00.0",
    pci_ids=(0x234210DE, 0x16EB10DE),
    memory=(97871, 576, 0),
    power=92.3,
    power_limits=(100, 900),
    links=0,
    nvlink_mbps=0,
    reason_counters=None,
)
GB200 = replace(
    B200,
    name="NVIDIA GB200",
    driver="580.173.02",
    pci="00000008:01:00.0",
    pci_ids=(0x294110DE, 0x21D710DE),
    memory=(189471, 740, 0),
    power=165.9,
    power_limits=(200, 1200),
)
GB10 = replace(
    RTX_3090,
    name="NVIDIA GB10",
    driver="580.173.02",
    cuda=13000,
    architecture=10,
    compute=(12, 1),
    brand=14,
    pci="0000000F:01:00.0",
    pci_ids=(0x2E1210DE, 0x000010DE),
    power=11.17,
    temperature=35,
    thresholds=None,
    fans=0,
    links=0,
)
WSL2 = replace(
    RTX_3090,
    name="NVIDIA GeForce GTX 1650 Ti",
    driver="510.06",
    cuda=11060,
    architecture=6,
    compute=(7, 5),
    memory=(4096, 0, 120),
    jpeg_ofa=False,
    remapped=None,
    fans=0,
)
GUEST = replace(A100, name="GRID A100-4C", driver="550.127.05", cuda=12040, memory=(4096, 400, 0), links=0, mig=None)

_MODULE: Mapping[FieldKey, FieldAnswer] = {(185, 1): 459_800, (186, 1): 461_200, (188, 1): 2_500_000}
_TO_THE_CPU: Mapping[FieldKey, FieldAnswer] = {170: 10, 171: 1, 172: 45_000, 231: 1, 232: 2, 233: 3, 234: 0}
_PLACE: Mapping[Key, Answer] = {
    "nvmlDeviceGetPlatformInfo": (14, 4, 1, 1, 3, "0000000000000001", "1820000000001"),
    "nvmlDeviceGetGpuFabricInfoV": (3, 0, 2, 0x2A, 1, "00000001" + "0" * 24),
}
_NO_MEMORY = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetBAR1MemoryInfo")
# The host keeps to itself what is of the board.
_NOT_FOR_GUESTS: tuple[Key, ...] = (
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetInforomImageVersion",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRowRemapperHistogram",
    "nvmlDeviceGetPcieReplayCounter",
    ("nvmlDeviceGetTemperature", 0),
    ("nvmlDeviceGetTemperatureV", 0),
    *(("nvmlDeviceGetTemperatureThreshold", kind) for kind in range(4)),
    *(("nvmlDeviceGetPcieThroughput", way) for way in range(2)),
)


def _without(whole: Gpu, *keys: Key) -> Gpu:
    return whole.but(answers=dict.fromkeys(keys))


def k80() -> Scenario:
    """Two GPUs on one board: the driver's order is not that of the PCI bus, and the minor numbers follow neither."""
    scenario = machine(K80, count=2)
    first, second = scenario.gpus
    swapped = (first.but(pci="00000000:87:00.0", minor=1), second.but(pci="00000000:86:00.0", minor=0))
    return under(DRIVERS[0], scenario.but(gpus=swapped))


def gh200() -> Scenario:
    """A GPU beside its own CPU: links between the chips, power of the module, no NVLink to other GPUs."""
    scenario = machine(GH200)
    return scenario.with_gpu(0, fields={**_MODULE, **_TO_THE_CPU, 91: 0})


def gb200() -> Scenario:
    """Two of the four GPUs of a tray: place in the rack, fabric, three powers."""
    scenario = machine(GB200, count=2)
    for slot in range(2):
        scenario = scenario.with_gpu(slot, fields={**_MODULE, **_TO_THE_CPU}, answers=_PLACE)
    return scenario


def gb10() -> Scenario:
    """CPU and GPU share one memory, so the GPU has none of its own."""
    scenario = machine(GB10)
    return scenario.but(gpus=(_without(scenario.gpus[0], *_NO_MEMORY),))


def orin() -> Scenario:
    """A Jetson: NVML knows what it is and answers next to nothing; its UUID has no prefix, and it is on no PCI bus."""
    module = Gpu(
        uuid=uuid(87).removeprefix("GPU-"),
        name="Orin (nvgpu)",
        pci=None,
        architecture=None,
        compute=(8, 7),
        processes=None,
        graphics_processes=None,
    )
    return Scenario(gpus=(module,), driver="540.4.0", nvml="12.540.4.0", cuda=12060)


def wsl2() -> Scenario:
    """Windows has the GPU: there is no device node and so no minor number, and much is kept back."""
    scenario = machine(WSL2)
    guest = _without(scenario.gpus[0], "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetCpuAffinity")
    return under(DRIVERS[1], scenario.but(gpus=(guest.but(minor=None),)))


def vgpu_guest() -> Scenario:
    """A virtual GPU as its guest sees it, unlicensed."""
    scenario = machine(GUEST)
    answers: dict[Key, Answer] = {
        "nvmlDeviceGetVirtualizationMode": 2,
        "nvmlDeviceGetGridLicensableFeatures_v4": (
            1,
            3,
            0,
            "Unlicensed (Restricted)",
            "NVIDIA Virtual Compute Server",
            1,
        ),
        "nvmlDeviceGetBAR1MemoryInfo": (256 * MIB, 256 * MIB, 0),
    }
    guest = _without(scenario.gpus[0], *_NOT_FOR_GUESTS).but(answers=answers)
    return scenario.but(gpus=(replace(guest, fields={91: 0}, serial=None),))


RARER: Mapping[str, Callable[[], Scenario]] = {
    "k80": k80,
    "gh200": gh200,
    "gb200": gb200,
    "gb10": gb10,
    "orin": orin,
    "wsl2": wsl2,
    "vgpu_guest": vgpu_guest,
}
