"""The program `dcgm-exporter`: its command line, its environment, its defaults, and what is said about the rest."""

import importlib
import re
import signal
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from otelgpu.config import Address, Config, Flag, load
from otelgpu.config.keys import SETTINGS
from otelgpu.config.theirs import FLAGS, ROWS
from otelgpu.errors import ConfigError
from otelgpu.fields import DEFAULT_FIELDS
from tests.conftest import ROOT, Golden
from tests.fakenvml import models
from tests.harness import DROP_IN, command, lines_of, serving

# What takes two sweeps, or a vGPU.
RATES = {field.name for field in DEFAULT_FIELDS if "PROF" in field.name} | {
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS",
}
DEFAULT_CSV = "/etc/dcgm-exporter/default-counters.csv"
FLAG_OF = {flag: setting.key for setting in SETTINGS.values() for flag in setting.flags} | dict.fromkeys(FLAGS, "")


def given(flags: Sequence[str] = (), environ: Mapping[str, str] | None = None, *, drop_in: bool = True) -> Config:
    """Load what the flags, written `--flag=text`, and an environment say."""
    pairs = [text.partition("=") for text in flags]
    typed = [Flag(spelling, FLAG_OF[spelling], text if sign else "true") for spelling, sign, text in pairs]
    return load(environ=environ or {}, flags=typed, drop_in=drop_in)


def problems(flags: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        given(flags, environ)
    return list(caught.value.problems)


def remarks(flags: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> list[str]:
    """What is logged, but for the default file that is not here."""
    return [remark.text for remark in given(flags, environ).remarks if "is not there" not in remark.text]


# ---- its defaults, and what deployments give it


def test_its_defaults_are_dcgm_exporters() -> None:
    """Whoever only changes the image has the same pace, the same values on MIG instances and the same fields."""
    config = given()

    assert config.sampling.interval == 30
    assert config.mig.parent_values == "repeat"
    assert config.server.listen == (Address(port=9400),)
    assert config.fields == ("default",)
    assert given(drop_in=False) == Config()


STATIC = {"DCGM_EXPORTER_LISTEN": ":9400", "DCGM_EXPORTER_KUBERNETES": "true"}
HELM = {**STATIC, "NODE_NAME": "node-7"}
OPERATOR = {
    "DCGM_EXPORTER_LISTEN": ":9400",
    "DCGM_EXPORTER_KUBERNETES": "true",
    "DCGM_EXPORTER_COLLECTORS": "/etc/dcgm-exporter/dcp-metrics-included.csv",
    "NODE_NAME": "node-7",
}
DEPLOYED: dict[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "static DaemonSet": ((), STATIC),
    "Helm chart": (("-f", DEFAULT_CSV), HELM),
    "gpu-operator": ((), OPERATOR),
    "gpu-operator with a host engine": ((), {**OPERATOR, "DCGM_REMOTE_HOSTENGINE_INFO": "nvidia-dcgm:5555"}),
    "Helm chart with all that it can switch on": (
        ("-f", DEFAULT_CSV),
        {
            **HELM,
            "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS": "true",
            "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID": "true",
            "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX": "^app$,^team",
            "KUBERNETES_ENABLE_DRA": "true",
        },
    ),
}


@pytest.mark.parametrize("name", DEPLOYED)
def test_a_deployment_of_theirs_serves_the_same_families(name: str, tmp_path: Path) -> None:
    """The arguments and the environment of each deployment, with another image, and no word more."""
    arguments, environ = DEPLOYED[name]
    listen = {**environ, "DCGM_EXPORTER_LISTEN": "127.0.0.1:0"}
    with serving(models.h100(2), tmp_path, *arguments, "--listen=127.0.0.1:0", environ=listen, program=DROP_IN) as it:
        page = it.page()
        status = it.stop(signal.SIGTERM)

    assert {line.labels["gpu"] for line in lines_of(page) if line.name == "DCGM_FI_DEV_GPU_TEMP"} == {"0", "1"}
    shown = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE DCGM_")}
    assert shown >= {field.name for field in DEFAULT_FIELDS if field.is_numeric} - RATES
    assert all("DCGM_FI_DRIVER_VERSION" in line.labels for line in lines_of(page) if line.name.startswith("DCGM_"))
    # There is no libdcgm in this place, so the driver is asked, and the log says once why.
    said = "DCGM_REMOTE_HOSTENGINE_INFO: no host engine is asked, but the driver of this machine: libdcgm.so.4 and"
    assert it.logged(said) == ("host engine" in name)
    assert status == 0


def test_what_deployments_give_is_understood() -> None:
    """The literal environment, to the letter, as settings."""
    config = given(["-f=" + DEFAULT_CSV], HELM)

    assert config.server.listen == (Address(port=9400),)
    assert config.kubernetes.enabled
    assert config.kubernetes.node == "node-7"
    assert given([], OPERATOR).fields == ("default",)


def test_the_console_script_is_there() -> None:
    """An image's entry point names it."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["dcgm-exporter"].partition(":")

    assert callable(getattr(importlib.import_module(module), function))


def test_help_shows_their_flags(tmp_path: Path, golden: Golden) -> None:
    """Each of them with what becomes of it."""
    done = command(None, tmp_path, "-h", program=DROP_IN, environ={"COLUMNS": "100"})

    golden("cli/help-dcgm-exporter.txt", done.stdout)
    assert done.returncode == 0
    assert all(row.flags[0] in done.stdout for row in ROWS)


# ---- the flags

# Every flag of dcgm-exporter 4.8.2 with its short form, its variable, and whether it is a switch.
THEIRS = """
--collectors -f DCGM_EXPORTER_COLLECTORS
--address -a DCGM_EXPORTER_LISTEN
--collect-interval -c DCGM_EXPORTER_INTERVAL
--kubernetes -k DCGM_EXPORTER_KUBERNETES
--use-old-namespace -o DCGM_EXPORTER_USE_OLD_NAMESPACE
--cpu-devices -p DCGM_EXPORTER_CPU_DEVICES_STR
--configmap-data -m DCGM_EXPORTER_CONFIGMAP_DATA
--remote-hostengine-info -r DCGM_REMOTE_HOSTENGINE_INFO
--kubernetes-enable-pod-labels DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS
--kubernetes-enable-pod-uid DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID
--kubernetes-gpu-id-type DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE
--kubernetes-pod-label-allowlist-regex DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX
--devices -d DCGM_EXPORTER_DEVICES_STR
--no-hostname -n DCGM_EXPORTER_NO_HOSTNAME
--switch-devices -s DCGM_EXPORTER_OTHER_DEVICES_STR
--fake-gpus DCGM_EXPORTER_USE_FAKE_GPUS
--web-config-file DCGM_EXPORTER_WEB_CONFIG_FILE
--xid-count-window-size -x DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE
--replace-blanks-in-model-name --rbmn DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME
--debug DCGM_EXPORTER_DEBUG
--clock-events-count-window-size DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE
--enable-dcgm-log DCGM_EXPORTER_ENABLE_DCGM_LOG
--dcgm-log-level DCGM_EXPORTER_DCGM_LOG_LEVEL
--log-format DCGM_EXPORTER_LOG_FORMAT
--pod-resources-kubelet-socket DCGM_POD_RESOURCES_KUBELET_SOCKET
--hpc-job-mapping-dir DCGM_HPC_JOB_MAPPING_DIR
--nvidia-resource-names NVIDIA_RESOURCE_NAMES
--kubernetes-virtual-gpus KUBERNETES_VIRTUAL_GPUS
--dump-enabled DCGM_EXPORTER_DUMP_ENABLED
--dump-directory DCGM_EXPORTER_DUMP_DIRECTORY
--dump-retention DCGM_EXPORTER_DUMP_RETENTION
--dump-compression DCGM_EXPORTER_DUMP_COMPRESSION
--kubernetes-enable-dra KUBERNETES_ENABLE_DRA
--disable-startup-validate DISABLE_STARTUP_VALIDATE
--enable-gpu-bind-unbind-watch DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH
--gpu-bind-unbind-poll-interval DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL
--enable-pprof DCGM_EXPORTER_ENABLE_PPROF
--web-systemd-socket DCGM_EXPORTER_SYSTEMD_SOCKET
"""
VARIABLES = {setting.theirs for setting in SETTINGS.values()} | {row.variable for row in ROWS}


def test_every_flag_and_variable_of_theirs_is_known() -> None:
    """A manifest that sets any of them is understood, or told what becomes of it."""
    for line in THEIRS.split("\n"):
        *flags, variable = line.split() or [""]
        assert not variable or variable in VARIABLES, variable
        assert all(flag in FLAG_OF for flag in flags), flags


def test_no_spelling_has_two_meanings() -> None:
    """What a setting takes over has no answer of its own any more: the flag would be there twice."""
    of_settings = {spelling for setting in SETTINGS.values() for spelling in (*setting.flags, setting.theirs)}

    assert not of_settings & {spelling for row in ROWS for spelling in (*row.flags, row.variable)} - {""}


TAKEN: dict[str, tuple[Sequence[str], str, object]] = {
    "file": (["--collectors=/dev/null"], "fields", ("/dev/null",)),
    "milliseconds": (["-c=5000"], "sampling.interval", 5.0),
    "a second": (["--collect-interval=1000"], "sampling.interval", 1.0),
    "too often": (["-c=1"], "sampling.interval", 0.1),
    "address": (["-a=127.0.0.1:9401"], "server.listen", (Address("127.0.0.1", 9401),)),
    "the last of two": (["-a=:1", "--address=[::1]:2"], "server.listen", (Address("::1", 2),)),
    "no host name": (["-n"], "hostname", "none"),
    "no host name, no": (["-n=false"], "hostname", ""),
    "debug": (["--debug=T"], "log.level", "debug"),
    "not debug": (["--debug=0"], "log.level", "info"),
    "dashes": (["--rbmn"], "replace_blanks_in_model_name", True),
    "JSON": (["--log-format=json"], "log.format", "json"),
    "old labels": (["-o"], "kubernetes.old_names", True),
    "requests": (["--max-concurrent-scrapes=16"], "server.max_requests", 16),
}


@pytest.mark.parametrize("case", TAKEN)
def test_a_flag_means_what_it_means_there(case: str) -> None:
    """The same words, the same effect."""
    flags, key, expected = TAKEN[case]
    found: object = given(flags)
    for name in key.split("."):
        found = getattr(found, name)

    assert found == expected


@pytest.mark.parametrize("row", [row for row in ROWS if row.key and row.variable], ids=lambda row: row.variable)
def test_a_variable_means_what_its_flag_does(row: object) -> None:
    """The chart sets variables where a shell sets flags."""
    texts = {"fields": "/dev/null", "server.listen": ":7", "sampling.interval": "7000"}
    assert hasattr(row, "key")
    assert hasattr(row, "variable")
    assert hasattr(row, "flags")
    text = texts.get(row.key, "true")
    both = [given([f"{row.flags[0]}={text}"]), given([], {row.variable: text})]

    one, other = (load_values(config) for config in both)
    assert one == other
    assert one != load_values(given())


def load_values(config: Config) -> object:
    return [getattr(config, name) for name in ("fields", "server", "sampling", "hostname", "log")]


LEVELS: tuple[tuple[Sequence[str], Mapping[str, str], float], ...] = (
    ([], {}, 30),
    ([], {"DCGM_EXPORTER_INTERVAL": "1000"}, 1),
    ([], {"DCGM_EXPORTER_INTERVAL": "1000", "OTELGPU_SAMPLING_INTERVAL": "2"}, 2),
    (["-c=3000"], {"DCGM_EXPORTER_INTERVAL": "1000", "OTELGPU_SAMPLING_INTERVAL": "2"}, 3),
    (["--interval=4", "-c=3000"], {"DCGM_EXPORTER_INTERVAL": "1000", "OTELGPU_SAMPLING_INTERVAL": "2"}, 4),
    (["-c=3000", "-c=5000"], {}, 5),
    (["-c=3000", "--collect-interval=6000"], {}, 6),
)


@pytest.mark.parametrize(("flags", "environ", "seconds"), LEVELS)
def test_where_two_spellings_meet_ours_goes_over_theirs(
    flags: Sequence[str], environ: Mapping[str, str], seconds: float
) -> None:
    """A flag over a variable over the default; at each level otelgpu's spelling over dcgm-exporter's."""
    assert given(flags, environ).sampling.interval == seconds


def test_a_variable_of_theirs_goes_over_the_file(tmp_path: Path) -> None:
    """An image's settings file is what its operator changes by variables."""
    (tmp_path / "otelgpu.yaml").write_text("sampling: {interval: 9}\n")
    path = str(tmp_path / "otelgpu.yaml")

    assert load(environ={}, config_path=path, drop_in=True).sampling.interval == 9
    assert load(environ={"DCGM_EXPORTER_INTERVAL": "1000"}, config_path=path, drop_in=True).sampling.interval == 1


# ---- what is answered


@pytest.mark.parametrize("row", [row for row in ROWS if row.answer == "not done yet"], ids=lambda row: row.flags[0])
def test_what_is_not_done_yet_is_refused_as_a_flag_and_a_warning_as_a_variable(row: object) -> None:
    """A person at a shell can change the line; a manifest of others must not keep the exporter from starting."""
    assert hasattr(row, "flags")
    assert hasattr(row, "variable")
    assert hasattr(row, "is_switch")
    assert hasattr(row, "default")
    text = "true" if row.is_switch else "x"
    for flag in row.flags:
        assert [problem.split(": ")[:2] for problem in problems([f"{flag}={text}"])] == [[flag, "not taken by otelgpu"]]
    if row.variable:
        assert [each.split(": ")[:2] for each in remarks([], {row.variable: text})] == [[row.variable, "passed over"]]
        assert remarks([], {row.variable: row.default or ("false" if row.is_switch else "")}) == []
    if row.default or row.is_switch:
        assert remarks([f"{row.flags[0]}={row.default or 'false'}"]) == []


def test_the_words_say_what_becomes_of_a_flag() -> None:
    """Whoever moves looks there first for what he would lose."""
    text = " ".join((ROOT / "docs" / "dcgm-exporter.md").read_text(encoding="utf-8").split())
    answers = {flag: row.answer for row in ROWS for flag in row.flags}
    for start, end, answer in (
        ("- taken, with its meaning:", "and what belongs", "taken"),
        ("- not done yet (", ", ...)", "not done yet"),
        ("- without meaning here (", ", ...)", "without meaning here"),
    ):
        said = re.findall(r"`(-[^`]+)`", text.partition(start)[2].partition(end)[0])

        assert len(said) > 1, start
        assert [flag for flag in said if answers.get(flag, "taken") != answer] == []


@pytest.mark.parametrize("row", [row for row in ROWS if row.answer == "without meaning here"], ids=lambda r: r.flags[0])
def test_what_has_no_meaning_here_is_a_warning(row: object) -> None:
    """It changes nothing, and whoever set it learns why."""
    assert hasattr(row, "flags")
    assert hasattr(row, "variable")
    assert hasattr(row, "is_switch")
    assert hasattr(row, "default")
    text = "x" if not row.is_switch else "false" if row.default == "true" else "true"
    (said,) = remarks([f"{row.flags[0]}={text}"])

    assert said.startswith(f"{row.flags[0]}: passed over: ")
    if row.variable:
        assert remarks([], {row.variable: text}) == [said.replace(row.flags[0], row.variable)]
    if row.default:
        assert remarks([f"{row.flags[0]}={row.default}"]) == []


def test_a_page_that_should_be_guarded_is_not_served_without(tmp_path: Path) -> None:
    """Whoever asked for TLS and passwords must not find the page open to all, whichever way he asked."""
    gone = tmp_path / "web.yaml"

    assert problems([f"--web-config-file={gone}"]) == [f"--web-config-file {gone}: no such file or directory"]
    variable = "DCGM_EXPORTER_WEB_CONFIG_FILE"
    assert problems([], {variable: str(gone)}) == [f"{variable}: {gone}: no such file or directory"]
    assert remarks(["--web-config-file="], {variable: ""}) == []


WRONG = {
    "-c=0": "-c 0: expected a number of milliseconds, at least 1",
    "-c=-5": "-c -5: expected a number of milliseconds, at least 1",
    "-c=30s": "-c 30s: expected a number of milliseconds, at least 1",
    "--debug=maybe": "--debug maybe: expected true or false",
    "--dump-enabled=maybe": "--dump-enabled maybe: expected true or false",
    "-f=gone": "-f gone: no such file or directory",
    "-a=9400": "-a 9400: an address is :PORT, HOST:PORT, [IPV6]:PORT or unix:/PATH; did you mean :9400?",
    "--kubernetes-pod-label-allowlist-regex=[[:lower:]]": (
        "--kubernetes-pod-label-allowlist-regex [[:lower:]]: expected a regular expression "
        "(Possible nested set at position 1)"
    ),
    "-c=99999999999999999999999": ("-c 99999999999999999999999: expected null or 0.1 to 3600 seconds"),
}


@pytest.mark.parametrize("flag", WRONG)
def test_a_wrong_value_is_told_with_its_flag(flag: str) -> None:
    """In the words of whoever typed it."""
    (problem,) = problems([flag])

    assert problem.partition(": ")[0] == WRONG[flag].partition(": ")[0]
    assert flag.startswith("-c=999") or problem == WRONG[flag]


def test_an_empty_text_is_nothing_where_it_is_the_default_there() -> None:
    """A template of a manifest writes the flag whether or not there is something to say."""
    flags = ["--nvidia-resource-names=", "--kubernetes-pod-label-allowlist-regex=", "--hpc-job-mapping-dir="]
    environ = {"NVIDIA_RESOURCE_NAMES": "a.com/x", "DCGM_HPC_JOB_MAPPING_DIR": "/jobs"}
    config = given([*flags, "--web-config-file="], environ)

    assert (config.kubernetes, config.jobs, config.server) == (Config().kubernetes, Config().jobs, Config().server)


GO = (
    ["-collectors", DEFAULT_CSV],
    ["-collectors=" + DEFAULT_CSV],
    ["--collectors", DEFAULT_CSV],
    ["-f=" + DEFAULT_CSV],
    ["-f", DEFAULT_CSV],
    ["-c=30000"],
    ["-c", "30000"],
    ["-collect-interval=30000"],
    ["--kubernetes=true"],
    ["-kubernetes=1"],
    ["-kubernetes"],
    ["-k"],
    ["-k=T"],
    ["-n=false"],
    ["-rbmn"],
    ["--rbmn=true"],
    ["-debug"],
    ["-web-config-file="],
    ["-m=none"],
)


@pytest.mark.parametrize("arguments", GO, ids=" ".join)
def test_go_spellings_are_understood(arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One dash or two, with = or without: manifests hold all of them."""
    from otelgpu import cli, commands

    served: list[Config] = []

    def serve(config: Config, _: str) -> int:
        served.append(config)
        return 0

    monkeypatch.setattr(commands, "serve", serve)
    assert cli.main(list(arguments), drop_in=True) == 0
    assert len(served) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-kn"], "no such flag: -kn"),
        (["-collector", "x"], "no such flag: -collector; did you mean --collectors?"),
        (["-c", "-500"], "-c -500: expected a number of milliseconds, at least 1"),
        (["-f"], "-f: expected a value"),
        (["-f="], '-f "": expected a file'),
        (["-c=-debug"], "-c -debug: expected a number of milliseconds, at least 1"),
    ],
    ids=str,
)
def test_what_is_wrong_is_told_as_it_was_typed(
    arguments: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Go puts no two letters together, and takes whatever follows a flag for its value."""
    from otelgpu import cli

    assert cli.main(arguments, drop_in=True) == 2
    assert capsys.readouterr().err.splitlines() == [f"otelgpu: {said}"]


# ---- the labels


def test_labels_follow_their_flags(tmp_path: Path) -> None:
    """Without the host name, with dashes for blanks, and with the names of 1.x."""
    flags = ("-n", "--rbmn", "-o", "--listen=127.0.0.1:0", "-f=/etc/dcgm-exporter/1.x-compatibility-metrics.csv")
    with serving(models.h100(1), tmp_path, *flags, program=DROP_IN) as it:
        lines = [line for line in lines_of(it.page()) if line.name.startswith("dcgm_")]

    assert {line.name for line in lines} >= {"dcgm_sm_clock", "dcgm_gpu_utilization"}
    assert [list(line.labels) for line in lines if line.name == "dcgm_sm_clock"] == [
        ["gpu", "uuid", "pci_bus_id", "device", "modelName"]
    ]
    assert {line.labels["modelName"] for line in lines} == {"NVIDIA-H100-80GB-HBM3"}
