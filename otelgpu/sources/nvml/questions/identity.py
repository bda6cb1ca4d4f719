"""Who and what a GPU is: names, versions, places, modes.

Rule 1: what cannot change while the device is there is fixed; what an administrator can switch is slow.
"""

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import pynvml

from otelgpu.sources.nvml.handles import Handle
from otelgpu.sources.nvml.questions.rows import Question, Take

BRANDS: Mapping[int, str] = {
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_NVS: "NVS",
    pynvml.NVML_BRAND_GRID: "Grid",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_NVIDIA_VAPPS: "NvidiaVApps",
    pynvml.NVML_BRAND_NVIDIA_VPC: "NvidiaVPC",
    pynvml.NVML_BRAND_NVIDIA_VCS: "NvidiaVCS",
    pynvml.NVML_BRAND_NVIDIA_VWS: "NvidiaVWS",
    pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_NVIDIA: "NVIDIA",
    pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
    pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
}
WORDS = 4  # of 64 bits: what the affinity fields can hold
UNKNOWN_PLACE = 255  # what the platform says of a slot or tray that it does not know


def _license_state(features: Any) -> int:  # noqa: ANN401 - a ctypes struct of pynvml
    """1 while any licensable feature of the GPU is licensed; 0 also where there is none to license."""
    count = min(features.licensableFeaturesCount, len(features.gridLicensableFeatures))
    return int(any(features.gridLicensableFeatures[i].featureState for i in range(count)))


def _valid_inforom(handle: Handle) -> int:
    """Say 1 for a valid InfoROM and 0 for a corrupt one, which is an error code and no answer."""
    try:
        pynvml.nvmlDeviceValidateInforom(handle)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_CORRUPTED_INFOROM:
            raise
        return 0
    return 1


def _signed(word: int) -> int:
    """Give a full 64-bit word as the int64 that DCGM shows: its top bit is one CPU (or node) more."""
    return int(ctypes.c_int64(word).value)


def _word(place: int) -> Callable[[Any], int]:
    return lambda words: _signed(words[place])


# pynvml decodes every byte of this struct as text when it is read by name, which fails on 255 and ends at a zero:
# the bytes are taken from where they stand.
def _platform(handle: Handle) -> Mapping[str, bytes]:
    info = pynvml.c_nvmlPlatformInfo_v2_t()
    pynvml.nvmlDeviceGetPlatformInfo(handle, ctypes.byref(info))
    whole = bytes(info)
    members = {name: getattr(type(info), name) for name, *_ in info._fields_}
    return {name: whole[member.offset : member.offset + member.size] for name, member in members.items()}


def _place(name: str) -> Callable[[Mapping[str, bytes]], int | None]:
    return lambda info: None if info[name][0] == UNKNOWN_PLACE else info[name][0]


def _guid(info: Mapping[str, bytes]) -> str | None:
    """The first eight bytes are the GUID, in the order of the struct; all zero where there is none."""
    guid = info["ibGuid"][:8]
    return f"0x{guid.hex()}" if any(guid) else None


def _chassis(info: Mapping[str, bytes]) -> str | None:
    text = info["chassisSerialNumber"].partition(b"\0")[0]
    return text.decode("utf-8", errors="replace") or None


def _inforom(object_: int) -> Callable[[Handle], object]:
    return lambda handle: pynvml.nvmlDeviceGetInforomVersion(handle, object_)


QUESTIONS: tuple[Question, ...] = (
    Question(
        "nvmlDeviceGetGridLicensableFeatures_v4",
        pynvml.nvmlDeviceGetGridLicensableFeatures_v4,
        (Take(526, _license_state),),
    ),
    Question("nvmlSystemGetDriverVersion", lambda _: pynvml.nvmlSystemGetDriverVersion(), (Take(1),), fixed=True),
    Question("nvmlSystemGetNVMLVersion", lambda _: pynvml.nvmlSystemGetNVMLVersion(), (Take(2),), fixed=True),
    Question("nvmlDeviceGetCount_v2", lambda _: pynvml.nvmlDeviceGetCount(), (Take(4),), slow=True),
    Question(
        "nvmlSystemGetCudaDriverVersion_v2",
        lambda _: pynvml.nvmlSystemGetCudaDriverVersion_v2(),
        (Take(5),),
        fixed=True,
    ),
    Question("nvmlDeviceGetName", pynvml.nvmlDeviceGetName, (Take(50),), fixed=True),
    Question(
        "nvmlDeviceGetBrand",
        pynvml.nvmlDeviceGetBrand,
        (Take(51, lambda brand: BRANDS.get(brand, "Unknown")),),
        fixed=True,
    ),
    Question("nvmlDeviceGetIndex", pynvml.nvmlDeviceGetIndex, (Take(52),), slow=True),
    Question("nvmlDeviceGetSerial", pynvml.nvmlDeviceGetSerial, (Take(53),), fixed=True),
    Question("nvmlDeviceGetUUID", pynvml.nvmlDeviceGetUUID, (Take(54),), fixed=True),
    Question("nvmlDeviceGetMinorNumber", pynvml.nvmlDeviceGetMinorNumber, (Take(55),), fixed=True),
    Question("nvmlDeviceGetInforomVersion(OEM)", _inforom(pynvml.NVML_INFOROM_OEM), (Take(56),), fixed=True),
    Question(
        "nvmlDeviceGetPciInfo_v3",
        pynvml.nvmlDeviceGetPciInfo_v3,
        (
            Take(57, lambda pci: pci.busId),
            Take(58, lambda pci: pci.pciDeviceId),
            Take(59, lambda pci: pci.pciSubSystemId),
        ),
        fixed=True,
    ),
    Question(
        "nvmlDeviceGetCudaComputeCapability",
        pynvml.nvmlDeviceGetCudaComputeCapability,
        (Take(63, lambda version: version[0] << 16 | version[1]),),
        fixed=True,
    ),
    Question("nvmlDeviceGetComputeMode", pynvml.nvmlDeviceGetComputeMode, (Take(65),), slow=True),
    Question("nvmlDeviceGetPersistenceMode", pynvml.nvmlDeviceGetPersistenceMode, (Take(66),), slow=True),
    Question("nvmlDeviceGetMigMode", pynvml.nvmlDeviceGetMigMode, (Take(67, lambda modes: modes[0]),)),
    # A GPU that is cut into instances cannot be chosen whole: there the instances alone have this.
    Question("nvmlDeviceGetUUID", pynvml.nvmlDeviceGetUUID, (Take(68),), instance=True, fixed=True),
    Question("nvmlDeviceGetMaxMigDeviceCount", pynvml.nvmlDeviceGetMaxMigDeviceCount, (Take(69),), slow=True),
    Question(
        "nvmlDeviceGetCpuAffinity",
        lambda handle: pynvml.nvmlDeviceGetCpuAffinity(handle, WORDS),
        tuple(Take(70 + place, _word(place)) for place in range(WORDS)),
        slow=True,
    ),
    Question(
        "nvmlSystemGetConfComputeState",
        lambda _: pynvml.nvmlSystemGetConfComputeState(),
        (Take(74, lambda state: state.ccFeature),),
        slow=True,
    ),
    Question("nvmlDeviceGetInforomVersion(ECC)", _inforom(pynvml.NVML_INFOROM_ECC), (Take(80),), fixed=True),
    Question("nvmlDeviceGetInforomVersion(POWER)", _inforom(pynvml.NVML_INFOROM_POWER), (Take(81),), fixed=True),
    Question("nvmlDeviceGetInforomImageVersion", pynvml.nvmlDeviceGetInforomImageVersion, (Take(82),), fixed=True),
    Question(
        "nvmlDeviceGetInforomConfigurationChecksum",
        pynvml.nvmlDeviceGetInforomConfigurationChecksum,
        (Take(83),),
        slow=True,
    ),
    Question("nvmlDeviceValidateInforom", _valid_inforom, (Take(84),), slow=True),
    Question("nvmlDeviceGetVbiosVersion", pynvml.nvmlDeviceGetVbiosVersion, (Take(85),), fixed=True),
    Question(
        "nvmlDeviceGetMemoryAffinity",
        lambda handle: pynvml.nvmlDeviceGetMemoryAffinity(handle, WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE),
        tuple(Take(86 + place, _word(place)) for place in range(WORDS)),
        slow=True,
    ),
    Question(
        "nvmlGpmQueryDeviceSupport",
        pynvml.nvmlGpmQueryDeviceSupport,
        (Take(94, lambda support: support.isSupportedDevice),),
        fixed=True,
    ),
    Question("nvmlDeviceGetVirtualizationMode", pynvml.nvmlDeviceGetVirtualizationMode, (Take(500),), slow=True),
    Question(
        "nvmlDeviceGetPlatformInfo",
        _platform,
        (
            Take(571, _guid),
            Take(572, _chassis),
            Take(573, _place("slotNumber")),
            Take(574, _place("trayIndex")),
            Take(575, lambda info: info["hostId"][0]),
            Take(576, lambda info: info["peerType"][0]),
            Take(577, lambda info: info["moduleId"][0]),
        ),
        slow=True,
    ),
    # Boards without a platform controller know their place on the baseboard all the same. pynvml shares its default
    # argument between threads, so it gets one of its own.
    Question(
        "nvmlDeviceGetModuleId",
        lambda handle: pynvml.nvmlDeviceGetModuleId(handle, ctypes.c_uint()),
        (Take(577),),
        slow=True,
    ),
)
