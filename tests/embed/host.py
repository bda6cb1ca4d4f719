"""A host: somebody else's MeterProvider with a reader, in this process (`Host`) or as a program (`run`).

Rule 1: a host knows nothing of otelgpu but what its documentation tells.
"""

import configparser
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric, MetricReader, NumberDataPoint

from tests.fakenvml import Scenario
from tests.harness import ROOT

SIMULATED = "simulated:2xh100"


class Host:
    """A provider of its own, read at will."""

    def __init__(self, readers: Sequence[MetricReader] = ()) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader, *readers], shutdown_on_exit=False)

    def collect(self) -> dict[str, Metric]:
        """Collect, and give the metrics of otelgpu by name."""
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: metric for scope in scopes if scope.scope.name == "otelgpu" for metric in scope.metrics}

    def points(self, name: str) -> list[NumberDataPoint]:
        """Collect, and give the points of one metric."""
        return points(self.collect(), name)


def points(metrics: Mapping[str, Metric], name: str) -> list[NumberDataPoint]:
    """The points of one metric; none when it is not there."""
    found = metrics[name].data.data_points if name in metrics else []
    return [point for point in found if isinstance(point, NumberDataPoint)]


def ids(found: list[NumberDataPoint]) -> list[object]:
    """The devices that points are of."""
    return [(point.attributes or {})["hw.id"] for point in found]


def installed(folder: Path) -> Path:
    """Make what pip would leave of this checkout's entry points, so that OpenTelemetry finds them; give its folder."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / "site" / "otelgpu-0.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: otelgpu\nVersion: 0.0\n")
    parser = configparser.ConfigParser()
    parser.read_dict(project["entry-points"])
    with (info / "entry_points.txt").open("w") as file:
        parser.write(file)
    return info.parent


def environ(folder: Path, scenario: Scenario | None = None, **more: str) -> dict[str, str]:
    """The environment of a host program: nothing of ours, over the fake driver (or none, or OTELGPU_SOURCE)."""
    found = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}{os.pathsep}{installed(folder)}", "HOME": str(folder)}
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    found["XDG_RUNTIME_DIR"] = str(runtime)
    if scenario is not None:
        found["FAKENVML_SCENARIO"] = str(scenario.write(folder / "scenario"))
        found["FAKENVML_COUNTS"] = str(folder / "counts")
        found["LD_LIBRARY_PATH"] = str(scenario.library())
    return found | more


def run(program: str, env: Mapping[str, str], *command: str, limit: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a Python text as a program of its own; fail with what it wrote when it fails."""
    full = [*(command or (sys.executable, "-c")), program]
    ran = subprocess.run(full, env=dict(env), capture_output=True, text=True, check=False, timeout=limit)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran
