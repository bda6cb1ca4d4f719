"""The GPU models that can be simulated, and what is true of each.

Rule 1: a row is facts about a product, taken from recordings of real machines; no behaviour stands here.
Rule 2: 0 or "" means that the driver has no answer for this product.
Rule 3: to add a model, add a row (and its MIG layout, if it can be partitioned).
"""

from collections.abc import Mapping
from typing import NamedTuple

DRIVER_VERSION = "570.124.06"
NVML_VERSION = "12.570.124.06"


class Profile(NamedTuple):
    """One MIG GPU instance of the layout that `-mig` stands for."""

    name: str
    instance_id: int
    slices: int  # of seven
    memory_mib: int
    idle_mib: int  # used with no process on it


class Model(NamedTuple):
    """One product. Clocks in MHz, power in W, temperatures in C, memory in MiB, links in GB/s a direction."""

    name: str
    brand: str
    capability: tuple[int, int]
    vbios: str
    inforom_image: str
    inforom_oem: str
    inforom_ecc: str
    memory_mib: int
    reserved_mib: int
    bar1_mib: int
    sm_mhz: tuple[int, int]  # idle, full
    memory_mhz: tuple[int, int]
    video_mhz: tuple[int, int]
    application_mhz: tuple[int, int]  # default applications clocks of SM and memory
    idle_w: float
    limit_w: int
    lowest_limit_w: int
    temperature_c: tuple[int, int]  # idle, at the power limit
    highest_c: tuple[int, int, int]  # in operation, slowdown, shutdown
    memory_idle_c: int
    memory_highest_c: int
    pcie_generation: int
    nvlinks: int
    nvlink_gb: int
    remap_banks: int
    ecc: bool
    retires_pages: bool = False
    fan: bool = False
    serial: bool = True
    gpm: bool = False
    media: bool = False  # has encoders that jobs use
    layout: tuple[Profile, ...] = ()


def _layout(*rows: tuple[str, int, int]) -> tuple[Profile, ...]:
    """Two small instances, a middle and a large one: all seven slices; ids as the driver gives them out."""
    small, middle, large = (Profile(name, 0, int(name[0]), total, idle) for name, total, idle in rows)
    return (
        large._replace(instance_id=2),
        middle._replace(instance_id=3),
        small._replace(instance_id=9),
        small._replace(instance_id=10),
    )


MODELS: Mapping[str, Model] = {
    "t4": Model(
        name="Tesla T4",
        brand="NVIDIA",
        capability=(7, 5),
        vbios="90.04.96.00.02",
        inforom_image="G183.0200.00.02",
        inforom_oem="1.1",
        inforom_ecc="5.0",
        memory_mib=15360,
        reserved_mib=448,
        bar1_mib=256,
        sm_mhz=(300, 1590),
        memory_mhz=(405, 5001),
        video_mhz=(540, 1470),
        application_mhz=(585, 5001),
        idle_w=10.0,
        limit_w=70,
        lowest_limit_w=60,
        temperature_c=(30, 74),
        highest_c=(85, 93, 96),
        memory_idle_c=0,
        memory_highest_c=0,
        pcie_generation=3,
        nvlinks=0,
        nvlink_gb=0,
        remap_banks=0,
        ecc=True,
        retires_pages=True,
        media=True,
    ),
    "v100": Model(
        name="Tesla V100-SXM2-16GB",
        brand="Tesla",
        capability=(7, 0),
        vbios="88.00.4F.00.09",
        inforom_image="G503.0201.00.03",
        inforom_oem="1.1",
        inforom_ecc="5.0",
        memory_mib=16384,
        reserved_mib=239,
        bar1_mib=16384,
        sm_mhz=(135, 1530),
        memory_mhz=(877, 877),
        video_mhz=(555, 1372),
        application_mhz=(1312, 877),
        idle_w=44.0,
        limit_w=300,
        lowest_limit_w=150,
        temperature_c=(36, 66),
        highest_c=(83, 87, 90),
        memory_idle_c=34,
        memory_highest_c=85,
        pcie_generation=3,
        nvlinks=6,
        nvlink_gb=150,
        remap_banks=0,
        ecc=True,
        retires_pages=True,
    ),
    "a100": Model(
        name="NVIDIA A100-SXM4-40GB",
        brand="NVIDIA",
        capability=(8, 0),
        vbios="92.00.45.00.03",
        inforom_image="G506.0200.00.04",
        inforom_oem="2.0",
        inforom_ecc="6.16",
        memory_mib=40960,
        reserved_mib=518,
        bar1_mib=65536,
        sm_mhz=(210, 1410),
        memory_mhz=(1215, 1215),
        video_mhz=(585, 1290),
        application_mhz=(1095, 1215),
        idle_w=50.0,
        limit_w=400,
        lowest_limit_w=100,
        temperature_c=(31, 66),
        highest_c=(85, 89, 92),
        memory_idle_c=34,
        memory_highest_c=95,
        pcie_generation=4,
        nvlinks=12,
        nvlink_gb=300,
        remap_banks=640,
        ecc=True,
        layout=_layout(("1g.5gb", 4864, 6), ("2g.10gb", 9856, 13), ("3g.20gb", 20096, 19)),
    ),
    "l4": Model(
        name="NVIDIA L4",
        brand="NVIDIA",
        capability=(8, 9),
        vbios="95.04.29.00.06",
        inforom_image="G193.0200.00.01",
        inforom_oem="2.1",
        inforom_ecc="6.16",
        memory_mib=23034,
        reserved_mib=555,
        bar1_mib=32768,
        sm_mhz=(210, 2040),
        memory_mhz=(405, 6251),
        video_mhz=(765, 1770),
        application_mhz=(2040, 6251),
        idle_w=16.5,
        limit_w=72,
        lowest_limit_w=40,
        temperature_c=(33, 72),
        highest_c=(86, 88, 91),
        memory_idle_c=0,
        memory_highest_c=0,
        pcie_generation=4,
        nvlinks=0,
        nvlink_gb=0,
        remap_banks=96,
        ecc=True,
        media=True,
    ),
    "l40s": Model(
        name="NVIDIA L40S",
        brand="NVIDIA",
        capability=(8, 9),
        vbios="95.02.66.00.02",
        inforom_image="G133.0242.00.03",
        inforom_oem="2.1",
        inforom_ecc="6.16",
        memory_mib=46068,
        reserved_mib=479,
        bar1_mib=65536,
        sm_mhz=(210, 2520),
        memory_mhz=(405, 9001),
        video_mhz=(1185, 1965),
        application_mhz=(2520, 9001),
        idle_w=33.4,
        limit_w=350,
        lowest_limit_w=100,
        temperature_c=(30, 70),
        highest_c=(87, 89, 92),
        memory_idle_c=0,
        memory_highest_c=0,
        pcie_generation=4,
        nvlinks=0,
        nvlink_gb=0,
        remap_banks=192,
        ecc=True,
        media=True,
    ),
    "h100": Model(
        name="NVIDIA H100 80GB HBM3",
        brand="NVIDIA",
        capability=(9, 0),
        vbios="96.00.74.00.01",
        inforom_image="G520.0200.00.05",
        inforom_oem="2.1",
        inforom_ecc="7.16",
        memory_mib=81559,
        reserved_mib=479,
        bar1_mib=131072,
        sm_mhz=(345, 1980),
        memory_mhz=(2619, 2619),
        video_mhz=(765, 1545),
        application_mhz=(1980, 2619),
        idle_w=70.0,
        limit_w=700,
        lowest_limit_w=200,
        temperature_c=(30, 62),
        highest_c=(87, 89, 95),
        memory_idle_c=37,
        memory_highest_c=0,  # 0 here and below: the driver tells margins since Hopper
        pcie_generation=5,
        nvlinks=18,
        nvlink_gb=450,
        remap_banks=2560,
        ecc=True,
        gpm=True,
        layout=_layout(("1g.10gb", 9984, 9), ("2g.20gb", 20096, 17), ("3g.40gb", 40448, 26)),
    ),
    "h200": Model(
        name="NVIDIA H200",
        brand="NVIDIA",
        capability=(9, 0),
        vbios="96.00.A5.00.03",
        inforom_image="G520.0280.02.02",
        inforom_oem="2.1",
        inforom_ecc="7.16",
        memory_mib=143771,
        reserved_mib=614,
        bar1_mib=262144,
        sm_mhz=(345, 1980),
        memory_mhz=(3201, 3201),
        video_mhz=(765, 1545),
        application_mhz=(1980, 3201),
        idle_w=77.0,
        limit_w=700,
        lowest_limit_w=200,
        temperature_c=(28, 56),
        highest_c=(87, 89, 95),
        memory_idle_c=30,
        memory_highest_c=0,
        pcie_generation=5,
        nvlinks=18,
        nvlink_gb=450,
        remap_banks=3072,
        ecc=True,
        gpm=True,
        layout=_layout(("1g.18gb", 16384, 14), ("2g.35gb", 33280, 27), ("3g.71gb", 71168, 44)),
    ),
    "b200": Model(
        name="NVIDIA B200",
        brand="NVIDIA",
        capability=(10, 0),
        vbios="97.00.FA.00.09",
        inforom_image="G525.0220.00.03",
        inforom_oem="2.1",
        inforom_ecc="7.16",
        memory_mib=183359,
        reserved_mib=728,
        bar1_mib=262144,
        sm_mhz=(120, 1965),
        memory_mhz=(3996, 3996),
        video_mhz=(600, 1965),
        application_mhz=(1965, 3996),
        idle_w=195.0,
        limit_w=1000,
        lowest_limit_w=200,
        temperature_c=(39, 68),
        highest_c=(88, 91, 93),
        memory_idle_c=39,
        memory_highest_c=0,
        pcie_generation=5,
        nvlinks=18,
        nvlink_gb=900,
        remap_banks=3840,
        ecc=True,
        gpm=True,
        layout=_layout(("1g.23gb", 20992, 18), ("2g.45gb", 45312, 36), ("3g.90gb", 91136, 62)),
    ),
    "rtx3090": Model(
        name="NVIDIA GeForce RTX 3090",
        brand="GeForce",
        capability=(8, 6),
        vbios="94.02.42.40.34",
        inforom_image="G001.0000.03.03",
        inforom_oem="2.0",
        inforom_ecc="",
        memory_mib=24576,
        reserved_mib=421,
        bar1_mib=256,
        sm_mhz=(210, 2100),
        memory_mhz=(405, 9751),
        video_mhz=(555, 1950),
        application_mhz=(0, 0),
        idle_w=30.0,
        limit_w=350,
        lowest_limit_w=100,
        temperature_c=(31, 74),
        highest_c=(93, 95, 98),
        memory_idle_c=0,
        memory_highest_c=0,
        pcie_generation=4,
        nvlinks=0,
        nvlink_gb=0,
        remap_banks=0,
        ecc=False,
        fan=True,
        serial=False,
        media=True,
    ),
    "rtx4090": Model(
        name="NVIDIA GeForce RTX 4090",
        brand="GeForce",
        capability=(8, 9),
        vbios="95.02.3C.00.EB",
        inforom_image="G002.0000.00.03",
        inforom_oem="2.0",
        inforom_ecc="6.16",
        memory_mib=24564,
        reserved_mib=354,
        bar1_mib=256,
        sm_mhz=(210, 3105),
        memory_mhz=(405, 10501),
        video_mhz=(1185, 2415),
        application_mhz=(0, 0),
        idle_w=20.0,
        limit_w=450,
        lowest_limit_w=150,
        temperature_c=(29, 66),
        highest_c=(84, 86, 91),
        memory_idle_c=0,
        memory_highest_c=0,
        pcie_generation=4,
        nvlinks=0,
        nvlink_gb=0,
        remap_banks=192,
        ecc=False,
        fan=True,
        serial=False,
        media=True,
    ),
    "rtx5090": Model(
        name="NVIDIA GeForce RTX 5090",
        brand="GeForce",
        capability=(12, 0),
        vbios="98.02.2E.40.61",
        inforom_image="G005.0000.98.01",
        inforom_oem="2.1",
        inforom_ecc="",
        memory_mib=32607,
        reserved_mib=487,
        bar1_mib=32768,
        sm_mhz=(22, 3090),
        memory_mhz=(405, 14001),
        video_mhz=(600, 3090),
        application_mhz=(0, 0),
        idle_w=24.0,
        limit_w=575,
        lowest_limit_w=400,
        temperature_c=(27, 70),
        highest_c=(90, 92, 95),
        memory_idle_c=0,
        memory_highest_c=0,
        pcie_generation=5,
        nvlinks=0,
        nvlink_gb=0,
        remap_banks=0,
        ecc=False,
        fan=True,
        serial=False,
        media=True,
    ),
}
