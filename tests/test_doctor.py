"""`otelgpu doctor`: the questions that a person would ask, and whether the answers are true.

Rule 1: every finding is shown once right and once wrong, through the program itself and a real peer.
"""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from otelgpu.config import Config, SourceChoice
from otelgpu.doctor import Verdict, examine
from tests.fakekubelet import Kubelet, pod
from tests.fakenvml import Scenario, models
from tests.fakenvml.build import library
from tests.harness import command, serving
from tests.push.collectors import collector, free_port

POWER, TEMPERATURE = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_TEMP"


@pytest.fixture
def listen() -> str:
    """An address that is free."""
    return f"127.0.0.1:{free_port()}"


def findings(scenario: Scenario | None, folder: Path, *flags: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """The exit status and what was found, by topic."""
    done = command(scenario, folder, "doctor", "--format", "json", *flags)
    assert done.stderr == ""
    found: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(done.stdout):
        found.setdefault(one["topic"], []).append(one)
    return done.returncode, found


def only(found: dict[str, list[dict[str, Any]]], topic: str) -> tuple[str, str]:
    """Verdict and text of the one finding about a topic."""
    (one,) = found[topic]
    return one["verdict"], one["text"]


@pytest.mark.usefixtures("cc")
def test_a_machine_that_is_well_has_no_problem(tmp_path: Path, listen: str) -> None:
    """Each thing is named, in the order in which a person would look; nothing is asked that nobody wants."""
    flags = ("--listen", listen, "--fields", f"{POWER},{TEMPERATURE}")
    status, found = findings(models.h100(2), tmp_path, *flags)

    assert status == 0
    assert list(found) == ["settings", "library", "permissions", "driver", "gpus", "fields", "listen"]
    assert only(found, "settings")[1].startswith("given: fields (--fields), ")
    assert only(found, "library") == ("ok", str(library() / "libnvidia-ml.so.1"))
    assert only(found, "driver") == ("ok", "nvml answers, driver 580.105.08")
    assert [one["verdict"] for one in found["gpus"]] == ["ok", "ok"]
    assert only(found, "fields") == ("ok", "2 of 2 fields have a value on every GPU")
    assert only(found, "listen") == ("ok", f"{listen}: free")


@pytest.mark.usefixtures("cc")
def test_why_is_this_metric_missing(tmp_path: Path, listen: str) -> None:
    """The question this command is for: which GPU, which reason, and whether anything can be done."""
    scenario = models.h100(3).with_gpu(0, errors={"nvmlDeviceGetPowerUsage": 4}).with_gpu(2, lost=True)
    scenario = scenario.with_gpu(1, answers={"nvmlDeviceGetPowerUsage": None})
    flags = ("--listen", listen, "--fields", f"{POWER},{TEMPERATURE},DCGM_FI_PROF_NVOFA0_ACTIVE,DCGM_FI_PROCESS_NAME")
    status, found = findings(scenario, tmp_path, *flags)
    texts = {one["text"]: one for one in found["fields"]}

    assert status == 1
    denied = texts[f"{POWER} on GPU 0: denied: nvmlDeviceGetPowerUsage: Insufficient Permissions"]
    assert denied["verdict"] == "problem"
    assert "run as a user" in denied["advice"]
    unsupported = texts[f"{POWER} on GPU 1: unsupported: nvmlDeviceGetPowerUsage: Not Supported"]
    assert (unsupported["verdict"], unsupported["advice"]) == ("note", "")
    assert texts["no source here reads DCGM_FI_PROCESS_NAME"]["verdict"] == "note"
    lost = found["gpus"][2]
    assert lost["verdict"] == "problem"
    assert "lost: " in lost["text"]
    assert "reset the GPU" in lost["advice"]


def test_no_library_is_the_first_problem(tmp_path: Path, listen: str) -> None:
    """All the rest is still looked at: a port in use is worth knowing too."""
    status, found = findings(None, tmp_path, "--listen", listen)

    assert status == 1
    assert only(found, "library")[0] == "problem"
    assert "install the NVIDIA driver" in found["library"][0]["advice"]
    assert only(found, "driver")[0] == "problem"
    assert only(found, "listen")[0] == "ok"


@pytest.mark.usefixtures("cc")
def test_a_driver_that_hangs_is_told_of_in_time(tmp_path: Path, listen: str) -> None:
    """The command ends by itself, and says what it waited for."""
    scenario = models.h100(1).but(hangs={"nvmlInit_v2"})
    status, found = findings(scenario, tmp_path, "--listen", listen, "--deadline", "0.3")

    assert status == 1
    assert only(found, "driver") == ("problem", "the driver does not answer")


@pytest.mark.usefixtures("cc")
def test_a_port_is_free_or_ours_or_somebody_elses(tmp_path: Path) -> None:
    """Beside a running otelgpu the port is in use, and that is as it should be."""
    folders = [tmp_path / name for name in ("serving", "asking")]
    for folder in folders:
        folder.mkdir()
    with serving(models.h100(1), folders[0]) as served, socket.create_server(("127.0.0.1", 0)) as other:
        ours = f"{served.host}:{served.port}"
        theirs = f"127.0.0.1:{other.getsockname()[1]}"
        status, found = findings(models.h100(1), folders[1], "--listen", ours, "--listen", theirs)
    verdicts = {one["text"]: one["verdict"] for one in found["listen"]}

    assert status == 1
    assert verdicts == {
        f"{ours}: otelgpu is serving there": "ok",
        f"--listen: {theirs}: another program is using this address": "problem",
    }


@pytest.mark.usefixtures("cc")
def test_a_unix_socket_of_ours_is_left_in_place(tmp_path: Path) -> None:
    """Looking must not take the socket of a running otelgpu away."""
    folders = [tmp_path / name for name in ("serving", "asking")]
    for folder in folders:
        folder.mkdir()
    path = folders[0] / "page.sock"
    with serving(models.h100(1), folders[0], "--listen", f"unix:{path}"):
        _, found = findings(models.h100(1), folders[1], "--listen", f"unix:{path}")
        assert only(found, "listen") == ("ok", f"unix:{path}: otelgpu is serving there")
        assert path.is_socket()
    _, found = findings(models.h100(1), folders[1], "--listen", f"unix:{path}")

    assert only(found, "listen") == ("ok", f"unix:{path}: free")
    assert not path.exists()


@pytest.mark.usefixtures("cc")
def test_the_kubelet_is_asked_where_pods_are_wanted(tmp_path: Path, listen: str) -> None:
    """Its own answer, or why there is none."""
    scenario = models.h100(1)
    place = tmp_path / "kubelet.sock"
    flags = ("--listen", listen, "--kubernetes", "--kubernetes-socket", str(place))
    _, found = findings(scenario, tmp_path, *flags)
    assert only(found, "kubelet") == (
        "problem",
        f"{place}: there is no such socket; is the kubelet's folder mounted?",
    )
    kubelet = Kubelet(place, [pod("a", scenario.gpus[0].uuid)])
    kubelet.start()
    try:
        status, found = findings(scenario, tmp_path, *flags)
    finally:
        kubelet.stop()

    assert status == 0
    assert only(found, "kubelet") == ("ok", f"{place}: containers hold 1 devices")


@pytest.mark.usefixtures("cc")
def test_collectors_are_asked_with_a_request_of_nothing(tmp_path: Path, listen: str) -> None:
    """Whether it would take metrics and events; nothing is stored for having been asked."""
    with collector() as sink:
        status, found = findings(models.h100(1), tmp_path, "--listen", listen, "--otlp", sink.url)
        assert status == 0
        assert {one["text"].rpartition(": ")[2] for one in found["otlp"]} == {
            "the collector takes metrics",
            "the collector takes events",
        }
        assert not sink.points("hw.")
    status, found = findings(models.h100(1), tmp_path, "--listen", listen, "--otlp", sink.url)

    assert status == 1
    assert all(one["text"].endswith("Connection refused") for one in found["otlp"])


def test_device_files_are_looked_at(tmp_path: Path) -> None:
    """A folder without device files is a note: WSL2 has others. What is no device is passed over."""
    (tmp_path / "nvidia0").write_text("no device")
    config = Config(source=SourceChoice("nvml"))
    found = {one.topic: one for one in examine(config, {}, dev=tmp_path)}

    assert found["permissions"].verdict is Verdict.NOTE
    assert found["permissions"].text == f"the driver has no device files in {tmp_path}"


@pytest.mark.usefixtures("cc")
def test_the_text_puts_what_helps_below_what_is_wrong(tmp_path: Path, listen: str) -> None:
    """For a person at three in the morning."""
    scenario = models.h100(1).with_gpu(0, lost=True)
    done = command(scenario, tmp_path, "doctor", "--listen", listen)
    lines = done.stdout.splitlines()
    (at,) = [place for place, line in enumerate(lines) if line.startswith("problem  gpus")]

    assert done.returncode == 1
    assert "cannot be opened" in lines[at] or "lost" in lines[at]
    assert lines[at + 1].strip().startswith("reset the GPU")
