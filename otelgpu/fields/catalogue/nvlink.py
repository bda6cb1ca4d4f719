"""NVLink as the GPU sees it: traffic, errors and recovery, in total and per link (ids 400 to 499, 580 to 592 and later)."""

from collections.abc import Iterator

from otelgpu.fields.maker import row
from otelgpu.fields.measures import (
    BYTES_TOTAL,
    ERRORS,
    EVENTS,
    LINK_RATE,
    NVLINK_RATE,
    PACKETS,
    SHARE,
    STATE,
    count,
    gauge,
    state,
)
from otelgpu.fields.row import Field, Kind, Level

_TX = "network.io.direction=transmit"
_RX = "network.io.direction=receive"
_CODES = count("{code}")
_BER = state(0xFFF)
_TICKS = count("{tick}")
_BLOCKS = count("{block}")
_MICROSECONDS = gauge("us", 2**62)


def _link_ids(zero: int, six: int, twelve: int, fifteen: int) -> Iterator[tuple[int, int]]:
    """Link number and field id: DCGM gave out ids for links 0-5, 6-11, 12-14 and 15-17 in four lots."""
    lots = ((range(6), zero), (range(6, 12), six), (range(12, 15), twelve), (range(15, 18), fifteen))
    for links, first in lots:
        for link in links:
            yield link, first + link - links.start


def _errors() -> Iterator[Field]:
    """Error counters of NVLink 1 to 3, a total and one for each link."""
    families = (
        ("CRC_FLIT", (400, 451, 406, 481), 409, "Flow control packets with a wrong checksum", "nvlink.crc.flit"),
        ("CRC_DATA", (410, 457, 416, 484), 419, "Data packets with a wrong checksum", "nvlink.crc.data"),
        ("REPLAY", (420, 463, 426, 487), 429, "Packets sent again", "nvlink.replay"),
        ("RECOVERY", (430, 469, 436, 491), 439, "Retrainings after an error", "nvlink.recovery"),
    )
    for family, lots, total, words, error in families:
        yield row(
            total,
            f"DEV_NVLINK_{family}_ERROR_COUNT_TOTAL",
            ERRORS,
            f"{words}, all NVLinks of the GPU",
            new=f"DEV_NVLINK_{family}_ERROR_TOTAL",
            sem=f"hw.errors{{hw.type=gpu,error.type={error}}}",
        )
        for link, ident in _link_ids(*lots):
            yield row(
                ident,
                f"DEV_NVLINK_{family}_ERROR_COUNT_L{link}",
                ERRORS,
                f"{words}, NVLink {link}",
                new=f"DEV_NVLINK_{family}_ERROR_L{link}_TOTAL",
                sem=f"nvlink.link.errors{{link={link},error.type={error}}}",
            )


def _rates() -> Iterator[Field]:
    """Traffic per link. dcgm-exporter declares link 0 a counter though it is a rate; its family follows."""
    for link, ident in _link_ids(440, 475, 446, 494):
        yield row(
            ident,
            f"DEV_NVLINK_BANDWIDTH_L{link}",
            LINK_RATE,
            f"Traffic in both directions on NVLink {link}",
            new=f"DEV_NVLINK_THROUGHPUT_L{link}",
            base=f"DEV_NVLINK_THROUGHPUT_L{link}_BYTES_PER_SECOND",
            sem=f"nvlink.link.throughput{{link={link}}}",
            kind=Kind.COUNTER,
        )
    for link in range(18):
        for first, way, words, direction in ((825, "TX", "from", _TX), (879, "RX", "to", _RX)):
            yield row(
                first + link,
                f"DEV_NVLINK_{way}_BANDWIDTH_L{link}",
                LINK_RATE,
                f"Traffic {words} the GPU on NVLink {link}",
                new=f"DEV_NVLINK_{way}_THROUGHPUT_L{link}",
                sem=f"nvlink.link.io.rate{{link={link},{direction}}}",
            )


def _fec() -> Iterator[Field]:
    for errors in range(16):
        yield row(
            1404 + errors,
            f"DEV_NVLINK_COUNT_FEC_HISTORY_{errors}",
            _BLOCKS,
            f"Blocks in which forward error correction mended {errors} symbols",
            sem=f"nvlink.fec.blocks{{mended={errors}}}",
        )


# fmt: off
_TOTALS = (
    row(449, "DEV_NVLINK_BANDWIDTH_TOTAL", NVLINK_RATE, "Traffic in both directions on all NVLinks", new="DEV_NVLINK_THROUGHPUT_TOTAL", base="DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND", sem="nvlink.throughput", kind=Kind.COUNTER, default=True),
    row(843, "DEV_NVLINK_TX_BANDWIDTH_TOTAL", NVLINK_RATE, "Traffic from the GPU on all NVLinks", new="DEV_NVLINK_TX_THROUGHPUT_TOTAL", sem=f"nvlink.io.rate{{{_TX}}}"),
    row(897, "DEV_NVLINK_RX_BANDWIDTH_TOTAL", NVLINK_RATE, "Traffic to the GPU on all NVLinks", new="DEV_NVLINK_RX_THROUGHPUT_TOTAL", sem=f"nvlink.io.rate{{{_RX}}}"),
    row(450, "DEV_GPU_NVLINK_ERRORS", STATE, "Code of the last NVLink error", new="DEV_NVLINK_ERROR", sem="nvlink.error.last"),
    row(497, "DEV_NVLINK_ERROR_DL_CRC", ERRORS, "Wrong checksums in the data link layer, all NVLinks", new="DEV_NVLINK_CRC_ERROR_TOTAL", sem="hw.errors{hw.type=gpu,error.type=nvlink.crc}"),
    row(498, "DEV_NVLINK_ERROR_DL_RECOVERY", ERRORS, "Retrainings of the data link layer, all NVLinks", new="DEV_NVLINK_RECOVERY_TOTAL", sem="hw.errors{hw.type=gpu,error.type=nvlink.dl.recovery}"),
    row(499, "DEV_NVLINK_ERROR_DL_REPLAY", ERRORS, "Packets sent again by the data link layer, all NVLinks", new="DEV_NVLINK_REPLAY_TOTAL", sem="hw.errors{hw.type=gpu,error.type=nvlink.dl.replay}"),
)
# Counters of NVLink 5.
_NVLINK5 = (
    row(1200, "DEV_NVLINK_COUNT_TX_PACKETS", PACKETS, "Packets sent over NVLink", new="DEV_NVLINK_TX_PACKET_TOTAL", sem=f"nvlink.packets{{{_TX}}}"),
    row(1201, "DEV_NVLINK_COUNT_TX_BYTES", BYTES_TOTAL, "Bytes sent over NVLink", new="DEV_NVLINK_TX_BYTES_TOTAL", sem=f"nvlink.io{{{_TX}}}"),
    row(1202, "DEV_NVLINK_COUNT_RX_PACKETS", PACKETS, "Packets received over NVLink", new="DEV_NVLINK_RX_PACKET_TOTAL", sem=f"nvlink.packets{{{_RX}}}"),
    row(1203, "DEV_NVLINK_COUNT_RX_BYTES", BYTES_TOTAL, "Bytes received over NVLink", new="DEV_NVLINK_RX_BYTES_TOTAL", sem=f"nvlink.io{{{_RX}}}"),
    row(1204, "DEV_NVLINK_COUNT_RX_MALFORMED_PACKET_ERRORS", ERRORS, "Malformed packets received over NVLink", new="DEV_NVLINK_RX_PACKET_MALFORMED_TOTAL", sem="hw.errors{hw.type=gpu,error.type=nvlink.malformed}"),
    row(1205, "DEV_NVLINK_COUNT_RX_BUFFER_OVERRUN_ERRORS", ERRORS, "NVLink packets dropped because the receive buffer was full", new="DEV_NVLINK_RX_PACKET_DROPPED_TOTAL", sem="hw.errors{hw.type=gpu,error.type=nvlink.buffer_overrun}"),
    row(1206, "DEV_NVLINK_COUNT_RX_ERRORS", ERRORS, "NVLink packets received with an error", new="DEV_NVLINK_RX_ERROR_TOTAL", sem="hw.errors{hw.type=gpu,error.type=nvlink.receive}"),
    row(1207, "DEV_NVLINK_COUNT_RX_REMOTE_ERRORS", ERRORS, "NVLink packets that the other end had marked as bad", new="DEV_NVLINK_RX_REMOTE_ERROR_TOTAL", sem="hw.errors{hw.type=gpu,error.type=nvlink.remote}"),
    row(1208, "DEV_NVLINK_COUNT_RX_GENERAL_ERRORS", ERRORS, "NVLink packets received with a header that made no sense", new="DEV_NVLINK_RX_GENERAL_ERROR_TOTAL", sem="hw.errors{hw.type=gpu,error.type=nvlink.general}"),
    row(1209, "DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS", ERRORS, "Times this end of an NVLink passed its error threshold", new="DEV_NVLINK_INTEGRITY_ERROR_TOTAL", sem="hw.errors{hw.type=gpu,error.type=nvlink.integrity}"),
    row(1210, "DEV_NVLINK_COUNT_TX_DISCARDS", PACKETS, "NVLink packets dropped before they were sent", sem="nvlink.transmit.discards"),
    row(1211, "DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS", EVENTS, "NVLink recoveries that worked", new="DEV_NVLINK_RECOVERY_SUCCESSFUL_TOTAL", sem="nvlink.recoveries{result=success}"),
    row(1212, "DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", EVENTS, "NVLink recoveries that failed", new="DEV_NVLINK_RECOVERY_FAILED_TOTAL", sem="nvlink.recoveries{result=failure}"),
    row(1213, "DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS", EVENTS, "NVLink recoveries, whatever came of them", new="DEV_NVLINK_RECOVERY_EVENT_TOTAL", sem="nvlink.recovery.events"),
    row(1214, "DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS", ERRORS, "Wrong symbols received over NVLink", new="DEV_NVLINK_RX_SYMBOL_ERROR_TOTAL", sem="hw.errors{hw.type=gpu,error.type=nvlink.symbol}"),
    row(1215, "DEV_NVLINK_COUNT_SYMBOL_BER", _BER, "Symbol error rate of the worst NVLink, as the hardware encodes it", new="DEV_NVLINK_SYMBOL_BER_RAW", sem="nvlink.symbol_error.rate.raw"),
    row(1216, "DEV_NVLINK_COUNT_SYMBOL_BER_FLOAT", SHARE, "Symbol error rate of the worst NVLink", new="DEV_NVLINK_SYMBOL_BER_RATIO", sem="nvlink.symbol_error.rate"),
    row(1217, "DEV_NVLINK_COUNT_EFFECTIVE_BER", _BER, "Bit error rate of the worst NVLink after correction, as the hardware encodes it", new="DEV_NVLINK_EFFECTIVE_BER_RAW", sem="nvlink.effective_error.rate.raw"),
    row(1218, "DEV_NVLINK_COUNT_EFFECTIVE_BER_FLOAT", SHARE, "Bit error rate of the worst NVLink after correction", new="DEV_NVLINK_EFFECTIVE_BER_RATIO", sem="nvlink.effective_error.rate"),
    row(1219, "DEV_NVLINK_COUNT_EFFECTIVE_ERRORS", ERRORS, "NVLink errors left after correction", new="DEV_NVLINK_EFFECTIVE_ERROR_TOTAL", sem="hw.errors{hw.type=gpu,error.type=nvlink.effective}"),
    row(1220, "DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL", ERRORS, "NVLink data errors found by ECC, all links", new="DEV_NVLINK_ECC_ERROR_TOTAL", sem="hw.errors{hw.type=gpu,error.type=nvlink.ecc}"),
)
# One link is the entity here, so the link stands in the series, not in the name.
_L = Level.LINK
_PORTS = (
    row(580, "DEV_NVLINK_PPRM_OPER_RECOVERY", STATE, "State of the recovery that runs on the link", sem="link.recovery.state", level=_L),
    row(581, "DEV_NVLINK_PPCNT_RECOVERY_TIME_SINCE_LAST", _MICROSECONDS, "Time since the link last recovered, in the units of the port counter", sem="link.recovery.age", level=_L),
    row(582, "DEV_NVLINK_PPCNT_RECOVERY_TIME_BETWEEN_LAST_TWO", _MICROSECONDS, "Time between the last two recoveries of the link, in the units of the port counter", sem="link.recovery.distance", level=_L),
    row(583, "DEV_NVLINK_PPCNT_RECOVERY_TOTAL_SUCCESSFUL_EVENTS", EVENTS, "Recoveries of the link that worked", new="DEV_NVLINK_PPCNT_RECOVERY_SUCCESSFUL_TOTAL", sem="link.recoveries", level=_L),
    row(584, "DEV_NVLINK_PPCNT_PHYSICAL_SUCCESSFUL_RECOVERY_EVENTS", EVENTS, "Recoveries of the physical layer that worked", new="DEV_NVLINK_PPCNT_PHYSICAL_RECOVERY_SUCCESSFUL_TOTAL", sem="link.physical.recoveries", level=_L),
    row(585, "DEV_NVLINK_PPCNT_PHYSICAL_LINK_DOWN_COUNTER", EVENTS, "Times the physical link went down", new="DEV_NVLINK_PPCNT_PHYSICAL_LINK_DOWN_TOTAL", sem="link.physical.downs", level=_L),
    row(586, "DEV_NVLINK_PPCNT_PLR_RCV_CODES", _CODES, "Code words received under physical layer retransmission", new="DEV_NVLINK_PPCNT_PLR_RX_CODE_TOTAL", sem=f"link.plr.codes{{{_RX}}}", level=_L),
    row(587, "DEV_NVLINK_PPCNT_PLR_RCV_CODE_ERR", _CODES, "Code words received with an error", new="DEV_NVLINK_PPCNT_PLR_RX_CODE_ERROR_TOTAL", sem="link.plr.code.errors", level=_L),
    row(588, "DEV_NVLINK_PPCNT_PLR_RCV_UNCORRECTABLE_CODE", _CODES, "Code words received beyond repair", new="DEV_NVLINK_PPCNT_PLR_RX_CODE_UNCORRECTABLE_TOTAL", sem="link.plr.code.uncorrectable", level=_L),
    row(589, "DEV_NVLINK_PPCNT_PLR_XMIT_CODES", _CODES, "Code words sent under physical layer retransmission", new="DEV_NVLINK_PPCNT_PLR_TX_CODE_TOTAL", sem=f"link.plr.codes{{{_TX}}}", level=_L),
    row(590, "DEV_NVLINK_PPCNT_PLR_XMIT_RETRY_CODES", _CODES, "Code words sent again", new="DEV_NVLINK_PPCNT_PLR_TX_RETRY_CODE_TOTAL", sem="link.plr.retry.codes", level=_L),
    row(591, "DEV_NVLINK_PPCNT_PLR_XMIT_RETRY_EVENTS", EVENTS, "Times the physical layer had to send again", new="DEV_NVLINK_PPCNT_PLR_TX_RETRY_EVENT_TOTAL", sem="link.plr.retries", level=_L),
    row(592, "DEV_NVLINK_PPCNT_PLR_SYNC_EVENTS", EVENTS, "Times both ends of the link had to find step again", new="DEV_NVLINK_PPCNT_PLR_SYNC_EVENT_TOTAL", sem="link.plr.syncs", level=_L),
    row(1508, "DEV_NVLINK_GET_STATE", state(255), "State of the link: 1 active, 0 not", base="DEV_NVLINK_LINK_STATUS", sem="link.state", level=_L),
    row(1509, "DEV_NVLINK_PPCNT_IBPC_PORT_XMIT_WAIT", _TICKS, "Ticks the port had data to send and could not", sem="link.transmit.wait", level=_L),
    row(1525, "DEV_NVLINK_CRC_FLIT_ERROR_PER_LINK_TOTAL", ERRORS, "Flow control packets with a wrong checksum on the link", sem="link.errors{error.type=nvlink.crc.flit}", level=_L),
    row(1526, "DEV_NVLINK_CRC_DATA_ERROR_PER_LINK_TOTAL", ERRORS, "Data packets with a wrong checksum on the link", sem="link.errors{error.type=nvlink.crc.data}", level=_L),
    row(1527, "DEV_NVLINK_REPLAY_ERROR_PER_LINK_TOTAL", ERRORS, "Packets sent again on the link", sem="link.errors{error.type=nvlink.replay}", level=_L),
    row(1528, "DEV_NVLINK_RECOVERY_ERROR_PER_LINK_TOTAL", ERRORS, "Retrainings of the link after an error", sem="link.errors{error.type=nvlink.recovery}", level=_L),
    row(1529, "DEV_NVLINK_THROUGHPUT_PER_LINK", LINK_RATE, "Traffic in both directions on the link", sem="link.throughput", level=_L),
    row(1530, "DEV_NVLINK_TX_THROUGHPUT_PER_LINK", LINK_RATE, "Traffic sent on the link", sem=f"link.io.rate{{{_TX}}}", level=_L),
    row(1531, "DEV_NVLINK_RX_THROUGHPUT_PER_LINK", LINK_RATE, "Traffic received on the link", sem=f"link.io.rate{{{_RX}}}", level=_L),
)
# fmt: on

ROWS = (*_errors(), *_rates(), *_TOTALS, *_NVLINK5, *_PORTS, *_fec())
