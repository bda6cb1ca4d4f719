"""The values that travel from a source to a reader.

Rule 1: everything here is frozen; a value is made once, by the module that knows it, and only read afterwards.
Rule 2: a value that could not be read is a Missing with its Gap; no number stands for "unknown".
Rule 3: a Reading holds the driver's own number in the driver's own unit (the catalogue row names it).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from otelgpu.fields import Field

Attributes: TypeAlias = tuple[tuple[str, str], ...]
SeriesKey: TypeAlias = str


class Gap(StrEnum):
    """Why a value is missing."""

    UNSUPPORTED = "unsupported"  # this device or driver never answers it
    DENIED = "denied"  # the process may not ask
    LOST = "lost"  # the GPU has fallen off the bus, or needs a reset
    FAILED = "failed"  # the driver gave an error that may pass
    TIMEOUT = "timeout"  # the driver did not answer in time
    INVALID = "invalid"  # the driver answered something that cannot be true
    SUSPENDED = "suspended"  # the GPU sleeps, and asking would wake it


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or a MIG GPU instance (then `instance_id` is set and `gpu_uuid` names the GPU it lives on).

    `uuid` is its own (`GPU-...` or `MIG-...`). `index` is the number shown as label `gpu`; it stays with the UUID for
    the life of the process, even when the driver renumbers. Texts are "" when the driver does not tell them.
    """

    uuid: str
    gpu_uuid: str
    index: int
    model: str
    pci_bus_id: str  # 00000000:8D:00.0
    serial: str = ""
    driver_version: str = ""
    vbios_version: str = ""
    profile: str = ""  # "1g.10gb"
    instance_id: int | None = None  # NVML's GPU-instance id, as nvidia-smi shows it
    minor: int | None = None  # N of /dev/nvidiaN, which differs from the index on some machines
    placement: int | None = None  # of a GPU instance: the first of the GPU's memory slices that it has


class Reading(NamedTuple):
    """One value of one series: the driver's own number (or text, for a label row)."""

    field: Field
    device: Device
    number: int | float | str
    attributes: Attributes = ()  # fixed for the series, such as (("nvlink", "3"),)


class Missing(NamedTuple):
    """A field that was asked for and has no value, and why."""

    field: Field
    device: Device
    gap: Gap
    reason: str


@dataclass(frozen=True, slots=True)
class Sample:
    """All that one round of questions to one GPU (and its MIG instances) gave."""

    device: Device
    instances: tuple[Device, ...] = ()
    readings: tuple[Reading, ...] = ()
    missing: tuple[Missing, ...] = ()
    used: "tuple[DeviceUse, ...]" = ()  # who uses the GPU and its instances, where that is asked for
    is_suspended: bool | None = None  # False where the kernel says so; one that is suspended gives no sample


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What is known about the source as a whole; texts are "" until it has answered once."""

    name: str  # "nvml", "dcgm", "simulated"
    driver_version: str = ""
    library_version: str = ""
    simulated: bool = False
    detail: str = ""  # "8xh100" of the simulated node


@dataclass(frozen=True, slots=True)
class GpuState:
    """Whether a GPU answered in this sweep. Kept for every GPU ever seen, so that a lost one stays visible.

    One that is suspended was not asked, and nothing is wrong with it: it is up, with the gap `suspended`.
    """

    device: Device
    up: bool
    gap: Gap | None = None
    reason: str = ""
    since_unix: float = 0.0  # when it went down, in seconds since the epoch; 0.0 while up
    instances: tuple[Device, ...] = ()  # its MIG instances when it last answered
    is_suspended: bool | None = None  # None: the kernel was not asked, or does not tell


class Series(NamedTuple):
    """What a series key stands for."""

    device: Device
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One sweep over all GPUs: never changed once made, shared by every reader.

    `numbers` maps a field id to the driver's number of each series, in device order; `series` explains the keys;
    `labels` are the label rows of a device, by device UUID, as (field, text). `identity` changes whenever a device,
    a series or a label differs from the snapshot before: what was joined for one identity holds for all with it.
    """

    at: float  # monotonic, seconds: when the sweep was finished
    unix: float  # the same instant in seconds since the epoch
    started_unix: float
    identity: int
    facts: SourceFacts
    source_up: bool
    source_reason: str
    states: tuple[GpuState, ...]
    numbers: Mapping[int, Mapping[SeriesKey, int | float]]
    series: Mapping[SeriesKey, Series]
    labels: Mapping[str, tuple[tuple[Field, str], ...]]
    missing: tuple[Missing, ...]
    seconds: float  # how long the sweep took
    used: "tuple[DeviceUse, ...]" = ()  # of the devices that were asked who uses them
    energy: "tuple[Spent, ...]" = ()  # of the GPUs that told their energy, in device order

    def devices(self) -> dict[str, Device]:
        """List every GPU that was ever seen and its MIG instances, now or when it last answered, by UUID."""
        devices = {state.device.uuid: state.device for state in self.states if state.device.uuid}
        for state in self.states:
            for instance in state.instances:
                devices.setdefault(instance.uuid, instance)
        for series in self.series.values():
            devices.setdefault(series.device.uuid, series.device)
        return devices


class OwnerKind(StrEnum):
    """What somebody who uses a device is."""

    POD = "pod"
    JOB = "job"
    CONTAINER = "container"  # outside Kubernetes
    UNIT = "unit"  # of systemd
    PROCESS = "process"  # that is none of these
    REST = "rest"


OTHER = "other"  # owners beyond the limits, summed
UNATTRIBUTED = "unattributed"  # what cannot be said to be anybody's
PAST = "past"  # energy from before the GPU was seen, and of owners that are forgotten


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """Who uses a device: a container of a pod, a batch job, ... Texts that do not apply or are not known are ""."""

    kind: OwnerKind
    namespace: str = ""
    pod: str = ""
    container: str = ""
    pod_uid: str = ""
    vgpu: str = ""  # the replica, where several share the device: "3"
    job: str = ""
    labels: Attributes = ()  # the pod's own, by key
    claim: Attributes = ()  # of Dynamic Resource Allocation: ("claim_name", ...), ("device_name", ...)
    container_id: str = ""
    step: str = ""  # of the job: "0", "batch"
    slurm_user: str = ""  # the number of the user whose job it is
    unit: str = ""  # "ollama.service"
    process: str = ""  # its name
    user: str = ""  # the number of the user it runs as
    pid: str = ""
    rest: str = ""  # OTHER, UNATTRIBUTED or PAST


class Use(NamedTuple):
    """What one owner uses of a device at this moment; None where the driver does not tell it."""

    owner: Owner
    memory: int | None = None  # bytes
    sm: int | None = None  # this and the rest: percent of the driver's last sample
    bandwidth: int | None = None
    encoder: int | None = None
    decoder: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Who uses a GPU or MIG instance. `gaps`: what could not be found out ("memory", "utilization", "owner"), and why.

    `jobs` are those that have a process there; `unknown` counts the processes whose owner cannot be found, `folded` the
    owners that are summed as OTHER.
    """

    device: Device
    uses: tuple[Use, ...] = ()
    gaps: tuple[tuple[str, Gap], ...] = ()
    jobs: tuple[Owner, ...] = ()
    unknown: int = 0
    folded: int = 0


class Spent(NamedTuple):
    """The energy of one owner on a GPU since `since_unix`, in mJ; the owners of a GPU add up to its own counter."""

    device: Device
    owner: Owner
    millijoules: int
    since_unix: float


Used: TypeAlias = tuple[tuple[DeviceUse, ...], tuple[Spent, ...]]
# What enters who uses what, given samples, the UUIDs of all known GPUs, and the time, monotonic and since the epoch.
Enter: TypeAlias = Callable[[Sequence[Sample], Iterable[str], float, float], Used]


@dataclass(frozen=True, slots=True)
class Owners:
    """Who uses which device: owners in a fixed order, by the device's own UUID (`GPU-...` or `MIG-...`).

    `identity` changes whenever the table differs from the one before, as a Snapshot's does. `pods_known`: Kubernetes
    has told which pods hold what, so that a device that is not in the table is held by none. `cut`: those of its owners
    that are shown by themselves, for a device that has more than the limits let through.
    """

    identity: int
    by_device: Mapping[str, tuple[Owner, ...]]
    pods_known: bool = False
    pods: Mapping[str, Owner] = field(
        default_factory=lambda: MappingProxyType({})
    )  # by UID; only where processes are asked about
    cut: Mapping[str, tuple[Owner, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def shown(self, uuid: str) -> tuple[Owner, ...]:
        """List the owners of a device that are shown by themselves."""
        return self.cut[uuid] if uuid in self.cut else self.by_device.get(uuid, ())


NOBODY = Owners(0, MappingProxyType({}))
