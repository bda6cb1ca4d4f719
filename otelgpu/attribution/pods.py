"""Which container holds which device: the kubelet's answers, asked for in the background and kept.

Rule 1: readers take the last good answer, whole; none of them ever waits for the kubelet.
Rule 2: while the kubelet does not answer its last word holds for `expire` seconds, then nobody owns anything. A pod of
        which the API server says meanwhile that it is gone owns nothing from then on.
Rule 3: a fault is logged when it appears (or becomes another one) and when it clears.
Rule 4: a pod that is new, or is told of by the API server, is asked about alone where the kubelet can do that (Get):
        then its first figures have an owner, and the other 499 pods are not listed for it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from otelgpu.attribution.background import Background
from otelgpu.attribution.kubelet import Allocation, KubeletError, Lister
from otelgpu.attribution.podmeta import PodKey

logger = logging.getLogger(__name__)

WATCH = 1.0  # seconds between two looks at whether the kubelet was restarted, or a pod is new
SETTLES = 10.0  # seconds in which a kubelet that was just started may not know its pods yet
MOST_GETS = 16  # pods that are asked about one by one; for more of them everything is listed
GPU_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-*")
_SHARED = ".shared"  # what NVIDIA's plugin adds to the name of a resource that is shared out

Table = tuple[Allocation, ...]
NOTHING: Table = ()


def own_pod_of(environ: Mapping[str, str], folder: str = "") -> tuple[str, str]:
    """Name this process's own pod as (namespace, name), as far as it is known: "" for what is not.

    *folder* is that of the service account. The host name is the pod's only in a pod (and not with hostNetwork, where
    POD_NAME has to be set): outside it would hide a pod that happens to be called like the machine.
    """
    namespace = environ.get("POD_NAMESPACE", "")
    name = environ.get("POD_NAME", "")
    if not name and environ.get("KUBERNETES_SERVICE_HOST"):
        name = environ.get("HOSTNAME", "")
    if name and not namespace and folder:
        with suppress(OSError, UnicodeDecodeError):
            namespace = (Path(folder) / "namespace").read_text(encoding="utf-8").strip()
    return namespace, name


class Pods:
    """Asks *kubelet* every *refresh* seconds.

    *drivers* are those of Dynamic Resource Allocation whose claims count; *own_pod* is (namespace, name) of a pod that
    owns nothing. `renewed` hears in the background which pods hold something else than before.
    """

    name = "kubelet"

    def __init__(
        self,
        kubelet: Lister,
        *,
        refresh: float,
        expire: float,
        resource_names: Iterable[str] = (),
        drivers: Iterable[str] = (),
        own_pod: tuple[str, str] = ("", ""),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kubelet = kubelet
        self._refresh = refresh
        self._expire = expire
        self._resources = (*GPU_RESOURCES, *resource_names)
        self._drivers = frozenset(drivers)
        self._own_pod = own_pod
        self.renewed: Callable[[Iterable[PodKey]], None] = lambda _: None
        self._clock = clock
        self._table = NOTHING
        self._answered_at: float | None = None
        self._asked_at: float | None = None
        self._place: object = None
        self._settled_at = 0.0  # until then a kubelet that was started anew may be without its pods
        self._hurried = False
        self._noticed_lock = threading.Lock()
        self._noticed: set[PodKey] = set()
        self._gone: set[PodKey] = set()  # as the API server says; the kubelet is still to be asked
        self._can_get = True
        self._finished = 0
        self._problem: str | None = None
        self._background = Background("otelgpu-kubelet", self._look, period=min(WATCH, refresh))

    # for readers

    @property
    def is_up(self) -> bool | None:
        """Whether the last question was answered; None before the first."""
        return None if self._asked_at is None else self._problem is None

    @property
    def age(self) -> float | None:
        """Seconds since the last answer; None when there was none."""
        answered_at = self._answered_at
        return None if answered_at is None else max(self._clock() - answered_at, 0.0)

    @property
    def finished(self) -> int:
        """How many questions were answered, or failed."""
        return self._finished

    @property
    def is_known(self) -> bool:
        """Whether the table says what is so: the kubelet has answered, and not too long ago."""
        age = self.age
        return age is not None and age <= self._expire

    def table(self) -> Table:
        """Return what is held now, sorted; the same object for as long as nothing changes."""
        return self._table if self.is_known else NOTHING

    def hurry(self) -> None:
        """Ask again now."""
        self._hurried = True
        self._background.wake()

    def notice(self, key: PodKey, is_there: bool) -> None:  # noqa: FBT001 - the mirror's callback
        """Be told that a pod of this node came, changed or went. A holder whose status changes holds what it held."""
        holds = any((held.namespace, held.pod) == key for held in self._table)
        if is_there and not holds:
            with self._noticed_lock:
                self._noticed.add(key)
        elif holds and not is_there:
            with self._noticed_lock:
                self._gone.add(key)
            self.hurry()

    # life

    def start(self) -> None:
        """Start asking; returns at once."""
        self._background.start()

    def looked(self, timeout: float) -> bool:
        """Wait for the first answer or failure, at most *timeout* seconds."""
        return self._background.looked(timeout)

    def stop(self, timeout: float) -> bool:
        """End the question under way and the thread; False when it did not end in time. Safe to call twice."""
        self._kubelet.close()
        return self._background.stop(timeout)

    # the thread

    def _look(self) -> None:
        place = self._kubelet.place()
        if place != self._place:
            self._can_get = True
            if self._table:  # else there is nothing that an answer without pods could take away too soon
                self._settled_at = self._clock() + SETTLES
        with self._noticed_lock:
            noticed, self._noticed = self._noticed, set()
            gone = frozenset(self._gone)
        is_due = self._hurried or self._is_due() or place != self._place
        if not is_due and noticed and self._can_get and self._problem is None:
            is_due = len(noticed) > MOST_GETS or not self._get(noticed)
        if not is_due:
            return
        self._hurried = False
        self._place = place
        with self._noticed_lock:
            self._gone -= gone
        started_at = self._clock()
        problem = None
        try:
            held = self._held(self._kubelet.allocations())
        except KubeletError as error:
            problem = str(error)
            self._drop(gone)
        else:
            if held or not self._table or self._clock() >= self._settled_at:
                self._keep(held)
                self._answered_at = self._clock()
            else:
                self._hurried = True  # it listens before it knows what runs; the pods have gone on meanwhile
                self._drop(gone)
        self._asked_at = started_at
        self._say(problem)
        self._finished += 1

    def _get(self, pods: Iterable[PodKey]) -> bool:
        """Ask about these pods alone; False when all have to be listed instead."""
        for namespace, name in sorted(pods):
            try:
                held = self._held(self._kubelet.allocations_of(namespace, name))
            except KubeletError as error:
                if error.refused:
                    continue  # it does not know the pod (yet); the next list tells
                self._can_get = not error.lacks
                return False
            others = [other for other in self._table if (other.namespace, other.pod) != (namespace, name)]
            if not _devices(others).isdisjoint(_devices(held)):
                return False  # whoever held it before has ended, and nobody has said so
            self._keep(tuple(sorted((*others, *held))))
        return True

    def _keep(self, held: Table) -> None:
        if held != self._table:
            changed = set(held) ^ set(self._table)
            self._table = held
            self.renewed({(one.namespace, one.pod) for one in changed})

    def _drop(self, pods: AbstractSet[PodKey]) -> None:
        """Believe the API server that these have gone, where the kubelet does not tell."""
        self._keep(tuple(held for held in self._table if (held.namespace, held.pod) not in pods))

    def _is_due(self) -> bool:
        return self._asked_at is None or self._clock() - self._asked_at >= self._refresh

    def _held(self, allocations: Iterable[Allocation]) -> Table:
        """Keep what is a GPU and not our own, in an order that does not depend on the kubelet's."""
        kinds: dict[str, bool] = {}
        held = set()
        for allocation in allocations:
            if allocation.pool:
                if allocation.resource in self._drivers and not self._is_own(allocation):
                    held.add(allocation)
                continue
            is_gpu = kinds.get(allocation.resource)
            if is_gpu is None:
                is_gpu = kinds[allocation.resource] = self._is_gpu(allocation.resource)
            if is_gpu and not self._is_own(allocation):
                held.add(allocation)
        return tuple(sorted(held))

    def _is_gpu(self, resource: str) -> bool:
        names = (resource, resource.removesuffix(_SHARED))
        return any(fnmatchcase(name, pattern) for name in names for pattern in self._resources)

    def _is_own(self, allocation: Allocation) -> bool:
        namespace, name = self._own_pod
        return bool(name) and name == allocation.pod and namespace in ("", allocation.namespace)

    def _say(self, problem: str | None) -> None:
        if problem == self._problem:
            return
        if problem is None:
            logger.info("the kubelet answers again: owners are shown")
        else:
            logger.warning("owners of GPUs are unknown: %s; the last answer is shown for %g s", problem, self._expire)
        self._problem = problem


def _devices(allocations: Iterable[Allocation]) -> set[tuple[str, str]]:
    """List what only one pod can hold at a time: all but claims, which pods may share."""
    return {(held.resource, held.device_id) for held in allocations if not held.pool}
