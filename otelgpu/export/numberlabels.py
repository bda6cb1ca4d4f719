"""Numbers that a CSV file makes labels: they stand on every series of their device, as text.

Rule 1: on the dcgm page alone. An attribute that changes starts a new series with each value, so OpenTelemetry's
        schemes keep the number as what it is.
Rule 2: `revision` changes whenever a label has: what was joined with one revision holds as long as that stays.
"""

from collections.abc import Iterable

from otelgpu.export.join import DcgmJoin, shape_named, written
from otelgpu.fields import Field
from otelgpu.model import Attributes, Device, Snapshot


class NumberLabels:
    """The labels of each device, as the last snapshot taken has them. Not thread-safe."""

    def __init__(self, fields: Iterable[Field], join: DcgmJoin) -> None:
        self.revision = 0
        self._labels: dict[str, Attributes] = {}  # by UUID
        self._rows = [
            (item.id, name, written(shape_named(item, name))) for item in fields for name in (join.label_name(item),)
        ]

    def take(self, snapshot: Snapshot) -> None:
        """Make the labels of a snapshot. A value of one link or of another part of a device is none of its labels."""
        if not self._rows:
            return
        found: dict[str, list[tuple[str, str]]] = {}
        for id_, name, text in self._rows:
            for key, number in snapshot.numbers.get(id_, {}).items():
                series = snapshot.series[key]
                if not series.attributes:
                    found.setdefault(series.device.uuid, []).append((name, text(number)))
        labels = {uuid: tuple(pairs) for uuid, pairs in found.items()}
        if labels != self._labels:
            self._labels = labels
            self.revision += 1

    def of(self, device: Device) -> Attributes:
        """List the labels of a device; an instance has those of its GPU where it has none of its own."""
        own = self._labels.get(device.uuid, ())
        if device.uuid == device.gpu_uuid:
            return own
        return tuple((dict(self._labels.get(device.gpu_uuid, ())) | dict(own)).items())
