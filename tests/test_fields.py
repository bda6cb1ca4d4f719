"""Every field that NVML can give, from the driver's answer to the page.

Rule 1: the GPU of these tests answers every question with another number, so that a mix-up of fields, links,
        directions or places shows on the page.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from otelgpu.config import Sampling
from otelgpu.fields import CATALOGUE, Level
from otelgpu.sources import again
from otelgpu.sources.again import Again
from otelgpu.sources.nvml.questions import FIELD_VALUES, RATES, READABLE, SUMS, XID_ERRORS
from otelgpu.sources.nvml.source import BESIDE
from otelgpu.sources.nvml.unreadable import unreadable
from tests.conftest import RECORDINGS, Golden
from tests.fakenvml import ALL_LINKS, Code, Fake, Scenario, Typed, models
from tests.fakenvml.everything import everything
from tests.faults.rig import missing
from tests.harness import Node, lines_of, series, values
from tests.test_page import OWN

Start = Callable[..., Node]

REFERENCE = RECORDINGS.parent / "reference" / "dcgm-fields.json"
ALL = tuple(CATALOGUE[id_].name for id_ in sorted(READABLE - {XID_ERRORS}))
NUMBERS = tuple(CATALOGUE[id_].name for id_ in sorted(READABLE - {XID_ERRORS}) if CATALOGUE[id_].is_numeric)
LABELS = tuple(CATALOGUE[id_].name for id_ in sorted(READABLE) if not CATALOGUE[id_].is_numeric)
PREFIXES = ("DCGM_", "OTELGPU_")  # of fields
AT_ONCE = Sampling(reuse=0, slow_interval=0)


def test_two_hundred_fields_and_more_can_be_read() -> None:
    """What a CSV file of a dashboard names is there on any GPU that has it, without DCGM."""
    assert set(CATALOGUE) >= READABLE
    assert len(READABLE) >= 470


def test_every_other_field_has_a_reason_and_none_is_stale() -> None:
    """Who asks for a field and gets nothing reads why in docs/metrics.md; a reason that no longer holds is a lie."""
    read = READABLE | BESIDE
    reasons = unreadable(read)

    assert set(reasons) | read == set(CATALOGUE)
    assert not set(reasons) & read
    with pytest.raises(ValueError, match=r"that can be read: \[450\]; neither read nor with a reason: \[150\]"):
        unreadable((read | {450}) - {150})
    of_ours = {id_ for id_ in reasons if CATALOGUE[id_].level in (Level.GPU, Level.GPU_I, Level.GPU_CI, Level.LINK)}
    numbers = {id_ for id_ in of_ours - set(range(700, 900)) if CATALOGUE[id_].is_numeric}
    assert numbers == {64, 450, *range(580, 593), 1509}  # of 460 and more numbers of GPUs, instances and their links


def test_every_field_the_source_claims_is_on_the_page(node: Start) -> None:
    """A row that answers nothing is dead; a field that is lost on the way is worse."""
    page = node(everything(), fields=ALL).settled_page()

    lines = [line for line in lines_of(page) if line.name.startswith(PREFIXES)]
    assert set(NUMBERS) - {line.name for line in lines} == set()
    assert {label for label in lines[0].labels if label.startswith("DCGM_")} == set(LABELS)


@pytest.mark.parametrize("compat", ["4.8.2", "4.9"])
def test_the_page_of_a_gpu_that_answers_everything(compat: str, node: Start, golden: Golden) -> None:
    """Each number says which answer of the driver it is: see tests/fakenvml/everything.py."""
    page = node(everything(), fields=NUMBERS, compat=compat).settled_page()

    shown = "".join(f"{line}\n" for line in page.splitlines() if not OWN.match(line) and not line.startswith("# HELP"))
    golden(f"page/everything-{compat}.txt", shown)


def test_the_texts_of_a_gpu_that_answers_everything(node: Start, golden: Golden) -> None:
    """Versions, serial numbers and places are labels: queries select by them."""
    page = node(everything(), fields=("DCGM_FI_DEV_GPU_TEMP", *LABELS)).page()

    golden("page/everything-texts.txt", "".join(f"{line}\n" for line in series(page)))


def test_the_page_of_a_driver_without_field_values(node: Start, golden: Golden) -> None:
    """What an old driver, or one that refuses the batch, answers with single calls is on the page all the same."""
    old = everything().with_gpu(0, errors={"nvmlDeviceGetFieldValues": 3})
    page = node(old, fields=NUMBERS).settled_page()

    shown = "".join(f"{line}\n" for line in page.splitlines() if line.startswith(PREFIXES))
    golden("page/everything-without-field-values.txt", shown)


def test_the_traffic_of_one_link_is_told_of_that_link(node: Start) -> None:
    """Eighteen links in two directions have 36 counters, and a field each: a mix-up would show the wrong cable."""
    scenario = everything()
    running = node(scenario, fields=ALL)
    running.settled_page()
    running.show(scenario.with_gpu(0, fields={(138, 3): 10**8, (139, 4): 10**8, (138, ALL_LINKS): 10**8}))
    page = running.settled_page()

    moving = {
        (line.name.removeprefix("DCGM_FI_DEV_NVLINK_"), line.labels.get("nvlink"))
        for line in lines_of(page)
        if "BANDWIDTH" in line.name or "THROUGHPUT_PER" in line.name
        if line.value > 0 and "C2C" not in line.name
    }
    assert moving == {
        ("BANDWIDTH_L3", None),
        ("BANDWIDTH_L4", None),
        ("TX_BANDWIDTH_L3", None),
        ("RX_BANDWIDTH_L4", None),
        ("TX_BANDWIDTH_TOTAL", None),
        ("BANDWIDTH_TOTAL", None),
        ("THROUGHPUT_PER_LINK", "3"),
        ("THROUGHPUT_PER_LINK", "4"),
        ("TX_THROUGHPUT_PER_LINK", "3"),
        ("RX_THROUGHPUT_PER_LINK", "4"),
    }


@pytest.mark.skipif(not REFERENCE.exists(), reason="reference/dcgm-fields.json is not beside this checkout")
def test_field_values_are_those_that_dcgm_asks_for() -> None:
    """DCGM's own table says which field value is behind a field; ours was written by hand."""
    known = {
        int(id_): row["nvml_field_id"]
        for id_, row in json.loads(REFERENCE.read_text())["fields"].items()
        if row.get("nvml_field_id")
    }
    ours: dict[int, set[int]] = {}
    for row in FIELD_VALUES:
        ours.setdefault(row.field_id, set()).add(row.nvml_id)

    compared = {id_: nvml_id for id_, nvml_id in known.items() if id_ in ours}
    assert len(compared) > 100
    assert {id_: nvml_id for id_, nvml_id in compared.items() if nvml_id not in ours[id_]} == {}


REASONS = tuple(
    f"DCGM_FI_DEV_CLOCKS_EVENT_REASON_{word}_NS"
    for word in ("SW_THERM_SLOWDOWN", "HW_THERM_SLOWDOWN", "HW_POWER_BRAKE_SLOWDOWN")
)
SMOOTHING = "DCGM_FI_DEV_PWR_SMOOTHING_PRIV_LVL"


@pytest.mark.parametrize(
    ("driver", "first", "smoothing"),
    [
        ("470.256.02", None, False),
        ("535.183.01", None, False),
        ("550.127.05", None, False),
        ("560.35.03", None, False),
        ("570.211.01", None, False),
        ("575.51.03", 251, False),
        ("580.65.06", 251, False),
        ("580.82.07", 269, True),
        ("580.105.08", 269, True),
        ("590.48.01", 269, True),
        ("610.57.04", 269, True),
        ("no version", None, False),
        (None, None, False),
    ],
)
def test_field_ids_that_moved_are_asked_where_the_driver_has_them(
    driver: str | None,
    first: int | None,
    smoothing: bool,  # noqa: FBT001
    node: Start,
) -> None:
    """Drivers 575.51 to 580.65 have power smoothing where others have throttling: better absent than wrong."""
    page = node(everything().but(driver=driver), fields=(*REASONS, SMOOTHING)).page()

    expected = [] if first is None else [1000.0 * (first + place) for place in range(3)]
    if first == 251:
        expected = [1.0, 2.0, 1.0]  # what this GPU answers to these
    assert [number for name in REASONS for number in values(page, name).values()] == expected
    assert bool(values(page, SMOOTHING)) is smoothing


def test_what_was_refused_is_asked_again(node: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU in a reset, or a driver that starts, says "not supported" to what it answers a moment later."""
    monkeypatch.setattr(again, "FIRST", 0.0)
    names = ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_SM_CLOCK")
    well = models.h100()
    ill = well.with_gpu(0, errors={"nvmlDeviceGetPowerUsage": 3, "nvmlGpmSampleGet": 3}, fields={82: None})
    running = node(ill, fields=names)
    assert missing(running.settled_page()) == {"unsupported": 3}
    running.show(well)
    running.settled_page()
    page = running.settled_page()

    assert missing(page) == {}
    assert [len(values(page, name)) for name in names] == [1, 1, 1, 1]


def test_a_better_way_is_tried_again(node: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old question about memory counts what is reserved as used: nobody is to be left with it for ever."""
    monkeypatch.setattr(again, "FIRST", 0.0)
    well = models.h100()
    running = node(well.with_gpu(0, errors={"nvmlDeviceGetMemoryInfo_v2": 3}), fields=("DCGM_FI_DEV_FB_USED",))
    assert values(running.page(), "DCGM_FI_DEV_FB_USED") == {"0": 480}
    running.show(well)

    assert values(running.page(), "DCGM_FI_DEV_FB_USED") == {"0": 0}


@pytest.mark.parametrize("first", ["value", "function"])
def test_a_total_keeps_to_the_counter_that_answered_first(
    first: str, node: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver counts energy twice; a step from one count to the other is energy that nobody used, or a reset."""
    monkeypatch.setattr(again, "FIRST", 0.0)
    name, function = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "nvmlDeviceGetTotalEnergyConsumption"

    def counted(value: int | None, called: int | None) -> Scenario:
        return models.h100().with_gpu(0, fields={83: value}, answers={function: called})

    scenes = [(5000, 900), (None, 9000), (None, 9001), (5001, 9002)]
    running = node(
        counted(*scenes[0]) if first == "value" else counted(None, 900), fields=(name, "DCGM_FI_DEV_GPU_TEMP")
    )
    seen = []
    for scene in scenes:
        running.show(counted(*scene))
        seen.append(list(values(running.page(), name).values()))

    assert seen == ([[5000], [], [], [5001]] if first == "value" else [[900], [9000], [9001], [9002]])


def test_mig_that_was_refused_is_asked_again(node: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The instances of a GPU are not to be missing because it was asked at the wrong moment."""
    monkeypatch.setattr(again, "FIRST", 0.0)
    split = models.h100_mig()
    running = node(split.with_gpu(0, errors={"nvmlDeviceGetMigMode": 3}), fields=("DCGM_FI_DEV_FB_TOTAL",))
    assert set(values(running.page(), "DCGM_FI_DEV_FB_TOTAL", by="GPU_I_ID")) == {""}
    running.show(split.with_gpu(0, errors={"nvmlDeviceGetMigMode": 15}))  # lost, just when it is asked again
    running.page()
    running.show(split)

    assert set(values(running.page(), "DCGM_FI_DEV_FB_TOTAL", by="GPU_I_ID")) == {"2", "3", "9", "10"}


def test_rates_outlive_a_second_look(node: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of counters has nothing to do with what was refused beside them."""
    monkeypatch.setattr(again, "FIRST", 0.0)
    names = ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DEV_FAN_SPEED")
    running = node(models.h100(), fields=names)

    for _ in range(3):
        assert values(running.settled_page(), names[0]) == {"0": 0}
        assert missing(running.page()) == {"unsupported": 1}


def test_the_waits_after_a_refusal_grow() -> None:
    """What a GPU does not have costs less and less; what it had before is looked for soon."""
    now = [0.0]
    waits = Again(lambda: now[0])

    assert not waits.is_due()
    waited = []
    for _ in range(9):
        waits.refused()
        waits.refused()
        began = now[0]
        while not waits.is_due():
            now[0] += 1.0
        waited.append(now[0] - began)
    assert waited == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    waits.refused(afresh=True)
    now[0] += 30.0
    assert waits.is_due()


@pytest.mark.parametrize(("sampling", "seen"), [(Sampling(reuse=0), 1), (AT_ONCE, 4)])
def test_what_seldom_changes_is_seldom_asked(sampling: Sampling, seen: int, node: Start, fake: Fake) -> None:
    """A limit that an administrator sets is not worth a call in each sweep; `slow_interval: 0` says that it is."""
    name, function = "DCGM_FI_DEV_POWER_MGMT_LIMIT", "nvmlDeviceGetPowerManagementLimit"
    scenario = everything().with_gpu(0, fields={192: None})
    running = node(scenario, fields=(name,), sampling=sampling)
    found: list[float] = []
    for number in range(4):
        running.show(scenario.with_gpu(0, answers={function: 160_500 + 1000 * number}))
        found += values(running.page(), name).values()

    assert found == ([160.5] * 4 if seen == 1 else [160.5, 161.5, 162.5, 163.5])
    assert fake.calls(function) == (1 if seen == 1 else running.pipeline.sampler.sweeps)


ODD: Mapping[str, tuple[Mapping[str, Any], dict[str, float | None]]] = {
    "platform without slot and tray": (
        {"answers": {"nvmlDeviceGetPlatformInfo": (255, 255, 1, 1, 6)}},
        {
            "DEV_PLATFORM_CHASSIS_SLOT_NUMBER": None,
            "DEV_PLATFORM_TRAY_INDEX": None,
            "DEV_PLATFORM_HOST_ID": 1,
            "DEV_PLATFORM_MODULE_ID": 6,
        },
    ),
    "no platform": (
        {"answers": {"nvmlDeviceGetPlatformInfo": None, "nvmlDeviceGetModuleId": 5}},
        {"DEV_PLATFORM_HOST_ID": None, "DEV_PLATFORM_MODULE_ID": 5},
    ),
    "no fabric": (
        {"answers": {"nvmlDeviceGetGpuFabricInfoV": (0, 0, 0, 0, 0)}},
        {"DEV_FABRIC_MANAGER_STATUS": None, "DEV_FABRIC_CLIQUE_ID": None, "DEV_FABRIC_HEALTH_SUMMARY": None},
    ),
    "fabric that is being joined": (
        {"answers": {"nvmlDeviceGetGpuFabricInfoV": (2, 0, 0, 0, 0)}},
        {"DEV_FABRIC_MANAGER_STATUS": 2, "DEV_FABRIC_MANAGER_ERROR_CODE": None, "DEV_FABRIC_CLIQUE_ID": None},
    ),
    "fabric that could not be joined": (
        {"answers": {"nvmlDeviceGetGpuFabricInfoV": (3, 999, 0, 0, 2)}},
        {"DEV_FABRIC_MANAGER_STATUS": 4, "DEV_FABRIC_MANAGER_ERROR_CODE": 999, "DEV_FABRIC_HEALTH_SUMMARY": 2},
    ),
    "fabric without a summary": (
        {"answers": {"nvmlDeviceGetGpuFabricInfoV": (3, 0, 7, 2)}},
        {"DEV_FABRIC_MANAGER_STATUS": 3, "DEV_FABRIC_CLIQUE_ID": 7, "DEV_FABRIC_HEALTH_SUMMARY": None},
    ),
    "corrupt InfoROM": ({"errors": {"nvmlDeviceValidateInforom": 14}}, {"DEV_INFOROM_CONFIG_VALID": 0}),
    "InfoROM that cannot be tested": ({"errors": {"nvmlDeviceValidateInforom": 3}}, {"DEV_INFOROM_CONFIG_VALID": None}),
    "memory beyond repair, by nvml.h": (
        {"answers": {"nvmlDeviceGetUnrepairableMemoryFlag_v1": (1, 0)}},
        {"DEV_MEMORY_UNREPAIRABLE_FLAG": 1},
    ),
    "memory beyond repair, with a version": (
        {"answers": {"nvmlDeviceGetUnrepairableMemoryFlag_v1": (1, 1)}},
        {"DEV_MEMORY_UNREPAIRABLE_FLAG": 1},
    ),
    "good memory, by nvml.h": (
        {"answers": {"nvmlDeviceGetUnrepairableMemoryFlag_v1": (0, 0)}},
        {"DEV_MEMORY_UNREPAIRABLE_FLAG": 0},
    ),
    "good memory, with a version": (
        {"answers": {"nvmlDeviceGetUnrepairableMemoryFlag_v1": (0, 1)}},
        {"DEV_MEMORY_UNREPAIRABLE_FLAG": 0},
    ),
    "limits of nothing": (
        {"answers": {("nvmlDeviceGetTemperatureThreshold", 2): 0}},
        {"DEV_MEM_MAX_OP_TEMP": None, "DEV_SLOWDOWN_TEMP": 158},
    ),
    "an application clock without an SM clock": (
        {"answers": {("nvmlDeviceGetApplicationsClock", 1): None}},
        {"DEV_APP_SM_CLOCK": 1110},
    ),
    "ids of a GPU that is gone": (
        {"pci_ids": (0xFFFFFFFF, 0xF29710B0)},
        {"DEV_PCI_COMBINED_ID": None, "DEV_PCI_SUBSYS_ID": 0xF29710B0},
    ),
    "no driver 510 yet": (
        {"answers": {"nvmlDeviceGetMemoryInfo_v2": None, "nvmlDeviceGetMemoryInfo": (80 << 30, 60 << 30, 20 << 30)}},
        {"DEV_FB_USED_PERCENT": 0.25, "DEV_FB_RESERVED": None},
    ),
    "unified memory": (
        {"answers": {"nvmlDeviceGetMemoryInfo_v2": (0, 0, 0, 0)}},
        dict.fromkeys(("DEV_FB_TOTAL", "DEV_FB_FREE", "DEV_FB_USED", "DEV_FB_RESERVED", "DEV_FB_USED_PERCENT")),
    ),
    "one link without the counter": ({"fields": {(201, 17): None}}, {"DEV_NVLINK_COUNT_TX_PACKETS": 3_417_136}),
    "no link with the counter": (
        {"fields": dict.fromkeys((201, *((201, link) for link in range(18))))},
        {"DEV_NVLINK_COUNT_TX_PACKETS": None},
    ),
    "links without an error": (
        {"fields": {(222, link): 0 for link in range(18)}},
        {"DEV_NVLINK_COUNT_SYMBOL_BER": 0, "DEV_NVLINK_COUNT_SYMBOL_BER_FLOAT": 0.0},
    ),
    "an error rate above one": (
        {"fields": {(220, 5): 0x800}},
        {"DEV_NVLINK_COUNT_EFFECTIVE_BER": 0x800, "DEV_NVLINK_COUNT_EFFECTIVE_BER_FLOAT": None},
    ),
    "the worst link is not that with the highest code": (
        {"fields": {(220, 5): 0x203, (220, 6): 0xF05}},
        {"DEV_NVLINK_COUNT_EFFECTIVE_BER": 0x203, "DEV_NVLINK_COUNT_EFFECTIVE_BER_FLOAT": 0.002},
    ),
    "an error rate of all ones": (
        {"fields": {(220, 5): 0xFFFFFFFF}},
        {"DEV_NVLINK_COUNT_EFFECTIVE_BER": None, "DEV_NVLINK_COUNT_EFFECTIVE_BER_FLOAT": None},
    ),
    "one link of a sum below zero": ({"fields": {(201, 3): -1}}, {"DEV_NVLINK_COUNT_TX_PACKETS": None}),
    "samples that were never taken": (
        {"answers": {("nvmlDeviceGetSamples", 1): (0, 7, 0, 7), ("nvmlDeviceGetSamples", 2): ()}},
        {"DEV_GPU_UTIL_SAMPLES": None, "DEV_MEM_COPY_UTIL_SAMPLES": None},
    ),
    "a sample that cannot be": (
        {"answers": {("nvmlDeviceGetSamples", 1): (1, 101)}},
        {"DEV_GPU_UTIL_SAMPLES": None, "DEV_MEM_COPY_UTIL_SAMPLES": 10},
    ),
    "error rates as doubles": (
        {"fields": {(220, link): Typed("f64", 0x203) for link in range(18)}},
        {"DEV_NVLINK_COUNT_EFFECTIVE_BER": 0x203, "DEV_NVLINK_COUNT_EFFECTIVE_BER_FLOAT": 0.002},
    ),
    "one link in trouble": ({"fields": {(201, 17): Code(999)}}, {"DEV_NVLINK_COUNT_TX_PACKETS": None}),
    "no NVLink": ({"fields": {91: 0}}, {"DEV_NVLINK_COUNT_TX_PACKETS": None, "DEV_NVLINK_GET_STATE": None}),
    "links that are not counted": ({"fields": {91: None}}, {"DEV_NVLINK_GET_STATE": None}),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_answers_are_told_as_what_they_mean(name: str, node: Start) -> None:
    """A code that means "unknown" is no number, and an error code that means "no" is one."""
    changes, expected = ODD[name]
    fields = tuple(f"DCGM_FI_{field}" for field in expected)
    page = node(everything().with_gpu(0, **changes), fields=fields).page()

    shown = {line.name.removeprefix("DCGM_FI_"): line.value for line in lines_of(page) if line.name in fields}
    assert shown == {field: number for field, number in expected.items() if number is not None}
    assert sum(missing(page).values()) == sum(number is None for number in expected.values())


def test_no_field_value_of_all_ones_is_a_number(node: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A device that is gone answers all ones on the bus: each field drops it, counts it, and says so once."""
    scenario, link_count = everything(), 91
    ones = {key: 2**64 - 1 for key, number in scenario.gpus[0].fields.items() if key != link_count}
    # The links beyond the twelfth have their errors from a function alone.
    gone = scenario.with_gpu(0, fields=ones, errors={"nvmlDeviceGetNvLinkErrorCounter": 3})
    ids = {row.field_id for row in FIELD_VALUES} | {row.field_id for row in RATES} | {row.field_id for row in SUMS}
    fields = {CATALOGUE[id_].name for id_ in ids}
    running = node(gone, fields=(*sorted(fields), "DCGM_FI_DEV_SM_CLOCK"))
    running.settled_page()
    page = running.settled_page()

    assert {line.name for line in lines_of(page) if line.name.startswith(PREFIXES)} == {"DCGM_FI_DEV_SM_CLOCK"}
    assert set(values(page, "otelgpu_values_dropped_total", by="field")) == fields
    logged = [record.getMessage() for record in caplog.records if "is dropped" in record.getMessage()]
    assert {name: sum(f" {name} is dropped" in line for line in logged) for name in fields} == dict.fromkeys(fields, 1)


def test_a_link_that_answers_garbage_is_logged_once(node: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Seventeen other links are well, which says nothing of the one that is not: no two lines in each sweep."""
    caplog.set_level("INFO")
    field = "DCGM_FI_DEV_NVLINK_GET_STATE"
    running = node(everything().with_gpu(0, fields={(165, 9): Typed("i32", -1)}), fields=(field,))
    for _ in range(4):
        page = running.page()

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if field in record.getMessage()]

    assert len(values(page, field, "nvlink")) == 17
    assert len(told()) == 1
    running.show(everything())
    running.page()
    assert len(values(running.page(), field, "nvlink")) == 18
    assert told()[1:] == [f"{everything().gpus[0].uuid}: {field} can be true again"]


def test_a_sum_over_links_never_goes_back(node: Start) -> None:
    """A link that stops answering would take its count out of the sum, which would look like a reset."""
    name = "DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES"
    running = node(everything(), fields=(name,))
    whole = values(running.page(), name)
    running.show(everything().with_gpu(0, fields={(202, 3): None}))
    assert not values(running.page(), name)
    assert missing(running.page()) == {"failed": 1}
    running.show(everything())

    assert values(running.page(), name) == whole


def test_a_driver_that_refuses_newer_metrics_gives_the_older_ones(node: Start) -> None:
    """Before they were invented a request that names them may fail as a whole."""
    old = everything().with_gpu(0, answers={"nvmlGpmMetricsGet": 98})
    names = ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_NVLINK_L17_RX_BYTES", "DCGM_FI_PROF_SM_CYCLES_ACTIVE_TOTAL")
    page = node(old, fields=names).settled_page()

    assert [len(values(page, name)) for name in names] == [1, 1, 0]
    assert missing(page) == {"unsupported": 1}


def test_each_link_is_a_series(node: Start) -> None:
    """One field, eighteen links: the link is a label on the page and an attribute elsewhere."""
    state = "DCGM_FI_DEV_NVLINK_GET_STATE"
    scenario = everything().with_gpu(0, fields={91: 4})
    dcgm = values(node(scenario, fields=(state,)).page(), state, by="nvlink")
    other = node(scenario, fields=(state,), naming="semconv").page()

    assert dcgm == {"0": 0, "1": 1, "2": 2, "3": 3}
    assert values(other, "hw_gpu_nvidia_link_state", by="hw_gpu_nvidia_link") == dcgm


def test_an_instance_says_how_it_is_chosen(node: Start) -> None:
    """CUDA_VISIBLE_DEVICES of a job in a MIG instance is the instance's UUID; the GPU as a whole cannot be chosen."""
    name = "DCGM_FI_DEV_CUDA_VISIBLE_DEVICES_STR"
    page = node(models.h100_mig(), fields=("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_TEMP", name)).page()
    labels = {line.labels.get("GPU_I_ID"): line.labels.get(name) for line in lines_of(page) if "DCGM" in line.name}

    assert labels.pop(None) is None
    assert set(labels) == {"2", "3", "9", "10"}
    assert all(text is not None and text.startswith("MIG-") for text in labels.values())


def test_values_travel_in_few_calls_and_none_is_endless(node: Start, fake: Fake) -> None:
    """All fields of a GPU with eighteen links are some eight hundred values; those on by default are ten."""
    for fields, calls in ((("default",), 1), (NUMBERS, 7)):
        running = node(everything(), fields=fields)
        running.settled_page()
        fake.reset_calls()
        running.page()

        assert fake.calls("nvmlDeviceGetFieldValues") == calls
        running.stop()


@pytest.mark.parametrize("name", ["h100", "b200", "a100", "t4", "rtx_3090"])
def test_the_default_fields_take_no_more_calls_than_ever(name: str, node: Start, fake: Fake) -> None:
    """More that can be asked is no reason to ask more of a driver of which nothing more is wanted."""
    running = node(models.MAKERS[name]())
    running.settled_page()
    fake.reset_calls()
    running.settled_page()

    assert fake.calls(gpu=0) <= 13


def test_xid_events_that_were_refused_are_asked_for_again(node: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that starts, or rights that are given later, must not cost the XIDs until otelgpu is started anew."""
    monkeypatch.setattr(again, "FIRST", 0.0)
    name = "DCGM_FI_DEV_XID_ERRORS"
    running = node(models.h100().with_gpu(0, errors={"nvmlDeviceRegisterEvents": 3}), fields=(name,))
    assert not values(running.page(), name)
    running.show(models.h100().with_gpu(0, errors={"nvmlDeviceRegisterEvents": 999}))
    assert missing(running.page()) == {"failed": 1}  # and the refusal before is no longer told
    running.show(models.h100())

    assert values(running.page(), name) == {"0": 0}


def test_the_states_of_links_travel_with_the_other_values(node: Start, fake: Fake) -> None:
    """Eighteen links are not worth eighteen calls where the driver has their states as field values."""
    node(everything(), fields=("DCGM_FI_DEV_NVLINK_GET_STATE",)).page()

    assert fake.calls("nvmlDeviceGetNvLinkState") == 0
