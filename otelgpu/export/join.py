"""The join: from a series key to the names, labels and numbers that somebody reads.

Rule 1: everything a reader sees beyond the driver's number is added here: scheme, device labels, label rows.
Rule 2: whatever is joined depends on the field, the series and the snapshot's identity alone, so that readers may
        keep it for as long as the identity stays. The one exception is VALUE_LABELS.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from otelgpu.fields import Field, Number, Shape
from otelgpu.fields.xid import xid_text
from otelgpu.model import Attributes, Series, Snapshot

HOSTNAME_LABEL: Mapping[str, str] = {"4.8.2": "Hostname", "4.8.3": "hostname", "4.9": "hostname"}


def _xid_labels(number: float) -> Attributes:
    return (("err_code", str(int(number))), ("err_msg", xid_text(int(number))))


# Fields whose labels on the dcgm page follow the value, by field id. OpenTelemetry's points have none: a value that
# changes its attributes starts a new series each time.
VALUE_LABELS: Mapping[int, Callable[[float], Attributes]] = {230: _xid_labels}


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


@dataclass(frozen=True, slots=True)
class DcgmJoin:
    """dcgm-exporter's names and labels, of the generation that *compat* selects; *labels* are the user's own."""

    compat: str = "4.8.2"
    hostname: str = ""
    labels: Attributes = ()

    def shape(self, field: Field) -> Shape:
        """Return the field's shape in this generation."""
        return field.dcgm49 if self.compat == "4.9" else field.dcgm

    def label_pairs(self, series: Series, snapshot: Snapshot, more: Attributes = ()) -> list[tuple[str, str]]:
        """List the labels of a series in printed order: fixed ones, then label rows, then attributes by name."""
        device = series.device
        pairs = [
            ("gpu", str(device.index)),
            ("UUID", device.gpu_uuid),
            ("pci_bus_id", device.pci_bus_id),
            ("device", f"nvidia{device.index}"),
            ("modelName", device.model),
        ]
        if device.instance_id is not None:
            pairs += [("GPU_I_PROFILE", device.profile), ("GPU_I_ID", str(device.instance_id))]
        if self.hostname:
            pairs.append((HOSTNAME_LABEL[self.compat], self.hostname))
        rows = [(self.shape(field).name, text) for field, text in snapshot.labels.get(device.uuid, ())]
        return pairs + sorted([*rows, *self.labels]) + sorted([*series.attributes, *more])


@dataclass(frozen=True, slots=True)
class SemconvJoin:
    """OpenTelemetry's names for hardware; *labels* are the user's own attributes."""

    labels: Attributes = ()

    def shape(self, field: Field) -> Shape | None:
        """Return the field's shape; None for a field that has no place in this scheme."""
        return field.semconv

    def attributes(self, shape: Shape, series: Series) -> dict[str, str]:
        """List the attributes of a point; a text that the driver does not tell is left away."""
        device = series.device
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
        return present | dict(shape.attributes) | dict(series.attributes) | dict(self.labels)
