"""NVSwitch chips and their links; only DCGM reads them (ids 701 to 878 and 1524).

The switch documents no unit for its throughput counters and currents: they are shown as they are.
"""

from collections.abc import Iterator

from otelgpu.fields.maker import row
from otelgpu.fields.measures import ERRORS, INT32_HIGHEST, PACKETS, STATE, TEMPERATURE, TEXT, count, gauge, state
from otelgpu.fields.row import Field, Level

_S = Level.SWITCH
_L = Level.LINK
_TX = "network.io.direction=transmit"
_RX = "network.io.direction=receive"
_UNITS = count("{unit}")
_SAMPLES = count("{sample}")
_WATTS = gauge("W", 3000)
_ANY = gauge("1", INT32_HIGHEST)


def _latencies() -> Iterator[Field]:
    """Packets by how long they took, in the four bands that the switch is set up with, for each virtual channel."""
    for first, band in ((789, "LOW"), (793, "MEDIUM"), (797, "HIGH"), (801, "PANIC")):
        for channel in range(4):
            yield row(
                first + channel,
                f"DEV_NVSWITCH_LINK_LATENCY_{band}_VC{channel}",
                PACKETS,
                f"Packets on virtual channel {channel} with {band.lower()} latency",
                sem=f"nvswitch.link.latency.packets{{band={band.lower()},channel={channel}}}",
                level=_L,
            )
    for channel in range(4):
        yield row(
            805 + channel,
            f"DEV_NVSWITCH_LINK_LATENCY_COUNT_VC{channel}",
            _SAMPLES,
            f"Packets on virtual channel {channel} whose latency was taken",
            new=f"DEV_NVSWITCH_LINK_LATENCY_SAMPLE_VC{channel}_TOTAL",
            sem=f"nvswitch.link.latency.samples{{channel={channel}}}",
            level=_L,
        )


def _lanes() -> Iterator[Field]:
    for error, lots, words in (("CRC", (809, 817), "Wrong checksums"), ("ECC", (813, 821), "Bit errors found by ECC")):
        for lane in range(8):
            yield row(
                lots[lane // 4] + lane % 4,
                f"DEV_NVSWITCH_LINK_{error}_ERRORS_LANE{lane}",
                ERRORS,
                f"{words} on lane {lane} of the switch link",
                new=f"DEV_NVSWITCH_LINK_{error}_ERROR_L{lane}_TOTAL",
                sem=f"nvswitch.link.lane.errors{{error.type={error.lower()},lane={lane}}}",
                level=_L,
            )


# fmt: off
_SWITCH = (
    row(701, "DEV_NVSWITCH_VOLTAGE_MVOLT", gauge("mV", 20_000), "Core voltage of the switch", sem="nvswitch.voltage", level=_S),
    row(702, "DEV_NVSWITCH_CURRENT_IDDQ", _ANY, "Leakage current of the switch core", sem="nvswitch.leakage{rail=vdd}", level=_S),
    row(703, "DEV_NVSWITCH_CURRENT_IDDQ_REV", _ANY, "Revision of the leakage figure", sem="nvswitch.leakage.revision", level=_S),
    row(704, "DEV_NVSWITCH_CURRENT_IDDQ_DVDD", _ANY, "Leakage current of the switch's digital rail", sem="nvswitch.leakage{rail=dvdd}", level=_S),
    row(705, "DEV_NVSWITCH_POWER_VDD", _WATTS, "Power of the switch core", new="DEV_NVSWITCH_POWER_VDD_WATTS", sem="nvswitch.power{rail=vdd}", level=_S),
    row(706, "DEV_NVSWITCH_POWER_DVDD", _WATTS, "Power of the switch's digital rail", new="DEV_NVSWITCH_POWER_DVDD_WATTS", sem="nvswitch.power{rail=dvdd}", level=_S),
    row(707, "DEV_NVSWITCH_POWER_HVDD", _WATTS, "Power of the switch's high voltage rail", new="DEV_NVSWITCH_POWER_HVDD_WATTS", sem="nvswitch.power{rail=hvdd}", level=_S),
    row(856, "DEV_NVSWITCH_FATAL_ERRORS", STATE, "Code of the last fatal error of the switch (SXid)", new="DEV_SXID_FATAL_ERROR", sem="nvswitch.sxid.last{severity=fatal}", level=_S),
    row(857, "DEV_NVSWITCH_NON_FATAL_ERRORS", STATE, "Code of the last error that the switch survived (SXid)", new="DEV_SXID_NON_FATAL_ERROR", sem="nvswitch.sxid.last{severity=non_fatal}", level=_S),
    row(858, "DEV_NVSWITCH_TEMPERATURE_CURRENT", TEMPERATURE, "Temperature of the switch", new="DEV_NVSWITCH_TEMP_CELSIUS", sem="nvswitch.temperature", level=_S),
    row(859, "DEV_NVSWITCH_TEMPERATURE_LIMIT_SLOWDOWN", TEMPERATURE, "Temperature at which the switch slows down", new="DEV_NVSWITCH_TEMP_SLOWDOWN_CELSIUS", sem="nvswitch.temperature.limit{hw.limit_type=throttled}", level=_S),
    row(860, "DEV_NVSWITCH_TEMPERATURE_LIMIT_SHUTDOWN", TEMPERATURE, "Temperature at which the switch turns itself off", new="DEV_NVSWITCH_TEMP_SHUTDOWN_CELSIUS", sem="nvswitch.temperature.limit{hw.limit_type=critical}", level=_S),
    row(861, "DEV_NVSWITCH_THROUGHPUT_TX", _UNITS, "Traffic sent by all links of the switch, in its own unit", sem=f"nvswitch.throughput{{{_TX}}}", level=_S),
    row(862, "DEV_NVSWITCH_THROUGHPUT_RX", _UNITS, "Traffic received by all links of the switch, in its own unit", sem=f"nvswitch.throughput{{{_RX}}}", level=_S),
    row(863, "DEV_NVSWITCH_PHYS_ID", STATE, "Number of the switch on its board", new="DEV_NVSWITCH_PHYSICAL_ID", sem="nvswitch.physical_id", level=_S),
    row(864, "DEV_NVSWITCH_RESET_REQUIRED", state(255), "Whether the switch needs a reset: 1 yes, 0 no", sem="nvswitch.reset_required", level=_S),
    row(866, "DEV_NVSWITCH_PCIE_DOMAIN", STATE, "PCI domain of the switch", sem="nvswitch.pci.domain", level=_S),
    row(867, "DEV_NVSWITCH_PCIE_BUS", STATE, "PCI bus of the switch", sem="nvswitch.pci.bus", level=_S),
    row(868, "DEV_NVSWITCH_PCIE_DEVICE", STATE, "PCI device number of the switch", sem="nvswitch.pci.device", level=_S),
    row(869, "DEV_NVSWITCH_PCIE_FUNCTION", STATE, "PCI function of the switch", sem="nvswitch.pci.function", level=_S),
    row(1524, "DEV_NVSWITCH_FIRMWARE_VERSION", TEXT, "Version of the switch firmware", level=_S),
)
_LINK = (
    row(780, "DEV_NVSWITCH_LINK_THROUGHPUT_TX", _UNITS, "Traffic sent on the switch link, in its own unit", sem=f"nvswitch.link.throughput{{{_TX}}}", level=_L),
    row(781, "DEV_NVSWITCH_LINK_THROUGHPUT_RX", _UNITS, "Traffic received on the switch link, in its own unit", sem=f"nvswitch.link.throughput{{{_RX}}}", level=_L),
    row(782, "DEV_NVSWITCH_LINK_FATAL_ERRORS", ERRORS, "Errors that took the switch link down", sem="nvswitch.link.errors{error.type=fatal}", level=_L),
    row(783, "DEV_NVSWITCH_LINK_NON_FATAL_ERRORS", ERRORS, "Errors that the switch link survived", sem="nvswitch.link.errors{error.type=non_fatal}", level=_L),
    row(784, "DEV_NVSWITCH_LINK_REPLAY_ERRORS", ERRORS, "Packets sent again on the switch link", new="DEV_NVSWITCH_LINK_REPLAY_ERROR_TOTAL", sem="nvswitch.link.errors{error.type=replay}", level=_L),
    row(785, "DEV_NVSWITCH_LINK_RECOVERY_ERRORS", ERRORS, "Retrainings of the switch link", new="DEV_NVSWITCH_LINK_RECOVERY_ERROR_TOTAL", sem="nvswitch.link.errors{error.type=recovery}", level=_L),
    row(786, "DEV_NVSWITCH_LINK_FLIT_ERRORS", ERRORS, "Flow control errors on the switch link", new="DEV_NVSWITCH_LINK_FLIT_ERROR_TOTAL", sem="nvswitch.link.errors{error.type=flit}", level=_L),
    row(787, "DEV_NVSWITCH_LINK_CRC_ERRORS", ERRORS, "Wrong checksums on the switch link", new="DEV_NVSWITCH_LINK_CRC_ERROR_TOTAL", sem="nvswitch.link.errors{error.type=crc}", level=_L),
    row(788, "DEV_NVSWITCH_LINK_ECC_ERRORS", ERRORS, "Bit errors found by ECC on the switch link", new="DEV_NVSWITCH_LINK_ECC_ERROR_TOTAL", sem="nvswitch.link.errors{error.type=ecc}", level=_L),
    row(865, "DEV_NVSWITCH_LINK_ID", STATE, "Number of the link on its switch", sem="nvswitch.link.id", level=_L),
    row(870, "DEV_NVSWITCH_LINK_STATUS", state(255, -1), "State of the switch link", sem="nvswitch.link.state", level=_L),
    row(871, "DEV_NVSWITCH_LINK_TYPE", state(255, -1), "What the switch link leads to: a GPU or a switch", sem="nvswitch.link.type", level=_L),
    row(872, "DEV_NVSWITCH_LINK_REMOTE_PCIE_DOMAIN", STATE, "PCI domain of the device at the other end", sem="nvswitch.link.remote.pci.domain", level=_L),
    row(873, "DEV_NVSWITCH_LINK_REMOTE_PCIE_BUS", STATE, "PCI bus of the device at the other end", sem="nvswitch.link.remote.pci.bus", level=_L),
    row(874, "DEV_NVSWITCH_LINK_REMOTE_PCIE_DEVICE", STATE, "PCI device number of the device at the other end", sem="nvswitch.link.remote.pci.device", level=_L),
    row(875, "DEV_NVSWITCH_LINK_REMOTE_PCIE_FUNCTION", STATE, "PCI function of the device at the other end", sem="nvswitch.link.remote.pci.function", level=_L),
    row(876, "DEV_NVSWITCH_LINK_DEVICE_LINK_ID", STATE, "Number of the link at the other end", new="DEV_NVSWITCH_LINK_REMOTE_LINK_ID", sem="nvswitch.link.remote.id", level=_L),
    row(877, "DEV_NVSWITCH_LINK_DEVICE_LINK_SID", TEXT, "Session id of the link at the other end", new="DEV_NVSWITCH_LINK_REMOTE_LINK_SID", level=_L),
    row(878, "DEV_NVSWITCH_DEVICE_UUID", TEXT, "UUID of the switch", new="DEV_NVSWITCH_UUID", level=_L),
)
# fmt: on

ROWS = (*_SWITCH, *_LINK, *_latencies(), *_lanes())
