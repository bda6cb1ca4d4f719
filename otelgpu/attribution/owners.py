"""Owners: what the kubelet and the job files say, put on the devices of a snapshot.

Rule 1: `owners` computes and never waits; it is called by whoever makes a page.
Rule 2: the result depends on the tables and the snapshot's devices alone, never on the order in which either came; but
        where there are more owners than the limits let through, those who were shown go on being shown.
"""

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from otelgpu.attribution.crowds import Crowds
from otelgpu.attribution.deviceids import DeviceIds, Found
from otelgpu.attribution.doubts import Doubts
from otelgpu.attribution.jobs import NO_JOBS, Jobs, JobTable
from otelgpu.attribution.kubelet import Allocation
from otelgpu.attribution.mirror import Mirror
from otelgpu.attribution.podmeta import MOST_LABELS, PodKey, PodMeta, PodMetaTable, labels_left_out
from otelgpu.attribution.pods import NOTHING, Pods, Table
from otelgpu.attribution.slices import DeviceTable, Slice, SliceTable, devices_in
from otelgpu.config import Limits
from otelgpu.model import NOBODY, Attributes, Device, Owner, OwnerKind, Owners, Snapshot

logger = logging.getLogger(__name__)

NAMED = 8  # ids in one log line
_NO_META = PodMeta()


class _Tables(NamedTuple):
    """What owners are made of. Each table is the same object for as long as it says the same."""

    pods: Table
    jobs: JobTable
    metas: PodMetaTable
    slices: SliceTable
    pods_known: bool

    def are(self, others: "_Tables") -> bool:
        """Whether nothing has changed."""
        return all(one is other for one, other in zip(self, others, strict=True))


_NO_TABLES = _Tables(NOTHING, NO_JOBS, MappingProxyType({}), MappingProxyType({}), pods_known=False)


class Source(Protocol):
    """Whoever is asked in the background."""

    name: str

    @property
    def is_up(self) -> bool | None:
        """Whether the last question was answered; None before the first."""

    @property
    def age(self) -> float | None:
        """Seconds since it last told something; None when it never has."""

    def start(self) -> None:
        """Start asking; returns at once."""

    def looked(self, timeout: float) -> bool:
        """Wait for the first answer or failure, at most *timeout* seconds."""

    def stop(self, timeout: float) -> bool:
        """End the question under way and the thread; False when it did not end in time. Safe to call twice."""


@dataclass(frozen=True, slots=True)
class _Made:
    """The owners that were made last, and what of."""

    snapshot_identity: int
    tables: _Tables
    owners: Owners
    unmatched: int

    def holds_for(self, snapshot: Snapshot, tables: _Tables) -> bool:
        return self.snapshot_identity == snapshot.identity and self.tables.are(tables)


class Attribution:
    """Says who uses which device, from *pods* and *jobs* (None: not asked for).

    *metas* adds UIDs (with *shows_uids*) and labels to pods; *slices* tell which devices claims mean. With *names_uids*
    the table also says which pod a UID is, for what processes use. *limits* say how many are shown by themselves.
    """

    def __init__(
        self,
        *,
        pods: Pods | None = None,
        jobs: Jobs | None = None,
        metas: Mirror[PodKey, PodMeta] | None = None,
        slices: Mirror[str, Slice] | None = None,
        shows_uids: bool = True,
        names_uids: bool = False,
        limits: Limits,
    ) -> None:
        self.pods = pods
        self.jobs = jobs
        self.metas = metas
        self.slices = slices
        self._shows_uids = shows_uids
        self._names_uids = names_uids
        self._doubts = None if metas is None else Doubts(metas)
        if pods is not None and self._doubts is not None:
            pods.renewed = self._doubts.renewed
        self._crowds = Crowds(per_gpu=limits.owners_per_gpu, in_all=limits.owners)
        self._lock = threading.Lock()
        self._ids = DeviceIds(())
        self._made = _Made(-1, _NO_TABLES, NOBODY, 0)
        self._seen: frozenset[str] = frozenset()
        self._is_foreign = False
        self._has_too_many_labels = False

    @property
    def unmatched(self) -> int:
        """How many device ids of the kubelet's mean no device of the snapshot before."""
        return self._made.unmatched

    @property
    def left_out(self) -> int:
        """How many owners have no series of their own, as there are too many."""
        owners = self._made.owners
        return sum(len(owners.by_device[uuid]) - len(shown) for uuid, shown in owners.cut.items())

    @property
    def labels_left_out(self) -> int:
        """How many labels of pods on this node are not shown, as a pod has too many."""
        return labels_left_out({} if self.metas is None else self.metas.table())

    def owners(self, snapshot: Snapshot) -> Owners:
        """Say who uses the devices of *snapshot*, as far as it is known at this moment."""
        tables = self._tables()
        made = self._made
        if not made.holds_for(snapshot, tables):
            with self._lock:
                made = self._made
                if not made.holds_for(snapshot, tables):
                    made = self._made = self._make(snapshot, tables)
        return made.owners

    def _tables(self) -> _Tables:
        none = _NO_TABLES
        return _Tables(
            none.pods if self.pods is None else self.pods.table(),
            none.jobs if self.jobs is None else self.jobs.table(),
            none.metas if self._doubts is None else self._doubts.table(),
            none.slices if self.slices is None else self.slices.table(),
            self.pods is not None and self.pods.is_known,
        )

    def start(self) -> None:
        """Start asking in the background; returns at once."""
        for source in self.sources():
            source.start()

    def looked(self, timeout: float) -> bool:
        """Wait until each has been asked once, at most *timeout* seconds in all."""
        until = time.monotonic() + timeout
        looked = [source.looked(max(until - time.monotonic(), 0)) for source in self.sources()]
        return all(looked)

    def stop(self, timeout: float) -> bool:
        """End everything; False when something did not end in time, *timeout* seconds in all. Safe to call twice."""
        until = time.monotonic() + timeout
        for source in self.sources():
            source.stop(0)  # all are told to end before any is waited for
        ended = [source.stop(max(until - time.monotonic(), 0)) for source in self.sources()]
        return all(ended)

    def sources(self) -> Iterator[Source]:
        """Give whoever is asked."""
        every: tuple[Source | None, ...] = (self.pods, self.jobs, self.metas, self.slices)
        yield from (source for source in every if source is not None)

    def _make(self, snapshot: Snapshot, tables: _Tables) -> _Made:
        if self._made.snapshot_identity != snapshot.identity:
            self._ids = DeviceIds(snapshot.devices().values())
            self._ask_about_new_devices()
        found: dict[str, set[Owner]] = {device.uuid: set() for device in self._ids.devices}
        claimable = devices_in(tables.slices)
        unmatched: list[str] = []
        # While no slice is known (otelgpu_attribution_up says so) claims mean nothing, and are no reason to warn.
        judged = [held for held in tables.pods if tables.slices or not held.pool]
        for held in judged:
            match = self._claimed(held, claimable) if held.pool else self._ids.find(held.device_id)
            if match is None:
                unmatched.append(f"{held.pool}/{held.device_id}" if held.pool else held.device_id)
                continue
            meta = tables.metas.get((held.namespace, held.pod), _NO_META)
            owner = Owner(
                OwnerKind.POD,
                held.namespace,
                held.pod,
                held.container,
                pod_uid=meta.uid if self._shows_uids else "",
                vgpu=match.vgpu,
                labels=meta.labels,
                claim=_claim(held, match.device) if held.pool else (),
            )
            found[match.device.uuid].add(owner)
        for place, names in tables.jobs.items():
            device = self._ids.numbered(*place)
            if device is not None:
                found[device.uuid].update(Owner(OwnerKind.JOB, job=name) for name in names)
        for used in snapshot.used:
            found[used.device.uuid].update(used.jobs)
        if judged and found:  # else it is not known whether they are the same
            self._say_if_foreign(unmatched, is_foreign=len(unmatched) == len(judged))
        self._say_if_cut(is_cut=labels_left_out(tables.metas) > 0)
        by_device = {uuid: tuple(sorted(owners)) for uuid, owners in found.items() if owners}
        owners = self._numbered(by_device, self._named_pods(tables.metas), pods_known=tables.pods_known)
        return _Made(snapshot.identity, tables, owners, len(unmatched))

    def _claimed(self, held: Allocation, claimable: DeviceTable) -> Found | None:
        claimed = claimable.get((held.resource, held.pool, held.device_id))
        device = None if claimed is None else self._ids.claimed(claimed)
        return None if device is None else Found(device, "")

    def _named_pods(self, metas: PodMetaTable) -> dict[str, Owner]:
        """List the pods by UID, where processes are asked about."""
        if not self._names_uids:
            return {}
        return {
            meta.uid: Owner(OwnerKind.POD, namespace, pod, pod_uid=meta.uid, labels=meta.labels)
            for (namespace, pod), meta in metas.items()
            if meta.uid
        }

    def _numbered(self, by_device: dict[str, tuple[Owner, ...]], pods: dict[str, Owner], *, pods_known: bool) -> Owners:
        """Give a table the identity of the one before when it says the same, a new one otherwise."""
        before = self._made.owners
        if by_device == before.by_device and pods_known == before.pods_known and pods == before.pods:
            return before
        cut = self._crowds.shown(by_device, self._ids.devices)
        self._say_if_crowded(is_crowded=bool(cut))
        return Owners(
            before.identity + 1, MappingProxyType(by_device), pods_known, MappingProxyType(pods), MappingProxyType(cut)
        )

    def _ask_about_new_devices(self) -> None:
        """Have the kubelet asked at once when there is a device that was not there before, but for the first ones."""
        present = frozenset(device.uuid for device in self._ids.devices)
        if self._seen and present - self._seen and self.pods is not None:
            self.pods.hurry()
        self._seen |= present

    def _say_if_crowded(self, *, is_crowded: bool) -> None:
        if is_crowded and not self._made.owners.cut:
            logger.warning("not every owner is shown: there are more than limits.owners_per_gpu or limits.owners")
        elif self._made.owners.cut and not is_crowded:
            logger.info("every owner is shown again")

    def _say_if_cut(self, *, is_cut: bool) -> None:
        if is_cut != self._has_too_many_labels:
            self._has_too_many_labels = is_cut
            if is_cut:
                logger.warning("not every label is shown: a pod has more than %d", MOST_LABELS)
            else:
                logger.info("every label of a pod is shown again")

    def _say_if_foreign(self, unmatched: list[str], *, is_foreign: bool) -> None:
        if is_foreign == self._is_foreign:
            return
        self._is_foreign = is_foreign
        if is_foreign:
            logger.warning(
                "no owner is shown: the kubelet speaks of %s, the driver of %s, and none of them are the same",
                _listed(unmatched),
                _listed(device.uuid for device in self._ids.devices),
            )
        else:
            logger.info("what the kubelet speaks of is found among the GPUs again")


def _claim(held: Allocation, device: Device) -> Attributes:
    """List what is known of a claim and the device that it got, by dcgm-exporter's names without `dra_`."""
    instance = () if device.instance_id is None else (("mig_device_uuid", device.uuid), ("mig_profile", device.profile))
    return (
        ("claim_name", held.claim),
        ("claim_namespace", held.claim_namespace),
        ("device_name", held.device_id),
        ("driver_name", held.resource),
        *instance,
        ("pool_name", held.pool),
    )


def _listed(ids: Iterable[str]) -> str:
    known = sorted(set(ids))
    return ", ".join(known[:NAMED]) + (f" and {len(known) - NAMED} more" if len(known) > NAMED else "")
