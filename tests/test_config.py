"""Settings: the YAML file, the environment and the flags, and what is said about mistakes in them."""

import io
import re
import runpy
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from otelgpu import cli, commands
from otelgpu.config import Address, Config, Flag, Pick, SourceChoice, load, parse_address
from otelgpu.config.docs import default_text, flags_table, settings_table, with_flags_table, with_settings_table
from otelgpu.config.keys import SETTINGS
from otelgpu.config.theirs import FLAGS, ROWS
from otelgpu.errors import ConfigError
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run where otelgpu.yaml can be named without a folder, as in the messages below."""
    monkeypatch.chdir(tmp_path)


def loaded(
    text: str | bytes | None = None, *, environ: Mapping[str, str] | None = None, flags: Sequence[Flag] = ()
) -> Config:
    """Load a file of this text (None: no file), an environment and flags."""
    if text is not None:
        Path("otelgpu.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
    return load(environ=environ or {}, flags=flags, config_path=None if text is None else "otelgpu.yaml")


def problems(
    text: str | bytes | None = None, *, environ: Mapping[str, str] | None = None, flags: Sequence[Flag] = ()
) -> list[str]:
    """Give back what is wrong with what is given."""
    with pytest.raises(ConfigError) as caught:
        loaded(text, environ=environ, flags=flags)
    return list(caught.value.problems)


def flag(spelling: str, text: str) -> Flag:
    key = next(setting.key for setting in SETTINGS.values() if spelling in setting.flags)
    return Flag(spelling, key, text)


def test_nothing_given_gives_the_defaults() -> None:
    """A first start with no settings at all serves the default fields of every GPU on :9400."""
    config = loaded()

    assert config == Config()
    assert config.server.listen == (Address(port=9400),)
    assert config.source == SourceChoice("auto")
    assert config.fields == ("default",)
    assert config.devices == (Pick.all(),)
    assert config.origin("sampling.reuse") == "default"


WHOLE_FILE = """\
source: simulated:4xt4+4xl40s
fields: [default, DCGM_FI_DEV_VBIOS_VERSION]
devices: [0, 2-5, GPU-1a2b]
naming: semconv
compat: 4.9
hostname: no
labels:
  rack: 12
  on: yes
server:
  listen:
    - :9400
    - "[::1]:9401"
    - unix:/run/otelgpu.sock
  max_requests: 7
sampling: {reuse: 500ms, deadline: 3, interval: 30s, expire: 1m}
mig.parent_values: repeat
simulated:
  seed: 99
log: {level: DEBUG, format: json}
"""


def test_a_file_can_set_everything() -> None:
    """Texts stay texts: 4.9 is no float, the host name no is not False, rack 12 is "12"."""
    config = loaded(WHOLE_FILE)

    assert config.source == SourceChoice("simulated", "4xt4+4xl40s")
    assert config.fields == ("default", "DCGM_FI_DEV_VBIOS_VERSION")
    assert [str(pick) for pick in config.devices] == ["0", "2-5", "GPU-1a2b"]
    assert (config.naming, config.compat, config.hostname) == ("semconv", ("4.9",), "no")
    assert config.labels == {"rack": "12", "on": "yes"}
    assert config.server.listen == (Address(port=9400), Address("::1", 9401), Address(path="/run/otelgpu.sock"))
    assert config.server.max_requests == 7
    sampling = config.sampling
    assert (sampling.reuse, sampling.deadline, sampling.interval, sampling.expire) == (0.5, 3.0, 30.0, 60.0)
    assert config.mig.parent_values == "repeat"
    assert config.simulated.seed == 99
    assert (config.log.level, config.log.format) == ("debug", "json")


def test_a_flag_goes_over_a_variable_over_the_file() -> None:
    """An operator overrides an image's file by the pod's environment, and both by hand; lists are replaced whole."""
    file = "fields: all\nnaming: semconv\ncompat: 4.9\nlabels: {a: b}\n"
    environ = {"OTELGPU_NAMING": "dcgm", "OTELGPU_COMPAT": "4.8.3", "OTELGPU_LABELS": "c=d, e=f=g"}
    config = loaded(file, environ=environ, flags=[flag("--compat", "4.8.2"), flag("--label", "x=1,2")])

    assert (config.fields, config.naming, config.compat) == (("all",), "dcgm", ("4.8.2",))
    assert config.labels == {"x": "1,2"}
    assert config.origins["fields"] == "otelgpu.yaml:1"
    assert config.origins["naming"] == "OTELGPU_NAMING"
    assert config.origins["compat"] == "--compat"
    assert config.origins["labels"] == "--label"


def test_the_file_can_be_named_by_the_environment() -> None:
    """A container sets OTELGPU_CONFIG once; --config on the command line goes over it."""
    Path("a.yaml").write_text("compat: 4.9")
    Path("b.yaml").write_text("compat: 4.8.3")
    environ = {"OTELGPU_CONFIG": "a.yaml"}

    assert load(environ=environ).compat == ("4.9",)
    assert load(environ=environ, config_path="b.yaml").compat == ("4.8.3",)


def test_a_repeated_flag_adds_to_a_list_and_replaces_a_value() -> None:
    """`--listen` is given once for each address; of two `--reuse` the last counts, so that scripts can append."""
    flags = [
        flag("--listen", ":1"),
        flag("--server-listen", ":2,:3"),
        flag("--reuse", "5"),
        flag("--sampling-reuse", "6"),
        flag("--label", "a=b"),
        flag("--labels", "c="),
    ]
    config = loaded(flags=flags)

    assert [address.port for address in config.server.listen] == [1, 2, 3]
    assert config.sampling.reuse == 6
    assert config.labels == {"a": "b", "c": ""}
    assert config.origin("server.listen", 0) == "--listen"
    assert config.origin("server.listen", 2) == "--server-listen"


def test_an_entry_of_a_list_knows_its_own_line() -> None:
    """A port that turns out to be in use is reported with the line that asked for it."""
    config = loaded("server:\n  listen:\n  - :1\n  - :2\n")

    assert config.origin("server.listen", 1) == "otelgpu.yaml:4"
    assert config.origin("server.listen", 9) == "otelgpu.yaml:4"


@pytest.mark.parametrize(
    "text", ["", "\n# nothing\n", "---\n", "~", "{}", "sampling:", "sampling: {reuse: ~}", "labels:"]
)
def test_nothing_in_the_file_means_not_set(text: str) -> None:
    """An empty file, an empty section and null leave the default, as templates produce them."""
    assert msgspec.structs.replace(loaded(text), origins={}) == Config()


def test_an_empty_variable_means_not_set() -> None:
    """A manifest passes on a value that may be empty: OTELGPU_HOSTNAME=$HOST."""
    environ = {setting.variable: "" for setting in SETTINGS.values()}

    assert loaded(environ={**environ, "OTELGPU_CONFIG": ""}) == Config()


def test_a_byte_order_mark_does_no_harm() -> None:
    """Editors on Windows write one."""
    assert loaded(b"\xef\xbb\xbfcompat: 4.9").compat == ("4.9",)


def test_an_alias_repeats_a_value() -> None:
    """Anchors on values are ordinary YAML."""
    config = loaded("sampling: {reuse: &a 3, deadline: *a}\nfields: &f [all]\n")

    assert (config.sampling.reuse, config.sampling.deadline) == (3, 3)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1", 1), ("2.", 2), ("500ms", 0.5), ("300ms", 0.3), ("30s", 30), ("1m", 60), ("1.5 s", 1.5), ("1e1", 10)],
)
def test_durations_are_seconds_or_say_their_unit(text: str, seconds: float) -> None:
    """Both 0.5 and 500ms are what people type; 300ms is 0.3 exactly."""
    assert loaded(environ={"OTELGPU_SAMPLING_DEADLINE": text}).sampling.deadline == seconds


def test_null_asks_for_no_interval() -> None:
    """A flag can take back an interval that the file sets."""
    assert loaded("sampling: {interval: 5}", flags=[flag("--interval", "null")]).sampling.interval is None


@pytest.mark.parametrize(("interval", "expire"), [(None, 10.0), (2.0, 10.0), (60.0, 180.0)])
def test_readings_expire_after_ten_seconds_or_three_intervals(interval: float | None, expire: float) -> None:
    """A slow interval must not blank the page between two sweeps."""
    config = msgspec.structs.replace(Config().sampling, interval=interval)

    assert config.expire_after == expire


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":9400", Address(port=9400)),
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("[::1]:9400", Address("::1", 9400)),
        ("[fe80::1%eth0]:80", Address("fe80::1%eth0", 80)),
        ("gpu-node_1.example.:65535", Address("gpu-node_1.example.", 65535)),
        (f"{'a' * 63}.b:80", Address(f"{'a' * 63}.b", 80)),
        ("unix:/run/o.sock", Address(path="/run/o.sock")),
    ],
)
def test_an_address_is_read_and_shown_the_same(text: str, address: Address) -> None:
    """What is logged can be pasted into the settings again."""
    assert parse_address(text) == address
    assert str(address) == text


SHAPE = "an address is :PORT, HOST:PORT, [IPV6]:PORT or unix:/PATH"
BRACKETS = "an IPv6 address stands in brackets, as in [::1]:9400"
PORT = "a port is 0 to 65535"
LABEL = "a host name has 1 to 63 characters between two dots"
UNIX = "a unix socket is written unix:/PATH, with the whole path"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("9400x", PORT),
        (":65536", PORT),
        (":", PORT),
        (":-1", PORT),
        (":٣", PORT),
        ("host:", PORT),
        ("", SHAPE),
        ("localhost", SHAPE),
        ("127.0.0.1", SHAPE),
        ("9400", f"{SHAPE}; did you mean :9400?"),
        ("256.0.0.1:80", SHAPE),
        ("a b:80", SHAPE),
        ("http://x:80", BRACKETS),
        ("*:80", SHAPE),
        ("a..b:80", LABEL),
        (f"a.{'b' * 64}:80", LABEL),
        ("::1:9400", BRACKETS),
        ("[::1:9400", BRACKETS),
        ("[127.0.0.1]:9400", BRACKETS),
        ("[:\0:1]:9400", BRACKETS),
        ("unix:", UNIX),
        ("unix:run.sock", UNIX),
        ("unix:/run/", UNIX),
        (f"unix:/{'x' * 107}", "the path of a unix socket has at most 107 bytes"),
    ],
)
def test_a_wrong_address_says_what_would_be_right(text: str, problem: str) -> None:
    """A typing mistake is found at start, not as a server that nobody can reach."""
    with pytest.raises(ValueError, match=f"^{re.escape(problem)}$"):
        parse_address(text)


GPU = {"index": 3, "uuid": "GPU-1A2b", "pci_bus_id": "00000000:8D:00.0"}


@pytest.mark.parametrize(
    ("text", "picked"),
    [
        ("all", True),
        ("3", True),
        ("4", False),
        ("0,2-5", True),
        ("0-2", False),
        ("gpu-1a2B", True),
        ("GPU-1a", False),
        ("8d:00.0", True),
        ("0000:8D:00.0", True),
        ("00000000:8d:00.0", True),
        ("8d:00.1", False),
        ("00000001:8d:00.0", False),
    ],
)
def test_devices_pick_by_index_uuid_or_bus_id(text: str, picked: bool) -> None:  # noqa: FBT001  (a table's column)
    """Whatever nvidia-smi prints for a GPU can be pasted, in capitals or not, with or without leading zeros."""
    config = loaded(environ={"OTELGPU_DEVICES": text})

    assert any(pick.matches(**GPU) for pick in config.devices) is picked  # type: ignore[arg-type]


PICK = (
    "expected all, an index (0), a range (2-5), a GPU's UUID (GPU-...) or a PCI bus id (00000000:8D:00.0); behind "
    "g: GPUs without their MIG instances, behind i: instances by number"
)
TOO_MUCH = "x" * 61

FILE_PROBLEMS: dict[str, tuple[str | bytes, list[str] | None]] = {
    "unknown key": (
        "sampling: {dedline: 3}",
        ["1: sampling.dedline: no such setting; did you mean sampling.deadline?"],
    ),
    "key without its section": ("\nreuse: 3", ["2: reuse: no such setting; did you mean sampling.reuse?"]),
    "unknown section": ("semplin:\n  x: 3", ["1: semplin: no such setting; did you mean sampling?"]),
    "nothing like it": ("qqq: 3", ["1: qqq: no such setting"]),
    "strange key": ('"a\\n": 3', ['1: "a\\n": no such setting']),
    "twice": ("naming: dcgm\nnaming: dcgm", ["2: naming: set twice, first in line 1"]),
    "twice in one line": ("{naming: dcgm, naming: dcgm}", ["1: naming: set twice, first in line 1"]),
    "twice in two ways": ("log.level: info\nlog:\n  level: info", ["3: log.level: set twice, first in line 1"]),
    "section twice": ("log: {level: info}\nlog: {format: json}", ["2: log: set twice, first in line 1"]),
    "label twice": ("labels: {a: b, a: c}", ["1: labels.a: set twice, first in line 1"]),
    "list at the top": ("- a", ["1: expected settings, such as naming: dcgm, got a list"]),
    "text at the top": ("hello", ['1: expected settings, such as naming: dcgm, got "hello"']),
    "text for a section": ("log: info", ['1: log: expected settings, such as naming: dcgm, got "info"']),
    "list for a value": ("naming: [dcgm]", ["1: naming: expected one value, got a list"]),
    "mapping for a value": ("naming:\n  dcgm: x", ["2: naming: expected one value, got a mapping"]),
    "mapping for a list": ("fields: {a: b}", ["1: fields: expected a list, got a mapping"]),
    "list in a list": ("fields: [[a]]", ["1: fields: expected one value, got a list"]),
    "nothing in a list": ("fields: [all, ~]", ["1: fields: expected one value, got nothing"]),
    "empty list": ("fields: []", ["1: fields: expected at least one"]),
    "list for labels": ("labels: [a=b]", ["1: labels: expected NAME: VALUE lines, got a list"]),
    "list for a label": ("labels: {a: [b]}", ["1: labels.a: expected text, got a list"]),
    "key that is no word": ("[a]: b", ["1: a key is one word, not a list"]),
    "merge key": ("log:\n  <<: {a: b}", ["2: log: merge keys (<<) are not understood; write the settings out"]),
    "tag": ("naming: !foo dcgm", ['1: naming: expected one value, got the tag "!foo"']),
    "python tag": ("naming: !!python/name:os.system x", None),
    "set": ("!!set {naming}", ['1: expected settings, such as naming: dcgm, got the tag "!!set"']),
    "tab": ("log:\n\tlevel: info", ["2: a tab cannot indent; use spaces"]),
    "open quote": ('naming: "dcgm\n', None),
    "undefined alias": ("\nnaming: *x", ["2: not YAML: found undefined alias"]),
    "recursion": ("a: &a\n  - *a", ["2: *a stands inside what it names"]),
    "depth": ("[" * 25, ["1: nested too deeply"]),
    "depth without end": ("[" * 100_000, None),
    "two documents": (
        "naming: dcgm\n---\nnaming: dcgm",
        ["2: a second document begins here; settings are one document"],
    ),
    "not UTF-8": (b"naming: dcgm\nhostname: \xff", ["2: not UTF-8 (byte 0xff)"]),
    "UTF-16": ("naming: dcgm".encode("utf-16"), ["1: not UTF-8 (byte 0xff)"]),
    "NUL": ("naming: dcgm\n\0", ['2: the character "\\x00" may not stand in YAML']),
    "no number": ("sampling: {deadline: fast}", ['1: sampling.deadline: expected a number of seconds, got "fast"']),
    "no finite number": ("sampling: {reuse: .nan}", ['1: sampling.reuse: expected a number of seconds, got ".nan"']),
    "infinity": ("sampling: {reuse: inf}", ['1: sampling.reuse: expected a number of seconds, got "inf"']),
    "overflow": ("sampling: {reuse: 1e99}", ['1: sampling.reuse: expected 0 to 60 seconds, got "1e99"']),
    "Arabic digit": ("sampling: {reuse: ٣}", ['1: sampling.reuse: expected a number of seconds, got "٣"']),
    "Arabic port": ("server: {listen: [':٣']}", ['1: server.listen: a port is 0 to 65535, got ":٣"']),
    "Arabic port alone": (
        "server: {listen: [٣]}",
        ['1: server.listen: an address is :PORT, HOST:PORT, [IPV6]:PORT or unix:/PATH, got "٣"'],
    ),
    "Arabic index": ("devices: [٣]", [f'1: devices: {PICK}, got "٣"']),
    "Arabic whole number": (
        "server: {max_requests: ٣}",
        ['1: server.max_requests: expected a whole number from 1 to 10000, got "٣"'],
    ),
    "Kelvin sign in a UUID": ("devices: [GPU-\u212a]", [f'1: devices: {PICK}, got "GPU-\u212a"']),
    "Kelvin sign in a word": (
        "otlp: {histograms: explicit_buc\u212aet_histogram}",
        [
            (
                "1: otlp.histograms: expected explicit_bucket_histogram or base2_exponential_bucket_histogram, got "
                '"explicit_buc\u212aet_histogram"'
            )
        ],
    ),
    "not positive": (
        "sampling: {deadline: 0}",
        ['1: sampling.deadline: expected more than 0 and at most 60 seconds, got "0"'],
    ),
    "number or null": (
        "sampling: {interval: x, expire: 3601}",
        [
            '1: sampling.interval: expected a number of seconds or null, got "x"',
            '1: sampling.expire: expected more than 0 and at most 3600 seconds or null, got "3601"',
        ],
    ),
    "no whole number": (
        "server: {max_requests: 0.5}",
        ['1: server.max_requests: expected a whole number from 1 to 10000, got "0.5"'],
    ),
    "digits without end": (
        f"simulated: {{seed: {'9' * 5000}}}",
        [f'1: simulated.seed: expected a whole number from 0 to {2**63 - 1}, got "{"9" * 60}..." (5000 characters)'],
    ),
    "no choice": ("log: {level: loud}", ['1: log.level: expected debug, info, warning or error, got "loud"']),
    "escapes": (
        'naming: "a\\u202e\\"\\\\\\u001b"',
        ['1: naming: expected dcgm or semconv, got "a\\u202e\\"\\\\\\x1b"'],
    ),
    "long text": (f"naming: {TOO_MUCH}", [f'1: naming: expected dcgm or semconv, got "{"x" * 60}..." (61 characters)']),
    "unknown source": (
        "source: nscq",
        [
            (
                "1: source: expected auto, nvml, dcgm, simulated, simulated:SPEC (such as simulated:8xh100) or "
                'replay:FILE, got "nscq"'
            )
        ],
    ),
    "unknown field": (
        "fields:\n- all\n- DCGM_FI_DEV_GPU_TMP",
        ['3: fields: no such field; did you mean DCGM_FI_DEV_GPU_TEMP?, got "DCGM_FI_DEV_GPU_TMP"'],
    ),
    "word in capitals": ("fields: All", ['1: fields: no such field; did you mean all?, got "All"']),
    "nothing like a field": ("fields: xyz", ['1: fields: no such field; `otelgpu fields` lists them, got "xyz"']),
    "number without end": ("fields: " + "9" * 5000, None),
    "index without end": ("devices: 0-99999", ['1: devices: an index is 0 to 9999, got "0-99999"']),
    "none and more": ("fields: none,all", ['1: fields: none stands alone, got "none"']),
    "MIG instance": (
        "devices: MIG-1a2b",
        [f'1: devices: {PICK}, got "MIG-1a2b"'],
    ),
    "reversed range": ("devices: [5-2]", ['1: devices: a range goes up; did you mean 2-5?, got "5-2"']),
    "generation twice": ("compat: [4.8.2, 4.8.2]", ['1: compat: given twice, got "4.8.2"']),
    "three generations": ("compat: 4.8.2,4.8.3,4.9", ['1: compat: expected at most two generations, got "4.9"']),
    "unknown generation": ("compat: [4.8.2, 4.7]", ['1: compat: expected 4.8.2, 4.8.3 or 4.9, got "4.7"']),
    "generations of semconv": (
        "naming: semconv\ncompat: [4.8.2, 4.9]",
        ['2: compat: a second generation has no place on a page with naming semconv, got "4.9"'],
    ),
    "address twice": (
        "server: {listen: [':1', ':1', ':0', ':0']}",
        ['1: server.listen: given twice, got ":1"'],
    ),
    **{
        f"label {name}": (f"labels: {{{name}: x}}", [f"1: labels.{name}: otelgpu sets this label itself"])
        for name in ("error_type", "network_io_direction")
    },
    "label of ours": ("labels: {UUID: x}", ["1: labels.UUID: otelgpu sets this label itself"]),
    "label field": ("labels: {DCGM_FI_X: x}", ["1: labels.DCGM_FI_X: otelgpu sets this label itself"]),
    "label of Prometheus": ("labels: {__a: x}", ["1: labels.__a: label names that begin with __ belong to Prometheus"]),
    "no label name": (
        "labels: {a-b: x}",
        ["1: labels.a-b: a label name is letters, digits and _, and no digit comes first"],
    ),
    "in the order of the lines": (
        "naming: x\nfoo: 1\ncompat: 5\n- b",
        None,
    ),
}


@pytest.mark.parametrize("case", FILE_PROBLEMS)
def test_a_mistake_in_the_file_is_one_line_with_its_place(case: str) -> None:
    """Whoever edits a ConfigMap sees the line and what would be right there, not a traceback."""
    text, expected = FILE_PROBLEMS[case]
    found = problems(text)

    if expected is None:  # the words are libyaml's
        assert len(found) == 1
        assert re.match(r"otelgpu\.yaml:[0-9]+: \S", found[0])
    else:
        assert found == [f"otelgpu.yaml:{line}" for line in expected]


def test_every_problem_is_reported_at_once_in_order() -> None:
    """Three mistakes cost one restart, not three; a bad value is reported even where a better one overrides it."""
    found = problems(
        "naming: x\nfoo: 1\nsampling:\n  deadline: fast\n",
        environ={
            "OTELGPU_SAMPLING_INTERVL": "1",
            "OTELGPU_SAMPLING_REUSE": "61",
            "OTELGPU_LABELS": "a=b,c,a=d",
            "OTELGPU_FIELDS": ",",
            "OTHER": "1",
        },
        flags=[
            flag("--naming", "dcgm"),
            flag("--listen", "9400x"),
            flag("--hostname", "\udcff"),
            flag("--devices", ""),
        ],
    )

    assert found == [
        'otelgpu.yaml:1: naming: expected dcgm or semconv, got "x"',
        "otelgpu.yaml:2: foo: no such setting",
        'otelgpu.yaml:4: sampling.deadline: expected a number of seconds, got "fast"',
        "OTELGPU_SAMPLING_INTERVL: no such setting; did you mean OTELGPU_SAMPLING_INTERVAL?",
        'OTELGPU_FIELDS: expected at least one, got ","',
        'OTELGPU_LABELS: expected NAME=VALUE, got "c"',
        'OTELGPU_LABELS: this label is set twice, got "a=d"',
        'OTELGPU_SAMPLING_REUSE: expected 0 to 60 seconds, got "61"',
        "--listen 9400x: a port is 0 to 65535",
        '--hostname "\\udcff": expected text in UTF-8',
        '--devices "": expected at least one',
    ]


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("missing.yaml", "no such file or directory"),
        (".", "is a directory"),
        ("", "expected a file name"),
        ("a\0b", "not a file name"),
        ("/dev/zero", "larger than 1 MiB, so not a settings file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(path: str, problem: str) -> None:
    """A volume that was not mounted is told from a wrong setting."""
    shown = path if path not in ("", "a\0b") else '"' + path.replace("\0", "\\x00") + '"'
    with pytest.raises(ConfigError, match=f"^--config {re.escape(shown)}: {problem}$"):
        load(environ={}, config_path=path)
    if path:
        with pytest.raises(ConfigError, match=f"^OTELGPU_CONFIG: {re.escape(shown)}: {problem}$"):
            load(environ={"OTELGPU_CONFIG": path})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("OTELGPU_PORT", "tcp://10.0.0.7:9400"),
        ("OTELGPU_SERVICE_HOST", "10.0.0.7"),
        ("OTELGPU_SERVICE_PORT", "9400"),
        ("OTELGPU_SERVICE_PORT_METRICS", "9400"),
        ("OTELGPU_PORT_9400_TCP", "tcp://10.0.0.7:9400"),
        ("OTELGPU_PORT_9400_TCP_ADDR", "10.0.0.7"),
        ("OTELGPU_WEB_PORT_9400_TCP_PROTO", "tcp"),
    ],
)
def test_variables_that_kubernetes_makes_for_a_service_are_passed_over(name: str, text: str) -> None:
    """A Service named otelgpu puts these into every pod of its namespace; they must not stop the exporter."""
    assert loaded(environ={name: text}) == Config()


def test_a_port_variable_that_a_person_made_is_a_problem() -> None:
    """OTELGPU_PORT=9400 looks like a setting and would do nothing."""
    assert problems(environ={"OTELGPU_PORT": "9400"}) == ["OTELGPU_PORT: no such setting"]


@pytest.mark.parametrize(
    ("text", "flags", "problem"),
    [
        (
            "sampling:\n  interval: 30\n  expire: 5\n",
            (),
            (
                "otelgpu.yaml:3: sampling.expire: expected at least sampling.interval, "
                'which is 30 s (otelgpu.yaml:2), got "5"'
            ),
        ),
        (
            "sampling: {expire: 5}",
            [Flag("--reuse", "sampling.reuse", "6")],
            'otelgpu.yaml:1: sampling.expire: expected at least sampling.reuse, which is 6 s (--reuse), got "5"',
        ),
        (
            None,
            [Flag("--expire", "sampling.expire", "500ms")],
            "--expire 500ms: expected at least sampling.reuse, which is 1 s (default)",
        ),
        (
            None,
            [Flag("--reuse", "sampling.reuse", "30")],
            "--reuse 30: expected at most sampling.expire, which is 10 s while not set",
        ),
    ],
)
def test_readings_may_not_expire_before_they_are_replaced(
    text: str | None, flags: Sequence[Flag], problem: str
) -> None:
    """Such settings would serve an empty page between two sweeps, and nobody would know why."""
    assert problems(text, flags=flags) == [problem]


def test_a_spec_is_judged_by_whoever_knows_it() -> None:
    """The settings do not know the models that can be simulated; the source does, and the place is still named."""

    def parse_spec(spec: str) -> None:
        if spec != "8xh100":
            raise ValueError(f"no {spec} here")

    assert load(environ={"OTELGPU_SOURCE": "simulated"}, parse_spec=parse_spec).source.spec == "8xh100"
    with pytest.raises(ConfigError, match=r'^OTELGPU_SOURCE: no 9xq here, got "simulated:9xq"$'):
        load(environ={"OTELGPU_SOURCE": "simulated:9xq"}, parse_spec=parse_spec)


def test_every_setting_has_one_word_everywhere() -> None:
    """Who knows the key knows the flag and the variable, and no two settings share one."""
    flags = [spelling for setting in SETTINGS.values() for spelling in setting.flags]

    assert len(set(flags)) == len(flags)
    assert SETTINGS["server.max_requests"].variable == "OTELGPU_SERVER_MAX_REQUESTS"
    assert SETTINGS["server.max_requests"].flags == ("--server-max-requests",)
    assert all(setting.meaning.endswith(".") for setting in SETTINGS.values())


def test_every_default_is_a_value_that_can_be_given() -> None:
    """A default that the checks refuse could not be restored by hand."""
    table = re.findall(r"\| `(OTELGPU_\w+)`(?:, `\w+`)? \| `([^`]+)` \|", settings_table())

    empty = [setting.key for setting in SETTINGS.values() if not default_text(setting)]

    assert len(table) == len(SETTINGS) - len(empty)
    assert msgspec.structs.replace(loaded(environ=dict(table)), origins={}) == Config()


def test_the_readme_lists_every_setting() -> None:
    """The table in the README is made from the code, so it cannot fall behind."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert with_settings_table(readme) == readme, "the settings in README.md are out of date: run `make golden`"


def test_the_page_on_moving_lists_every_flag_of_dcgm_exporter() -> None:
    """Whoever moves looks up there what becomes of his command line."""
    page = (ROOT / "docs" / "migrate-from-dcgm-exporter.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`(-[a-z-]+)`", flags_table()))

    assert with_flags_table(page) == page, "the flags in that page are out of date: run `make golden`"
    assert told >= {*FLAGS, "--kubernetes", "-k", "-d", "-o", "-m", "-x", "--web-config-file", "--rbmn"}


def test_the_table_is_put_between_its_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make golden` rewrites the table and leaves the rest of the README alone."""
    readme = Path("README.md")
    readme.write_text("# before\n<!-- settings -->\nold\n<!-- /settings -->\nafter\n")
    monkeypatch.setattr(sys, "argv", ["docs", "README.md"])
    monkeypatch.delitem(sys.modules, "otelgpu.config.docs")  # else runpy warns that it is there already
    runpy.run_module("otelgpu.config.docs", run_name="__main__")

    assert readme.read_text() == f"# before\n<!-- settings -->\n{settings_table()}<!-- /settings -->\nafter\n"


@pytest.mark.parametrize("text", ["", "<!-- settings -->", "<!-- /settings --><!-- settings -->"])
def test_a_readme_without_markers_is_refused(text: str) -> None:
    """Rather no table than one in the wrong place."""
    with pytest.raises(ValueError, match=r"^expected one <!-- settings --> and one <!-- /settings --> after it$"):
        with_settings_table(text)


MANY = 5000
MANY_GIVEN: dict[str, tuple[str, Mapping[str, str], Sequence[Flag]]] = {
    "fields in the file": ("fields:\n" + "".join(f"- DCGM_FI_DEV_GPU_TMP{n}\n" for n in range(MANY)), {}, ()),
    "fields in a flag": ("", {}, [flag("--fields", ",".join(f"DCGM_FI_DEV_GPU_TMP{n}" for n in range(MANY)))]),
    "keys": ("".join(f"sampling.dedline{n}: 1\n" for n in range(MANY)), {}, ()),
    "keys in a section": ("sampling:\n" + "".join(f"  dedline{n}: 1\n" for n in range(MANY)), {}, ()),
    "variables": ("", {f"OTELGPU_SAMPLING_REUSE{n:04}": "1" for n in range(MANY)}, ()),
    "devices": ("devices:\n" + "".join(f"- GPU_{n}\n" for n in range(MANY)), {}, ()),
    "labels": ("labels:\n" + "".join(f"  a-{n}: x\n" for n in range(MANY)), {}, ()),
    "addresses": ("server:\n  listen:\n" + "".join(f"  - {n}x\n" for n in range(MANY)), {}, ()),
}


@pytest.mark.parametrize("case", MANY_GIVEN)
def test_thousands_of_mistakes_are_all_told_at_once(case: str) -> None:
    """A list of another program takes no twelve seconds to refuse: a guess at what was meant costs milliseconds."""
    text, environ, flags = MANY_GIVEN[case]
    began = time.process_time()
    found = problems(text, environ=environ, flags=flags)
    took = time.process_time() - began

    guesses = ["did you mean" in problem for problem in found]
    assert len(found) == MANY
    assert guesses in ([True] * 20 + [False] * (MANY - 20), [False] * MANY)
    assert any(guesses) is (case not in ("devices", "labels", "addresses"))
    assert took < 4  # seconds; most of it is YAML's


THEIRS = [one.theirs for one in SETTINGS.values() if one.theirs]
PLACE = re.compile(rf"\"?(otelgpu\.yaml:[0-9]+: |OTELGPU_|{'|'.join(THEIRS)}|-[a-z] |--(config|[a-z-]+) ?)")
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=20),
    st.sampled_from(
        ("1", "-1", "nan", "1e400", "9" * 5000, "null", ":0", "[::]:1", "a=b", "0-99999", "unix:/", "GPU-")
    ),
)
VISIBLE = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)
KEYS = st.sampled_from((*SETTINGS, "sampling", "log", "x.y", "<<", "a: &a [*a]\nb"))
LINES = st.builds(lambda key, text: f"{key}: {text}", KEYS, TEXTS)
FILES = st.one_of(
    st.binary(max_size=60),
    st.lists(LINES, max_size=5).map(lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass")),
    st.text(st.sampled_from("{}[]:,-&*!|>'\"%@\n\t ab1"), max_size=40).map(str.encode),
)


ANYTHING = {
    "file": FILES,
    "environ": st.dictionaries(
        st.one_of(
            TEXTS.map("OTELGPU_".__add__),
            st.sampled_from([*(one.variable for one in SETTINGS.values()), *THEIRS]),
        ),
        TEXTS,
    ),
    "flags": st.lists(
        st.sampled_from(tuple(SETTINGS.values())).flatmap(
            lambda one: st.builds(Flag, st.sampled_from(one.flags), st.just(one.key), TEXTS)
        )
    ),
}


def _check(file: bytes, environ: dict[str, str], flags: list[Flag]) -> None:
    """No text from outside may end as a traceback, or as a problem that does not say where it is."""
    found: Sequence[str] = ()
    try:
        loaded(file, environ={name: text for name, text in environ.items() if name != "OTELGPU_CONFIG"}, flags=flags)
    except ConfigError as error:
        found = error.problems or ["no problem, and yet an error"]

    for problem in found:
        assert problem.isprintable()
        assert PLACE.match(problem), problem


@given(**ANYTHING)
def test_whatever_is_given_ends_as_settings_or_problems(
    file: bytes, environ: dict[str, str], flags: list[Flag]
) -> None:
    """File, environment and flags at once, as they may come from templates and hands."""
    _check(file, environ, flags)


@pytest.mark.soak
@settings(max_examples=20_000)
@given(**ANYTHING)
def test_whatever_is_given_ends_as_settings_or_problems_for_long(
    file: bytes, environ: dict[str, str], flags: list[Flag]
) -> None:
    """The same for many more than there is time for otherwise."""
    _check(file, environ, flags)


SPELLINGS = ("--config", *FLAGS, *(name for one in SETTINGS.values() for name in one.flags))
WORDS = st.one_of(
    st.builds(
        lambda dash, name, sign, text: f"{dash}{name}{sign}{text if sign else ''}",
        st.sampled_from(("-", "--")),
        st.sampled_from([name.lstrip("-") for name in SPELLINGS]),
        st.sampled_from(("", "=")),
        TEXTS,
    ),
    st.sampled_from(("-f", "-c=30000", "-collectors", "-kubernetes=T", "--", "-", "-kn", "-m=a:b", "--no-such", "=")),
    TEXTS,
)
TYPED = {
    "words": st.lists(WORDS, max_size=6),
    "environ": st.dictionaries(st.sampled_from([row.variable for row in ROWS if row.variable]), VISIBLE, max_size=4),
    "program": st.sampled_from(("otelgpu", "dcgm-exporter")),
}
TOLD = re.compile(r"otelgpu: \S.*")


def _check_typed(words: list[str], environ: dict[str, str], program: str) -> None:
    """Whatever is typed ends as a start, or as status 2 with finished lines, each of them told once."""
    said, served = io.StringIO(), list[Config]()

    def serve(config: Config, _: str) -> int:
        served.append(config)
        return 0

    with pytest.MonkeyPatch.context() as patch, redirect_stderr(said), redirect_stdout(io.StringIO()):
        for name, text in environ.items():
            patch.setenv(name, text)
        patch.setattr(commands, "serve", serve)
        patch.setitem(cli._COMMANDS, "serve", (serve, (), ""))  # noqa: SLF001 - where the commands are looked up
        drop_in = program == cli.DROP_IN
        status = cli.main(words if drop_in else ["serve", *words], drop_in=drop_in)
    lines = said.getvalue().splitlines()

    assert (status, bool(lines)) in {(0, False), (2, True)}
    assert len(served) == (status == 0 and not {"-h", "--help", "-v", "--version"} & {*words})
    assert all(TOLD.fullmatch(line) and line.isprintable() for line in lines)
    assert len({*lines}) == len(lines)


@settings(max_examples=40)
@given(**TYPED)
@example(words=[f"-collect-interval={'9' * 5000}"], environ={"DCGM_EXPORTER_INTERVAL": "0" * 5000}, program="otelgpu")
def test_whatever_is_typed_ends_as_a_start_or_as_problems(
    words: list[str], environ: dict[str, str], program: str
) -> None:
    """Of our own flags and theirs, in Go's spelling and ours, with the variables that charts set."""
    _check_typed(words, environ, program)


@pytest.mark.soak
@settings(max_examples=10_000)
@given(**TYPED)
def test_whatever_is_typed_ends_as_a_start_or_as_problems_for_long(
    words: list[str], environ: dict[str, str], program: str
) -> None:
    """The same for many more than there is time for otherwise."""
    _check_typed(words, environ, program)


def test_headers_that_are_no_mapping_are_not_repeated(tmp_path: Path) -> None:
    """What stands there is often a password, and a message goes into logs."""
    path = tmp_path / "otelgpu.yaml"
    path.write_text('otlp:\n  endpoint: http://a:1\n  headers: "authorization: hush"\n')

    with pytest.raises(ConfigError) as caught:
        load(environ={}, config_path=str(path))
    assert caught.value.problems == (f"{path}:3: otlp.headers: expected NAME: VALUE lines, got one text",)
