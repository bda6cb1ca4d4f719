"""The structs and constants of libdcgm that are used here, as ctypes has them.

Rule 1: names of structs, members and constants are those of dcgm_structs.h and dcgm_fields.h. Sizes and offsets are
        those of DCGM 4.6 on x86-64 and arm64 (natural alignment, enums of four bytes), and the same in 3.3.
Rule 2: a struct that carries a version carries the size of itself in it: `version_of` makes it, and an engine that
        knows another layout answers -12 instead of filling it in wrongly.
"""

import ctypes
from ctypes import c_char, c_char_p, c_double, c_int, c_int64, c_uint, c_uint16, c_uint32, c_void_p

OK = 0
FE_GPU, FE_GPU_I, FE_GPU_CI = 1, 4, 5  # dcgm_field_entity_group_t
GROUP_EMPTY = 1  # dcgmGroupType_t
MODE_AUTO = 1  # dcgmOperationMode_t: the engine samples by itself
LIVE_DATA = 1  # DCGM_FV_FLAG_LIVE_DATA: ask the driver now, watched or not; a profiling field crashes the engine
STATUS_LOST, STATUS_DETACHED = 4, 7  # DcgmEntityStatus_t

MOST_GPUS = 32  # DCGM_MAX_NUM_DEVICES
MOST_IN_GROUP = 127  # fields of one field group
MOST_ASKED = 128  # fields of one dcgmEntitiesGetLatestValues

Handle = ctypes.c_size_t  # dcgmHandle_t, dcgmGpuGrp_t and dcgmFieldGrp_t are uintptr_t
_TEXT = c_char * 256


class ConnectParams(ctypes.Structure):
    """dcgmConnectV2Params_v2; the time is in milliseconds."""

    _fields_ = (
        ("version", c_uint),
        ("persistAfterDisconnect", c_uint),
        ("timeoutMs", c_uint),
        ("addressIsUnixSocket", c_uint),
    )


class EmbeddedParams(ctypes.Structure):
    """dcgmStartEmbeddedV2Params_v1; `dcgmHandle` is filled in."""

    _fields_ = (
        ("version", c_uint),
        ("opMode", c_int),
        ("dcgmHandle", Handle),
        ("logFile", c_char_p),
        ("severity", c_int),
        ("denyListCount", c_uint),
        ("denyList", c_uint * 10),
    )


class EntityPair(ctypes.Structure):
    """dcgmGroupEntityPair_t: one GPU or instance."""

    _fields_ = (("entityGroupId", c_uint32), ("entityId", c_uint32))


class _Value(ctypes.Union):
    _fields_ = (("i64", c_int64), ("dbl", c_double), ("str", _TEXT), ("blob", c_char * 4096))


class FieldValue1(ctypes.Structure):
    """dcgmFieldValue_v1, which a callback gets; `ts` is in microseconds since the epoch."""

    _fields_ = (
        ("version", c_uint),
        ("fieldId", c_uint16),
        ("fieldType", c_uint16),
        ("status", c_int),
        ("ts", c_int64),
        ("value", _Value),
    )


class FieldValue2(ctypes.Structure):
    """dcgmFieldValue_v2, which says whose value it is."""

    _fields_ = (
        ("version", c_uint),
        ("entityGroupId", c_uint32),
        ("entityId", c_uint32),
        ("fieldId", c_uint16),
        ("fieldType", c_uint16),
        ("status", c_int),
        ("unused", c_uint),
        ("ts", c_int64),
        ("value", _Value),
    )


class Identifiers(ctypes.Structure):
    """dcgmDeviceIdentifiers_v1."""

    _fields_ = (
        ("version", c_uint),
        ("brandName", _TEXT),
        ("deviceName", _TEXT),
        ("pciBusId", _TEXT),
        ("serial", _TEXT),
        ("uuid", _TEXT),
        ("vbios", _TEXT),
        ("inforomImageVersion", _TEXT),
        ("pciDeviceId", c_uint),
        ("pciSubSystemId", c_uint),
        ("driverVersion", _TEXT),
        ("virtualizationMode", c_uint),
    )


class DeviceAttributes(ctypes.Structure):
    """dcgmDeviceAttributes_v3, of which the identifiers are used."""

    _fields_ = (
        ("version", c_uint),
        ("clockSets", c_char * 3080),
        ("thermalSettings", c_uint * 3),
        ("powerLimits", c_uint * 6),
        ("identifiers", Identifiers),
        ("memoryUsage", c_uint * 5),
        ("settings", c_uint * 4),
    )


class MigEntityInfo(ctypes.Structure):
    """dcgmMigEntityInfo_t: what NVML calls an instance."""

    _fields_ = (
        ("gpuUuid", c_char * 128),
        ("nvmlGpuIndex", c_uint),
        ("nvmlInstanceId", c_uint),
        ("nvmlComputeInstanceId", c_uint),
        ("nvmlMigProfileId", c_uint),
        ("nvmlProfileSlices", c_uint),
    )


class MigHierarchyInfo(ctypes.Structure):
    """dcgmMigHierarchyInfo_v2: an instance and what it is a part of."""

    _fields_ = (("entity", EntityPair), ("parent", EntityPair), ("info", MigEntityInfo))


class MigHierarchy(ctypes.Structure):
    """dcgmMigHierarchy_v2: the instances of all GPUs."""

    _fields_ = (("version", c_uint), ("count", c_uint), ("entityList", MigHierarchyInfo * 448))


class ProfMetricGroup(ctypes.Structure):
    """dcgmProfMetricGroupInfo_v2."""

    _fields_ = (
        ("majorId", c_uint16),
        ("minorId", c_uint16),
        ("numFieldIds", c_uint),
        ("fieldIds", c_uint16 * 64),
    )


class ProfMetricGroups(ctypes.Structure):
    """dcgmProfGetMetricGroups_v3: which profiling fields a GPU has."""

    _fields_ = (
        ("version", c_uint),
        ("unused", c_uint),
        ("gpuId", c_uint),
        ("numMetricGroups", c_uint),
        ("metricGroups", ProfMetricGroup * 10),
    )


class VersionInfo(ctypes.Structure):
    """dcgmVersionInfo_v2: `version:4.6.0;arch:x86_64;...`."""

    _fields_ = (("version", c_uint), ("rawBuildInfoString", c_char * 512))


# int(entity group, entity, values, how many, user data); called in the thread that asks, with one value a call.
Enumeration = ctypes.CFUNCTYPE(c_int, c_uint32, c_uint32, ctypes.POINTER(FieldValue1), c_int, c_void_p)

VERSIONS: dict[type[ctypes.Structure], int] = {
    ConnectParams: 2,
    EmbeddedParams: 1,
    FieldValue1: 1,
    FieldValue2: 2,
    Identifiers: 1,
    DeviceAttributes: 3,
    MigHierarchy: 2,
    ProfMetricGroups: 3,
    VersionInfo: 2,
}


def version_of(struct: type[ctypes.Structure]) -> int:
    """Make the version that a struct has to carry: its size, and its number in the top byte."""
    return ctypes.sizeof(struct) | VERSIONS[struct] << 24
