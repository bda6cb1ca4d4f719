"""The command line: what each command prints, where it prints it, and with which status it ends."""

import json
import logging
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from otelgpu import __version__
from otelgpu.cli import main
from otelgpu.config.keys import SETTINGS
from otelgpu.fields import CATALOGUE, Field
from otelgpu.log import JsonFormatter, SparingHandler, TextFormatter, set_up
from otelgpu.model import Device, Gap, GpuState, Missing, Series, Snapshot, SourceFacts
from otelgpu.tables import devices_table, field_records, fields_table, json_text, readings_table, snapshot_record
from tests.conftest import ROOT, Golden
from tests.fakenvml import models
from tests.fakenvml.everything import everything
from tests.harness import Node, until

NODE = ("--source", "simulated:1xt4+1xh100-mig", "--hostname", "node-1")
NO_DRIVER = ("--source", "nvml")
LIMIT = 60.0


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run each command without settings from outside."""
    for name in [name for name in os.environ if name.startswith("OTELGPU_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


def complaints(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    """Run a command that prints nothing on stdout; give back its status and the lines on stderr."""
    status = main(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    return status, err.splitlines()


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must succeed; give back its stdout."""
    status = main(arguments)
    out, err = capsys.readouterr()
    assert status == 0, err
    return out


def started(*arguments: str, stdout: int | None = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run otelgpu as a program of its own."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "otelgpu", *arguments]
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=LIMIT, env=env
    )


def test_the_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts and bug reports quote it."""
    assert printed(capsys, "--version") == f"otelgpu {__version__}\n"


@pytest.mark.parametrize("command", ["", "serve", "devices"])
def test_the_help_is_as_reviewed(command: str, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    """The help is read by people who are in a hurry: short, and its flags in groups."""
    golden(f"cli/help-{command or 'otelgpu'}.txt", printed(capsys, *command.split(), "--help"))


def test_the_help_of_serve_shows_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """A new setting shows up without anyone writing it down there; by its short flag where it has one."""
    text = printed(capsys, "serve", "--help")
    unused = "embed."  # inside other processes only

    hidden = [setting.key for setting in SETTINGS.values() if f" {setting.flags[0]} " not in text]
    assert hidden == [key for key in SETTINGS if key.startswith(unused)]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("serv",), "no such command: serv; did you mean serve?"),
        (("bake", "cake"), "no such command: bake"),
        (("serve", "--listn", ":0"), "no such flag: --listn; did you mean --listen?"),
        (("--listn=:0",), "no such flag: --listn; did you mean --listen?"),
        (("serve", "--listen"), "--listen: expected a value"),
        (("serve", "-listen"), "--listen: expected a value"),  # as Go takes flags, and dcgm-exporter with it
        (("serve", "-listn"), "no such flag: -listn; did you mean --listen?"),
        (("serve", "--frobnicate", "7"), "no such flag: --frobnicate"),
        (("--reuse", "1", "once"), "the command comes first: otelgpu once ..."),
        (("devices", "0"), "not understood: 0"),
        (("once", "--format", "xml"), "--format xml: expected text, json or table"),
        (("serve", "--format", "json"), "no such flag: --format; did you mean --log-format?"),
        (("serve", "\x1b[2J"), 'not understood: "\\x1b[2J"'),
    ],
)
def test_wrong_usage_is_one_line_and_status_two(
    arguments: Sequence[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was mistyped, and what was meant."""
    assert complaints(capsys, *arguments) == (2, [f"otelgpu: {complaint}"])


@pytest.mark.parametrize("command", [(), ("serve",), ("once",), ("devices",), ("fields",)])
def test_wrong_settings_are_reported_all_at_once(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command takes the settings from the same three places, and says for each mistake where it is."""
    Path("o.yaml").write_text("sampling:\n  dedline: 1\n")
    monkeypatch.setenv("OTELGPU_COMPAT", "5")
    status, lines = complaints(
        capsys, *command, "--config", "o.yaml", "--listen", "9400x", "--sampling-reuse", "x", "--source", "simulated:0"
    )

    assert status == 2
    assert lines[:4] == [
        "otelgpu: o.yaml:2: sampling.dedline: no such setting; did you mean sampling.deadline?",
        'otelgpu: OTELGPU_COMPAT: expected 4.8.2, 4.8.3 or 4.9, got "5"',
        "otelgpu: --listen 9400x: a port is 0 to 65535",
        "otelgpu: --sampling-reuse x: expected a number of seconds",
    ]
    assert len(lines) == 5
    assert lines[4].startswith("otelgpu: --source simulated:0: ")


def test_wrong_usage_and_wrong_settings_are_told_together(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever mends a mistyped flag must not learn only then that another one's value is wrong as well."""
    said = complaints(
        capsys,
        *("once", "--bogus", "--devices", "x", "--reuse=y", "--naning=dcgm", "extra", "--format", "xml", "--deadline"),
    )

    assert said[0] == 2
    assert [line.removeprefix("otelgpu: ").partition(" or a PCI")[0] for line in said[1]] == [
        "--devices x: expected all, an index (0), a range (2-5), a GPU's UUID (GPU-...)",
        "--reuse y: expected a number of seconds",
        "--deadline: expected a value",
        "--format xml: expected text, json or table",
        "no such flag: --bogus",
        "no such flag: --naning; did you mean --naming?",
        "not understood: extra",
    ]


def test_thousands_of_wrong_flags_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A guess at what was meant is made for the first few only."""
    began = time.process_time()
    status, lines = complaints(capsys, *(f"--listen{number}" for number in range(3000)))
    took = time.process_time() - began

    assert status == 2
    assert len(lines) == 3000
    assert sum("did you mean" in line for line in lines) == 20
    assert took < 4


def test_the_last_of_two_spellings_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrapper script appends its own flag, whichever of the two spellings it knows."""
    status, lines = complaints(capsys, "once", "--expire", "5", "--sampling-reuse", "1", "--reuse", "9")

    assert status == 2
    assert lines == ["otelgpu: --expire 5: expected at least sampling.reuse, which is 9 s (--reuse)"]


def test_an_address_that_cannot_be_had_is_status_one() -> None:
    """A start that failed for a reason outside the settings is told from wrong usage."""
    ended = started(*NODE, "--listen", "unix:/nowhere/at/all.sock", "--log-level", "error")

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "otelgpu: --listen: unix:/nowhere/at/all.sock: No such file or directory\n"


def test_once_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """What Prometheus would get, without a server; the log stays on stderr."""
    page = printed(capsys, "once", *NODE)

    assert re.search(
        r'^DCGM_FI_DEV_GPU_TEMP\{gpu="0",UUID="GPU-[^"]+",.*Hostname="node-1".*\} \d+$', page, re.MULTILINE
    )
    assert page.endswith("\n")


def test_once_gives_scripts_the_readings_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The driver's own numbers with their units, and what is missing with the reason."""
    seen = json.loads(printed(capsys, "once", *NODE, "--format", "json"))
    power = [one for one in seen["readings"] if one["field"] == "DCGM_FI_DEV_POWER_USAGE"]

    assert seen["source"]["simulated"] is True
    assert [device["index"] for device in seen["devices"]] == [0, 1]
    assert [one["unit"] for one in power] == ["mW", "mW"]
    assert {"field", "gap", "reason", "devices"} == set(seen["missing"][0])


def test_devices_lists_gpus_and_their_instances(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    """The first thing to look at on a new node: which GPUs are seen, under which index and UUID."""
    golden("cli/devices.txt", printed(capsys, "devices", *NODE))
    golden("cli/devices.json", printed(capsys, "devices", *NODE, "--format", "json"))


def test_fields_says_who_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever misses a series finds here whether it was asked for, and why nobody answers."""
    names = "DCGM_FI_DEV_GPU_TEMP,DCGM_FI_DEV_MEMORY_TEMP,DCGM_FI_DEV_GPU_UTIL"
    table = printed(capsys, "fields", *NODE, "--fields", names)
    rows = {line.split()[1]: line for line in table.splitlines()}

    assert len(rows) == 1 + len(CATALOGUE)
    assert re.search(r" gauge +Cel +gpu +hw\.temperature +yes +\d+ \(.+\)$", rows["DCGM_FI_DEV_GPU_TEMP"])
    assert " unsupported: " in rows["DCGM_FI_DEV_MEMORY_TEMP"]
    assert " yes" not in rows["DCGM_FI_DEV_SM_CLOCK"]


@pytest.mark.usefixtures("driverless")
def test_without_a_driver_the_fields_are_still_listed() -> None:
    """On a laptop the catalogue is what one wants to see; that nobody can answer is said aside."""
    ended = started("fields", *NO_DRIVER, "--format", "json", "--log-level", "error")

    assert ended.returncode == 0
    assert len(json.loads(ended.stdout)) == len(CATALOGUE)
    assert ended.stderr.endswith("so it is not known who answers which field\n")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.usefixtures("driverless")
@pytest.mark.parametrize("command", ["once", "devices"])
def test_without_a_driver_a_look_is_status_one(command: str) -> None:
    """A script that looks at GPUs must notice that there was nothing to look at."""
    ended = started(command, *NO_DRIVER, "--format", "json", "--log-level", "error")

    assert ended.returncode == 1
    assert ended.stderr.startswith("otelgpu: libnvidia-ml.so.1 ")
    assert len(ended.stderr.splitlines()) == 1


@pytest.fixture(scope="module")
def driverless() -> None:
    """A machine without a driver; asked in another process, since this one may hold the fake driver."""
    script = "import ctypes; ctypes.CDLL('libnvidia-ml.so.1')"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, timeout=LIMIT)
    if loaded.returncode == 0:
        pytest.skip("this machine has a driver")


@pytest.mark.parametrize("arguments", [("once", *NODE), ("fields", *NODE), ("--version",)])
def test_a_reader_that_leaves_early_ends_it_quietly(arguments: Sequence[str]) -> None:
    """`otelgpu once | head -1` shows one line, and no traceback below it."""
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        ended = started(*arguments, *(("--log-level", "error") if len(arguments) > 1 else ()), stdout=theirs)
    finally:
        os.close(theirs)

    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [("once", *NODE, "--log-level", "error"), ("--version",), ("--help",), ("serve", "--help")],
    ids=" ".join,
)
def test_a_full_disk_is_one_line(arguments: tuple[str, ...]) -> None:
    """`otelgpu once > file` must not pretend that the file holds the page."""
    with Path("/dev/full").open("w") as full:
        ended = started(*arguments, stdout=full.fileno())

    assert (ended.returncode, ended.stderr) == (1, "otelgpu: cannot write to stdout: No space left on device\n")


def test_serve_starts_without_what_only_other_commands_need() -> None:
    """A scrape target that draws no tables and reads no file does not pay for rich and yaml."""
    script = "import sys; from otelgpu.cli import main; main(['--reuse', 'x']); print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=LIMIT
    )
    loaded = set(ended.stdout.split())

    assert loaded & {"click", "msgspec"} == {"click", "msgspec"}
    assert loaded & {"rich", "yaml", "difflib", "tornado", "pynvml", "opentelemetry", "otelgpu.fields"} == set()


# ------------------------------------------------------------------------------------------------- tables


GPU = Device("GPU-a", "GPU-a", 0, "NVIDIA [red]A100[/red]\x1b[2J", "00000000:07:00.0")
PART = Device("MIG-b", "GPU-a", 0, "NVIDIA A100", "00000000:07:00.0", profile="1g.10gb", instance_id=7)
LOST = Device("GPU-c", "GPU-c", 1, "NVIDIA A100", "00000000:0F:00.0")


def field_named(name: str) -> Field:
    return next(field for field in CATALOGUE.values() if field.name == name)


TEMPERATURE, NVLINK = field_named("DCGM_FI_DEV_GPU_TEMP"), field_named("DCGM_FI_DEV_FB_USED")
DRIVER = field_named("DCGM_FI_DRIVER_VERSION")
SNAPSHOT = Snapshot(
    at=1.0,
    unix=1e9,
    started_unix=1e9,
    identity=1,
    facts=SourceFacts("nvml", driver_version="570"),
    source_up=True,
    source_reason="",
    states=(GpuState(GPU, up=True), GpuState(LOST, up=False, gap=Gap.LOST, reason="fell off the bus", since_unix=1e9)),
    numbers={TEMPERATURE.id: {"a": 41}, NVLINK.id: {"a": 5, "b": 2**63 - 1}},
    series={"a": Series(GPU, (("nvlink", "3"),)), "b": Series(PART, ())},
    labels={"GPU-a": ((DRIVER, "570"),)},
    missing=(Missing(TEMPERATURE, PART, Gap.UNSUPPORTED, "no sensor"), Missing(TEMPERATURE, LOST, Gap.LOST, "")),
    seconds=0.1,
)


def test_a_device_table_shows_instances_and_reasons() -> None:
    """A lost GPU stays in the list with its reason; a name from the driver cannot colour or clear the terminal."""
    assert devices_table(SNAPSHOT, width=None) == (
        "GPU  UUID     Model                          PCI bus id        State\n"
        "0    GPU-a    NVIDIA [red]A100[/red]\\x1b[2J  00000000:07:00.0  up\n"
        "       MIG-b    MIG 1g.10gb                    instance 7\n"
        "1    GPU-c    NVIDIA A100                    00000000:0F:00.0  lost: fell off the bus\n"
    )


def test_a_table_of_readings_ends_with_what_is_missing() -> None:
    """Every number as the driver gave it, with its unit; a missing one is a dash with its reason, never 0."""
    assert readings_table(SNAPSHOT, width=None) == (
        "Field                   GPU  Attributes  Value                Unit\n"
        "DCGM_FI_DEV_GPU_TEMP    0    nvlink=3    41                   Cel\n"
        f"DCGM_FI_DEV_FB_USED     0    nvlink=3    5                    {NVLINK.unit}\n"
        f"DCGM_FI_DEV_FB_USED     0/7              9223372036854775807  {NVLINK.unit}\n"
        "DCGM_FI_DRIVER_VERSION  0                570\n"
        "DCGM_FI_DEV_GPU_TEMP    0/7              -                    unsupported: no sensor\n"
        "DCGM_FI_DEV_GPU_TEMP    1                -                    lost\n"
    )


def test_a_table_of_fields_sums_up_who_answers_what() -> None:
    """One line for each field, whoever and however many answer."""
    text = fields_table((TEMPERATURE, DRIVER, field_named("DCGM_FI_DEV_SM_CLOCK")), SNAPSHOT, width=None)
    ends = {line.split()[1]: line.partition(" yes ")[2].strip() for line in text.splitlines() if " yes " in line}

    assert ends == {
        "DCGM_FI_DRIVER_VERSION": "570 (GPU 0)",
        "DCGM_FI_DEV_SM_CLOCK": "nobody: this source does not read it",
        "DCGM_FI_DEV_GPU_TEMP": "41 (GPU 0); unsupported: no sensor (GPU 0/7); lost (GPU 1)",
    }


def test_a_field_that_nvml_cannot_give_has_its_reason(node: Callable[..., Node]) -> None:
    """Whoever asks for a struct learns under which names its numbers are."""
    name = "DCGM_FI_DEV_ENC_STATS"
    snapshot = node(models.t4(), fields=("DCGM_FI_DEV_GPU_TEMP", name)).sweep()
    text = fields_table((TEMPERATURE, field_named(name)), snapshot, width=None)
    (line,) = [line for line in text.splitlines() if f" {name} " in line]

    assert "nobody: a struct; `OTELGPU_ENC_SESSIONS`" in line


def test_the_values_of_links_are_summed_up(node: Callable[..., Node]) -> None:
    """Eighteen numbers for each GPU would be no table; a script finds them all, and why nobody tells the others."""
    name = "DCGM_FI_DEV_NVLINK_GET_STATE"
    down = everything().with_gpu(0, fields={(165, link): int(link > 2) for link in range(18)})
    snapshot = node(down, fields=(name,)).sweep()
    text = fields_table((field_named(name),), snapshot, width=None)
    records = {record["name"]: record for record in field_records((field_named(name),), snapshot)}

    assert " yes     18 values, 0 to 1 (all)\n" in text
    assert [reading["value"] for reading in records[name]["readings"]] == [0] * 3 + [1] * 15
    assert records["DCGM_FI_DEV_ENC_STATS"]["reason"].startswith("a struct; ")


def test_a_narrow_terminal_folds_and_loses_nothing() -> None:
    """A UUID that is cut off cannot be pasted."""
    text = devices_table(SNAPSHOT, width=40)

    assert max(map(len, text.splitlines())) <= 40
    assert "…" not in text


def test_a_snapshot_as_json_can_be_read_back() -> None:
    """Names that are no valid Unicode and numbers beyond 2^53 go through."""
    record = json.loads(json_text(snapshot_record(SNAPSHOT)))

    assert record["readings"][2] == {
        "field": "DCGM_FI_DEV_FB_USED",
        "device": "MIG-b",
        "attributes": {},
        "value": 2**63 - 1,
        "unit": NVLINK.unit,
    }
    assert record["missing"][1] == {"field": TEMPERATURE.name, "gap": "lost", "reason": "", "devices": ["GPU-c"]}
    assert record["devices"][0]["instances"] == [{"instance_id": 7, "profile": "1g.10gb", "uuid": "MIG-b"}]


# ---------------------------------------------------------------------------------------------------- log


def record_of(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    trace = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord("otelgpu.sampler", logging.INFO, "x.py", 1, message, arguments, trace)
    record.created, record.msecs = 1796010416.25, 250.0
    return record


def test_a_text_line_says_when_how_bad_who_and_what() -> None:
    """The time is UTC, to the second, as journald and humans sort it."""
    line = TextFormatter().format(record_of("%s is up", "GPU-1"))

    assert line == "2026-11-30T03:46:56Z INFO otelgpu.sampler: GPU-1 is up"


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\u2028b", "a\x85b", "\x1b[31mred", "\udcff", "tab\t", "ü 中"])
@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_record_is_one_line_whatever_it_holds(text: str, formatter: logging.Formatter) -> None:
    """A pod or process name cannot forge a log line, move the cursor or break the encoding."""
    line = formatter.format(record_of("%s", text))

    assert line.isprintable()
    assert line.encode("utf-8").decode("utf-8") == line
    if isinstance(formatter, JsonFormatter):
        assert json.loads(line)["message"] == text


def test_a_json_line_has_the_exception_inside() -> None:
    """A log pipeline gets the traceback with the message, not as forty lines of their own."""
    try:
        raise KeyError("gone")  # noqa: TRY301
    except KeyError as caught:
        record = record_of("sweep failed", error=caught)
    line = json.loads(JsonFormatter().format(record))

    assert {name: line[name] for name in ("time", "level", "logger", "message")} == {
        "time": "2026-11-30T03:46:56.250Z",
        "level": "info",
        "logger": "otelgpu.sampler",
        "message": "sweep failed",
    }
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert TextFormatter().format(record).endswith("\\nKeyError: 'gone'")


def test_a_stack_that_was_asked_for_stays_in_the_line() -> None:
    """What stack_info adds is more lines of the same message."""
    record = record_of("stuck")
    record.stack_info = "Stack (most recent call last):\n  here"

    assert TextFormatter().format(record).endswith("stuck\\nStack (most recent call last):\\n  here")


class _Kept(logging.Handler):
    """Keeps the messages it is handed."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class _Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


Spared: TypeAlias = tuple[SparingHandler, _Kept, _Clock]


@pytest.fixture
def spared() -> Iterator[Spared]:
    """A handler, what it passes on, and its clock."""
    kept, clock = _Kept(), _Clock()
    handler = SparingHandler(kept, window=60, clock=clock)
    yield handler, kept, clock
    handler.close()


def test_a_message_that_comes_again_and_again_is_counted(spared: Spared) -> None:
    """A GPU that comes and goes twice a second fills no disk; how often it did, and how it ended, is told."""
    handler, kept, clock = spared
    for turn in range(20):
        clock.now += 1
        handler.handle(record_of("%s is down: since 2026-11-30T03:46:%sZ", "GPU-1", f"{turn:02}"))
        handler.handle(record_of("%s is back", "GPU-1"))
        handler.handle(record_of("%s is back", f"GPU-2{turn}"))
    before = len(kept.lines)
    clock.now += 60
    left = handler.pass_due()
    after = kept.lines[before:]
    handler.handle(record_of("%s is back", "GPU-1"))

    assert before == 5 + 5 + 20
    assert after == [
        "GPU-1 is down: since 2026-11-30T03:46:19Z (and 14 times more in 60 s)",
        "GPU-1 is back (and 14 times more in 60 s)",
    ]
    assert left is None
    assert kept.lines[before + 2 :] == ["GPU-1 is back"]


def test_one_message_that_was_held_back_is_shown_as_it_is(spared: Spared) -> None:
    """There is nothing to count then."""
    handler, kept, _ = spared
    for _ in range(6):
        handler.handle(record_of("again"))
    handler.close()

    assert kept.lines == ["again"] * 6


def test_what_is_held_back_is_shown_at_the_end(spared: Spared) -> None:
    """The last words of a process are what everybody looks for."""
    handler, kept, _ = spared
    for _ in range(10):
        handler.handle(record_of("again"))
    handler.close()

    assert kept.lines == [*["again"] * 5, "again (and 4 times more in 60 s)"]


def test_debugging_is_not_spared(spared: Spared) -> None:
    """Whoever asks for everything gets everything."""
    handler, kept, _ = spared
    for _ in range(20):
        record = record_of("again")
        record.levelno = logging.DEBUG
        handler.handle(record)

    assert len(kept.lines) == 20


def test_the_memory_for_messages_is_bounded(spared: Spared) -> None:
    """Messages that are never the same push the oldest out, and what was held back of it is shown then."""
    handler, kept, _ = spared
    for _ in range(8):
        handler.handle(record_of("again"))
    for number in range(10_000):
        handler.handle(record_of("%d", number))

    assert len(kept.lines) == 5 + 1 + 10_000
    assert kept.lines.count("again (and 2 times more in 60 s)") == 1
    assert len(vars(handler)["_seen"]) <= 256


def test_what_is_held_back_is_shown_although_nothing_else_is_logged() -> None:
    """The last message may be the one that says that all is well again."""
    kept, clock = _Kept(), _Clock()
    handler = SparingHandler(kept, window=0.05, clock=clock)
    for _ in range(8):
        handler.handle(record_of("again"))
    clock.now += 1
    until(lambda: len(kept.lines) == 6, "the last one")
    handler.close()

    assert kept.lines[5] == "again (and 2 times more in 0.05 s)"


def test_a_message_that_cannot_be_formatted_is_left_to_the_handler(spared: Spared) -> None:
    """A defect in a call of the logger must not take the log along."""
    handler, kept, _ = spared
    with pytest.raises(TypeError):  # what this target does with it; the real one reports it on stderr
        handler.handle(record_of("%d", "x"))
    handler.handle(record_of("good"))

    assert kept.lines == ["good"]


def test_what_is_logged_while_the_log_is_set_up_has_its_form(capsys: pytest.CaptureFixture[str]) -> None:
    """A reload sets it up under a running exporter; whoever reads JSON wants nothing else."""

    class Talking(logging.NullHandler):
        def close(self) -> None:
            super().close()
            logging.getLogger("otelgpu.x").warning("in between")

    before = Talking()
    before.setFormatter(TextFormatter())
    logging.getLogger().addHandler(before)
    set_up(level="info", form="json")

    assert json.loads(capsys.readouterr().err)["message"] == "in between"


def test_setting_up_the_log_twice_logs_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A reload may change the format; each message still comes once, others only from warning on."""
    set_up(level="debug", form="text")
    set_up(level="info", form="json")
    logging.getLogger("otelgpu.x").debug("too small")
    logging.getLogger("otelgpu.x").info("ours")
    logging.getLogger("theirs").info("too small")
    logging.getLogger("theirs").warning("theirs")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(capture=False)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]

    assert [(line["logger"], line["message"].strip()[:6]) for line in lines[:2]] == [
        ("otelgpu.x", "ours"),
        ("theirs", "theirs"),
    ]
    assert [line["logger"] for line in lines[2:]] == ["py.warnings"]


def test_the_commands_of_the_readme_are_understood(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is shown first is typed first. What would serve is stopped by one more flag, with all others understood."""
    (block,) = re.findall(r"(?ms)^## Commands\n\n```sh\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"))
    shown = [line.split() for line in re.findall(r"\botelgpu\b([^#)\n]*)", block)]
    monkeypatch.setenv("OTELGPU_SOURCE", "simulated:1xt4")
    monkeypatch.setenv("OTELGPU_DEVICES", "0")
    Path("f.csv").write_text("DCGM_FI_DEV_GPU_TEMP, gauge, x\n")
    Path("a.prom").write_text(printed(capsys, "once"))
    there = {
        "FILE...": "f.csv",
        "FILE": "r.jsonl",
        "replay:FILE": "replay:r.jsonl",
        "URL_A": "a.prom",
        "URL_B": "a.prom",
    }
    stopped = []
    for words in shown:
        arguments = [there.get(word, word) for word in words]
        if not words or words[0].startswith("-"):
            stopped.append(complaints(capsys, *arguments, "--reuse", "x"))
        else:
            assert printed(capsys, *arguments), arguments

    assert len(shown) == 11
    assert stopped == [(2, ["otelgpu: --reuse x: expected a number of seconds"])] * 3
