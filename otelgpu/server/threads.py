"""Threads that are there before they are needed: a request must not fail because none could be started just then.

Rule 1: where the process may not have enough of them it does not start; who asked for it reads so at once.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

ROOM = 12  # threads that the sampler, the driver, some GPUs and whatever pushes need; see `check_room`


def ready(number: int, name: str) -> ThreadPoolExecutor:
    """Make an executor whose *number* threads all run already. Raise RuntimeError as `Thread.start` does."""
    executor = ThreadPoolExecutor(max_workers=number, thread_name_prefix=name)
    everybody_is_there = threading.Event()  # until then each job takes a thread of its own
    try:
        for _ in range(number):
            executor.submit(everybody_is_there.wait)
    except RuntimeError:
        executor.shutdown(wait=False, cancel_futures=True)
        raise
    finally:
        everybody_is_there.set()
    return executor


def check_room() -> None:
    """Raise RuntimeError where ROOM more threads could not be had at the same time."""
    ready(ROOM, "otelgpu-room").shutdown(wait=True)
