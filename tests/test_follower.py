"""The thread behind whatever follows the API server: its pauses, turned by the test, and no thread at all."""

import threading

import pytest

from otelgpu.attribution.apiserver import Api, ApiError
from otelgpu.attribution.follower import Follower
from otelgpu.errors import StartError
from tests.harness import LIMIT

API = Api({}, "/nowhere")


class Turned(threading.Event):
    """An end that comes after so many waits, none of which takes any time."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._most = most

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        if len(self.waits) == self._most:
            self.set()
        return self.is_set()


def pauses_of(*results: Exception | float, times: int) -> list[float]:
    """The pauses after *times* steps, of which the first ones end like this and all others fail."""
    left = list(results)

    def step() -> float:
        result = left.pop(0) if left else ApiError("nobody there")
        if isinstance(result, Exception):
            raise result
        follower.pause.forget()
        return result

    follower = Follower("otelgpu-test", API, step=step, failed=lambda _: False)
    ending = follower._stopped = Turned(times)  # noqa: SLF001 - it is the clock
    follower.start()
    assert follower.looked(LIMIT)
    follower._thread.join(LIMIT)  # noqa: SLF001 - as above
    assert follower.stop(LIMIT)
    return ending.waits


def test_ten_minutes_without_a_server_are_a_few_tries_and_not_in_step() -> None:
    """A thousand nodes lose it in the same moment, and would keep it down when it begins again."""
    whole = [1.0, 2.0, 4.0, 8.0, 16.0, *[30.0] * 19]
    one, other = (pauses_of(times=24) for _ in range(2))

    for pauses in (one, other):
        assert all(most / 2 <= pause <= most for pause, most in zip(pauses, whole, strict=True))
    assert one != other


def test_a_good_try_ends_the_growth_and_no_error_ends_the_thread() -> None:
    """The next fault is another one; a defect of otelgpu is a try that failed."""
    failures = [ApiError("x"), ZeroDivisionError("x"), ApiError("x"), ApiError("x")]
    pauses = pauses_of(*failures, 0.0, times=6)

    assert 4 <= pauses[3] <= 8
    assert pauses[4] == 0
    assert 0.5 <= pauses[5] <= 1


def test_a_thread_that_cannot_be_had_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started first of all, before anybody has counted the threads that there may be."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    follower = Follower("otelgpu-test", API, step=lambda: 0.0, failed=lambda _: False)
    monkeypatch.setattr(threading.Thread, "start", refuse)

    with pytest.raises(StartError, match=r"^no thread to follow the API server: can't start new thread$"):
        follower.start()
    assert follower.stop(0)
