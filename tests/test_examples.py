"""The examples that are configuration files of other programs."""

import subprocess
from pathlib import Path

import yaml

from tests.conftest import ROOT
from tests.fakenvml import models
from tests.harness import LIMIT, serving, values

EXAMPLES = ROOT / "examples"


def test_promtool_takes_the_scrape_configuration(promtool: Path) -> None:
    """It can be copied as it is."""
    done = subprocess.run(
        [promtool, "check", "config", EXAMPLES / "prometheus.yml"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_component_of_the_collectors_pipelines_is_defined() -> None:
    """A collector refuses to start for a name that is used and not defined."""
    config = yaml.safe_load((EXAMPLES / "otel-collector.yaml").read_text())
    used: dict[str, set[str]] = {"extensions": set(config["service"]["extensions"])}
    for pipeline in config["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            used.setdefault(kind, set()).update(names)

    assert used == {kind: set(config[kind]) for kind in ("receivers", "processors", "exporters", "extensions")}
    assert config["exporters"]["otlp"]["sending_queue"]["storage"] in config["extensions"]


def test_the_collector_scrapes_as_prometheus_does(promtool: Path, tmp_path: Path) -> None:
    """What stands under `prometheus.config` is Prometheus's own format."""
    config = yaml.safe_load((EXAMPLES / "otel-collector.yaml").read_text())
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(config["receivers"]["prometheus"]["config"]))
    done = subprocess.run([promtool, "check", "config", path], capture_output=True, text=True, check=False)
    (scrape,) = config["receivers"]["prometheus"]["config"]["scrape_configs"]

    assert done.returncode == 0, done.stdout + done.stderr
    assert scrape["honor_labels"] is True


def test_the_scrape_timeout_is_heeded(tmp_path: Path) -> None:
    """The comment in prometheus.yml says that otelgpu answers within the timeout, also while a GPU hangs."""
    scenario = models.h100(2).with_gpu(0, hangs={"nvmlDeviceGetPowerUsage"})
    with serving(scenario, tmp_path, "--reuse", "0", "--deadline", str(LIMIT)) as served:
        reply = served.get(timeout=LIMIT / 2, X_Prometheus_Scrape_Timeout_Seconds="1")

    assert reply.status == 200
    assert "1" in values(reply.text, "DCGM_FI_DEV_GPU_TEMP")
