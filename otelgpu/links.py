"""The links of GPUs that have fallen behind: PCIe with fewer lanes, NVLinks that are down.

Rule 1: a link is compared with itself: whether it is up, and how wide, depends on slots and bridges (a T4 in a slot of
        eight lanes is well), and its speed falls whenever nothing is to be done.
"""

from collections import defaultdict
from collections.abc import Iterator

from otelgpu.model import Attributes, Series, SeriesKey, Snapshot

PCIE_WIDTH, NVLINK_STATE = 238, 1508
UP = frozenset((1, 2))  # of NVML's link states: active, and asleep for want of traffic; 3 is closed to traffic

PEERS = 2  # further GPUs of the model before a link is compared with theirs: two alone may be bridged in their own way


class Links:
    """Finds the links that have fallen behind, and remembers for that how good each was at its best.

    Used by one collection at a time. What it remembers is bounded by the links of the machine.
    """

    def __init__(self) -> None:
        self._best: dict[tuple[int, SeriesKey], int | float] = {}
        self._gpus: dict[SeriesKey, str] = {}

    def behind(self, snapshot: Snapshot) -> set[str]:
        """Name the GPUs, by UUID, of which a link is worse than it was, or is down where it is up on the others."""
        return self.narrowed(snapshot) | self.down(snapshot)

    def narrowed(self, snapshot: Snapshot) -> set[str]:
        """Name the GPUs, by UUID, whose PCIe has fewer lanes than it had."""
        return {device.gpu_uuid for device, _ in self._worse(PCIE_WIDTH, snapshot)}

    def down(self, snapshot: Snapshot) -> set[str]:
        """Name the GPUs, by UUID, of which an NVLink is down that was up, or that is up on the others.

        NVLinks of a GPU with MIG instances are left aside: MIG does without them.
        """
        partitioned = {state.device.uuid for state in snapshot.states if state.instances}
        found = {device.gpu_uuid for device, _ in self._worse(NVLINK_STATE, snapshot)} - partitioned
        return found | set(_downs(snapshot, partitioned))

    def copy(self) -> "Links":
        """Give one that may be asked without this one's remembering it."""
        copy = Links()
        copy._best, copy._gpus = self._best.copy(), self._gpus.copy()
        return copy

    def untold(self, snapshot: Snapshot) -> set[str]:
        """Name the GPUs, by UUID, that told of some of their NVLinks and not of one that they told of before."""
        now = snapshot.numbers.get(NVLINK_STATE, {})
        before: defaultdict[str, set[SeriesKey]] = defaultdict(set)
        for field_id, key in self._best:
            if field_id == NVLINK_STATE:
                before[self._gpus[key]].add(key)
        return {gpu for gpu in {snapshot.series[key].device.gpu_uuid for key in now} if before[gpu] - now.keys()}

    def _worse(self, field_id: int, snapshot: Snapshot) -> Iterator[Series]:
        for key, number in snapshot.numbers.get(field_id, {}).items():
            self._gpus[key] = snapshot.series[key].device.gpu_uuid
            if field_id == NVLINK_STATE:
                number = int(number in UP)  # noqa: PLW2901
            if number < self._best.setdefault((field_id, key), number):
                yield snapshot.series[key]
            else:
                self._best[field_id, key] = number


def _downs(snapshot: Snapshot, partitioned: set[str]) -> Iterator[str]:
    """Find what was down from the start: a link that most GPUs of the model have up, on a GPU with others up."""
    links: defaultdict[str, dict[str, dict[Attributes, bool]]] = defaultdict(dict)  # by model, GPU and link
    for key, number in snapshot.numbers.get(NVLINK_STATE, {}).items():
        device, attributes = snapshot.series[key]
        if device.gpu_uuid not in partitioned:
            links[device.model].setdefault(device.gpu_uuid, {})[attributes] = number in UP
    for gpus in links.values():
        wired = {uuid: states for uuid, states in gpus.items() if any(states.values())}
        if len(wired) <= PEERS:
            continue
        for uuid, states in wired.items():
            for link, is_up in states.items():
                ups = sum(others.get(link, False) for others in wired.values())
                if not is_up and 2 * ups > len(wired):
                    yield uuid
