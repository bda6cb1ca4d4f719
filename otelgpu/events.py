"""What happens to GPUs, as events: worked out of consecutive snapshots, and of the XIDs that a driver tells.

Rule 1: no driver, no thread, no clock: a Detector is given snapshots and XIDs in the order in which they came.
Rule 2: a state is told when it begins and when it ends, never in between; what was not read is no change.
Rule 3: meaning and advice are in our own words; who uses the GPU is added on the way out, like every other label.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from otelgpu.fields.severity import Severity
from otelgpu.fields.xid import XIDS, xid_text
from otelgpu.fields.xid_advice import xid_advice
from otelgpu.model import Device, Gap, GpuState, Snapshot
from otelgpu.throttle import Held, Limits, Throttles

XID = "hw.gpu.nvidia.xid"
LOST, RECOVERED = "hw.gpu.nvidia.lost", "hw.gpu.nvidia.recovered"
MIG_CHANGED = "hw.gpu.nvidia.mig.changed"
THROTTLE_STARTED, THROTTLE_ENDED = "hw.gpu.nvidia.throttle.started", "hw.gpu.nvidia.throttle.ended"

XID_ERRORS = 230
FB_USED = 252  # the cheapest field that every MIG instance answers: without any its instances could not be seen
NAMELESS = -1  # the index of a GPU of which only the UUID is known

Value: TypeAlias = str | int | float | tuple[str, ...]


class Xid(NamedTuple):
    """An XID as a driver told it: of a GPU, and of a MIG instance where it says which; *times* equal ones in a row."""

    uuid: str
    code: int
    unix: float  # when it was told, in seconds since the epoch: the driver gives no time
    instance_id: int | None = None
    compute_id: int | None = None
    times: int = 1


Told: TypeAlias = Callable[[Xid], None]


def unheard(_: Xid) -> None:
    """For who wants to hear of no XID."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a GPU or a MIG instance, once.

    `unix` is when it happened, as far as it is known, in seconds since the epoch. `also` are the instances that it
    happened to as well: who uses them is concerned.
    """

    name: str
    severity: Severity
    body: str
    device: Device
    unix: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    also: tuple[Device, ...] = ()


class _Loss(NamedTuple):
    """How a GPU that does not answer is told."""

    severity: Severity
    words: str
    advice: str


LOSSES: Mapping[Gap, _Loss] = {
    Gap.LOST: _Loss(
        Severity.FATAL,
        "has gone",
        "Drain the node, then reset the GPU or power the node off and on; look for an XID that came before.",
    ),
    Gap.TIMEOUT: _Loss(
        Severity.ERROR,
        "does not answer in time",
        "A driver call hangs or is slow: look at the kernel log. If it does not pass, the node has to be rebooted.",
    ),
    Gap.DENIED: _Loss(Severity.WARN, "may not be asked", "Give otelgpu access to the device files of the GPU."),
}
OTHER_LOSS = _Loss(
    Severity.ERROR, "cannot be read", "Look at the driver (nvidia-smi) and the kernel log for the reason that is given."
)

Layout: TypeAlias = Mapping[int, Device]


class Detector:
    """Turns snapshots and XIDs into events. Used by one thread.

    With *codes* the XIDs are found in the snapshots too, where a code has changed: for sources that tell none.
    """

    def __init__(self, limits: Limits, *, codes: bool = False) -> None:
        self._reads_codes = codes
        self._codes: dict[str, float] = {}  # by the UUID of the GPU
        self._down: dict[str, GpuState] = {}
        self._layouts: dict[str, Layout] = {}
        self._devices: dict[str, Device] = {}
        self._identity: int | None = None
        self._throttles = Throttles(limits)

    def limit(self, limits: Limits) -> None:
        """Tell of throttling beyond other limits from the next sweep on."""
        self._throttles.limit(limits)

    def xid(self, xid: Xid) -> Event:
        """Tell of an XID, with what is known of its GPU from the sweeps so far."""
        gpu = self._devices.get(xid.uuid) or Device(xid.uuid, xid.uuid, NAMELESS, "", "")
        instance = None if xid.instance_id is None else self._layouts.get(xid.uuid, {}).get(xid.instance_id)
        meaning, advice = xid_text(xid.code), xid_advice(xid.code)
        attributes: dict[str, Value] = {
            "error.type": f"xid.{xid.code}",
            "hw.gpu.nvidia.xid.code": xid.code,
            "hw.gpu.nvidia.xid.meaning": meaning,
            "hw.gpu.nvidia.advice": advice.text,
        }
        if xid.instance_id is not None and instance is None:
            attributes["hw.gpu.nvidia.mig.id"] = str(xid.instance_id)
        if xid.compute_id is not None:
            attributes["hw.gpu.nvidia.mig.compute.id"] = str(xid.compute_id)
        if xid.times > 1:
            attributes["hw.gpu.nvidia.xid.count"] = xid.times
        known = meaning if xid.code in XIDS else f"{meaning}, which NVIDIA does not document"
        again = f" ({xid.times} times)" if xid.times > 1 else ""
        also = () if instance is not None else tuple(self._layouts.get(xid.uuid, {}).values())
        body = f"XID {xid.code} on {named(instance or gpu)}{again}: {known}"
        return Event(XID, advice.severity, body, instance or gpu, xid.unix, attributes, also)

    def sweep(self, snapshot: Snapshot) -> list[Event]:
        """Tell what is different from the snapshot before."""
        self._devices |= {state.device.uuid: state.device for state in snapshot.states if state.device.uuid}
        events = list(self._losses(snapshot))
        events += self._mig(snapshot)
        if self._reads_codes:
            events += self._new_codes(snapshot)
        events += [_held(held, snapshot.unix) for held in self._throttles.changes(snapshot)]
        return events

    def _losses(self, snapshot: Snapshot) -> Iterator[Event]:
        nameless: set[str] = set()
        for state in snapshot.states:
            key = state.device.uuid or f"slot {state.device.index}"
            if not state.device.uuid:
                nameless.add(key)
            before = self._down.get(key)
            if not state.up and before is None:
                self._down[key] = state
                yield self._lost(state, snapshot.unix)
            elif state.up:
                # The GPU of a slot that could not be opened has no name until it is back.
                before = before or self._down.pop(f"slot {state.device.index}", None)
                self._down.pop(key, None)
                if before is not None:
                    yield _recovered(state.device, before, snapshot.unix)
        if snapshot.source_up:  # without a driver nobody knows what is in a slot
            for key in [key for key in self._down if key.startswith("slot ") and key not in nameless]:
                del self._down[key]

    def _lost(self, state: GpuState, unix: float) -> Event:
        loss = LOSSES.get(state.gap, OTHER_LOSS) if state.gap is not None else OTHER_LOSS
        attributes: dict[str, Value] = {
            "error.type": str(state.gap or Gap.FAILED),
            "hw.gpu.nvidia.lost.reason": state.reason,
            "hw.gpu.nvidia.advice": loss.advice,
        }
        body = f"{named(state.device)} {loss.words}: {state.reason}"
        also = tuple(self._layouts.get(state.device.uuid, {}).values())
        return Event(LOST, loss.severity, body, state.device, state.since_unix or unix, attributes, also)

    def _mig(self, snapshot: Snapshot) -> Iterator[Event]:
        """Compare the MIG instances of each GPU that answers; of one that does not, nothing is known."""
        if snapshot.identity == self._identity:
            return
        self._identity = snapshot.identity
        found: dict[str, dict[int, Device]] = {state.device.uuid: {} for state in snapshot.states if state.up}
        known = {device.uuid: device for layout in self._layouts.values() for device in layout.values()}
        known |= {gap.device.uuid: gap.device for gap in snapshot.missing}
        known |= {series.device.uuid: series.device for series in snapshot.series.values()}
        for uuid in snapshot.labels:  # has every instance that is there, also one that answered nothing
            device = known.get(uuid)
            if device is not None and device.instance_id is not None and device.gpu_uuid in found:
                found[device.gpu_uuid][device.instance_id] = device
        for uuid, layout in found.items():
            before = self._layouts.get(uuid)
            self._layouts[uuid] = layout
            if before is not None and _identities(before) != _identities(layout):
                yield _mig_changed(self._devices[uuid], before, layout, snapshot.unix)

    def _new_codes(self, snapshot: Snapshot) -> Iterator[Event]:
        for key, code in snapshot.numbers.get(XID_ERRORS, {}).items():
            uuid = snapshot.series[key].device.gpu_uuid
            before = self._codes.get(uuid)
            self._codes[uuid] = code
            if code and before is not None and code != before:
                yield self.xid(Xid(uuid, int(code), snapshot.unix))


def named(device: Device) -> str:
    """Name a device in a sentence."""
    if device.instance_id is not None:
        return f"MIG instance {device.instance_id} ({device.profile or 'no profile'}) of GPU {device.index}"
    return device.uuid if device.index == NAMELESS else f"GPU {device.index}"


def _recovered(device: Device, before: GpuState, unix: float) -> Event:
    attributes: dict[str, Value] = {"hw.gpu.nvidia.lost.reason": before.reason}
    body = f"{named(device)} answers again"
    if before.since_unix:
        seconds = max(unix - before.since_unix, 0.0)
        attributes["hw.gpu.nvidia.lost.duration"] = _seconds(seconds)
        body += f" after {seconds:.1f} s"
    return Event(RECOVERED, Severity.INFO, body, device, unix, attributes)


def _identities(layout: Layout) -> set[tuple[int, str, str]]:
    return {(id_, device.profile, device.uuid) for id_, device in layout.items()}


def _listed(layout: Layout) -> tuple[str, ...]:
    return tuple(f"{id_}: {layout[id_].profile or 'no profile'}" for id_ in sorted(layout))


def _mig_changed(gpu: Device, before: Layout, after: Layout, unix: float) -> Event:
    attributes: dict[str, Value] = {
        "hw.gpu.nvidia.mig.instances": _listed(after),
        "hw.gpu.nvidia.mig.instances.before": _listed(before),
    }
    was, now = (", ".join(_listed(layout)) or "none" for layout in (before, after))
    body = f"MIG instances of {named(gpu)} have changed: {now} (before: {was})"
    gone = _identities(before) - _identities(after)
    also = tuple(before[id_] for id_, _, _ in sorted(gone))
    return Event(MIG_CHANGED, Severity.INFO, body, gpu, unix, attributes, also)


def _seconds(seconds: float) -> float:
    return round(float(seconds), 3)


def _held(held: Held, unix: float) -> Event:
    attributes: dict[str, Value] = {
        "hw.gpu.nvidia.throttle.reason": held.reason.name,
        "hw.gpu.nvidia.throttle.share": round(float(held.share), 4),
        "hw.gpu.nvidia.throttle.window": _seconds(held.window),
    }
    name = named(held.device)
    if not held.is_over:
        body = f"Clocks of {name} are held down {held.reason.words}: {held.share:.0%} of the last {held.window:.1f} s"
        attributes["hw.gpu.nvidia.advice"] = (
            "Check the power limit of the GPU and what the job draws."
            if held.reason.is_power
            else "Check cooling, air flow and power supply of the node; jobs on this GPU run slower meanwhile."
        )
        return Event(THROTTLE_STARTED, Severity.WARN, body, held.device, unix, attributes)
    attributes["hw.gpu.nvidia.throttle.duration"] = _seconds(held.seconds)
    if held.held is not None:
        attributes["hw.gpu.nvidia.throttle.time"] = _seconds(held.held)
    body = f"Clocks of {name} are no longer held down {held.reason.words}, after {held.seconds:.1f} s"
    return Event(THROTTLE_ENDED, Severity.INFO, body, held.device, unix, attributes)
