"""What the fake driver answers, as values that tests change and write.

Rule 1: a fact by meaning (name, pci, ...) is only another spelling of an answer; an answer given by function wins.
Rule 2: None means the driver has no such thing: NOT_SUPPORTED.
Rule 3: text() knows the format (described in c/scenario.c) and nothing else does.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from tests.fakelib import scenario as common
from tests.fakelib.scenario import Changes, Hangs, quoted, replaced
from tests.fakenvml.build import functions, library

ALL_LINKS = 0xFFFF_FFFF  # scopeId for the sum over all NVLinks
NO_INSTANCE = 0xFFFF_FFFF

Answer = common.Answer
Key = common.Key
FieldKey = int | tuple[int, int]  # field id, or (field id, scope)

_WIDE_FIELDS = frozenset(
    {83, 191, *range(3, 29), *range(74, 82), 138, 139, 140, 141, *range(201, 222), *range(235, 251), 269, 270, 271}
)


@dataclass(frozen=True, slots=True)
class Code:
    """In place of a number: the NVML return code of this one field or metric."""

    code: int


@dataclass(frozen=True, slots=True)
class Typed:
    """A field value of a given type: f64 u32 ul u64 i64 i32 u16."""

    type: str
    number: float


@dataclass(frozen=True, slots=True)
class Running:
    """In place of a metric's number: a total; the metric is what it has grown by between the two samples."""

    total: float


FieldAnswer = int | float | Code | Typed | None
MetricAnswer = int | float | Code | Running | None


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a device; `memory` in bytes."""

    pid: int
    memory: int
    gi: int = NO_INSTANCE
    ci: int = NO_INSTANCE


@dataclass(frozen=True, slots=True)
class Xid:
    """An event: the sequence numbers of a scenario only grow."""

    seq: int
    gpu: int
    code: int
    gi: int = NO_INSTANCE
    ci: int = NO_INSTANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance(Changes):
    """A MIG device: one compute instance of a GPU instance."""

    uuid: str
    gi: int
    ci: int = 0
    name: str | None = None
    memory: int | None = None  # bytes in all
    memory_used: int = 0
    attributes: tuple[int, ...] | None = None  # in the order of nvmlDeviceAttributes_t
    placement: tuple[int, int, int] | None = None  # profile id, first memory slice, memory slices; None: not told
    processes: tuple[Process, ...] | None = ()
    answers: Mapping[Key, Answer] = field(default_factory=dict)
    fields: Mapping[FieldKey, FieldAnswer] = field(default_factory=dict)
    gpm: Mapping[int, MetricAnswer] = field(default_factory=dict)
    errors: Mapping[Key, int | None] = field(default_factory=dict)
    delays: Mapping[Key, float] = field(default_factory=dict)  # seconds
    hangs: Hangs = frozenset()
    crashes: AbstractSet[Key] = frozenset()

    def facts(self) -> dict[Key, Answer]:
        """The facts by meaning as answers."""
        facts: dict[Key, Answer] = {
            "nvmlDeviceGetName": self.name,
            "nvmlDeviceGetAttributes_v2": self.attributes,
            "nvmlGpuInstanceGetInfo": self.placement,
            "nvmlDeviceGetComputeRunningProcesses_v3": _process_list(self.processes),
        }
        if self.memory is not None:
            free = self.memory - self.memory_used
            facts["nvmlDeviceGetMemoryInfo"] = (self.memory, free, self.memory_used)
            facts["nvmlDeviceGetMemoryInfo_v2"] = (self.memory, 0, free, self.memory_used)
        return facts

    def lines(self) -> Iterator[str]:
        """The lines of this device, without the words that name it."""
        yield f"uuid {quoted(self.uuid)}"
        yield f"gi {self.gi}"
        yield f"ci {self.ci}"
        yield from _device_lines(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu(Changes):
    """A GPU. `lost`: fell off the bus. `gone`: no longer counted, later GPUs move up."""

    uuid: str
    name: str | None = "NVIDIA H100 80GB HBM3"
    pci: str | None = "00000000:53:00.0"
    pci_ids: tuple[int, int] = (0x233010DE, 0x16C110DE)  # device, subsystem
    architecture: int | None = 9
    compute: tuple[int, int] | None = None  # CUDA compute capability
    brand: int | None = None
    serial: str | None = None
    minor: int | None = None
    vbios: str | None = None
    board_part: str | None = None
    processes: tuple[Process, ...] | None = ()
    graphics_processes: tuple[Process, ...] | None = ()
    answers: Mapping[Key, Answer] = field(default_factory=dict)
    fields: Mapping[FieldKey, FieldAnswer] = field(default_factory=dict)
    gpm: Mapping[int, MetricAnswer] = field(default_factory=dict)
    errors: Mapping[Key, int | None] = field(default_factory=dict)
    delays: Mapping[Key, float] = field(default_factory=dict)  # seconds
    hangs: Hangs = frozenset()
    crashes: AbstractSet[Key] = frozenset()
    instances: tuple[Instance | None, ...] = ()  # by MIG index; None is a hole
    lost: bool = False
    gone: bool = False

    def facts(self) -> dict[Key, Answer]:
        """The facts by meaning as answers."""
        return {
            "nvmlDeviceGetName": self.name,
            "nvmlDeviceGetPciInfo_v3": None if self.pci is None else (self.pci, *self.pci_ids),
            "nvmlDeviceGetArchitecture": self.architecture,
            "nvmlDeviceGetCudaComputeCapability": self.compute,
            "nvmlDeviceGetBrand": self.brand,
            "nvmlDeviceGetSerial": self.serial,
            "nvmlDeviceGetMinorNumber": self.minor,
            "nvmlDeviceGetVbiosVersion": self.vbios,
            "nvmlDeviceGetBoardPartNumber": self.board_part,
            "nvmlDeviceGetComputeRunningProcesses_v3": _process_list(self.processes),
            "nvmlDeviceGetGraphicsRunningProcesses_v3": _process_list(self.graphics_processes),
        }

    def with_instance(self, index: int, /, **changes: Any) -> Self:
        """A copy with MIG device *index* changed; see `but`."""
        old = self.instances[index]
        if old is None:
            raise ValueError(f"{self.uuid} has no MIG device {index}")
        return replace(self, instances=replaced(self.instances, index, old.but(**changes)))

    def without_instance(self, index: int, /) -> Self:
        """A copy in which MIG device *index* was destroyed; the others keep their index."""
        return replace(self, instances=replaced(self.instances, index, None))

    def lines(self) -> Iterator[str]:
        """The lines of this GPU, without the words that name it."""
        yield f"uuid {quoted(self.uuid)}"
        if self.lost:
            yield "lost"
        if self.gone:
            yield "gone"
        yield from _device_lines(self)
        for index, instance in enumerate(self.instances):
            if instance is not None:
                yield from (f"mig {index} {line}" for line in instance.lines())


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario(Changes):
    """All that the driver answers. Its own rules hold for calls without a device, and for every GPU."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = "580.105.08"
    nvml: str | None = "13.580.105.08"
    cuda: int | None = 13000
    events: tuple[Xid, ...] = ()
    missing: AbstractSet[str] = frozenset()  # functions this driver lacks; see library()
    global_lock: bool = False  # the driver takes one call at a time
    check_every: float = 0.0  # seconds; look at the file no more often (for benchmarks)
    gone_code: int | None = None  # what handles of a GPU that is gone answer, GPU_IS_LOST if None
    removed_code: int | None = None  # what handles of a destroyed MIG device answer, NOT_FOUND if None
    answers: Mapping[Key, Answer] = field(default_factory=dict)
    errors: Mapping[Key, int | None] = field(default_factory=dict)
    delays: Mapping[Key, float] = field(default_factory=dict)  # seconds
    hangs: Hangs = frozenset()
    crashes: AbstractSet[Key] = frozenset()

    def with_gpu(self, slot: int, /, **changes: Any) -> Self:
        """A copy with the GPU in *slot* changed; see `but`."""
        return replace(self, gpus=replaced(self.gpus, slot, self.gpus[slot].but(**changes)))

    def with_instance(self, slot: int, index: int, /, **changes: Any) -> Self:
        """A copy with one MIG device changed; see `but`."""
        return replace(self, gpus=replaced(self.gpus, slot, self.gpus[slot].with_instance(index, **changes)))

    def without_instance(self, slot: int, index: int, /) -> Self:
        """A copy in which one MIG device was destroyed."""
        return replace(self, gpus=replaced(self.gpus, slot, self.gpus[slot].without_instance(index)))

    def with_xid(self, gpu: int, code: int, *, gi: int = NO_INSTANCE, ci: int = NO_INSTANCE) -> Self:
        """A copy in which one more XID has happened."""
        seq = max((event.seq for event in self.events), default=0) + 1
        return replace(self, events=(*self.events, Xid(seq, gpu, code, gi, ci)))

    def library(self) -> Path:
        """The folder of the fake that lacks what this driver lacks."""
        return library(self.missing)

    def lines(self) -> Iterator[str]:
        """The lines of the file."""
        if self.driver is not None:
            yield f"driver {quoted(self.driver)}"
        if self.nvml is not None:
            yield f"nvml {quoted(self.nvml)}"
        if self.cuda is not None:
            yield f"cuda {self.cuda}"
        if self.global_lock:
            yield "globallock"
        if self.check_every:
            yield f"check_us {round(self.check_every * 1e6)}"
        for word, code in (("gone_code", self.gone_code), ("removed_code", self.removed_code)):
            if code is not None:
                yield f"{word} {code}"
        yield from (f"missing {name}" for name in sorted(self.missing))
        yield from (f"system {line}" for line in _rule_lines(self, self.answers))
        for slot, gpu in enumerate(self.gpus):
            yield from (f"gpu {slot} {line}" for line in gpu.lines())
        for event in sorted(self.events, key=lambda event: event.seq):
            yield f"event {event.seq} gpu {event.gpu} xid {event.code} gi {event.gi} ci {event.ci}"

    def text(self) -> str:
        """The file as the fake reads it. ValueError for a function that the fake does not have."""
        return "\n".join(self.lines()) + "\n"

    def write(self, path: Path) -> Path:
        """Replace the file in one step; the fake sees it at its next call."""
        return common.write(path, self.lines())


Device = Gpu | Instance


def _process_list(processes: tuple[Process, ...] | None) -> Answer:
    if processes is None:
        return None
    return tuple(number for p in processes for number in (p.pid, p.memory, p.gi, p.ci))


def _device_lines(device: Device) -> Iterator[str]:
    answers: dict[Key, Answer] = {_normal(key): answer for key, answer in device.facts().items()}
    answers.update({_normal(key): answer for key, answer in device.answers.items()})
    yield from _rule_lines(device, answers)
    for key, number in device.fields.items():
        if number is not None:
            identity, scope = key if isinstance(key, tuple) else (key, 0)
            yield f"field[{identity}/{scope}] {_field(identity, number)}"
    for metric, value in device.gpm.items():
        if value is not None:
            yield f"gpm[{metric}] {_metric(value)}"


def _rule_lines(owner: Device | Scenario, answers: Mapping[Key, Answer]) -> Iterator[str]:
    yield from common.answer_lines(answers, functions())
    yield from common.rule_lines(owner, functions())


def _normal(key: Key) -> tuple[str | int, ...]:
    return (key,) if isinstance(key, str) else key


def _field(identity: int, number: float | Code | Typed) -> str:
    if isinstance(number, Code):
        return f"! {number.code}"
    if isinstance(number, Typed):
        return f"{number.type} {number.number}"
    if not isinstance(number, int):
        return f"f64 {number!r}"
    kind = "i32" if number < 0 else "u64" if identity in _WIDE_FIELDS or number >= 1 << 32 else "u32"
    return f"{kind} {number}"


def _metric(value: float | Code | Running) -> str:
    if isinstance(value, Code):
        return f"! {value.code}"
    return f"+ {value.total}" if isinstance(value, Running) else f"= {value}"
