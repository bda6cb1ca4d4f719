"""What this process and its children use of a GPU.

Rule 1: a process that is on the GPU is in the driver's list. One that is not in it has no value here, and no zero:
        in a container with process ids of its own the driver's ids are those of the host, and nothing can be told.
Rule 2: children are looked up at each question: a data loader's workers come and go.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pynvml

from otelgpu.sources.nvml.handles import Handle
from otelgpu.sources.nvml.lists import compute_processes, graphics_processes
from otelgpu.sources.nvml.recent import Recent

_RECENT = Recent()  # of this process's clock, which is the same for all GPUs
ALL = 100  # percent


def own_memory(handle: Handle) -> int:
    """Sum the memory of our processes on this device, in bytes. Raise NVMLError where none of them is on it."""
    used = [memory for pid, memory in _listed(handle).items() if pid in own_pids() and memory is not None]
    if not used:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    return sum(used)


def own_sm(handle: Handle) -> int:
    """Give the share of recent time in which our processes had work on the multiprocessors, in percent."""
    ours = own_pids() & _listed(handle).keys()
    if not ours:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    moment = _RECENT.moment()
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, moment.since)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_NOT_FOUND:
            raise
        samples = []  # nobody has worked
    latest = {sample.pid: int(sample.smUtil) for sample in moment.newest(samples)}
    # The samples of two processes are not of the same instant, so their sum may be a little too much.
    return min(sum(latest[pid] for pid in ours if pid in latest), ALL)


def own_pids() -> set[int]:
    """List this process and all that descend from it, as far as /proc tells."""
    found: set[int] = set()
    new = [os.getpid()]
    while new:
        pid = new.pop()
        if pid not in found:
            found.add(pid)
            new.extend(_children(pid))
    return found


def _children(pid: int) -> Iterator[int]:
    with suppress(OSError, ValueError):  # it has just ended, or this kernel does not tell
        for task in Path(f"/proc/{pid}/task").iterdir():
            yield from map(int, (task / "children").read_text(encoding="ascii").split())


def _listed(handle: Handle) -> dict[int, int | None]:
    """Give the memory of every process on the device; one that is both on the compute and the graphics list once."""
    listed: dict[int, int | None] = {}
    for ask in (graphics_processes, compute_processes):
        try:
            listed |= {process.pid: process.usedGpuMemory for process in ask(handle)}
        except pynvml.NVMLError as error:
            if ask is compute_processes:
                raise
            if error.value not in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                raise
    return listed
