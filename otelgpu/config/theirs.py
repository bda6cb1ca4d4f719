"""dcgm-exporter's flags and variables that go by another name here, or are answered without being one of ours.

Where a setting is spelt as there, the setting itself says so (`about(letter=, variable=)`); the rest is a row here.

Rule 1: what dcgm-exporter takes is taken with its meaning, or answered: what otelgpu does not do yet is refused as a
        flag and a warning as a variable, and what has no meaning here is a warning. Its own default asks for nothing.
Rule 2: a spelling that a setting has is the setting's, and has no row here.
Rule 3: of one flag that is given twice the last one counts, as there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from otelgpu.config.given import Flag, Given, Problem
from otelgpu.config.keys import SETTINGS
from otelgpu.config.listed import Remark
from otelgpu.config.values import is_file
from otelgpu.config.words import plain, shown

_TRUE, _FALSE = ("1", "t", "true"), ("0", "f", "false")  # Go's strconv.ParseBool, in small letters
_SHORTEST_MS = 100  # of sampling.interval
EXPORTER, DUMPS = "DCGM_EXPORTER_", "no files are written; `otelgpu once --format json` shows what was read"


class Answer(StrEnum):
    """What becomes of a flag."""

    TAKEN = "taken"
    LATER = "not done yet"
    IDLE = "without meaning here"


@dataclass(frozen=True, slots=True)
class Row:
    """One flag with its short forms and variable. `read` makes our text of theirs, None where that says nothing."""

    flags: tuple[str, ...]
    variable: str
    key: str = ""
    read: Callable[[str], str | None] = str
    answer: Answer = Answer.TAKEN
    why: str = ""
    is_switch: bool = False
    default: str = ""  # asks for nothing


def _file(text: str) -> str:
    if not text:
        raise ValueError("expected a file")
    return text if is_file(text) else f"./{text}"


def _milliseconds(text: str) -> str:
    if not (text.isascii() and text.isdecimal() and text.strip("0")):
        raise ValueError("expected a number of milliseconds, at least 1")
    return f"{max(_number(text), _SHORTEST_MS)}ms"


def _number(text: str) -> int:
    """Read digits; of a number beyond all sense as many as Python takes."""
    return int(text.lstrip("0")[:20])


def _flag(true: str) -> Callable[[str], str | None]:
    return lambda text: true if truth(text) else None


def truth(text: str) -> bool:
    """Read a truth as Go does. Raise ValueError."""
    if text.lower() not in (*_TRUE, *_FALSE):
        raise ValueError("expected true or false")
    return text.lower() in _TRUE


def _later(flags: str, variable: str, why: str, *, default: str = "", is_switch: bool = False) -> Row:
    return Row(_split(flags), variable, answer=Answer.LATER, why=why, default=default, is_switch=is_switch)


def _idle(flags: str, variable: str, why: str, *, default: str = "", is_switch: bool = False) -> Row:
    return Row(_split(flags), variable, answer=Answer.IDLE, why=why, default=default, is_switch=is_switch)


def _split(flags: str) -> tuple[str, ...]:
    return tuple(flags.split())


ROWS = (
    Row(("--collectors", "-f"), EXPORTER + "COLLECTORS", "fields", _file),
    Row(("--address", "-a"), EXPORTER + "LISTEN", "server.listen"),
    Row(("--collect-interval", "-c"), EXPORTER + "INTERVAL", "sampling.interval", _milliseconds),
    Row(("--no-hostname", "-n"), EXPORTER + "NO_HOSTNAME", "hostname", _flag("none"), is_switch=True),
    Row(("--debug",), EXPORTER + "DEBUG", "log.level", _flag("debug"), is_switch=True),
    Row(("--max-concurrent-scrapes",), "", "server.max_requests"),
    _later("--cpu-devices -p", EXPORTER + "CPU_DEVICES_STR", "Grace CPUs are not read", default="f"),
    _later("--switch-devices -s", EXPORTER + "OTHER_DEVICES_STR", "NVSwitches are not read", default="f"),
    _later("--dump-enabled", EXPORTER + "DUMP_ENABLED", DUMPS, is_switch=True),
    _later("--dump-directory", EXPORTER + "DUMP_DIRECTORY", DUMPS, default="/tmp/dcgm-exporter-debug"),  # noqa: S108
    _later("--dump-retention", EXPORTER + "DUMP_RETENTION", DUMPS, default="24"),
    Row(
        ("--dump-compression",),
        EXPORTER + "DUMP_COMPRESSION",
        answer=Answer.IDLE,
        why=DUMPS,
        is_switch=True,
        default="true",
    ),
    _later("--config-file", EXPORTER + "CONFIG_FILE", "its YAML is not read; `--config` takes otelgpu's own settings"),
    _later("--container-labels", "", "containers outside Kubernetes are not asked for", is_switch=True),
    _later("--container-runtime-socket", "", "containers outside Kubernetes are not asked for"),
    _later("--health-require-gpus", "", "see `--expected-gpus` and /readyz", is_switch=True),
    _idle(
        "--fake-gpus",
        EXPORTER + "USE_FAKE_GPUS",
        "`--source simulated:8xh100` shows GPUs where none are",
        is_switch=True,
    ),
    _idle("--enable-dcgm-log", EXPORTER + "ENABLE_DCGM_LOG", "no log of DCGM is written", is_switch=True),
    _idle("--dcgm-log-level", EXPORTER + "DCGM_LOG_LEVEL", "no log of DCGM is written", default="NONE"),
    _idle("--disable-startup-validate", "DISABLE_STARTUP_VALIDATE", "the driver may come later anyway", is_switch=True),
    _idle(
        "--enable-gpu-bind-unbind-watch",
        EXPORTER + "ENABLE_GPU_BIND_UNBIND_WATCH",
        "each sweep sees which GPUs there are",
        is_switch=True,
    ),
    _idle(
        "--gpu-bind-unbind-poll-interval",
        EXPORTER + "GPU_BIND_UNBIND_POLL_INTERVAL",
        "each sweep sees which GPUs there are",
        default="1s",
    ),
    _idle("--enable-pprof", EXPORTER + "ENABLE_PPROF", "there is no Go program to look into", is_switch=True),
    _idle("--enable-exporter-metrics", "", "otelgpu_* are always there", is_switch=True),
    _idle("--web-read-timeout", "", "the server has limits of its own"),
    _idle("--web-write-timeout", "", "the server has limits of its own"),
    _idle("--watch-max-keep-age", "", "nothing is kept beyond the last readings"),
    _idle("--watch-max-keep-samples", "", "nothing is kept beyond the last readings"),
)
FLAGS: Mapping[str, Row] = {flag: row for row in ROWS for flag in row.flags}

# What holds for the program `dcgm-exporter` where nothing is said.
DEFAULTS: Mapping[str, str] = {
    "fields": "/etc/dcgm-exporter/default-counters.csv",
    "sampling.interval": "30",
    "mig.parent_values": "repeat",
}
# Settings whose flag is there a text that is empty by default.
EMPTY = frozenset({"kubernetes.resource_names", "kubernetes.pod_label_allow", "jobs.dir", "dcgm.address"})


def defaults() -> Iterator[Given]:
    """Give back the defaults of dcgm-exporter."""
    for key, text in DEFAULTS.items():
        yield Given(SETTINGS[key], text, "default of dcgm-exporter", "default of dcgm-exporter", text)


def from_their_variables(environ: Mapping[str, str], problems: list[Problem], remarks: list[Remark]) -> Iterator[Given]:
    """Give back what the variables in this table say. An empty one says nothing."""
    for row in ROWS:
        if row.variable and (text := environ.get(row.variable, "")):
            yield from _answered(row, row.variable, text, problems, remarks, is_flag=False)


def from_their_flags(flags: Iterable[Flag], problems: list[Problem], remarks: list[Remark]) -> Iterator[Given]:
    """Give back what the flags in this table say; *flags* may hold others."""
    last = {FLAGS[flag.spelling].flags: flag for flag in flags if not flag.key}
    for flag in last.values():
        yield from _answered(FLAGS[flag.spelling], flag.spelling, flag.text, problems, remarks, is_flag=True)


def _answered(
    row: Row, origin: str, text: str, problems: list[Problem], remarks: list[Remark], *, is_flag: bool
) -> Iterator[Given]:
    text = text.strip()
    place = f"{origin} {plain(text)}" if is_flag else origin
    try:
        says = truth(text) != (row.default == "true") if row.is_switch else text != row.default
        ours = row.read(text) if row.key else None
    except ValueError as error:
        got = "" if is_flag else f", got {shown(text)}"
        problems.append(Problem(f"{place}: {error}{got}"))
        return
    if row.key:
        if ours is not None:
            yield Given(SETTINGS[row.key], ours, origin, place, None if is_flag else text)
        if row.read is _milliseconds and _number(text) < _SHORTEST_MS:
            remarks.append(Remark(f"{place}: the driver is asked each {_SHORTEST_MS} ms, and not more often"))
    elif not says:
        return
    elif row.answer is Answer.LATER and is_flag:
        problems.append(Problem(f"{origin}: not taken by otelgpu: {row.why}"))
    else:
        remarks.append(Remark(f"{origin}: passed over: {row.why}"))
