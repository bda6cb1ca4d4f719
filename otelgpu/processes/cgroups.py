"""Whose a process is, by the path of its control group.

    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope
    /system.slice/slurmstepd.scope/job_42/step_0/user/task_0

Rule 1: paths are read as they are found in the field, by what is sure in them: a pod's UID, a container's 64 digits, a
        job below slurm. Seen out of a control group namespace they begin with /.., and lack what both have above them.
Rule 2: who may make groups of his own makes them below one that tells whose he is: a job counts only at the top, a pod
        only in the tree that the kubelet makes there, or in a container that is a node (kind), and not below a session,
        a service or a user's own systemd; then the outermost container.
Rule 3: of several hierarchies (version 1, or both versions) the one that says most counts.
"""

import re
from typing import NamedTuple

_UID = r"[0-9a-f]{8}(?P<dash>[-_])[0-9a-f]{4}(?P=dash)[0-9a-f]{4}(?P=dash)[0-9a-f]{4}(?P=dash)[0-9a-f]{12}"
_ID = "[0-9a-f]{64}"
# Where a kubelet's tree may begin that does not begin at the top; only root makes groups there.
_NODE = (
    rf"/docker/{_ID}|/system\.slice/docker-{_ID}\.scope|/machine\.slice/libpod-{_ID}\.scope(?:/container)?"
    r"|/system\.slice/(?:containerd|crio|docker)\.service"
)
_CLASS = "burstable|besteffort"
_POD = re.compile(
    rf"(?P<up>(?:/\.\.)+)?(?:{_NODE})*(?:/kubelet(?:\.slice)?)?(?P<tree>/(?:kubelet-)?kubepods(?:\.slice)?)?"
    rf"(?:/(?:(?:kubelet-)?kubepods-)?(?:{_CLASS})(?:\.slice)?)?/(?P<slice>(?:kubelet-)?kubepods-(?:(?:{_CLASS})-)?)?"
    rf"pod(?P<uid>{_UID}|[0-9a-f]{{32}})(?:\.slice)?(?=[/:]|$)"  # a static pod's has no dashes
)
_CONTAINER = re.compile(rf"[/:-](?P<id>{_ID})(?:\.scope)?(?=/|$)")
_JOB = re.compile(
    r"(?:/\.\.)*(?:/system\.slice)?/(?:slurm[^/]*|[^/]*slurmstepd\.scope)/"
    r"(?:uid_(?P<user>[0-9]{1,10})/)?job_(?P<job>[0-9]{1,20})(?:/step_(?P<step>[0-9A-Za-z_.]{1,40}))?(?=/|$)"
)
_UNIT = re.compile(r"/(?P<unit>[^/]{1,250}\.(?:service|scope))(?=/|$)")
_DELETED = " (deleted)"


class Place(NamedTuple):
    """Where a process belongs; texts that do not apply are ""."""

    pod_uid: str = ""
    container_id: str = ""
    job: str = ""
    step: str = ""
    job_user: str = ""  # version 1 tells it
    unit: str = ""


NOWHERE = Place()


def place_in(text: str) -> Place:
    """Read what /proc/<pid>/cgroup says."""
    found = NOWHERE
    for line in text.split("\n"):  # the one character that no group may have in its name: splitlines knows more ends
        _, _, path = line.partition(":")[2].partition(":")
        place = _place(path.removesuffix(_DELETED))
        if _worth(place) > _worth(found):
            found = place
    return found


def _place(path: str) -> Place:
    if job := _JOB.match(path):
        return Place(job=job["job"], step=job["step"] or "", job_user=job["user"] or "")
    if (pod := _POD.match(path)) and (pod["up"] or pod["tree"] or pod["slice"]):
        container = _CONTAINER.search(path, pod.end())
        return Place(pod_uid=pod["uid"].replace("_", "-"), container_id=container["id"] if container else "")
    if container := _CONTAINER.search(path):
        return Place(container_id=container["id"])
    units = _UNIT.findall(path)
    return Place(unit=units[-1]) if units else NOWHERE


def _worth(place: Place) -> tuple[bool, bool, bool, int]:
    """Order places by how much they say: a container or job more than a unit, and of those the one with more to it."""
    return bool(place.pod_uid), bool(place.job), bool(place.container_id), sum(map(len, place))
