"""What ten drivers, from 470 to 610, do not know: functions, structs, field ids, metrics.

Rule 1: roughly as it was: for some functions it is not known in which release of a branch they came. A test that
        needs an exact release sets it itself.
Rule 2: an unknown function is FUNCTION_NOT_FOUND, an unknown field id INVALID_ARGUMENT, an unknown version of a struct
        ARGUMENT_VERSION_MISMATCH.
"""

from dataclasses import dataclass

from tests.fakenvml.scenario import Answer, Code, FieldAnswer, FieldKey, Key, Scenario

FUNCTION_NOT_FOUND, INVALID_ARGUMENT = 13, 2
KNOWN = 309  # field ids, and metrics, that `everything` answers are below this


@dataclass(frozen=True, slots=True)
class Driver:
    """A version, and the first field id and metric that it does not know; `came` lists what came after it."""

    version: str
    fields: int
    metrics: int
    without: tuple[str, ...]


# Functions by the branch with which they came, newest first.
CAME = (
    ("590", ("nvmlDeviceGetUnrepairableMemoryFlag_v1",)),
    ("570", ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetMarginTemperature")),
    ("565", ("nvmlDeviceGetPlatformInfo",)),
    ("550", ("nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetGpuFabricInfoV")),
    ("535", ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlSystemGetConfComputeState", "nvmlDeviceGetModuleId")),
    (
        "525",
        (
            "nvmlGpmQueryDeviceSupport",
            "nvmlGpmSampleAlloc",
            "nvmlGpmSampleGet",
            "nvmlGpmMigSampleGet",
            "nvmlGpmMetricsGet",
        ),
    ),
    ("510", ("nvmlDeviceGetMemoryInfo_v2",)),
)


def _driver(version: str, fields: int, metrics: int) -> Driver:
    branch = version.partition(".")[0]
    return Driver(version, fields, metrics, tuple(name for since, names in CAME if branch < since for name in names))


DRIVERS = (
    _driver("470.256.02", 164, 0),
    _driver("510.108.03", 167, 0),
    _driver("525.147.05", 169, 98),
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
    errors: dict[Key, int | None] = dict.fromkeys(driver.without, FUNCTION_NOT_FOUND)
    for slot, gpu in enumerate(scenario.gpus):
        ids = {key: Code(INVALID_ARGUMENT) for key in gpu.fields if isinstance(key, tuple) and key[0] >= driver.fields}
        answers: dict[Key, Answer] = {"nvmlGpmMetricsGet": driver.metrics}
        fabric = gpu.answers.get("nvmlDeviceGetGpuFabricInfoV")
        if driver.version < "570" and isinstance(fabric, tuple):
            answers["nvmlDeviceGetGpuFabricInfoV"] = fabric[:4]
        scenario = scenario.with_gpu(slot, fields={**unknown, **ids}, answers=answers)
    return scenario.but(driver=driver.version, errors=errors)
