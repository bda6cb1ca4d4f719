"""Which fields DCGM gives here, and why not the others.

Rule 1: all that DCGM keeps for a GPU or an instance as one number or text is read; what is left out stands here, with
        the reason.
"""

from otelgpu.counts import CLOCK_COUNTS, XID_COUNTS
from otelgpu.fields import CATALOGUE, Field, Level
from otelgpu.fields.row import Number
from otelgpu.health import HEALTH

PROFILING = range(1001, 1100)  # DCGM_FI_PROF_FIRST_ID and up
XID_ERRORS, CLOCK_REASONS, NAME, UUID = 230, 112, 50, 54
COUNTED = XID_COUNTS | CLOCK_COUNTS

_LICENSE = 526  # the one field of a vGPU that is kept for the GPU as well: a guest's
_LEVELS = frozenset((Level.GLOBAL, Level.GPU, Level.GPU_I, Level.GPU_CI))
_OWN = range(9000, 10_000)  # which DCGM does not have
_LEFT_OUT = {
    3: "the name of the program that asks the driver, which is the engine",
    9004: "NVML knows the peers of a GPU; `--source nvml` reads it",
}
_REASONS = {
    Level.VGPU: "of a vGPU on its host, which is not asked for",
    Level.SWITCH: "of an NVSwitch, which is not asked for",
    Level.LINK: "of a single link, an entity of its own in DCGM, which is not asked for; `--source nvml` reads it",
    Level.CPU: "of a CPU, which is not asked for",
    Level.CORE: "of a core of a CPU, which is not asked for",
    Level.CONNECTX: "of a network adapter, which is not asked for",
}


def _why_not(field: Field) -> str | None:
    """Say why a field is not read; None where it is."""
    if field.id in COUNTED or field.id == HEALTH:
        return None
    if field.id in _LEFT_OUT:
        return _LEFT_OUT[field.id]
    if field.id in _OWN:
        return "a field of otelgpu's own, which NVML answers and DCGM does not have"
    if field.level not in _LEVELS and field.id != _LICENSE:
        return _REASONS[field.level]
    return "a struct or a list, which is no number" if field.number is Number.BINARY else None


READABLE = frozenset(id_ for id_, field in CATALOGUE.items() if _why_not(field) is None)
# What an instance answers itself. Name, UUID and XIDs are asked of the GPU, as with NVML.
OF_INSTANCE = frozenset(
    id_ for id_ in READABLE if CATALOGUE[id_].level in (Level.GPU_I, Level.GPU_CI)
) - {XID_ERRORS, NAME, UUID}  # fmt: skip


def unreadable() -> dict[int, str]:
    """Say of each field of the catalogue that is not READABLE why this source does not give it."""
    return {id_: why for id_, field in CATALOGUE.items() if (why := _why_not(field))}
