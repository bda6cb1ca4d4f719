"""One simulated GPU: who it is, and how it stands at an instant.

Rule 1: identity and luck come from the seed and the slot alone; nothing is kept between two reads.
Rule 2: a GPU that is not partitioned has one slice, itself; power and heat of a partitioned one are the sum over its
        instances.
Rule 3: rare events (errors, XIDs) are counted from the time since the start, without stepping through it.
"""

import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from otelgpu.model import Device
from otelgpu.sources.simulated.models import DRIVER_VERSION, Model
from otelgpu.sources.simulated.spec import Part
from otelgpu.sources.simulated.stages import PLAIN, SHARED
from otelgpu.sources.simulated.timeline import DAY_S, Cooling, State, Timeline

MEBI = 1024 * 1024

_NAMESPACE = uuid.UUID("6f74656c-6770-4075-8073-696d756c6174")
_TEAM = 4  # GPUs with NVLink work together in groups of so many
_SLICES = 7
_WARM = 3  # one GPU in so many, and at least one of a node, stands in warm air
_CLOCK_STEP_MHZ = 15
_POWER_CUT, _HEAT_CUT = 0.08, 0.18  # of the full clock, while a limit holds it down
_PCIE_MIB = {3: 12_000, 4: 24_000, 5: 48_000}  # what sixteen lanes carry in a second
_XID_S = 6 * 3600.0  # the node has one XID in every stretch of this length
_XIDS = (31, 13, 43, 13, 31, 45)
_XIDS_ECC = (31, 13, 43, 94, 31, 94)  # where a memory error can be contained


class Slice(NamedTuple):
    """What owns memory and runs jobs: the GPU as a whole, or one MIG instance. Memory in MiB."""

    device: Device
    share: float
    memory_mib: int
    reserved_mib: int
    idle_mib: int
    timeline: Timeline


class Luck(NamedTuple):
    """What differs between boards of the same model."""

    replay_s: float
    replays: int
    flip_s: float  # between corrected memory errors
    flips: int
    remapped: int
    energy_j: float  # used before the start
    xid_rank: int  # whose turn it is to have an XID
    xid_turns: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """What stays the same about a GPU."""

    device: Device
    model: Model
    index: int
    seed: int
    mig: bool
    peers: bool  # others are reached over NVLink
    idle_w: float
    idle_c: float
    slices: tuple[Slice, ...]
    luck: Luck


class SliceNow(NamedTuple):
    """A slice at one instant; memory in bytes."""

    state: State
    total: int
    reserved: int
    used: int


class Now(NamedTuple):
    """A board at one instant, in the driver's units unless the name says otherwise."""

    gpu: Gpu
    seconds: float  # since the start
    slices: tuple[SliceNow, ...]
    state: State  # of the first slice
    awake: bool
    power_w: float
    energy_j: float
    temperature_c: float
    sm_mhz: int
    tx_mib: float  # PCIe
    rx_mib: float
    link_bytes: float  # NVLink, a direction


def gpus(parts: tuple[Part, ...], seed: int) -> tuple[Gpu, ...]:
    """Build every GPU of the node, in the order of the slots."""
    rows = [(part, place) for part in parts for place in range(part.number)]
    node = _rng(seed, "node")
    buses = sorted(node.sample(range(0x04, 0xF8), len(rows)))
    turns = node.sample(range(len(rows)), len(rows))
    return tuple(
        _gpu(part, place, index, seed=seed, bus=buses[index], rank=turns[index], turns=len(rows))
        for index, (part, place) in enumerate(rows)
    )


def now(gpu: Gpu, seconds: float) -> Now:
    """Say how a GPU stands so long after the start."""
    model = gpu.model
    slices = tuple([_slice_now(piece, seconds) for piece in gpu.slices])
    power_w, energy_j, temperature_c, tx, rx = gpu.idle_w, gpu.idle_w * seconds, gpu.idle_c, 0.0, 0.0
    awake = False
    for piece, (state, _, _, _) in zip(gpu.slices, slices, strict=True):
        stage = state.stage
        power_w += state.power_w
        energy_j += state.totals.energy_j
        temperature_c += state.rise_c
        tx += piece.share * stage.tx * (1.0 + 0.3 * state.swell)
        rx += piece.share * stage.rx * (1.0 + 0.3 * state.swell)
        awake = awake or stage.awake
    first = slices[0].state
    lane = _PCIE_MIB[model.pcie_generation]
    return Now(
        gpu,
        seconds,
        slices,
        first,
        awake,
        power_w,
        energy_j + gpu.luck.energy_j,
        temperature_c,
        _sm_mhz(model, first, awake=awake),
        tx * lane,
        rx * lane,
        gpu.peers * model.nvlink_gb * 1e9 * first.stage.link * (1.0 - 0.5 * first.ripple),
    )


def last_xid(gpu: Gpu, seconds: float) -> int:
    """Give the code of the last XID, 0 before the first.

    The GPUs of a node take turns, each at some moment within its stretch of time; so the last turn of a GPU is
    known without looking at the turns of the others.
    """
    luck = gpu.luck
    turn = (int(seconds // _XID_S) - luck.xid_rank) // luck.xid_turns * luck.xid_turns + luck.xid_rank
    if turn >= 0 and seconds < _xid(gpu, turn)[0]:
        turn -= luck.xid_turns
    return 0 if turn < 0 else _xid(gpu, turn)[1]


def xids(gpu: Gpu, seconds: float) -> Iterator[tuple[float, int]]:
    """Give every XID so far: when, in seconds since the start, and its code."""
    for turn in range(gpu.luck.xid_rank, int(seconds // _XID_S) + 1, gpu.luck.xid_turns):
        at, code = _xid(gpu, turn)
        if at <= seconds:
            yield at, code


def _xid(gpu: Gpu, turn: int) -> tuple[float, int]:
    codes = _XIDS_ECC if gpu.model.ecc and gpu.model.remap_banks else _XIDS
    at = (turn + _chance(gpu.seed, turn)) * _XID_S
    return at, codes[int(_chance(gpu.seed, turn, "code") * len(codes))]


def happened(every_s: float, before: int, seconds: float) -> int:
    """Count something that happens now and then."""
    return before + int(seconds / every_s)


def _slice_now(piece: Slice, seconds: float) -> SliceNow:
    state = piece.timeline.at(seconds)
    room = piece.memory_mib - piece.reserved_mib - piece.idle_mib
    used = piece.idle_mib + 2 * int(room * state.memory / 2)
    return SliceNow(state, piece.memory_mib * MEBI, piece.reserved_mib * MEBI, used * MEBI)


def _sm_mhz(model: Model, state: State, *, awake: bool) -> int:
    idle, full = model.sm_mhz
    if not awake:
        return idle
    if not (state.hot or state.stage.capped):
        return full
    cut = _HEAT_CUT if state.hot else _POWER_CUT
    return full - _CLOCK_STEP_MHZ * round(full * cut / _CLOCK_STEP_MHZ + 2.0 * state.swell)


def _gpu(part: Part, place: int, index: int, *, seed: int, bus: int, rank: int, turns: int) -> Gpu:
    model, mig = part.model, part.mig
    own = _rng(seed, f"gpu {index}")
    device = _device(model, index, seed=seed, bus=bus, own=own)
    idle_w = model.idle_w * own.uniform(0.97, 1.03)
    idle_c = model.temperature_c[0] + own.uniform(-2.0, 4.0)
    cooling = Cooling(
        idle_w=idle_w,
        budget_w=model.limit_w - idle_w,
        c_per_w=(model.temperature_c[1] - model.temperature_c[0]) / (model.limit_w - model.idle_w),
        highest_c=model.highest_c[0] - idle_c,
        warm=rank % _WARM == 0,
    )
    peers = model.nvlinks > 0 and part.number > 1 and not mig
    plan = _rng(seed, f"plan {part.key} {index - place + place // _TEAM}") if peers else own
    luck = Luck(
        replay_s=own.uniform(20_000, 400_000),
        replays=own.choice((0, 0, 0, 1, 2, 9)),
        flip_s=own.uniform(2, 20) * DAY_S,
        flips=own.choice((0, 0, 1, 3)),
        remapped=own.choice((0,) * 15 + (1,)) if model.remap_banks else 0,
        energy_j=own.uniform(3, 40) * DAY_S * 0.4 * model.limit_w,
        xid_rank=rank,
        xid_turns=turns,
    )
    slices = (
        _instances(model, device, seed=seed, cooling=cooling)
        if mig
        else (_whole(model, device, cooling=cooling, plan=plan, own=own),)
    )
    return Gpu(
        device=device,
        model=model,
        index=index,
        seed=seed,
        mig=mig,
        peers=peers,
        idle_w=idle_w,
        idle_c=idle_c,
        slices=slices,
        luck=luck,
    )


def _device(model: Model, index: int, *, seed: int, bus: int, own: Random) -> Device:
    ident = f"GPU-{uuid.uuid5(_NAMESPACE, f'{seed}/{index}/{model.name}')}"
    return Device(
        uuid=ident,
        gpu_uuid=ident,
        index=index,
        model=model.name,
        pci_bus_id=f"00000000:{bus:02X}:00.0",
        serial=f"165{own.randrange(10**10):010d}" if model.serial else "",
        driver_version=DRIVER_VERSION,
        vbios_version=model.vbios,
        minor=index,
    )


def _whole(model: Model, device: Device, *, cooling: Cooling, plan: Random, own: Random) -> Slice:
    timeline = Timeline(PLAIN, cooling, plan, own=own, share=1.0)
    return Slice(device, 1.0, model.memory_mib, model.reserved_mib, 2, timeline)


def _instances(model: Model, gpu: Device, *, seed: int, cooling: Cooling) -> tuple[Slice, ...]:
    return tuple(
        Slice(
            Device(
                uuid=f"MIG-{uuid.uuid5(_NAMESPACE, f'{gpu.uuid}/{profile.instance_id}')}",
                gpu_uuid=gpu.uuid,
                index=gpu.index,
                model=gpu.model,
                pci_bus_id=gpu.pci_bus_id,
                serial=gpu.serial,
                driver_version=gpu.driver_version,
                vbios_version=gpu.vbios_version,
                profile=profile.name,
                instance_id=profile.instance_id,
            ),
            profile.slices / _SLICES,
            profile.memory_mib,
            0,
            profile.idle_mib,
            _shared(_rng(seed, f"gpu {gpu.index} instance {profile.instance_id}"), cooling, profile.slices / _SLICES),
        )
        for profile in model.layout
    )


def _shared(rng: Random, cooling: Cooling, share: float) -> Timeline:
    return Timeline(SHARED, cooling, rng, own=rng, share=share)


def _rng(seed: int, purpose: str) -> Random:
    """Make a generator that depends on nothing but its text, on every platform and Python."""
    return Random(f"{seed} {purpose}")


def _chance(seed: int, turn: int, purpose: str = "when") -> float:
    """Give a number from 0 up to 1 for a turn, cheaper than a generator."""
    return zlib.crc32(f"{seed} {turn} {purpose}".encode()) / 2**32
