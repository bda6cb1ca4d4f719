"""Reload in this process: other settings over the fake driver, and what the page and a collector have of it.

Rule 1: what the page has to look like after a reload is what it is after a start with those settings.
Rule 2: the reload is the service's own, but that the test calls it; signals and files are in test_reload_process.py.
"""

import gc
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider

from otelgpu.config import Config, load
from otelgpu.config.given import Files
from otelgpu.errors import ConfigError, StartError
from otelgpu.export.page import Format
from otelgpu.pipeline import Pipeline
from otelgpu.reload import NEEDS_RESTART, LastReload, Reload, Rereading
from tests.fakenvml import Fake, Process, Scenario, models
from tests.fakeproc import FakeProc, pod_path
from tests.faults.rig import check_truth, distinct, up
from tests.harness import ROOT, Node, lines_of, patient, series, until, values
from tests.push.collectors import Answer, Collector, Point, collector
from tests.test_processes import UTILIZATION, sample

MIB = models.MIB
PAIR = distinct(models.h100(2))
NAMES = {gpu.uuid for gpu in PAIR.gpus}
TEMPERATURE, POWER, USED = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED"
PROFILED = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
XIDS, CLOCKS = "DCGM_EXP_XID_ERRORS_TOTAL", "DCGM_EXP_CLOCK_EVENTS_TOTAL"
OWNED = "otelgpu_owner_energy_joules_total"
ENERGY = "nvmlDeviceGetTotalEnergyConsumption"
REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
BASE = "hostname: node-1\nsampling: {reuse: 0, deadline: 10}\n"
FEW = f"{BASE}fields: [{TEMPERATURE}, {POWER}]\n"


@dataclass
class Rig:
    """A node whose settings stand in a file."""

    fake: Fake
    path: Path
    scenario: Scenario
    text: str
    files: Files = field(default_factory=dict)
    last: LastReload = field(default_factory=LastReload)
    hooks: list[Callable[[], None]] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)  # of the next reloads

    def __post_init__(self) -> None:
        self.path.write_text(self.text, encoding="utf-8")
        self.fake.show(self.scenario)
        config = self._read()
        self.last.succeeded(self.files)
        self.node = Node(self.fake, config, reloads=self.last)
        first = self.node.pipeline
        for way_out in first.ways_out():
            way_out.start()
        self.reloading: Reload[Pipeline, Pipeline] = Reload(
            first,
            first,
            Rereading(self._read, self.files, hooks=self.hooks),
            build=lambda config, before: Pipeline(config, {}, before=before, reloads=self.last),
            swap=lambda pipeline, _: pipeline,
            last=self.last,
        )

    def _read(self) -> Config:
        if self.faults:
            raise self.faults.pop()
        return load(environ={}, config_path=str(self.path), files=self.files)

    def reload(self, text: str | None = None) -> str:
        """Reload, with another text of the file; return the page, of the sweep that the reload has made."""
        if text is not None:
            self.path.write_text(text, encoding="utf-8")
        self.reloading.reload()
        self.node.pipeline = self.reloading.site()
        return self.node.page(sweep=False)

    def stop(self) -> None:
        self.reloading.stop(5)


Start = Callable[..., Rig]


@pytest.fixture
def start(fake: Fake, tmp_path: Path) -> Iterator[Start]:
    """Start nodes: `start(scenario, text of the settings)`. All are stopped afterwards."""
    started: list[Rig] = []

    def begin(scenario: Scenario, text: str = FEW) -> Rig:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Rig(fake, folder / "otelgpu.yaml", scenario, text))
        return started[-1]

    yield begin
    fake.release()
    with fake.hurried():
        for rig in started:
            rig.stop()


JUDGED = ("DCGM_EXP_P2P_STATUS", "DCGM_EXP_GPU_HEALTH_STATUS")
CSV = f"{POWER}, gauge, Power.\n{TEMPERATURE}, label, As a label.\n"
OTHER_SETTINGS = {
    "fields": f"{BASE}fields: [{', '.join((USED, PROFILED, XIDS, CLOCKS, *JUDGED))}]\n",
    "no-fields": f"{BASE}fields: [none]\n",
    "a-csv-file": f"{BASE}fields: [CSV]\n",
    "labels": f"{FEW}labels: {{rack: a}}\n",
    "hostname": FEW.replace("node-1", "node-2"),
    "compat": f"{FEW}compat: 4.9\n",
    "devices": f"{FEW}devices: [1]\n",
    "semconv": f"{FEW}naming: semconv\n",
    "repeat": f"{FEW}mig: {{parent_values: repeat}}\n",
}


@pytest.mark.parametrize("what", OTHER_SETTINGS)
def test_the_page_is_that_of_a_start_with_the_new_settings(what: str, start: Start, tmp_path: Path) -> None:
    """And that of a start with the old ones when they are back: nothing of either is left in the other."""
    scenario = models.h100_mig() if what == "repeat" else PAIR
    (tmp_path / "fields.csv").write_text(CSV, encoding="utf-8")
    text = OTHER_SETTINGS[what].replace("CSV", str(tmp_path / "fields.csv"))
    rig = start(scenario)
    before = shown(rig.node.page())
    rig.reload(text)
    rig.node.settled_page()
    after = shown(rig.node.page())
    back = shown(rig.reload(FEW))
    fresh = start(scenario, text)
    fresh.node.settled_page()
    expected = shown(fresh.node.page())

    assert after == expected
    assert back == before
    assert after != before


def shown(page: str) -> list[str]:
    """The lines about GPUs, without values that go on."""
    moving = ("otelgpu_process", "otelgpu_s", "otelgpu_config", "otelgpu_gpu_lost")
    return [line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith(moving) and line[:1] != "#"]


def test_nothing_that_counts_goes_back_or_is_counted_twice(start: Start, tmp_path: Path) -> None:
    """XIDs that come while it reloads, clock events, the energy of owners, and what is counted of otelgpu itself."""
    (tmp_path / "proc").mkdir()
    proc = FakeProc(tmp_path / "proc")
    proc.run(100, pod_path(1))
    text = (
        f"{BASE}fields: [{XIDS}, {CLOCKS}]\ncounts: {{clock_interval: 0.1}}\n"
        f"processes: {{by: pod, proc_root: {tmp_path / 'proc'}}}\n"
    )
    scenario = PAIR.with_gpu(
        0,
        answers={REASONS: 0, ENERGY: 5000, UTILIZATION: sample(100, 50)},
        fields={83: 5000},
        processes=(Process(100, 1 << 30),),
    )
    rig = start(scenario, text)
    rig.node.page()
    came, over = 0, threading.Event()
    before = 0.0
    now = scenario

    def happen() -> None:
        nonlocal came, now
        while not over.wait(0.02) and came < 30:
            came += 1
            now = now.with_xid(0, 31)
            rig.node.show(now)

    thread = threading.Thread(target=happen)
    thread.start()
    pages = [rig.reload(f"{text}labels: {{rack: r{number}}}\n") for number in range(8)]
    over.set()
    thread.join()
    rig.node.show(now.with_gpu(0, answers={REASONS: 4, ENERGY: 9000}, fields={83: 9000}).with_xid(0, 31))
    until(lambda: of(rig.node.page(), XIDS, xid="31") == [came + 1], "every XID, once")
    until(lambda: of(rig.node.page(), CLOCKS, clock_event="power_cap") == [1], "the clock event")
    energy = of(rig.node.page(), OWNED)
    sweeps = values(rig.reload(text), "otelgpu_sweeps_total")[""]
    for page in pages:
        (count,) = of(page, XIDS, xid="31") or [0.0]
        assert count >= before
        before = count

    assert came > 0
    assert sum(energy) == 9  # all that the GPU has used: 5 before it was first seen, which are nobody's, and 4
    assert 5 in energy
    assert of(rig.node.page(), CLOCKS, clock_event="power_cap") == [1]
    assert of(rig.node.page(), OWNED) == energy
    assert sweeps > 8


def of(page: str, name: str, **labels: str) -> list[float]:
    """The values of a family on GPU 0 with these labels."""
    wanted = {"gpu": "0"} | labels
    return [line.value for line in lines_of(page) if line.name == name and wanted.items() <= line.labels.items()]


def test_no_page_lacks_anything_while_it_reloads(start: Start) -> None:
    """A gap in a rate wakes somebody up: profiling values too, which need two sweeps, are on every page."""
    text = f"{BASE}fields: [{TEMPERATURE}, {PROFILED}]\n"
    rig = start(PAIR, text)
    rig.node.page()
    rig.node.settled_page()
    lacking: list[str] = []
    made, over = threading.Event(), threading.Event()

    def scrape() -> None:
        while not over.is_set():
            pipeline = rig.reloading.site()
            snapshot = pipeline.sampler.refresh()
            shown_now = snapshot is not None and pipeline.is_fresh(snapshot)
            page = pipeline.page(snapshot, Format.TEXT, shown=shown_now).decode()
            if len(series(page, TEMPERATURE)) != 2 or len(series(page, PROFILED)) != 2:
                lacking.append(page)
            made.set()

    threads = [threading.Thread(target=scrape) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(10):
        made.clear()
        rig.reload(text.replace("]", f", {POWER if number % 2 else USED}]"))
        assert made.wait(20)
    over.set()
    for thread in threads:
        thread.join()

    assert not lacking


def test_wrong_settings_change_nothing_and_are_all_told(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody saves half an edit: dcgm-exporter 4.8.2 would end here."""
    rig = start(PAIR)
    before = series(rig.node.page())
    good = rig.last.good_unix
    page = rig.reload(f"{FEW}labels: {{1x: a}}\notlp: {{interval: never}}\n")

    assert series(page) == before
    assert [record.getMessage() for record in caplog.records if record.name == "otelgpu.reload"] == [
        f"{rig.path}:4: labels.1x: a label name is letters, digits and _, and no digit comes first",
        f'{rig.path}:5: otlp.interval: expected a number of seconds, got "never"',
        "not reloaded: the settings are wrong; those before stay in force",
    ]
    assert values(page, "otelgpu_config_last_reload_successful") == {"": 0}
    assert values(page, "otelgpu_config_last_reload_success_timestamp_seconds") == {"": good}

    page = rig.reload(FEW)
    assert values(page, "otelgpu_config_last_reload_successful") == {"": 1}
    assert values(page, "otelgpu_config_last_reload_success_timestamp_seconds")[""] > good


def test_files_are_shown_with_what_tells_their_content(start: Start, tmp_path: Path) -> None:
    """So that a rollout can be followed on all nodes: what sha256sum says, cut."""
    csv = tmp_path / "fields.csv"
    csv.write_bytes(b"DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\n")
    rig = start(PAIR, f"{BASE}fields: [{csv}]\n")
    infos = [line for line in lines_of(rig.node.page()) if line.name == "otelgpu_config_info"]

    assert {line.labels["source"]: line.labels["hash"] for line in infos} == {
        str(rig.path): rig.files[str(rig.path)],
        str(csv): "60152c2107d70074",
    }


def test_what_needs_a_restart_is_named_and_the_rest_applied(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody who has changed the port would else look for a fault in the network."""
    rig = start(PAIR)
    page = rig.reload(f"{FEW}labels: {{rack: b}}\nserver: {{listen: [':9999']}}\nsource: simulated:1xt4\n")

    assert {line.labels["rack"] for line in lines_of(page) if line.name == TEMPERATURE} == {"b"}
    assert check_truth(page) == NAMES
    assert [record.getMessage() for record in caplog.records if "restart" in record.getMessage()] == [
        f"{rig.path}:6: source needs a restart; the rest is applied",
        f"{rig.path}:5: server.listen needs a restart; the rest is applied",
    ]


def test_what_needs_a_restart_stands_in_the_readme() -> None:
    """Somebody who plans a change reads it there."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = readme.partition("What needs a restart is named in the log")[2].partition("; so do variables")[0]

    assert re.findall(r"`([a-z_.]+)`", listed) == list(NEEDS_RESTART)


def test_a_gpu_that_hangs_keeps_no_reload_and_costs_no_thread(start: Start, fake: Fake) -> None:
    """The reloads of a month on a node with one sick GPU; when its call returns it is read as it is wanted by then."""
    text = FEW.replace("deadline: 10", f"deadline: {patient(0.5):g}")
    rig = start(PAIR, text)
    rig.node.show(PAIR.with_gpu(1, hangs={"nvmlDeviceGetTemperatureV", "nvmlDeviceGetPowerUsage"}))
    rig.node.page()
    threads = threading.active_count()
    began = time.monotonic()
    for number in range(20):
        page = rig.reload(f"{text}labels: {{n: x{number}}}\n")
        assert check_truth(page) == {PAIR.gpus[0].uuid}
        assert sorted(up(page).values()) == [0, 1]
    seconds = time.monotonic() - began

    assert seconds < patient(20)
    assert threading.active_count() <= threads
    assert fake.inits == 1
    rig.node.show(PAIR)
    fake.release()
    until(lambda: check_truth(rig.node.page()) == NAMES, "it is back")
    assert {line.labels["n"] for line in lines_of(rig.node.page()) if line.name == POWER} == {"x19"}


def test_a_lost_gpu_is_not_forgotten_and_one_that_is_left_out_not_lost(start: Start) -> None:
    """Neither may an alert end by a reload, nor begin by one."""
    rig = start(PAIR)
    rig.node.show(PAIR.with_gpu(1, lost=True))
    since = values(rig.node.page(), "otelgpu_gpu_lost_timestamp_seconds", by="UUID")
    page = rig.reload(f"{FEW}labels: {{rack: a}}\n")

    assert set(since) == {PAIR.gpus[1].uuid}
    assert values(page, "otelgpu_gpu_lost_timestamp_seconds", by="UUID") == since
    assert set(up(rig.reload(f"{FEW}devices: [0]\n"))) == {PAIR.gpus[0].uuid}
    rig.node.show(PAIR)
    assert check_truth(rig.reload(FEW)) == NAMES


def test_fifty_reloads_leave_nothing_behind(start: Start, fake: Fake) -> None:
    """Neither threads nor what the SDK made for settings of long ago; the driver is taken once."""
    text = f"{BASE}fields: [{TEMPERATURE}, {PROFILED}, {XIDS}, {CLOCKS}]\n"
    rig = start(PAIR, text)
    rig.reload()
    gc.collect()
    threads, providers, samples = threading.active_count(), living(MeterProvider), fake.live_samples
    pipelines = living(Pipeline)
    for number in range(50):
        rig.reload(f"{text}labels: {{n: x{number}}}\n")
    gc.collect()

    assert (threading.active_count(), fake.live_samples, fake.inits) == (threads, samples, 1)
    assert living(MeterProvider) <= providers
    assert living(Pipeline) <= pipelines


def living(kind: type) -> int:
    """How many objects of a class there are."""
    return sum(type(each) is kind for each in gc.get_objects())


def test_one_that_fails_in_the_middle_leaves_the_old_one_in_force(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where nobody has foreseen how."""
    rig = start(PAIR)
    before = series(rig.node.page())
    for fault in (StartError("a: no"), ConfigError(["b: no", "c: no"]), ZeroDivisionError("oops")):
        rig.faults.append(fault)
        page = rig.reload(f"{FEW}labels: {{rack: a}}\n")
        assert series(page) == before
        assert values(page, "otelgpu_config_last_reload_successful") == {"": 0}
    page = rig.reload()

    assert values(page, "otelgpu_config_last_reload_successful") == {"": 1}
    assert [m for m in caplog.messages if m.endswith((": no", "oops')"))] == [
        *("a: no", "b: no", "c: no"),
        "internal error: ZeroDivisionError('oops')",
    ]


def test_what_is_read_beside_the_settings_and_is_wrong_keeps_them_from_nothing(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong web configuration has a metric of its own; the settings are in force, and are not called wrong."""
    rig = start(PAIR)

    def act() -> None:
        raise StartError("web.yml:3: no")

    caplog.set_level("INFO", "otelgpu.reload")
    rig.hooks.append(act)
    page = rig.reload(f"{FEW}labels: {{rack: a}}\n")

    assert {line.labels.get("rack") for line in lines_of(page) if line.name == POWER} == {"a"}
    assert values(page, "otelgpu_config_last_reload_successful") == {"": 1}
    assert values(page, "otelgpu_config_info", by="hash") == {rig.files[str(rig.path)]: 1}
    assert [record.getMessage() for record in caplog.records if record.name == "otelgpu.reload"] == [
        "web.yml:3: no",
        "reloaded",
    ]


def test_one_that_the_end_overtakes_is_not_told_of(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """It has changed nothing."""
    rig = start(PAIR)
    caplog.set_level("INFO", "otelgpu.reload")
    rig.hooks.append(rig.stop)
    rig.reloading.reload()

    assert "reloaded" not in caplog.messages


def test_what_was_swapped_before_anybody_looked_is_read(start: Start) -> None:
    """A start takes some tenths of a second from the settings to the first look, and the next change may be far off."""
    rig = start(PAIR)
    rig.path.write_text(f"{FEW}labels: {{rack: a}}\n", encoding="utf-8")
    rig.reloading.watched(0.02)

    until(lambda: rig.reloading.site().config.labels == {"rack": "a"}, "the settings as they are now")


@pytest.fixture
def sink() -> Iterator[Collector]:
    with collector() as running:
        yield running


def otlp(url: str, temporality: str = "cumulative", interval: float = 60) -> str:
    way = f"{{endpoint: '{url}', temporality: {temporality}, interval: {interval}}}"
    return f"{BASE}fields: [{TEMPERATURE}, DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION]\notlp: {way}\n"


def test_a_delta_goes_on_over_a_reload(start: Start, sink: Collector) -> None:
    """What was used while it reloaded is in the next delta, once; no sweep is sent twice."""
    energy = 10_000

    def used(more: int) -> None:
        nonlocal energy
        energy += more
        rig.node.show(PAIR.with_gpu(0, answers={ENERGY: energy}, fields={83: energy}))

    text = otlp(sink.url, "delta")
    rig = start(PAIR.with_gpu(0, answers={ENERGY: energy}, fields={83: energy}), text)
    until(lambda: bool(points(sink, "hw.temperature")), "the first batch")
    for number in range(4):
        used(1000)
        rig.reload(f"{text}labels: {{n: x{number}}}\n")
        used(500)
        rig.node.sweep()
    rig.stop()
    mine = [point for point in points(sink, "hw.energy") if point.attributes["hw.name"] == "GPU 0"]

    assert sum(point.value for point in mine) == 6
    assert len({point.time for point in mine}) == len(mine)


@pytest.mark.parametrize("temporality", ["cumulative", "lowmemory"])
def test_what_otelgpu_counts_of_itself_keeps_its_start(temporality: str, start: Start, sink: Collector) -> None:
    """A collector that makes deltas of totals would take another start for a reset, and count all of it again."""
    text = otlp(sink.url, temporality)
    rig = start(PAIR, text)
    until(lambda: bool(points(sink, "otelgpu.sweeps")), "the first batch")
    for number in range(3):
        rig.reload(f"{text}labels: {{n: x{number}}}\n")
        rig.node.sweep()
    rig.stop()
    until(lambda: len(points(sink, "otelgpu.sweeps")) > 3, "the last batch")

    for name in ("otelgpu.sweeps", "otelgpu.process.cpu", "otelgpu.otlp.batches.sent"):
        mine = points(sink, name)
        assert len({point.start for point in mine}) == 1
        numbers = [point.value for point in sorted(mine, key=lambda point: point.time)]
        assert numbers == sorted(numbers)


def points(sink: Collector, name: str) -> list[Point]:
    return [point for point in sink.points(name) if point.name == name]


def test_what_waits_for_a_collector_is_sent_after_the_reload_where_the_new_settings_say(
    start: Start, sink: Collector
) -> None:
    """The old collector is gone, which is why the settings were changed."""
    with collector() as other:
        other.answers = [Answer(503)] * 1000
        text = otlp(other.url)
        rig = start(PAIR, text)
        until(lambda: len(other.received) >= 1, "an attempt")
        rig.reload(text.replace(other.url, sink.url))
        until(lambda: len({point.time for point in points(sink, "hw.energy")}) >= 2, "old and new batches")
        rig.stop()
    energies = [(point.time, point.attributes["hw.name"]) for point in points(sink, "hw.energy")]

    assert len(energies) == len(set(energies))
