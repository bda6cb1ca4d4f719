"""What the NVML source makes of the driver's answers: errors, second ways, and how much it asks.

Rule 1: the fake driver answers, the page is looked at; a driver that lacks functions gets a process of its own.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakenvml import ALL_LINKS, Code, Fake, Running, Scenario, Typed, models
from tests.faults.rig import FEW, missing, states
from tests.harness import Node, lines_of, series, serving, values

Start = Callable[..., Node]

TEMPERATURE, POWER, USED, REPLAYS = FEW
FREE, RESERVED = "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED"
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
REMAPPED = ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS")
NVLINK = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"
ENGINE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
MIB = models.MIB

UNSUPPORTED = (3, 13, 22, 25, 26)
WHOLE_GPU = {15: "lost", 16: "lost", 28: "lost", 1: "failed", 9: "failed", 18: "failed"}
OF_THE_QUESTION = dict.fromkeys(UNSUPPORTED, "unsupported") | {4: "denied", 10: "timeout"}
CODES = [*range(1, 31), 999]


def pair() -> Scenario:
    return models.h100(2)


def by_gpu(page: str, prefix: str = "DCGM_") -> tuple[list[str], list[str]]:
    """The series of GPU 0 and of GPU 1."""
    lines = series(page, prefix)
    return [line for line in lines if 'gpu="0"' in line], [line for line in lines if 'gpu="1"' in line]


@pytest.mark.parametrize("code", [code for code in CODES if code not in WHOLE_GPU])
def test_one_question_that_fails_costs_its_own_series(code: int, node: Start) -> None:
    """Every code of the driver becomes one of six reasons, and nothing else on the page changes."""
    running = node(pair(), fields=FEW)
    before = series(running.page())
    running.show(pair().with_gpu(1, errors={"nvmlDeviceGetPowerUsage": code}))
    page = running.page()

    lost = [line for line in before if line.startswith(POWER) and 'gpu="1"' in line]
    assert len(lost) == 1
    assert series(page) == [line for line in before if line not in lost]
    assert missing(page) == {OF_THE_QUESTION.get(code, "failed"): 1}
    assert states(page) == {"up": 2}


@pytest.mark.parametrize("code", WHOLE_GPU)
def test_an_error_that_means_the_gpu_costs_that_gpu(code: int, node: Start) -> None:
    """Some codes speak of more than the question that got them."""
    running = node(pair(), fields=FEW)
    before = by_gpu(running.page())
    running.show(pair().with_gpu(1, errors={"nvmlDeviceGetPowerUsage": code}))
    page = running.page()

    assert by_gpu(page) == (before[0], [])
    assert states(page) == {"up": 1, WHOLE_GPU[code]: 1}
    assert missing(page) == {WHOLE_GPU[code]: len(FEW)}


@pytest.mark.parametrize("code", UNSUPPORTED)
def test_what_is_not_supported_is_asked_once(code: int, node: Start, fake: Fake) -> None:
    """A GPU does not learn to answer while it is there; asking costs time in every sweep."""
    running = node(pair().with_gpu(1, errors={"nvmlDeviceGetPowerUsage": code}), fields=FEW)
    for _ in range(5):
        page = running.page()

    assert fake.calls("nvmlDeviceGetPowerUsage", gpu=0) == running.pipeline.sampler.sweeps
    assert fake.calls("nvmlDeviceGetPowerUsage", gpu=1) == 1
    assert missing(page) == {"unsupported": 1}


@pytest.mark.parametrize("code", [2, 4, 6, 10, 21, 999])
def test_what_may_pass_is_asked_again(code: int, node: Start, fake: Fake) -> None:
    """An error of the moment costs the moment; rights may be given while otelgpu runs."""
    running = node(pair().with_gpu(1, errors={"nvmlDeviceGetPowerUsage": code}), fields=FEW)
    for _ in range(3):
        running.page()
    assert fake.calls("nvmlDeviceGetPowerUsage", gpu=1) == running.pipeline.sampler.sweeps
    running.show(pair())

    assert len(values(running.page(), POWER)) == 2


@pytest.mark.parametrize(("code", "gap"), [(3, "unsupported"), (2, "unsupported"), (4, "denied"), (999, "failed")])
def test_one_field_value_that_fails_costs_itself(code: int, gap: str, node: Start) -> None:
    """Field values travel in one call with a code each."""
    fields = (*FEW, "DCGM_FI_DEV_MEMORY_TEMP")
    running = node(pair(), fields=fields)
    before = series(running.page())
    running.show(pair().with_gpu(0, fields={82: Code(code)}))
    page = running.page()

    expected = [line for line in before if "MEMORY_TEMP" not in line or 'gpu="1"' in line]
    assert len(expected) == len(before) - 1
    assert series(page) == expected
    assert missing(page) == {gap: 1}


def test_a_field_value_of_an_unknown_type_is_no_number(node: Start) -> None:
    """A newer driver may add types; their bytes are not to be read as something else."""
    running = node(pair().with_gpu(0, fields={82: Typed("u16", 41)}), fields=("DCGM_FI_DEV_MEMORY_TEMP",))

    assert values(running.page(), "DCGM_FI_DEV_MEMORY_TEMP")["0"] == 41


@pytest.mark.parametrize("code", [3, 13, 999, 4])
def test_field_values_that_fail_as_a_whole_leave_the_calls(code: int, node: Start) -> None:
    """Before driver 400 or so there is no such call; what can be asked otherwise then is."""
    broken = pair().but(errors={"nvmlDeviceGetFieldValues": code})
    running = node(broken, fields=(*FEW, ENERGY, *REMAPPED))
    page = running.page()
    calls = {ENERGY, REPLAYS, *REMAPPED}

    assert {line.name for line in lines_of(page) if line.name.startswith("DCGM")} == {
        TEMPERATURE,
        POWER,
        USED,
        *(calls if code in UNSUPPORTED else ()),
    }


SECOND_WAYS = {
    "energy": (ENERGY, {"fields": {83: None}}, "nvmlDeviceGetTotalEnergyConsumption", 1_000_000_000.0),
    "replays": (REPLAYS, {"fields": {94: None}}, "nvmlDeviceGetPcieReplayCounter", 150.0),
    "rows": (
        REMAPPED[0],
        {"fields": {143: None}, "answers": {"nvmlDeviceGetRemappedRows": (5, 6, 0, 1)}},
        "nvmlDeviceGetRemappedRows",
        6.0,
    ),
    "temperature": (
        TEMPERATURE,
        {"answers": {("nvmlDeviceGetTemperature", 0): None, ("nvmlDeviceGetTemperatureV", 0): 44}},
        "nvmlDeviceGetTemperatureV",
        44.0,
    ),
    "memory": (
        USED,
        {"answers": {"nvmlDeviceGetMemoryInfo_v2": None, "nvmlDeviceGetMemoryInfo": (100 * MIB, 60 * MIB, 40 * MIB)}},
        "nvmlDeviceGetMemoryInfo",
        40.0,
    ),
}


@pytest.mark.parametrize("name", SECOND_WAYS)
def test_a_second_way_is_found_at_once_and_kept(name: str, node: Start, fake: Fake) -> None:
    """The very first page has the value, and the way that does not work is not tried again."""
    field, changes, function, value = SECOND_WAYS[name]
    running = node(models.h100().with_gpu(0, **changes), fields=(field,))  # type: ignore[arg-type]

    for number in range(3):
        assert values(running.page(sweep=number > 0), field) == {"0": value}
        assert fake.calls(function, gpu=0) == running.pipeline.sampler.sweeps
    assert fake.calls("nvmlDeviceGetMemoryInfo_v2", gpu=0) <= 1
    assert fake.calls("nvmlDeviceGetFieldValues", gpu=0) <= 1


def test_before_driver_510_memory_has_no_reserve(node: Start) -> None:
    """The old answer counts what the driver reserves as used; there is no third number, so none is shown."""
    old = models.h100().with_gpu(0, answers={"nvmlDeviceGetMemoryInfo_v2": None})
    running = node(old, fields=(FREE, USED, RESERVED))
    page = running.page()

    assert values(page, USED) == {"0": 480}
    assert set(values(page, FREE)) == {"0"}
    assert not values(page, RESERVED)
    assert missing(page) == {"unsupported": 1}


OLD_FUNCTIONS = frozenset(
    {
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetMigMode",
        "nvmlGpmQueryDeviceSupport",
        "nvmlGpmSampleAlloc",
    }
)


@pytest.mark.parametrize(
    ("without", "absent"),
    [
        (OLD_FUNCTIONS, {ENGINE, RESERVED}),
        (frozenset({"nvmlDeviceGetTemperature"}), set()),
        (
            frozenset({"nvmlDeviceGetUtilizationRates", "nvmlEventSetWait_v2", "nvmlDeviceRegisterEvents"}),
            {"XID", "UTIL"},
        ),
    ],
)
def test_a_driver_without_a_function_costs_what_only_that_answers(
    without: frozenset[str], absent: set[str], tmp_path: Path, cc: Path
) -> None:
    """A symbol that the library lacks is found out when it is asked for, and is one more reason."""
    assert cc.exists()
    wanted = {TEMPERATURE, POWER, USED, RESERVED, ENGINE, "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_GPU_UTIL"}
    old = models.h100().but(missing=without)
    with serving(old, tmp_path, "--fields", ",".join(sorted(wanted)), "--reuse", "0") as served:
        served.page()
        threading.Event().wait(0.11)  # a GPM window
        page = served.page()
        shown = {line.name for line in lines_of(page) if line.name.startswith("DCGM_")}

        assert shown == {name for name in wanted if not any(part in name for part in absent)}
        assert missing(page) == ({"unsupported": len(wanted) - len(shown)} if absent else {})
        assert served.logged("Traceback") == 0
        assert served.stop() == 0


@pytest.mark.parametrize("name", ["h100", "a100", "rtx_3090", "t4", "b200"])
def test_a_sweep_asks_at_most_twenty_times_per_gpu(name: str, node: Start, fake: Fake) -> None:
    """Calls serialise in the driver and wake engines: fewer are better for everybody."""
    scenario = models.MAKERS[name]()
    if name != "rtx_3090":
        scenario = getattr(models, name)(4)
    running = node(scenario)
    running.settled_page()
    threading.Event().wait(0.11)  # or GPM would not be asked
    fake.reset_calls()
    running.page()
    calls = [fake.calls(gpu=number) for number in range(len(scenario.gpus))]

    assert max(calls) <= 20
    assert fake.calls("nvmlDeviceGetCount_v2") == 1
    assert fake.calls(gpu=-1) - fake.calls("nvmlEventSetWait_v2") <= 1 + len(scenario.gpus)  # MetricsGet and the count


def test_opening_is_not_repeated(node: Start, fake: Fake) -> None:
    """Names and serial numbers are asked once while nothing changes hands."""
    running = node(pair())
    for _ in range(3):
        running.page()

    for function in ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetSerial"):
        assert fake.calls(function) <= 2


def test_a_rate_needs_two_sweeps_and_a_window(node: Start) -> None:
    """DCGM's NVLink total is a rate: the driver's KiB counters, divided by the time between two sweeps."""
    running = node(models.h100(), fields=(NVLINK,))
    assert not values(running.page(sweep=False), NVLINK)
    assert missing(running.page(sweep=False)) == {"failed": 1}
    assert not values(running.page(), NVLINK)  # too soon: the driver's counters move in steps

    idle = values(running.settled_page(), NVLINK)
    assert idle == {"0": 0}
    more = models.h100().with_gpu(0, fields={(138, ALL_LINKS): 10**9, (140, ALL_LINKS): 10**9})
    running.show(more)
    threading.Event().wait(0.11)
    busy = values(running.page(), NVLINK)["0"]
    assert busy > 1000
    assert values(running.page(), NVLINK)["0"] == busy  # within the window: still the newest there can be


def test_a_counter_that_goes_back_gives_no_rate(node: Start) -> None:
    """After a reset of the GPU the difference would be negative, or huge."""
    many = models.h100().with_gpu(0, fields={(138, ALL_LINKS): 10**9})
    running = node(many, fields=(NVLINK,))
    running.show(models.h100())

    assert not values(running.settled_page(), NVLINK)
    assert values(running.settled_page(), NVLINK) == {"0": 0}


def test_profiling_needs_a_window(node: Start, fake: Fake) -> None:
    """The first sweep opens a window, the second closes it; closer sweeps get the one before, without a call."""
    running = node(models.h100(), fields=(ENGINE,))
    assert missing(running.page(sweep=False)) == {"failed": 1}
    assert values(running.settled_page(), ENGINE) == {"0": 0.125}
    asked = fake.calls("nvmlGpmSampleGet")

    assert values(running.page(), ENGINE) == {"0": 0.125}
    assert fake.calls("nvmlGpmSampleGet") == asked


def test_a_window_reaches_back_to_the_last_sweep_and_no_further(node: Start, fake: Fake) -> None:
    """Work of the window before must not be told again, nor a value be the mean since the start."""

    def worked(total: float) -> Scenario:
        return models.h100().with_gpu(0, gpm={1: Running(total)})

    running = node(worked(40), fields=(ENGINE,))
    seen = []
    for total in (50, 55, 75, 75):
        running.show(worked(total))
        seen.append(values(running.settled_page(), ENGINE)["0"])

    assert seen == [0.1, 0.05, 0.2, 0]
    assert fake.calls("nvmlGpmSampleGet") == len(seen) + 1  # the end of one window is the beginning of the next


@pytest.mark.parametrize("function", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet"])
def test_a_window_that_failed_is_begun_anew(function: str, node: Start) -> None:
    """A value over a time in which the driver did not answer would look like one over a second."""
    running = node(models.h100(), fields=(ENGINE,))
    running.settled_page()
    running.show(models.h100().with_gpu(0, errors={function: 999}))
    assert not values(running.settled_page(), ENGINE)
    running.show(models.h100())

    assert not values(running.settled_page(), ENGINE)
    assert values(running.settled_page(), ENGINE) == {"0": 0.125}


def test_profiling_that_is_refused_is_not_asked_again(node: Start, fake: Fake) -> None:
    """Some vGPU drivers claim GPM and then do not have it."""
    running = node(models.h100().with_gpu(0, errors={"nvmlGpmSampleGet": 3}), fields=(ENGINE,))
    for _ in range(3):
        page = running.page()

    assert missing(page) == {"unsupported": 1}
    assert fake.calls("nvmlGpmSampleGet") == 1


@pytest.mark.parametrize("code", [999, 4, 3, 13])
def test_profiling_is_not_given_up_for_an_error(code: int, node: Start) -> None:
    """An error when the GPU is first seen, whatever it says, must not cost the profiling values for ever."""
    running = node(models.h100().with_gpu(0, errors={"nvmlGpmQueryDeviceSupport": code}), fields=(ENGINE,))

    assert values(running.settled_page(), ENGINE) == {"0": 0.125}


def test_profiling_is_given_up_where_the_driver_says_that_there_is_none(node: Start, fake: Fake) -> None:
    """Before Hopper there is no GPM, and asking for samples would cost a call in each sweep."""
    running = node(models.a100(), fields=(ENGINE,))

    assert missing(running.settled_page()) == {"unsupported": 1}
    assert fake.calls("nvmlGpmSampleGet") == 0


def test_one_gpm_metric_that_fails_costs_itself(node: Start) -> None:
    """Metrics travel in one call with a code each."""
    both = (ENGINE, "DCGM_FI_PROF_DRAM_ACTIVE")
    running = node(models.h100().with_gpu(0, gpm={10: Code(3)}), fields=both)
    page = running.settled_page()

    assert values(page, ENGINE) == {"0": 0.125}
    assert not values(page, both[1])
    assert missing(page) == {"unsupported": 1}


def test_texts_that_are_no_utf_8_cost_nothing(node: Start) -> None:
    """Seen with driver 555 under WSL2: the page keeps what can be read."""
    bad = b'NVIDIA \xff\xfe "H100"\n'
    functions = ("nvmlDeviceGetName", "nvmlDeviceGetSerial", "nvmlDeviceGetVbiosVersion")
    broken = (
        models.h100()
        .with_gpu(0, answers=dict.fromkeys(functions, bad))
        .but(driver="5\udcff".encode("utf-8", "surrogateescape"))
    )
    running = node(broken, fields=(*FEW, "DCGM_FI_DEV_NAME", "DCGM_FI_DEV_SERIAL", "DCGM_FI_DRIVER_VERSION"))
    (line,) = [line for line in lines_of(running.page()) if line.name == POWER]

    assert line.labels["modelName"] == 'NVIDIA \ufffd\ufffd "H100"\n'
    assert line.labels["DCGM_FI_DEV_SERIAL"] == 'NVIDIA \ufffd\ufffd "H100"\n'
    assert line.labels["DCGM_FI_DRIVER_VERSION"] == "5\ufffd"


GARBAGE = {
    "utilisation": ("DCGM_FI_DEV_GPU_UTIL", {"answers": {"nvmlDeviceGetUtilizationRates": (4294967295, 0)}}),
    "power": (POWER, {"answers": {"nvmlDeviceGetPowerUsage": 3_700_000}}),
    "energy": (ENERGY, {"fields": {83: 0x7FFFFFFFFFFFFFF2}}),
    "memory-temperature": ("DCGM_FI_DEV_MEMORY_TEMP", {"fields": {82: 0x7FFFFFF0}}),
    "wide": (ENERGY, {"fields": {83: 2**64 - 1}}),
    "activity": (ENGINE, {"gpm": {1: 140737488355328.0}}),
    "no-number": (ENGINE, {"gpm": {1: float("nan")}}),
    "endless": (ENGINE, {"gpm": {1: float("inf")}}),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_dropped_counted_and_logged_once(name: str, node: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A number that cannot be true is no reading; the reader learns that it was there, the log is not flooded."""
    field, changes = GARBAGE[name]
    running = node(models.h100(2).with_gpu(1, **changes), fields=(field,))  # type: ignore[arg-type]
    caplog.set_level("INFO", "otelgpu")
    running.settled_page()
    first = running.settled_page()
    dropped = values(first, "otelgpu_values_dropped_total", by="field")
    page = running.page()

    assert set(values(page, field)) == {"0"}
    assert missing(page) == {"invalid": 1}
    assert values(page, "otelgpu_values_dropped_total", by="field")[field] == dropped[field] + 1
    assert sum("is dropped" in record.message for record in caplog.records) == 1

    running.show(models.h100(2))
    running.settled_page()
    assert set(values(running.settled_page(), field)) == {"0", "1"}
    assert sum("can be true again" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("driver", "ids", "shown"),
    [
        ("580.105.08", (269, 270, 271), True),
        ("580.82.07", (269, 270, 271), True),
        ("580.65.06", (251, 252, 253), True),
        ("580.65.06", (269, 270, 271), False),  # power smoothing there
        ("575.51.02", (251, 252, 253), True),
        ("570.172.08", (251, 252, 253), False),
        ("580.105.08", (251, 252, 253), False),  # power smoothing there
    ],
)
def test_clock_event_counters_are_read_where_the_driver_has_them(
    driver: str,
    ids: tuple[int, int, int],
    shown: bool,  # noqa: FBT001 - a table
    node: Callable[..., Node],
) -> None:
    """The ids moved twice: a setting of power smoothing in watts must not read as time, nor as an event."""
    names = [f"DCGM_FI_DEV_CLOCKS_EVENT_REASON_{reason}_SLOWDOWN_NS" for reason in ("SW_THERM", "HW_THERM")]
    names.append("DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS")
    nothing = dict.fromkeys((251, 252, 253, 269, 270, 271))
    fields = nothing | {ids[place]: 7 + place for place in range(3)}
    page = node(models.h100(1).but(driver=driver).with_gpu(0, fields=fields), fields=tuple(names)).page()

    assert [values(page, name) for name in names] == ([{"0": 7}, {"0": 8}, {"0": 9}] if shown else [{}, {}, {}])
