"""examples/compose and examples/fleet.py: what a workstation runs, and what a fleet is simulated with.

Rule 1: Docker is not asked: compose/compose.yaml is judged by the keys of the Compose specification that it uses, and
        each container by what reads its arguments and files.
"""

import re
import runpy
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from otelgpu import __version__
from otelgpu.config import Config
from tests.collector_config import Kind, problems, wrong
from tests.conftest import ROOT
from tests.fakenvml import models
from tests.harness import LIMIT, lines_of, serving, until
from tests.push.collectors import Collector, collector, pairs
from tests.test_prometheus import Prometheus

EXAMPLES = ROOT / "examples"
COMPOSE = EXAMPLES / "compose"
FLEET = EXAMPLES / "fleet.py"
Json = dict[str, Any]


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _matches(pattern: str) -> Any:
    return lambda value: isinstance(value, str) and bool(re.fullmatch(pattern, value))


_DEVICE = {"driver": _matches("nvidia"), "count": _matches("all"), "capabilities": [_matches("gpu")]}
SERVICE: Kind = {
    "image": _matches(r"[a-z0-9./-]+:v?\d+\.\d+\.\d+"),  # `latest` is another program next week
    "build": {"context": _text},
    "entrypoint": [_text],
    "command": [_text],
    "environment": {"*": _text},
    "volumes": [_matches(r"(?:\.{1,2}/[^:]+:/[^:]+:ro|[a-z]+:/[^:]+)")],  # a folder of ours is not written to
    "ports": [_matches(r"127\.0\.0\.1:\d+:\d+")],  # nothing here asks for a password
    "read_only": _flag,
    "cap_drop": [_matches("ALL")],
    "security_opt": [_matches("no-new-privileges:true")],
    "restart": _matches("unless-stopped"),
    "depends_on": [_text],
    "deploy": {"resources": {"limits": {"memory": _matches(r"\d+M")}, "reservations": {"devices": [_DEVICE]}}},
}
WHOLE: Kind = {"name": _text, "services": {"*": SERVICE}, "volumes": {"*": {}}}
# What Grafana's documentation of provisioning lists, as far as it is used.
DATASOURCES: Kind = {
    "apiVersion": lambda value: value == 1,
    "datasources": [
        {
            **dict.fromkeys(("name", "uid", "url"), _text),
            "type": _matches("prometheus"),
            "access": _matches("proxy"),
            "isDefault": _flag,
            "jsonData": {"timeInterval": _matches(r"\d+s")},
        }
    ],
}
PROVIDERS: Kind = {
    "apiVersion": lambda value: value == 1,
    "providers": [
        {
            **dict.fromkeys(("name", "folder"), _text),
            "type": _matches("file"),
            "disableDeletion": _flag,
            "options": {"path": _matches("/.*")},
        }
    ],
}
GRAFANA_PORT = 3000  # its documented default
LATER_FLAGS = {"--web.enable-otlp-receiver"}  # of Prometheus since 2.55, and maybe not of the one that is here


def compose() -> Json:
    """The file itself."""
    return dict(yaml.safe_load((COMPOSE / "compose.yaml").read_text()))


def mounts(service: str) -> dict[str, Path]:
    """Which of our files stand where in a container."""
    pairs = (one.split(":")[:2] for one in compose()["services"][service]["volumes"])
    return {place: (COMPOSE / source).resolve() for source, place in pairs if source.startswith(".")}


def test_compose_takes_the_file() -> None:
    """Every key is one of the specification, every image has its version, and everything that is named is there."""
    file = compose()
    services = file["services"]
    named = {one.split(":")[0] for each in services.values() for one in each.get("volumes", ()) if one[0] != "."}

    assert wrong("compose", file, WHOLE) == []
    assert named == set(file["volumes"])
    assert {one for each in services.values() for one in each.get("depends_on", ())} <= set(services)
    assert all(path.exists() for name, each in services.items() if "volumes" in each for path in mounts(name).values())
    assert services["otelgpu"]["image"] == f"otelgpu:{__version__}"
    assert (COMPOSE / services["otelgpu"]["build"]["context"] / "Dockerfile").resolve().is_file()


@pytest.mark.parametrize(
    ("service", "key", "value"),
    [
        ("grafana", "image", "grafana/grafana:latest"),
        ("grafana", "image", "grafana/grafana"),
        ("prometheus", "ports", ["9090:9090"]),
        ("prometheus", "volume", []),
        ("collector", "volumes", ["./otel-collector.yaml:/etc/otelcol/config.yaml"]),
        ("otelgpu", "environment", ["A=b"]),
    ],
)
def test_a_mistake_in_the_file_is_found(service: str, key: str, value: object) -> None:
    """The table above judges."""
    file = compose()
    file["services"][service][key] = value

    assert wrong("compose", file, WHOLE)


def test_every_address_in_its_files_is_served(prometheus: Path) -> None:
    """By the service of that name, at the port that it listens on; what is published is that port too."""
    told = subprocess.run([prometheus, "--help"], capture_output=True, text=True, check=False)
    default = re.search(r'--web\.listen-address="0\.0\.0\.0:(\d+)"', told.stdout + told.stderr)
    assert default is not None
    receivers = yaml.safe_load((COMPOSE / "otel-collector.yaml").read_text())["receivers"]["otlp"]["protocols"]
    listening = {
        "otelgpu": {str(place.port) for place in Config().server.listen},
        "prometheus": {default[1]},
        "collector": {one["endpoint"].rpartition(":")[2] for one in receivers.values()},
        "grafana": {str(GRAFANA_PORT)},
    }
    services = compose()["services"]
    published = {name: [one.split(":")[1:] for one in each.get("ports", ())] for name, each in services.items()}
    texts = [path.read_text() for path in COMPOSE.rglob("*.y*ml")]
    named = {pair for text in texts for pair in re.findall(rf"\b({'|'.join(services)}):(\d{{4,5}})\b", text)}
    here = {port for text in texts for port in re.findall(r"http://localhost:(\d+)", text)}

    assert services.keys() == listening.keys()
    assert {(name, port) for name, port in named if port not in listening[name]} == set()
    assert {name for name, _ in named} == {"otelgpu", "prometheus", "collector"}
    assert all(inner in listening[name] for name, pairs in published.items() for _, inner in pairs)
    assert here == {outer for pairs in published.values() for outer, _ in pairs}


def test_its_prometheus_knows_its_flags(prometheus: Path) -> None:
    """And keeps what it stores on the volume that is mounted for it."""
    service = compose()["services"]["prometheus"]
    told = subprocess.run([prometheus, "--help"], capture_output=True, text=True, check=False)
    known = set(re.findall(r"(--[a-z][a-z.-]+)", told.stdout + told.stderr))
    given = dict(flag.partition("=")[::2] for flag in service["command"])

    assert given.keys() - known <= LATER_FLAGS
    assert f"prometheus:{given['--storage.tsdb.path']}" in service["volumes"]
    assert given["--config.file"] in mounts("prometheus")


def test_its_prometheus_takes_scrapes_and_alerts(promtool: Path, tmp_path: Path) -> None:
    """compose/prometheus.yml with the rules where they are mounted; it asks otelgpu at its port."""
    there = mounts("prometheus")
    text = there["/etc/prometheus/prometheus.yml"].read_text()
    assert "/etc/prometheus/rules.yaml" in text
    (tmp_path / "prometheus.yml").write_text(
        text.replace("/etc/prometheus/rules.yaml", str(there["/etc/prometheus/rules.yaml"]))
    )
    done = subprocess.run(
        [promtool, "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True, check=False
    )
    (job,) = yaml.safe_load(text)["scrape_configs"]

    assert done.returncode == 0, done.stdout + done.stderr
    assert "rules found" in done.stdout
    assert job["static_configs"][0]["targets"] == ["otelgpu:9400"]


def test_its_collector_takes_its_configuration() -> None:
    """compose/otel-collector.yaml listens where otelgpu pushes, and hands on to where Prometheus takes it."""
    config = yaml.safe_load((COMPOSE / "otel-collector.yaml").read_text())
    services = compose()["services"]
    grpc = config["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"]

    assert problems(config) == []
    assert f"http://collector:{grpc.rpartition(':')[2]}" in services["otelgpu"]["command"]
    assert config["exporters"]["otlphttp"]["endpoint"] == "http://prometheus:9090/api/v1/otlp"
    assert "--web.enable-otlp-receiver" in services["prometheus"]["command"]
    assert mounts("collector") == {
        services["collector"]["command"][0].partition("=")[2]: COMPOSE / "otel-collector.yaml"
    }


def test_its_grafana_finds_prometheus_and_the_dashboards() -> None:
    """compose/grafana/datasources/prometheus.yaml and compose/grafana/dashboards/otelgpu.yaml."""
    there = mounts("grafana")
    folders = [there[f"/etc/grafana/provisioning/{kind}"] for kind in ("datasources", "dashboards")]
    sources = yaml.safe_load((folders[0] / "prometheus.yaml").read_text())
    providers = yaml.safe_load((folders[1] / "otelgpu.yaml").read_text())
    (source,), (provider,) = sources["datasources"], providers["providers"]

    assert wrong("datasources", sources, DATASOURCES) + wrong("dashboards", providers, PROVIDERS) == []
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)
    assert len(list(there[provider["options"]["path"]].glob("*.json"))) >= 2
    assert "prometheus" in compose()["services"]


def test_its_otelgpu_starts_with_the_arguments_of_its_container(tmp_path: Path) -> None:
    """A flag that is spelt wrong would restart the container for ever."""
    service = compose()["services"]["otelgpu"]
    environ = {name: re.sub(r"\$\{\w+:-(\w+)\}", r"\1", value) for name, value in service["environment"].items()}
    program, command = service["entrypoint"]
    with collector() as there:
        arguments = [there.url if "collector" in word else word.replace("15s", "1s") for word in service["command"]]
        with serving(models.h100(1), tmp_path, *arguments, environ=environ, program=("-m", program, command)) as served:
            until(lambda: bool(there.received), "a batch")
            page = served.page()
    shown = {line.name for line in lines_of(page)}

    assert {line.labels["Hostname"] for line in lines_of(page) if "Hostname" in line.labels} == {"workstation"}
    assert {"DCGM_FI_DEV_GPU_TEMP", "DCGM_EXP_XID_ERRORS_COUNT", "DCGM_FI_DEV_THERMAL_VIOLATION"} <= shown


@contextmanager
def started(command: list[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program until it is not needed any more."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(LIMIT)


def pushing(there: Collector) -> set[object]:
    """The names of the nodes whose batches arrived."""
    resources = [one.resource for received in list(there.received) for one in received.message.resource_metrics]
    return {pairs(list(resource.attributes))["host.name"] for resource in resources}


def test_a_prometheus_finds_and_scrapes_a_fleet_that_pushes_as_well(prometheus: Path, tmp_path: Path) -> None:
    """fleet.py and fleet-prometheus.yml as docs/scaling.md uses them, with three small nodes."""
    log, folder = tmp_path / "fleet.log", tmp_path / "prometheus"
    folder.mkdir()
    fleet = [sys.executable, str(FLEET), "--nodes", "3", "--node", "2xt4", "--port", "0"]
    config = (EXAMPLES / "fleet-prometheus.yml").read_text()
    with collector() as there, started([*fleet, "--push", there.url], log) as process:
        until(lambda: "/targets" in log.read_text() or process.poll() is not None, "the fleet")
        url = log.read_text().split()[-1]
        (folder / "prometheus.yml").write_text(
            config.replace("http://127.0.0.1:9500/targets", url)
            .replace("15s", "1s")
            .replace("timeout: 10s", "timeout: 1s")
        )
        command = [
            str(prometheus),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
        ]
        with started([*command, "--web.listen-address=127.0.0.1:0"], folder / "prometheus.log"):
            running = Prometheus(folder / "prometheus.log")
            until(lambda: running.is_ready, "Prometheus")
            until(
                lambda: len(running.query("DCGM_FI_DEV_GPU_TEMP")) == 6,
                "two GPUs of three nodes in Prometheus",
                3 * LIMIT,
            )
            nodes = running.query("count by (__name__, Hostname) (DCGM_FI_DEV_GPU_TEMP)")
        with pytest.raises(urllib.error.HTTPError) as unknown:
            urllib.request.urlopen(url.replace("targets", "node-0003/metrics"), timeout=LIMIT)
        unknown.value.close()
        until(lambda: len(pushing(there)) == 3, "a batch of each node", 3 * LIMIT)
        pushed = pushing(there)

    assert sorted(dict(labels)["Hostname"] for _, labels in nodes) == ["node-0000", "node-0001", "node-0002"]
    assert set(nodes.values()) == {2}
    assert pushed == {"node-0000", "node-0001", "node-0002"}
    assert unknown.value.code == 404
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--nodes 0", ["--nodes: expected at least 1, got 0"]),
        ("--nodes -3", ["--nodes: expected at least 1, got -3"]),
        (
            "--node 8xfoo --push ftp://x --push-interval nan",
            ['there is no model "foo"', "--push ftp://x: expected http", "--push-interval nan: expected a number"],
        ),
        ("--port 99999", ["--port 99999: bind(): port must be 0-65535."]),
        ("--port USED", ["--port USED: [Errno 98] Address already in use"]),
    ],
)
def test_wrong_arguments_are_told_before_a_node_is_made(
    arguments: str, said: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nodes of nothing that push nowhere would be measured in good faith."""
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = str(used.getsockname()[1])
        monkeypatch.setattr(sys, "argv", [str(FLEET), *arguments.replace("USED", port).split()])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(FLEET), run_name="__main__")
    complaint = capsys.readouterr().err.partition("error: ")[2]

    assert ended.value.code == 2
    assert [one for one in said if one.replace("USED", port) not in complaint] == []


def test_the_rules_in_the_page_on_scaling_are_rules(promtool: Path, tmp_path: Path) -> None:
    """They can be copied, and so can the lines that split a fleet."""
    text = (ROOT / "docs" / "scaling.md").read_text()
    split, rules = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    job = {"job_name": "otelgpu", **yaml.safe_load(split)}
    (tmp_path / "rules.yml").write_text(rules)
    config = {"rule_files": ["rules.yml"], "scrape_configs": [job]}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    done = subprocess.run(
        [promtool, "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 rules found" in done.stdout
