"""Not a line of code: `opentelemetry-instrument`, and declarative configuration files."""

import gc
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from otelgpu import OtelgpuError
from otelgpu.pull import DropInPage
from tests.embed.host import SIMULATED, environ, run
from tests.harness import values
from tests.push.collectors import Collector, collector

# What the program of that name does.
INSTRUMENT = "import sys; from opentelemetry.instrumentation.auto_instrumentation import run; sys.exit(run())"

TRAIN = """
from opentelemetry import metrics
metrics.get_meter_provider().force_flush()
"""


@pytest.fixture
def sink() -> Iterator[Collector]:
    """A collector that nothing should be sent to."""
    with collector() as running:
        yield running


@pytest.fixture
def command() -> tuple[str, ...]:
    """The command line that runs a program under `opentelemetry-instrument`."""
    pytest.importorskip("opentelemetry.distro", reason="opentelemetry-distro is not installed; `make` installs it")
    return (sys.executable, "-c", INSTRUMENT, sys.executable)


def zero_code(folder: Path, **more: str) -> dict[str, str]:
    """An environment as for opentelemetry-instrument: metrics to the console."""
    names = {"OTEL_METRICS_EXPORTER": "console", "OTEL_TRACES_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    return environ(folder) | names | more


def test_opentelemetry_instrument_reports_gpus(command: tuple[str, ...], tmp_path: Path) -> None:
    """`opentelemetry-instrument python train.py` is all it takes."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    ran = run(str(script), zero_code(tmp_path, OTELGPU_SOURCE=SIMULATED), *command)

    assert '"name": "hw.power"' in ran.stdout
    assert '"hw.name": "GPU 1"' in ran.stdout


def test_without_a_driver_the_program_runs_as_ever(command: tuple[str, ...], tmp_path: Path) -> None:
    """An exception here would keep all other instrumentations from loading. One line is logged, no more."""
    script = tmp_path / "train.py"
    script.write_text(f"{TRAIN}\nprint('trained')\n")
    ran = run(str(script), zero_code(tmp_path, OTELGPU_SAMPLING_REUSE="nonsense"), *command)

    assert "trained" in ran.stdout
    assert "hw." not in ran.stdout
    assert "Traceback" not in ran.stderr
    assert ran.stderr.count("source nvml is down") == 1


def test_several_workers_report_each_gpu_once(command: tuple[str, ...], tmp_path: Path) -> None:
    """The ranks of a training run are started by one command line each; embed.once is on there without being asked."""
    script = tmp_path / "train.py"
    script.write_text(f"import sys\n{TRAIN}\nprint('ready', flush=True)\nsys.stdin.read()\n")
    env = zero_code(tmp_path, OTELGPU_SOURCE=SIMULATED)
    ranks = [
        subprocess.Popen(
            [*command, str(script)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    seen = []
    try:
        for rank in ranks:
            assert rank.stdout is not None
            text = ""
            while "ready" not in (line := rank.stdout.readline()):
                assert line, "it has ended"
                text += line
            seen.append('"name": "hw.power"' in text)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()

    assert sorted(seen) == [False, False, True]


def test_it_can_be_turned_off_like_any_other(command: tuple[str, ...], tmp_path: Path) -> None:
    """By OpenTelemetry's own variable, under the name of the entry point."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    env = zero_code(tmp_path, OTELGPU_SOURCE=SIMULATED, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="otelgpu")

    assert "hw.power" not in run(str(script), env, *command).stdout


DECLARED = """
file_format: "1.0"
meter_provider:
  readers:
    - periodic:
        interval: 3600000
        exporter: {console: {}}
    - pull:
        exporter:
          dcgm: {port: 0, source: "simulated:3xt4", compat: "4.9", labels: {rack: "7"}}
instrumentation/development:
  python:
    otelgpu:
      fields: [DCGM_FI_DEV_POWER_USAGE]
      source: simulated:2xh100
      OPTION
"""

CONFIGURE = """
import sys, urllib.request
from opentelemetry import metrics
from opentelemetry.configuration import configure_sdk, load_config_file
configure_sdk(load_config_file(sys.argv[1]))
provider = metrics.get_meter_provider()
provider.force_flush()
"""


def declared(folder: Path, option: str) -> subprocess.CompletedProcess[str]:
    """Run a program that configures its SDK from a file."""
    pytest.importorskip("opentelemetry.configuration", reason="opentelemetry-configuration is not installed")
    file = folder / "otel.yaml"
    file.write_text(DECLARED.replace("OPTION", option))
    script = folder / "main.py"
    script.write_text(
        f"import logging\nlogging.basicConfig()\nimport sys\nsys.argv = ['main.py', {str(file)!r}]\n"
        f"from otelgpu import pull\nmade = []\nbefore = pull.DropInPage.__init__\n"
        "def kept(self, *args, **options):\n    before(self, *args, **options)\n    made.append(self)\n"
        "pull.DropInPage.__init__ = kept\n"
        f"{CONFIGURE}"
        "port = made[0].addresses[0][1]\n"
        "print(urllib.request.urlopen(f'http://localhost:{port}/metrics').read().decode())\n"
        "provider.shutdown()\n"
    )
    return run(str(script), environ(folder), sys.executable)


def test_a_declarative_file_names_instrumentor_and_page(tmp_path: Path) -> None:
    """One standard file: OpenTelemetry's names in the host's pipeline, and dcgm-exporter's page beside it."""
    ran = declared(tmp_path, "only_visible: false")

    assert '"name": "hw.power"' in ran.stdout
    assert '"name": "hw.energy"' not in ran.stdout
    assert ran.stdout.count("DCGM_FI_DEV_BOARD_POWER_WATTS{gpu=") == 3
    assert 'rack="7"' in ran.stdout


def test_a_wrong_option_in_a_declarative_file_is_told(tmp_path: Path) -> None:
    """The rest of the file still holds."""
    ran = declared(tmp_path, "reuse: fast")

    assert '"name": "hw.power"' not in ran.stdout
    assert "reuse fast: expected a number of seconds" in ran.stderr
    assert "DCGM_FI_DEV_BOARD_POWER_WATTS" in ran.stdout


def test_the_page_is_served_until_the_provider_is_shut_down() -> None:
    """It has the whole page: dcgm-exporter's names, and otelgpu's own health."""
    page = DropInPage(port=0, source=SIMULATED, hostname="node-1")
    url = f"http://127.0.0.1:{page.addresses[0][1]}/metrics"
    text = urllib.request.urlopen(url, timeout=20).read().decode()
    assert page.force_flush()
    page.shutdown()
    page.shutdown()

    assert list(values(text, "DCGM_FI_DEV_GPU_TEMP")) == ["0", "1"]
    assert values(text, "otelgpu_gpu_up") == {"0": 1, "1": 1}
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=20)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # tornado forgets the unbound socket
def test_a_port_that_is_taken_does_not_stop_the_host(caplog: pytest.LogCaptureFixture) -> None:
    """The host's own metrics matter more than our page: one line, and it goes on."""
    first = DropInPage(port=0, source=SIMULATED)
    second = DropInPage(port=first.addresses[0][1], source=SIMULATED)
    first.shutdown()
    second.shutdown()
    gc.collect()

    assert second.addresses == ()
    assert "another program is using this address" in caplog.text


def test_a_variable_neither_stops_the_page_nor_makes_it_push(
    monkeypatch: pytest.MonkeyPatch, sink: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    """Variables that are meant for the exporter on the node are in the environment of a training run as well."""
    monkeypatch.setenv("OTELGPU_OTLP_ENDPOINT", sink.url)
    monkeypatch.setenv("OTELGPU_OTLP_CERTIFICATE", "/nonexistent")
    page = DropInPage(port=0, source=SIMULATED)
    url = f"http://127.0.0.1:{page.addresses[0][1]}/metrics"
    text = urllib.request.urlopen(url, timeout=20).read().decode()
    page.shutdown()

    assert list(values(text, "DCGM_FI_DEV_GPU_TEMP")) == ["0", "1"]
    assert sink.received == []
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_wrong_option_of_the_page_raises() -> None:
    """As every component of a declarative file does."""
    with pytest.raises(OtelgpuError, match="compt: no such argument; did you mean compat"):
        DropInPage(compt="4.9")
