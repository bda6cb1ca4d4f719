"""`otelgpu record FILE` and `--source replay:FILE`: what a user's machine answers, on a maintainer's.

Rule 1: compared is the page, with UUIDs and serial numbers numbered in the order in which they come.
"""

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies
from hypothesis import settings as examples

from otelgpu import __version__
from otelgpu.cli import main
from otelgpu.config import Config, Processes, Sampling, SourceChoice
from otelgpu.config.picks import parse_pick
from otelgpu.errors import ConfigError, StartError
from otelgpu.model import Snapshot
from otelgpu.record import record, told
from otelgpu.sources import Source
from otelgpu.sources.recorded.form import FORM, MOST_PROBLEMS, Head, RecordingError, line, load
from otelgpu.sources.recorded.mask import Mask
from otelgpu.sources.recorded.tap import Tap
from tests.apart import ALL
from tests.fakenvml import Fake, Process, Scenario, models
from tests.fakenvml.rarer import RARER
from tests.fakeproc import FakeProc, container_id
from tests.faults.rig import distinct, up
from tests.harness import OTELGPU, ROOT, Node, config, lines_of, until, values
from tests.test_page import OWN

Start = Callable[..., Node]

MACHINES = dict(models.MAKERS) | dict(RARER)
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
FEW = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED")
XID_TOTAL = "DCGM_EXP_XID_ERRORS_TOTAL"
FOUR = distinct(models.h100(4))
SIMULATED = ("--source", "simulated:1xt4+1xh100-mig")

NAMES = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r'|(?<=SERIAL=")[^"]*|(?<=SERIAL_NUMBER=")[^"]*|(?<=GUID=")[^"]*'
)
SAYS_SO = re.compile(r"otelgpu_(source_info|source_up|gpu_lost|scrape)")  # that it is a replay, and when it was made


def numbered(text: str) -> list[str]:
    """The lines that do not differ by their nature, with numbers for names; the states of GPUs in any order."""
    known: dict[str, str] = {}
    kept = (one for one in text.splitlines() if not OWN.match(one) and not SAYS_SO.search(one))
    lines = NAMES.sub(lambda match: known.setdefault(match[0], f"<{len(known)}>"), "\n".join(kept)).splitlines()
    states = [one for one in lines if one.startswith("otelgpu_gpus{")]
    return [*(one for one in lines if one not in states), *sorted(states)]


def gaps(node: Node) -> list[tuple[object, ...]]:
    """What is missing in the last sweep: the field, where, and why."""
    snapshot = node.pipeline.sampler.latest
    assert snapshot is not None
    return [(one.field.id, one.device.index, one.device.instance_id, one.gap, one.reason) for one in snapshot.missing]


def replaying(path: Path) -> SourceChoice:
    return SourceChoice("replay", str(path))


def tapped(taps: list[Tap]) -> Callable[[Source], Source]:
    """A tap for a node, which is put into the list."""

    def tap(source: Source) -> Source:
        taps.append(Tap(source))
        return taps[-1]

    return tap


def write(path: Path, fields: Iterable[str], *sweeps: Any) -> str:
    """Write sweeps as `record` does; the text of the file."""
    mask = Mask()
    path.write_bytes(line(Head(FORM, __version__, tuple(fields))) + b"".join(line(mask.sweep(one)) for one in sweeps))
    return path.read_text()


def sweeps_of(path: Path) -> list[Any]:
    return [json.loads(text) for text in path.read_text().splitlines()[1:]]


def asking(*fields: str, **changes: object) -> Config:
    """Settings with these fields, as somebody gives them."""
    return msgspec.structs.replace(config(**changes), fields=fields, origins={"fields": "--fields"})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_a_recording_of_each_machine_replays_to_the_same_page(name: str, node: Start, tmp_path: Path) -> None:
    """A maintainer sees the user's page, and why a value is not on it; nothing tells him whose machine it was."""
    taps: list[Tap] = []
    path = tmp_path / "machine.jsonl"
    scenario = MACHINES[name]()
    fields = ALL if len(scenario.gpus) < 16 else FEW  # 112 instances: of all fields that is a long text
    running = node(scenario, fields=fields, tap=tapped(taps))
    running.settled_page()
    text = write(path, fields, taps[0].taken())
    again = node(scenario, fields=fields, source=replaying(path))

    assert numbered(again.page()) == numbered(running.page(sweep=False))
    assert gaps(again) == gaps(running)
    names = [each.uuid for gpu in scenario.gpus for each in (gpu, *gpu.instances) if each is not None]
    assert not [
        name
        for name in (*names, *(gpu.serial for gpu in scenario.gpus), "node-1")
        if name and len(name) > 1 and name in text
    ]


def test_each_sweep_is_replayed_and_the_last_one_stays(node: Start, fake: Fake, tmp_path: Path) -> None:
    """Counters go on as they went, and a page is there for as long as somebody looks."""
    path = tmp_path / "sweeps.jsonl"
    scenarios = [models.t4().with_gpu(0, fields={83: number}) for number in (1000, 2000, 3000)]

    def next_one(number: int = 0, _: Snapshot | None = None) -> None:
        fake.show(scenarios[min(number, 2)])

    next_one()
    record(asking(ENERGY), str(path), sweeps=3, environ={}, seen=next_one)
    again = node(models.t4(), fields=(ENERGY,), source=replaying(path))
    found = [values(again.page(), ENERGY)["0"] for _ in range(4)]

    seconds = [sweep["seconds"] for sweep in sweeps_of(path)]
    assert [sweep["slots"][0]["readings"][0]["number"] for sweep in sweeps_of(path)] == [1000, 2000, 3000]
    assert seconds == sorted(seconds)
    assert seconds[0] == 0
    assert found == sorted(found)
    assert found[-2:] == [3000, 3000]


@pytest.mark.parametrize(
    "broken",
    [
        FOUR.with_gpu(1, lost=True),
        FOUR.with_gpu(1, gone=True),
        FOUR.with_gpu(1, errors={"nvmlDeviceGetPowerUsage": 4}),
        FOUR.with_gpu(1, hangs={"nvmlDeviceGetMemoryInfo_v2"}),
        FOUR.but(errors={"*": 999, "nvmlInit_v2": 9}),
        FOUR.but(gpus=()),
    ],
    ids=["lost", "gone", "denied", "hangs", "no-driver", "no-gpu"],
)
def test_what_does_not_answer_does_not_answer_in_the_replay(broken: Scenario, node: Start, tmp_path: Path) -> None:
    """It is for this that somebody sends a recording: what is missing, on which GPU, and why."""
    taps: list[Tap] = []
    path = tmp_path / "broken.jsonl"
    running = node(FOUR, fields=FEW, sampling=Sampling(reuse=0, deadline=1), tap=tapped(taps))
    running.page()
    well = taps[0].taken()
    running.show(broken)
    running.page()
    live = running.page()
    write(path, FEW, well, taps[0].taken())
    again = node(FOUR, fields=FEW, source=replaying(path))
    again.page()
    page = again.page()

    assert numbered(page) == numbered(live)
    assert list(up(page).values()) == list(up(live).values())


def test_the_xid_that_took_a_gpu_down_is_replayed(node: Start, tmp_path: Path) -> None:
    """What the driver told of a GPU that answers nothing any more is the first that a maintainer looks for."""
    taps: list[Tap] = []
    path, fields = tmp_path / "xid.jsonl", (XID_TOTAL, FEW[1])
    running = node(FOUR, fields=fields, sampling=Sampling(reuse=0), tap=tapped(taps))
    well = taps[0].taken()
    running.show(FOUR.with_xid(1, 79))
    until(lambda: [one for one in lines_of(running.page()) if one.name == XID_TOTAL and one.value] != [], "the event")
    running.show(FOUR.with_xid(1, 79).with_gpu(1, lost=True))
    until(lambda: sorted(up(running.page()).values()) == [0, 1, 1, 1], "the GPU is down")
    write(path, fields, well, taps[0].taken())
    again = node(FOUR, fields=fields, source=replaying(path))
    again.page()
    page = again.page()

    told = [line for line in lines_of(page) if line.name == XID_TOTAL and line.value == 1]
    assert [(line.labels["gpu"], line.labels["xid"]) for line in told] == [("1", "79")]
    assert sorted(up(page).values()) == [0, 1, 1, 1]


def test_a_gpu_that_was_not_asked_says_so(node: Start, fake: Fake, tmp_path: Path) -> None:
    """A recording of some of the GPUs is no recording of broken ones."""
    path = tmp_path / "one.jsonl"
    fake.show(FOUR)
    record(asking(*FEW, devices=(parse_pick("2"),)), str(path), sweeps=1, environ={})
    page = node(FOUR, fields=FEW, source=replaying(path)).page()

    assert set(values(page, FEW[0])) == {"2"}
    assert list(up(page).values()) == [0, 0, 1, 0]
    assert {one["down"]["gap"] for one in sweeps_of(path)[0]["slots"] if "down" in one} == {"unsupported"}


def test_owners_of_processes_are_masked_alike_everywhere(node: Start, fake: Fake, tmp_path: Path) -> None:
    """Names, users and containers are nobody's business; that two rows are of one owner matters."""
    (folder := tmp_path / "proc").mkdir()
    FakeProc(folder).run(11, f"/docker/{container_id(1)}", name="secret-train", user=4711)
    machine = models.h100(2)
    for slot in range(2):
        machine = machine.with_gpu(slot, processes=(Process(11, 1 << 30),))
    processes = Processes(by="process", proc_root=str(folder), names=True, users=True)
    fake.show(machine)
    path = tmp_path / "owners.jsonl"
    record(asking(*FEW, processes=processes), str(path), sweeps=1, environ={})
    page = node(machine, fields=FEW, processes=processes, source=replaying(path)).page()

    owned = [one.labels for one in lines_of(page) if one.name == "otelgpu_owner_memory_used_bytes"]
    secrets = ("secret-train", container_id(1), '"11"', "4711")
    assert len(owned) == 2
    assert {one["process"] for one in owned} == {"process-1"}
    assert [path.read_text().count(name) for name in secrets] == [0, 0, 0, 0]


def test_processes_that_were_not_recorded_cannot_be_shown(fake: Fake, tmp_path: Path) -> None:
    """An empty list would read as a GPU that nobody uses."""
    path = tmp_path / "none.jsonl"
    fake.show(models.t4())
    record(asking(*FEW), str(path), sweeps=1, environ={})

    with pytest.raises(ConfigError, match=r"processes\.by: the recording holds no processes"):
        Node(fake, config(replaying(path), processes=Processes(by="pod")))


# ---- the commands


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A recording of two simulated GPUs, made by the command."""
    monkeypatch.chdir(tmp_path)
    assert main(["record", "gpus.jsonl", "--sweeps", "2", *SIMULATED]) == 0

    said = capsys.readouterr().out.splitlines()
    assert [re.sub(r"\d+ (readings|missing)", r"N \1", one) for one in said] == [
        "sweep 1 of 2: 2 of 2 GPUs answer: N readings, N missing",
        "sweep 2 of 2: 2 of 2 GPUs answer: N readings, N missing",
        "gpus.jsonl: written, with UUIDs, serial numbers and owners masked",
    ]
    return tmp_path / "gpus.jsonl"


def test_each_command_looks_at_a_recording(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A maintainer uses what the user would."""
    shown = {}
    for command in ("once", "devices", "fields", "doctor"):
        status = main([command, "--source", f"replay:{recorded.name}", "--listen", "127.0.0.1:0"])
        shown[command] = capsys.readouterr().out

        assert status == 0
        assert "H100" in shown[command] or command == "fields"
    assert set(values(shown["once"], FEW[0])) == {"0", "1"}
    assert shown["devices"].count("MIG-00000000-0000-4000-8000-") == 4
    assert "all" in shown["fields"]
    assert "ok       driver      replay answers, driver 570.124.06" in shown["doctor"]
    assert "recorded: no number comes from this machine" in shown["doctor"]
    assert "libnvidia-ml" not in shown["doctor"]


def test_a_file_that_is_there_is_not_touched(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped name must not cost somebody his settings."""
    before = recorded.read_bytes()

    assert main(["record", recorded.name, *SIMULATED]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "otelgpu: gpus.jsonl: file exists"
    assert recorded.read_bytes() == before
    for path, why in (("no/folder.jsonl", "no such file or directory"), ("a\0b", "not a file name")):
        with pytest.raises(StartError, match=why):
            record(asking(*FEW, source=SourceChoice("simulated", "t4")), path, sweeps=1, environ={})


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    """Whoever sends the file must know that it is not whole."""
    path = tmp_path / "big.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(StartError, match=f"^{path}: file too large$"):
            record(asking(*FEW, source=SourceChoice("simulated", "t4")), str(path), sweeps=1, environ={})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_whoever_reads_no_more_of_the_progress_gets_the_whole_recording(tmp_path: Path) -> None:
    """`otelgpu record FILE | head -1`: the file is what was asked for."""
    path = tmp_path / "piped.jsonl"
    gone, pipe = os.pipe()
    os.close(gone)
    words = [*OTELGPU, "record", str(path), *SIMULATED, "--fields", FEW[0], "--sweeps", "3", "--log-level", "error"]
    with os.fdopen(pipe, "wb") as stdout:
        done = subprocess.run(
            [sys.executable, *words], stdout=stdout, stderr=subprocess.PIPE, cwd=ROOT, timeout=60, check=False
        )

    assert (done.returncode, done.stderr) == (0, b"")
    assert len(sweeps_of(path)) == 3


def test_a_driver_that_never_answered_is_told() -> None:
    """Also what there is none of has to be said."""
    assert told(None) == "the driver did not answer in time"


def test_what_names_this_machine_or_a_file_of_it_is_not_told(recorded: Path, tmp_path: Path) -> None:
    """A folder or a recording is called after a customer as easily as after a driver."""
    (root := tmp_path / "secret-customer").mkdir()
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    record(asking(*FEW, driver_root=str(root)), str(one), sweeps=1, environ={})
    renamed = recorded.rename(tmp_path / "secret-machine.jsonl")
    record(asking(*FEW, source=replaying(renamed)), str(two), sweeps=1, environ={})

    assert "(/driver-root has it in none of " in sweeps_of(one)[0]["down"]
    assert sweeps_of(two)[0]["facts"]["driver_version"]
    assert [path.read_text().count("secret") for path in (one, two)] == [0, 0]


@pytest.mark.parametrize(("name", "said"), [("", '"": not a file name'), ("-", "-: a recording is a file; ./- is one")])
def test_what_is_no_name_of_a_file_is_one_line(name: str, said: str) -> None:
    """An empty variable in a script gives the one, and whoever wants a pipe the other."""
    with pytest.raises(StartError, match=f"^{re.escape(said)}"):
        record(asking(*FEW), name, sweeps=1, environ={})


# ---- bad files

HEAD = '{"otelgpu_recording": 1, "version": "0.1.0", "fields": ["DCGM_FI_DEV_GPU_TEMP"]}'
SWEEP = '{"seconds": 0, "facts": {"name": "nvml"}, "slots": [%s]}'
DEVICE = '{"uuid": "GPU-1", "gpu_uuid": "GPU-1", "index": 0, "model": "x", "pci_bus_id": ""}'
READING = '{"device": %s, "readings": [{"field": "DCGM_FI_DEV_GPU_TEMP", %s}]}'


WARM, MOVED = (SWEEP % (READING % (DEVICE, more)) for more in ('"number": "warm"', '"number": 1, "on": 1'))
BROKEN = SWEEP % '{"down": {"gap": "broken", "reason": ""}}'
LATE = '{"seconds": "x"}'
NO_RECORDING = "not a recording; `otelgpu record FILE` makes one"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", f" {NO_RECORDING}"),
        ("sampling:\n  reuse: 1\n", f"1: {NO_RECORDING}"),
        ('{"otelgpu_recording": 2, "new": 1}', "1: of form 2; this otelgpu reads form 1"),
        (
            HEAD.replace("TEMP", "TEMPS"),
            '1: no such field: "DCGM_FI_DEV_GPU_TEMPS"; did you mean DCGM_FI_DEV_GPU_TEMP?',
        ),
        (HEAD, " it holds no sweep; it was broken off before the first one"),
        (f"{HEAD}\n\n{SWEEP[:40]}\n", "3: expected a sweep: input data was truncated"),
        (f"{HEAD}\n{SWEEP[:40]}", " it holds no sweep; it was broken off before the first one"),
        (f"{HEAD}\n{SWEEP[:40]}\n{SWEEP[:40]}", "2: expected a sweep: input data was truncated"),
        (f"{HEAD}\n{SWEEP % ''}\n{LATE}", "3: expected a sweep: expected `float`, got `str` - at `$.seconds`"),
        (f"{HEAD}\n{WARM}", "2: slot 0: DCGM_FI_DEV_GPU_TEMP: expected a number"),
        (f"{HEAD}\n{MOVED}", "2: slot 0: DCGM_FI_DEV_GPU_TEMP: on 1: expected 0 to 0"),
        (f"{HEAD}\n{BROKEN}", "2: expected a sweep: invalid enum value 'broken' - at `$.slots[0].down.gap`"),
    ],
)
def test_a_bad_file_is_one_clear_line(text: str, said: str, fake: Fake, tmp_path: Path) -> None:
    """Which file, which line, and what would be right."""
    path = tmp_path / "bad.jsonl"
    path.write_text(text)

    with pytest.raises(ConfigError) as raised:
        Node(fake, config(replaying(path)))
    assert [*raised.value.problems] == [f"default: source: {path}:{said}"]


@pytest.mark.parametrize("left", [1, 40, -1])
def test_a_recording_that_was_killed_is_replayed_up_to_there(
    left: int, node: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The last line is cut anywhere when `record` is killed while it writes; what it had written is worth no less."""
    path = tmp_path / "cut.jsonl"
    whole = SWEEP % (READING % (DEVICE, '"number": 41'))
    path.write_text(f"{HEAD}\n{whole}\n{whole[:left]}")
    with caplog.at_level("WARNING"):
        page = node(models.t4(), fields=FEW[:1], source=replaying(path)).page()

    assert [*values(page, FEW[0]).values()] == [41.0]
    assert f"{path}:3: the line is cut off; replayed are the sweeps before it" in caplog.messages
    assert caplog.text.count("cut off") == 1


def test_a_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    """As every other file."""
    os.mkfifo(tmp_path / "pipe")
    for path, said in (
        (tmp_path, "is a directory"),
        (tmp_path / "none", "no such file or directory"),
        (tmp_path / "pipe", "a pipe from which nothing comes; expected a file"),
    ):
        with pytest.raises(RecordingError, match=f"^{path}: {said}$"):
            load(str(path))


def test_a_thousand_wrong_lines_are_twenty(tmp_path: Path) -> None:
    """All problems at once, as far as somebody reads."""
    path = tmp_path / "bad.jsonl"
    path.write_text(HEAD + "\n{}" * 1000)

    with pytest.raises(RecordingError) as raised:
        load(str(path))
    assert len(raised.value.problems) == MOST_PROBLEMS + 1
    assert raised.value.problems[-1] == f"{path}: and {1000 - MOST_PROBLEMS} more"


def test_a_slot_of_which_nothing_is_known_is_down(node: Start, tmp_path: Path) -> None:
    """A number that is none is dropped and counted; a GPU that nobody names is one that does not answer."""
    path = tmp_path / "odd.jsonl"
    path.write_text(f"{HEAD}\n" + SWEEP % (READING % (DEVICE, '"number": null') + ", {}"))
    page = node(models.t4(), fields=FEW[:1], source=replaying(path)).page()

    assert values(page, FEW[0]) == {}
    assert values(page, "otelgpu_gpus", by="state") == {"up": 1, "failed": 1}
    assert values(page, "otelgpu_missing", by="gap") == {"invalid": 1, "failed": 1}


@examples(max_examples=60)
@given(data=strategies.data())
def test_no_damage_breaks_the_reader(data: strategies.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A file that was cut, glued or edited by hand is read, or refused with its name."""
    whole = f"{HEAD}\n{MOVED}\n".replace('"on": 1', '"on": 0').encode()
    at = data.draw(strategies.integers(0, len(whole)))
    cut = data.draw(strategies.integers(0, 6))
    path = tmp_path_factory.getbasetemp() / "damaged.jsonl"
    path.write_bytes(whole[:at] + data.draw(strategies.binary(max_size=4)) + whole[at + cut :])

    problems: tuple[str, ...] = ()
    try:
        load(str(path))
    except RecordingError as error:
        problems = error.problems
    assert [problem for problem in problems if not problem.startswith(str(path))] == []
