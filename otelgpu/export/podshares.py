"""What each pod uses of what it holds, for the fields that dcgm-exporter measures per process in its sharing mode.

Rule 1: a pod has one row for each device, however many containers and replicas it has there: dcgm-exporter shows the
        pod's total on each of them.
Rule 2: a pod that holds a device and has no process there uses 0 of it; but nothing is said where a process that may be
        its own could not be told whose it is.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from otelgpu.ledger import ALL, total
from otelgpu.model import DeviceUse, Owner, OwnerKind, Owners, Snapshot, Use

PodShares: TypeAlias = Mapping[str, Iterable[Use]]  # by the device's own UUID


def pod_shares(snapshot: Snapshot, owners: Owners) -> PodShares:
    """Sum what is used by pod, for the pods that hold a device and whose UID the API server has told."""
    named = {(owner.namespace, owner.pod): owner for owner in owners.pods.values()}
    return {used.device.uuid: [*_of_device(used, owners, named)] for used in snapshot.used}


def _of_device(used: DeviceUse, owners: Owners, named: Mapping[tuple[str, str], Owner]) -> Iterable[Use]:
    unknown = {what for what, _ in used.gaps}
    if "owner" in unknown:
        return
    by_uid: dict[str, list[Use]] = {}
    for use in used.uses:
        by_uid.setdefault(use.owner.pod_uid, []).append(use)
    idle = None if "memory" in unknown else 0, None if "utilization" in unknown else 0
    held = {(one.namespace, one.pod) for one in owners.shown(used.device.uuid) if one.kind is OwnerKind.POD}
    for key in sorted(held & named.keys()):
        pod = named[key]
        uses = by_uid.get(pod.pod_uid, [])
        if used.folded and all(use.owner != Owner(OwnerKind.POD, pod_uid=pod.pod_uid) for use in uses):
            continue  # it is none of those that are shown, or is told apart by container or process
        if uses:
            yield Use(pod, total(use.memory for use in uses), total((use.sm for use in uses), ALL))
        elif not used.unknown:
            yield Use(pod, *idle)
