"""A GPU that no shop sells: it answers every question, and each with another number.

Rule 1: a number says where it comes from: field value 83 is 83,000, on link 3 of the NVLinks 83,003. Only what cannot
        be so large stands in a table.
Rule 2: what can be asked in two ways has another number in each, so that a page shows which way was taken.
"""

from tests.fakenvml.models import H100, MIB, gpu, machine
from tests.fakenvml.scenario import ALL_LINKS, Answer, FieldAnswer, FieldKey, Gpu, Key, Scenario

LINKS = 18
BY_LINK = (*range(138, 142), *range(161, 166), *range(201, 223), *range(235, 251))
SMALL: dict[FieldKey, FieldAnswer] = {
    1: 1,
    2: 0,
    31: 1,
    82: 41,
    91: LINKS,
    144: 1,
    145: 1,
    170: 10,
    171: 1,
    230: 2,
    234: 1,
    251: 1,
    252: 2,
    253: 1,
    254: 1254,
    255: 1255,
    256: 56,
    257: 57,
    258: 58,
    260: 60,
    265: 65,
}

ANSWERS: dict[Key, Answer] = {
    ("nvmlDeviceGetApplicationsClock", 0): 1110,
    ("nvmlDeviceGetApplicationsClock", 1): 1110,
    ("nvmlDeviceGetApplicationsClock", 2): 1111,
    "nvmlDeviceGetAutoBoostedClocksEnabled": (1, 0),
    ("nvmlDeviceGetClockInfo", 1): 1100,
    ("nvmlDeviceGetClockInfo", 2): 1101,
    ("nvmlDeviceGetClockInfo", 3): 1102,
    "nvmlDeviceGetComputeMode": 3,
    "nvmlDeviceGetCpuAffinity": (0x1, 0x2, 0x4, 1 << 63),
    ("nvmlDeviceGetInforomVersion", 0): "1.1",
    ("nvmlDeviceGetInforomVersion", 1): "7.16",
    ("nvmlDeviceGetInforomVersion", 2): "2.2",
    "nvmlDeviceGetCurrPcieLinkGeneration": 4,
    "nvmlDeviceGetCurrPcieLinkWidth": 8,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x25,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x25,
    "nvmlDeviceGetDecoderUtilization": (7, 167_000),
    "nvmlDeviceGetEncoderUtilization": (6, 167_000),
    "nvmlDeviceGetEncoderStats": (101, 102, 103),
    "nvmlDeviceGetFBCStats": (104, 105, 106),
    "nvmlDeviceGetJpgUtilization": (17, 167_000),
    "nvmlDeviceGetOfaUtilization": (18, 167_000),
    # The newest is neither the first nor the last, and a place that was never filled follows.
    ("nvmlDeviceGetSamples", 1): (1_000, 1, 3_000, 11, 2_000, 2, 0, 99),
    ("nvmlDeviceGetSamples", 2): (1_000, 1, 3_000, 10, 2_000, 2, 0, 99),
    "nvmlDeviceGetEccMode": (0, 1),
    "nvmlDeviceGetEnforcedPowerLimit": 164_500,
    "nvmlDeviceGetFanSpeed": 91,
    "nvmlDeviceGetGpuFabricInfoV": (3, 0, 73, 0x74, 2, "0f" * 15 + "1e"),
    "nvmlDeviceGetGridLicensableFeatures_v4": (1, 3, 1, "licence", "product", 1),
    "nvmlDeviceGetInforomConfigurationChecksum": 0xFFFFFFFF,
    "nvmlDeviceGetMarginTemperature": 53,
    "nvmlDeviceGetMaxMigDeviceCount": 7,
    ("nvmlDeviceGetMaxClockInfo", 1): 1113,
    ("nvmlDeviceGetMaxClockInfo", 2): 1114,
    ("nvmlDeviceGetMaxClockInfo", 3): 1115,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetMemoryAffinity": (0x10, 0x20, 0x40, 0x80),
    "nvmlDeviceGetMemoryInfo_v2": (80_000 * MIB, 3_000 * MIB, 57_000 * MIB, 20_000 * MIB),
    "nvmlDeviceGetBAR1MemoryInfo": (90 * MIB, 53 * MIB, 37 * MIB),
    "nvmlDeviceGetPcieThroughput": None,
    ("nvmlDeviceGetPcieThroughput", 0): 2000,
    ("nvmlDeviceGetPcieThroughput", 1): 2010,
    "nvmlDeviceGetPerformanceState": 9,
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetPlatformInfo": (73, 74, 75, 76, 77, "0102030405060708", "1650123456789"),
    "nvmlDeviceGetPcieReplayCounter": 202_500,
    "nvmlDeviceGetPowerManagementDefaultLimit": 163_500,
    "nvmlDeviceGetPowerManagementLimit": 160_500,
    "nvmlDeviceGetPowerManagementLimitConstraints": (161_500, 162_500),
    "nvmlDeviceGetPowerUsage": 155_000,
    "nvmlDeviceGetRemappedRows": (394_500, 393_500, 0, 1),
    ("nvmlDeviceGetRetiredPages", 0): (4096, 8192, 12288),
    ("nvmlDeviceGetRetiredPages", 1): (4096, 8192),
    "nvmlDeviceGetRetiredPagesPendingStatus": 0,
    "nvmlDeviceGetRowRemapperHistogram": (385, 386, 387, 388, 389),
    "nvmlDeviceGetSramEccErrorStatus": (3451, 3452, 344, 3431, 3432, 342, 0, 0, 0, 0, 0, 1),
    ("nvmlDeviceGetTemperature", 0): 50,
    ("nvmlDeviceGetTemperatureThreshold", 0): 159,
    ("nvmlDeviceGetTemperatureThreshold", 1): 158,
    ("nvmlDeviceGetTemperatureThreshold", 2): 151,
    ("nvmlDeviceGetTemperatureThreshold", 3): 152,
    "nvmlDeviceGetTotalEnergyConsumption": 156_500,
    "nvmlDeviceGetUnrepairableMemoryFlag_v1": (1, 0),
    "nvmlDeviceGetUtilizationRates": (3, 4),
    "nvmlDeviceGetVirtualizationMode": 2,
    "nvmlDeviceValidateInforom": (),
}


def _fields() -> dict[FieldKey, FieldAnswer]:
    fields: dict[FieldKey, FieldAnswer] = {
        identity: 1000 * identity
        for identity in range(1, 309)
        if identity not in BY_LINK  # a number without a scope is that of link 0
    }
    for identity in BY_LINK:
        fields |= {(identity, link): 1000 * identity + link for link in range(LINKS)}
    fields |= {(185, 1): 185_001, (186, 1): 186_001, (186, 2): 186_002}  # no average of the memory
    # Error rates: 1e-12 and less, worst on link 0; 5e-15, but on link 3.
    fields |= {(220, link): 0x100 + 12 + link for link in range(LINKS)}
    fields |= {(222, link): 0x500 + (9 if link == 3 else 15) for link in range(LINKS)}
    fields |= {(165, link): link % 4 for link in range(LINKS)}
    fields |= {(identity, ALL_LINKS): 1000 * identity + 999 for identity in range(138, 142)}
    return fields | SMALL


def _counters() -> dict[Key, Answer]:
    """Errors by kind, span and place, and by link and counter: a digit for each."""
    answers: dict[Key, Answer] = {}
    for error in range(2):
        for span in range(2):
            answers["nvmlDeviceGetTotalEccErrors", error, span] = 9000 + 10 * error + span
            for place in range(8):
                answers["nvmlDeviceGetMemoryErrorCounter", error, span, place] = 8000 + 100 * place + 10 * error + span
    for policy in range(12):
        answers["nvmlDeviceGetViolationStatus", policy] = (1_700_000_000_000_000_000, 240_500 + policy)
    for link in range(LINKS):
        answers["nvmlDeviceGetNvLinkState", link] = link % 2
        for counter in range(5):
            answers["nvmlDeviceGetNvLinkErrorCounter", link, counter] = 70_000 + 100 * link + counter
    return answers


def everything() -> Scenario:
    """One GPU that answers all there is to ask, under the driver of an H100."""
    whole: Gpu = gpu(H100)
    everything = whole.but(
        answers={**ANSWERS, **_counters()},
        fields=_fields(),
        gpm={metric: metric % 97 + 0.25 for metric in range(1, 298)},
    )
    return machine(H100).but(gpus=(everything,), answers={"nvmlSystemGetConfComputeState": (1, 1, 0)})
