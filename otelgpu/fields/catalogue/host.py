"""Grace CPUs and ConnectX adapters beside the GPUs; only DCGM reads them (ids 1100 to 1310)."""

from otelgpu.fields.maker import row
from otelgpu.fields.measures import MASK, SHARE, STATE, TEXT, gauge, real, state
from otelgpu.fields.row import Level

_CPU = Level.CPU
_CORE = Level.CORE
_CX = Level.CONNECTX
_CELSIUS = real("Cel", 250, -60)
_WATTS = real("W", 10_000)

# fmt: off
ROWS = (
    row(1100, "DEV_CPU_UTIL_TOTAL", SHARE, "Share of time the CPU core was busy", sem="cpu.utilization", level=_CORE),
    row(1101, "DEV_CPU_UTIL_USER", SHARE, "Share of time the CPU core ran programs", sem="cpu.mode.utilization{mode=user}", level=_CORE),
    row(1102, "DEV_CPU_UTIL_NICE", SHARE, "Share of time the CPU core ran programs of low priority", sem="cpu.mode.utilization{mode=nice}", level=_CORE),
    row(1103, "DEV_CPU_UTIL_SYS", SHARE, "Share of time the CPU core ran the kernel", sem="cpu.mode.utilization{mode=system}", level=_CORE),
    row(1104, "DEV_CPU_UTIL_IRQ", SHARE, "Share of time the CPU core served interrupts", sem="cpu.mode.utilization{mode=interrupt}", level=_CORE),
    row(1110, "DEV_CPU_TEMP_CURRENT", _CELSIUS, "Temperature of the CPU", new="DEV_CPU_TEMP_CELSIUS", sem="cpu.temperature", level=_CPU),
    row(1111, "DEV_CPU_TEMP_WARNING", _CELSIUS, "CPU temperature that calls for attention", new="DEV_CPU_TEMP_WARNING_CELSIUS", sem="cpu.temperature.limit{hw.limit_type=high.degraded}", level=_CPU),
    row(1112, "DEV_CPU_TEMP_CRITICAL", _CELSIUS, "CPU temperature that endangers the hardware", new="DEV_CPU_TEMP_CRITICAL_CELSIUS", sem="cpu.temperature.limit{hw.limit_type=high.critical}", level=_CPU),
    row(1120, "DEV_CPU_CLOCK_CURRENT", gauge("kHz", 20_000_000), "Clock of the CPU core", sem="cpu.clock.frequency", level=_CORE),
    row(1130, "DEV_CPU_POWER_UTIL_CURRENT", _WATTS, "Power drawn by the CPU", new="DEV_CPU_POWER_WATTS", sem="cpu.power", level=_CPU),
    row(1131, "DEV_CPU_POWER_LIMIT", _WATTS, "Power limit of the CPU", new="DEV_CPU_POWER_LIMIT_WATTS", sem="cpu.power.limit", level=_CPU),
    row(1132, "DEV_SYSIO_POWER_UTIL_CURRENT", _WATTS, "Power drawn by the input and output part of the CPU", sem="sysio.power", level=_CPU),
    row(1133, "DEV_MODULE_POWER_UTIL_CURRENT", _WATTS, "Power drawn by the module that carries CPU and GPUs", sem="module.power", level=_CPU),
    row(1140, "DEV_CPU_VENDOR", TEXT, "Maker of the CPU", level=_CPU),
    row(1141, "DEV_CPU_MODEL", TEXT, "Model of the CPU", level=_CPU),
    row(1300, "DEV_CONNECTX_HEALTH", STATE, "Health code of the adapter", sem="connectx.health", level=_CX),
    row(1301, "DEV_CONNECTX_ACTIVE_PCIE_LINK_WIDTH", state(64), "PCIe lanes the adapter uses now", sem="connectx.pcie.link.width", level=_CX),
    row(1302, "DEV_CONNECTX_ACTIVE_PCIE_LINK_SPEED", STATE, "PCIe speed the adapter's link runs at", sem="connectx.pcie.link.speed", level=_CX),
    row(1303, "DEV_CONNECTX_EXPECT_PCIE_LINK_WIDTH", state(64), "PCIe lanes the adapter should use", sem="connectx.pcie.link.width.expected", level=_CX),
    row(1304, "DEV_CONNECTX_EXPECT_PCIE_LINK_SPEED", STATE, "PCIe speed the adapter's link should run at", sem="connectx.pcie.link.speed.expected", level=_CX),
    row(1305, "DEV_CONNECTX_CORRECTABLE_ERR_STATUS", MASK, "Correctable PCIe errors the adapter reports, a bit each", sem="connectx.pcie.corrected.status", level=_CX),
    row(1306, "DEV_CONNECTX_CORRECTABLE_ERR_MASK", MASK, "Correctable PCIe errors the adapter keeps to itself, a bit each", sem="connectx.pcie.corrected.mask", level=_CX),
    row(1307, "DEV_CONNECTX_UNCORRECTABLE_ERR_STATUS", MASK, "Uncorrectable PCIe errors the adapter reports, a bit each", new="DEV_CONNECTX_UNCORRECTABLE_ERROR_STATUS", sem="connectx.pcie.uncorrected.status", level=_CX),
    row(1308, "DEV_CONNECTX_UNCORRECTABLE_ERR_MASK", MASK, "Uncorrectable PCIe errors the adapter keeps to itself, a bit each", new="DEV_CONNECTX_UNCORRECTABLE_ERROR_MASK", sem="connectx.pcie.uncorrected.mask", level=_CX),
    row(1309, "DEV_CONNECTX_UNCORRECTABLE_ERR_SEVERITY", MASK, "Which uncorrectable PCIe errors the adapter holds fatal, a bit each", new="DEV_CONNECTX_UNCORRECTABLE_ERROR_SEVERITY", sem="connectx.pcie.uncorrected.severity", level=_CX),
    row(1310, "DEV_CONNECTX_DEVICE_TEMPERATURE", _CELSIUS, "Temperature of the adapter", sem="connectx.temperature", level=_CX),
)
# fmt: on
