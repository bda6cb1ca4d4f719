"""The end: after a signal the process is gone in time, whatever the driver and the clients are doing."""

import random
import signal
import threading
import time
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.fakenvml import Scenario, models
from tests.faults.rig import FEW, distinct
from tests.harness import Served, serving, until

PAIR = distinct(models.h100(2))
GONE = 5.0  # seconds after the signal
FIELDS = ",".join((*FEW, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_XID_ERRORS"))
STUCK = {
    "nothing": PAIR,
    "a-gpu": PAIR.with_gpu(1, hangs={"nvmlDeviceGetPowerUsage"}),
    "a-slow-gpu": PAIR.with_gpu(1, delays={"nvmlDeviceGetPowerUsage": 0.2}),
    "the-count": PAIR.but(hangs={"nvmlDeviceGetCount_v2"}),
    "the-events": PAIR.but(hangs={"nvmlEventSetWait_v2"}),
    "the-end": PAIR.but(hangs={"nvmlShutdown"}),
    "the-lock": PAIR.but(global_lock=True, hangs={"nvmlDeviceGetFieldValues"}),
}


def scrape(served: Served, over: threading.Event) -> None:
    while not over.is_set():
        try:
            served.get(timeout=10)
        except (OSError, HTTPException):
            over.wait(0.005)


def end(folder: Path, scenario: Scenario, after: float, *, stuck_at_start: bool) -> None:
    """Run, scrape, get the driver stuck, send SIGTERM after a while and see it go."""
    flags = ("--fields", FIELDS, "--reuse", "0", "--deadline", "0.5")
    over = threading.Event()
    with serving(scenario if stuck_at_start else PAIR, folder, *flags) as served:
        readers = [threading.Thread(target=scrape, args=(served, over)) for _ in range(4)]
        for reader in readers:
            reader.start()
        if not stuck_at_start:
            until(lambda: served.counts.calls("nvmlDeviceGetPowerUsage") > 4, "pages are served")
            scenario.write(served.scenario)
        over.wait(after)
        began = time.monotonic()
        code = served.stop(signal.SIGTERM)
        seconds = time.monotonic() - began
        over.set()
        for reader in readers:
            reader.join(20)

        assert code == 0, "".join(served.log)
        assert seconds < GONE
    assert "Traceback" not in "".join(served.log)
    assert "abort" not in "".join(served.log)  # what the fake does when a call overlaps nvmlShutdown


@pytest.mark.parametrize("what", STUCK)
def test_a_signal_ends_it_in_time(what: str, tmp_path: Path, cc: Path) -> None:
    """Nothing that hangs keeps the process, no shutdown overlaps a call, and no traceback is left in the log."""
    assert cc.exists()
    end(tmp_path, STUCK[what], 0.7, stuck_at_start=False)


def test_who_was_let_in_before_the_signal_is_answered(tmp_path: Path, cc: Path) -> None:
    """A service that is started anew under a socket of systemd's costs no scrape: its request may be on its way."""
    assert cc.exists()
    with serving(PAIR, tmp_path, "--fields", FEW[0]) as served, served.connect() as early:
        served.page()  # over a connection that was let in after it
        served.process.send_signal(signal.SIGTERM)
        until(lambda: not is_open(served), "nobody is let in")
        early.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        answer = early.makefile("rb").read()

        assert FEW[0].encode() in answer
        assert served.process.wait(GONE) == 0


def is_open(served: Served) -> bool:
    try:
        served.connect().close()
    except OSError:
        return False
    return True


@pytest.mark.soak
def test_a_signal_ends_it_at_any_moment(tmp_path: Path, cc: Path) -> None:
    """A hundred times, at random moments of start, sweep and hang."""
    assert cc.exists()
    moments = random.Random(1)
    names = list(STUCK)
    for number in range(100):
        folder = tmp_path / str(number)
        folder.mkdir()
        scenario = STUCK[names[number % len(names)]]
        end(folder, scenario, moments.uniform(0, 1.2), stuck_at_start=number % 2 == 0)
