"""From a process to its owner, as the settings tell owners apart.

Rule 1: an owner is what /proc tells: UIDs, ids and numbers. Names that somebody else knows are joined on the way out.
Rule 2: what was found out of a process holds while it lives, and is kept while the driver speaks of it.
"""

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from otelgpu.model import UNATTRIBUTED, Owner, OwnerKind
from otelgpu.processes.cgroups import Place, place_in
from otelgpu.processes.proc import ProcFolder, printable

logger = logging.getLogger(__name__)

NOBODY_KNOWN = Owner(OwnerKind.REST, rest=UNATTRIBUTED)

By = Literal["off", "pod", "container", "process"]


@dataclass(frozen=True, slots=True)
class Telling:
    """How owners are told apart. `by` "off": only jobs are looked for."""

    by: By = "off"
    names: bool = False
    users: bool = False
    jobs: bool = False  # Slurm's
    job_users: bool = False

    @property
    def uses(self) -> bool:
        """Whether it is asked what each owner uses."""
        return self.by != "off"


class Known(NamedTuple):
    """What was found out of a process: its start, its owner, and, where jobs are wanted, its job."""

    ticks: int
    owner: Owner
    job: Owner | None


class ProcessOwners:
    """Finds the owners of processes. Used by all slots at once; what is known of processes stays with the caller."""

    def __init__(self, folder: ProcFolder, telling: Telling) -> None:
        self.telling = telling
        self._folder = folder
        self._lock = threading.Lock()
        self._problem: str | None = None

    def obstacle(self) -> str | None:
        """Say why no owner can be found; logged when it appears and when it clears."""
        problem = self._folder.obstacle()
        with self._lock:
            is_new, self._problem = problem != self._problem, problem
        if is_new and problem is None:
            logger.info("the owners of processes can be found again")
        elif is_new:
            logger.warning("no owner of a process is shown: %s", problem)
        return problem

    def known(self, pids: Iterable[int], before: Mapping[int, Known]) -> dict[int, Known]:
        """Say whose these processes are; those of which nothing is known are left away.

        *before* is what this said the last time. One that has ended meanwhile is still whose it was.
        """
        found: dict[int, Known] = {}
        for pid in pids:
            earlier = before.get(pid)
            known = self._found(pid, earlier) if pid > 0 else None
            if known is not None:
                found[pid] = known
        return found

    def age(self, known: Known) -> float:
        """Say how long ago a process began, in seconds."""
        return self._folder.age(known.ticks)

    def _found(self, pid: int, before: Known | None) -> Known | None:
        started = self._folder.started(pid)
        if started is None or (before is not None and before.ticks == started.ticks):
            return before
        groups = self._folder.groups(pid)
        again = self._folder.started(pid)
        if not groups or again is None or again.ticks != started.ticks:
            return None  # it ended just now, and the id may be somebody else's already
        place = place_in(groups)
        telling = self.telling
        user = self._folder.user(pid) if telling.users or (place.job and telling.job_users) else ""
        job_user = (place.job_user or user) if telling.job_users and place.job else ""
        owner = self._owner(pid, place, started.name, user if telling.users else "", job_user)
        job = Owner(OwnerKind.JOB, job=place.job, slurm_user=job_user) if place.job and telling.jobs else None
        return Known(started.ticks, owner, job)

    def _owner(self, pid: int, place: Place, name: str, user: str, job_user: str) -> Owner:
        by = self.telling.by
        kind = _kind(place)
        # What does not belong anywhere is told apart by its process alone.
        if kind is OwnerKind.PROCESS and by != "process" and not self.telling.names and not user:
            return NOBODY_KNOWN
        is_fine = by != "pod" or kind is OwnerKind.CONTAINER
        return Owner(
            kind,
            pod_uid=place.pod_uid,
            job=place.job,
            container_id=place.container_id if is_fine else "",
            step=place.step if by != "pod" else "",
            slurm_user=job_user,
            unit=place.unit,
            process=printable(name) if self.telling.names else "",
            user=user,
            pid=str(pid) if by == "process" else "",
        )


def _kind(place: Place) -> OwnerKind:
    if place.pod_uid:
        return OwnerKind.POD
    if place.job:
        return OwnerKind.JOB
    if place.container_id:
        return OwnerKind.CONTAINER
    return OwnerKind.UNIT if place.unit else OwnerKind.PROCESS
