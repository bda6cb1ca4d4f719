"""Scenarios of real GPU models.

Rule 1: what a model is and lacks is one row of facts below, read off recordings of real machines (idle) and said in
        our own words; what follows from the row is in `gpu`. UUIDs and serial numbers are made up, plainly numbered.
Rule 2: nothing is random: the same call gives the same file. Counters that real machines show as 0 get small numbers
        that differ from GPU to GPU, so that a mix-up of GPUs, links or directions shows.
Rule 3: gaps are part of the facts: a question that the model does not answer has no answer here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.fakenvml.scenario import ALL_LINKS, Answer, FieldAnswer, FieldKey, Gpu, Instance, Key, Scenario

MIB = 1 << 20
VOLTA, TURING, AMPERE, ADA, HOPPER, BLACKWELL = 5, 6, 7, 8, 9, 10
TESLA, GEFORCE, NVIDIA = 2, 5, 14  # brands
GRAPHICS, SM, MEMORY, VIDEO = range(4)  # clocks
IDLE = 1  # clocks event reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The facts of one model. MiB, MHz, W, degrees Celsius."""

    name: str
    driver: str
    cuda: int
    architecture: int
    compute: tuple[int, int]
    brand: int
    pci: str
    pci_ids: tuple[int, int]
    vbios: str
    inforom: str
    board_part: str | None = None
    serial: str | None = None
    memory: tuple[int, int, int]  # total, reserved, used
    bar1: int
    bus_width: int
    cores: int
    clocks: tuple[int, int, int]  # SM, memory, video, when idle
    max_clocks: tuple[int, int, int]
    pstate: int = 0
    power: float
    power_average: bool = True
    power_limits: tuple[float, float]  # least, most (and default)
    memory_power: float | None = None
    temperature: int
    memory_temperature: int | None = None
    thresholds: tuple[int, int, int] | None = None  # shutdown, slowdown, highest operating
    memory_max: int | None = None
    t_limit: tuple[int, int, int, int] | None = None  # margin now; shutdown, slowdown, highest operating as margins
    pcie: tuple[int, int, int, int]  # generation now and at most, width now and at most
    pcie_kib: tuple[int, int]  # sent, received per second
    pcie_replays: int = 0
    fans: int = 0
    fan: int = 0
    ecc: bool | None = None  # None: has none
    remapped: int | None = None  # banks with all spare rows left; None: does not remap
    retires_pages: bool = False
    jpeg_ofa: bool = True
    links: int = 0
    nvlink_mbps: int = 0
    nvlink_bytes: bool = False  # counts bytes per link in fields 202 and 204
    gpm: bool = False
    mig: int | None = None  # how many MIG devices it could have
    reason_counters: tuple[int, int, int] | None = None  # field ids of this driver
    event_types: int = 0x1 | 0x2 | 0x4 | 0x8 | 0x10


T4 = Model(
    name="Tesla T4",
    driver="595.91.07",
    cuda=13020,
    architecture=TURING,
    compute=(7, 5),
    brand=NVIDIA,
    pci="00000000:00:1E.0",
    pci_ids=(0x1EB810DE, 0x12A210DE),
    vbios="90.04.96.00.02",
    inforom="G183.0200.00.02",
    board_part="900-2G183-A800-001",
    serial="16500000000",
    memory=(15360, 448, 0),
    bar1=256,
    bus_width=256,
    cores=2560,
    clocks=(1590, 5000, 1470),
    max_clocks=(1590, 5001, 1470),
    power=33.51,
    power_average=False,
    power_limits=(60, 70),
    temperature=33,
    thresholds=(96, 93, 85),
    pcie=(3, 3, 8, 16),
    pcie_kib=(439, 292),
    ecc=True,
    retires_pages=True,
    reason_counters=(269, 270, 271),
)
V100 = Model(
    name="Tesla V100-SXM2-16GB",
    driver="550.127.05",
    cuda=12040,
    architecture=VOLTA,
    compute=(7, 0),
    brand=TESLA,
    pci="00000000:00:04.0",
    pci_ids=(0x1DB110DE, 0x121210DE),
    vbios="88.00.4F.00.09",
    inforom="G503.0201.00.03",
    board_part="900-2G503-0300-000",
    serial="16500000001",
    memory=(16384, 240, 1),
    bar1=16384,
    bus_width=4096,
    cores=5120,
    clocks=(135, 877, 555),
    max_clocks=(1530, 877, 1372),
    power=44.50,
    power_average=False,
    power_limits=(150, 300),
    temperature=37,
    memory_temperature=33,
    thresholds=(90, 87, 83),
    memory_max=85,
    pcie=(3, 3, 16, 16),
    pcie_kib=(0, 50),
    ecc=True,
    retires_pages=True,
    jpeg_ofa=False,
    links=6,
    nvlink_mbps=25781,
)
A100 = Model(
    name="NVIDIA A100-SXM4-40GB",
    driver="570.148.08",
    cuda=12080,
    architecture=AMPERE,
    compute=(8, 0),
    brand=NVIDIA,
    pci="00000000:06:00.0",
    pci_ids=(0x20B010DE, 0x134F10DE),
    vbios="92.00.45.00.03",
    inforom="G506.0200.00.04",
    board_part="692-2G506-0200-003",
    serial="16500000002",
    memory=(40960, 518, 0),
    bar1=65536,
    bus_width=5120,
    cores=6912,
    clocks=(210, 1215, 585),
    max_clocks=(1410, 1215, 1290),
    power=49.68,
    power_average=False,
    power_limits=(100, 400),
    temperature=33,
    memory_temperature=34,
    thresholds=(92, 89, 85),
    memory_max=95,
    pcie=(4, 4, 16, 16),
    pcie_kib=(350, 300),
    ecc=True,
    remapped=640,
    links=12,
    nvlink_mbps=25781,
    mig=7,
)
L40S = Model(
    name="NVIDIA L40S",
    driver="595.91.07",
    cuda=13020,
    architecture=ADA,
    compute=(8, 9),
    brand=NVIDIA,
    pci="00000000:30:00.0",
    pci_ids=(0x26B910DE, 0x185110DE),
    vbios="95.02.66.00.15",
    inforom="G133.0242.00.03",
    board_part="900-2G133-A880-000",
    serial="16500000003",
    memory=(46068, 609, 0),
    bar1=65536,
    bus_width=384,
    cores=18176,
    clocks=(2040, 9001, 1725),
    max_clocks=(2520, 9001, 1965),
    power=66.16,
    power_limits=(100, 350),
    temperature=29,
    t_limit=(59, -5, -2, 0),
    pcie=(4, 4, 8, 16),
    pcie_kib=(585, 292),
    ecc=True,
    remapped=192,
    reason_counters=(269, 270, 271),
)
H100 = Model(
    name="NVIDIA H100 80GB HBM3",
    driver="580.105.08",
    cuda=13000,
    architecture=HOPPER,
    compute=(9, 0),
    brand=NVIDIA,
    pci="00000000:53:00.0",
    pci_ids=(0x233010DE, 0x16C110DE),
    vbios="96.00.99.00.01",
    inforom="G520.0200.00.05",
    board_part="692-2G520-0200-000",
    serial="16500000004",
    memory=(81559, 480, 0),
    bar1=131072,
    bus_width=5120,
    cores=16896,
    clocks=(345, 2619, 765),
    max_clocks=(1980, 2619, 1545),
    power=68.92,
    power_limits=(200, 700),
    memory_power=32.98,
    temperature=29,
    memory_temperature=37,
    t_limit=(58, -8, -2, 0),
    memory_max=0,
    pcie=(5, 5, 16, 16),
    pcie_kib=(502, 578),
    pcie_replays=150,
    ecc=True,
    remapped=2560,
    links=18,
    nvlink_mbps=26562,
    gpm=True,
    mig=7,
    reason_counters=(269, 270, 271),
)
H200 = Model(
    name="NVIDIA H200",
    driver="590.48.01",
    cuda=13010,
    architecture=HOPPER,
    compute=(9, 0),
    brand=NVIDIA,
    pci="00000000:83:00.0",
    pci_ids=(0x233510DE, 0x18BE10DE),
    vbios="96.00.A5.00.03",
    inforom="G520.0280.02.02",
    board_part="695-2G520-0280-001",
    serial="16500000005",
    memory=(143771, 614, 0),
    bar1=262144,
    bus_width=6144,
    cores=16896,
    clocks=(345, 3201, 765),
    max_clocks=(1980, 3201, 1545),
    power=77.88,
    power_limits=(200, 700),
    memory_power=46.56,
    temperature=28,
    memory_temperature=32,
    t_limit=(59, -8, -2, 0),
    memory_max=0,
    pcie=(5, 5, 16, 16),
    pcie_kib=(371, 337),
    ecc=True,
    remapped=3072,
    links=18,
    nvlink_mbps=26562,
    gpm=True,
    mig=7,
    reason_counters=(269, 270, 271),
)
B200 = Model(
    name="NVIDIA B200",
    driver="580.105.08",
    cuda=13000,
    architecture=BLACKWELL,
    compute=(10, 0),
    brand=NVIDIA,
    pci="00000000:8F:00.0",
    pci_ids=(0x290110DE, 0x199910DE),
    vbios="97.00.FA.00.09",
    inforom="G525.0220.00.03",
    board_part="692-2G525-0220-500",
    serial="16500000006",
    memory=(183359, 728, 0),
    bar1=262144,
    bus_width=7680,
    cores=18944,
    clocks=(120, 3996, 600),
    max_clocks=(1965, 3996, 1965),
    power=195.79,
    power_limits=(200, 1000),
    memory_power=22.33,
    temperature=39,
    memory_temperature=39,
    t_limit=(49, -5, -3, 0),
    memory_max=0,
    pcie=(5, 5, 16, 16),
    pcie_kib=(833, 869),
    ecc=True,
    remapped=3840,
    links=18,
    nvlink_mbps=53125,
    nvlink_bytes=True,
    gpm=True,
    mig=7,
    reason_counters=(269, 270, 271),
)
RTX_3090 = Model(
    name="NVIDIA GeForce RTX 3090",
    driver="560.35.03",
    cuda=12060,
    architecture=AMPERE,
    compute=(8, 6),
    brand=GEFORCE,
    pci="00000000:41:00.0",
    pci_ids=(0x220410DE, 0x403B1458),
    vbios="94.02.42.40.34",
    inforom="G001.0000.03.03",
    memory=(24576, 422, 2),
    bar1=256,
    bus_width=384,
    cores=10496,
    clocks=(210, 405, 555),
    max_clocks=(2100, 9751, 1950),
    pstate=8,
    power=30.10,
    power_limits=(100, 350),
    temperature=30,
    thresholds=(98, 95, 93),
    pcie=(1, 4, 16, 16),
    pcie_kib=(0, 0),
    fans=2,
    fan=30,
)
RTX_4090 = Model(
    name="NVIDIA GeForce RTX 4090",
    driver="550.127.05",
    cuda=12040,
    architecture=ADA,
    compute=(8, 9),
    brand=GEFORCE,
    pci="00000000:01:00.0",
    pci_ids=(0x268410DE, 0xF29710B0),
    vbios="95.02.3C.00.EB",
    inforom="G002.0000.00.03",
    memory=(24564, 354, 2),
    bar1=256,
    bus_width=384,
    cores=16384,
    clocks=(210, 405, 1185),
    max_clocks=(3105, 10501, 2415),
    pstate=8,
    power=20.00,
    power_limits=(150, 450),
    temperature=28,
    t_limit=(56, -7, -2, 0),
    pcie=(1, 4, 16, 16),
    pcie_kib=(0, 50),
    fans=2,
    fan=0,
    ecc=False,
    remapped=192,
)
RTX_5090 = Model(
    name="NVIDIA GeForce RTX 5090",
    driver="570.124.06",
    cuda=12080,
    architecture=BLACKWELL,
    compute=(12, 0),
    brand=GEFORCE,
    pci="00000000:02:00.0",
    pci_ids=(0x2B8510DE, 0xF3181569),
    vbios="98.02.2E.40.61",
    inforom="G005.0000.98.01",
    serial="0",
    memory=(32607, 487, 2),
    bar1=32768,
    bus_width=512,
    cores=21760,
    clocks=(22, 405, 600),
    max_clocks=(3090, 14001, 3090),
    pstate=8,
    power=23.78,
    power_limits=(400, 575),
    temperature=25,
    t_limit=(65, -5, -2, 0),
    pcie=(1, 5, 8, 16),
    pcie_kib=(483, 387),
    fans=2,
    fan=0,
)

GPM_IDLE = {1: 12.5, 2: 11.25, 3: 6.5, 5: 4.75, 10: 3.125, 11: 0.0, 12: 2.5, 13: 1.25, 20: 0.5, 21: 0.75}


def uuid(number: int, kind: str = "GPU") -> str:
    """A made-up UUID, different for every number."""
    mixed = number * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    tail = (mixed ^ 0xA5A5_5A5A_C3C3_3C3C) & (1 << 48) - 1
    word = mixed >> 32
    return f"{kind}-{word:08x}-{mixed >> 16 & 0xFFFF:04x}-4{mixed & 0xFFF:03x}-8{number & 0xFFF:03x}-{tail:012x}"


def gpu(model: Model, number: int = 0) -> Gpu:
    """A GPU of this model; *number* tells several of them apart (UUID, PCI bus, minor, serial, small counters)."""
    domain, bus, rest = model.pci.split(":")
    return Gpu(
        uuid=uuid(1000 * model.architecture + model.cores + 100_000 * number),
        name=model.name,
        pci=f"{domain}:{(int(bus, 16) + 8 * number) % 256:02X}:{rest}",
        pci_ids=model.pci_ids,
        architecture=model.architecture,
        compute=model.compute,
        brand=model.brand,
        serial=f"{model.serial}{number:02}" if model.serial not in (None, "0") else model.serial,
        minor=number,
        vbios=model.vbios,
        board_part=model.board_part,
        answers=_answers(model, number),
        fields=_fields(model, number),
        gpm=_gpm(model),
    )


def _answers(m: Model, number: int) -> dict[Key, Answer]:
    least, most = (round(limit * 1000) for limit in m.power_limits)
    total, reserved, used = (mib * MIB for mib in m.memory)
    answers: dict[Key, Answer] = {
        "nvmlDeviceGetPowerUsage": round(m.power * 1000) + number,
        "nvmlDeviceGetPowerManagementMode": 1,
        "nvmlDeviceGetPowerManagementLimit": most,
        "nvmlDeviceGetPowerManagementDefaultLimit": most,
        "nvmlDeviceGetPowerManagementLimitConstraints": (least, most),
        "nvmlDeviceGetEnforcedPowerLimit": most,
        "nvmlDeviceGetTotalEnergyConsumption": 1_000_000_000 + 1_000_000 * number,
        "nvmlDeviceGetUtilizationRates": (0, 0),
        "nvmlDeviceGetEncoderUtilization": (0, 167_000),
        "nvmlDeviceGetDecoderUtilization": (0, 167_000),
        "nvmlDeviceGetEncoderStats": (0, 0, 0),
        "nvmlDeviceGetFBCStats": (0, 0, 0),
        "nvmlDeviceGetMemoryInfo": (total, total - reserved - used, reserved + used),
        "nvmlDeviceGetMemoryInfo_v2": (total, reserved, total - reserved - used, used),
        "nvmlDeviceGetBAR1MemoryInfo": (m.bar1 * MIB, (m.bar1 - 1) * MIB, MIB),
        "nvmlDeviceGetMemoryBusWidth": m.bus_width,
        "nvmlDeviceGetNumGpuCores": m.cores,
        "nvmlDeviceGetPcieReplayCounter": m.pcie_replays + number,
        ("nvmlDeviceGetPcieThroughput", 0): m.pcie_kib[0],
        ("nvmlDeviceGetPcieThroughput", 1): m.pcie_kib[1],
        "nvmlDeviceGetCurrPcieLinkGeneration": m.pcie[0],
        "nvmlDeviceGetMaxPcieLinkGeneration": m.pcie[1],
        "nvmlDeviceGetCurrPcieLinkWidth": m.pcie[2],
        "nvmlDeviceGetMaxPcieLinkWidth": m.pcie[3],
        "nvmlDeviceGetPerformanceState": m.pstate,
        "nvmlDeviceGetPowerState": m.pstate,
        "nvmlDeviceGetCurrentClocksEventReasons": IDLE,
        "nvmlDeviceGetCurrentClocksThrottleReasons": IDLE,
        "nvmlDeviceGetSupportedClocksEventReasons": 0x1FF,
        "nvmlDeviceGetSupportedClocksThrottleReasons": 0x1FF,
        "nvmlDeviceGetPersistenceMode": 1,
        "nvmlDeviceGetComputeMode": 0,
        "nvmlDeviceGetAccountingMode": 0,
        "nvmlDeviceGetDisplayActive": 0,
        "nvmlDeviceGetVirtualizationMode": 0,
        "nvmlDeviceGetMultiGpuBoard": 0,
        "nvmlDeviceGetModuleId": number + 1,
        "nvmlDeviceGetInforomImageVersion": m.inforom,
        "nvmlDeviceGetSupportedEventTypes": m.event_types,
        "nvmlDeviceGetCpuAffinity": (0xFFFF << 16 * (number % 4),),
        "nvmlDeviceGetGridLicensableFeatures_v4": (0,),
        "nvmlDeviceGetProcessUtilization": (),
        ("nvmlDeviceGetTemperature", 0): m.temperature,
        ("nvmlDeviceGetTemperatureV", 0): m.temperature,
    }
    for part in (_clock_answers, _temperature_answers, _fan_answers, _ecc_answers, _page_answers, _link_answers):
        answers.update(part(m, number))
    if m.jpeg_ofa:
        answers |= {"nvmlDeviceGetJpgUtilization": (0, 167_000), "nvmlDeviceGetOfaUtilization": (0, 167_000)}
    if m.mig is not None:
        answers["nvmlDeviceGetMigMode"] = (0, 0)
    if m.architecture >= AMPERE:
        answers["nvmlDeviceGetMaxMigDeviceCount"] = 0  # until MIG is on
    for policy in range(6):
        answers["nvmlDeviceGetViolationStatus", policy] = (1_700_000_000_000_000_000, 1000 * policy + number)
    return answers


def _clock_answers(m: Model, _: int) -> dict[Key, Answer]:
    answers: dict[Key, Answer] = {}
    for name, (sm, memory, video) in (
        ("nvmlDeviceGetClockInfo", m.clocks),
        ("nvmlDeviceGetMaxClockInfo", m.max_clocks),
    ):
        for kind, mhz in ((GRAPHICS, sm), (SM, sm), (MEMORY, memory), (VIDEO, video)):
            answers[name, kind] = mhz
    if m.brand != GEFORCE:
        answers["nvmlDeviceGetMaxCustomerBoostClock", GRAPHICS] = m.max_clocks[0]
    if m.brand != GEFORCE and not m.driver.startswith("59"):  # deprecated in 590
        answers["nvmlDeviceGetApplicationsClock", GRAPHICS] = m.max_clocks[0]
        answers["nvmlDeviceGetApplicationsClock", MEMORY] = m.max_clocks[1]
    return answers


def _temperature_answers(m: Model, _: int) -> dict[Key, Answer]:
    name = "nvmlDeviceGetTemperatureThreshold"
    answers: dict[Key, Answer] = {}
    limits = m.thresholds
    if m.t_limit is not None:
        margin, *margins = m.t_limit
        answers["nvmlDeviceGetMarginTemperature"] = margin
        highest = m.temperature + margin
        limits = (highest - margins[0], highest - margins[1], highest - margins[2])
    if limits is not None:
        answers |= {(name, 0): limits[0], (name, 1): limits[1], (name, 3): limits[2]}
    if m.memory_max:
        answers[name, 2] = m.memory_max
    return answers


def _fan_answers(m: Model, _: int) -> dict[Key, Answer]:
    if not m.fans:
        return {}
    answers: dict[Key, Answer] = {"nvmlDeviceGetFanSpeed": m.fan, "nvmlDeviceGetNumFans": m.fans}
    return answers | {("nvmlDeviceGetFanSpeed_v2", fan): m.fan for fan in range(m.fans)}


def _ecc_answers(m: Model, number: int) -> dict[Key, Answer]:
    if m.ecc is None:
        return {}
    answers: dict[Key, Answer] = {
        "nvmlDeviceGetEccMode": (int(m.ecc), int(m.ecc)),
        "nvmlDeviceGetDefaultEccMode": int(m.ecc),
    }
    if m.ecc:
        for error in range(2):  # corrected, uncorrected
            for counter in range(2):  # volatile, aggregate
                answers["nvmlDeviceGetTotalEccErrors", error, counter] = number
                for location in (0, 1, 2, 3) if m.architecture == VOLTA else (2, 7):
                    answers["nvmlDeviceGetMemoryErrorCounter", error, counter, location] = number
    return answers


def _page_answers(m: Model, number: int) -> dict[Key, Answer]:
    answers: dict[Key, Answer] = {}
    if m.remapped is not None:
        answers["nvmlDeviceGetRemappedRows"] = (number, 0, 0, 0)
        answers["nvmlDeviceGetRowRemapperHistogram"] = (m.remapped, 0, 0, 0, 0)
    if m.retires_pages:
        answers["nvmlDeviceGetRetiredPagesPendingStatus"] = 0
        for cause in range(2):
            answers["nvmlDeviceGetRetiredPages", cause] = ()
            answers["nvmlDeviceGetRetiredPages_v2", cause] = ()
    return answers


def _link_answers(m: Model, number: int) -> dict[Key, Answer]:
    answers: dict[Key, Answer] = {}
    for link in range(m.links):
        answers["nvmlDeviceGetNvLinkState", link] = 1
        for counter in range(4):
            answers["nvmlDeviceGetNvLinkErrorCounter", link, counter] = 10 * link + counter + number
    return answers


def _fields(m: Model, number: int) -> dict[FieldKey, FieldAnswer]:
    power = round(m.power * 1000) + number
    least, most = (round(limit * 1000) for limit in m.power_limits)
    fields: dict[FieldKey, FieldAnswer] = {
        83: 1_000_000_000 + 1_000_000 * number,
        94: m.pcie_replays + number,
        95: 0,
        186: power,
        187: least,
        188: most,
        189: most,
        190: most,
        192: most,
        **{policy: 1000 * (policy - 74) + number for policy in range(74, 82)},
    }
    return fields | _sensor_fields(m, power) | _health_fields(m, number) | _link_fields(m, number)


def _sensor_fields(m: Model, power: int) -> dict[FieldKey, FieldAnswer]:
    fields: dict[FieldKey, FieldAnswer] = {}
    if m.memory_temperature is not None:
        fields[82] = m.memory_temperature
    if m.power_average:
        fields[185] = power
    if m.memory_power is not None:
        fields[185, 2] = round(m.memory_power * 1000)
    if m.t_limit is not None:
        fields |= {193: m.t_limit[1], 194: m.t_limit[2], 196: m.t_limit[3]}
        if m.memory_max is not None:
            fields[195] = m.memory_max
    return fields


def _health_fields(m: Model, number: int) -> dict[FieldKey, FieldAnswer]:
    fields: dict[FieldKey, FieldAnswer] = {}
    if m.ecc is not None:
        fields |= {1: int(m.ecc), 2: int(m.ecc)}
        if m.ecc:
            fields |= dict.fromkeys((3, 4, 5, 6), number)
    if m.retires_pages:
        fields |= {29: 0, 30: 0, 31: 0, 92: 0, 93: 0}
    if m.remapped is not None:
        fields |= {142: number, 143: 0, 144: 0, 145: 0}
    for order, identity in enumerate(m.reason_counters or ()):
        fields[identity] = 1000 * order + number
    if m.architecture >= HOPPER and m.brand != GEFORCE:
        fields |= {197: 5_000_000 + number, 198: 6_000_000 + number, 173: number, 230: 0}
    return fields


def _link_fields(m: Model, number: int) -> dict[FieldKey, FieldAnswer]:
    if not m.links:
        return {}
    fields: dict[FieldKey, FieldAnswer] = {90: m.nvlink_mbps, 91: m.links}
    fields |= {38: 3 + number, 45: 2 + number, 52: 1 + number, 59: number}  # error totals: flit, data, replay, recovery
    for direction, identity in enumerate((138, 139, 140, 141)):
        per_link = [1000 * (direction + 1) + 10 * link + number for link in range(m.links)]
        fields |= {(identity, link): kib for link, kib in enumerate(per_link)}
        fields[identity, ALL_LINKS] = sum(per_link)
    for link in range(m.links):
        fields[164, link] = m.nvlink_mbps
        if m.nvlink_bytes:
            fields |= {(202, link): 1_000_000 + 10 * link + number, (204, link): 2_000_000 + 10 * link + number}
    return fields


def _gpm(m: Model) -> dict[int, float]:
    if not m.gpm:
        return {}
    metrics = dict(GPM_IDLE)
    for link in range(m.links):
        metrics |= {62 + 2 * link: 1.0 + link, 63 + 2 * link: 2.0 + link}
    metrics |= {60: sum(1.0 + link for link in range(m.links)), 61: sum(2.0 + link for link in range(m.links))}
    return metrics


# ---- whole machines


def machine(*models: Model, count: int = 1) -> Scenario:
    """*count* GPUs of each model, under the newest of their drivers."""
    newest = max(models, key=lambda model: [int(part) for part in model.driver.split(".")])
    gpus = [gpu(model, number) for model in models for number in range(count)]
    # Minor numbers are given by the kernel, one for each GPU of the machine.
    return Scenario(
        gpus=tuple(each.but(minor=minor) for minor, each in enumerate(gpus)),
        driver=newest.driver,
        nvml=f"{newest.cuda // 1000}.{newest.driver}",
        cuda=newest.cuda,
    )


def t4(count: int = 1) -> Scenario:
    """No memory temperature, no average power, no row remapping."""
    return machine(T4, count=count)


def v100(count: int = 1) -> Scenario:
    """The oldest with NVLink; retires pages, has ECC counters by location."""
    return machine(V100, count=count)


def a100(count: int = 1) -> Scenario:
    """MIG is there and off; power is instantaneous only."""
    return machine(A100, count=count)


def l40s(count: int = 1) -> Scenario:
    """Margins instead of temperature limits; no NVLink, no memory temperature."""
    return machine(L40S, count=count)


def h100(count: int = 1) -> Scenario:
    """GPM, memory power, 18 NVLinks."""
    return machine(H100, count=count)


def h200(count: int = 1) -> Scenario:
    return machine(H200, count=count)


def b200(count: int = 1) -> Scenario:
    """NVLink 5: bytes of each link in fields 202 and 204."""
    return machine(B200, count=count)


def rtx_3090(count: int = 1) -> Scenario:
    """Neither ECC nor row remapping, no serial number; fans."""
    return machine(RTX_3090, count=count)


def rtx_4090(count: int = 1) -> Scenario:
    """ECC is there and off, so its counters are not."""
    return machine(RTX_4090, count=count)


def rtx_5090(count: int = 1) -> Scenario:
    """The serial number is "0"."""
    return machine(RTX_5090, count=count)


def mixed() -> Scenario:
    """A T4, an A100 and an H100 in one machine."""
    return machine(T4, A100, H100)


def none() -> Scenario:
    """A driver without a GPU."""
    return machine(H100).but(gpus=())


# ---- MIG


@dataclass(frozen=True, slots=True)
class Profile:
    """A MIG profile of a model: attributes in the order of nvmlDeviceAttributes_t but the last, MiB in all and used."""

    name: str
    shared: tuple[int, int, int, int, int, int, int, int]
    memory: int
    used: int


A100_1G = Profile("1g.5gb", (14, 1, 0, 0, 0, 0, 1, 1), 4864, 3)
A100_2G = Profile("2g.10gb", (28, 2, 1, 0, 0, 0, 2, 2), 9856, 6)
H100_1G = Profile("1g.10gb", (16, 1, 1, 0, 1, 0, 1, 1), 9984, 9)
H100_2G = Profile("2g.20gb", (32, 2, 2, 0, 2, 0, 2, 2), 20096, 17)
H100_3G = Profile("3g.40gb", (60, 3, 3, 0, 3, 0, 3, 3), 40448, 26)

_NOT_WITH_MIG = (
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetDecoderUtilization",
    "nvmlDeviceGetJpgUtilization",
    "nvmlDeviceGetOfaUtilization",
    "nvmlDeviceGetProcessUtilization",
)


def split(whole: Gpu, *parts: tuple[int, Profile]) -> Gpu:
    """The GPU with MIG on and these instances: GPU instance id and profile. Its utilisation can no longer be read."""
    return whole.but(
        answers={
            "nvmlDeviceGetMigMode": (1, 1),
            "nvmlDeviceGetMaxMigDeviceCount": 7,
            **dict.fromkeys(_NOT_WITH_MIG),
        },
        instances=tuple(_instance(whole, index, gi, profile) for index, (gi, profile) in enumerate(parts)),
    )


def _instance(whole: Gpu, index: int, gi: int, profile: Profile) -> Instance:
    number = int(whole.uuid[4:12], 16) * 16 + index + 1
    return Instance(
        uuid=uuid(number, "MIG"),
        gi=gi,
        ci=0,
        name=f"{whole.name} MIG {profile.name}",
        memory=profile.memory * MIB,
        memory_used=profile.used * MIB,
        attributes=(*profile.shared, profile.memory),
        gpm={metric: GPM_IDLE[metric] + gi for metric in GPM_IDLE} if whole.gpm else {},
    )


def a100_mig() -> Scenario:
    """An A100 with two 1g.5gb and one 2g.10gb, and a second A100 with MIG off. No GPM before Hopper."""
    scenario = a100(2)
    first, second = scenario.gpus
    return scenario.but(gpus=(split(first, (7, A100_1G), (9, A100_1G), (5, A100_2G)), second))


def h100_mig() -> Scenario:
    """An H100 with 3g.40gb, 2g.20gb and two 1g.10gb; the instances answer GPM."""
    scenario = h100()
    return scenario.but(gpus=(split(scenario.gpus[0], (2, H100_3G), (3, H100_2G), (9, H100_1G), (10, H100_1G)),))


def crowd(gpus: int = 16) -> Scenario:
    """The most that one machine may have: 16 H100 with 7 MIG instances each, 112 in all."""
    scenario = h100(gpus)
    parts = [(gi, H100_1G) for gi in range(7, 14)]
    return scenario.but(gpus=tuple(split(whole, *parts) for whole in scenario.gpus))


MAKERS: dict[str, Callable[[], Scenario]] = {
    "t4": t4,
    "v100": v100,
    "a100": a100,
    "a100_mig": a100_mig,
    "l40s": l40s,
    "h100": h100,
    "h100_mig": h100_mig,
    "h200": h200,
    "b200": b200,
    "rtx_3090": rtx_3090,
    "rtx_4090": rtx_4090,
    "rtx_5090": rtx_5090,
    "mixed": mixed,
    "none": none,
    "crowd": crowd,
}
