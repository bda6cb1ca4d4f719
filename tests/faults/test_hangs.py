"""A driver call that never returns costs the GPU it was made for, once the deadline, and nothing else."""

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from otelgpu.config import Processes
from otelgpu.fields import CATALOGUE
from otelgpu.sources.nvml.questions import QUESTIONS, Question
from tests.conftest import ROOT
from tests.fakenvml import Scenario, models
from tests.faults.rig import (
    ALL,
    FEW,
    LOST,
    OF_OWNERS,
    OF_PROCESSES,
    check_truth,
    distinct,
    source_up,
    states,
    timed_page,
    up,
)
from tests.harness import Node, patient, short, until, values

Start = Callable[..., Node]

DEADLINE = 0.3
ROOM = 0.5  # seconds beyond the deadline in which the first page comes
SWEEPS = 50
XID = "DCGM_FI_DEV_XID_ERRORS"

WHOLE = distinct(models.h100(3))
# GPU 1 lacks whatever is asked first, so that every second way is taken.
OLD = WHOLE.with_gpu(
    1,
    answers={
        ("nvmlDeviceGetTemperature", 0): None,
        "nvmlDeviceGetMemoryInfo_v2": None,
        "nvmlDeviceGetCurrentClocksEventReasons": None,
    },
    fields={83: None, 94: None, 142: None, 143: None, 144: None, 145: None, 146: None},
)
SPLIT = WHOLE.but(gpus=(WHOLE.gpus[0], models.split(WHOLE.gpus[1], (9, models.H100_1G)), WHOLE.gpus[2]))

OPENING = (
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetVbiosVersion",
    "nvmlGpmQueryDeviceSupport",
)
# Asked when a GPU is first read.
FIRST = ("nvmlDeviceGetBrand", "nvmlDeviceGetInforomVersion", "nvmlDeviceGetInforomImageVersion")
EACH_SWEEP = {
    "nvmlDeviceGetMigMode": WHOLE,
    "nvmlDeviceGetFieldValues": WHOLE,
    "nvmlDeviceGetClockInfo": WHOLE,
    "nvmlDeviceGetTemperature": WHOLE,
    "nvmlDeviceGetPowerUsage": WHOLE,
    "nvmlDeviceGetUtilizationRates": WHOLE,
    "nvmlDeviceGetEncoderUtilization": WHOLE,
    "nvmlDeviceGetDecoderUtilization": WHOLE,
    "nvmlDeviceGetMemoryInfo_v2": WHOLE,
    "nvmlDeviceGetGridLicensableFeatures_v4": WHOLE,
    "nvmlGpmSampleGet": WHOLE,
    "nvmlDeviceGetTemperatureV": OLD,
    "nvmlDeviceGetTotalEnergyConsumption": OLD,
    "nvmlDeviceGetPcieReplayCounter": OLD,
    "nvmlDeviceGetMemoryInfo": OLD,
    "nvmlDeviceGetRemappedRows": OLD,
    "nvmlDeviceGetMigDeviceHandleByIndex": SPLIT,
    "nvmlGpmMigSampleGet": SPLIT,
}
FIRST_SPLIT = ("nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetGpuInstanceById")
ON_INSTANCE = (
    *("nvmlDeviceGetGpuInstanceId", "nvmlGpuInstanceGetInfo", "nvmlDeviceGetUUID", "nvmlDeviceGetName"),
    "nvmlDeviceGetMemoryInfo_v2",
)
SECOND_SWEEP = ("nvmlGpmMetricsGet",)
# Asked of no GPU. Each has a test of its own below.
SYSTEM = {
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlSystemGetConfComputeState",
    "nvmlInitWithFlags",
    "nvmlShutdown",
    "nvmlDeviceGetCount_v2",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
    "nvmlGpmSampleAlloc",
    "nvmlGpmSampleFree",
    "nvmlEventSetCreate",
    "nvmlEventSetWait_v2",
    "nvmlEventSetFree",
    "nvmlDeviceRegisterEvents",
}
# Asked about two GPUs; it hangs in tests/test_peers.py.
OF_PAIRS = ("nvmlDeviceGetP2PStatus",)


def function_of(question: Question) -> str:
    """The driver's function behind a question."""
    return question.name.partition("(")[0]


# Each other function that a field may be asked with.
OTHERS = sorted(
    {function_of(question) for question in QUESTIONS}
    - {*OPENING, *FIRST, *EACH_SWEEP, *FIRST_SPLIT, *SYSTEM, *OF_PROCESSES}
)
C_NAMES = {
    "nvmlInit": "nvmlInitWithFlags",
    "nvmlDeviceGetCount": "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex": "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetPciInfo": "nvmlDeviceGetPciInfo_v3",
}


def stuck(scenario: Scenario, function: str) -> Scenario:
    return scenario.with_gpu(1, hangs={function})


def check_stuck(node: Node, *down: str, lost: int = 0) -> None:
    """The first page is late by the deadline at most, all later ones are quick; GPUs 0 and 2 are there, *down* down."""
    healthy = {gpu.uuid for gpu in (WHOLE.gpus[0], WHOLE.gpus[2])}
    page, seconds = timed_page(node)
    threads = threading.active_count()
    began = time.monotonic()
    next_page = node.page()
    for _ in range(SWEEPS):  # of which no page is looked at: to write it is the dearest part, and waits for nothing
        node.sweep()
    last_page = node.page()
    later = time.monotonic() - began

    assert seconds < patient(DEADLINE + ROOM)
    assert later < patient(SWEEPS * DEADLINE / 6)
    assert threading.active_count() == threads
    for each in (page, next_page, last_page):
        assert check_truth(each) == healthy
        assert up(each) == dict.fromkeys(healthy, 1) | dict.fromkeys(down, 0)
        assert states(each) == {"up": 2, "timeout": 1} | ({"lost": lost} if lost else {})
        assert source_up(each) == 1


def check_back(node: Node, scenario: Scenario) -> None:
    """When the call returns, all is as it was."""
    node.show(scenario)
    everybody = {gpu.uuid for gpu in scenario.gpus}

    until(lambda: check_truth(node.page()) == everybody, "the GPU is back")
    assert up(node.page()) == dict.fromkeys(everybody, 1)


def test_every_function_that_is_used_is_made_to_hang_here() -> None:
    """A new question that nobody let hang would be the one that hangs in production."""
    used = set()
    for path in Path(ROOT, "otelgpu/sources/nvml").rglob("*.py"):
        found = re.findall(r"pynvml\.(nvml[A-Z]\w+)", path.read_text())
        used |= {C_NAMES.get(name, name) for name in found}
    used |= {f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute")}  # lists.py
    used -= {"nvmlMemory_v2", "nvmlEventTypeXidCriticalError", "nvmlLib"}  # no functions
    of_plans = {*EACH_SWEEP, *FIRST_SPLIT, *ON_INSTANCE, *SECOND_SWEEP, *OTHERS}
    tried = {*OPENING, *FIRST, *of_plans, *SYSTEM, *OF_PROCESSES, *OF_OWNERS, *OF_PAIRS}

    assert used | {function_of(question) for question in QUESTIONS} == tried


@pytest.mark.parametrize("function", OTHERS)
def test_a_question_that_hangs_costs_its_gpu(function: str, node: Start) -> None:
    """Any field may be asked for, and any call may be the one that does not come back."""
    ids = {take.field_id for question in QUESTIONS if function_of(question) == function for take in question.takes}
    instead = {function_of(question) for question in QUESTIONS for take in question.takes if take.field_id in ids}
    errors = dict.fromkeys({*instead, "nvmlDeviceGetFieldValues"} - {function}, 3)
    fields = (*FEW[:3], *(CATALOGUE[id_].name for id_ in sorted(ids)))
    scenario = WHOLE.with_gpu(1, errors=errors)
    running = node(stuck(scenario, function), fields=fields, sampling=short(DEADLINE))

    check_stuck(running, WHOLE.gpus[1].uuid)
    check_back(running, scenario)


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlSystemGetCudaDriverVersion_v2", "DCGM_FI_CUDA_DRIVER_VERSION"),
        ("nvmlSystemGetConfComputeState", "DCGM_FI_DEV_CC_MODE"),
    ],
)
def test_a_question_about_the_system_that_hangs_costs_the_gpus_in_time(function: str, field: str, node: Start) -> None:
    """Each GPU asks it in its own thread, so all are stuck; the page says so when the deadline is over."""
    running = node(WHOLE.but(hangs={function}), fields=(*FEW, field), sampling=short(DEADLINE))
    page, seconds = timed_page(running)

    assert seconds < patient(DEADLINE + ROOM)
    assert states(page) == {"up": 0, "timeout": 3}
    check_back(running, WHOLE)


@pytest.mark.parametrize("function", OPENING)
def test_a_gpu_that_cannot_be_opened_costs_itself(function: str, node: Start) -> None:
    """Discovery hangs as well as reading does, at the start and for a GPU that comes later."""
    running = node(stuck(WHOLE, function), fields=ALL, sampling=short(DEADLINE))
    check_stuck(running, "")
    check_back(running, WHOLE)

    running.show(WHOLE.with_gpu(1, gone=True))
    assert len(check_truth(running.page())) == 2
    running.show(stuck(WHOLE, function))

    check_stuck(running, WHOLE.gpus[1].uuid, "", lost=1)  # nobody knows yet that they are one and the same
    check_back(running, WHOLE)


@pytest.mark.parametrize("function", [*FIRST, *FIRST_SPLIT, *EACH_SWEEP])
def test_a_gpu_that_hangs_at_the_start_costs_itself(function: str, node: Start) -> None:
    """The first sweep must not be the one that never ends."""
    scenario = EACH_SWEEP.get(function, SPLIT if function in FIRST_SPLIT else WHOLE)
    running = node(stuck(scenario, function), fields=ALL, sampling=short(DEADLINE))

    check_stuck(running, WHOLE.gpus[1].uuid)
    check_back(running, scenario)


@pytest.mark.parametrize("function", [*EACH_SWEEP, *SECOND_SWEEP])
def test_a_gpu_that_hangs_in_operation_costs_itself(function: str, node: Start) -> None:
    """The deadline is paid once; the others stay fresh; nothing of the stuck GPU is shown, and it comes back."""
    scenario = EACH_SWEEP.get(function, WHOLE)
    running = node(scenario, fields=ALL, sampling=short(DEADLINE))
    running.settled_page()
    threading.Event().wait(0.11)  # GPM closes a window no sooner
    running.show(stuck(scenario, function))

    check_stuck(running, WHOLE.gpus[1].uuid)
    check_back(running, scenario)


@pytest.mark.parametrize("function", [*OF_PROCESSES, *OF_OWNERS])
def test_a_list_of_processes_that_hangs_costs_its_gpu(function: str, node: Start) -> None:
    """Who uses a GPU is asked in its own thread, like everything else."""
    scenario = WHOLE.with_gpu(1, answers={"nvmlDeviceGetProcessUtilization": None}) if function in OF_OWNERS else WHOLE
    running = node(stuck(scenario, function), fields=FEW, sampling=short(DEADLINE), processes=Processes(by="pod"))

    check_stuck(running, WHOLE.gpus[1].uuid)
    check_back(running, scenario)


@pytest.mark.parametrize("function", OF_PROCESSES[:1])
def test_an_instance_whose_list_of_processes_hangs_costs_its_gpu(function: str, node: Start) -> None:
    """It is asked of each instance."""
    hanging = SPLIT.with_instance(1, 0, hangs={function})
    running = node(hanging, fields=FEW, sampling=short(DEADLINE), processes=Processes(by="pod"))

    check_stuck(running, WHOLE.gpus[1].uuid)
    check_back(running, SPLIT)


@pytest.mark.parametrize("function", ON_INSTANCE)
def test_an_instance_that_hangs_costs_its_gpu(function: str, node: Start) -> None:
    """A MIG instance is asked in its GPU's thread; the other GPUs never notice."""
    hanging = SPLIT.with_instance(1, 0, hangs={function})
    running = node(hanging, fields=ALL, sampling=short(DEADLINE))

    check_stuck(running, WHOLE.gpus[1].uuid)
    check_back(running, SPLIT)


@pytest.mark.parametrize(
    "function", ["nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion"]
)
def test_a_driver_that_hangs_at_the_start_gets_a_page_about_that(function: str, node: Start) -> None:
    """Nothing is known of the GPUs, and the page says so in time; when the driver is there, so are they."""
    began = time.monotonic()
    running = node(WHOLE.but(hangs={function}), fields=FEW, sampling=short(DEADLINE))
    page = running.page()
    first = time.monotonic() - began
    _, seconds = timed_page(running)

    assert first < patient(2 * (DEADLINE + ROOM))
    assert seconds < patient(DEADLINE / 3)
    assert source_up(page) == 0
    assert up(page) == {}
    assert not check_truth(page)
    assert "otelgpu_build_info{" in page
    assert running.pipeline.sampler.why_not_ready() == "the driver does not answer"

    running.show(WHOLE)
    until(lambda: running.pipeline.sampler.why_not_ready() is None, "ready, though nobody asks for a page")
    assert len(check_truth(running.page())) == 3


def test_a_count_that_hangs_in_operation_leaves_the_gpus(node: Start) -> None:
    """How many GPUs there are is one question; each GPU's own answer says more."""
    running = node(WHOLE, fields=FEW, sampling=short(DEADLINE))
    running.show(WHOLE.but(hangs={"nvmlDeviceGetCount_v2"}))
    page, seconds = timed_page(running)
    _, later = timed_page(running)

    assert seconds < patient(DEADLINE)
    assert later < patient(DEADLINE / 4)
    assert source_up(page) == 1
    assert len(check_truth(page)) == 3


@pytest.mark.parametrize("at_start", [True, False])
def test_one_lock_in_the_driver_takes_all_gpus_down_and_not_the_page(at_start: bool, node: Start) -> None:  # noqa: FBT001
    """Some drivers take one call at a time: a hung one freezes all, and the page says just that."""
    locked = WHOLE.but(global_lock=True)
    running = node(locked, fields=FEW, sampling=short(DEADLINE))
    if at_start:
        running.show(locked.but(hangs={"nvmlDeviceGetCount_v2"}))
    else:
        running.show(stuck(locked, "nvmlDeviceGetPowerUsage"))
    _, seconds = timed_page(running)
    page, later = timed_page(running)
    _, latest = timed_page(running)

    assert seconds < patient(DEADLINE + ROOM)
    assert min(later, latest) < patient(DEADLINE / 3)
    assert not check_truth(page)
    assert up(page) == dict.fromkeys([gpu.uuid for gpu in WHOLE.gpus], 0)
    assert states(page) == {"up": 0, "timeout": 3}
    assert source_up(page) == 0
    assert "otelgpu_build_info{" in page

    check_back(running, WHOLE)


def test_no_memory_for_samples_takes_gpus_down_and_not_the_page(node: Start) -> None:
    """Sample objects are asked of the library as a whole: when that hangs, every GPU's thread does."""
    fields = (*FEW, "DCGM_FI_PROF_GR_ENGINE_ACTIVE")
    running = node(WHOLE.but(hangs={"nvmlGpmSampleAlloc"}), fields=fields, sampling=short(DEADLINE))
    page, seconds = timed_page(running)

    assert seconds < patient(DEADLINE / 3)  # the first sweep has paid
    assert states(page) == {"up": 0, "timeout": 3}
    assert not check_truth(page)

    check_back(running, WHOLE)


def test_samples_that_cannot_be_given_back_cost_that_gpu(node: Start) -> None:
    """A lost GPU's samples are freed in its own thread."""
    fields = (*FEW, "DCGM_FI_PROF_GR_ENGINE_ACTIVE")
    running = node(WHOLE, fields=fields, sampling=short(DEADLINE))
    running.show(WHOLE.but(hangs={"nvmlGpmSampleFree"}).with_gpu(1, errors={"nvmlDeviceGetPowerUsage": LOST}))

    check_stuck(running, WHOLE.gpus[1].uuid)
    check_back(running, WHOLE)


@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlEventSetWait_v2"])
def test_events_that_cannot_be_waited_for_cost_the_xids(function: str, node: Start) -> None:
    """All GPUs share one event set; when that hangs their readings are as fresh as before, and no old XID is shown."""
    running = node(WHOLE.but(hangs={function}), fields=(*FEW, XID), sampling=short(DEADLINE))
    until(lambda: not values(running.page(), XID), "no XID is claimed")
    page, seconds = timed_page(running)

    assert seconds < patient(DEADLINE / 3)
    assert len(check_truth(page)) == 3
    assert up(page) == dict.fromkeys([gpu.uuid for gpu in WHOLE.gpus], 1)
    assert values(page, "otelgpu_missing", by="gap") == {"timeout": 1}

    running.show(WHOLE)
    until(lambda: len(values(running.page(), XID)) == 3, "XIDs are back")


def test_a_registration_that_hangs_costs_its_gpu(node: Start) -> None:
    """Every GPU registers for events in its own thread, and no lock is held meanwhile."""
    running = node(stuck(WHOLE, "nvmlDeviceRegisterEvents"), fields=(*FEW, XID), sampling=short(DEADLINE))

    check_stuck(running, WHOLE.gpus[1].uuid)
    check_back(running, WHOLE)


@pytest.mark.parametrize("function", ["nvmlShutdown", "nvmlEventSetFree"])
def test_an_end_that_hangs_is_given_up_in_time(function: str, node: Start) -> None:
    """The process has to leave, if need be without the driver's consent."""
    running = node(WHOLE, fields=(*FEW, XID), sampling=short(DEADLINE))
    running.show(WHOLE.but(hangs={function}))
    began = time.monotonic()
    is_clean = running.pipeline.sampler.stop(1.0)

    assert not is_clean
    assert time.monotonic() - began < patient(1.0 + ROOM)


def test_a_stuck_gpu_keeps_no_other_from_moving_up(node: Start) -> None:
    """The slot of a stuck thread may hold another GPU after the count has changed: that one gets its own thread."""
    four = distinct(models.h100(4))
    running = node(four, fields=FEW, sampling=short(DEADLINE))
    running.show(four.with_gpu(1, hangs={"nvmlDeviceGetPowerUsage"}))
    running.page()
    running.show(four.with_gpu(1, hangs={"nvmlDeviceGetPowerUsage"}).with_gpu(0, gone=True))
    running.page()
    page, seconds = timed_page(running)

    assert seconds < patient(DEADLINE / 3)
    assert check_truth(page) == {four.gpus[2].uuid, four.gpus[3].uuid}
    assert up(page) == {gpu.uuid: int(number > 1) for number, gpu in enumerate(four.gpus)}
    assert states(page) == {"up": 2, "lost": 1, "timeout": 1}

    check_back(running, four)
    until(lambda: running.pipeline.sampler.stop(5), "a clean end")


def test_a_thread_that_was_replaced_takes_nothing_back(node: Start) -> None:
    """When it returns, the slot is another GPU's by now: its readings and its sample objects are left alone."""
    four = distinct(models.h100(4))
    hanging = four.with_gpu(1, hangs={"nvmlDeviceGetName"})
    running = node(hanging, fields=(*FEW, "DCGM_FI_PROF_GR_ENGINE_ACTIVE"), sampling=short(DEADLINE))
    running.show(hanging.with_gpu(0, gone=True))
    running.page()
    assert check_truth(running.page()) == {four.gpus[2].uuid, four.gpus[3].uuid}
    running.show(four.with_gpu(0, gone=True))

    until(lambda: len(check_truth(running.page())) == 3, "the GPU is back, in its new place")
    for _ in range(5):
        page = running.page()
        assert check_truth(page) == {gpu.uuid for gpu in four.gpus[1:]}
        assert states(page) == {"up": 3, "lost": 1}
    until(lambda: running.pipeline.sampler.stop(5), "a clean end")


@pytest.mark.soak
def test_two_hundred_hangs_leave_nothing_behind(node: Start) -> None:
    """Each hang costs one deadline; threads and time do not grow with them."""
    running = node(WHOLE, fields=FEW, sampling=short(0.1))
    running.page()
    threads = threading.active_count()
    for number in range(200):
        function = list(EACH_SWEEP)[number % 5]
        running.show(stuck(WHOLE, function))
        _, seconds = timed_page(running)

        assert seconds < patient(0.1 + ROOM)
        check_back(running, WHOLE)
    assert threading.active_count() == threads
    until(lambda: running.pipeline.sampler.stop(5), "a clean end")


def test_a_slow_question_costs_only_itself(node: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A GPU that takes longer than the deadline in every sweep: asked last, the slow question alone is missing."""
    slow = "nvmlDeviceGetTemperature"
    sampling = short(DEADLINE)
    scenario = OLD.with_gpu(1, delays={slow: sampling.deadline * 2}, answers={"nvmlDeviceGetTemperatureV": None})
    scenario = scenario.with_gpu(1, answers={(slow, 0): 31})
    running = node(scenario, fields=FEW, sampling=sampling)
    worker = running.pipeline.sampler._rounds._slots[1].worker  # noqa: SLF001
    for _ in range(3):
        until(lambda: worker.busy_since is None, "it answers after all")
        page = running.page()

    slow_gpu = WHOLE.gpus[1].uuid
    assert check_truth(page) == {gpu.uuid for gpu in WHOLE.gpus}
    assert up(page)[slow_gpu] == 1
    assert slow_gpu not in values(page, FEW[0], by="UUID")
    assert slow_gpu in values(page, FEW[1], by="UUID")
    assert values(page, "otelgpu_missing", by="gap") == {"timeout": 1}
    assert sum("`sampling.deadline` is shorter" in record.getMessage() for record in caplog.records) == 1
    running.show(WHOLE)
    until(lambda: worker.busy_since is None, "the last of the slow answers")
    assert not values(running.page(), "otelgpu_missing", by="gap")
