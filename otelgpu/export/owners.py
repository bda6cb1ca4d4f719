"""Points that are about an owner: made from the snapshot and the table of owners on the way out.

Rule 1: they never pass the SDK: it would remember every pod that ever ran.
Rule 2: who holds a device is known without the driver, so these points are there also while a GPU does not answer.
"""

from collections.abc import Iterator
from typing import Protocol

from opentelemetry.sdk.metrics.export import Gauge, Metric, NumberDataPoint

from otelgpu.export.join import holders
from otelgpu.model import Attributes, Device, Owner, Owners, Snapshot

GPU_OWNER = "otelgpu.gpu.owner"
_HELP = "Who holds a GPU or MIG instance, a series for each owner; always 1. To be joined on."
_NANOSECONDS = 1_000_000_000


class OwnerLabels(Protocol):
    """A naming scheme that can name a device together with its owner."""

    def owner_labels(self, device: Device, owner: Owner) -> Attributes:
        """List the labels of one point."""


def owner_metrics(join: OwnerLabels, snapshot: Snapshot, owners: Owners) -> Iterator[Metric]:
    """Give the metrics that have a point for each owner of a device; none when nobody owns anything."""
    if not owners.by_device:
        return
    devices = snapshot.devices()
    stamp = int(snapshot.unix * _NANOSECONDS)
    points = [
        NumberDataPoint(dict(join.owner_labels(devices[uuid], owner)), 0, stamp, 1)
        for uuid, found in owners.by_device.items()
        if uuid in devices
        for owner in holders(found)
    ]
    if points:
        yield Metric(GPU_OWNER, _HELP, "", Gauge(points))
