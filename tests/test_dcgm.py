"""DCGM as the source: connecting, what the engine is told to sample, counts, and other settings while it runs."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from otelgpu.config import Dcgm, Sampling, SourceChoice
from otelgpu.config.counting import Counts
from otelgpu.fields import CATALOGUE
from otelgpu.pipeline import Pipeline
from otelgpu.sources.choice import make_source
from otelgpu.sources.dcgm.readable import READABLE
from tests.fakedcgm import Blank, Code, Fake, Scenario, models
from tests.fakedcgm.scenario import GPU, GPU_I
from tests.harness import DCGM, Node, config, lines_of, values

Start = Callable[..., Node]

TEMPERATURE, POWER, XID = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_XID_ERRORS"
ACTIVE = "DCGM_FI_PROF_SM_ACTIVE"
CLOCKS = "DCGM_EXP_CLOCK_EVENTS_TOTAL"
COUNT, TOTAL = "DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_XID_ERRORS_TOTAL"
FEW = (TEMPERATURE, POWER)
REFUSED = "dcgmFieldGroupCreate: fakedcgm: DCGM_ST_BADPARAM"
MICRO = 1_000_000


def taken(engine: Fake) -> tuple[int, ...]:
    return engine.inits, engine.handles, engine.groups, engine.field_groups, engine.watches, engine.overlaps


def reasons(node: Node) -> dict[str, set[str]]:
    """Why fields are missing, by name."""
    found: dict[str, set[str]] = {}
    for gap in node.sweep().missing:
        found.setdefault(gap.field.name, set()).add(gap.reason)
    return found


# ---- connecting

ADDRESSES = {
    "10.1.2.3:6666": "10.1.2.3:6666 timeout_ms=5000 unix=0 persist=0",
    "unix:///run/nv-hostengine": "/run/nv-hostengine timeout_ms=5000 unix=1 persist=0",
    "[fd00::5]:5555": "[fd00::5]:5555 timeout_ms=5000 unix=0 persist=0",
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_engine_is_asked_where_it_is(address: str, dcgm_node: Start, engine: Fake) -> None:
    """Over TCP or a unix socket, and never for longer than somebody who looks would wait."""
    running = dcgm_node(models.h100(2), address=address, fields=FEW, sampling=Sampling(reuse=0, deadline=20))

    assert values(running.page(), TEMPERATURE) == {"0": 29, "1": 30}
    assert engine.last_connect == ADDRESSES[address]
    assert running.stop()
    assert taken(engine) == (0, 0, 0, 0, 0, 0)


def test_an_engine_of_its_own_samples_by_itself(
    dcgm_node: Start, engine: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an address DCGM runs in this process. It goes to its own folder, where no file of ours would be found."""
    here = Path.cwd()
    monkeypatch.setenv("DCGM_HOME_DIR", str(tmp_path))
    running = dcgm_node(models.h100(2).but(gone=True), address="", fields=FEW)

    assert values(running.page(), TEMPERATURE) == {"0": 29, "1": 30}
    assert engine.last_start == "mode=1 log=- severity=0 denied=0"
    assert Path.cwd() == here
    assert running.pipeline.sampler.release() is None
    assert taken(engine) == (0, 0, 0, 0, 0, 0)
    running.pipeline.sampler.resume()
    assert values(running.page(), TEMPERATURE) == {"0": 29, "1": 30}


def test_dcgm_3_is_asked_in_the_same_way(dcgm_node: Start) -> None:
    """Its structs are the same where an exporter uses them."""
    running = dcgm_node(models.a100_mig().but(release="3.3.9"), fields=(*FEW, "DCGM_FI_DEV_FB_USED", ACTIVE))
    running.page()
    page = running.page()

    assert running.sweep().facts.library_version == "3.3.9"
    assert {line.labels.get("GPU_I_ID") for line in lines_of(page) if line.name == ACTIVE} == {None, "7", "9", "5"}


# ---- watches


def test_all_fields_of_a_machine_are_few_groups(dcgm_node: Start, engine: Fake) -> None:
    """An engine has room for 64 groups and 64 lists of fields, 127 in each, and others want some of them."""
    running = dcgm_node(models.a100_mig(), fields=("all",), dcgm=Dcgm(address="h:1", interval=0.5))
    running.page()
    watches = engine.watched()

    assert engine.groups == 3  # GPUs, instances, and what can be profiled
    assert engine.field_groups == engine.watches == len(watches) <= 8
    assert all(len(watch.fields) <= 127 for watch in watches)
    plain = [watch for watch in watches if watch.keep_age < 600]
    assert {watch.interval_us for watch in plain} == {500_000}
    assert max(watch.keep_age for watch in plain) <= 2
    of_gpus = {field for watch in plain for field in watch.fields if (GPU, 0) in watch.entities}
    # XIDs and clock events are kept for longer, and of profiling fields only those are watched that the GPU has.
    unwatched = READABLE - of_gpus
    assert {id_ for id_ in unwatched if id_ < 9000} == {230, *range(1011, 1100)} & READABLE
    calls = "dcgmUnwatchFields", "dcgmFieldGroupDestroy", "dcgmGroupDestroy"
    undone = [engine.calls(call) for call in calls]
    of_instances = {field for watch in plain for field in watch.fields if watch.entities[0][0] == GPU_I}
    assert of_instances == {68, 90, 92, 93, 250, 251, 252, 253, 254}
    assert running.stop()
    assert taken(engine) == (0, 0, 0, 0, 0, 0)
    # An engine forgets whoever disconnects; that is no reason to leave it to that.
    assert [engine.calls(call) - before for call, before in zip(calls, undone, strict=True)] == [
        len(watches),
        len(watches),
        3,
    ]


def test_each_gpu_is_profiled_by_what_it_has(dcgm_node: Start) -> None:
    """dcgm-exporter asks GPU 0 alone: on a mixed node the others lose their fields, or get the watch refused."""
    running = dcgm_node(models.mixed(), fields=(TEMPERATURE, ACTIVE, "DCGM_FI_PROF_PIPE_INT_ACTIVE"))
    running.page()
    page = running.page()

    assert values(page, TEMPERATURE).keys() == {"0", "1", "2"}
    assert values(page, ACTIVE).keys() == {"1", "2"}
    assert values(page, "DCGM_FI_PROF_PIPE_INT_ACTIVE").keys() == {"2"}
    told = {(gap.device.index, gap.field.name, gap.gap) for gap in running.sweep().missing}
    assert told == {
        (0, ACTIVE, "unsupported"),
        (0, "DCGM_FI_PROF_PIPE_INT_ACTIVE", "unsupported"),
        (1, "DCGM_FI_PROF_PIPE_INT_ACTIVE", "unsupported"),
    }


def test_without_the_profiling_module_the_rest_is_there(dcgm_node: Start) -> None:
    """It is a package of its own, and not everybody has it."""
    running = dcgm_node(models.h100().but(no_profiling=True), fields=("default",))

    assert values(running.page(), TEMPERATURE) == {"0": 29}
    assert reasons(running)["DCGM_FI_PROF_DRAM_ACTIVE"] == {
        "dcgmProfGetSupportedMetricGroups: fakedcgm: DCGM_ST_MODULE_NOT_LOADED"
    }


def test_fields_that_an_older_engine_does_not_know_cost_only_themselves(dcgm_node: Start, engine: Fake) -> None:
    """It refuses a whole list for one of them, and says not which."""
    unknown = {153, 175, 1219, 1442}
    running = dcgm_node(models.h100().but(unknown=unknown, release="4.0.0"), fields=("device", "nvlink"))
    page = running.page()
    why = reasons(running)

    assert values(page, TEMPERATURE) == {"0": 29}
    assert values(page, POWER) == {"0": 68.92}
    for id_ in unknown:
        assert why[CATALOGUE[id_].name] == {f"DCGM 4.0.0 does not know this field, or has it on no GPU here: {REFUSED}"}
    assert sum("does not know" in reason for told in why.values() for reason in told) == len(unknown)
    assert engine.field_groups == engine.watches  # what was refused left nothing behind


def test_a_function_that_a_release_lacks_costs_what_it_is_for(dcgm_node: Start) -> None:
    """An error for one call is no reason to show nothing."""
    functions = ("dcgmGetGpuStatus", "dcgmGetGpuInstanceHierarchy", "dcgmHostengineVersionInfo")
    lacking = models.h100(2).but(errors=dict.fromkeys(functions, -20))
    running = dcgm_node(lacking, fields=FEW)

    assert values(running.page(), TEMPERATURE) == {"0": 29, "1": 30}
    assert running.sweep().facts.library_version == ""


def test_a_machine_without_a_gpu_is_well(dcgm_node: Start, engine: Fake) -> None:
    """There is nothing to watch, and nothing is wrong."""
    running = dcgm_node(models.none(), fields=FEW)
    running.page()

    assert running.pipeline.sampler.why_not_ready() is None
    assert engine.watches == 0
    running.show(models.h100(2))
    assert values(running.page(), TEMPERATURE) == {"0": 29, "1": 30}


# ---- MIG


def test_a_gpu_that_is_partitioned_anew_is_watched_anew(dcgm_node: Start, engine: Fake) -> None:
    """dcgm-exporter shows the instances of its start until it is restarted."""
    whole = models.a100_mig()
    running = dcgm_node(whole, fields=(*FEW, "DCGM_FI_DEV_FB_USED", ACTIVE))
    running.page()
    split = running.page()
    running.show(whole.with_gpu(0, instances=whole.gpus[0].instances[:1]))
    running.page()
    other = running.page()
    running.show(models.a100(2))
    running.page()
    off = running.page()

    def instances(page: str, name: str = ACTIVE) -> set[str | None]:
        return {
            line.labels.get("GPU_I_ID") for line in lines_of(page) if line.name == name and line.labels["gpu"] == "0"
        }

    assert instances(split) == instances(split, "DCGM_FI_DEV_FB_USED") == {"7", "9", "5"}
    assert instances(split, TEMPERATURE) == {None}
    assert instances(other) == {"7"}
    assert instances(off) == instances(off, "DCGM_FI_DEV_FB_USED") == {None}
    assert values(off, TEMPERATURE).keys() == {"0", "1"}
    assert (engine.groups, engine.field_groups) == (2, 2)


def test_an_instance_that_is_made_anew_under_its_old_numbers_is_another(dcgm_node: Start) -> None:
    """An engine and NVML use numbers again; its size and its UUID would be those of the one before."""
    small = models.a100_mig().with_instance(0, 0, fields={50: "1g.5gb", 54: "MIG-1"})
    large = small.with_instance(0, 0, profile=14, slices=2, fields={50: "2g.10gb", 54: "MIG-2"})
    running = dcgm_node(small, fields=("DCGM_FI_DEV_FB_USED",))
    before = values(running.page(), "DCGM_FI_DEV_FB_USED", by="GPU_I_PROFILE")
    running.show(large)
    after = values(running.page(), "DCGM_FI_DEV_FB_USED", by="GPU_I_PROFILE")

    assert ("1g.5gb" in before, "2g.10gb" in before) == (True, False)
    assert ("1g.5gb" in after, "2g.10gb" in after) == (False, True)
    assert {"MIG-1", "MIG-2"} & running.sweep().devices().keys() == {"MIG-2"}


def test_instances_that_cannot_be_listed_just_now_are_still_there(dcgm_node: Start, engine: Fake) -> None:
    """One late answer would show a GPU that is partitioned as one that is not, and have all be watched anew."""
    running = dcgm_node(models.a100_mig(), fields=(TEMPERATURE, "DCGM_FI_DEV_FB_USED"))
    before = lines_of(running.page())
    watches = engine.calls("dcgmWatchFields")
    running.show(models.a100_mig().but(errors={"dcgmGetGpuInstanceHierarchy": -11}))
    after = lines_of(running.page())

    of_gpus = [line for line in before if line.name.startswith("DCGM_")]
    assert sum("GPU_I_ID" in line.labels for line in of_gpus) == 3
    assert [line for line in after if line.name.startswith("DCGM_")] == of_gpus
    assert engine.calls("dcgmWatchFields") == watches


# ---- counts


def past(seconds: float) -> int:
    return int((time.time() + seconds) * MICRO)


def counted(page: str, name: str) -> dict[str, float]:
    return {
        line.labels["xid"]: line.value
        for line in lines_of(page)
        if line.name == name and line.labels["gpu"] == "0" and line.value
    }


def test_every_xid_is_counted_once(dcgm_node: Start) -> None:
    """A field has one value; the engine keeps all that there were. What was before the start is no event of now."""
    scenario = models.h100(2).with_xid(0, 31, at=past(-60))
    running = dcgm_node(scenario, fields=(TEMPERATURE, XID, COUNT, TOTAL))
    before = running.page()
    scenario = scenario.with_xid(0, 79, at=past(1)).with_xid(0, 79, at=past(2)).with_xid(0, 13, at=past(3))
    running.show(scenario)
    after = running.page()
    running.show(scenario.but(engine=2))
    again = running.page()
    running.show(scenario.but(engine=2).with_xid(0, 13, at=past(4)))
    last = running.page()

    assert values(before, XID) == {"0": 31, "1": 0}
    assert counted(before, COUNT) == counted(before, TOTAL) == {}
    assert values(after, XID) == {"0": 13, "1": 0}
    assert counted(after, COUNT) == counted(after, TOTAL) == {"79": 2, "13": 1}
    assert counted(again, TOTAL) == {"79": 2, "13": 1}  # another connection: nothing is counted twice
    assert counted(last, TOTAL) == {"79": 2, "13": 2}


def test_what_an_engine_with_another_clock_tells_is_counted(dcgm_node: Start) -> None:
    """A clock that was set right while the engine was away would leave an hour's XIDs out, and nobody would know."""
    machine = models.h100(1)
    running = dcgm_node(machine, fields=(TEMPERATURE, XID, TOTAL))
    running.page()
    running.show(machine.with_xid(0, 79, at=past(1)))
    before = running.page()
    running.show(machine.but(engine=2))
    running.page()
    running.show(machine.but(engine=2).with_xid(0, 13, at=past(-3600)))
    after = running.page()

    assert counted(before, TOTAL) == {"79": 1}
    assert counted(after, TOTAL) == {"79": 1, "13": 1}
    assert values(after, XID) == {"0": 13}


def test_what_is_left_of_the_same_engine_is_not_counted_again(dcgm_node: Start) -> None:
    """Over another connection, without the GPU that had the last XID: what it still tells is older, and known."""
    scenario = models.h100(2).with_xid(0, 31, at=past(1)).with_xid(1, 79, at=past(2))
    running = dcgm_node(models.h100(2), fields=(TEMPERATURE, XID, TOTAL))
    running.page()
    running.show(scenario)
    before = running.page()
    running.show(scenario.but(engine=2).with_gpu(1, gone=True))
    running.page()
    after = running.page()

    assert counted(before, TOTAL) == counted(after, TOTAL) == {"31": 1}


def test_clock_events_are_counted_by_the_engines_samples(dcgm_node: Start, engine: Fake) -> None:
    """At the pace of `counts.clock_interval`, which may be another one than that of the values."""
    fields = ("DCGM_EXP_CLOCK_EVENTS_COUNT", "DCGM_EXP_CLOCK_EVENTS_TOTAL")
    running = dcgm_node(models.h100(), fields=fields, counts=Counts(clock_interval=0.25))
    for reasons_, _ in ((1, ""), (1 | 4, ""), (4 | 0x40, ""), (1, "")):
        running.show(models.h100().with_gpu(0, fields={112: reasons_}))
        page = running.page()

    by = {name: values(page, name, by="clock_event") for name in fields}
    assert by[fields[1]] == {
        **dict.fromkeys(by[fields[1]], 0),
        "gpu_idle": 1,
        "power_cap": 1,
        "hw_thermal": 1,
    }
    assert by[fields[0]]["power_cap"] == 2
    assert {watch.interval_us for watch in engine.watched() if watch.fields == (112,)} == {250_000}


def test_without_the_samples_there_is_no_count(dcgm_node: Start) -> None:
    """A number that stands still would look like a quiet time."""
    lost = models.h100().but(errors={"dcgmGetValuesSince_v2": -11})
    running = dcgm_node(lost, fields=(TEMPERATURE, XID, TOTAL))
    page = running.page()
    told = {gap.field.name: gap.gap for gap in running.sweep().missing}
    running.show(models.h100())

    assert values(page, TEMPERATURE) == {"0": 29}
    assert not values(page, XID)
    assert told == {XID: "timeout", TOTAL: "timeout"}
    assert values(running.page(), XID) == {"0": 0}


UNTOLD: dict[str, tuple[Scenario, dict[str, str]]] = {
    "unsupported": (
        models.h100(2).with_gpu(0, fields=dict.fromkeys((230, 112), Blank.NOT_SUPPORTED)),
        {XID: "unsupported", TOTAL: "unsupported", CLOCKS: "unsupported"},
    ),
    "denied": (
        models.h100(2).with_gpu(0, fields=dict.fromkeys((230, 112), Code(-29))),
        {XID: "denied", TOTAL: "denied", CLOCKS: "denied"},
    ),
    "impossible": (
        models.h100(2).with_gpu(0, fields={230: 1 << 40, 112: -1}),
        {XID: "invalid", TOTAL: "invalid", CLOCKS: "invalid"},
    ),
    "not watched": (
        models.h100(2).with_gpu(0, errors={"dcgmGroupAddEntity": -1}),
        {XID: "failed", TOTAL: "failed", CLOCKS: "failed", TEMPERATURE: "failed"},
    ),
    # An XID is told when it happens: none just now is none.
    "late": (models.h100(2).with_gpu(0, fields=dict.fromkeys((230, 112), Code(-57))), {CLOCKS: "timeout"}),
}


@pytest.mark.parametrize("way", UNTOLD)
def test_what_is_not_told_of_a_gpu_is_not_counted_as_none(
    way: str, dcgm_node: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 0 would be a GPU without errors. The others are counted on, and it is again when it is told."""
    monkeypatch.setattr("otelgpu.sources.again.FIRST", 0.0)
    scenario, gaps = UNTOLD[way]
    running = dcgm_node(scenario, fields=(TEMPERATURE, XID, TOTAL, CLOCKS))
    page = running.page()
    told = {(gap.device.index, gap.field.name): gap.gap for gap in running.sweep().missing}

    assert told == {(0, name): gap for name, gap in gaps.items()}
    for name in (XID, TOTAL, CLOCKS):
        assert values(page, name).keys() == ({"1"} if name in gaps else {"0", "1"})
    running.show(models.h100(2))
    running.page()
    back = running.page()
    assert values(back, CLOCKS).keys() == {"0", "1"}


def test_who_cannot_wait_is_told_what_was_counted(dcgm_node: Start, engine: Fake) -> None:
    """It is there while a GPU is still read; nothing that was wanted is left out without a reason."""
    fields = (TEMPERATURE, XID, TOTAL, CLOCKS)
    running = dcgm_node(models.h100(2), fields=fields, sampling=Sampling(reuse=0, deadline=20))
    running.page()
    running.show(models.h100(2).with_gpu(0, hangs={"dcgmEntitiesGetLatestValues"}))
    glance = running.sweep(0.3)
    engine.quiet()
    running.show(models.h100(2))

    missing = {gap.field.name for gap in glance.missing if gap.device.index == 0}
    counted = {
        CATALOGUE[id_].name
        for id_, numbers in glance.numbers.items()
        if any(glance.series[key].device.index == 0 for key in numbers)
    }
    assert missing == {TEMPERATURE}
    assert counted == {XID, TOTAL, CLOCKS}


def test_the_health_of_a_gpu_is_judged_by_what_dcgm_tells(dcgm_node: Start) -> None:
    """By the same signs as with NVML: dcgm-exporter's own metric is there with both."""
    bad = models.h100().with_gpu(0, fields={395: 1, 311: 0, 346: 0, 396: 0})
    page = dcgm_node(bad, fields=("DCGM_EXP_GPU_HEALTH_STATUS",)).page()
    found = {
        line.labels["health_watch"]: (line.value, line.labels["health_error_code"])
        for line in lines_of(page)
        if line.name == "DCGM_EXP_GPU_HEALTH_STATUS"
    }

    told = {part: found[part] for part in ("MEM", "ALL")}
    assert told == {"MEM": (20, "DCGM_FR_ROW_REMAP_FAILURE"), "ALL": (0, "DCGM_FR_OK")}


# ---- other settings while it runs


def test_a_reload_watches_other_fields_over_the_same_connection(dcgm_node: Start, engine: Fake) -> None:
    """What the engine samples costs somebody: what nobody wants any more is given back."""
    running = dcgm_node(models.h100(), fields=(*FEW, ACTIVE))
    before = engine.calls("dcgmConnect_v2")
    settings = config(source=DCGM, dcgm=Dcgm(address="127.0.0.1:5555", interval=5), fields=("DCGM_FI_DEV_SM_CLOCK",))
    other = Pipeline(settings, {}, before=running.pipeline)
    other.take_over()
    other.go_on()
    running.pipeline = other
    page = running.page()

    assert values(page, "DCGM_FI_DEV_SM_CLOCK") == {"0": 345}
    assert not values(page, TEMPERATURE)
    assert engine.calls("dcgmConnect_v2") == before
    assert [(watch.fields, watch.interval_us) for watch in engine.watched()] == [((100,), 5_000_000)]


def test_auto_with_an_address_is_dcgm(dcgm_node: Start) -> None:
    """The variable of dcgm-exporter's image is enough."""
    running = dcgm_node(models.h100(), source=SourceChoice("auto"), fields=FEW)

    assert values(running.page(), TEMPERATURE) == {"0": 29}
    assert running.sweep().facts.name == "dcgm"


def test_an_address_that_is_not_asked_is_not_passed_over_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever gives both an engine and another source learns which of them holds."""
    config_ = config(SourceChoice("simulated", "t4"), dcgm=Dcgm(address="engine:5555"))
    make_source(config_, [CATALOGUE[150]])

    (told,) = [record.getMessage() for record in caplog.records if "dcgm" in record.getMessage()]
    assert told == "default: dcgm.address is passed over, as `source` is simulated"


def test_a_scrape_makes_few_calls_and_little_garbage(dcgm_node: Start, engine: Fake) -> None:
    """A value is 4 KB: 60 fields of 8 GPUs are two megabytes, which are filled anew and not made anew."""
    running = dcgm_node(models.h100(8), fields=("default",), sampling=Sampling(reuse=0))
    running.page()
    engine.reset_calls()
    running.page()

    assert engine.calls("dcgmEntitiesGetLatestValues") == 8
    assert engine.calls() == 8 + 8 + 3  # and the status of each, the devices, the instances, the XIDs
