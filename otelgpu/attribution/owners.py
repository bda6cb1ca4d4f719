"""Owners: what the kubelet and the job files say, put on the devices of a snapshot.

Rule 1: `owners` computes and never waits; it is called by whoever makes a page.
Rule 2: the result depends on the tables and the snapshot's devices alone, never on the order in which either came.
"""

import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import MappingProxyType

from otelgpu.attribution.deviceids import DeviceIds
from otelgpu.attribution.jobs import NO_JOBS, Jobs, JobTable
from otelgpu.attribution.pods import NOTHING, Pods, Table
from otelgpu.model import NOBODY, Owner, OwnerKind, Owners, Snapshot

logger = logging.getLogger(__name__)

NAMED = 8  # ids in one log line


@dataclass(frozen=True, slots=True)
class _Made:
    """The owners that were made last, and what of."""

    snapshot_identity: int
    pods: Table
    jobs: JobTable
    owners: Owners
    unmatched: int

    def holds_for(self, snapshot: Snapshot, pods: Table, jobs: JobTable) -> bool:
        return self.snapshot_identity == snapshot.identity and self.pods is pods and self.jobs is jobs


class Attribution:
    """Says who uses which device, from *pods* and *jobs* (None: not asked for)."""

    def __init__(self, *, pods: Pods | None = None, jobs: Jobs | None = None) -> None:
        self.pods = pods
        self.jobs = jobs
        self._lock = threading.Lock()
        self._ids = DeviceIds(())
        self._made = _Made(-1, NOTHING, NO_JOBS, NOBODY, 0)
        self._seen: frozenset[str] = frozenset()
        self._is_foreign = False

    @property
    def unmatched(self) -> int:
        """How many device ids of the kubelet's mean no device of the snapshot before."""
        return self._made.unmatched

    def owners(self, snapshot: Snapshot) -> Owners:
        """Say who uses the devices of *snapshot*, as far as it is known at this moment."""
        pods = NOTHING if self.pods is None else self.pods.table()
        jobs = NO_JOBS if self.jobs is None else self.jobs.table()
        made = self._made
        if not made.holds_for(snapshot, pods, jobs):
            with self._lock:
                made = self._made
                if not made.holds_for(snapshot, pods, jobs):
                    made = self._made = self._make(snapshot, pods, jobs)
        return made.owners

    def start(self) -> None:
        """Start asking in the background; returns at once."""
        for source in self.sources():
            source.start()

    def looked(self, timeout: float) -> bool:
        """Wait until each has been asked once, at most *timeout* seconds each."""
        looked = [source.looked(timeout) for source in self.sources()]
        return all(looked)

    def stop(self, timeout: float) -> bool:
        """End everything; False when something did not end in time. Safe to call twice."""
        ended = [source.stop(timeout) for source in self.sources()]
        return all(ended)

    def sources(self) -> Iterator[Pods | Jobs]:
        """Give whoever is asked."""
        yield from (source for source in (self.pods, self.jobs) if source is not None)

    def _make(self, snapshot: Snapshot, pods: Table, jobs: JobTable) -> _Made:
        if self._made.snapshot_identity != snapshot.identity:
            self._ids = DeviceIds(snapshot.devices().values())
            self._ask_about_new_devices()
        found: dict[str, set[Owner]] = {device.uuid: set() for device in self._ids.devices}
        unmatched: list[str] = []
        for held in pods:
            match = self._ids.find(held.device_id)
            if match is None:
                unmatched.append(held.device_id)
            else:
                owner = Owner(OwnerKind.POD, held.namespace, held.pod, held.container, vgpu=match.vgpu)
                found[match.device.uuid].add(owner)
        for place, names in jobs.items():
            device = self._ids.numbered(*place)
            if device is not None:
                found[device.uuid].update(Owner(OwnerKind.JOB, job=name) for name in names)
        self._say_if_foreign(unmatched, is_foreign=bool(pods and found) and len(unmatched) == len(pods))
        by_device = {uuid: tuple(sorted(owners)) for uuid, owners in found.items() if owners}
        return _Made(snapshot.identity, pods, jobs, self._numbered(by_device), len(unmatched))

    def _numbered(self, by_device: dict[str, tuple[Owner, ...]]) -> Owners:
        """Give a table the identity of the one before when it says the same, a new one otherwise."""
        before = self._made.owners
        return before if by_device == before.by_device else Owners(before.identity + 1, MappingProxyType(by_device))

    def _ask_about_new_devices(self) -> None:
        """Have the kubelet asked at once when there is a device that was not there before, but for the first ones."""
        present = frozenset(device.uuid for device in self._ids.devices)
        if self._seen and present - self._seen and self.pods is not None:
            self.pods.hurry()
        self._seen |= present

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


def _listed(ids: Iterable[str]) -> str:
    known = sorted(set(ids))
    return ", ".join(known[:NAMED]) + (f" and {len(known) - NAMED} more" if len(known) > NAMED else "")
