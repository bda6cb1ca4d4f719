"""How the driver measures a thing, and how the naming schemes show that measure.

Rule 1: a measure is shared by all fields that are read and shown alike; what is true of one field stands in its row.
Rule 2: bounds say what can be true, with room for the next hardware generations: they catch sentinels, all-ones and
        garbage seen in the field, and are no alarm thresholds.
Rule 3: `base` is used only by rows that have a base-unit name in DCGM 4.7 (dcgm-exporter 4.9).
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from otelgpu.fields.row import Kind, Number

# DCGM's blank values begin at 0x7ffffffffffffff0 (int64), 0x7ffffff0 (int32) and 2^47 (double); NVML writes "not
# available" as all ones. No 32-bit counter of errors or rows gets near the lowest of them and stays in service.
INT64_HIGHEST = 0x7FFFFFFFFFFFFFEF
DOUBLE_HIGHEST = float(2**47 - 1)
INT32_HIGHEST = 0x7FFFFFEF

MEBI = 1024 * 1024


class Scale(NamedTuple):
    """A unit in one scheme, and the way from the driver's number to it."""

    unit: str
    number: Number
    numerator: int = 1
    denominator: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """The driver's unit, number and bounds, and a Scale for each scheme (semconv None: no place there)."""

    unit: str
    number: Number
    kind: Kind
    lowest: float
    highest: float
    dcgm: Scale
    base: Scale
    semconv: Scale | None
    ratio: bool = False  # DCGM shows a share of one, so the help line says so


def _plain(unit: str, number: Number, kind: Kind, lowest: float, highest: float) -> Measure:
    """A measure that every scheme shows as the driver gives it."""
    same = Scale(unit, number)
    return Measure(unit, number, kind, lowest, highest, same, same, same)


def state(highest: float = INT32_HIGHEST, lowest: float = 0) -> Measure:
    """An integer that stands for something: a mode, a code, a mask, a number of things that may go down."""
    return _plain("1", Number.INT, Kind.GAUGE, lowest, highest)


def gauge(unit: str, highest: float, lowest: float = 0) -> Measure:
    """An integer in a unit that no scheme changes."""
    return _plain(unit, Number.INT, Kind.GAUGE, lowest, highest)


def real(unit: str, highest: float = DOUBLE_HIGHEST, lowest: float = 0) -> Measure:
    """A double in a unit that no scheme changes."""
    return _plain(unit, Number.DOUBLE, Kind.GAUGE, lowest, highest)


def count(unit: str, highest: float = INT64_HIGHEST) -> Measure:
    """A total that only grows until the driver or the hardware resets it."""
    return _plain(unit, Number.INT, Kind.COUNTER, 0, highest)


def _scaled(  # noqa: PLR0913  (a measure has this many facts)
    unit: str,
    number: Number,
    highest: float,
    *,
    dcgm: Scale,
    base: Scale | None = None,
    semconv: Scale,
    lowest: float = 0,
    kind: Kind = Kind.GAUGE,
    ratio: bool = False,
) -> Measure:
    return Measure(unit, number, kind, lowest, highest, dcgm, base or dcgm, semconv, ratio)


_RATIO = Scale("1", Number.DOUBLE, 1, 100)

TEXT = Measure("1", Number.TEXT, Kind.LABEL, 0, 0, Scale("1", Number.TEXT), Scale("1", Number.TEXT), None)
BINARY = Measure("1", Number.BINARY, Kind.GAUGE, 0, 0, Scale("1", Number.BINARY), Scale("1", Number.BINARY), None)

STATE = state()
FLAG = state(1)
# A full word of 32 bits; all ones is what a device that is gone answers on the bus.
WORD32 = state(2**32 - 2)
# A checksum may be any word.
CHECKSUM32 = state(2**32 - 1)
MASK = state(INT64_HIGHEST)
# A bit for each reason, of which nvml.h has eleven: of 64 bits, but all ones in 32 of them is no answer.
REASONS = state()
# A set of 64 CPUs or NUMA nodes is a full word: its top bit makes the int64 negative, so every value can be true.
MASK64 = state(2**63 - 1, -(2**63))
ERRORS = count("{error}")
EVENTS = count("{event}")
PACKETS = count("{packet}")
ERRORS32 = count("{error}", INT32_HIGHEST)
ROWS32 = count("{row}", INT32_HIGHEST)
PAGES32 = count("{page}", INT32_HIGHEST)
CYCLES = count("{cycle}")
BYTES_TOTAL = count("By")

CLOCK = _scaled(
    "MHz",
    Number.INT,
    20_000,
    dcgm=Scale("MHz", Number.INT),
    base=Scale("Hz", Number.INT, 1_000_000),
    semconv=Scale("Hz", Number.INT, 1_000_000),
)
TEMPERATURE = _scaled(
    "Cel",
    Number.INT,
    250,
    lowest=-60,
    dcgm=Scale("Cel", Number.INT),
    semconv=Scale("Cel", Number.DOUBLE),
)
# A limit of nothing is how a driver says that it has none.
TEMPERATURE_LIMIT = replace(TEMPERATURE, lowest=1)
# Distance to a threshold, not a temperature: zero or below when the GPU is past it.
MARGIN = _scaled(
    "Cel",
    Number.INT,
    250,
    lowest=-100,
    dcgm=Scale("Cel", Number.INT),
    semconv=Scale("Cel", Number.DOUBLE),
)
# 3,700,000 mW was seen as garbage; a B300 draws about 1,400 W, a GB200 module about 2,700 W.
POWER = _scaled(
    "mW",
    Number.INT,
    3_000_000,
    dcgm=Scale("W", Number.DOUBLE, 1, 1000),
    semconv=Scale("W", Number.DOUBLE, 1, 1000),
)
ENERGY = _scaled(
    "mJ",
    Number.INT,
    INT64_HIGHEST,
    kind=Kind.COUNTER,
    dcgm=Scale("mJ", Number.INT),
    base=Scale("J", Number.INT, 1, 1000),
    semconv=Scale("J", Number.DOUBLE, 1, 1000),
)
# How long a frame takes; a second and more is a stalled session and can be true.
LATENCY = _scaled(
    "us",
    Number.INT,
    1_000_000_000,
    dcgm=Scale("us", Number.INT),
    semconv=Scale("s", Number.DOUBLE, 1, 1_000_000),
)
PERCENT = _scaled("%", Number.INT, 100, dcgm=Scale("%", Number.INT), base=_RATIO, semconv=_RATIO)
# Fans may be driven past their nominal speed, so NVML can say more than 100 %.
FAN = _scaled("%", Number.INT, 200, dcgm=Scale("%", Number.INT), base=_RATIO, semconv=_RATIO)
# GPM divides two hardware counters that are not latched in the same cycle: a busy unit can come out a little above
# 100 %. One percent of room keeps those; a wrapped counter is off by orders of magnitude.
ACTIVITY = _scaled("%", Number.DOUBLE, 101, dcgm=_RATIO, semconv=_RATIO, ratio=True)
SHARE = Measure(
    "1",
    Number.DOUBLE,
    Kind.GAUGE,
    0,
    1,
    Scale("1", Number.DOUBLE),
    Scale("1", Number.DOUBLE),
    Scale("1", Number.DOUBLE),
    ratio=True,
)
MEMORY = _scaled(
    "By",
    Number.INT,
    2**50,
    dcgm=Scale("MiBy", Number.INT, 1, MEBI),
    base=Scale("By", Number.INT),
    semconv=Scale("By", Number.INT),
)


def gpm_rate(highest: float) -> Measure:
    """A rate as GPM gives it, MiB/s; DCGM shows whole bytes per second."""
    return _scaled(
        "MiBy/s",
        Number.DOUBLE,
        highest,
        dcgm=Scale("By/s", Number.INT, MEBI),
        semconv=Scale("By/s", Number.DOUBLE, MEBI),
    )


def nvlink_rate(highest: float) -> Measure:
    """A rate that the source computes from NVML's KiB counters.

    DCGM divides KiB/s by 1000 and calls it MB/s, so its number is 2.4 % below the true one; its 4.7 byte fields and
    ours are exact.
    """
    return _scaled(
        "By/s",
        Number.DOUBLE,
        highest,
        dcgm=Scale("MBy/s", Number.INT, 1, 1_024_000),
        base=Scale("By/s", Number.INT),
        semconv=Scale("By/s", Number.DOUBLE),
    )


# Room: PCIe 6 x16 moves 0.13 TB/s a direction, NVLink 5 0.9 TB/s a GPU and 0.05 TB/s a link, C2C 0.45 TB/s.
PCIE_RATE = gpm_rate(2**20)
NVLINK_GPM_RATE = gpm_rate(2**24)
LINK_GPM_RATE = gpm_rate(2**21)
C2C_RATE = gpm_rate(2**23)
NVLINK_RATE = nvlink_rate(2**44)
LINK_RATE = nvlink_rate(2**41)
PCIE_SAMPLED_RATE = _scaled(
    "kBy/s",
    Number.INT,
    2**30,
    dcgm=Scale("kBy/s", Number.INT),
    semconv=Scale("By/s", Number.INT, 1000),
)
BANDWIDTH = _scaled(
    "MBy/s",
    Number.INT,
    2**25,
    dcgm=Scale("MBy/s", Number.INT),
    base=Scale("By/s", Number.INT, 1_000_000),
    semconv=Scale("By/s", Number.INT, 1_000_000),
)
THROTTLED = _scaled(
    "ns",
    Number.INT,
    INT64_HIGHEST,
    kind=Kind.COUNTER,
    dcgm=Scale("ns", Number.INT),
    base=Scale("s", Number.DOUBLE, 1, 1_000_000_000),
    semconv=Scale("s", Number.DOUBLE, 1, 1_000_000_000),
)
PERCENT_REAL = _scaled("%", Number.DOUBLE, 100, dcgm=Scale("%", Number.DOUBLE), semconv=_RATIO)
# GPM gives a percentage of lookups; DCGM shows whole percents.
CACHE_SHARE = _scaled("%", Number.DOUBLE, 101, dcgm=Scale("%", Number.INT), semconv=_RATIO)
