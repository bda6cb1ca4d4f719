"""A driver that is not there yet, goes away, or is replaced by another version while otelgpu runs."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from otelgpu.config import Sampling
from tests.fakenvml import Fake, Scenario, models
from tests.fakenvml.build import SONAME, library
from tests.faults.rig import ALL, FEW, check_truth, distinct, source_up, states, up
from tests.harness import Node, serving, until, values
from tests.push.snapshots import ENERGY, Wire

Start = Callable[..., Node]

PAIR = distinct(models.h100(2))
NAMES = [gpu.uuid for gpu in PAIR.gpus]
UNINITIALIZED, DRIVER_NOT_LOADED, MISMATCH, UNKNOWN = 1, 9, 18, 999
XID = "DCGM_FI_DEV_XID_ERRORS"


def answers_again(running: Node) -> Callable[[], bool]:
    return lambda: source_up(running.page()) == 1 and check_truth(running.page()) == set(NAMES)


@pytest.mark.parametrize("code", [UNINITIALIZED, DRIVER_NOT_LOADED, MISMATCH])
def test_a_driver_that_goes_away_is_waited_for(code: int, node: Start) -> None:
    """No restart: a new connection is made as soon as the driver lets us, and nothing of the old one is left."""
    running = node(PAIR, fields=(*FEW, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", XID))
    freed = dict.fromkeys(("nvmlShutdown", "nvmlGpmSampleFree", "nvmlEventSetFree"), 0)
    running.show(PAIR.but(errors={"*": code, "nvmlInit_v2": DRIVER_NOT_LOADED, **freed}))
    page = running.page()

    assert not check_truth(page)
    assert source_up(page) == 0
    assert up(page) == dict.fromkeys(NAMES, 0)
    assert states(page) == {"up": 0, "failed": 2}

    running.show(PAIR)
    until(answers_again(running), "the driver is back")


@pytest.mark.parametrize("code", [UNINITIALIZED, DRIVER_NOT_LOADED, MISMATCH])
def test_a_connection_that_only_the_gpus_know_to_be_gone_is_renewed(code: int, node: Start, fake: Fake) -> None:
    """The driver library remembers the count: it is the GPUs' own answers that tell of a reloaded driver."""
    running = node(PAIR, fields=FEW)
    inits = fake.calls("nvmlInitWithFlags")
    running.show(PAIR.with_gpu(1, errors={"nvmlDeviceGetPowerUsage": code}))
    page = running.page()
    assert check_truth(page) == {NAMES[0]}
    assert states(page) == {"up": 1, "failed": 1}
    for _ in range(5):
        running.page()

    assert fake.calls("nvmlInitWithFlags") == inits + 1  # and not with every sweep
    assert fake.inits == 1

    running.show(PAIR)
    until(answers_again(running), "the driver is back")


def test_a_total_goes_back_only_as_a_reset_and_another_gpu_has_one_of_its_own(node: Start) -> None:
    """A driver that was loaded again counts from 0, and a GPU that was put into the slot has its own past."""
    wire = Wire([ENERGY])
    other = models.h200().gpus[0].uuid

    def counted(joules: int, uuid: str = NAMES[0]) -> Scenario:
        return models.h100().with_gpu(0, uuid=uuid, fields={83: 1000 * joules})

    seen: list[tuple[object, float, bool]] = []  # GPU, joules, whether the count begins here

    def told() -> list[tuple[object, float, bool]]:
        points = wire.points(running.sweep())
        seen[:] = [(p.attributes["hw.id"], p.value, p.start == p.time) for p in points if p.name == "hw.energy"]
        return seen

    running = node(counted(5000), fields=("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",))
    assert told() == [(NAMES[0], 5000, True)]
    running.show(counted(6000))
    assert told() == [(NAMES[0], 6000, False)]

    running.show(counted(6000).but(errors={"*": DRIVER_NOT_LOADED, "nvmlShutdown": 0}))
    assert told() == []
    running.show(counted(10))
    until(lambda: bool(told()), "the driver is back")
    assert seen == [(NAMES[0], 10, True)]
    assert told() == [(NAMES[0], 10, False)]

    running.show(counted(7000, other))
    until(lambda: bool(told()), "the other GPU is read")
    assert seen == [(other, 7000, True)]
    running.show(counted(7001, other))
    assert told() == [(other, 7001, False)]


def test_another_driver_version_is_found_out_about_anew(node: Start) -> None:
    """What the old driver did not support is asked of the new one, and its version stands on the page."""
    old = PAIR.but(driver="550.54.15").with_gpu(0, answers={"nvmlDeviceGetPowerUsage": None})
    running = node(old, fields=("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DRIVER_VERSION"))
    running.page()
    running.show(PAIR.but(errors={"*": DRIVER_NOT_LOADED, "nvmlShutdown": 0}))
    running.page()
    running.show(PAIR.but(driver="580.99"))

    until(lambda: len(check_truth(running.page())) == 2, "the driver is back")
    page = running.page()
    assert 'DCGM_FI_DRIVER_VERSION="580.99"' in page
    assert 'driver_version="580.99"' in page
    assert "550.54.15" not in page


def test_a_connection_is_not_renewed_under_a_call(node: Start, fake: Fake) -> None:
    """NvmlShutdown under a call is undefined: while one hangs the driver stays as it is, and the page says so."""
    sampling = Sampling(reuse=0, deadline=0.2)
    running = node(PAIR, fields=FEW, sampling=sampling)
    hanging = PAIR.with_gpu(1, hangs={"nvmlDeviceGetPowerUsage"})
    running.show(hanging)
    running.page()
    shutdowns = fake.calls("nvmlShutdown")
    running.show(hanging.but(errors={"nvmlDeviceGetCount_v2": DRIVER_NOT_LOADED}))
    page = running.page()

    assert source_up(page) == 0
    assert not check_truth(page)
    assert fake.calls("nvmlShutdown") == shutdowns

    running.show(PAIR)
    until(answers_again(running), "all is back")


def test_a_count_that_fails_leaves_the_gpus(node: Start) -> None:
    """How many GPUs there are is one question; its failure costs nothing while the GPUs answer."""
    running = node(PAIR, fields=FEW)
    running.show(PAIR.but(errors={"nvmlDeviceGetCount_v2": UNKNOWN}))
    page = running.page()

    assert check_truth(page) == set(NAMES)
    assert source_up(page) == 1


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"nvmlInit_v2": DRIVER_NOT_LOADED}, "kernel driver is not loaded"),
        ({"nvmlInit_v2": MISMATCH}, "different versions"),
        ({"nvmlInit_v2": 4}, "may not use the NVIDIA devices"),
        ({"nvmlInit_v2": UNKNOWN}, "NVML does not answer: Unknown Error"),
        ({"nvmlDeviceGetCount_v2": UNKNOWN}, "NVML does not answer: Unknown Error"),
        ({"nvmlDeviceGetCount_v2": UNINITIALIZED}, "NVML does not answer: Uninitialized"),
    ],
)
def test_no_driver_at_the_start_is_waited_for_without_asking_all_the_time(
    rules: dict[str, int], words: str, node: Start, fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    """The page comes at once, says why, and does not have every scrape try again; then the driver is found."""
    running = node(PAIR.but(errors=rules), fields=FEW)
    first = fake.calls("nvmlInitWithFlags")
    for _ in range(20):
        page = running.page()

    assert fake.calls("nvmlInitWithFlags") == first
    assert source_up(page) == 0
    assert up(page) == {}
    assert words in (running.pipeline.sampler.why_not_ready() or "")
    assert sum(words in record.getMessage() for record in caplog.records) == 1

    running.show(PAIR)
    until(lambda: running.pipeline.sampler.why_not_ready() is None, "it is tried again though nobody asks")
    assert check_truth(running.page()) == set(NAMES)


def test_auto_waits_for_a_driver_that_comes_later(tmp_path: Path, cc: Path) -> None:
    """A node whose driver is installed after otelgpu: the page is there from the first second, and so is the reason."""
    assert cc.exists()
    loading = Scenario(errors={"nvmlInit_v2": DRIVER_NOT_LOADED})
    with serving(loading, tmp_path, "--fields", ",".join(FEW), "--reuse", "0") as served:
        assert source_up(served.page()) == 0
        assert served.get("/readyz").status == 503
        PAIR.write(served.scenario)

        until(lambda: served.get("/readyz").status == 200, "ready")
        assert check_truth(served.page()) == set(NAMES)
        assert served.logged("kernel driver is not loaded") == 1
        assert served.stop() == 0


@pytest.mark.parametrize("fields", [FEW, (*ALL, XID)], ids=["few", "all"])
def test_nothing_is_left_with_the_driver_after_the_end(fields: tuple[str, ...], node: Start, fake: Fake) -> None:
    """Sample objects, event sets and the connection itself are given back, once, also when told to end twice."""
    running = node(models.h100_mig(), fields=fields)
    running.page()
    sampler = running.pipeline.sampler
    shutdowns = fake.calls("nvmlShutdown")

    assert sampler.stop(5)
    assert sampler.stop(5)
    assert fake.calls("nvmlShutdown") == shutdowns + 1
    assert fake.inflight == 0


def test_a_replaced_library_needs_no_restart(tmp_path: Path, cc: Path) -> None:
    """After an upgrade the library in memory and the kernel's driver do not go together: the new one is loaded."""
    assert cc.exists()
    asked = "nvmlDeviceGetTotalEnergyConsumption"
    field = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    place = tmp_path / "driver"
    place.mkdir()
    shutil.copy(library(frozenset({asked})) / SONAME, place / SONAME)
    old = PAIR.but(driver="550.54.15")
    for gpu in range(2):
        old = old.with_gpu(gpu, fields={83: None}, answers={asked: 1000})
    flags = ("--fields", f"DCGM_FI_DEV_POWER_USAGE,{field}", "--reuse", "0")
    with serving(old, tmp_path, *flags, environ={"LD_LIBRARY_PATH": str(place)}) as served:
        assert not values(served.page(), field)  # the old library has no such function
        old.but(errors={"*": MISMATCH, "nvmlShutdown": 0}).write(served.scenario)
        until(lambda: source_up(served.page()) == 0, "the mismatch is seen")
        fresh = tmp_path / "fresh"
        shutil.copy(library() / SONAME, fresh)
        fresh.replace(place / SONAME)
        old.but(driver="580.99").write(served.scenario)

        until(lambda: source_up(served.page()) == 1, "the driver is back")
        assert values(served.page(), field) == {"0": 1000, "1": 1000}
        assert served.logged("a container has the library that was there when it was started")
        assert served.stop() == 0
