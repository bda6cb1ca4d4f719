"""What dcgm-exporter counts itself: XIDs and clock events, in a window and in all.

Rule 1: an event or a sample is there when the page shows it; `until` waits for that and nothing sleeps.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from otelgpu.config import Mig, Sampling, SourceChoice, load
from otelgpu.config.counting import Counts
from otelgpu.config.keys import SETTINGS
from otelgpu.counts import CLOCK_EVENTS, GRAVE, OTHER, UNDOCUMENTED, Counting, Recent, XidCounts
from otelgpu.fields import CATALOGUE
from otelgpu.model import Device
from tests.conftest import Golden
from tests.fakenvml import Fake, Scenario, models
from tests.faults.rig import missing, up
from tests.harness import LIMIT, Node, lines_of, series, short, until

Start = Callable[..., Node]

XID_COUNT, XID_TOTAL = "DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_XID_ERRORS_TOTAL"
CLOCK_COUNT, CLOCK_TOTAL = "DCGM_EXP_CLOCK_EVENTS_COUNT", "DCGM_EXP_CLOCK_EVENTS_TOTAL"
XID, POWER, REASONS = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_POWER_USAGE", "nvmlDeviceGetCurrentClocksEventReasons"
P2P = "DCGM_EXP_P2P_STATUS"
EXPORTED = (XID_COUNT, CLOCK_COUNT, "DCGM_EXP_GPU_HEALTH_STATUS", P2P, XID_TOTAL, CLOCK_TOTAL)
PAIR = models.h100(2).with_gpu(0, answers={REASONS: 0}).with_gpu(1, answers={REASONS: 0})
QUICK = {"sampling": Sampling(reuse=0, deadline=LIMIT), "counts": Counts(clock_interval=0.1)}


def counted(page: str, name: str, label: str) -> dict[str, dict[str, float]]:
    """The values that are not 0, by GPU and label."""
    found: dict[str, dict[str, float]] = {}
    for line in lines_of(page):
        if line.name == name and line.value:
            found.setdefault(line.labels["gpu"], {})[line.labels[label]] = line.value
    return found


def xids(page: str, name: str = XID_TOTAL) -> dict[str, dict[str, float]]:
    return counted(page, name, "xid")


def clocks(page: str, name: str = CLOCK_TOTAL) -> dict[str, dict[str, float]]:
    return counted(page, name, "clock_event")


def test_every_xid_is_counted(node: Start) -> None:
    """Two of the same code in one scrape interval are two: a gauge with the last code shows neither of them twice."""
    running = node(PAIR, fields=(XID_COUNT, XID_TOTAL))
    running.show(PAIR.with_xid(0, 31).with_xid(0, 31).with_xid(0, 13).with_xid(1, 79))
    expected = {"0": {"31": 2, "13": 1}, "1": {"79": 1}}
    until(lambda: xids(running.page()) == expected, "all four")

    assert xids(running.page(), XID_COUNT) == expected


def test_the_lines_are_those_of_dcgm_exporter(node: Start) -> None:
    """Labels and their order; the last XID itself is not on the page for it."""
    running = node(PAIR, fields=(XID_COUNT, XID_TOTAL), compat="4.8.2")
    running.show(PAIR.with_xid(0, 31))
    until(lambda: xids(running.page()) == {"0": {"31": 1}}, "the event")
    page = running.page()

    (recent,) = (line for line in series(page, XID_COUNT) if 'xid="31"' in line)
    (total,) = (line for line in series(page, XID_TOTAL) if 'xid="31"' in line)
    assert recent.endswith('Hostname="node-1",window_size_in_ms="300000",xid="31"} 1')
    assert total.endswith('Hostname="node-1",xid="31"} 1')
    assert {f"# TYPE {XID_COUNT} gauge", f"# TYPE {XID_TOTAL} counter"} <= set(page.splitlines())
    assert not series(page, XID)


def test_codes_that_matter_stand_at_zero_before_they_come(node: Start) -> None:
    """`increase()` misses the one XID 79 of a GPU's life when its series begins with it."""
    page = node(PAIR, fields=(XID_TOTAL,)).page(sweep=False)

    shown = {(line.labels["gpu"], line.labels["xid"]): line.value for line in lines_of(page) if line.name == XID_TOTAL}
    assert shown == {(gpu, str(code)): 0 for gpu in "01" for code in GRAVE}
    assert 79 in GRAVE


def test_an_xid_leaves_the_window_and_its_series_stays(node: Start) -> None:
    """dcgm-exporter's series vanishes with the window, and a dashboard cannot tell quiet from broken."""
    running = node(PAIR, fields=(XID_COUNT, XID_TOTAL), counts=Counts(xid_window=1000))
    running.show(PAIR.with_xid(0, 31))
    until(lambda: xids(running.page(), XID_COUNT) == {"0": {"31": 1}}, "the event")
    until(lambda: xids(running.page(), XID_COUNT) == {}, "the window is over")
    page = running.page()

    assert [line for line in series(page, XID_COUNT) if 'window_size_in_ms="1000",xid="31"' in line]
    assert xids(page) == {"0": {"31": 1}}


@pytest.mark.parametrize("fate", [{"lost": True}, {"hangs": {"nvmlDeviceGetPowerUsage"}}, {"gone": True}])
def test_the_xid_that_took_a_gpu_down_is_counted(fate: dict[str, Any], node: Start) -> None:
    """79 is the one that matters most, and it comes from a GPU that answers nothing any more."""
    running = node(PAIR, fields=(XID_COUNT, XID_TOTAL, POWER, "DCGM_FI_DRIVER_VERSION"), sampling=short())
    before = next(line for line in series(running.page(), XID_TOTAL) if 'gpu="1"' in line and 'xid="79"' in line)
    running.show(PAIR.with_xid(1, 79))
    until(lambda: xids(running.page()) == {"1": {"79": 1}}, "the event")
    running.show(PAIR.with_xid(1, 79).with_gpu(1, **fate))
    until(lambda: sorted(up(running.page()).values()) == [0, 1], "the GPU is down")
    page = running.page()

    after = next(line for line in series(page, XID_TOTAL) if 'gpu="1"' in line and 'xid="79"' in line)
    assert after == before.removesuffix(" 0") + " 1"
    assert xids(page, XID_COUNT) == {"1": {"79": 1}}


def test_totals_survive_a_new_connection(node: Start) -> None:
    """Whoever reloads the driver after an XID has not undone it; a counter that falls back would count it again."""
    scenario = PAIR.with_xid(0, 79)
    running = node(scenario, fields=(XID_TOTAL,))
    until(lambda: xids(running.page()) == {"0": {"79": 1}}, "the event")
    running.show(scenario.with_gpu(1, errors={"nvmlDeviceGetMigMode": 9}))
    running.page()
    running.show(PAIR)

    until(lambda: sorted(up(running.page()).values()) == [1, 1], "connected anew")
    assert xids(running.page()) == {"0": {"79": 1}}


def test_another_gpu_in_the_slot_has_counts_of_its_own(node: Start) -> None:
    """A replaced GPU must not inherit what the broken one did, nor take it away."""
    running = node(PAIR.with_xid(1, 79), fields=(XID_TOTAL, POWER))
    until(lambda: xids(running.page()) == {"1": {"79": 1}}, "the event")
    other = "GPU-99999999-0000-4000-8000-000000000000"
    running.show(PAIR.with_xid(1, 79).with_gpu(1, uuid=other, pci="00000000:99:00.0").with_gpu(0, gone=True))
    running.page()
    running.show(PAIR.with_xid(1, 79).with_gpu(1, uuid=other, pci="00000000:99:00.0"))
    until(lambda: up(running.page()).get(other) == 1, "the new one is read")
    page = running.page()

    by_uuid = {line.labels["UUID"]: line.value for line in lines_of(page) if line.labels.get("xid") == "79"}
    assert by_uuid == {PAIR.gpus[0].uuid: 0, PAIR.gpus[1].uuid: 1, other: 0}


@pytest.mark.parametrize(("code", "gap"), [(3, "unsupported"), (4, "denied")])
def test_without_events_there_is_no_count(code: int, gap: str, node: Start) -> None:
    """A zero would say that nothing happened, where nobody could have heard it."""
    page = node(PAIR.with_gpu(1, errors={"nvmlDeviceRegisterEvents": code}), fields=(XID, XID_COUNT, XID_TOTAL)).page()

    assert {line.labels["gpu"] for line in lines_of(page) if line.name in (XID, XID_COUNT, XID_TOTAL)} == {"0"}
    assert missing(page) == {gap: 3}


def test_codes_that_nobody_documents_are_bounded() -> None:
    """A driver that makes up codes must not make up series without end."""
    device = Device("GPU-0", "GPU-0", 0, "", "")
    counts = XidCounts([CATALOGUE[9005]], Counting(), lambda: 0.0)
    for code in range(5000, 5000 + 2 * UNDOCUMENTED):
        counts.add("GPU-0", code)
    counts.add("GPU-0", 31)
    found = {dict(reading.attributes)["xid"]: reading.number for reading in counts.readings(device)}

    assert found[OTHER] == UNDOCUMENTED
    assert found["5000"] == found["31"] == 1
    assert len(found) == len(GRAVE) + UNDOCUMENTED + 2
    assert list(found)[-1] == OTHER


def test_a_window_holds_no_more_than_its_steps() -> None:
    """A GPU in a storm has thousands of XIDs a second; memory must not grow with them, and none may be lost."""
    recent = Recent(100.0)
    for tick in range(1_000_000):
        recent.add(tick / 1000)

    assert len(recent._steps) <= 1001  # noqa: SLF001 - the memory is the point
    assert recent.count(999.999) == pytest.approx(100_000, rel=0.002)
    assert recent.count(1099.0) == pytest.approx(1000, rel=0.2)
    assert recent.count(1100.1) == 0


def test_a_short_throttle_between_two_sweeps_is_seen(node: Start, fake: Fake) -> None:
    """Nobody scrapes while it lasts: only somebody who looks more often can know."""
    running = node(PAIR, fields=(CLOCK_COUNT, CLOCK_TOTAL), **QUICK)
    assert clocks(running.page()) == {}
    fake.reset_calls()
    running.show(PAIR.with_gpu(1, answers={REASONS: 0x48}))
    until(lambda: fake.calls(REASONS, gpu=1) >= 3, "the thread has looked")
    running.show(PAIR)
    fake.reset_calls()
    until(lambda: fake.calls(REASONS, gpu=1) >= 2, "the thread has looked again")
    page = running.page()

    assert clocks(page) == {"1": {"hw_slowdown": 1, "hw_thermal": 1}}
    seen = clocks(page, CLOCK_COUNT)
    assert set(seen) == {"1"}
    assert seen["1"]["hw_slowdown"] == seen["1"]["hw_thermal"] >= 2


def test_a_reason_that_goes_on_began_once(node: Start) -> None:
    """The total counts beginnings, the window samples; what was so from the start did not begin then."""
    held = PAIR.with_gpu(0, answers={REASONS: 0x4})
    running = node(held, fields=(CLOCK_COUNT, CLOCK_TOTAL), **QUICK)
    until(lambda: clocks(running.page(), CLOCK_COUNT).get("0", {}).get("power_cap", 0) > 2, "three samples of it")
    assert clocks(running.page()) == {}
    for times in (1, 2):
        running.show(PAIR)
        before = clocks(running.page(), CLOCK_COUNT)["0"]["power_cap"]
        until(lambda: clocks(running.page()) == clocks(running.page()), "a page")
        _next_looks(running)
        running.show(held)
        until(lambda before=before: clocks(running.page(), CLOCK_COUNT)["0"]["power_cap"] > before + 1, "held")  # type: ignore[misc]

        assert clocks(running.page()) == {"0": {"power_cap": times}}


def _next_looks(running: Node) -> None:
    running.fake.reset_calls()
    until(lambda: running.fake.calls(REASONS, gpu=0) >= 2, "two more looks")


def test_the_lines_of_clock_events(node: Start) -> None:
    """Every reason has its series, with dcgm-exporter's words and labels, from the first page on."""
    everything = sum(CLOCK_EVENTS.values())
    page = node(PAIR.with_gpu(0, answers={REASONS: everything}), fields=(CLOCK_COUNT, CLOCK_TOTAL)).page(sweep=False)

    shown = {
        (line.labels["gpu"], line.labels["clock_event"]): line for line in lines_of(page) if line.name == CLOCK_COUNT
    }
    assert {key: line.value for key, line in shown.items()} == {(g, w): g == "0" for g in "01" for w in CLOCK_EVENTS}
    assert {line.labels["window_size_in_ms"] for line in shown.values()} == {"300000"}
    assert len(series(page, CLOCK_TOTAL)) == 2 * len(CLOCK_EVENTS)
    assert {f"# TYPE {CLOCK_COUNT} gauge", f"# TYPE {CLOCK_TOTAL} counter"} <= set(page.splitlines())


def test_an_old_driver_is_asked_by_the_older_name(node: Start) -> None:
    """Before 535 the reasons had another name."""
    old = models.h100().with_gpu(0, answers={REASONS: None, "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1})
    page = node(old, fields=(CLOCK_COUNT,)).page(sweep=False)

    assert clocks(page, CLOCK_COUNT) == {"0": {"gpu_idle": 1}}


def test_a_gpu_that_tells_no_reasons_has_no_clock_events(node: Start, fake: Fake) -> None:
    """Absent with the reason, not nine zeros, and no thread for it."""
    silent = {REASONS: None, "nvmlDeviceGetCurrentClocksThrottleReasons": None}
    running = node(PAIR.with_gpu(1, answers=silent), fields=(CLOCK_COUNT, CLOCK_TOTAL), **QUICK)
    page = running.page()

    assert {line.labels["gpu"] for line in lines_of(page) if line.name == CLOCK_COUNT} == {"0"}
    assert missing(page) == {"unsupported": 2}
    assert fake.calls(REASONS, gpu=1) == 1


@pytest.mark.parametrize(
    ("trouble", "gap"), [({"errors": {REASONS: 999}}, "failed"), ({"answers": {REASONS: 2**64 - 1}}, "invalid")]
)
def test_a_look_that_fails_for_a_while_is_logged_once(
    trouble: dict[str, Any], gap: str, node: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """What was counted is left away meanwhile, or it would look like a quiet time, and goes on after it.

    All ones are no nine events that began.
    """
    caplog.set_level("INFO", "otelgpu")
    running = node(PAIR, fields=(CLOCK_TOTAL,), **QUICK)
    running.show(PAIR.with_gpu(1, **trouble))
    until(lambda: missing(running.page()) == {gap: 1}, "it is missing")
    _next_looks(running)
    assert {line.labels["gpu"] for line in lines_of(running.page()) if line.name == CLOCK_TOTAL} == {"0"}
    running.show(PAIR)
    until(lambda: missing(running.page()) == {}, "it is back")
    assert clocks(running.page()) == {}

    said = [record.getMessage() for record in caplog.records if "clock events" in record.getMessage()]
    assert [text.partition("; ")[2] or text.partition(": ")[2] for text in said] == [
        "clock events will be absent until it works",
        "clock events can be seen again",
    ]


def test_a_gpu_that_comes_back_counts_on(node: Start) -> None:
    """A total that begins again at 0 would be a reset that nobody made."""
    held = PAIR.with_gpu(1, answers={REASONS: 0x80})
    running = node(PAIR, fields=(CLOCK_TOTAL, POWER), **QUICK)
    running.show(held)
    until(lambda: clocks(running.page()) == {"1": {"hw_power_brake": 1}}, "it was seen")
    running.show(PAIR.with_gpu(1, lost=True))
    until(lambda: sorted(up(running.page()).values()) == [0, 1], "the GPU is down")
    assert {line.labels["gpu"] for line in lines_of(running.page()) if line.name == CLOCK_TOTAL} == {"0"}
    running.show(PAIR)
    until(lambda: sorted(up(running.page()).values()) == [1, 1], "it is back")
    _next_looks(running)

    assert clocks(running.page()) == {"1": {"hw_power_brake": 1}}
    running.show(held)
    until(lambda: clocks(running.page()) == {"1": {"hw_power_brake": 2}}, "it is watched again")


def test_a_new_connection_goes_on_counting(node: Start) -> None:
    """Handles are others after a driver was reloaded."""
    running = node(PAIR, fields=(CLOCK_TOTAL,), **QUICK)
    running.show(PAIR.with_gpu(0, answers={REASONS: 0x2}))
    until(lambda: clocks(running.page()) == {"0": {"clocks_setting": 1}}, "it was seen")
    running.show(PAIR.with_gpu(1, errors={"nvmlDeviceGetMigMode": 9}))
    running.page()
    running.show(PAIR)
    until(lambda: sorted(up(running.page()).values()) == [1, 1], "connected anew")
    _next_looks(running)
    running.show(PAIR.with_gpu(0, answers={REASONS: 0x2}))

    until(lambda: clocks(running.page()) == {"0": {"clocks_setting": 2}}, "counted on")


def test_everything_is_given_back(node: Start, fake: Fake) -> None:
    """The threads end with the pipeline, and the driver is let go of."""
    running = node(PAIR, fields=(CLOCK_TOTAL, XID_TOTAL), **QUICK)
    assert sum(thread.name == "otelgpu-clocks" for thread in threading.enumerate()) == 2

    assert running.stop()
    assert not any(thread.name == "otelgpu-clocks" for thread in threading.enumerate())
    assert fake.inflight == fake.inits == 0


@pytest.mark.parametrize("fields", [(POWER,), (XID, POWER), (XID_TOTAL,), ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS",)])
def test_nobody_looks_for_what_nobody_wants(fields: tuple[str, ...], node: Start, fake: Fake) -> None:
    """A thread for each GPU and a call a second are for those who ask for clock events."""
    running = node(PAIR, fields=fields, **QUICK)
    fake.reset_calls()
    pages = 3
    for _ in range(pages):
        running.page()

    wants = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS" in fields
    assert fake.calls(REASONS) == 2 * pages * wants
    assert not any(thread.name == "otelgpu-clocks" for thread in threading.enumerate())


def test_a_look_that_hangs_costs_the_clock_events_of_its_gpu(node: Start) -> None:
    """Not the sweep, not the other GPU, and no thread more for each sweep; the page says why they are missing."""
    running = node(PAIR, fields=(CLOCK_TOTAL, POWER), **QUICK)
    running.show(_stuck(PAIR))
    until(lambda: missing(running.page()) == {"timeout": 1}, "it hangs")
    page = running.page()
    threads = threading.active_count()
    for _ in range(20):
        running.page()

    assert sorted(up(page).values()) == [1, 1]
    assert {line.labels["gpu"] for line in lines_of(page) if line.name == POWER} == {"0", "1"}
    assert {line.labels["gpu"] for line in lines_of(page) if line.name == CLOCK_TOTAL} == {"0"}
    assert threading.active_count() == threads
    running.show(PAIR)
    until(lambda: missing(running.page()) == {}, "it is back")


def _stuck(scenario: Scenario) -> Scenario:
    return scenario.with_gpu(1, hangs={REASONS})


def test_windows_are_set_as_for_dcgm_exporter() -> None:
    """Its flags and variables mean the same here, in milliseconds."""
    taken = {flag: setting.key for setting in SETTINGS.values() for flag in setting.flags}
    environ = {"DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE": "60000", "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE": "90000"}
    counts = load(environ=environ).counts

    assert (counts.xid_window, counts.clock_window) == (60_000, 90_000)
    assert taken["-x"] == taken["--xid-count-window-size"] == "counts.xid_window"
    assert taken["--clock-events-count-window-size"] == "counts.clock_window"


def test_the_page_of_what_dcgm_exporter_works_out(node: Start, golden: Golden) -> None:
    """All six of its own fields, as a whole: names, types, labels and their order."""
    scenario = PAIR.with_gpu(0, answers={REASONS: 0x4, ("nvmlDeviceGetP2PStatus", 1, 2): 0})
    scenario = scenario.with_gpu(1, answers={("nvmlDeviceGetP2PStatus", 0, 2): 5})
    running = node(scenario.with_xid(1, 31).with_xid(1, 5000), fields=EXPORTED, counts=Counts(clock_interval=60))
    until(lambda: xids(running.page()) == {"1": {"31": 1, "5000": 1}}, "both events")

    golden("page/exporter.txt", "".join(f"{line}\n" for line in running.page().splitlines() if "DCGM_EXP" in line))


@pytest.mark.parametrize("field", EXPORTED)
def test_each_field_can_be_asked_for_alone(field: str, node: Start) -> None:
    """A CSV file names them one by one; the other families of their kind stay away."""
    running = node(models.h100(2), fields=(field,))
    running.page()
    page = running.page()

    shown = {line.name for line in lines_of(page) if line.name.startswith("DCGM_")}
    assert shown == (set() if field == P2P else {field})  # these two were never asked about each other


def test_all_of_them_come_with_all_fields(node: Start) -> None:
    """`--fields all` is all that can be read."""
    page = node(models.h100(), fields=("all",), source=SourceChoice("simulated", "2xh100")).page()

    assert {line.name for line in lines_of(page)} >= set(EXPORTED)


@pytest.mark.parametrize("parent_values", ["once", "repeat"])
def test_an_xid_of_an_instance_is_its_gpus(parent_values: str, node: Start) -> None:
    """Counted once, on the GPU, as the last XID is; dcgm-exporter mixes instances up with GPUs of the same number."""
    mig = Mig(parent_values=parent_values)  # type: ignore[arg-type]
    running = node(models.h100_mig(), fields=(XID_COUNT, XID_TOTAL), mig=mig)
    instances = sum(instance is not None for instance in models.h100_mig().gpus[0].instances)
    running.show(models.h100_mig().with_xid(0, 43, gi=2, ci=0))
    until(lambda: xids(running.page()) == {"0": {"43": 1}}, "the event")

    lines = [line for line in lines_of(running.page()) if line.name == XID_TOTAL and line.labels["xid"] == "43"]
    assert [line.value for line in lines] == [1] * (1 if parent_values == "once" else instances)
    assert all(("GPU_I_ID" in line.labels) == (parent_values == "repeat") for line in lines)
