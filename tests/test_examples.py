"""The examples that are configuration files of other programs."""

import copy
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.collector_config import problems
from tests.conftest import ROOT
from tests.fakenvml import models
from tests.harness import LIMIT, serving, values

EXAMPLES = ROOT / "examples"
Place = tuple[str | int, ...]  # of a place in a file


def test_every_example_is_run_or_checked() -> None:
    """An example that nobody tries is wrong after the next change."""
    files = [*(ROOT / "tests").rglob("test_examples*.py"), ROOT / "tests" / "test_deploy_node.py"]
    tests = "".join(path.read_text() for path in files)
    files = [path for path in EXAMPLES.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    examples = {path.relative_to(EXAMPLES).as_posix() for path in files}

    assert len(examples) >= 7
    assert {name for name in examples if name not in tests and f"from {Path(name).stem} import" not in tests} == set()


@pytest.mark.parametrize("name", ["prometheus.yml", "fleet-prometheus.yml"])
def test_promtool_takes_the_scrape_configuration(name: str, promtool: Path) -> None:
    """It can be copied as it is."""
    done = subprocess.run([promtool, "check", "config", EXAMPLES / name], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def collector_example() -> Any:
    """The example for the Collector."""
    return yaml.safe_load((EXAMPLES / "otel-collector.yaml").read_text())


def keys(value: Any, path: Place = ()) -> Iterator[Place]:
    """Where every key and every entry of a list stands, but for what promtool looks at."""
    places = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in places:
        if (*path, key) != ("receivers", "prometheus", "config", "scrape_configs"):
            yield (*path, key)
            yield from keys(inner, (*path, key))


def changed(config: Any, path: Place, change: Callable[[Any, Any], None]) -> Any:
    """A copy in which *change* was made to what holds the last step of *path*."""
    copied = copy.deepcopy(config)
    holder = copied
    for step in path[:-1]:
        holder = holder[step]
    change(holder, path[-1])
    return copied


def test_the_collector_takes_its_configuration() -> None:
    """Every component, key and value is one that the Collector documents, and everything defined is used."""
    assert problems(collector_example()) == []


@pytest.mark.parametrize("path", list(keys(collector_example())), ids=lambda path: ".".join(map(str, path)))
def test_a_typing_mistake_in_the_collectors_configuration_is_found(path: Place) -> None:
    """In any key and any value, wherever it stands. The Collector would not start, in a pod that nobody looks at."""

    def misspell(holder: Any, step: Any) -> None:
        if isinstance(holder, dict):
            holder[f"{step}x"] = holder.pop(step)
        else:
            holder[step] = f"{holder[step]}x"

    def garble(holder: Any, step: Any) -> None:
        holder[step] = ["$NAME"]

    name = ".".join(map(str, path))
    named_by_user = path[:-1] == ("service", "pipelines")
    assert named_by_user or problems(changed(collector_example(), path, misspell)), name
    assert problems(changed(collector_example(), path, garble)), name


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("receivers", "otlp", "protocols", "grpc", "endpoint"), "0.0.0.0"),
        (("receivers", "otlp", "protocols", "grpc", "endpoint"), "0.0.0.0:4318"),
        (("receivers", "otlp", "protocols", "grpc", "endpoint"), "0.0.0.0:99999"),
        (("processors", "memory_limiter", "check_interval"), 1),
        (("processors", "memory_limiter", "limit_mib"), "512"),
        (("processors", "k8sattributes", "auth_type"), "serviceaccount"),
        (("processors", "k8sattributes", "extract", "metadata"), ["k8s.cluster.name"]),
        (("exporters", "otlp", "endpoint"), "$BACKEND:4317"),
        (("exporters", "otlp", "sending_queue", "storage"), "file_storage/queue"),
        (("extensions", "file_storage", "directory"), "queue"),
        (("service", "extensions"), []),
        (("service", "pipelines", "metrics/pushed", "processors"), ["batch", "memory_limiter", "k8sattributes"]),
        (("service", "pipelines", "metrics/pushed", "receivers"), []),
        (("service", "pipelines"), {}),
    ],
    ids=str,
)
def test_what_the_collector_would_not_do_is_found(path: Place, value: object) -> None:
    """Values that look right."""

    def put(holder: Any, step: Any) -> None:
        holder[step] = value

    assert problems(changed(collector_example(), path, put))


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
