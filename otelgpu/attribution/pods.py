"""Which container holds which device: the kubelet's answers, asked for in the background and kept.

Rule 1: readers take the last good answer, whole; none of them ever waits for the kubelet.
Rule 2: while the kubelet does not answer its last word holds for `expire` seconds, then nobody owns anything.
Rule 3: a fault is logged when it appears (or becomes another one) and when it clears.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

from otelgpu.attribution.background import Background
from otelgpu.attribution.kubelet import Allocation, KubeletError, Lister

logger = logging.getLogger(__name__)

WATCH = 1.0  # seconds between two looks at whether the kubelet was restarted
GPU_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-*")
_SHARED = ".shared"  # what NVIDIA's plugin adds to the name of a resource that is shared out

Table = tuple[Allocation, ...]
NOTHING: Table = ()


def own_pod_of(environ: Mapping[str, str]) -> tuple[str, str]:
    """Name this process's own pod as (namespace, name), as far as it is known: "" for what is not."""
    return environ.get("POD_NAMESPACE", ""), environ.get("POD_NAME", "") or environ.get("HOSTNAME", "")


class Pods:
    """Asks *kubelet* every *refresh* seconds. *own_pod* is (namespace, name) of a pod that owns nothing."""

    name = "kubelet"

    def __init__(
        self,
        kubelet: Lister,
        *,
        refresh: float,
        expire: float,
        resource_names: Iterable[str] = (),
        own_pod: tuple[str, str] = ("", ""),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kubelet = kubelet
        self._refresh = refresh
        self._expire = expire
        self._resources = (*GPU_RESOURCES, *resource_names)
        self._own_pod = own_pod
        self._clock = clock
        self._table = NOTHING
        self._answered_at: float | None = None
        self._asked_at: float | None = None
        self._place: object = None
        self._hurried = False
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

    def table(self) -> Table:
        """Return what is held now, sorted; the same object for as long as nothing changes."""
        age = self.age
        return self._table if age is not None and age <= self._expire else NOTHING

    def hurry(self) -> None:
        """Ask again now."""
        self._hurried = True
        self._background.wake()

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
        if not (self._hurried or self._is_due() or place != self._place):
            return
        self._hurried = False
        self._place = place
        started_at = self._clock()
        problem = None
        try:
            held = self._held(self._kubelet.allocations())
        except KubeletError as error:
            problem = str(error)
        else:
            if held != self._table:
                self._table = held
            self._answered_at = self._clock()
        self._asked_at = started_at
        self._say(problem)
        self._finished += 1

    def _is_due(self) -> bool:
        return self._asked_at is None or self._clock() - self._asked_at >= self._refresh

    def _held(self, allocations: Iterable[Allocation]) -> Table:
        """Keep what is a GPU and not our own, in an order that does not depend on the kubelet's."""
        kinds: dict[str, bool] = {}
        held = set()
        for allocation in allocations:
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
