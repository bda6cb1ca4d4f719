"""A GPU that the kernel has suspended is left alone: whoever asks it wakes it, and the battery pays."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from otelgpu.config import Sampling, Suspended
from otelgpu.tables import devices_table
from tests.fakenvml import Fake, Scenario, models
from tests.faults.rig import FEW, check_truth, distinct, missing, source_up, states, up
from tests.harness import Node, until, values

Start = Callable[..., Node]

THREE = distinct(models.h100(3))
NAMES = [gpu.uuid for gpu in THREE.gpus]
FIELDS = (*FEW, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_EXP_P2P_STATUS", "DCGM_EXP_GPU_HEALTH_STATUS")


def sysfs(folder: Path, status: Mapping[int, str], scenario: Scenario = THREE) -> Path:
    """Write the /sys of a machine whose GPUs are in these states, by slot; one that is not named has none."""
    for gpu in scenario.gpus:
        assert gpu.pci is not None
        address = gpu.pci.lower().removeprefix("0000")
        (folder / "bus/pci/drivers/nvidia" / address).mkdir(parents=True, exist_ok=True)
    for slot, state in status.items():
        address = (scenario.gpus[slot].pci or "").lower().removeprefix("0000")
        power = folder / "bus/pci/devices" / address / "power"
        power.mkdir(parents=True, exist_ok=True)
        (power / "runtime_status").write_text(f"{state}\n")
    (folder / "bus/pci/drivers/nvidia/module").touch()
    return folder


def suspended(page: str) -> Mapping[str, float]:
    return values(page, "otelgpu_gpu_suspended", by="UUID")


def test_a_suspended_gpu_is_left_alone_until_it_wakes(tmp_path: Path, node: Start, fake: Fake) -> None:
    """It shows no value, which has a reason; nothing is wrong with it, and the others are read."""
    sysfs(tmp_path, dict.fromkeys(range(3), "active"))
    running = node(THREE, fields=FIELDS, suspended=Suspended(sys_root=str(tmp_path)))
    assert suspended(running.page()) == dict.fromkeys(NAMES, 0)
    sysfs(tmp_path, {1: "suspended"})
    fake.reset_calls()
    for _ in range(5):
        page = running.page()

    assert fake.calls(gpu=1) == 0
    assert fake.calls(gpu=0) > 0
    assert check_truth(page) == {NAMES[0], NAMES[2]}
    assert suspended(page) == {NAMES[0]: 0, NAMES[1]: 1, NAMES[2]: 0}
    assert up(page) == dict.fromkeys(NAMES, 1)
    assert states(page) == {"up": 2, "suspended": 1}
    assert missing(page)["suspended"] == len(FIELDS)
    assert not values(page, "otelgpu_gpu_lost_timestamp_seconds")
    assert running.pipeline.sampler.why_not_ready() is None

    sysfs(tmp_path, {1: "active"})
    assert check_truth(running.page()) == set(NAMES)
    assert states(running.page()) == {"up": 3}


def test_nothing_is_claimed_of_how_a_sleeper_is(tmp_path: Path, node: Start) -> None:
    """It is not called well, as nobody asked it; and a person who looks at the GPUs reads why it shows nothing."""
    sysfs(tmp_path, dict.fromkeys(range(3), "active"))
    running = node(THREE, fields=FEW, naming="semconv", suspended=Suspended(sys_root=str(tmp_path)))
    assert set(values(running.page(), "hw_status", by="hw_id")) == set(NAMES)
    sysfs(tmp_path, {1: "suspended"})

    assert set(values(running.page(), "hw_status", by="hw_id")) == {NAMES[0], NAMES[2]}
    table = devices_table(running.sweep(), width=None)
    assert [line.count("suspended:") for line in table.splitlines() if "GPU-" in line] == [0, 1, 0]


def test_a_gpu_that_sleeps_from_the_start_is_never_opened(tmp_path: Path, node: Start, fake: Fake) -> None:
    """Opening it would wake it; which slot it is in is known from the order of the addresses."""
    sysfs(tmp_path, {0: "active", 1: "suspended", 2: "suspended"})
    running = node(THREE, fields=FIELDS, suspended=Suspended(sys_root=str(tmp_path)))
    page = running.page()

    assert fake.calls(gpu=1) == fake.calls(gpu=2) == 0
    assert check_truth(page) == {NAMES[0]}
    assert states(page) == {"up": 1, "suspended": 2}
    assert suspended(page) == {NAMES[0]: 0, "": 1}
    assert source_up(page) == 1
    assert running.pipeline.sampler.why_not_ready() is None

    sysfs(tmp_path, {1: "resuming", 2: "active"})
    until(lambda: check_truth(running.page()) == set(NAMES), "all are read")
    assert suspended(running.page()) == dict.fromkeys(NAMES, 0)


def test_a_lost_neighbour_wakes_nobody(tmp_path: Path, node: Start, fake: Fake) -> None:
    """The driver numbers anew, and every GPU is looked at again: but for the one that sleeps, which is still itself."""
    sysfs(tmp_path, {0: "active", 1: "active", 2: "suspended"})
    running = node(THREE, fields=FEW, suspended=Suspended(sys_root=str(tmp_path)))
    sysfs(tmp_path, {2: "active"})
    assert check_truth(running.page()) == set(NAMES)
    sysfs(tmp_path, {2: "suspended"})
    running.page()
    fake.reset_calls()
    (tmp_path / "bus/pci/drivers/nvidia/0000:01:00.0").rmdir()
    running.show(THREE.with_gpu(0, gone=True))
    for _ in range(3):
        page = running.page()

    assert fake.calls(gpu=2) == 0
    assert check_truth(page) == {NAMES[1]}
    assert up(page) == {NAMES[0]: 0, NAMES[1]: 1, NAMES[2]: 1}
    assert suspended(page) == {NAMES[1]: 0, NAMES[2]: 1}


@pytest.mark.parametrize("order", ["fewer", "other"])
def test_where_the_order_says_nothing_a_gpu_is_opened_once(order: str, tmp_path: Path, node: Start, fake: Fake) -> None:
    """A container that sees some of the GPUs has all of them in /sys. No value ever stands under a wrong name."""
    scenario = THREE.but(gpus=THREE.gpus[1:]) if order == "fewer" else THREE.but(gpus=THREE.gpus[::-1])
    sysfs(tmp_path, {0: "active", 1: "active", 2: "active"})
    running = node(scenario, fields=FEW, suspended=Suspended(sys_root=str(tmp_path)))
    running.page()
    sysfs(tmp_path, {1: "suspended"})
    fake.reset_calls()
    page = running.page()
    shown = {line.rpartition('"')[0] for line in page.splitlines() if line.startswith(FEW[0])}

    assert fake.calls(gpu=0 if order == "fewer" else 1) == 0
    assert sum(NAMES[1] in line for line in shown) == 0
    assert len(shown) == len(scenario.gpus) - 1
    assert suspended(page)[NAMES[1]] == 1


def test_it_is_asked_all_the_same_where_that_is_wanted(tmp_path: Path, node: Start) -> None:
    """`--wake-suspended`: then nobody looks at what the kernel says."""
    sysfs(tmp_path, dict.fromkeys(range(3), "suspended"))
    running = node(THREE, fields=FEW, suspended=Suspended(sys_root=str(tmp_path), wake=True))
    page = running.page()

    assert check_truth(page) == set(NAMES)
    assert not suspended(page)


def test_clock_events_leave_it_alone_too(tmp_path: Path, node: Start, fake: Fake) -> None:
    """Their threads ask at a pace of their own."""
    sysfs(tmp_path, dict.fromkeys(range(3), "active"))
    from otelgpu.config.counting import Counts

    running = node(
        THREE,
        fields=("DCGM_EXP_CLOCK_EVENTS_COUNT",),
        counts=Counts(clock_interval=0.1),
        sampling=Sampling(reuse=0),
        suspended=Suspended(sys_root=str(tmp_path)),
    )
    asked = "nvmlDeviceGetCurrentClocksEventReasons"
    sysfs(tmp_path, {1: "suspended"})
    running.page()
    fake.reset_calls()
    until(lambda: fake.calls(asked, 0) > 5, "the others are looked at")

    assert fake.calls(gpu=1) <= 1  # a look that had begun before
