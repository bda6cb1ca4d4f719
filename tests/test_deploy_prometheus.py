"""The alerts and dashboards of deploy/: promtool reads them, and every name and label is one of our page."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pynvml
import pytest
import yaml

from otelgpu.config import Kubernetes, load
from otelgpu.fields.severity import Severity
from otelgpu.fields.xid_advice import XID_ADVICE
from tests.conftest import GOLDEN, ROOT, Golden
from tests.deploy import helm, kustomize
from tests.deploy.containers import container, environ_of
from tests.fakekubelet import Kubelet, pod
from tests.fakenvml import models
from tests.harness import LIMIT, Node, lines_of, until
from tests.test_kubernetes import kubelet

__all__ = ["kubelet"]  # the fixture

FILES = helm.CHART / "files"
RULES = FILES / "rules.yaml"
COPY = "deploy/kubernetes/components/prometheus-operator/prometheusrule.yaml"
UNIT_TESTS = ROOT / "tests" / "deploy" / "rules_test.yaml"
SCRAPED = {"instance", "job"}  # labels that Prometheus adds
_NAME = re.compile(r"\b(?:DCGM_\w+|otelgpu_\w+|up)\b(?!\s*:)")
_LABEL = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
_BY = re.compile(r"\bby\s*\(([^)]*)\)")
_SHOWN = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")
Json = dict[str, Any]


class Query(NamedTuple):
    """An expression, where it stands, and the text that shows labels of its result."""

    place: str
    expr: str
    text: str


def rules() -> list[Json]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def boards() -> list[Path]:
    return sorted((FILES / "dashboards").iterdir())


def queries() -> Iterator[Query]:
    for rule in rules():
        yield Query(rule["alert"], rule["expr"], json.dumps(rule["annotations"]))
    for path in boards():
        board = json.loads(path.read_text())
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
                assert match is not None
                yield Query(f"{path.name} ${variable['name']}", match[1], f"{{{{{match[2]}}}}}")
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield Query(f"{path.name}: {panel['title']}", target["expr"], target.get("legendFormat", ""))


def in_promql(expr: str) -> str:
    """Put in what Grafana would for its variables."""
    return expr.replace("$__rate_interval", "1m").replace("$node", ".*").replace("$gpu", ".*")


def test_promtool_accepts_the_alerts(promtool: Path) -> None:
    """A rule that Prometheus does not load takes all others of its file with it."""
    command = [str(promtool), "check", "rules", str(RULES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules())} rules found" in done.stdout


def test_each_alert_fires_when_it_should_and_else_not(promtool: Path, tmp_path: Path) -> None:
    """Prometheus itself evaluates them over series of a test."""
    for path in (RULES, UNIT_TESTS):
        shutil.copy(path, tmp_path)
    command = [str(promtool), "test", "rules", UNIT_TESTS.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    tested = [one for test in yaml.safe_load(UNIT_TESTS.read_text())["tests"] for one in test["alert_rule_test"]]

    assert done.returncode == 0, done.stdout + done.stderr
    assert {one["alertname"] for one in tested if one["exp_alerts"]} == {rule["alert"] for rule in rules()}


def in_series(pages: Sequence[str], instance: str) -> Iterator[Json]:
    """Pages of a node, six minutes apart and the last for eight hours, as `promtool test rules` reads series."""
    told: dict[str, list[str]] = {}
    for number, page in enumerate(pages):
        for line in lines_of(page):
            labels = ",".join(
                f"{name}={json.dumps(text)}" for name, text in {**line.labels, "instance": instance}.items()
            )
            values = told.setdefault(f"{line.name}{{{labels}}}", [])
            values += ["_x5"] * (number - len(values)) + [f"{line.value}x{480 if page is pages[-1] else 5}"]
    for series, values in told.items():
        yield {"series": series, "values": " ".join(values)}


def test_the_page_of_a_faulty_node_raises_the_alerts_and_that_of_a_sound_one_none(
    promtool: Path, node: Callable[..., Node], kubelet: Kubelet, tmp_path: Path
) -> None:
    """From the driver to the alert: one GPU falls off the bus, one has bad memory, of one the rows are used up."""
    sound = models.h100(4)
    bad = sound.with_gpu(1, fields={pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: 9}).with_xid(0, 79).with_xid(1, 48)
    bad = bad.with_gpu(2, fields={pynvml.NVML_FI_DEV_REMAPPED_FAILURE: 1})
    kubelet.pods = [pod("train", sound.gpus[3].uuid)]
    kubelet.start()
    asks = Kubernetes(enabled=True, socket=str(kubelet.path), refresh=3600, expire=3600)
    fields = load(environ=environ_of(container(kustomize.build(ROOT / "deploy" / "kubernetes" / "base")))).fields
    running = node(sound, fields=fields, kubernetes=asks)
    assert running.pipeline.attribution.looked(LIMIT)
    pages = [running.settled_page()]
    running.show(bad)
    until(lambda: len(re.findall(r'xid="(?:48|79)".* 1$', running.page(), re.MULTILINE)) == 2, "both XIDs")
    running.show(bad.with_gpu(0, lost=True))
    pages.append(running.page())
    shutil.copy(RULES, tmp_path)
    series = [*in_series([pages[0]] * 2, "sound:9400"), *in_series(pages, "bad:9400")]
    series += [
        {"series": f'up{{job="otelgpu",instance="{name}:9400"}}', "values": "1x480"} for name in ("sound", "bad")
    ]
    expr = 'count by (alertname, instance, gpu) (ALERTS{alertstate="firing"})'
    expected = [
        f'{{alertname="{alert}", gpu="{gpu}", instance="bad:9400"}}'
        for alert, gpu in (
            ("GpuDown", 0),
            ("GpuXidFatal", 0),
            ("GpuXidError", 1),
            ("GpuMemoryErrors", 1),
            ("GpuRowRemapFailed", 2),
        )
    ]
    told = {
        "rule_files": [RULES.name],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [
                    {"expr": expr, "eval_time": "12m", "exp_samples": [{"labels": one, "value": 1} for one in expected]}
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(told))
    command = [str(promtool), "test", "rules", "test.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)

    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_reads_every_query_of_a_dashboard(promtool: Path, tmp_path: Path) -> None:
    """A panel with a wrong query is empty, and nobody is told."""
    records = [{"record": f"query{number}", "expr": in_promql(one.expr)} for number, one in enumerate(queries())]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": records}]}))
    command = [str(promtool), "check", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def shown(node: Callable[..., Node], kubelet: Kubelet) -> dict[str, set[str]]:
    """Every metric and its labels: on nodes as the manifests make them, and on pages that were reviewed elsewhere."""
    scenario = models.h100_mig()
    kubelet.pods = [pod("train", scenario.gpus[-1].uuid)]
    kubelet.start()
    asks = Kubernetes(enabled=True, socket=str(kubelet.path), refresh=3600, expire=3600)
    fields = load(environ=environ_of(container(kustomize.build(ROOT / "deploy" / "kubernetes" / "base")))).fields
    pages = [(GOLDEN / "page" / f"processes_{name}.txt").read_text() for name in ("pod", "pods")]
    for machine in (models.h100(2).with_gpu(1, lost=True), scenario):
        started = node(machine, fields=fields, kubernetes=asks)
        assert started.pipeline.attribution.looked(LIMIT)
        pages.append(started.settled_page())
    found = {"up": set[str]()}
    for line in (line for page in pages for line in lines_of(page)):
        found.setdefault(line.name, set()).update(line.labels)
    return found


def test_every_name_and_label_is_one_of_our_page(shown: dict[str, set[str]]) -> None:
    """An alert on a name that is not there never fires."""
    wrong = []
    for query in queries():
        names = set(_NAME.findall(query.expr))
        assert names, query
        wrong += [f"{query.place}: {name}" for name in names - set(shown)]
        known = SCRAPED.union(*(shown.get(name, set()) for name in names))
        by = {label.strip() for labels in _BY.findall(query.expr) for label in labels.split(",")}
        used = {*_LABEL.findall(query.expr), *by, *_SHOWN.findall(query.text)}
        wrong += [f"{query.place}: label {label}" for label in used - known]

    assert not wrong, "\n".join(sorted(wrong))


def test_the_alerts_on_xids_are_those_that_the_advice_calls_bad() -> None:
    """One list of what a code means; the alerts must not tell another story than the log events."""
    for alert, severity in (("GpuXidFatal", Severity.FATAL), ("GpuXidError", Severity.ERROR)):
        (rule,) = (rule for rule in rules() if rule["alert"] == alert)
        match = re.search(r'xid=~"([\d|]+)"', rule["expr"])

        assert match is not None
        assert match[1].split("|") == [
            str(code) for code, advice in sorted(XID_ADVICE.items()) if advice.severity is severity
        ]


def test_the_operators_rules_are_the_same(golden: Golden) -> None:
    """They have to stand in an object of their own, which cannot take in a file."""
    head = [
        "# The same alerts as deploy/helm/otelgpu/files/rules.yaml, for the operator; `make golden` copies them.",
        "apiVersion: monitoring.coreos.com/v1",
        "kind: PrometheusRule",
        "metadata:",
        "  name: otelgpu",
        "  namespace: monitoring",
        "  labels:",
        "    app.kubernetes.io/name: otelgpu",
        "spec:",
    ]
    text = RULES.read_text()
    groups = text[text.index("groups:") :].splitlines()

    golden(f"../../{COPY}", "\n".join([*head, *(f"  {line}" for line in groups)]) + "\n")


@pytest.mark.parametrize("path", boards(), ids=lambda path: path.stem)
def test_a_dashboard_is_laid_out(path: Path) -> None:
    """Panels that lie on each other hide what is wrong; a link that leads nowhere is a trap."""
    board = json.loads(path.read_text())
    places = set[tuple[int, int]]()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not places & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        places |= cells
    ids = [panel["id"] for panel in board["panels"]]

    assert len(set(ids)) == len(ids)
    assert board["uid"] == path.stem
    assert {link["url"] for link in board["links"]} <= {f"/d/{other.stem}" for other in boards()}
