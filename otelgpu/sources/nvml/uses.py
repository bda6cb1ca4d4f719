"""Who uses a device, and what: the driver's lists of processes, summed by owner.

Rule 1: a process that is on the device is on one of the lists; on two of them, it is one process all the same.
Rule 2: what the driver was asked and did not answer is absent for every owner, and why stands in `gaps`: a sum that
        lacks a part would pass for the whole. Who is on the device and has no sample has done nothing: that is a 0.
Rule 3: a function that the device does not know is asked again seldom (see `again`).
Rule 4: all of it runs in the thread of the GPU.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import pynvml

from otelgpu.ledger import total
from otelgpu.model import Device, DeviceUse, Gap, Owner, Use
from otelgpu.processes.owners import NOBODY_KNOWN, Known, ProcessOwners
from otelgpu.sources.again import Again
from otelgpu.sources.nvml.errors import gap_of, raise_if_whole
from otelgpu.sources.nvml.handles import Handle
from otelgpu.sources.nvml.lists import compute_processes, graphics_processes, mps_processes
from otelgpu.sources.nvml.recent import Recent

SLACK = 0.1  # seconds: a process may have started so much later than /proc and the clock say
ALL = 100  # percent
ROUNDS = 3  # attempts at a list that has grown between its two calls
MOST_MEMORY = 2**50  # bytes; more cannot be true
MEMORY, UTILIZATION, OWNER = "memory", "utilization", "owner"

Ask = Callable[[], Any]

LISTS: tuple[Callable[[Handle], Any], ...] = (compute_processes, graphics_processes, mps_processes)
# The second knows GPUs (and drivers, from 550 on) that the first does not.
SAMPLERS: tuple[Callable[[Handle, int], Any], ...] = (
    pynvml.nvmlDeviceGetProcessUtilization,
    pynvml.nvmlDeviceGetProcessesUtilizationInfo,
)
_SHARES = ("smUtil", "memUtil", "encUtil", "decUtil")
_NOBODY = (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND)  # pynvml raises both where the list is empty

Shares = tuple[int | None, ...]  # in the order of _SHARES


class Sampled(NamedTuple):
    """The newest sample of a process, and its age in seconds."""

    age: float
    shares: Shares


IDLE: Shares = (0, 0, 0, 0)
UNTOLD: Shares = (None, None, None, None)


class Uses:
    """Asks one device who uses it. `ask` is called once a sweep."""

    def __init__(
        self,
        device: Device,
        handle: Handle,
        *,
        owners: ProcessOwners,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._device = device
        self._handle = handle
        self._owners = owners
        self._recent = Recent(wall)
        self._again = Again(time.monotonic)
        self._refused: set[object] = set()
        self._known: dict[int, Known] = {}

    def ask(self, beside: Sequence[Handle] = ()) -> DeviceUse:
        """Ask who is here, or *beside* it on the same device, and what they use.

        Raise DeviceDownError when the device itself is gone.
        """
        if self._again.is_due():
            self._refused.clear()
        if self._owners.obstacle() is not None:
            self._known = {}
            return DeviceUse(self._device, gaps=((OWNER, Gap.DENIED),))
        listed = self._listed((self._handle, *beside))
        sampled = self._sampled() if self._owners.telling.uses else {}
        gaps = tuple(
            (what, found) for what, found in ((MEMORY, listed), (UTILIZATION, sampled)) if isinstance(found, Gap)
        )
        memory = {} if isinstance(listed, Gap) else listed
        shares: Mapping[int, Sampled] = {} if isinstance(sampled, Gap) else sampled
        pids = memory.keys() | shares.keys()
        self._known = self._owners.known(pids, self._known)
        jobs = {known.job for pid in memory if (known := self._known.get(pid)) and known.job}
        unknown = sum(pid not in self._known for pid in memory)
        if not self._owners.telling.uses:
            return DeviceUse(self._device, gaps=gaps, jobs=tuple(sorted(jobs)), unknown=unknown)
        idle = UNTOLD if isinstance(sampled, Gap) else IDLE
        by_owner: dict[Owner, list[tuple[int | None, Shares]]] = {}
        for pid in sorted(pids):
            known, sample = self._known.get(pid), shares.get(pid)
            owner = NOBODY_KNOWN if known is None else known.owner
            # Who has a sample and is on no list has just ended: it has no memory any more.
            used = None if isinstance(listed, Gap) else memory.get(pid, 0)
            if known is not None and sample is not None and sample.age > self._owners.age(known) + SLACK:
                # Of another process that had this id before: what that one did is nobody's.
                by_owner.setdefault(NOBODY_KNOWN, []).append((None if used is None else 0, sample.shares))
                sample = None
                if pid not in memory:
                    continue
            by_owner.setdefault(owner, []).append((used, idle if sample is None else sample.shares))
        uses = tuple(_summed(owner, parts) for owner, parts in sorted(by_owner.items()))
        return DeviceUse(self._device, uses, gaps, tuple(sorted(jobs)), unknown)

    def _listed(self, handles: Sequence[Handle]) -> Mapping[int, int | None] | Gap:
        """Give the memory of every process on the device, None where the driver does not tell it."""
        found: dict[int, int | None] = {}
        gap = Gap.UNSUPPORTED
        is_told = False
        for ask, handle in product(LISTS, handles):
            answer = self._asked(ask, partial(ask, handle))
            if isinstance(answer, Gap):
                if answer is not Gap.UNSUPPORTED:
                    return answer
                continue
            is_told = True
            for process in answer:
                memory = process.usedGpuMemory
                known = found.get(process.pid)
                if memory is not None and 0 <= memory <= MOST_MEMORY:
                    found[process.pid] = max(memory, known or 0)
                else:
                    found.setdefault(process.pid, None)
        return found if is_told else gap

    def _sampled(self) -> Mapping[int, Sampled] | Gap:
        """Give the newest shares of every process that has worked of late.

        There are none for MIG instances: NVML's documentation says that MIG is not supported here.
        """
        if self._device.instance_id is not None:
            return Gap.UNSUPPORTED
        moment = self._recent.moment()
        for ask in SAMPLERS:
            answer = self._asked(ask, partial(ask, self._handle, moment.since))
            if answer is Gap.UNSUPPORTED:
                continue
            if isinstance(answer, Gap):
                return answer
            return {one.pid: Sampled(moment.age(one), _shares(one)) for one in moment.newest(answer)}
        return Gap.UNSUPPORTED

    def _asked(self, function: object, ask: Ask) -> Any:  # noqa: ANN401 - whatever pynvml returns, or a Gap
        if function in self._refused:
            return Gap.UNSUPPORTED
        for _ in range(ROUNDS):
            try:
                return ask()
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
                    continue
                if error.value in _NOBODY:
                    return ()
                raise_if_whole(error)
                gap = gap_of(error.value)
                if gap is Gap.UNSUPPORTED:
                    self._refused.add(function)
                    self._again.refused()
                return gap
        return Gap.FAILED


def _shares(sample: Any) -> Shares:  # noqa: ANN401 - c_nvmlProcessUtilizationSample_t
    return tuple(share if (share := getattr(sample, name)) <= ALL else None for name in _SHARES)


def _summed(owner: Owner, parts: Sequence[tuple[int | None, Shares]]) -> Use:
    """Add up what the processes of an owner use."""
    if len(parts) == 1:
        return Use(owner, parts[0][0], *parts[0][1])
    memory = total([used for used, _ in parts])
    # The samples of two processes are not of the same instant, so their sum may be a little too much.
    shares = [total(of_one, ALL) for of_one in zip(*(shares for _, shares in parts), strict=True)]
    return Use(owner, memory, *shares)
