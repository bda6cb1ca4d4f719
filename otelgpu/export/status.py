"""The health of each GPU and MIG instance as `hw.status`, from what NVML knows.

Rule 1: one state at a time: the worst that a rule finds. Each point is 1 for the state that holds and 0 for the others.
Rule 2: a rule speaks only of what was read. A question that a GPU never answers says nothing about its health; one that
        failed this time may hide anything, so a GPU is called ok only when all that it can tell was told.
Rule 3: shown under OpenTelemetry's names alone; dcgm-exporter's page has the fields themselves.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from otelgpu.export.join import SemconvJoin
from otelgpu.fields import CATALOGUE, Field, Number, Shape
from otelgpu.links import NVLINK_STATE, PCIE_WIDTH, Links
from otelgpu.model import Device, Gap, Series, Snapshot

HW_STATUS = Shape("hw.status", "1", Number.INT, attributes=(("hw.type", "gpu"),))
HELP = "Whether a GPU is in this state: 1 or 0."


class State(StrEnum):
    """What `hw.state` says, best first."""

    OK = "ok"
    PREDICTED_FAILURE = "predicted_failure"
    DEGRADED = "degraded"
    FAILED = "failed"


RANKS: Mapping[State, int] = {state: rank for rank, state in enumerate(State)}


class Rule(NamedTuple):
    """A field whose number, when it is not 0, means this state."""

    field_id: int
    state: State


RULES = (
    # Memory repairs that wait for a reset: the GPU works, on memory that is known to be bad.
    Rule(396, State.PREDICTED_FAILURE),  # rows to be remapped
    Rule(392, State.PREDICTED_FAILURE),  # pages to be retired
    # Uncorrectable memory errors since the driver was loaded: work was lost, and may be lost again.
    Rule(311, State.DEGRADED),
    # The driver asks for a reset, a drain or a reboot.
    Rule(1523, State.DEGRADED),
    # No spare row is left for a bad one: NVIDIA's documentation has such a GPU replaced.
    Rule(395, State.FAILED),
)
STATUS_FIELDS = frozenset(rule.field_id for rule in RULES) | {PCIE_WIDTH, NVLINK_STATE}


def also_read(fields: Iterable[Field]) -> list[Field]:
    """List what hw.status needs beyond *fields*, which are read for themselves; nothing where those are none."""
    wanted = {field.id for field in fields}
    return [CATALOGUE[id_] for id_ in sorted(STATUS_FIELDS - wanted)] if wanted else []


def states_of(snapshot: Snapshot, links: Links) -> Iterator[tuple[Device, State]]:
    """Say how each GPU is, and each MIG instance: it shares the memory and the fate of its GPU.

    Nothing is said while the driver as a whole is away, nor of a GPU that sleeps or that this process may not ask, nor
    of one that is well as far as it answers but failed to answer a question of health.
    """
    if not snapshot.source_up:
        return
    states = {
        gpu.device.uuid: State.OK if gpu.up else State.FAILED
        for gpu in snapshot.states
        if gpu.gap not in (Gap.DENIED, Gap.SUSPENDED)
    }

    def note(gpu_uuid: str, state: State) -> None:
        if gpu_uuid in states:
            states[gpu_uuid] = max(states[gpu_uuid], state, key=RANKS.__getitem__)

    for rule in RULES:
        for key, number in snapshot.numbers.get(rule.field_id, {}).items():
            if number:
                note(snapshot.series[key].device.gpu_uuid, rule.state)
    for gpu_uuid in links.behind(snapshot):
        note(gpu_uuid, State.DEGRADED)
    untold = {
        gap.device.gpu_uuid
        for gap in snapshot.missing
        if gap.field.id in STATUS_FIELDS and gap.gap is not Gap.UNSUPPORTED
    } | links.untold(snapshot)
    for device in snapshot.devices().values():
        state = states.get(device.gpu_uuid)
        if state is not None and not (state is State.OK and device.gpu_uuid in untold):
            yield device, state


def status_points(
    snapshot: Snapshot, links: Links, join: SemconvJoin, shown: Callable[[Device], bool] = lambda _: True
) -> Iterator[Observation]:
    """Give the points of `hw.status` for the devices that are *shown*.

    Their attributes are joined here, since no field stands behind it.
    """
    for device, current in states_of(snapshot, links):
        if shown(device):
            texts = snapshot.labels.get(device.uuid, ())
            attributes = join.attributes(HW_STATUS, Series(device, ()), texts=texts)
            for state in State:
                yield Observation(int(state is current), attributes | {"hw.state": state.value})


class Shown(Protocol):
    """What knows the snapshot of a collection: Pinned, which is not imported because that loads the SDK."""

    @property
    def shown(self) -> Snapshot | None:
        """The snapshot that may be shown."""


def create_status_instrument(meter: Meter, join: SemconvJoin, pinned: Shown) -> None:
    """Register `hw.status` on *meter*."""
    links = Links()

    def report(_: CallbackOptions) -> Iterator[Observation]:
        snapshot = pinned.shown
        return iter(()) if snapshot is None else status_points(snapshot, links, join)

    meter.create_observable_up_down_counter(HW_STATUS.name, callbacks=[report], unit=HW_STATUS.unit, description=HELP)
