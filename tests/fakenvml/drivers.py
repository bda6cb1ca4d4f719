"""What eleven drivers, from 470 to 610, do not know: functions, structs, field ids, metrics.

Rule 1: as NVIDIA's change log of NVML has it (to v615, read in November 2026), but for the lists of processes, which
        are as programs in the field know them. A test that needs another release sets it itself.
Rule 2: an unknown function is not in the library (see `build`), an unknown field id INVALID_ARGUMENT, an unknown
        version of a struct ARGUMENT_VERSION_MISMATCH.
"""

from dataclasses import dataclass

from tests.fakenvml.scenario import Answer, Code, FieldAnswer, FieldKey, Key, Scenario

INVALID_ARGUMENT, VERSION_MISMATCH = 2, 25
KNOWN = 309  # field ids, and metrics, that `everything` answers are below this

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Driver:
    """A version, the first field id and metric that it does not know, and the functions that came after it."""

    version: str
    fields: int
    metrics: int
    without: frozenset[str]

    @property
    def number(self) -> Version:
        """The version in parts."""
        return _number(self.version)


# Functions by the release with which they came, newest first.
CAME: tuple[tuple[Version, tuple[str, ...]], ...] = (
    ((590,), ("nvmlDeviceGetUnrepairableMemoryFlag_v1",)),
    ((570,), ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetMarginTemperature")),
    ((565,), ("nvmlDeviceGetPlatformInfo",)),
    ((550,), ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetNumaNodeId", "nvmlDeviceGetProcessesUtilizationInfo")),
    ((535, 98), ("nvmlDeviceGetRunningProcessDetailList",)),
    (
        (535,),
        (
            "nvmlDeviceGetSramEccErrorStatus",
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetSupportedClocksEventReasons",
            "nvmlSystemGetConfComputeState",
            "nvmlDeviceGetConfComputeMemSizeInfo",
            "nvmlDeviceGetModuleId",
            "nvmlDeviceGetJpgUtilization",
            "nvmlDeviceGetOfaUtilization",
        ),
    ),
    (
        (520,),
        (
            "nvmlDeviceGetTargetFanSpeed",
            "nvmlGpmQueryDeviceSupport",
            "nvmlGpmSampleAlloc",
            "nvmlGpmSampleFree",
            "nvmlGpmSampleGet",
            "nvmlGpmMigSampleGet",
            "nvmlGpmMetricsGet",
        ),
    ),
    ((515,), ("nvmlDeviceGetPcieSpeed", "nvmlDeviceGetDefaultEccMode")),
    (
        (510,),
        (
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetMemoryBusWidth",
            "nvmlDeviceGetNumFans",
            "nvmlDeviceGetNumGpuCores",
            "nvmlDeviceGetPcieLinkMaxSpeed",
            "nvmlDeviceGetPowerSource",
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetGraphicsRunningProcesses_v3",
            "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        ),
    ),
)


def _number(version: str) -> Version:
    return tuple(map(int, version.split(".")))


def _driver(version: str, fields: int, metrics: int) -> Driver:
    without = {name for since, names in CAME if _number(version) < since for name in names}
    return Driver(version, fields, metrics, frozenset(without))


DRIVERS = (
    _driver("470.256.02", 164, 0),
    _driver("510.108.03", 167, 0),
    _driver("525.147.05", 169, 98),
    _driver("535.54.03", 197, 98),
    _driver("535.183.01", 197, 98),
    _driver("550.127.05", 200, 98),
    _driver("565.57.01", 230, 160),
    _driver("570.211.01", 269, 210),
    _driver("580.65.06", 274, 248),
    _driver("590.48.01", 301, 334),
    _driver("610.57.04", KNOWN, 477),
)


def under(driver: Driver, scenario: Scenario) -> Scenario:
    """The machine under this driver."""
    unknown: dict[FieldKey, FieldAnswer] = dict.fromkeys(range(driver.fields, KNOWN), Code(INVALID_ARGUMENT))
    # The place in a rack had another form first.
    errors: dict[Key, int | None] = {"nvmlDeviceGetPlatformInfo": VERSION_MISMATCH} if driver.number < (570,) else {}
    for slot, gpu in enumerate(scenario.gpus):
        ids = {key: Code(INVALID_ARGUMENT) for key in gpu.fields if isinstance(key, tuple) and key[0] >= driver.fields}
        answers: dict[Key, Answer] = {"nvmlGpmMetricsGet": driver.metrics}
        fabric = gpu.answers.get("nvmlDeviceGetGpuFabricInfoV")
        if driver.number < (570,) and isinstance(fabric, tuple):
            answers["nvmlDeviceGetGpuFabricInfoV"] = fabric[:4]
        scenario = scenario.with_gpu(slot, fields={**unknown, **ids}, answers=answers)
    return scenario.but(driver=driver.version, missing=driver.without, errors=errors)
