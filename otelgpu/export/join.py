"""The join: from a series key to the names, labels and numbers that somebody reads.

Rule 1: everything a reader sees beyond the driver's number is added here: scheme, device labels, label rows.
Rule 2: whatever is joined depends on the field, the series and the identities of snapshot and owners alone, so that
        readers may keep it for as long as both stay. The one exception is VALUE_LABELS.
Rule 3: a value stands under an owner's name only when the device is that owner's alone: sums over owners stay true.
        The copies of dcgm-exporter are made for those who ask for them, and for jobs.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from otelgpu.export.ownernames import (
    CLAIM_ATTRIBUTES,
    OLD_OWNER_LABELS,
    OWNER_ATTRIBUTES,
    OWNER_LABELS,
    POD_LABEL,
    USE_LABELS,
)
from otelgpu.export.podlabels import renamed_labels, shown_pod_labels
from otelgpu.export.special import PER_PROCESS
from otelgpu.fields import Field, Number, Shape
from otelgpu.fields.maker import NVIDIA, PREFIX, rule_name
from otelgpu.model import NOBODY, Attributes, Device, Owner, OwnerKind, Owners, Series, Snapshot

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"  # the conventions that SemconvJoin's names are of
HOSTNAME_LABEL: Mapping[str, str] = {"4.8.2": "Hostname", "4.8.3": "hostname", "4.9": "hostname"}


class Copy(NamedTuple):
    """What one line of a series says of an owner: *labels* stand among the label rows, as dcgm-exporter prints them."""

    attributes: Attributes = ()
    labels: Attributes = ()


NO_COPIES: Sequence[Copy] = (Copy(),)


def scaled(shape: Shape) -> Callable[[int | float], int | float]:
    """Return the function from the driver's number to the shown one; see Shape for what it promises."""
    up, down = shape.numerator, shape.denominator
    if shape.number is Number.DOUBLE:
        return lambda number: number * up / down
    if up == down:
        return int

    def whole(number: float) -> int:
        # Integers are divided as integers: a float would lose digits beyond 2^53.
        return number * up // down if isinstance(number, int) and number >= 0 else int(number * up / down)

    return whole


def shape_named(item: Field, name: str) -> Shape:
    """Return the shape that goes with a name that somebody wrote."""
    return item.dcgm49 if name == item.dcgm49.name else item.dcgm


def written(shape: Shape) -> Callable[[int | float], str]:
    """Return the function from the driver's number to its text on the dcgm page."""
    number = scaled(shape)
    if shape.number is Number.DOUBLE:
        return lambda value: "%f" % number(value)  # noqa: UP031 - C's %f is the format's definition
    return lambda value: str(number(value))


PEER = "peer_uuid"  # the label of a series that names another GPU

# Labels of a series that have a name of their own in OpenTelemetry's scheme, or ("") none: they say the value in words.
SERIES_ATTRIBUTES: Mapping[str, str] = {
    "clock_event": f"{NVIDIA}clock.event",
    "health_error_code": "",
    "health_watch": f"{NVIDIA}health.part",
    "link_status": "",
    "nvlink": f"{NVIDIA}link",
    PEER: f"{NVIDIA}peer.id",
    "window_size_in_ms": f"{NVIDIA}window.ms",
    "xid": f"{NVIDIA}xid.code",
}

# Label rows that say what an attribute of every point says anyway.
TOLD: Mapping[int, str] = {
    1: "hw.driver_version",
    50: "hw.model",
    53: "hw.serial_number",
    54: "hw.id",
    85: "hw.firmware_version",
}


def text_attribute(field: Field) -> str:
    """Name the attribute that a label row is in OpenTelemetry's scheme."""
    return TOLD.get(field.id) or NVIDIA + rule_name(field.new_name.removeprefix(PREFIX))


def holders(owners: Iterable[Owner]) -> tuple[Owner, ...]:
    """List the owners without telling replicas apart: a container that holds two is one."""
    return tuple(dict.fromkeys(replace(owner, vgpu="") for owner in owners))


def sole_owner(owners: Iterable[Owner], kind: OwnerKind) -> Owner | None:
    """Return the one owner of this kind; None when there is none, or more than one."""
    found = holders(_of_kind(owners, kind))
    return found[0] if len(found) == 1 else None


def _of_kind(owners: Iterable[Owner], kind: OwnerKind) -> Iterable[Owner]:
    return (owner for owner in owners if owner.kind is kind)


def _present(owner: Owner, names: Iterable[tuple[str, str]]) -> Attributes:
    return tuple((name, text) for name, part in names if (text := getattr(owner, part)))


@dataclass(frozen=True, slots=True)
class DcgmJoin:
    """dcgm-exporter's names and labels, of the generation that *compat* selects; *labels* are the user's own."""

    compat: str = "4.8.2"
    hostname: str = ""
    labels: Attributes = ()
    old_names: bool = False
    virtual_gpus: bool = False
    model_dashes: bool = False  # "-" for the blanks in a model's name
    # Of label rows, by field id, where a CSV file says another one.
    label_names: Mapping[int, str] = dataclasses.field(default_factory=dict)
    also: tuple[str, ...] = ()  # further generations, under whose names labels are shown as well

    def shape(self, field: Field) -> Shape:
        """Return the field's shape in this generation."""
        return field.dcgm49 if self.compat == "4.9" else field.dcgm

    def label_name(self, field: Field) -> str:
        """Return the name of a field that is shown as a label."""
        return self.label_names.get(field.id) or self.shape(field).name

    def _label_names(self, field: Field) -> Iterable[str]:
        others = [replace(self, compat=compat) for compat in self.also]
        return dict.fromkeys(join.label_name(field) for join in (self, *others))

    def label_pairs(
        self, series: Series, snapshot: Snapshot, more: Attributes = (), copy: Copy = NO_COPIES[0]
    ) -> list[tuple[str, str]]:
        """List the labels of a series in printed order: fixed ones, then label rows, then attributes by name."""
        device = series.device
        pairs = [
            ("gpu", str(device.index)),
            ("uuid" if self.old_names else "UUID", device.gpu_uuid),
            ("pci_bus_id", device.pci_bus_id),
            ("device", f"nvidia{device.index}"),
            ("modelName", "-".join(device.model.split()) if self.model_dashes else device.model),
        ]
        if device.instance_id is not None:
            pairs += [("GPU_I_PROFILE", device.profile), ("GPU_I_ID", str(device.instance_id))]
        hosts = dict.fromkeys(HOSTNAME_LABEL[compat] for compat in (self.compat, *self.also))
        pairs += [(name, self.hostname) for name in hosts if self.hostname]
        rows = [(name, text) for row, text in snapshot.labels.get(device.uuid, ()) for name in self._label_names(row)]
        rows += [*self.labels, *copy.labels]
        return pairs + sorted(rows) + sorted([*_peer(series, snapshot), *series.attributes, *more, *copy.attributes])

    def copies(self, field: Field, series: Series, owners: Owners) -> Sequence[Copy]:
        """List the owner labels of each line that a series gets; one line without any when nobody is to be named.

        The device's only owner, or with `virtual_gpus` each of them; each of these lines once per job. Of those alone
        that are shown by themselves.
        """
        found = owners.by_device.get(series.device.uuid)
        if found is None:
            return NO_COPIES
        shown = owners.shown(series.device.uuid)
        pods: list[Owner | None] = [*_of_kind(shown, OwnerKind.POD)]
        if not self.virtual_gpus:
            pods = [sole_owner(found, OwnerKind.POD)]
        elif field.id in PER_PROCESS:
            pods = []
        jobs: list[Owner | None] = [*_of_kind(shown, OwnerKind.JOB)]
        return [self._copy(pod, job) for pod in pods or [None] for job in jobs or [None]]

    def copy_of(self, pod: Owner) -> Copy:
        """Give the labels of a line that is a pod's own."""
        return self._copy(pod, None)

    def _copy(self, pod: Owner | None, job: Owner | None) -> Copy:
        attributes = (self._owner_attributes(pod) if pod else ()) + (self._owner_attributes(job) if job else ())
        return Copy(attributes, self._pod_labels(pod) if pod else ())

    def owner_labels(self, device: Device, owner: Owner) -> Attributes:
        """List the labels by which a device and one of its owners are known."""
        return (*self.device_labels(device), *self._owner_attributes(owner), *self._pod_labels(owner))

    def use_labels(self, device: Device, owner: Owner) -> Attributes:
        """List the labels of what an owner uses; no label of a pod passes for one that only these have."""
        pods = shown_pod_labels(owner.labels, self._own_labels | USE_LABELS)[0]
        return (*self.device_labels(device), *self._owner_attributes(owner), *pods)

    def device_labels(self, device: Device) -> Attributes:
        """List the labels by which a device is known."""
        instance = () if device.instance_id is None else (("GPU_I_ID", str(device.instance_id)),)
        uuid = "uuid" if self.old_names else "UUID"
        return (("gpu", str(device.index)), (uuid, device.gpu_uuid), *instance)

    def renamed_labels(self, owners: Owners) -> int | None:
        """Count the pod labels that are shown under another name than their own; None where no pod has any."""
        pods = {(owner.namespace, owner.pod): owner.labels for found in owners.by_device.values() for owner in found}
        shown = [labels for labels in pods.values() if labels]
        return renamed_labels(shown, self._own_labels) if shown else None

    def _owner_attributes(self, owner: Owner) -> Attributes:
        names = OLD_OWNER_LABELS if self.old_names else OWNER_LABELS
        return _present(owner, names) + tuple((f"dra_{name}", text) for name, text in owner.claim)

    def _pod_labels(self, owner: Owner) -> Attributes:
        return shown_pod_labels(owner.labels, self._own_labels)[0]

    @property
    def _own_labels(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.labels)


@dataclass(frozen=True, slots=True)
class SemconvJoin:
    """OpenTelemetry's names for hardware; *labels* are the user's own attributes."""

    labels: Attributes = ()

    def shape(self, field: Field) -> Shape | None:
        """Return the field's shape; None for a field that has no place in this scheme."""
        return field.semconv

    def attributes(
        self, shape: Shape, series: Series, owners: Owners = NOBODY, texts: Iterable[tuple[Field, str]] = ()
    ) -> dict[str, str]:
        """List the attributes of a point; a text that the driver does not tell is left away.

        *texts* are the device's label rows, as a Snapshot has them.
        """
        device = series.device
        found = owners.by_device.get(device.uuid, ())
        alone = [owner for kind in OwnerKind if (owner := sole_owner(found, kind))]
        pairs: Iterable[tuple[str, str]] = (
            ("hw.id", device.uuid),
            ("hw.name", f"GPU {device.index}"),
            ("hw.parent", device.gpu_uuid if device.instance_id is not None else ""),
            ("hw.model", device.model),
            ("hw.vendor", "NVIDIA"),
            ("hw.serial_number", device.serial),
            ("hw.driver_version", device.driver_version),
            ("hw.firmware_version", device.vbios_version),
            ("hw.gpu.nvidia.mig.profile", device.profile),
            ("hw.gpu.nvidia.mig.id", "" if device.instance_id is None else str(device.instance_id)),
        )
        present = {name: text for name, text in pairs if text}
        for owner in alone:
            present |= dict(_owner_attributes(owner))
        of_series = {shown: text for name, text in series.attributes if (shown := SERIES_ATTRIBUTES.get(name, name))}
        told = {text_attribute(field): text for field, text in texts if text and field.id not in TOLD}
        return present | told | dict(shape.attributes) | of_series | dict(self.labels)

    def owner_labels(self, device: Device, owner: Owner) -> Attributes:
        """List the attributes by which a device and one of its owners are known."""
        return (*self.device_labels(device), *_owner_attributes(owner))

    def use_labels(self, device: Device, owner: Owner) -> Attributes:
        """List the attributes of what an owner uses."""
        return self.owner_labels(device, owner)

    def device_labels(self, device: Device) -> Attributes:
        """List the attributes by which a device is known."""
        parent = () if device.instance_id is None else (("hw.parent", device.gpu_uuid),)
        return (("hw.id", device.uuid), *parent)

    def renamed_labels(self, owners: Owners) -> int | None:  # noqa: ARG002 - as DcgmJoin
        """Return None: here a pod's labels keep their keys."""
        return None


def _peer(series: Series, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Give the number of the other GPU, where a series is about two: dcgm-exporter names it by that alone."""
    for name, uuid in series.attributes:
        if name == PEER:
            yield from (("peer_gpu", str(one.device.index)) for one in snapshot.states if one.device.uuid == uuid)


def _owner_attributes(owner: Owner) -> Attributes:
    claim = tuple((CLAIM_ATTRIBUTES[name], text) for name, text in owner.claim)
    return _present(owner, OWNER_ATTRIBUTES) + claim + tuple((POD_LABEL + key, text) for key, text in owner.labels)
