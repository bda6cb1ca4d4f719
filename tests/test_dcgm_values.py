"""Every field that DCGM gives, from the engine's answer to the page: the same as through NVML.

Rule 1: what DCGM answers is worked out here from what the driver would: by what DCGM's own table of fields and its
        documentation say of units, never by what otelgpu does with them.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from otelgpu.fields import CATALOGUE, Field
from otelgpu.model import Snapshot
from otelgpu.sources.dcgm.readable import COUNTED, READABLE, XID_ERRORS
from otelgpu.sources.nvml.source import NvmlSource
from tests import fakedcgm
from tests.conftest import RECORDINGS
from tests.fakenvml.everything import everything
from tests.harness import Line, Node, lines_of

Start = Callable[..., Node]
MIB = 1 << 20
REFERENCE = RECORDINGS.parent / "reference"
BOTH = sorted((READABLE & NvmlSource.readable) - COUNTED - {XID_ERRORS, 9003})
NAMES = tuple(CATALOGUE[id_].name for id_ in BOTH)
LABELS = {CATALOGUE[id_].name for id_ in BOTH if not CATALOGUE[id_].is_numeric}

# DCGM's units where they are not the driver's, by field.
WATTS = (155, 157, *range(160, 165))
MEBIBYTES = (90, 92, 93, *range(250, 254))
RATIOS = (*range(1001, 1009), *range(1013, 1035))
BYTES = (*range(1009, 1013), *range(1040, 1080))
LINK_MEGABYTES = (*range(440, 450), *range(475, 481), *range(494, 497), *range(825, 844), *range(879, 898))

# 4.9 shows these in a smaller unit than the one that DCGM has them in.
GRAINS = {CATALOGUE[id_].dcgm49.name: MIB for id_ in MEBIBYTES}
GRAINS |= {CATALOGUE[id_].dcgm49.name: 1_024_000 for id_ in LINK_MEGABYTES if CATALOGUE[id_].dcgm49.unit == "By/s"}


def engines_number(field: Field, number: float | str) -> int | float | str:
    """What DCGM has where the driver says *number*."""
    if isinstance(number, str):
        return number
    if field.id in WATTS:
        return number / 1000
    if field.id in MEBIBYTES:
        return int(number) // MIB
    if field.id in RATIOS:
        return number / 100
    if field.id in BYTES:
        return int(number * MIB)
    if field.id in LINK_MEGABYTES:
        return int(number / 1024 / 1000)
    return int(number) if field.dcgm.number == "int" else float(number)


def as_engine(snapshot: Snapshot) -> fakedcgm.Gpu:
    """The GPU of a snapshot as DCGM has it."""
    (state,) = snapshot.states
    device = state.device
    read: dict[int, int | float | str] = {
        id_: number for id_, numbers in snapshot.numbers.items() for number in numbers.values() if id_ in READABLE
    }
    read |= {field.id: text for rows in snapshot.labels.values() for field, text in rows}
    read |= {52: device.index, 55: device.minor or 0}
    return fakedcgm.Gpu(
        uuid=device.uuid,
        name=device.model,
        pci=device.pci_bus_id,
        serial=device.serial,
        vbios=device.vbios_version,
        driver=device.driver_version,
        fields={id_: engines_number(CATALOGUE[id_], number) for id_, number in read.items()},
        profiling=((0, 0, *(id_ for id_ in read if id_ in range(1001, 1065))), (1, 0, *range(1065, 1100))),
    )


def shared(gpu: fakedcgm.Gpu) -> fakedcgm.Scenario:
    """A machine with this GPU, which has the values of the system as well."""
    system = {id_: gpu.fields[id_] for id_ in (1, 2, 4, 5) if id_ in gpu.fields}
    return fakedcgm.Scenario(gpus=(gpu,), fields=system)


def test_a_field_shows_through_dcgm_what_it_shows_through_nvml(node: Start, dcgm_node: Start) -> None:
    """A dashboard may not tell which of the two was asked: units, labels, rounding, and which field is which."""
    settings: dict[str, Any] = {"fields": NAMES, "compat": "4.8.2,4.9"}
    driver = node(everything(), **settings)
    driver.settled_page()
    snapshot = driver.sweep()
    asked = driver.page(sweep=False)  # of the same sweep: a rate is another in the next
    engine = dcgm_node(shared(as_engine(snapshot)), **settings)
    told = engine.page()

    assert [_named(line) for line in lines_of(told)] == [_named(line) for line in lines_of(asked)]
    wrong = [
        (one.name, one.value, other.value)
        for one, other in zip(_fields(told), _fields(asked), strict=True)
        if not math.isclose(one.value, other.value, rel_tol=1e-12, abs_tol=_grain(one.name))
    ]
    assert not wrong
    shown = {line.name for line in _fields(told)}
    lacking = {CATALOGUE[id_].name for id_ in BOTH if CATALOGUE[id_].is_numeric} - shown
    assert not lacking, "these have no number in this test"


def _fields(page: str) -> list[Line]:
    return [line for line in lines_of(page) if line.name.startswith("DCGM_")]


def _named(line: Line) -> tuple[str, Mapping[str, str]]:
    return (line.name, line.labels) if line.name.startswith("DCGM_") else ("", {})


def _grain(name: str) -> float:
    """How far DCGM's rounding may be off, in the unit that is shown: less than one of its own steps."""
    return GRAINS.get(name, 0)
