"""The GPU itself: clocks, heat, power, load, memory and its errors (ids 100 to 396, 1400 to 1523 without NVLink)."""

from otelgpu.fields.maker import row
from otelgpu.fields.measures import (
    BANDWIDTH,
    BINARY,
    CLOCK,
    ENERGY,
    ERRORS,
    ERRORS32,
    FAN,
    FLAG,
    INT32_HIGHEST,
    MARGIN,
    MEMORY,
    PAGES32,
    PCIE_SAMPLED_RATE,
    PERCENT,
    PERCENT_REAL,
    POWER,
    REASONS,
    ROWS32,
    SHARE,
    STATE,
    TEMPERATURE,
    TEMPERATURE_LIMIT,
    TEXT,
    THROTTLED,
    gauge,
    real,
    state,
)
from otelgpu.fields.row import Field, Kind, Level

_ALL = Level.GLOBAL
_CI = Level.GPU_CI
_BANKS = gauge("{bank}", INT32_HIGHEST)

# fmt: off
_CLOCKS = (
    row(100, "DEV_SM_CLOCK", CLOCK, "Clock of the streaming multiprocessors", base="DEV_SM_CLOCK_HERTZ", sem="clock.frequency{clock=sm}", default=True),
    row(101, "DEV_MEM_CLOCK", CLOCK, "Clock of the GPU memory", base="DEV_MEMORY_CLOCK_HERTZ", sem="clock.frequency{clock=memory}", default=True),
    row(102, "DEV_VIDEO_CLOCK", CLOCK, "Clock of the video encoders and decoders", base="DEV_VIDEO_CLOCK_HERTZ", sem="clock.frequency{clock=video}"),
    row(110, "DEV_APP_SM_CLOCK", CLOCK, "Multiprocessor clock that applications asked for", base="DEV_SM_APP_CLOCK_HERTZ", sem="clock.application.frequency{clock=sm}"),
    row(111, "DEV_APP_MEM_CLOCK", CLOCK, "Memory clock that applications asked for", base="DEV_MEMORY_APP_CLOCK_HERTZ", sem="clock.application.frequency{clock=memory}"),
    row(112, "DEV_CLOCKS_EVENT_REASONS", REASONS, "Why the clocks are below what was asked for, a bit for each reason", sem="clock.event.reasons", aliases=("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",)),
    row(113, "DEV_MAX_SM_CLOCK", CLOCK, "Highest clock the streaming multiprocessors can run at", base="DEV_SM_MAX_CLOCK_HERTZ", sem="clock.frequency.limit{clock=sm}"),
    row(114, "DEV_MAX_MEM_CLOCK", CLOCK, "Highest clock the GPU memory can run at", base="DEV_MEMORY_MAX_CLOCK_HERTZ", sem="clock.frequency.limit{clock=memory}"),
    row(115, "DEV_MAX_VIDEO_CLOCK", CLOCK, "Highest clock the video engines can run at", base="DEV_VIDEO_MAX_CLOCK_HERTZ", sem="clock.frequency.limit{clock=video}"),
    row(120, "DEV_AUTOBOOST", FLAG, "Whether the GPU may raise its own clocks: 1 yes, 0 no", new="DEV_CLOCKS_AUTOBOOST_MODE", sem="clock.autoboost"),
    row(130, "DEV_SUPPORTED_CLOCKS", BINARY, "Clock pairs that applications may ask for", new="DEV_CLOCKS_SUPPORTED"),
)
_HEAT_AND_POWER = (
    row(140, "DEV_MEMORY_TEMP", TEMPERATURE, "Temperature of the GPU memory", new="DEV_MEMORY_TEMP_CELSIUS", sem="hw.temperature{hw.sensor_location=memory}", default=True),
    row(150, "DEV_GPU_TEMP", TEMPERATURE, "Temperature of the GPU core", new="DEV_GPU_TEMP_CELSIUS", sem="hw.temperature{hw.sensor_location=core}", default=True),
    row(151, "DEV_MEM_MAX_OP_TEMP", TEMPERATURE_LIMIT, "Highest memory temperature meant for normal work", new="DEV_MEMORY_MAX_OP_TEMP_CELSIUS", sem="hw.temperature.limit{hw.limit_type=max,hw.sensor_location=memory}"),
    row(152, "DEV_GPU_MAX_OP_TEMP", TEMPERATURE_LIMIT, "Highest core temperature meant for normal work", new="DEV_GPU_MAX_OP_TEMP_CELSIUS", sem="hw.temperature.limit{hw.limit_type=max,hw.sensor_location=core}"),
    row(153, "DEV_GPU_TEMP_LIMIT", MARGIN, "Degrees left before the GPU slows itself down", new="DEV_GPU_TEMP_MARGIN_CELSIUS", sem="temperature.margin"),
    row(155, "DEV_POWER_USAGE", POWER, "Power drawn by the GPU board, a one-second average on most GPUs", new="DEV_BOARD_POWER_WATTS", sem="hw.power{hw.type=gpu}", default=True),
    row(156, "DEV_TOTAL_ENERGY_CONSUMPTION", ENERGY, "Energy used since the driver was loaded", base="DEV_GPU_ENERGY_JOULES_TOTAL", sem="hw.energy{hw.type=gpu}", default=True),
    row(157, "DEV_POWER_USAGE_INSTANT", POWER, "Power drawn by the GPU board at this moment", new="DEV_BOARD_POWER_RAW_WATTS", sem="power.instant"),
    row(158, "DEV_SLOWDOWN_TEMP", TEMPERATURE_LIMIT, "Core temperature at which the hardware slows the clocks", new="DEV_GPU_TEMP_SLOWDOWN_CELSIUS", sem="hw.temperature.limit{hw.limit_type=throttled,hw.sensor_location=core}"),
    row(159, "DEV_SHUTDOWN_TEMP", TEMPERATURE_LIMIT, "Core temperature at which the GPU turns itself off", new="DEV_GPU_TEMP_SHUTDOWN_CELSIUS", sem="hw.temperature.limit{hw.limit_type=critical,hw.sensor_location=core}"),
    row(160, "DEV_POWER_MGMT_LIMIT", POWER, "Power limit that the administrator set", new="DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS", sem="power.limit{limit=requested}"),
    row(161, "DEV_POWER_MGMT_LIMIT_MIN", POWER, "Lowest power limit that may be set", new="DEV_BOARD_POWER_LIMIT_MIN_WATTS", sem="power.limit{limit=min}"),
    row(162, "DEV_POWER_MGMT_LIMIT_MAX", POWER, "Highest power limit that may be set", new="DEV_BOARD_POWER_LIMIT_MAX_WATTS", sem="power.limit{limit=max}"),
    row(163, "DEV_POWER_MGMT_LIMIT_DEF", POWER, "Power limit the board came with", new="DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS", sem="power.limit{limit=default}"),
    row(164, "DEV_ENFORCED_POWER_LIMIT", POWER, "Power limit in force, the lowest of all limiters", new="DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS", sem="power.limit{limit=enforced}"),
    row(165, "DEV_REQUESTED_POWER_PROFILE_MASK", BINARY, "Workload power profiles that were asked for", new="DEV_BOARD_POWER_PROFILE_REQUESTED_MASK"),
    row(166, "DEV_ENFORCED_POWER_PROFILE_MASK", BINARY, "Workload power profiles in force", new="DEV_BOARD_POWER_PROFILE_ENFORCED_MASK"),
    row(167, "DEV_VALID_POWER_PROFILE_MASK", BINARY, "Workload power profiles this GPU knows", new="DEV_BOARD_POWER_PROFILE_SUPPORTED_MASK"),
)
_FABRIC_AND_STATE = (
    row(170, "DEV_FABRIC_MANAGER_STATUS", state(255), "How far the GPU got in joining the NVLink fabric", sem="fabric.state"),
    row(171, "DEV_FABRIC_MANAGER_ERROR_CODE", STATE, "Why joining the NVLink fabric failed, 0 when it did not", new="DEV_FABRIC_MANAGER_ERROR", sem="fabric.error"),
    row(172, "DEV_FABRIC_CLUSTER_UUID", TEXT, "UUID of the NVLink fabric cluster the GPU belongs to"),
    row(173, "DEV_FABRIC_CLIQUE_ID", STATE, "Clique of the NVLink fabric within which GPUs reach each other", sem="fabric.clique_id"),
    row(174, "DEV_FABRIC_HEALTH_MASK", STATE, "Health of the NVLink fabric, two bits for each concern", sem="fabric.health.mask"),
    row(175, "DEV_FABRIC_HEALTH_SUMMARY", state(255), "Health of the NVLink fabric in one code", sem="fabric.health.summary"),
    row(190, "DEV_PSTATE", state(15), "Performance state, 0 the fastest to 15 the slowest", new="DEV_GPU_PSTATE", sem="pstate"),
    row(191, "DEV_FAN_SPEED", FAN, "Fan speed that is asked for, as a share of the nominal maximum", base="DEV_FAN_SPEED_RATIO", sem="hw.fan.speed_ratio{hw.sensor_location=gpu}"),
)
_LOAD = (
    row(200, "DEV_PCIE_TX_THROUGHPUT", PCIE_SAMPLED_RATE, "PCIe traffic from the GPU, sampled for 20 ms", sem="pcie.sampled.io.rate{network.io.direction=transmit}"),
    row(201, "DEV_PCIE_RX_THROUGHPUT", PCIE_SAMPLED_RATE, "PCIe traffic to the GPU, sampled for 20 ms", sem="pcie.sampled.io.rate{network.io.direction=receive}"),
    row(202, "DEV_PCIE_REPLAY_COUNTER", ERRORS32, "PCIe packets sent again after an error", new="DEV_PCIE_REPLAY_TOTAL", sem="hw.errors{hw.type=gpu,error.type=pcie.replay}", default=True),
    row(203, "DEV_GPU_UTIL", PERCENT, "Share of the sample window in which a kernel ran", new="DEV_GPU_UTIL_RATIO", base="DEV_GPU_UTIL_RATIO", sem="hw.gpu.utilization{hw.gpu.task=general}", default=True),
    row(204, "DEV_MEM_COPY_UTIL", PERCENT, "Share of the sample window in which GPU memory was read or written", base="DEV_MEMORY_UTIL_RATIO", sem="memory.controller.utilization", default=True),
    row(205, "DEV_ACCOUNTING_DATA", BINARY, "What each process used of the GPU, from the driver's accounting", new="DEV_PROCESS_ACCOUNTING_STATS"),
    row(206, "DEV_ENC_UTIL", PERCENT, "Share of the sample window in which the video encoder worked", base="DEV_ENC_UTIL_RATIO", sem="hw.gpu.utilization{hw.gpu.task=encoder}", default=True),
    row(207, "DEV_DEC_UTIL", PERCENT, "Share of the sample window in which the video decoder worked", base="DEV_DEC_UTIL_RATIO", sem="hw.gpu.utilization{hw.gpu.task=decoder}", default=True),
    row(210, "DEV_MEM_COPY_UTIL_SAMPLES", PERCENT_REAL, "Newest of the samples behind the memory utilisation", sem="memory.controller.utilization.sample"),
    row(211, "DEV_GPU_UTIL_SAMPLES", PERCENT_REAL, "Newest of the samples behind the GPU utilisation", sem="utilization.sample"),
    row(220, "DEV_GRAPHICS_PIDS", BINARY, "Processes with a graphics context on the GPU"),
    row(221, "DEV_COMPUTE_PIDS", BINARY, "Processes with a compute context on the GPU"),
    row(230, "DEV_XID_ERRORS", state(0xFFFF), "Code of the last XID error, 0 when there was none", new="DEV_XID_ERROR", sem="xid.last", level=_CI, default=True),
    row(235, "DEV_PCIE_MAX_LINK_GEN", state(16), "Newest PCIe generation that GPU and slot can speak", sem="pcie.link.generation.limit"),
    row(236, "DEV_PCIE_MAX_LINK_WIDTH", state(64), "Most PCIe lanes that GPU and slot can use", sem="pcie.link.width.limit"),
    row(237, "DEV_PCIE_LINK_GEN", state(16), "PCIe generation the link speaks now", sem="pcie.link.generation"),
    row(238, "DEV_PCIE_LINK_WIDTH", state(64), "PCIe lanes the link uses now", sem="pcie.link.width"),
    row(240, "DEV_POWER_VIOLATION", THROTTLED, "Time the clocks were held down by the power limit", base="DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL", sem="throttle.time{reason=power}"),
    row(241, "DEV_THERMAL_VIOLATION", THROTTLED, "Time the clocks were held down by heat", base="DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL", sem="throttle.time{reason=thermal}"),
    row(242, "DEV_SYNC_BOOST_VIOLATION", THROTTLED, "Time the clocks were held down to match a sync boost group", base="DEV_GPU_SYNC_BOOST_THROTTLE_SECONDS_TOTAL", sem="throttle.time{reason=sync_boost}"),
    row(243, "DEV_BOARD_LIMIT_VIOLATION", THROTTLED, "Time the clocks were held down by a limit of the board", base="DEV_BOARD_LIMIT_THROTTLE_SECONDS_TOTAL", sem="throttle.time{reason=board_limit}"),
    row(244, "DEV_LOW_UTIL_VIOLATION", THROTTLED, "Time the clocks were held down for lack of work", base="DEV_GPU_LOW_UTIL_THROTTLE_SECONDS_TOTAL", sem="throttle.time{reason=low_utilization}"),
    row(245, "DEV_RELIABILITY_VIOLATION", THROTTLED, "Time the clocks were held down to keep voltages reliable", base="DEV_GPU_RELIABILITY_THROTTLE_SECONDS_TOTAL", sem="throttle.time{reason=reliability}"),
    row(246, "DEV_TOTAL_APP_CLOCKS_VIOLATION", THROTTLED, "Time the clocks were below the application clocks, for any reason", base="DEV_GPU_APP_THROTTLE_SECONDS_TOTAL", sem="throttle.time{reason=below_application_clocks}"),
    row(247, "DEV_TOTAL_BASE_CLOCKS_VIOLATION", THROTTLED, "Time the clocks were below the base clocks, for any reason", base="DEV_GPU_BASE_THROTTLE_SECONDS_TOTAL", sem="throttle.time{reason=below_base_clocks}"),
)
_MEMORY = (
    row(250, "DEV_FB_TOTAL", MEMORY, "Size of the GPU memory", base="DEV_FB_CAPACITY_BYTES", sem="hw.gpu.memory.limit", level=_CI),
    row(251, "DEV_FB_FREE", MEMORY, "GPU memory still free", base="DEV_FB_FREE_BYTES", sem="memory.free", level=_CI, default=True),
    row(252, "DEV_FB_USED", MEMORY, "GPU memory in use", base="DEV_FB_USED_BYTES", sem="hw.gpu.memory.usage", level=_CI, default=True),
    row(253, "DEV_FB_RESERVED", MEMORY, "GPU memory kept by driver and firmware", base="DEV_FB_RESERVED_BYTES", sem="memory.reserved", level=_CI, default=True),
    row(254, "DEV_FB_USED_PERCENT", SHARE, "GPU memory in use, as a share of what is not reserved", new="DEV_FB_USED_RATIO", sem="hw.gpu.memory.utilization", level=_CI),
    row(285, "DEV_C2C_LINK_COUNT", state(1024), "Chip-to-chip links of the GPU", new="DEV_C2C_LINK_QUANTITY", sem="c2c.link.count"),
    row(286, "DEV_C2C_LINK_STATUS", STATE, "Whether the chip-to-chip links are up", sem="c2c.link.state"),
    row(287, "DEV_C2C_MAX_BANDWIDTH", BANDWIDTH, "Highest bandwidth of a chip-to-chip link", base="DEV_C2C_MAX_BANDWIDTH_BYTES_PER_SECOND", sem="c2c.link.bandwidth.limit"),
    row(300, "DEV_ECC_CURRENT", FLAG, "Whether memory errors are being corrected: 1 ECC on, 0 off", new="DEV_ECC_MODE", sem="ecc.enabled"),
    row(301, "DEV_ECC_PENDING", FLAG, "ECC mode after the next reset: 1 on, 0 off", sem="ecc.pending"),
)


def _ecc() -> tuple[Field, ...]:
    """Corrected (SBE) and uncorrected (DBE) errors; volatile ones since the driver was loaded, aggregate over the GPU's life."""
    bits = (("SBE", "Single-bit memory errors, corrected", "corrected"), ("DBE", "Double-bit memory errors, not correctable", "uncorrected"))
    spans = (("VOL", "since the driver was loaded", ""), ("AGG", "over the life of the GPU", "lifetime."))
    places = {
        "L1": (314, 324, "in the L1 caches", "l1"),
        "L2": (316, 326, "in the L2 cache", "l2"),
        "DEV": (318, 328, "in device memory", "device"),
        "REG": (320, 330, "in register files", "register"),
        "TEX": (322, 332, "in texture units", "texture"),
        "SHM": (334, 338, "in shared memory", "shared"),
        "CBU": (336, 340, "in convergence barrier units", "cbu"),
        "SRM": (342, 344, "in all SRAM", "sram"),
    }
    rows = []
    for offset, (bit, words, error) in enumerate(bits):
        for first, (span, when, lifetime) in zip((310, 312), spans, strict=True):
            total = "ecc.lifetime.errors{error.type=%s}" if lifetime else "hw.errors{hw.type=gpu,error.type=%s}"
            rows.append(row(first + offset, f"DEV_ECC_{bit}_{span}_TOTAL", ERRORS, f"{words}, {when}", sem=total % error))
            for place, (volatile, aggregate, where, word) in places.items():
                ident = (aggregate if lifetime else volatile) + offset
                sem = f"ecc.location.{lifetime}errors{{error.type={error},location={word}}}"
                rows.append(row(ident, f"DEV_ECC_{bit}_{span}_{place}", ERRORS, f"{words}, {where}, {when}", sem=sem))
    return tuple(rows)


def _diagnostics() -> tuple[Field, ...]:
    tests = (
        (350, "MEMORY", "GPU memory test"),
        (351, "DIAGNOSTIC", "compute diagnostic"),
        (352, "PCIE", "PCIe test"),
        (353, "TARGETED_STRESS", "targeted stress test"),
        (354, "TARGETED_POWER", "targeted power test"),
        (355, "MEMORY_BANDWIDTH", "memory bandwidth test"),
        (356, "MEMTEST", "memory pattern test"),
        (357, "PULSE_TEST", "power pulse test"),
        (358, "EUD", "extended utility diagnostic"),
        (359, "CPU_EUD", "extended utility diagnostic of the CPU"),
        (360, "SOFTWARE", "software check"),
        (361, "NVBANDWIDTH", "nvbandwidth test"),
        (363, "NCCL_TESTS", "NCCL tests"),
    )
    return tuple(
        row(ident, f"DEV_DIAG_{test}_RESULT", STATE, f"Result code of the last {words} by DCGM", sem=f"diagnostic.result{{test={test.lower()}}}", level=_ALL)
        for ident, test, words in tests
    )


_ERRORS = (
    *_ecc(),
    row(346, "DEV_THRESHOLD_SRM", FLAG, "Whether SRAM errors have passed the limit that asks for service: 1 yes, 0 no", new="DEV_SRAM_EXCEEDED", sem="ecc.sram.threshold_exceeded"),
    *_diagnostics(),
    row(362, "DEV_DIAG_STATUS", BINARY, "State of the diagnostic that runs now", level=_ALL),
    row(385, "DEV_BANKS_REMAP_ROWS_AVAIL_MAX", _BANKS, "Memory banks with all spare rows left", new="DEV_BANK_REMAP_AVAIL_MAX", sem="memory.bank.count{spare_rows=max}"),
    row(386, "DEV_BANKS_REMAP_ROWS_AVAIL_HIGH", _BANKS, "Memory banks with most spare rows left", new="DEV_BANK_REMAP_AVAIL_HIGH", sem="memory.bank.count{spare_rows=high}"),
    row(387, "DEV_BANKS_REMAP_ROWS_AVAIL_PARTIAL", _BANKS, "Memory banks with some spare rows left", new="DEV_BANK_REMAP_AVAIL_PARTIAL", sem="memory.bank.count{spare_rows=partial}"),
    row(388, "DEV_BANKS_REMAP_ROWS_AVAIL_LOW", _BANKS, "Memory banks with few spare rows left", new="DEV_BANK_REMAP_AVAIL_LOW", sem="memory.bank.count{spare_rows=low}"),
    row(389, "DEV_BANKS_REMAP_ROWS_AVAIL_NONE", _BANKS, "Memory banks without a spare row left", new="DEV_BANK_REMAP_AVAIL_NONE", sem="memory.bank.count{spare_rows=none}"),
    row(390, "DEV_RETIRED_SBE", PAGES32, "Memory pages retired after repeated single-bit errors", new="DEV_PAGE_RETIRED_SBE_TOTAL", sem="memory.page.retired{error.type=corrected}"),
    row(391, "DEV_RETIRED_DBE", PAGES32, "Memory pages retired after a double-bit error", new="DEV_PAGE_RETIRED_DBE_TOTAL", sem="memory.page.retired{error.type=uncorrected}"),
    row(392, "DEV_RETIRED_PENDING", STATE, "Whether memory pages wait for the next reset to be retired", new="DEV_PAGE_RETIRED_PENDING", sem="memory.page.retirement.pending", kind=Kind.COUNTER),
    row(393, "DEV_UNCORRECTABLE_REMAPPED_ROWS", ROWS32, "Memory rows remapped after uncorrectable errors", new="DEV_ROW_REMAP_UNCORRECTABLE_TOTAL", sem="memory.row.remapped{error.type=uncorrected}", default=True),
    row(394, "DEV_CORRECTABLE_REMAPPED_ROWS", ROWS32, "Memory rows remapped after correctable errors", new="DEV_ROW_REMAP_CORRECTABLE_TOTAL", sem="memory.row.remapped{error.type=corrected}", default=True),
    row(395, "DEV_ROW_REMAP_FAILURE", FLAG, "Whether remapping a memory row has failed: 1 yes, 0 no", new="DEV_ROW_REMAP_FAILED", sem="memory.row.remap.failed", default=True),
    row(396, "DEV_ROW_REMAP_PENDING", FLAG, "Whether remapped rows wait for the next reset: 1 yes, 0 no", sem="memory.row.remap.pending"),
)

_WATTS = real("W", 3000)
_RAMP = real("mW/s", 1e9)
_HYSTERESIS = gauge("ms", INT32_HIGHEST)
_LATER = (
    row(1400, "DEV_C2C_LINK_ERROR_INTR", ERRORS, "Errors that interrupted the chip-to-chip links", sem="c2c.errors{error.type=interrupt}"),
    row(1401, "DEV_C2C_LINK_ERROR_REPLAY", ERRORS, "Replays on the chip-to-chip links", sem="c2c.errors{error.type=replay}"),
    row(1402, "DEV_C2C_LINK_ERROR_REPLAY_B2B", ERRORS, "Replays on the chip-to-chip links that followed one another at once", sem="c2c.errors{error.type=replay_back_to_back}"),
    row(1403, "DEV_C2C_LINK_POWER_STATE", STATE, "Power state of the chip-to-chip links", sem="c2c.link.power_state"),
    row(1420, "DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", THROTTLED, "Time with clocks lowered by software to stay within the power limit", sem="clock.event.time{reason=sw_power_cap}"),
    row(1421, "DEV_CLOCKS_EVENT_REASON_SYNC_BOOST_NS", THROTTLED, "Time with clocks lowered to match the slowest GPU of a sync boost group", sem="clock.event.time{reason=sync_boost}"),
    row(1422, "DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS", THROTTLED, "Time with clocks lowered by software to stay below a temperature", sem="clock.event.time{reason=sw_thermal}"),
    row(1423, "DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS", THROTTLED, "Time with clocks at half or less by hardware, for heat", sem="clock.event.time{reason=hw_thermal}"),
    row(1424, "DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS", THROTTLED, "Time with clocks at half or less by hardware, on the power brake signal", sem="clock.event.time{reason=hw_power_brake}"),
    row(1425, "DEV_PWR_SMOOTHING_ENABLED", FLAG, "Whether power smoothing is on: 1 yes, 0 no", sem="power_smoothing.enabled"),
    row(1426, "DEV_PWR_SMOOTHING_PRIV_LVL", STATE, "Privilege level for power smoothing", sem="power_smoothing.privilege_level"),
    row(1427, "DEV_PWR_SMOOTHING_IMM_RAMP_DOWN_ENABLED", FLAG, "Whether power may fall at once: 1 yes, 0 no", sem="power_smoothing.immediate_ramp_down"),
    row(1428, "DEV_PWR_SMOOTHING_APPLIED_TMP_CEIL", _WATTS, "Ceiling on total module power that smoothing applies", sem="power_smoothing.applied.ceiling"),
    row(1429, "DEV_PWR_SMOOTHING_APPLIED_TMP_FLOOR", _WATTS, "Floor under total module power that smoothing applies", sem="power_smoothing.applied.floor"),
    row(1430, "DEV_PWR_SMOOTHING_MAX_PERCENT_TMP_FLOOR_SETTING", PERCENT_REAL, "Highest power floor that may be set", sem="power_smoothing.floor.max"),
    row(1431, "DEV_PWR_SMOOTHING_MIN_PERCENT_TMP_FLOOR_SETTING", PERCENT_REAL, "Lowest power floor that may be set", sem="power_smoothing.floor.min"),
    row(1432, "DEV_PWR_SMOOTHING_HW_CIRCUITRY_PERCENT_LIFETIME_REMAINING", PERCENT_REAL, "Life left in the smoothing hardware", sem="power_smoothing.lifetime_remaining"),
    row(1433, "DEV_PWR_SMOOTHING_MAX_NUM_PRESET_PROFILES", STATE, "Preset smoothing profiles this GPU has room for", sem="power_smoothing.profile.limit"),
    row(1434, "DEV_PWR_SMOOTHING_PROFILE_PERCENT_TMP_FLOOR", PERCENT_REAL, "Power floor of the active profile", sem="power_smoothing.profile.floor"),
    row(1435, "DEV_PWR_SMOOTHING_PROFILE_RAMP_UP_RATE", _RAMP, "How fast the active profile lets power rise", sem="power_smoothing.profile.ramp_up"),
    row(1436, "DEV_PWR_SMOOTHING_PROFILE_RAMP_DOWN_RATE", _RAMP, "How fast the active profile lets power fall", sem="power_smoothing.profile.ramp_down"),
    row(1437, "DEV_PWR_SMOOTHING_PROFILE_RAMP_DOWN_HYST_VAL", _HYSTERESIS, "How long the active profile waits before power falls", sem="power_smoothing.profile.ramp_down.hysteresis"),
    row(1438, "DEV_PWR_SMOOTHING_ACTIVE_PRESET_PROFILE", STATE, "Number of the active preset smoothing profile", sem="power_smoothing.profile.active"),
    row(1439, "DEV_PWR_SMOOTHING_ADMIN_OVERRIDE_PERCENT_TMP_FLOOR", PERCENT_REAL, "Power floor that the administrator put over the profile", sem="power_smoothing.override.floor"),
    row(1440, "DEV_PWR_SMOOTHING_ADMIN_OVERRIDE_RAMP_UP_RATE", _RAMP, "How fast power may rise by order of the administrator", sem="power_smoothing.override.ramp_up"),
    row(1441, "DEV_PWR_SMOOTHING_ADMIN_OVERRIDE_RAMP_DOWN_RATE", _RAMP, "How fast power may fall by order of the administrator", sem="power_smoothing.override.ramp_down"),
    row(1442, "DEV_PWR_SMOOTHING_ADMIN_OVERRIDE_RAMP_DOWN_HYST_VAL", _HYSTERESIS, "Wait before power falls by order of the administrator", sem="power_smoothing.override.ramp_down.hysteresis"),
    row(1501, "DEV_PCIE_COUNT_CORRECTABLE_ERRORS", ERRORS, "PCIe errors that the link corrected", new="DEV_PCIE_CORRECTABLE_ERROR_TOTAL", sem="hw.errors{hw.type=gpu,error.type=pcie.corrected}"),
    row(1502, "IMEX_DOMAIN_STATUS", TEXT, "State of the IMEX domain, which shares GPU memory between nodes", level=_ALL),
    row(1503, "IMEX_DAEMON_STATUS", state(255, -1), "State code of the IMEX daemon on this node", sem="imex.daemon.state", level=_ALL),
    row(1507, "DEV_MEMORY_UNREPAIRABLE_FLAG", FLAG, "Whether the GPU memory has damage that cannot be repaired: 1 yes, 0 no", new="DEV_MEMORY_UNREPAIRABLE", sem="memory.unrepairable"),
    row(1523, "DEV_GET_GPU_RECOVERY_ACTION", state(255), "What the driver asks for to get the GPU healthy again, 0 for nothing", new="DEV_GPU_RECOVERY_ACTION", sem="recovery_action"),
)

ROWS = (*_CLOCKS, *_HEAT_AND_POWER, *_FABRIC_AND_STATE, *_LOAD, *_MEMORY, *_ERRORS, *_LATER)
# fmt: on
