"""Threads that are there before they are needed: a request must not fail because none could be started just then.

Rule 1: where the process may not have enough of them it does not start; who asked for it reads so at once.
Rule 2: they share one heap. Those of Python hardly ever allocate at the same time, and glibc would give each a heap of
        its own, which costs half a megabyte in all.
"""

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from otelgpu.errors import StartError

ROOM = 12  # threads that the sampler, the driver, some GPUs and whatever pushes need; see `check_room`


M_ARENA_MAX = -8  # of malloc.h


def share_heap() -> None:
    """Have the threads that are started from now on share a heap; elsewhere than with glibc nothing happens."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def ready(number: int, name: str) -> ThreadPoolExecutor:
    """Make an executor whose *number* threads all run already. Raise StartError."""
    executor = ThreadPoolExecutor(max_workers=number, thread_name_prefix=name)
    everybody_is_there = threading.Event()  # until then each job takes a thread of its own
    try:
        for _ in range(number):
            executor.submit(everybody_is_there.wait)
    except RuntimeError:  # what Python makes of a failed pthread_create
        executor.shutdown(wait=False, cancel_futures=True)
        limits = "ulimit -u, ulimit -v, or pids.max of the container"
        raise StartError(f"cannot start: there are not enough threads ({limits})") from None
    finally:
        everybody_is_there.set()
    return executor


def check_room() -> None:
    """Raise StartError where ROOM more threads could not be had at the same time."""
    ready(ROOM, "otelgpu-room").shutdown(wait=True)
