"""What the fake DCGM answers, as values that tests change and write.

Rule 1: what is None or not there is not said: an attribute is blank, a field is blank for want of support.
Rule 2: lines() knows the format (described in c/scenario.c) and nothing else does. The fake knows the type of every
        field: a whole number is a double where the field is one.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from pathlib import Path
from typing import Self

from tests.fakedcgm.build import SONAME, functions, library
from tests.fakelib import scenario as common
from tests.fakelib.scenario import Changes, Hangs, Key, quoted, replaced

GPU, VGPU, SWITCH, GPU_I, GPU_CI, LINK, CPU, CPU_CORE, CONNECTX = range(1, 10)  # entity groups
XID_ERRORS = 230


class Blank(IntEnum):
    """In place of a value: blank, with status 0."""

    UNSAID = 0
    NOT_FOUND = 1
    NOT_SUPPORTED = 2
    NOT_PERMITTED = 3


class Status(IntEnum):
    """Of a GPU. LOST and DETACHED have no values."""

    UNKNOWN = 0
    OK = 1
    UNSUPPORTED = 2
    INACCESSIBLE = 3
    LOST = 4
    FAKE = 5
    DISABLED = 6
    DETACHED = 7


@dataclass(frozen=True, slots=True)
class Code:
    """In place of a value: blank, with this return code as status."""

    code: int


@dataclass(frozen=True, slots=True)
class Growing:
    """A number that grows with every sample taken."""

    first: float
    step: float


@dataclass(frozen=True, slots=True)
class Past:
    """Values that a field has had, in order: microseconds since 1970 and the value. The last one is the latest."""

    values: tuple[tuple[int, float | str], ...]


Scalar = int | float | str | bytes


@dataclass(frozen=True, slots=True)
class Time:
    """When values were measured: always `age` seconds ago; or `at` (µs since 1970), `step` later with every sample."""

    age: float | None = None
    at: int | None = None
    step: int = 0

    def line(self) -> str:
        """The line without the words that say whose time it is."""
        if self.at is not None:
            return f"time at_us {self.at} {self.step}"
        return f"time age_us {round((self.age or 0) * 1e6)}"


@dataclass(frozen=True, slots=True)
class Timed:
    """A value with a time of its own."""

    value: Scalar | Growing | Blank | Code
    time: Time


Value = Scalar | Blank | Code | Growing | Past | Timed | None


@dataclass(frozen=True, slots=True)
class Incident:
    """What a health check finds: a DCGM_HEALTH_WATCH_ bit, a result (10 warning, 20 failure), a dcgmError_t, a text."""

    system: int
    health: int
    code: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common(Changes):
    """What every entity has."""

    fields: Mapping[int, Value] = field(default_factory=dict)
    health: tuple[Incident, ...] = ()
    time: Time | None = None
    gone: bool = False
    errors: Mapping[Key, int | None] = field(default_factory=dict)
    delays: Mapping[Key, float] = field(default_factory=dict)  # seconds
    hangs: Hangs = frozenset()
    crashes: AbstractSet[Key] = frozenset()

    def common_lines(self) -> Iterator[str]:
        if self.time is not None:
            yield self.time.line()
        if self.gone:
            yield "gone"
        for identity, value in self.fields.items():
            yield from (f"field[{identity}] {line}" for line in _value_lines(value))
        for incident in self.health:
            yield f"health {incident.system} {incident.health} {incident.code} {quoted(incident.message)}"
        yield from common.rule_lines(self, functions())


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity(_Common):
    """An entity that is neither GPU nor instance: a switch, a link (see `link_id`), a CPU, a core."""

    group: int
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeInstance(_Common):
    """A compute instance. `id`: DCGM's; `nvml`: what NVML calls it."""

    nvml: int = 0
    id: int | None = None
    profile: int = 0
    slices: int = 1

    def lines(self) -> Iterator[str]:
        yield from _instance_lines(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInstance(_Common):
    """A GPU instance. `id`: DCGM's, 8 times the GPU's and its place if None; `nvml`: what NVML calls it."""

    nvml: int
    id: int | None = None
    profile: int = 0
    slices: int = 1
    parts: tuple[ComputeInstance, ...] = (ComputeInstance(),)

    def lines(self) -> Iterator[str]:
        yield from _instance_lines(self)
        for place, part in enumerate(self.parts):
            yield from (f"ci {place} {line}" for line in part.lines())


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu(_Common):
    """A GPU. Attributes that are None are blank. Temperatures in degrees Celsius, power in W, memory in MiB."""

    uuid: str
    id: int | None = None  # its slot if None
    status: Status = Status.OK
    nvml_index: int | None = None  # its slot if None
    architecture: int | None = None
    name: str | None = None
    brand: str | None = None
    pci: str | None = None
    serial: str | None = None
    vbios: str | None = None
    inforom: str | None = None
    driver: str | None = None
    pci_device: int | None = None
    pci_subsystem: int | None = None
    virtualization: int | None = None
    slowdown: int | None = None
    shutdown: int | None = None
    power_limit: int | None = None
    power_default: int | None = None
    power_enforced: int | None = None
    power_min: int | None = None
    power_max: int | None = None
    bar1: int | None = None
    fb_total: int | None = None
    fb_used: int | None = None
    fb_free: int | None = None
    persistence: int | None = None
    mig: int | None = None
    confidential: int | None = None
    profiling: tuple[tuple[int, ...], ...] = ()  # metric groups: major, minor, fields...
    instances: tuple[GpuInstance, ...] = ()

    def lines(self) -> Iterator[str]:
        """The lines of this GPU, without the words that name it."""
        if self.id is not None:
            yield f"id {self.id}"
        if self.status != Status.OK:
            yield f"status {int(self.status)}"
        for name in _ATTRIBUTES:
            value = getattr(self, name)
            if value is not None:
                yield f"{name} {common.value(value)}"
        yield from (f"profiling {' '.join(map(str, group))}" for group in self.profiling)
        yield from self.common_lines()
        for place, instance in enumerate(self.instances):
            yield from (f"gi {place} {line}" for line in instance.lines())


_NOT_ATTRIBUTES = {each.name for each in fields(_Common)} | {"id", "status", "profiling", "instances"}
_ATTRIBUTES = tuple(each.name for each in fields(Gpu) if each.name not in _NOT_ATTRIBUTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario(_Common):
    """All that DCGM answers. Its own fields belong to no entity; its rules and its time hold for every entity.

    `gone`: there is no host engine. The embedded one does not care.
    """

    gpus: tuple[Gpu, ...] = ()  # in the order of DCGM's lists
    entities: tuple[Entity, ...] = ()
    release: str = "4.6.0"
    engine: int = 1  # another number: the host engine was started anew
    addresses: tuple[str, ...] = ()  # that can be connected to; all if empty
    slow_refusal: bool = False  # any other address takes the whole timeout
    no_nvml: bool = False
    no_profiling: bool = False  # the profiling module is not there
    needs_update: bool = False  # samples come with dcgmUpdateAllFields only
    check_every: float = 0.0  # seconds; look at the file no more often
    unknown: AbstractSet[int] = frozenset()  # fields that are newer than the engine
    missing: AbstractSet[str] = frozenset()  # functions this DCGM lacks; see library()

    def with_gpu(self, slot: int, /, **changes: object) -> Self:
        """A copy with the GPU in *slot* changed; see `but`."""
        return replace(self, gpus=replaced(self.gpus, slot, self.gpus[slot].but(**changes)))

    def with_instance(self, slot: int, place: int, /, **changes: object) -> Self:
        """A copy with one GPU instance changed; see `but`."""
        old = self.gpus[slot].instances
        return self.with_gpu(slot, instances=replaced(old, place, old[place].but(**changes)))

    def with_xid(self, slot: int, code: int, *, at: int) -> Self:
        """A copy in which one more XID has happened, *at* microseconds since 1970."""
        old = self.gpus[slot].fields.get(XID_ERRORS)
        before = old.values if isinstance(old, Past) else ()
        return self.with_gpu(slot, fields={XID_ERRORS: Past((*before, (at, code)))})

    def library(self, soname: str = SONAME) -> Path:
        """The folder of the fake that lacks what this DCGM lacks."""
        return library(self.missing, soname)

    def lines(self) -> Iterator[str]:
        """The lines of the file. ValueError for a function that the fake does not have."""
        yield f"release {quoted(self.release)}"
        yield f"engine {self.engine}"
        yield from (word for word in _SWITCHES if getattr(self, word))
        yield from (f"address {quoted(address)}" for address in self.addresses)
        if self.check_every:
            yield f"check_us {round(self.check_every * 1e6)}"
        yield from (f"unknown {identity}" for identity in sorted(self.unknown))
        yield from (f"missing {name}" for name in sorted(self.missing))
        for slot, gpu in enumerate(self.gpus):
            yield from (f"gpu {slot} {line}" for line in gpu.lines())
        for entity in self.entities:  # with a line of its own, or one of which nothing is said would not be there
            yield from (f"entity {entity.group} {entity.id} {line}" for line in ("status 1", *entity.common_lines()))
        yield from (f"system {line}" for line in self.but(gone=False).common_lines())

    def write(self, path: Path) -> Path:
        """Replace the file in one step; the fake sees it at its next call."""
        return common.write(path, self.lines())


_SWITCHES = ("gone", "slow_refusal", "no_nvml", "no_profiling", "needs_update")


def link_id(gpu: int, link: int, *, of: int = GPU) -> int:
    """The entity id of an NVLink, as DCGM 4.3 and later put it together."""
    return of | link << 8 | gpu << 24


def _instance_lines(instance: GpuInstance | ComputeInstance) -> Iterator[str]:
    if instance.id is not None:
        yield f"id {instance.id}"
    yield from (f"{word} {getattr(instance, word)}" for word in ("nvml", "profile", "slices"))
    yield from instance.common_lines()


def _value_lines(value: Value) -> Iterator[str]:
    if isinstance(value, Timed):
        yield from _value_lines(value.value)
        yield value.time.line()
    elif isinstance(value, Past):
        if not value.values:
            yield "! -14"  # NO_DATA while nothing has happened
        yield from (f"past {at} {common.value(each)}" for at, each in value.values)
    elif isinstance(value, Growing):
        yield f"= {value.first!r}"
        yield f"+ {value.step!r}"
    elif isinstance(value, Blank):
        yield f"blank {int(value)}"
    elif isinstance(value, Code):
        yield f"! {value.code}"
    elif value is not None:
        yield f"= {common.value(value)}"
