"""From the text of `nvidia-smi -q` to the XML of `nvidia-smi -q -x`, so that both are read and compared alike.

Rule 1: a place is a path of headings; only the places in PLACES are taken over, as they stand.
Rule 2: MIG devices are the one thing that repeats within a GPU.
"""

import re
from collections.abc import Iterator, Mapping
from xml.etree import ElementTree as ET

_LINE = re.compile(r"( *)(\S.*?)(?: *: (.*))?")
_INDENT = 4

_SESSIONS = {"active sessions": "session_count", "average fps": "average_fps", "average latency": "average_latency"}
_POWER = {
    "power draw": "power_draw",
    "average power draw": "average_power_draw",
    "instantaneous power draw": "instant_power_draw",
}
_MEMORY = {word: word for word in ("total", "reserved", "used", "free")}
_SECTIONS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "mig mode": ("mig_mode", {"current": "current_mig", "pending": "pending_mig"}),
    "ecc mode": ("ecc_mode", {"current": "current_ecc", "pending": "pending_ecc"}),
    "gpu virtualization mode": ("gpu_virtualization_mode", {"virtualization mode": "virtualization_mode"}),
    "platform info": (
        "platformInfo",
        {
            "chassis serial number": "chassis_serial_number",
            "slot number": "slot_number",
            "tray index": "tray_index",
            "host id": "host_id",
            "peer type": "peer_type",
            "module id": "module_id",
            "gpu fabric guid": "gpu_fabric_guid",
        },
    ),
    "inforom version": (
        "inforom_version",
        {
            "image version": "img_version",
            "oem object": "oem_object",
            "ecc object": "ecc_object",
            "power management object": "pwr_object",
        },
    ),
    "pci": (
        "pci",
        {
            "device id": "pci_device_id",
            "bus id": "pci_bus_id",
            "sub system id": "pci_sub_system_id",
            "replays since reset": "replay_counter",
            "tx throughput": "tx_util",
            "rx throughput": "rx_util",
            "gpu link info/pcie generation/max": "pci_gpu_link_info/pcie_gen/max_link_gen",
            "gpu link info/pcie generation/current": "pci_gpu_link_info/pcie_gen/current_link_gen",
            "gpu link info/link width/max": "pci_gpu_link_info/link_widths/max_link_width",
            "gpu link info/link width/current": "pci_gpu_link_info/link_widths/current_link_width",
        },
    ),
    "clocks event reasons counters": (
        "clocks_event_reasons_counters",
        {
            text: f"clocks_event_reasons_counters_{name}"
            for text, name in {
                "sw power capping": "sw_power_cap",
                "sync boost": "sync_boost",
                "sw thermal slowdown": "sw_therm_slowdown",
                "hw thermal slowdown": "hw_therm_slowdown",
                "hw power braking": "hw_power_brake",
            }.items()
        },
    ),
    "fb memory usage": ("fb_memory_usage", _MEMORY),
    "bar1 memory usage": ("bar1_memory_usage", _MEMORY),
    "utilization": (
        "utilization",
        {word: f"{word}_util" for word in ("gpu", "memory", "encoder", "decoder", "jpeg", "ofa")},
    ),
    "encoder stats": ("encoder_stats", _SESSIONS),
    "fbc stats": ("fbc_stats", _SESSIONS),
    "gpu memory power readings": ("gpu_memory_power_readings", _POWER),
    "module power readings": ("module_power_readings", _POWER),
    "retired pages": (
        "retired_pages",
        {
            "single bit ecc": "multiple_single_bit_retirement/retired_count",
            "double bit ecc": "double_bit_retirement/retired_count",
            "pending page blacklist": "pending_retirement",
        },
    ),
    "remapped rows": (
        "remapped_rows",
        {
            "correctable error": "remapped_row_corr",
            "uncorrectable error": "remapped_row_unc",
            "pending": "remapped_row_pending",
            "remapping failure occurred": "remapped_row_failure",
            **{
                f"bank remap availability histogram/{word}": f"row_remapper_histogram/row_remapper_histogram_{word}"
                for word in ("max", "high", "partial", "low", "none")
            },
        },
    ),
    "temperature": (
        "temperature",
        {
            "gpu current temp": "gpu_temp",
            "gpu t.limit temp": "gpu_temp_tlimit",
            "gpu shutdown temp": "gpu_temp_max_threshold",
            "gpu slowdown temp": "gpu_temp_slow_threshold",
            "gpu max operating temp": "gpu_temp_max_gpu_threshold",
            "memory current temp": "memory_temp",
            "memory max operating temp": "gpu_temp_max_mem_threshold",
        },
    ),
    "gpu power readings": (
        "gpu_power_readings",
        {
            "power draw": "power_draw",
            "average power draw": "average_power_draw",
            "instantaneous power draw": "instant_power_draw",
            **{
                f"{word} power limit": f"{word}_power_limit"
                for word in ("current", "requested", "default", "min", "max")
            },
            # Since 610 these three stand below a heading of their own.
            **{
                f"gpu ceiling power limit/{word} power limit": f"{word}_power_limit"
                for word in ("current", "requested", "default")
            },
        },
    ),
    "power readings": (
        "power_readings",
        {
            "power draw": "power_draw",
            "power limit": "power_limit",
            **{f"{word} power limit": f"{word}_power_limit" for word in ("default", "enforced", "min", "max")},
        },
    ),
    "clocks": (
        "clocks",
        {"graphics": "graphics_clock", "sm": "sm_clock", "memory": "mem_clock", "video": "video_clock"},
    ),
    "applications clocks": ("applications_clocks", {"graphics": "graphics_clock", "memory": "mem_clock"}),
    "max clocks": (
        "max_clocks",
        {"graphics": "graphics_clock", "sm": "sm_clock", "memory": "mem_clock", "video": "video_clock"},
    ),
    "fabric": (
        "fabric",
        {
            "state": "state",
            "status": "status",
            "cliqueid": "cliqueId",
            "clusteruuid": "clusterUuid",
            "health/summary": "health/summary",
        },
    ),
}
_SINGLE = {
    "product name": "product_name",
    "product brand": "product_brand",
    "persistence mode": "persistence_mode",
    "serial number": "serial",
    "gpu uuid": "uuid",
    "minor number": "minor_number",
    "vbios version": "vbios_version",
    "module id": "gpu_module_id",
    "gpu recovery action": "gpu_recovery_action",
    "fan speed": "fan_speed",
    "performance state": "performance_state",
    "compute mode": "compute_mode",
    "ecc errors/unrepairable memory": "ecc_errors/unrepairable_memory",
}
_MIG = {
    "index": "index",
    "gpu instance id": "gpu_instance_id",
    "compute instance id": "compute_instance_id",
    "device attributes/shared/multiprocessor count": "device_attributes/shared/multiprocessor_count",
    **{f"shared fb memory usage/{word}": f"fb_memory_usage/{word}" for word in _MEMORY},
    **{f"shared bar1 memory/{word}": f"bar1_memory_usage/{word}" for word in _MEMORY},
}
_SRAM = {"l2": "l2", "sm": "sm", "microcontroller": "microcontroller", "pcie": "pcie", "other": "other"}


def _ecc() -> Iterator[tuple[str, str]]:
    for span in ("volatile", "aggregate"):
        for word in ("correctable", "uncorrectable"):
            for place in ("sram", "dram"):
                yield f"ecc errors/{span}/{place} {word}", f"ecc_errors/{span}/{place}_{word}"
        for text, name in (("parity", "parity"), ("sec-ded", "secded")):
            yield f"ecc errors/{span}/sram uncorrectable {text}", f"ecc_errors/{span}/sram_uncorrectable_{name}"
        for bits in ("single", "double"):
            for text in ("device memory", "register file", "l1 cache", "l2 cache", "texture memory", "cbu", "total"):
                yield f"ecc errors/{span}/{bits} bit/{text}", f"ecc_errors/{span}/{bits}_bit/{text.replace(' ', '_')}"
            yield f"ecc errors/{span}/{bits} bit/texture shared", f"ecc_errors/{span}/{bits}_bit/texture_shm"
    yield "ecc errors/aggregate/sram threshold exceeded", "ecc_errors/aggregate/sram_threshold_exceeded"
    for text, name in _SRAM.items():
        place = "ecc errors/aggregate uncorrectable sram sources/sram"
        yield f"{place} {text}", f"ecc_errors/aggregate_uncorrectable_sram_sources/sram_{name}"


PLACES: Mapping[str, str] = {
    **_SINGLE,
    **dict(_ecc()),
    **{
        f"{text}/{below}": f"{name}/{place}"
        for text, (name, places) in _SECTIONS.items()
        for below, place in places.items()
    },
    **{f"mig device/{text}": place for text, place in _MIG.items()},
}


def xml(text: str) -> ET.Element:
    """The log as nvidia-smi would have written it in XML, as far as PLACES go."""
    log = ET.Element("nvidia_smi_log")
    gpu: ET.Element | None = None
    device: ET.Element | None = None
    path: list[str] = []
    for line in text.splitlines():
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            continue
        depth, heading, value = len(match[1]) // _INDENT, match[2].strip(), match[3]
        if depth == 0:
            path = []
            if heading.startswith("GPU ") and value is None:
                gpu = ET.SubElement(log, "gpu", id=heading.removeprefix("GPU ").strip())
            elif value is not None and gpu is None:
                name = {"Driver Version": "driver_version", "CUDA Version": "cuda_version"}.get(heading)
                _put(log, name, value.partition(" [")[0].strip())  # 610 adds that the name will go
            continue
        if gpu is None:
            continue
        path = [*path[: depth - 1], heading.lower()]
        if path == ["mig device"]:
            device = ET.SubElement(_below(gpu, "mig_devices"), "mig_device")
        inside = device if path[0] == "mig device" and device is not None else gpu
        if value is not None:
            _put(inside, PLACES.get("/".join(path)), value.strip())
    return log


def _put(element: ET.Element, place: str | None, text: str) -> None:
    if place is not None:
        _below(element, place).text = text


def _below(element: ET.Element, place: str) -> ET.Element:
    for name in place.split("/"):
        found = element.find(name)
        element = ET.SubElement(element, name) if found is None else found
    return element
