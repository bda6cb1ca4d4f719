"""Letting go of the driver on request, so that it can be unloaded or upgraded, and taking it again."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from otelgpu.config import Sampling
from tests.fakenvml import Fake, models
from tests.faults.rig import FEW, check_truth, distinct, source_up, up
from tests.harness import Node, serving, until

Start = Callable[..., Node]

PAIR = distinct(models.h100(2))
NAMES = {gpu.uuid for gpu in PAIR.gpus}
FIELDS = (*FEW, "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_PROF_GR_ENGINE_ACTIVE")


def test_nothing_of_the_driver_is_held_until_it_is_taken_again(node: Start, fake: Fake) -> None:
    """`rmmod nvidia` fails while anybody holds a handle, an event set or a sample."""
    running = node(PAIR, fields=FIELDS)
    running.settled_page()
    sampler = running.pipeline.sampler

    assert sampler.release() is None
    assert (fake.inits, fake.live_event_sets, fake.live_samples) == (0, 0, 0)
    calls = fake.calls()
    page = running.page()
    assert fake.calls() == calls
    assert not check_truth(page)
    assert source_up(page) == 0
    assert up(page) == dict.fromkeys(NAMES, 0)
    assert "POST /-/resume" in (sampler.why_not_ready() or "")
    assert sampler.release() is None  # told twice

    sampler.resume()
    until(lambda: check_truth(running.page()) == NAMES, "the GPUs are back")
    assert fake.inits == 1


def test_a_call_that_hangs_keeps_the_driver(node: Start, fake: Fake) -> None:
    """Said to whoever asked, in time; when the call returns the driver is let go of all the same."""
    running = node(PAIR, fields=FEW, sampling=Sampling(reuse=0, deadline=0.3))
    running.show(PAIR.with_gpu(1, hangs={"nvmlDeviceGetPowerUsage"}))
    running.page()

    assert running.pipeline.sampler.release() == "a call to it has not returned"
    assert "it does not let go" in (running.pipeline.sampler.why_not_ready() or "")
    running.show(PAIR)
    until(lambda: running.sweep().source_reason.endswith("takes it again"), "it lets go")
    assert fake.inits == 0
    running.pipeline.sampler.resume()
    until(lambda: check_truth(running.page()) == NAMES, "the GPUs are back")


@pytest.mark.usefixtures("cc")
def test_it_is_asked_for_by_post_from_this_machine(tmp_path: Path) -> None:
    """Not by looking, and not by a page in somebody's browser."""
    with serving(PAIR, tmp_path, "--fields", ",".join(FEW), "--reuse", "0") as served:
        served.page()
        assert served.get("/-/release").status == 405
        assert served.request("POST", "/-/release", Origin="http://evil.example").status == 403
        assert check_truth(served.page()) == NAMES

        released = served.request("POST", "/-/release")
        assert (released.status, released.text) == (200, "the driver is let go of\n")
        assert source_up(served.page()) == 0
        assert served.get("/readyz").status == 503
        assert served.get("/healthz").status == 200
        assert served.request("POST", "/-/resume").status == 200
        until(lambda: check_truth(served.page()) == NAMES, "the GPUs are back")


@pytest.mark.usefixtures("cc")
def test_a_signal_lets_go_and_another_takes_again(tmp_path: Path) -> None:
    """For a script beside the process, without HTTP."""
    with serving(PAIR, tmp_path, "--fields", ",".join(FEW), "--reuse", "0") as served:
        served.page()
        served.process.send_signal(signal.SIGUSR1)
        until(lambda: source_up(served.page()) == 0, "let go")
        served.process.send_signal(signal.SIGUSR2)
        until(lambda: source_up(served.page()) == 1, "taken again")
        assert check_truth(served.page()) == NAMES
        assert served.stop() == 0
