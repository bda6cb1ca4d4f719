"""Whether the parts of a GPU are well, in dcgm-exporter's words (DCGM_EXP_GPU_HEALTH_STATUS), from what NVML knows.

Rule 1: a part is judged only by what was read. One of which this GPU tells nothing has no series; one of which a
        question failed this time is not called well.
Rule 2: the worst sign of a part counts, and names its code: one series for each part, whatever else is wrong there. Of
        signs that are as bad the first in the table is named.
Rule 3: what NVML has no sign of (PMU, MCU, SM) is never called well. docs/metrics.md lists the signs.
Rule 4: a GPU that does not answer is told under the labels it was last known by; while the driver as a whole is away
        nothing is told, nor of a GPU that is suspended.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from otelgpu.counts import CLOCK_EVENTS, GRAVE, XID_COUNT
from otelgpu.fields import CATALOGUE, Field
from otelgpu.links import NVLINK_STATE, PCIE_WIDTH, Links
from otelgpu.model import Device, Gap, GpuState, Missing, Series, SeriesKey, Snapshot

HEALTH = 9003

PASS, WARN, FAIL = 0, 10, 20
WELL = "DCGM_FR_OK"
OFF_BUS, MUTE, XID = "DCGM_FR_FALLEN_OFF_BUS", "DCGM_FR_NVML_API", "DCGM_FR_XID_ERROR"
FELL_OFF = 79  # the XID

_HEAT = CLOCK_EVENTS["sw_thermal"] | CLOCK_EVENTS["hw_thermal"]
_BRAKE = CLOCK_EVENTS["hw_power_brake"]


class Verdict(NamedTuple):
    """How a part is."""

    status: int
    code: str


class Sign(NamedTuple):
    """What a field's number says of a part, when it *shows* it."""

    part: str
    field_id: int
    verdict: Verdict
    shows: Callable[[int | float], bool] = bool


def _fail(part: str, field_id: int, code: str, shows: Callable[[int | float], bool] = bool) -> Sign:
    return Sign(part, field_id, Verdict(FAIL, f"DCGM_FR_{code}"), shows)


def _warn(part: str, field_id: int, code: str, shows: Callable[[int | float], bool] = bool) -> Sign:
    return Sign(part, field_id, Verdict(WARN, f"DCGM_FR_{code}"), shows)


# The numbers of field 1523 are NVML's recovery actions.
SIGNS = (
    _fail("MEM", 395, "ROW_REMAP_FAILURE"),
    _fail("MEM", 1507, "FAULTY_MEMORY"),
    _fail("MEM", 311, "VOLATILE_DBE_DETECTED"),
    _warn("MEM", 346, "SRAM_THRESHOLD"),
    _warn("MEM", 396, "PENDING_ROW_REMAP"),
    _warn("MEM", 392, "PENDING_PAGE_RETIREMENTS"),
    _warn("INFOROM", 84, "CORRUPT_INFOROM", lambda valid: not valid),
    _warn("THERMAL", 112, "CLOCKS_EVENT_THERMAL", lambda bits: bool(int(bits) & _HEAT)),
    _warn("POWER", 112, "CLOCKS_EVENT_POWER", lambda bits: bool(int(bits) & _BRAKE)),
    _fail("NVLINK", 171, "FABRIC_MANAGER_TRAINING_ERROR"),
    _fail("DRIVER", 1523, "GPU_RECOVERY_RESET", lambda action: action in (1, 6)),
    _fail("DRIVER", 1523, "GPU_RECOVERY_REBOOT", lambda action: action in (2, 7)),
    _fail("DRIVER", 1523, "GPU_RECOVERY_DRAIN_RESET", lambda action: action == 4),  # noqa: PLR2004
    _warn("DRIVER", 1523, "GPU_RECOVERY_DRAIN_P2P", lambda action: action == 3),  # noqa: PLR2004
    _warn("DRIVER", 1523, "IMEX_UNHEALTHY", lambda action: action == 5),  # noqa: PLR2004
)
NARROWED, DOWN = Verdict(WARN, "DCGM_FR_PCIE_WIDTH"), Verdict(FAIL, "DCGM_FR_NVLINK_DOWN")


def _fields_of(part: str) -> frozenset[int]:
    return frozenset(sign.field_id for sign in SIGNS if sign.part == part)


# The parts in dcgm-exporter's order, and the fields that tell of them. ALL is the GPU as a whole.
PARTS: Mapping[str, frozenset[int]] = {
    "PCIE": frozenset((PCIE_WIDTH,)),
    "NVLINK": _fields_of("NVLINK") | {NVLINK_STATE},
    **{part: _fields_of(part) for part in ("MEM", "INFOROM", "THERMAL", "POWER", "DRIVER")},
    "ALL": frozenset((XID_COUNT,)),
}
HEALTH_FIELDS = frozenset[int]().union(*PARTS.values())


def also_read(fields: Iterable[Field]) -> list[Field]:
    """List what the health needs beyond *fields*; nothing where it is not among them."""
    wanted = {field.id for field in fields}
    return [CATALOGUE[id_] for id_ in sorted(HEALTH_FIELDS - wanted)] if HEALTH in wanted else []


class Health:
    """Judges the GPUs of each sweep. Used by the sampler's thread alone; *key* names a series."""

    def __init__(self, key: Callable[[Device, tuple[tuple[str, str], ...]], SeriesKey]) -> None:
        self._key = key
        self._links = Links()

    def judged(self, snapshot: Snapshot, *, is_glance: bool) -> Snapshot:
        """Add the health of each GPU to a snapshot. A glance is not remembered."""
        if not snapshot.source_up:
            return snapshot
        read, untold = _by_gpu(snapshot)
        found = self._found(snapshot, is_glance=is_glance)
        numbers: dict[SeriesKey, int | float] = {}
        series = dict(snapshot.series)
        missing = list(snapshot.missing)
        for state in snapshot.states:
            uuid = state.device.uuid
            if not uuid or state.is_suspended:
                continue
            gaps = untold.get(uuid, {}) if state.up else {}
            signs = found.get(uuid, {})
            parts = _parts(read.get(uuid, {}), signs, gaps) if state.up else _silent(state, signs)
            for part, verdict in parts:
                attributes = (("health_error_code", verdict.code), ("health_watch", part))
                key = self._key(state.device, attributes)
                numbers[key], series[key] = verdict.status, Series(state.device, attributes)
            if gaps and not is_glance:
                failed = next(iter(gaps.values()))
                reason = f"{failed.field.name} was not told: {failed.reason}"
                missing.append(Missing(CATALOGUE[HEALTH], state.device, failed.gap, reason))
        return replace(snapshot, numbers={**snapshot.numbers, HEALTH: numbers}, series=series, missing=tuple(missing))

    def _found(self, snapshot: Snapshot, *, is_glance: bool) -> dict[str, dict[str, list[Verdict]]]:
        """Collect the signs of what is wrong, by GPU and part."""
        found: dict[str, dict[str, list[Verdict]]] = {}

        def note(uuid: str, part: str, verdict: Verdict) -> None:
            found.setdefault(uuid, {}).setdefault(part, []).append(verdict)

        links = self._links.copy() if is_glance else self._links
        for uuid in links.narrowed(snapshot):
            note(uuid, "PCIE", NARROWED)
        for uuid in links.down(snapshot):
            note(uuid, "NVLINK", DOWN)
        for sign in SIGNS:
            for key, number in snapshot.numbers.get(sign.field_id, {}).items():
                if sign.shows(number):
                    note(snapshot.series[key].device.gpu_uuid, sign.part, sign.verdict)
        for key, number in snapshot.numbers.get(XID_COUNT, {}).items():
            device, attributes = snapshot.series[key]
            code = dict(attributes)["xid"]
            if number and code.isdigit() and int(code) in GRAVE:
                note(device.gpu_uuid, "ALL", Verdict(FAIL, OFF_BUS if int(code) == FELL_OFF else XID))
        return found


def _by_gpu(snapshot: Snapshot) -> tuple[dict[str, dict[int, None]], dict[str, dict[int, Missing]]]:
    """Say, by GPU, which fields of health were read, and which were not told this time."""
    read: dict[str, dict[int, None]] = {}
    for field_id in HEALTH_FIELDS:
        for key in snapshot.numbers.get(field_id, ()):
            read.setdefault(snapshot.series[key].device.gpu_uuid, {})[field_id] = None
    untold: dict[str, dict[int, Missing]] = {}
    for gap in snapshot.missing:
        if gap.field.id in HEALTH_FIELDS and gap.gap is not Gap.UNSUPPORTED:
            untold.setdefault(gap.device.gpu_uuid, {})[gap.field.id] = gap
    return read, untold


def _parts(
    read: Mapping[int, None], found: Mapping[str, list[Verdict]], untold: Mapping[int, Missing]
) -> Iterator[tuple[str, Verdict]]:
    for part, fields in PARTS.items():
        if part in found:
            yield part, max(found[part], key=lambda verdict: verdict.status)
        elif not fields & untold.keys() and (fields & read.keys() or part == "ALL"):
            yield part, Verdict(PASS, WELL)


def _silent(state: GpuState, found: Mapping[str, list[Verdict]]) -> Iterator[tuple[str, Verdict]]:
    """Judge a GPU that does not answer, also by its XIDs. One that may not be asked is not known to be ill."""
    if state.gap is Gap.LOST:
        yield "ALL", Verdict(FAIL, OFF_BUS)
        return
    if state.gap is not Gap.DENIED:
        yield "DRIVER", Verdict(FAIL, MUTE)
    if "ALL" in found:
        yield "ALL", found["ALL"][0]
