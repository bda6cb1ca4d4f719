"""DCGM asked for by settings and variables, and through every command."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otelgpu.cli import main
from otelgpu.config import Config, Dcgm, Jobs, Processes, Sampling, SourceChoice
from otelgpu.config.values import parse_engine
from otelgpu.doctor import Verdict, examine
from otelgpu.errors import ConfigError, StartError
from otelgpu.sources.choice import make_source
from otelgpu.sources.dcgm.library import Library, places
from tests import fakedcgm, fakenvml
from tests.fakedcgm import Fake, models
from tests.fakenvml import models as drivers
from tests.harness import DCGM, DROP_IN, ENGINE, Node, config, lines_of, refused, serving, values

Start = Callable[..., Node]

TEMPERATURE, POWER = FEW = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE")
FLAGS = ("--source=dcgm", f"--remote-hostengine-info={ENGINE}", f"--fields={TEMPERATURE},{POWER}")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("nvidia-dcgm:5555", "nvidia-dcgm:5555"),
        ("localhost", "localhost:5555"),
        ("10.0.0.1:6000", "10.0.0.1:6000"),
        ("[::1]", "[::1]:5555"),
        ("[fd00::1]:6000", "[fd00::1]:6000"),
        ("unix:///run/dcgm.sock", "unix:///run/dcgm.sock"),
        ("unix:/run/dcgm.sock", "unix:///run/dcgm.sock"),
        ("", ""),
    ],
)
def test_an_address_is_read_as_dcgm_exporter_reads_it(text: str, address: str) -> None:
    """What a manifest holds goes on to hold."""
    assert parse_engine(text) == address


@pytest.mark.parametrize("text", [":5555", "::1", "http://engine", "engine:0", "engine:99999", "unix:", "a b"])
def test_an_address_that_is_none_is_one_clear_line(text: str) -> None:
    """And not an engine that is waited for, for ever."""
    with pytest.raises(ValueError, match=r"HOST:PORT|a port is|brackets|a unix socket is"):
        parse_engine(text)


def test_without_libdcgm_it_says_what_to_install(tmp_path: Path) -> None:
    """`source: dcgm` asks for it, so there is nothing to fall back to."""
    status, said = refused(drivers.h100(), tmp_path, "--source", "dcgm")

    assert status == 1
    (line,) = said
    assert line.startswith("otelgpu: --source: source: dcgm: libdcgm.so.4 and libdcgm.so.3 cannot be loaded (libdcgm")
    assert line.endswith("`--source nvml` needs none")


@pytest.mark.usefixtures("engine")
def test_a_library_is_taken_from_where_it_is_said_to_be(tmp_path: Path) -> None:
    """A file, a folder, or below the driver root; what is not there is named."""
    file = fakedcgm.library() / "libdcgm.so.4"
    root = tmp_path / "root"
    (root / "usr" / "lib64").mkdir(parents=True)
    (root / "usr" / "lib64" / "libdcgm.so.4").symlink_to("/opt/dcgm/libdcgm.so.4")
    (root / "opt" / "dcgm").mkdir(parents=True)
    (root / "opt" / "dcgm" / "libdcgm.so.4").write_bytes(b"")

    assert Library(str(file)).path == Library(str(file.parent)).path == str(file)
    assert list(places(str(tmp_path), "")) == [f"{tmp_path}/libdcgm.so.4", f"{tmp_path}/libdcgm.so.3"]
    assert list(places("", str(root))) == [f"{root}/opt/dcgm/libdcgm.so.4", "libdcgm.so.4", "libdcgm.so.3"]
    settings = Config(source=DCGM, dcgm=Dcgm(library=str(tmp_path)), origins={"source": "otelgpu.yaml:1"})
    with pytest.raises(StartError, match=r"^otelgpu.yaml:1: source: dcgm: .*cannot open shared object file"):
        make_source(settings, [])


def test_another_library_is_no_dcgm(cc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that can be loaded and is something else: one line, as for none at all."""
    assert cc.exists()
    file = fakenvml.library() / "libnvidia-ml.so.1"
    status = main(["once", "--source=dcgm", f"--dcgm-library={file}"])

    assert status == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"cannot be loaded ({file} is none); install DCGM" in line


@pytest.mark.parametrize("settings", [{"processes": Processes(by="pod")}, {"jobs": Jobs(slurm=True)}])
@pytest.mark.parametrize("source", [DCGM, SourceChoice("auto")])
def test_processes_are_refused(source: SourceChoice, settings: dict[str, object], engine: Fake) -> None:
    """NVML alone tells of them; an empty answer would look like an idle node."""
    with pytest.raises(ConfigError, match="DCGM is asked, and NVML alone tells of processes"):
        Node(engine, config(source=source, dcgm=Dcgm(address=ENGINE), **settings))


def test_all_that_dcgm_cannot_do_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each setting, and not one at each start."""
    status = main(["once", "-r", ENGINE, "--processes-by=pod", "--jobs-slurm", "--isolate"])

    assert status == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in said] == ["--processes-by", "--jobs-slurm", "--isolate"]


def test_another_process_for_it_is_refused(engine: Fake) -> None:
    """An engine is one already."""
    with pytest.raises(ConfigError, match=r"sampling.isolate: DCGM is asked from this process; run an nv-hostengine"):
        Node(engine, config(source=DCGM, sampling=Sampling(isolate=True)))


def test_a_value_that_would_be_too_old_before_the_next_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """It would come and go."""
    status = main(["once", "--source=dcgm", "--dcgm-interval=30", "--expire=20"])

    assert status == 2
    said = "otelgpu: --expire 20: expected at least dcgm.interval, which is 30 s (--dcgm-interval)\n"
    assert capsys.readouterr().err == said


@pytest.fixture
def shown(engine: Fake) -> Iterator[Fake]:
    """The fake DCGM with a machine of two GPUs, one without profiling."""
    engine.show(models.mixed().but(gpus=models.mixed().gpus[1:]))
    yield engine
    assert (engine.handles, engine.groups, engine.field_groups, engine.watches) == (0, 0, 0, 0)


def test_each_command_looks_through_dcgm(shown: Fake, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What `serve` would show, and why something would not be there."""
    assert main(["once", *FLAGS]) == 0
    assert values(capsys.readouterr().out, TEMPERATURE) == {"1": 33, "2": 29}
    assert main(["devices", "--format=json", *FLAGS]) == 0
    assert [device["index"] for device in json.loads(capsys.readouterr().out)] == [1, 2]
    assert main(["fields", "--format=json", *FLAGS[:2], "--fields=all"]) == 0
    told = {field["name"]: field for field in json.loads(capsys.readouterr().out)}
    recording = tmp_path / "recording"
    assert main(["record", str(recording), *FLAGS]) == 0
    capsys.readouterr()
    assert main(["once", "--source", f"replay:{recording}", *FLAGS[2:]]) == 0

    assert values(capsys.readouterr().out, TEMPERATURE) == {"1": 33, "2": 29}
    assert [reading["value"] for reading in told[POWER]["readings"]] == [49_680, 68_920]
    assert told["DCGM_FI_PROF_PIPE_INT_ACTIVE"]["gaps"][0]["reason"].startswith("DCGM does not name it among")
    assert told["DCGM_EXP_P2P_STATUS"]["reason"] == "NVML knows the peers of a GPU; `--source nvml` reads it"
    assert told["DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT"]["reason"].startswith("of an NVSwitch")
    assert shown.calls("dcgmConnect_v2") == 4


def test_a_recording_does_not_name_the_engine(engine: Fake, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It is for a bug report, and the address is nobody's business."""
    engine.show(models.h100().but(gone=True))
    main(["record", str(tmp_path / "recording"), "--source=dcgm", "-r", "engine.example:5555"])
    capsys.readouterr()

    assert "ENGINE does not answer" in (tmp_path / "recording").read_text()
    assert "example" not in (tmp_path / "recording").read_text()


def test_the_doctor_says_which_engine_answers(shown: Fake) -> None:
    """Library, engine and GPUs, in the order in which a person would look."""
    settings = config(source=DCGM, dcgm=Dcgm(address=ENGINE), fields=(TEMPERATURE, "DCGM_FI_PROF_PIPE_INT_ACTIVE"))
    findings = list(examine(settings, {}))
    said = {finding.topic: finding for finding in findings}
    shown.show(models.h100().but(gone=True))
    wrong = {finding.topic: finding for finding in examine(settings, {})}

    assert [finding.topic for finding in findings][:3] == ["settings", "library", "driver"]
    assert said["library"].text.endswith("libdcgm.so.4")
    assert said["driver"].text == f"DCGM 4.6.0 at {ENGINE} answers, driver 570.148.08"
    assert {finding.verdict for finding in findings if finding.topic == "gpus"} == {Verdict.OK}
    assert "DCGM does not name it" in said["fields"].text
    assert wrong["driver"].verdict is Verdict.PROBLEM
    assert wrong["driver"].text.startswith(f"the host engine at {ENGINE} does not answer: ")
    assert "nv-hostengine" in wrong["driver"].advice


def test_the_doctor_does_not_blame_the_driver_for_what_is_not_its_fault(tmp_path: Path) -> None:
    """Who lacks a library, or asks for what cannot be, is not helped by the kernel's log."""
    unloaded = examine(config(source=DCGM, dcgm=Dcgm(library=str(tmp_path))), {})
    refused_ = examine(config(source=DCGM, jobs=Jobs(slurm=True), sampling=Sampling(isolate=True)), {})
    told = [
        [
            (finding.topic, finding.text.split(":")[1], finding.advice)
            for finding in findings
            if finding.verdict == "problem"
        ]
        for findings in (unloaded, refused_)
    ]

    assert told == [
        [("driver", " source", "")],
        [("settings", " jobs.slurm", ""), ("settings", " sampling.isolate", "")],
    ]


def test_an_engine_in_this_process_gets_the_driver_of_the_root(cc: Path, tmp_path: Path) -> None:
    """DCGM looks for libnvidia-ml by its name: what stands in another place has to be loaded before."""
    assert cc.exists()
    folder = tmp_path / "root" / "usr" / "lib64"
    folder.mkdir(parents=True)
    shutil.copy(fakedcgm.library() / "libdcgm.so.4", folder)
    shutil.copy(fakenvml.library() / "libnvidia-ml.so.1", folder)
    models.h100(2).write(tmp_path / "engine")
    environ = {
        "FAKEDCGM_SCENARIO": str(tmp_path / "engine"),
        "FAKEDCGM_COUNTS": str(tmp_path / "engine-counts"),
        "OTELGPU_DRIVER_ROOT": str(tmp_path / "root"),
    }
    with serving(None, tmp_path, "--source=dcgm", environ=environ) as it:
        page = it.page()
        loaded = Path(f"/proc/{it.process.pid}/maps").read_text()

    assert values(page, TEMPERATURE) == {"0": 29, "1": 30}
    assert f"{folder}/libdcgm.so.4" in loaded
    assert f"{folder}/libnvidia-ml.so.1" in loaded


def test_the_image_of_dcgm_exporter_is_replaced_with_its_engine(cc: Path, tmp_path: Path) -> None:
    """The operator's environment to the letter: where libdcgm is there the engine is asked, and not the driver."""
    assert cc.exists()
    models.a100(2).but(addresses=("nvidia-dcgm:5555",)).write(tmp_path / "engine")
    environ = {
        "LD_LIBRARY_PATH": f"{fakedcgm.library()}:{fakenvml.library(drivers.h100().missing)}",
        "FAKEDCGM_SCENARIO": str(tmp_path / "engine"),
        "FAKEDCGM_COUNTS": str(tmp_path / "engine-counts"),
        "DCGM_REMOTE_HOSTENGINE_INFO": "nvidia-dcgm:5555",
        "DCGM_EXPORTER_INTERVAL": "1000",
    }
    with serving(drivers.h100(2), tmp_path, "--listen=127.0.0.1:0", environ=environ, program=DROP_IN) as it:
        page = it.page()
        status = it.stop()

    models_shown = {line.labels["modelName"] for line in lines_of(page) if line.name == TEMPERATURE}
    assert models_shown == {"NVIDIA A100-SXM4-40GB"}
    assert fakedcgm.Counts(tmp_path / "engine-counts").calls("dcgmDisconnect") == 1
    assert status == 0
