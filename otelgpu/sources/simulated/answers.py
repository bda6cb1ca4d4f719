"""Which fields the simulated driver answers, and with what.

Rule 1: a row gives the driver's own number in the unit of the field's catalogue row, int or double as it says there.
Rule 2: FACTS never change and are asked once; None or "" is "no value for this product". BOARD rows are asked of a
        GPU, SLICE rows of whatever owns memory and runs jobs: the GPU, or each of its MIG instances.
Rule 3: to answer one more field, add a row; what a GPU must have for it is a Need, which carries the gap's words.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from otelgpu.model import Device
from otelgpu.sources.simulated.gpu import MEBI, Gpu, Now, SliceNow, happened, last_xid
from otelgpu.sources.simulated.models import DRIVER_VERSION, NVML_VERSION
from otelgpu.sources.simulated.stages import Mix

UNKNOWN = "the simulated driver does not answer this field"
NO_VALUE = "the driver has no value for this product"

_CUDA_VERSION = 12080
_NS = 1_000_000_000


class Need(NamedTuple):
    """What a GPU must have to answer, and what to say when it has not."""

    met: Callable[[Gpu], bool]
    reason: str


class BoardRow(NamedTuple):
    """A field asked of a GPU."""

    take: Callable[[Now], float]
    needs: tuple[Need, ...] = ()


class SliceRow(NamedTuple):
    """A field asked of a GPU that is not partitioned, or of a MIG instance."""

    take: Callable[[SliceNow], float]
    needs: tuple[Need, ...] = ()


Fact: TypeAlias = Callable[[Gpu, Device], int | str | None]

WHOLE = Need(lambda gpu: not gpu.mig, "not available while MIG is on")
GPM = Need(lambda gpu: gpu.model.gpm, "profiling needs a data centre GPU of the Hopper generation or newer")
NVLINK = Need(lambda gpu: gpu.model.nvlinks > 0, "this product has no NVLink")
ECC = Need(lambda gpu: gpu.model.ecc, "ECC is off or missing on this product")
REMAPS = Need(lambda gpu: gpu.model.remap_banks > 0, "this product does not remap memory rows")
PAGES = Need(lambda gpu: gpu.model.retires_pages, "this product does not retire memory pages")
FAN = Need(lambda gpu: gpu.model.fan, "this product has no fan of its own")
MEMORY_SENSOR = Need(lambda gpu: gpu.model.memory_idle_c > 0, "this product does not tell its memory temperature")


def _mask(now: Now) -> int:
    """Name the reasons for low clocks: idle, software power cap, software thermal slowdown."""
    held = 0x20 if now.state.hot else 0x4 * now.state.stage.capped
    return held if now.awake else 0x1


def _memory_c(now: Now) -> int:
    """Let the memory follow the core with three quarters of its rise."""
    gpu = now.gpu
    return round(gpu.model.memory_idle_c + 0.75 * (now.temperature_c - gpu.model.temperature_c[0]))


def _fan(now: Now) -> int:
    """Stand still while cool, as these boards do."""
    warm = now.temperature_c - 50
    return min(100, round(30 + 1.8 * warm)) if warm > 0 else 0


def _bar1_used(now: Now) -> int:
    """Map all of the used memory, where the window is large enough for that."""
    whole = now.gpu.model.bar1_mib >= now.gpu.model.memory_mib
    return MEBI + (sum(piece.used for piece in now.slices) if whole else 0)


def _zero(_: Now) -> int:
    return 0


def _share(part: Callable[[Mix], float], factor: float = 1.0) -> SliceRow:
    """Make the row of a part of the engine: its share of the time in which the engine is busy, in percent."""
    return SliceRow(lambda piece: 100.0 * factor * piece.state.load * part(piece.state.stage.mix), (GPM,))


def _media(part: Callable[[Mix], float]) -> BoardRow:
    return BoardRow(lambda now: round(100 * now.gpu.model.media * now.state.load * part(now.state.stage.mix)), (WHOLE,))


FACTS: Mapping[int, Fact] = {
    1: lambda _, __: DRIVER_VERSION,
    2: lambda _, __: NVML_VERSION,
    5: lambda _, __: _CUDA_VERSION,
    50: lambda gpu, _: gpu.model.name,
    51: lambda gpu, _: gpu.model.brand,
    52: lambda gpu, _: gpu.index,
    53: lambda gpu, _: gpu.device.serial,
    54: lambda _, device: device.uuid,
    55: lambda gpu, _: gpu.index,
    56: lambda gpu, _: gpu.model.inforom_oem,
    57: lambda gpu, _: gpu.device.pci_bus_id,
    63: lambda gpu, _: gpu.model.capability[0] << 16 | gpu.model.capability[1],
    65: lambda _, __: 0,
    66: lambda _, __: 1,
    67: lambda gpu, _: int(gpu.mig) if gpu.model.layout else None,
    69: lambda gpu, _: sum(profile.slices for profile in gpu.model.layout) or None,
    68: lambda _, device: device.uuid,
    70: lambda gpu, _: 0xFFFF << 16 * (gpu.index % 3),
    71: lambda _, __: 0,
    72: lambda _, __: 0,
    73: lambda _, __: 0,
    74: lambda _, __: 0,
    80: lambda gpu, _: gpu.model.inforom_ecc,
    81: lambda _, __: None,
    82: lambda gpu, _: gpu.model.inforom_image,
    84: lambda _, __: 1,
    85: lambda gpu, _: gpu.model.vbios,
    90: lambda gpu, _: gpu.model.bar1_mib * MEBI,
    94: lambda gpu, _: int(gpu.model.gpm),
    110: lambda gpu, _: gpu.model.application_mhz[0] or None,
    111: lambda gpu, _: gpu.model.application_mhz[1] or None,
    113: lambda gpu, _: gpu.model.sm_mhz[1],
    114: lambda gpu, _: gpu.model.memory_mhz[1],
    115: lambda gpu, _: gpu.model.video_mhz[1],
    151: lambda gpu, _: gpu.model.memory_highest_c or None,
    152: lambda gpu, _: gpu.model.highest_c[0],
    158: lambda gpu, _: gpu.model.highest_c[1],
    159: lambda gpu, _: gpu.model.highest_c[2],
    160: lambda gpu, _: gpu.model.limit_w * 1000,
    161: lambda gpu, _: gpu.model.lowest_limit_w * 1000,
    162: lambda gpu, _: gpu.model.limit_w * 1000,
    163: lambda gpu, _: gpu.model.limit_w * 1000,
    164: lambda gpu, _: gpu.model.limit_w * 1000,
    235: lambda gpu, _: gpu.model.pcie_generation,
    236: lambda _, __: 16,
    238: lambda _, __: 16,
    300: lambda gpu, _: int(gpu.model.ecc) if gpu.model.inforom_ecc else None,
    301: lambda gpu, _: int(gpu.model.ecc) if gpu.model.inforom_ecc else None,
    500: lambda _, __: 0,
    526: lambda _, __: 0,
    577: lambda gpu, _: gpu.index + 1 if gpu.model.nvlinks else None,
    1507: lambda gpu, _: 0 if gpu.model.gpm else None,
    1523: lambda _, __: 0,
}

BOARD: Mapping[int, BoardRow] = {
    92: BoardRow(_bar1_used),
    93: BoardRow(lambda now: now.gpu.model.bar1_mib * MEBI - _bar1_used(now)),
    100: BoardRow(lambda now: now.sm_mhz),
    101: BoardRow(lambda now: now.gpu.model.memory_mhz[now.awake]),
    102: BoardRow(lambda now: now.gpu.model.video_mhz[now.awake]),
    112: BoardRow(_mask),
    140: BoardRow(_memory_c, (MEMORY_SENSOR,)),
    150: BoardRow(lambda now: round(now.temperature_c)),
    153: BoardRow(lambda now: now.gpu.model.highest_c[0] - round(now.temperature_c)),
    155: BoardRow(lambda now: round(now.power_w * 1000)),
    156: BoardRow(lambda now: int(now.energy_j * 1000)),
    157: BoardRow(lambda now: round(now.power_w * 1000)),
    190: BoardRow(lambda now: 0 if now.awake or now.gpu.model.memory_mhz[0] == now.gpu.model.memory_mhz[1] else 8),
    191: BoardRow(_fan, (FAN,)),
    200: BoardRow(lambda now: int(now.tx_mib * MEBI / 1000)),
    201: BoardRow(lambda now: int(now.rx_mib * MEBI / 1000)),
    202: BoardRow(lambda now: happened(now.gpu.luck.replay_s, now.gpu.luck.replays, now.seconds)),
    203: BoardRow(lambda now: round(100 * now.state.load), (WHOLE,)),
    204: BoardRow(lambda now: round(100 * now.state.load * now.state.stage.mix.dram), (WHOLE,)),
    206: _media(lambda mix: mix.encode),
    207: _media(lambda mix: mix.decode),
    230: BoardRow(lambda now: last_xid(now.gpu, now.seconds)),
    237: BoardRow(lambda now: now.gpu.model.pcie_generation if now.awake or now.gpu.model.memory_idle_c else 1),
    240: BoardRow(lambda now: int(now.state.totals.capped_s * _NS)),
    241: BoardRow(lambda now: int(now.state.totals.hot_s * _NS)),
    242: BoardRow(_zero),
    243: BoardRow(_zero),
    244: BoardRow(lambda now: int(now.state.totals.idle_s * _NS), (WHOLE,)),
    245: BoardRow(_zero),
    246: BoardRow(lambda now: int((now.state.totals.capped_s + now.state.totals.hot_s) * _NS)),
    247: BoardRow(_zero),
    310: BoardRow(lambda now: happened(now.gpu.luck.flip_s, 0, now.seconds), (ECC,)),
    311: BoardRow(_zero, (ECC,)),
    312: BoardRow(lambda now: happened(now.gpu.luck.flip_s, now.gpu.luck.flips, now.seconds), (ECC,)),
    313: BoardRow(_zero, (ECC,)),
    318: BoardRow(lambda now: happened(now.gpu.luck.flip_s, 0, now.seconds), (ECC,)),
    319: BoardRow(_zero, (ECC,)),
    328: BoardRow(lambda now: happened(now.gpu.luck.flip_s, now.gpu.luck.flips, now.seconds), (ECC,)),
    329: BoardRow(_zero, (ECC,)),
    342: BoardRow(_zero, (ECC,)),
    343: BoardRow(_zero, (ECC,)),
    344: BoardRow(_zero, (ECC,)),
    345: BoardRow(_zero, (ECC,)),
    346: BoardRow(_zero, (ECC, REMAPS)),
    385: BoardRow(lambda now: now.gpu.model.remap_banks - now.gpu.luck.remapped, (REMAPS,)),
    386: BoardRow(lambda now: now.gpu.luck.remapped, (REMAPS,)),
    387: BoardRow(_zero, (REMAPS,)),
    388: BoardRow(_zero, (REMAPS,)),
    389: BoardRow(_zero, (REMAPS,)),
    390: BoardRow(_zero, (PAGES,)),
    391: BoardRow(_zero, (PAGES,)),
    392: BoardRow(_zero, (PAGES,)),
    393: BoardRow(_zero, (REMAPS,)),
    394: BoardRow(lambda now: now.gpu.luck.remapped, (REMAPS,)),
    395: BoardRow(_zero, (REMAPS,)),
    396: BoardRow(_zero, (REMAPS,)),
    409: BoardRow(_zero, (NVLINK,)),
    419: BoardRow(_zero, (NVLINK,)),
    429: BoardRow(_zero, (NVLINK,)),
    439: BoardRow(_zero, (NVLINK,)),
    449: BoardRow(lambda now: 2 * now.link_bytes, (NVLINK,)),
    843: BoardRow(lambda now: now.link_bytes, (NVLINK,)),
    897: BoardRow(lambda now: now.link_bytes, (NVLINK,)),
    1009: BoardRow(lambda now: now.tx_mib, (GPM, WHOLE)),
    1010: BoardRow(lambda now: now.rx_mib, (GPM, WHOLE)),
    1011: BoardRow(lambda now: now.link_bytes / MEBI, (GPM, NVLINK, WHOLE)),
    1012: BoardRow(lambda now: now.link_bytes / MEBI, (GPM, NVLINK, WHOLE)),
    1420: BoardRow(lambda now: int(now.state.totals.capped_s * _NS)),
    1421: BoardRow(_zero),
    1422: BoardRow(lambda now: int(now.state.totals.hot_s * _NS)),
    1423: BoardRow(_zero),
    1424: BoardRow(_zero),
    1501: BoardRow(_zero),
}

SLICE: Mapping[int, SliceRow] = {
    250: SliceRow(lambda piece: piece.total),
    251: SliceRow(lambda piece: piece.total - piece.reserved - piece.used),
    252: SliceRow(lambda piece: piece.used),
    253: SliceRow(lambda piece: piece.reserved),
    254: SliceRow(lambda piece: piece.used / (piece.total - piece.reserved)),
    1001: SliceRow(lambda piece: 100.0 * piece.state.load, (GPM,)),
    1002: _share(lambda mix: mix.sm),
    1003: _share(lambda mix: mix.occupancy),
    1004: _share(lambda mix: mix.tensor),
    1005: _share(lambda mix: mix.dram),
    1006: _share(lambda mix: mix.fp64),
    1007: _share(lambda mix: mix.fp32),
    1008: _share(lambda mix: mix.fp16),
    1013: _share(lambda mix: mix.tensor, 0.02),
    1014: _share(lambda mix: mix.tensor, 0.98),
    1015: _share(lambda mix: mix.tensor, 0.0),
    1016: _share(lambda mix: mix.integer),
}
