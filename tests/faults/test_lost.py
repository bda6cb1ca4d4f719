"""A GPU that falls off the bus, comes back, cannot be opened, or says it is another one."""

import time
from collections.abc import Callable

import pytest

from tests.fakenvml import Code, Gpu, Scenario, models
from tests.faults.rig import FEW, LOST, check_truth, distinct, missing, source_up, states, up
from tests.harness import Node, lines_of, values

Start = Callable[..., Node]

FOUR = distinct(models.h100(4))
NAMES = [gpu.uuid for gpu in FOUR.gpus]
PROFILED = (*FEW, "DCGM_FI_PROF_GR_ENGINE_ACTIVE")


def gone(*slots: int) -> Scenario:
    scenario = FOUR
    for slot in slots:
        scenario = scenario.with_gpu(slot, gone=True)
    return scenario


def check_down(page: str, *down: int) -> None:
    """GPUs *down* are down and show nothing, the others are up and show their own."""
    assert check_truth(page) == {name for number, name in enumerate(NAMES) if number not in down}
    assert up(page) == {name: int(number not in down) for number, name in enumerate(NAMES)}
    assert states(page) == {"up": 4 - len(down)} | ({"lost": len(down)} if down else {})
    assert source_up(page) == 1


@pytest.mark.parametrize(
    "broken",
    [
        FOUR.with_gpu(1, lost=True),
        FOUR.with_gpu(1, errors={"*": LOST}),
        FOUR.with_gpu(1, errors={"nvmlDeviceGetPowerUsage": LOST}),
        FOUR.with_gpu(1, errors={"nvmlDeviceGetFieldValues": 16}),
        FOUR.with_gpu(1, fields={94: Code(LOST)}),
        FOUR.with_gpu(1, errors={"nvmlDeviceGetMigMode": LOST}),
        FOUR.with_gpu(1, errors={"nvmlDeviceGetPowerUsage": 28}),
        gone(1),
        gone(1).but(gone_code=2),
    ],
    ids=["lost", "every-call", "one-call", "reset-required", "one-value", "mig-mode", "not-found", "gone", "invalid"],
)
def test_a_lost_gpu_is_shown_as_down_until_it_is_back(broken: Scenario, node: Start) -> None:
    """Its readings end, those of the others go on under their own UUID and number, and nobody has to restart."""
    running = node(FOUR, fields=PROFILED)
    running.page()
    running.show(broken)
    for _ in range(3):
        check_down(running.page(), 1)
    running.show(FOUR)

    running.page()
    check_down(running.page())


@pytest.mark.parametrize("first", range(4))
def test_numbers_stay_with_their_gpu_when_the_driver_renumbers(first: int, node: Start) -> None:
    """Whichever GPUs are gone, each number on the page means the GPU it meant before."""
    running = node(FOUR, fields=FEW)
    second = (first + 1) % 4
    for hidden in ((first,), (first, second), (second,), ()):
        running.show(gone(*hidden))

        check_down(running.page(), *hidden)


def test_a_gpu_that_goes_during_a_sweep_takes_no_values_along(node: Start) -> None:
    """The handle belongs to the GPU: whatever moves up meanwhile, an answer never gets another's name."""
    slow = FOUR
    for slot in range(4):
        slow = slow.with_gpu(slot, delays={"nvmlDeviceGetPowerUsage": 0.05})
    running = node(slow, fields=FEW)
    for hidden in ((0,), (), (1, 2), (3,), ()):
        running.pipeline.sampler.refresh(0.0, max_age=0)  # begins a sweep that is not over at once
        running.show(gone(*hidden))
        check_truth(running.page(sweep=False))
        check_truth(running.page())

        check_down(running.page(), *hidden)


def test_a_new_gpu_gets_a_number_that_nobody_had(node: Start) -> None:
    """The number of a lost GPU is kept for it; a GPU that was put in is counted on."""
    running = node(gone(3), fields=FEW)
    extra = Gpu(uuid="GPU-new", pci="00000000:99:00.0", answers={"nvmlDeviceGetPowerUsage": 5000})
    others = FOUR.gpus[1:3]
    running.show(FOUR.but(gpus=(*others, extra)))
    running.page()  # the count is the same: it is the lost one's own answer that makes all look again
    numbers = {line.labels["UUID"]: line.labels["gpu"] for line in lines_of(running.page()) if "UUID" in line.labels}

    assert numbers == {NAMES[0]: "0", NAMES[1]: "1", NAMES[2]: "2", "GPU-new": "3"}


def test_gpus_that_change_places_in_a_sweep_are_no_twins(node: Start, caplog: pytest.LogCaptureFixture) -> None:
    """One thread has looked again and another not yet: both may ask the same GPU, which is no reason for an alarm."""
    first, second = distinct(models.h100(2)).gpus
    slow = second.but(delays={"nvmlDeviceGetPowerUsage": 0.05})
    running = node(FOUR.but(gpus=(first, slow)), fields=FEW)
    for _ in range(5):
        for gpus in ((slow, first), (first.but(lost=True), slow), (first, slow)):
            running.show(FOUR.but(gpus=gpus))
            check_truth(running.page())
            page = running.page()

            assert check_truth(page) == {gpu.uuid for gpu in gpus if not gpu.lost}
            assert set(up(page)) == {first.uuid, second.uuid}
    assert "calls itself" not in caplog.text


def test_two_gpus_with_one_name_are_not_mixed(node: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Their values could not be told apart: the first is shown, the other is down, and that is logged once."""
    twins = FOUR.with_gpu(2, answers={"nvmlDeviceGetUUID": NAMES[1]})
    twins = twins.with_gpu(1, delays={"nvmlDeviceGetPowerUsage": 0.02})  # whoever answers first
    running = node(twins, fields=FEW)
    for _ in range(5):
        page = running.page()
        assert check_truth(page) == {NAMES[0], NAMES[1], NAMES[3]}
        assert up(page) == {NAMES[0]: 1, NAMES[1]: 1, NAMES[3]: 1, "": 0}
        assert states(page) == {"up": 3, "failed": 1}

    assert sum("calls itself" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize(("code", "gap"), [(LOST, "lost"), (999, "failed"), (4, "denied"), (10, "timeout")])
def test_a_gpu_that_cannot_be_opened_is_counted_without_a_name(code: int, gap: str, node: Start) -> None:
    """A GPU nobody can ask is still a GPU that should be there."""
    running = node(FOUR.with_gpu(2, errors={"*": code}), fields=FEW)
    page = running.page()

    assert check_truth(page) == {NAMES[0], NAMES[1], NAMES[3]}
    assert up(page) == {NAMES[0]: 1, NAMES[1]: 1, NAMES[3]: 1, "": 0}
    assert states(page) == {"up": 3, gap: 1}
    assert missing(page)[gap] == len(FEW)

    running.show(FOUR)
    check_down(running.page())


def test_faults_are_logged_when_they_begin_and_end(node: Start, caplog: pytest.LogCaptureFixture) -> None:
    """One line when a GPU is lost and one when it is back, however many sweeps lie between."""
    caplog.set_level("INFO", "otelgpu")
    running = node(FOUR, fields=FEW)
    for scenario in (FOUR.with_gpu(1, lost=True), FOUR) * 2:
        running.show(scenario)
        for _ in range(4):
            running.page()
    logged = [record.getMessage() for record in caplog.records if "(gpu 1)" in record.getMessage()]

    assert logged == [f"{NAMES[1]} (gpu 1) is down: GPU is lost", f"{NAMES[1]} (gpu 1) is back"] * 2


def test_the_choice_of_gpus_stays_with_the_gpu(node: Start) -> None:
    """`--devices 1` means the GPU that was number 1, also when another moves up into its place."""
    from otelgpu.config.picks import parse_pick

    running = node(FOUR, fields=FEW, devices=(parse_pick("1"),))
    assert check_truth(running.page()) == {NAMES[1]}
    running.show(gone(0))
    assert check_truth(running.page()) == {NAMES[1]}
    running.show(gone(1))

    page = running.page()
    assert check_truth(page) == set()
    assert up(page) == {NAMES[1]: 0}


def test_since_when_a_gpu_is_lost_stands_on_the_page(node: Start) -> None:
    """The first thing that is asked at three in the morning. Gone from the count or not, until it is back."""
    running = node(FOUR, fields=FEW)
    name = "otelgpu_gpu_lost_timestamp_seconds"
    assert not values(running.page(), name)
    before = time.time()
    running.show(FOUR.with_gpu(1, lost=True))
    first = values(running.page(), name, by="UUID")
    running.show(gone(1))
    later = values(running.page(), name, by="UUID")

    assert set(first) == {NAMES[1]}
    assert before - 1 <= first[NAMES[1]] <= time.time()
    assert later == first
    running.show(FOUR)
    assert not values(running.page(), name)


def test_a_gpu_that_fails_every_question_is_down(node: Start, caplog: pytest.LogCaptureFixture) -> None:
    """It can be opened and then says "unknown error" to all: no number is missing by chance, the GPU is of no use."""
    running = node(FOUR, fields=FEW)
    running.page()
    opening = ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMigMode")
    running.show(FOUR.with_gpu(1, errors={"*": 999} | dict.fromkeys(opening, 0)))
    page = running.page()

    assert check_truth(page) == {name for number, name in enumerate(NAMES) if number != 1}
    assert states(page) == {"up": 3, "failed": 1}
    assert sum("every question fails" in record.getMessage() for record in caplog.records) == 1
    running.show(FOUR.with_gpu(1, errors={"nvmlDeviceGetPowerUsage": 999}))
    assert states(running.page()) == {"up": 4}  # one question is no sign


def test_a_gpu_without_a_uuid_is_told_of(node: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Two of them would be one; nothing vanishes without a word."""
    running = node(FOUR.with_gpu(1, uuid="").with_gpu(2, uuid=""), fields=FEW)
    for _ in range(2):
        page = running.page()

    assert check_truth(page) == {NAMES[0], NAMES[3]}
    assert states(page) == {"up": 2, "invalid": 2}
    assert sum("it has an empty UUID" in record.getMessage() for record in caplog.records) == 2
