"""`only_process`: what this process and its children use of each GPU."""

import multiprocessing
import os
import time

import pytest

from otelgpu.sources.nvml import processes
from otelgpu.sources.nvml.recent import Recent
from tests.embed.conftest import Observe
from tests.embed.host import Host, ids, points
from tests.fakenvml import Fake, models
from tests.fakenvml.scenario import Process
from tests.faults.rig import OF_PROCESSES
from tests.harness import patient

MEMORY = "hw.gpu.nvidia.process.memory.usage"
SM = "hw.gpu.nvidia.process.sm.utilization"
LATER = int((time.time() + 3600) * 1_000_000)  # a time stamp that is young whenever the test runs


def sample(pid: int, sm: int) -> tuple[int, ...]:
    """A sample of the driver: pid, time stamp, SM, memory, encoder, decoder."""
    return (pid, LATER, sm, 0, 0, 0)


def test_only_what_this_process_uses_is_reported(fake: Fake, host: Host, watch: Observe) -> None:
    """On a shared GPU a host wants its own part; a GPU that it does not use is no series of zeros."""
    mine = Process(os.getpid(), 3 << 30)
    fake.show(
        models.h100(2)
        .with_gpu(
            0,
            processes=(mine, Process(1, 7 << 30)),
            answers={"nvmlDeviceGetProcessUtilization": (*sample(os.getpid(), 40), *sample(1, 55))},
        )
        .with_gpu(1, processes=(Process(1, 7 << 30),))
    )
    watch(host, only_process=True)
    metrics = host.collect()

    assert sorted(metrics) == [MEMORY, SM]
    assert [(point.value, (point.attributes or {})["hw.name"]) for point in points(metrics, MEMORY)] == [
        (3 << 30, "GPU 0")
    ]
    assert [point.value for point in points(metrics, SM)] == [0.4]


def test_children_count(fake: Fake, host: Host, watch: Observe) -> None:
    """A data loader's or a launcher's workers are part of what the program uses."""
    stopped = multiprocessing.get_context("spawn").Event()
    child = multiprocessing.get_context("spawn").Process(target=stopped.wait, args=(30,))
    child.start()
    assert child.pid is not None
    try:
        fake.show(models.h100(1).with_gpu(0, processes=(Process(os.getpid(), 1 << 30), Process(child.pid, 2 << 30))))
        watch(host, only_process=True)

        assert [point.value for point in host.points(MEMORY)] == [3 << 30]
    finally:
        stopped.set()
        child.join()


def test_an_idle_process_has_a_share_of_zero(fake: Fake, host: Host, watch: Observe) -> None:
    """The driver has samples only of those that work: a process that is on the GPU and has none does nothing."""
    fake.show(
        models.h100(1).with_gpu(
            0,
            processes=(Process(os.getpid(), 1 << 30),),
            answers={"nvmlDeviceGetProcessUtilization": sample(1, 55)},
        )
    )
    watch(host, only_process=True)

    assert [point.value for point in host.points(SM)] == [0]


def test_a_sample_from_before_the_clock_was_set_back_says_nothing(
    fake: Fake, host: Host, watch: Observe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their time stamps the driver's old samples would be the newest until the clock has caught up."""
    now = time.time()
    times = [now]
    monkeypatch.setattr(processes, "_RECENT", Recent(lambda: times[-1]))
    old = (os.getpid(), int(now * 1_000_000), 77, 0, 0, 0)
    new = (os.getpid(), int((now - 1800) * 1_000_000), 5, 0, 0, 0)
    scenario = models.h100(1).with_gpu(0, processes=(Process(os.getpid(), 1 << 30),))
    fake.show(scenario.with_gpu(0, answers={"nvmlDeviceGetProcessUtilization": old}))
    watch(host, only_process=True, reuse=0)
    before = [point.value for point in host.points(SM)]
    times.append(now - 1800)
    fake.show(scenario.with_gpu(0, answers={"nvmlDeviceGetProcessUtilization": (*old, *new)}))

    assert before == [0.77]
    assert [point.value for point in host.points(SM)] == [0.05]


@pytest.mark.parametrize("function", OF_PROCESSES)
def test_a_hanging_question_costs_the_deadline_once(function: str, fake: Fake, host: Host, watch: Observe) -> None:
    """These questions hang as any other may: the GPU is absent, the host late once."""
    scenario = models.h100(1).with_gpu(
        0,
        processes=(Process(os.getpid(), 1 << 30),),
        answers={"nvmlDeviceGetProcessUtilization": sample(os.getpid(), 40)},
    )
    fake.show(scenario)
    deadline = patient(0.3)
    watch(host, only_process=True, deadline=deadline)
    assert sorted(host.collect()) == [MEMORY, SM]
    fake.show(scenario.with_gpu(0, hangs={function}))

    times = []
    for _ in range(3):
        started = time.monotonic()
        assert host.collect() == {}
        times.append(time.monotonic() - started)

    assert times[0] > 0.7 * deadline
    assert max(times[1:]) < patient(0.2)


@pytest.mark.parametrize("name", ["h100_mig"])
def test_an_instance_knows_its_processes(name: str, fake: Fake, host: Host, watch: Observe) -> None:
    """Memory is told for a MIG instance; the share of time is not, as the driver has none."""
    scenario = models.MAKERS[name]()
    place = next(i for i, one in enumerate(scenario.gpus[0].instances) if one is not None)
    fake.show(scenario.with_instance(0, place, processes=(Process(os.getpid(), 1 << 30),)))
    watch(host, only_process=True)
    metrics = host.collect()
    instance = scenario.gpus[0].instances[place]

    assert instance is not None
    assert ids(points(metrics, MEMORY)) == [instance.uuid]
    assert SM not in metrics
