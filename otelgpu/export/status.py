"""The health of each GPU and MIG instance as `hw.status`, from what NVML knows.

Rule 1: one state at a time: the worst that a rule finds. Each point is 1 for the state that holds and 0 for the others.
Rule 2: a rule speaks only of what was read: a question that a GPU does not answer says nothing about its health.
Rule 3: shown under OpenTelemetry's names alone; dcgm-exporter's page has the fields themselves.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from otelgpu.export.join import SemconvJoin
from otelgpu.fields import Number, Shape
from otelgpu.instruments import Pinned
from otelgpu.model import Device, Gap, Series, Snapshot

HW_STATUS = Shape("hw.status", "1", Number.INT, attributes=(("hw.type", "gpu"),))


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
STATUS_FIELDS = frozenset(rule.field_id for rule in RULES)


def states_of(snapshot: Snapshot) -> Iterator[tuple[Device, State]]:
    """Say how each GPU is, and each MIG instance: it shares the memory and the fate of its GPU.

    Nothing is said while the driver as a whole is away, nor of a GPU that this process may not ask.
    """
    if not snapshot.source_up:
        return
    states = {
        gpu.device.uuid: State.OK if gpu.up else State.FAILED for gpu in snapshot.states if gpu.gap is not Gap.DENIED
    }
    for rule in RULES:
        for key, number in snapshot.numbers.get(rule.field_id, {}).items():
            gpu_uuid = snapshot.series[key].device.gpu_uuid
            if number and gpu_uuid in states:
                states[gpu_uuid] = max(states[gpu_uuid], rule.state, key=RANKS.__getitem__)
    for device in snapshot.devices().values():
        if device.gpu_uuid in states:
            yield device, states[device.gpu_uuid]


def create_status_instrument(meter: Meter, join: SemconvJoin, pinned: Pinned) -> None:
    """Register `hw.status` on *meter*. Its attributes are joined here, since no field stands behind it."""

    def report(_: CallbackOptions) -> Iterator[Observation]:
        snapshot = pinned.shown
        if snapshot is None:
            return
        for device, current in states_of(snapshot):
            attributes = join.attributes(HW_STATUS, Series(device, ()))
            for state in State:
                yield Observation(int(state is current), attributes | {"hw.state": state.value})

    meter.create_observable_up_down_counter(
        HW_STATUS.name,
        callbacks=[report],
        unit=HW_STATUS.unit,
        description="Whether a GPU is in this state: 1 or 0.",
    )
