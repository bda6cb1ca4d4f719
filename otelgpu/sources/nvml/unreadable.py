"""Why NVML cannot give a field of the catalogue: for the documentation.

Rule 1: a field stands here or in a table of questions, never in both and never in neither.
Rule 2: a reason says what there is in its place, where there is something. What is said of NVML is that of nvml.h of
        CUDA 13.5, and of DCGM that of its 4.6 fields.
"""

from collections.abc import Iterable, Mapping

from otelgpu.fields import CATALOGUE, Field, Level
from otelgpu.sources.dcgm.readable import READABLE as BY_DCGM

_PID = "the list of processes is no number; `--processes-by` shows what each uses"
_PORT = (
    "a counter of the chip's port: NVML has it (`nvmlDeviceReadPRMCounters_v1` from driver 595 on) by the number of a "
    "port, and does not say which port a link has"
)
_DIAG = "the result of DCGM's own diagnostics; NVML has no tests"
_PROFILES = "a mask of 255 workload power profiles is no number"
_TOPOLOGY = "the whole machine in one struct is no number"
_IMEX = "the IMEX daemon is asked by its own program; NVML does not speak to it"

_FIELDS: tuple[tuple[Iterable[int], str], ...] = (
    ((3,), "the name of the program that asks, which is otelgpu"),
    ((6,), "an event of DCGM's own; `otelgpu_gpus` counts the GPUs by state"),
    ((60, 61), _TOPOLOGY + "; `DCGM_EXP_P2P_STATUS` has each pair"),
    ((62,), _TOPOLOGY + "; `DCGM_FI_DEV_CPU_AFFINITY_0` to `_3` have it for each GPU"),
    ((64,), "DCGM packs the states of all pairs into one number; `DCGM_EXP_P2P_STATUS` has each pair"),
    ((75, 76, 77), "a struct that is no number; the profile and the id of an instance are labels of all its series"),
    ((91,), "sync boost groups are DCGM's own and no longer maintained"),
    ((130,), "a list of pairs of clocks is no number"),
    ((165, 166, 167), _PROFILES),
    ((205,), "a struct for each process is no number; `--processes-by` shows what each uses"),
    ((220, 221), _PID),
    (range(350, 364), _DIAG),
    ((450,), "NVML has no event for NVLink errors but XID 74, which `DCGM_FI_DEV_XID_ERRORS` shows"),
    ((506,), "a struct; `OTELGPU_ENC_SESSIONS`, `OTELGPU_ENC_FRAME_RATE` and `OTELGPU_ENC_LATENCY` are its numbers"),
    ((507,), "a struct; `OTELGPU_FBC_SESSIONS`, `OTELGPU_FBC_FRAME_RATE` and `OTELGPU_FBC_LATENCY` are its numbers"),
    ((508,), "a list of sessions is no number; `OTELGPU_FBC_SESSIONS` counts them"),
    ((*range(580, 593), 1509), _PORT),
    ((1502, 1503), _IMEX),
)
# Kinds of entity that NVML does not know; the fields of a GPU, an instance or a link of theirs stand above, one by one.
_LEVELS: Mapping[Level, str] = {
    Level.VGPU: "of a vGPU on its host, which is no GPU there; in its guest a vGPU is read as a GPU is",
    Level.SWITCH: "of an NVSwitch, which NVML does not know (NSCQ does)",
    Level.CPU: "of a CPU, which NVML does not know",
    Level.CORE: "of a core of a CPU, which NVML does not know",
    Level.CONNECTX: "of a network adapter, which NVML does not know",
}
_SWITCH_LINKS = range(700, 900)  # DCGM's ids of the switch, of which some belong to its links


def unreadable(readable: Iterable[int]) -> dict[int, str]:
    """Say of each field of the catalogue that is not *readable* why NVML cannot give it.

    Raise ValueError for a field without a reason, and for a reason for a field that can be read: a change of the
    tables was half done.
    """
    named = {id_: reason for ids, reason in _FIELDS for id_ in ids}
    known = frozenset(readable)
    reasons = {
        id_: reason for id_, field in CATALOGUE.items() if id_ not in known and (reason := _reason(field, named))
    }
    stale = sorted(named.keys() - reasons.keys())
    lacking = sorted(CATALOGUE.keys() - known - reasons.keys())
    if stale or lacking:
        raise ValueError(f"fields with a reason that can be read: {stale}; neither read nor with a reason: {lacking}")
    return {id_: f"{reason}; `--source dcgm` reads it" if id_ in BY_DCGM else reason for id_, reason in reasons.items()}


def _reason(field: Field, named: Mapping[int, str]) -> str:
    if field.level is Level.LINK and field.id in _SWITCH_LINKS:
        return "of a link of an NVSwitch, which NVML does not know (NSCQ does)"
    return named.get(field.id) or _LEVELS.get(field.level, "")
