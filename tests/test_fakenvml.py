"""The fake driver behaves as NVML does, seen through the real pynvml.

Rule 1: a test here is about the fake itself; what otelgpu makes of a driver is tested elsewhere.
Rule 2: what would end the process (an abort, a missing symbol) runs in a process of its own.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from tests.fakenvml import (
    ALL_LINKS,
    CannotBuildError,
    Code,
    Counts,
    Fake,
    Gpu,
    Instance,
    Process,
    Scenario,
    Typed,
    library,
    models,
    preload,
    wrong_architecture,
)

ROOT = Path(__file__).resolve().parent.parent
POWER = "nvmlDeviceGetPowerUsage"
PAIR = Scenario(gpus=(Gpu(uuid="GPU-a", answers={POWER: 100}), Gpu(uuid="GPU-b", answers={POWER: 200})))


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Fake]:
    """The fake with two small GPUs; nvmlInit was not called."""
    try:
        fake = preload(tmp_path / "scenario")
    except CannotBuildError as error:
        pytest.skip(str(error))
    fake.show(PAIR)
    fake.reset_calls()
    yield fake
    fake.show(Scenario()).quiet()
    while fake.inits:
        nvml.nvmlShutdown()


@pytest.fixture
def fake(bare: Fake) -> Fake:
    """The fake after nvmlInit."""
    nvml.nvmlInit()
    return bare


def handle(index: int = 0) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(index)


def code(ask: Callable[..., object], *args: object) -> int:
    """The return code of a call that fails, 0 when it does not."""
    try:
        ask(*args)
    except nvml.NVMLError as error:
        return int(error.value)
    return 0


def in_process(program: str, folder: Path, scenario: Path | None = None, counts: Path | None = None) -> Any:
    """Run *program* in a Python of its own that finds the fake in *folder*."""
    environ = os.environ | {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(ROOT)}
    if scenario:
        environ["FAKENVML_SCENARIO"] = str(scenario)
    if counts:
        environ["FAKENVML_COUNTS"] = str(counts)
    return subprocess.run(
        [sys.executable, "-c", f"import pynvml as n, sys, threading, time\n{program}"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_before_init_and_after_shutdown_nothing_answers(bare: Fake) -> None:
    """As many shutdowns as inits; then every call says UNINITIALIZED, shutdown too."""
    before = code(nvml.nvmlDeviceGetCount)
    nvml.nvmlInit()
    nvml.nvmlInit()
    nvml.nvmlShutdown()
    between = nvml.nvmlDeviceGetCount()
    nvml.nvmlShutdown()

    assert (before, between) == (nvml.NVML_ERROR_UNINITIALIZED, 2)
    assert code(nvml.nvmlDeviceGetCount) == code(nvml.nvmlShutdown) == nvml.NVML_ERROR_UNINITIALIZED
    assert bare.inits == 0


def test_answers_reach_pynvml(fake: Fake) -> None:
    """Numbers, pairs, arguments, wide numbers and structs come out as they were said."""
    said = {
        ("nvmlDeviceGetClockInfo", 1): 345,
        "nvmlDeviceGetPowerManagementLimitConstraints": (1, 2),
        "nvmlDeviceGetTotalEnergyConsumption": (1 << 64) - 1,
        ("nvmlDeviceGetTemperatureV", 0): -7,
        "nvmlDeviceGetMemoryInfo_v2": (10, 1, 2, 7),
        ("nvmlDeviceGetMemoryErrorCounter", 1, 0, 2): 9,
    }
    fake.show(PAIR.with_gpu(0, answers=said))
    gpu = handle()
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2)

    assert nvml.nvmlDeviceGetClockInfo(gpu, 1) == 345
    assert code(nvml.nvmlDeviceGetClockInfo, gpu, 0) == nvml.NVML_ERROR_NOT_SUPPORTED
    assert nvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu) == [1, 2]
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) == (1 << 64) - 1
    assert nvml.nvmlDeviceGetTemperatureV(gpu, 0) == -7
    assert (memory.total, memory.reserved, memory.free, memory.used) == (10, 1, 2, 7)
    assert nvml.nvmlDeviceGetMemoryErrorCounter(gpu, 1, 0, 2) == 9
    assert code(nvml.nvmlDeviceGetFanSpeed, gpu) == nvml.NVML_ERROR_NOT_SUPPORTED


@pytest.mark.parametrize("raw", [b'a "quoted" \\ name', b"two\nlines\ttab", b"\xff\xfe not UTF-8", b""])
def test_a_string_may_hold_any_bytes(fake: Fake, raw: bytes) -> None:
    """Drivers have given invalid UTF-8; the format can say whatever a C string can hold."""
    fake.show(PAIR.with_gpu(0, name=None, answers={"nvmlDeviceGetName": raw}))
    gpu = handle()
    buffer = nvml.create_string_buffer(96)

    assert fake.library.nvmlDeviceGetName(gpu, buffer, 96) == 0
    assert buffer.value == raw


def test_a_short_buffer_is_refused(fake: Fake) -> None:
    """INSUFFICIENT_SIZE, and nothing is written past the end."""
    buffer = nvml.create_string_buffer(8)

    assert fake.library.nvmlDeviceGetName(handle(), buffer, 8) == nvml.NVML_ERROR_INSUFFICIENT_SIZE


def test_a_foreign_handle_is_refused(fake: Fake) -> None:
    """A pointer that is no handle is INVALID_ARGUMENT, not a crash."""
    assert fake.library.nvmlDeviceGetPowerUsage(nvml.c_void_p(4096), nvml.byref(nvml.c_uint())) == 2
    assert fake.library.nvmlDeviceGetPowerUsage(None, nvml.byref(nvml.c_uint())) == 2
    assert fake.library.nvmlDeviceGetPowerUsage(handle(), None) == 2


def test_structs_that_pynvml_wants_to_be_given(fake: Fake) -> None:
    """Fabric and platform: 255 is the driver's word for an unknown slot or tray, and pynvml cannot decode it."""
    said = {"nvmlDeviceGetGpuFabricInfoV": (3, 0, 7, 2), "nvmlDeviceGetPlatformInfo": (255, 255, 1, 1, 6)}
    fake.show(PAIR.with_gpu(0, answers={**said, "nvmlDeviceGetCpuAffinity": (0xFF00,)}))
    fabric = nvml.c_nvmlGpuFabricInfo_v2_t()
    fabric.version = nvml.nvmlGpuFabricInfo_v2
    nvml.nvmlDeviceGetGpuFabricInfoV(handle(), nvml.byref(fabric))
    platform = nvml.c_nvmlPlatformInfo_v2_t()
    platform.version = nvml.nvmlPlatformInfo_v2
    got = fake.library.nvmlDeviceGetPlatformInfo(handle(), nvml.byref(platform))

    assert (fabric.state, fabric.status, fabric.cliqueId, fabric.healthMask) == (3, 0, 7, 2)
    assert (got, platform.hostId, platform.moduleId) == (0, "\x01", "\x06")
    with pytest.raises(UnicodeDecodeError):
        _ = platform.slotNumber
    assert list(nvml.nvmlDeviceGetCpuAffinity(handle(), 2)) == [0xFF00, 0]


def test_an_old_struct_version_is_refused(fake: Fake) -> None:
    """Versioned structs are checked as the driver does."""
    fake.show(models.h100())

    assert code(nvml.nvmlDeviceGetMemoryInfo, handle(), 1) == nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_handles_by_uuid_and_bus_id(fake: Fake) -> None:
    """One GPU has one handle, however it was found; the domain may be written with 4 or 8 digits."""
    fake.show(models.mixed())
    wanted = handle(1)
    uuid = nvml.nvmlDeviceGetUUID(wanted)
    bus = nvml.nvmlDeviceGetPciInfo(wanted).busId
    found = [nvml.nvmlDeviceGetHandleByUUID(uuid.encode()), nvml.nvmlDeviceGetHandleByPciBusId(bus.encode())]
    found.append(nvml.nvmlDeviceGetHandleByPciBusId(bus[4:].lower().encode()))

    assert [nvml.nvmlDeviceGetIndex(each) for each in found] == [1, 1, 1]
    assert code(nvml.nvmlDeviceGetHandleByUUID, b"GPU-nobody") == nvml.NVML_ERROR_NOT_FOUND
    assert code(handle, 3) == nvml.NVML_ERROR_INVALID_ARGUMENT


def test_an_error_for_one_gpu_and_for_all(fake: Fake) -> None:
    """A rule of a GPU comes before one of the scenario."""
    fake.show(PAIR.with_gpu(0, errors={POWER: 4}).but(errors={POWER: 999}))

    assert code(nvml.nvmlDeviceGetPowerUsage, handle(0)) == nvml.NVML_ERROR_NO_PERMISSION
    assert code(nvml.nvmlDeviceGetPowerUsage, handle(1)) == nvml.NVML_ERROR_UNKNOWN
    assert str(nvml.NVMLError(nvml.NVML_ERROR_GPU_IS_LOST)) == "GPU is lost"


def test_init_may_fail(bare: Fake) -> None:
    """No driver loaded: nvmlInit itself fails, and works once the driver is there."""
    bare.show(PAIR.but(errors={"nvmlInit_v2": 9}))
    before = code(nvml.nvmlInit)
    bare.show(PAIR)

    assert before == nvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert code(nvml.nvmlInit) == 0


def test_a_delay_delays(fake: Fake) -> None:
    """The call takes that long and answers."""
    fake.show(PAIR.with_gpu(0, delays={POWER: 0.05}))
    gpu = handle()
    began = time.monotonic()

    assert nvml.nvmlDeviceGetPowerUsage(gpu) == 100
    assert time.monotonic() - began >= 0.05


class Asking(threading.Thread):
    """One call in a thread of its own."""

    def __init__(self, ask: Callable[..., object], *args: object) -> None:
        super().__init__(daemon=True)
        self.ask, self.args = ask, args
        self.result: object = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.ask(*self.args)
        except nvml.NVMLError as error:
            self.result = error.value


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not true():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.001)


def test_a_hang_ends_with_the_scenario(fake: Fake) -> None:
    """A hung call answers from the scenario that ended its hang; another GPU answers all along."""
    fake.show(PAIR.with_gpu(0, hangs={POWER}))
    hung = Asking(nvml.nvmlDeviceGetPowerUsage, handle(0))
    wait_until(lambda: fake.inflight == 1)
    other = nvml.nvmlDeviceGetPowerUsage(handle(1))
    still = hung.is_alive()
    fake.show(PAIR.with_gpu(0, answers={POWER: 7}))
    hung.join(10)

    assert (other, still, hung.result) == (200, True, 7)


def test_release_ends_a_hang_once(fake: Fake) -> None:
    """After release() hung calls go on; the next one hangs again."""
    fake.show(PAIR.with_gpu(0, hangs={"*"}))
    gpu = nvml.nvmlDeviceGetHandleByIndex
    first = Asking(gpu, 0)
    wait_until(lambda: fake.inflight == 1)
    fake.release()
    first.join(10)
    second = Asking(nvml.nvmlDeviceGetPowerUsage, first.result)
    wait_until(lambda: fake.inflight == 1)

    assert not first.is_alive()
    assert second.is_alive()


def test_the_global_lock_freezes_every_call(fake: Fake) -> None:
    """With one lock in the driver a hung call on one GPU stops calls on all; without it, see above."""
    gpus = [handle(0), handle(1)]
    fake.show(PAIR.with_gpu(0, hangs={POWER}).but(global_lock=True))
    hung = Asking(nvml.nvmlDeviceGetPowerUsage, gpus[0])
    wait_until(lambda: fake.inflight == 1)
    time.sleep(0.01)
    other = Asking(nvml.nvmlDeviceGetPowerUsage, gpus[1])
    other.join(0.1)
    frozen = other.is_alive()
    fake.show(PAIR)
    hung.join(10)
    other.join(10)

    assert (frozen, hung.result, other.result) == (True, 100, 200)


def test_a_lost_gpu_keeps_its_place(fake: Fake) -> None:
    """Count and indices stay, every call on the lost one fails, the others answer."""
    gpus = [handle(0), handle(1)]
    fake.show(PAIR.with_gpu(0, lost=True))

    assert nvml.nvmlDeviceGetCount() == 2
    assert code(nvml.nvmlDeviceGetUUID, gpus[0]) == nvml.NVML_ERROR_GPU_IS_LOST
    assert code(nvml.nvmlDeviceGetFieldValues, gpus[0], [82]) == nvml.NVML_ERROR_GPU_IS_LOST
    assert code(handle, 0) == nvml.NVML_ERROR_GPU_IS_LOST
    assert nvml.nvmlDeviceGetPowerUsage(gpus[1]) == 200


def test_a_gpu_that_is_gone_moves_the_others_up(fake: Fake) -> None:
    """An old handle still means the same GPU, though its index is another; it works again when the GPU is back."""
    gpus = [handle(0), handle(1)]
    fake.show(PAIR.with_gpu(0, gone=True))
    gone = code(nvml.nvmlDeviceGetPowerUsage, gpus[0])
    seen = nvml.nvmlDeviceGetCount(), nvml.nvmlDeviceGetIndex(gpus[1]), nvml.nvmlDeviceGetPowerUsage(gpus[1])
    first = nvml.nvmlDeviceGetUUID(handle(0))
    fake.show(PAIR)

    assert gone == nvml.NVML_ERROR_GPU_IS_LOST
    assert seen == (1, 0, 200)
    assert first == "GPU-b"
    assert nvml.nvmlDeviceGetPowerUsage(gpus[0]) == 100


def test_fields_have_a_code_each(fake: Fake) -> None:
    """The call succeeds as a whole; type, scope and code belong to each field."""
    fields = {82: 37, 83: 5, (138, ALL_LINKS): 9, 186: Code(4), 193: -8, 274: Typed("f64", 1.5)}
    fake.show(PAIR.with_gpu(0, fields=fields))
    got = nvml.nvmlDeviceGetFieldValues(handle(), [82, 83, (138, ALL_LINKS), (138, 0), 186, 193, 274])

    assert [value.nvmlReturn for value in got] == [0, 0, 0, 3, 4, 0, 0]
    assert [value.valueType for value in got if not value.nvmlReturn] == [1, 3, 3, 5, 0]
    assert [got[0].value.uiVal, got[1].value.ullVal, got[2].value.ullVal] == [37, 5, 9]
    assert [got[5].value.siVal, got[6].value.dVal] == [-8, 1.5]
    assert got[0].timestamp > 1_600_000_000_000_000


def test_processes(fake: Fake) -> None:
    """Lists come with the size they need; an empty one is no error."""
    fake.show(PAIR.with_gpu(0, processes=(Process(41, 1 << 40), Process(42, 7, 1, 0))))
    got = nvml.nvmlDeviceGetComputeRunningProcesses(handle())

    assert [(p.pid, p.usedGpuMemory, p.gpuInstanceId) for p in got] == [(41, 1 << 40, 0xFFFFFFFF), (42, 7, 1)]
    assert nvml.nvmlDeviceGetGraphicsRunningProcesses(handle()) == []


def test_process_utilization_is_given_once(fake: Fake) -> None:
    """Only samples after the time stamp that was asked for; NOT_FOUND when there are none."""
    fake.show(
        PAIR.with_gpu(0, answers={"nvmlDeviceGetProcessUtilization": (41, 1000, 50, 20, 0, 0, 42, 2000, 5, 2, 0, 0)})
    )
    gpu = handle()

    assert [s.pid for s in nvml.nvmlDeviceGetProcessUtilization(gpu, 0)] == [41, 42]
    assert [s.smUtil for s in nvml.nvmlDeviceGetProcessUtilization(gpu, 1000)] == [5]
    assert code(nvml.nvmlDeviceGetProcessUtilization, gpu, 2000) == nvml.NVML_ERROR_NOT_FOUND


def test_retired_pages(fake: Fake) -> None:
    """Addresses by cause."""
    fake.show(
        PAIR.with_gpu(0, answers={("nvmlDeviceGetRetiredPages", 1): (4096, 8192), ("nvmlDeviceGetRetiredPages", 0): ()})
    )

    assert nvml.nvmlDeviceGetRetiredPages(handle(), 1) == [4096, 8192]
    assert nvml.nvmlDeviceGetRetiredPages(handle(), 0) == []
    assert code(nvml.nvmlDeviceGetRetiredPages, handle(1), 0) == nvml.NVML_ERROR_NOT_SUPPORTED


def test_mig_devices(fake: Fake) -> None:
    """Found by index, with holes; they know their GPU and their ids, and only instances do."""
    fake.show(models.a100_mig().without_instance(0, 1))
    gpu = handle()
    first, third = (nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index) for index in (0, 2))
    parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(first)
    attributes = nvml.nvmlDeviceGetAttributes(third)

    assert nvml.nvmlDeviceGetName(first) == "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    assert [nvml.nvmlDeviceGetGpuInstanceId(each) for each in (first, third)] == [7, 5]
    assert nvml.nvmlDeviceGetUUID(parent) == nvml.nvmlDeviceGetUUID(gpu)
    assert [nvml.nvmlDeviceIsMigDeviceHandle(each).value for each in (gpu, first)] == [0, 1]
    assert (attributes.multiprocessorCount, attributes.memorySizeMB) == (28, 9856)
    assert code(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 1) == nvml.NVML_ERROR_NOT_FOUND
    assert code(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 7) == nvml.NVML_ERROR_INVALID_ARGUMENT
    assert code(nvml.nvmlDeviceGetGpuInstanceId, gpu) == nvml.NVML_ERROR_INVALID_ARGUMENT
    assert code(nvml.nvmlDeviceGetMigMode, first) == nvml.NVML_ERROR_INVALID_ARGUMENT
    assert code(nvml.nvmlDeviceGetUtilizationRates, gpu) == nvml.NVML_ERROR_NOT_SUPPORTED
    assert code(nvml.nvmlDeviceGetPowerUsage, first) == nvml.NVML_ERROR_NOT_SUPPORTED


@pytest.mark.parametrize("removed", [None, nvml.NVML_ERROR_INVALID_ARGUMENT])
def test_the_handle_of_a_destroyed_instance(fake: Fake, removed: int | None) -> None:
    """NOT_FOUND or INVALID_ARGUMENT, as the scenario says; the other instances go on."""
    scenario = models.h100_mig().but(removed_code=removed)
    fake.show(scenario)
    mig = [nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(), index) for index in (0, 1)]
    fake.show(scenario.without_instance(0, 0))

    assert code(nvml.nvmlDeviceGetMemoryInfo, mig[0]) == (removed or nvml.NVML_ERROR_NOT_FOUND)
    assert nvml.nvmlDeviceGetMemoryInfo(mig[1]).total == 20096 << 20


def metrics(first: Any, second: Any, *wanted: int) -> dict[int, tuple[int, float]]:
    get = nvml.c_nvmlGpmMetricsGet_t()
    get.version = nvml.NVML_GPM_METRICS_GET_VERSION
    get.sample1, get.sample2, get.numMetrics = first, second, len(wanted)
    for at, metric in enumerate(wanted):
        get.metrics[at].metricId = metric
    nvml.nvmlGpmMetricsGet(get)
    return {m.metricId: (m.nvmlReturn, m.value) for m in get.metrics[: len(wanted)]}


def test_gpm(fake: Fake) -> None:
    """Two samples of one GPU, or of one instance, give metrics; anything else is refused."""
    fake.show(models.h100_mig().with_gpu(0, gpm={2: Code(999)}))
    gpu = handle()
    empty, *samples = (nvml.nvmlGpmSampleAlloc() for _ in range(5))
    for sample in samples[:2]:
        nvml.nvmlGpmSampleGet(gpu, sample)
    for sample in samples[2:]:
        nvml.nvmlGpmMigSampleGet(gpu, 9, sample)
    whole, part = metrics(samples[0], samples[1], 1, 2, 99), metrics(samples[2], samples[3], 1)
    live = fake.live_samples
    refused = [code(metrics, empty, samples[1], 1), code(metrics, samples[0], samples[2], 1)]
    for sample in (empty, *samples):
        nvml.nvmlGpmSampleFree(sample)

    assert nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice == 1
    assert whole == {1: (0, 12.5), 2: (999, 0.0), 99: (3, 0.0)}
    assert part == {1: (0, 21.5)}
    assert refused == [nvml.NVML_ERROR_INVALID_ARGUMENT] * 2
    assert (live, fake.live_samples) == (5, 0)


def test_no_gpm_before_hopper(fake: Fake) -> None:
    """An A100 says that it has none, and means it."""
    fake.show(models.a100())
    sample = nvml.nvmlGpmSampleAlloc()
    got = code(nvml.nvmlGpmSampleGet, handle(), sample)
    nvml.nvmlGpmSampleFree(sample)

    assert nvml.nvmlGpmQueryDeviceSupport(handle()).isSupportedDevice == 0
    assert got == nvml.NVML_ERROR_NOT_SUPPORTED


def test_xid_events(fake: Fake) -> None:
    """Each event comes once to each set, equal codes too, also one that happens while somebody waits."""
    xid = nvml.nvmlEventTypeXidCriticalError
    scenario = models.h100(2).with_xid(0, 79).with_xid(1, 13, gi=3).with_xid(0, 79)
    fake.show(scenario)
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(handle(0), xid, events)
    nvml.nvmlDeviceRegisterEvents(handle(1), xid, events)
    got = [nvml.nvmlEventSetWait_v2(events, 1000) for _ in range(3)]
    began = time.monotonic()
    none = code(nvml.nvmlEventSetWait_v2, events, 50)
    waited = time.monotonic() - began
    waiting = Asking(nvml.nvmlEventSetWait_v2, events, 10_000)
    wait_until(lambda: fake.inflight == 1)
    fake.show(scenario.with_xid(1, 48))
    waiting.join(5)
    late: Any = waiting.result
    live = fake.live_event_sets
    nvml.nvmlEventSetFree(events)

    assert [(e.eventData, e.gpuInstanceId, e.eventType) for e in got] == [
        (79, 0xFFFFFFFF, xid),
        (13, 3, xid),
        (79, 0xFFFFFFFF, xid),
    ]
    assert none == nvml.NVML_ERROR_TIMEOUT
    assert 0.05 <= waited < 1
    assert (late.eventData, nvml.nvmlDeviceGetIndex(late.device)) == (48, 1)
    assert (live, fake.live_event_sets) == (1, 0)


def test_events_may_be_unsupported(fake: Fake) -> None:
    """Some GeForce and vGPUs have none."""
    fake.show(models.rtx_4090().with_gpu(0, answers={"nvmlDeviceGetSupportedEventTypes": None}))
    events = nvml.nvmlEventSetCreate()
    got = code(nvml.nvmlDeviceRegisterEvents, handle(), nvml.nvmlEventTypeXidCriticalError, events)
    nvml.nvmlEventSetFree(events)

    assert got == nvml.NVML_ERROR_NOT_SUPPORTED


def test_calls_are_counted(fake: Fake) -> None:
    """By function and by GPU, failed ones too."""
    gpus = [handle(0), handle(1)]
    for gpu in (*gpus, gpus[1]):
        nvml.nvmlDeviceGetPowerUsage(gpu)
    code(nvml.nvmlDeviceGetFanSpeed, gpus[0])

    assert [fake.calls(POWER), fake.calls(POWER, 0), fake.calls(POWER, 1)] == [3, 1, 2]
    assert fake.calls("nvmlDeviceGetHandleByIndex_v2", -1) == 2
    assert fake.calls("nvmlDeviceGetFanSpeed") == 1
    assert fake.calls() == 7


def test_a_change_is_seen_at_the_next_call(fake: Fake) -> None:
    """Also when two changes come within one tick of the clock of the file system, and have the same length."""
    gpu = handle()
    seen = []
    for number in range(100, 400):
        PAIR.with_gpu(0, answers={POWER: number}).write(fake.path)
        seen.append(nvml.nvmlDeviceGetPowerUsage(gpu))

    assert seen == list(range(100, 400))


def test_changes_under_load(fake: Fake) -> None:
    """Eight threads ask while the scenario changes: each answer is from one of the scenarios, and nothing breaks."""
    gpus = [handle(0), handle(1)]
    until = threading.Event()
    answers: list[set[object]] = [set() for _ in range(8)]

    def hammer(mine: set[object], gpu: Any) -> None:
        while not until.is_set():
            mine.add(code(nvml.nvmlDeviceGetPowerUsage, gpu) or nvml.nvmlDeviceGetFieldValues(gpu, [82])[0].nvmlReturn)

    threads = [threading.Thread(target=hammer, args=(mine, gpus[n % 2])) for n, mine in enumerate(answers)]
    for thread in threads:
        thread.start()
    for number in range(60):
        (PAIR if number % 2 else models.crowd(2).but(gpus=(*PAIR.gpus, *models.crowd(1).gpus))).write(fake.path)
    until.set()
    for thread in threads:
        thread.join(10)

    assert set().union(*answers) == {nvml.NVML_ERROR_NOT_SUPPORTED}
    assert fake.inflight == 0


@pytest.mark.parametrize("model", models.MAKERS)
def test_every_model_answers_its_own_facts(fake: Fake, model: str) -> None:
    """Whatever a scenario says of its GPUs and instances is what pynvml reads."""
    scenario = models.MAKERS[model]()
    fake.show(scenario)
    gpus = [handle(index) for index in range(nvml.nvmlDeviceGetCount())]

    assert nvml.nvmlSystemGetDriverVersion() == scenario.driver
    assert [nvml.nvmlDeviceGetUUID(gpu) for gpu in gpus] == [gpu.uuid for gpu in scenario.gpus]
    for gpu, facts in zip(gpus, scenario.gpus, strict=True):
        assert nvml.nvmlDeviceGetName(gpu) == facts.name
        assert nvml.nvmlDeviceGetArchitecture(gpu) == facts.architecture
        assert nvml.nvmlDeviceGetPciInfo(gpu).busId == facts.pci
        assert nvml.nvmlDeviceGetPowerUsage(gpu) == facts.answers[POWER]
        assert code(nvml.nvmlDeviceGetSerial, gpu) == (0 if facts.serial else nvml.NVML_ERROR_NOT_SUPPORTED)
        keys = list(facts.fields)
        for key, value in zip(keys, nvml.nvmlDeviceGetFieldValues(gpu, keys), strict=True):
            assert (value.nvmlReturn, value.value.ullVal & 0xFFFFFFFF) == (
                0,
                int(str(facts.fields[key])) & 0xFFFFFFFF,
            ), key
        for index, instance in enumerate(facts.instances):
            mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
            assert isinstance(instance, Instance)
            assert nvml.nvmlDeviceGetUUID(mig) == instance.uuid
            assert nvml.nvmlDeviceGetMemoryInfo(mig).total == instance.memory


def test_uuids_are_unique() -> None:
    """No two devices of all scenarios share a UUID unless they are the same device."""
    for make in models.MAKERS.values():
        gpus = make().gpus
        uuids = [gpu.uuid for gpu in gpus] + [mig.uuid for gpu in gpus for mig in gpu.instances if mig]

        assert len(set(uuids)) == len(uuids)


def test_an_unknown_function_is_refused_in_python() -> None:
    """A typing error shows where the scenario is written, not as an abort in C."""
    with pytest.raises(ValueError, match="nvmlDeviceGetPwer"):
        PAIR.with_gpu(0, errors={"nvmlDeviceGetPwer": 3}).text()
    with pytest.raises(ValueError, match="nvmlNo"):
        library(frozenset({"nvmlNo"}))


def test_a_missing_function_is_absent(tmp_path: Path) -> None:
    """As with an old driver: the symbol cannot be found, and pynvml says FUNCTION_NOT_FOUND."""
    old = models.h100().but(missing=frozenset({"nvmlDeviceGetMemoryInfo_v2"}))
    result = in_process(
        """
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
print(n.nvmlDeviceGetMemoryInfo(h).total >> 20, hasattr(n.nvmlLib, "nvmlDeviceGetMemoryInfo_v2"))
try: n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2)
except n.NVMLError as e: print(e.value)
""",
        old.library(),
        old.write(tmp_path / "scenario"),
    )

    assert result.stdout.split() == ["81559", "False", "13"], result.stderr


def test_a_library_for_another_processor_does_not_load(tmp_path: Path) -> None:
    """The loader refuses it, which pynvml shows as LIBRARY_NOT_FOUND."""
    result = in_process(
        """
import ctypes
try: ctypes.CDLL("libnvidia-ml.so.1")
except OSError as e: print(e)
try: n.nvmlInit()
except n.NVMLError as e: print(e.value)
""",
        wrong_architecture(tmp_path / "lib"),
    )

    assert result.stdout.splitlines()[-1] == "12"
    assert "libnvidia-ml.so.1" in result.stdout


def test_counts_of_another_process(tmp_path: Path) -> None:
    """The counts file can be read while the process runs and after it."""
    counts = Counts(tmp_path / "counts")
    before = counts.calls()
    result = in_process(
        "n.nvmlInit()\nh = n.nvmlDeviceGetHandleByIndex(0)\nfor _ in range(5): n.nvmlDeviceGetPowerUsage(h)",
        library(),
        models.h100().write(tmp_path / "scenario"),
        counts.path,
    )

    assert result.returncode == 0, result.stderr
    assert before == 0
    assert [counts.calls(POWER), counts.calls(POWER, 0), counts.calls(POWER, 1)] == [5, 5, 0]
    assert counts.by_function() == {"nvmlInitWithFlags": 1, "nvmlDeviceGetHandleByIndex_v2": 1, POWER: 5}
    assert counts.gauge("inits") == 1


@pytest.mark.parametrize(
    ("slow", "program"),
    [
        (
            POWER,
            "threading.Thread(target=n.nvmlDeviceGetPowerUsage, args=(h,)).start()\ntime.sleep(.1)\nn.nvmlShutdown()",
        ),
        (
            "nvmlShutdown",
            "threading.Thread(target=n.nvmlShutdown).start()\ntime.sleep(.1)\nn.nvmlDeviceGetPowerUsage(h)",
        ),
    ],
    ids=["in flight when shutdown begins", "begun while shutdown runs"],
)
def test_a_call_that_overlaps_shutdown_aborts(tmp_path: Path, slow: str, program: str) -> None:
    """In a real driver this is a crash now and then; here it is one always."""
    path = models.h100().but(delays={slow: 0.5}).write(tmp_path / "scenario")
    result = in_process(f"n.nvmlInit()\nh = n.nvmlDeviceGetHandleByIndex(0)\n{program}", library(), path)

    assert result.returncode == -signal.SIGABRT
    assert "overlaps nvmlShutdown" in result.stderr


def test_a_shutdown_that_is_not_the_last_may_overlap(fake: Fake) -> None:
    """Somebody else in the process may let go of NVML while we use it."""
    nvml.nvmlInit()
    gpu = handle()
    fake.show(PAIR.with_gpu(0, hangs={POWER}))
    hung = Asking(nvml.nvmlDeviceGetPowerUsage, gpu)
    wait_until(lambda: fake.inflight == 1)
    nvml.nvmlShutdown()
    fake.release()
    hung.join(10)

    assert hung.result == 100
