"""Scenarios of machines, as DCGM sees them.

Rule 1: the facts of a model are those of tests/fakenvml/models.py, so that both fakes describe the same machine (UUIDs,
        PCI addresses, temperatures, power); what DCGM alone can tell stands here.
Rule 2: nothing is random: the same call gives the same file. Every GPU and every field has another number.
"""

from collections.abc import Callable, Iterable

from tests.fakedcgm.scenario import ComputeInstance, Gpu, GpuInstance, Past, Scenario, Value
from tests.fakenvml import models as nvml
from tests.fakenvml.models import A100, H100, T4, Model

BRANDS = {nvml.TESLA: "Tesla", nvml.GEFORCE: "GeForce", nvml.NVIDIA: "Nvidia"}
NO_XID_SINCE = 1_767_225_600_000_000
DRAM_ACTIVE = 1005  # of a GPU instance, not of a compute instance
PROFILING = (1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009, 1010)
HOPPER_PROFILING = (*PROFILING, 1011, 1012, 1013, 1014, 1015, 1016, 1017)


def gpu(m: Model, number: int) -> Gpu:
    """The *number*-th GPU of a model, the one that the fake driver has too."""
    same = nvml.gpu(m, number)
    total, reserved, used = m.memory
    limits = m.thresholds or (None, None, None)
    least, most = (round(limit) for limit in m.power_limits)
    return Gpu(
        uuid=same.uuid,
        architecture=m.architecture,
        name=m.name,
        brand=BRANDS[m.brand],
        pci=same.pci,
        serial=same.serial,
        vbios=m.vbios,
        inforom=m.inforom,
        driver=m.driver,
        pci_device=m.pci_ids[0],
        pci_subsystem=m.pci_ids[1],
        virtualization=0,
        shutdown=limits[0],
        slowdown=limits[1],
        power_limit=most,
        power_default=most,
        power_enforced=most,
        power_min=least,
        power_max=most,
        bar1=m.bar1,
        fb_total=total,
        fb_used=used,
        fb_free=total - reserved - used,
        persistence=1,
        mig=0,
        fields=_fields(m, number, same.uuid, same.pci),
        profiling=_metric_groups(m),
    )


def _metric_groups(m: Model) -> tuple[tuple[int, ...], ...]:
    if m.architecture < nvml.VOLTA or m is T4:
        return ()
    return ((0, 0, *(HOPPER_PROFILING if m.gpm else PROFILING)),)


def _fields(m: Model, number: int, uuid: str, pci: str | None) -> dict[int, Value]:
    total, reserved, used = m.memory
    fields: dict[int, Value] = {
        50: m.name,
        51: BRANDS[m.brand],
        52: number,
        53: m.serial,
        54: uuid,
        55: number,
        57: pci,
        100: m.clocks[0],
        101: m.clocks[1],
        112: 1,
        140: m.memory_temperature,
        150: m.temperature + number,
        155: m.power + number,
        156: 1_000_000_000 + 1_000_000 * number,
        160: m.power_limits[1],
        190: m.pstate,
        202: m.pcie_replays + number,
        203: 3 + number,
        204: 4 + number,
        206: 6 + number,
        207: 7 + number,
        230: Past(((NO_XID_SINCE, 0),)),
        250: total,
        251: total - reserved - used,
        252: used,
        253: reserved,
    }
    if m.remapped is not None:
        fields |= {393: number, 394: 0, 395: 0}
    if m.links:
        fields[449] = 1_000_000 + number
    for order, identity in enumerate(field for group in _metric_groups(m) for field in group[2:]):
        # Ratios; bytes for the fields that count traffic.
        fields[identity] = 1_000_000 * (order + 1) + number if identity in _TRAFFIC else (order + 1 + number) / 100
    return fields


_TRAFFIC = frozenset({1009, 1010, 1011, 1012})


def machine(models: Iterable[Model], count: int = 1) -> Scenario:
    """*count* GPUs of each model."""
    gpus = [gpu(model, number) for model in models for number in range(count)]
    driver = gpus[0].driver if gpus else None
    return Scenario(
        # Numbers are given in the order of the machine.
        gpus=tuple(each.but(fields={52: slot, 55: slot}) for slot, each in enumerate(gpus)),
        fields={1: driver, 4: len(gpus)},
    )


def h100(count: int = 1) -> Scenario:
    """All profiling fields."""
    return machine([H100], count)


def t4(count: int = 1) -> Scenario:
    """No profiling, no memory temperature."""
    return machine([T4], count)


def a100(count: int = 1) -> Scenario:
    """The first ten profiling fields; MIG is there and off."""
    return machine([A100], count)


def mixed() -> Scenario:
    """A T4, an A100 and an H100: not all have profiling fields."""
    return machine([T4, A100, H100])


def a100_mig() -> Scenario:
    """An A100 with two 1g.5gb and one 2g.10gb, and a second A100 with MIG off: the machine of the fake driver."""
    scenario = a100(2)
    same = nvml.a100_mig().gpus[0]
    instances = tuple(
        _instance(scenario.gpus[0], place, each.gi, each.attributes[6], (each.memory or 0) // nvml.MIB)
        for place, each in enumerate(same.instances)
        if each is not None and each.attributes is not None
    )
    return scenario.with_gpu(0, mig=1, instances=instances, fields=dict.fromkeys((203, 204, 206, 207, *PROFILING)))


def _instance(whole: Gpu, place: int, gi: int, slices: int, memory: int) -> GpuInstance:
    used = 3 + place
    fields: dict[int, Value] = {250: memory, 251: memory - used, 252: used}
    profiling: dict[int, Value] = {identity: (identity - 1000 + gi) / 100 for identity in PROFILING[:8]}
    part = {identity: value for identity, value in profiling.items() if identity != DRAM_ACTIVE}
    return GpuInstance(
        nvml=gi,
        profile={1: 19, 2: 14, 3: 9}[slices],
        slices=slices,
        fields={**whole.fields, **dict.fromkeys((203, 204, 206, 207)), **fields, **profiling},
        parts=(ComputeInstance(profile=0, slices=slices, fields={**fields, **part}),),
    )


def none() -> Scenario:
    """DCGM without a GPU."""
    return machine([])


MAKERS: dict[str, Callable[[], Scenario]] = {
    "h100": lambda: h100(8),
    "t4": lambda: t4(2),
    "a100": lambda: a100(2),
    "a100_mig": a100_mig,
    "mixed": mixed,
    "none": none,
}
