"""Debian's Prometheus as a user has it: what it stores is what the page says, and what it has to say about the page.

Rule 1: both programs are real; what Prometheus has read is asked of its own API.
Rule 2: every complaint of promtool that is accepted stands here whole, with the reason.
"""

import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from otelgpu.config import Server
from tests.fakenvml import models
from tests.harness import Node, Served, lines_of, serving, until
from tests.webserver import HASH, SECRET, Here, here, make_certificates

Start = Callable[..., Node]
Series = tuple[str, frozenset[tuple[str, str]]]

JOB = """\
  - job_name: {name}
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
{more}"""

TOTAL = 'counter metrics should have "_total" suffix'
CAMEL = "label names should be written in 'snake_case' not 'camelCase'"  # modelName, of dcgm-exporter
KIND = "metric name should not include type 'counter'"
# dcgm-exporter's names, which dashboards know.
WITHOUT_TOTAL = (
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
)


class Prometheus:
    """A running server and its API."""

    def __init__(self, log: Path) -> None:
        self._log = log

    @property
    def address(self) -> str:
        """Where it listens, from its log; "" while it does not."""
        match = re.search(r'msg="Listening on" address=(\S+)', self._log.read_text())
        return match[1] if match else ""

    @property
    def is_ready(self) -> bool:
        """Whether it answers queries yet."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=10) as reply:
                return bool(reply.status == 200)
        except (OSError, ValueError):
            return False

    def query(self, text: str) -> dict[Series, float]:
        """The values of an instant query, by name ("" where it has none) and labels."""
        url = f"http://{self.address}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
        with urllib.request.urlopen(url, timeout=10) as reply:
            result = json.load(reply)["data"]["result"]
        return {_series(each["metric"].pop("__name__", ""), each["metric"]): float(each["value"][1]) for each in result}


def _series(name: str, labels: Mapping[str, str]) -> Series:
    """Name a series as Prometheus does: an empty label is none, and `job` and `instance` are its own."""
    return name, frozenset((key, text) for key, text in labels.items() if text and key not in ("job", "instance"))


@contextmanager
def scraping(program: Path, folder: Path, more: str = "", **served: Served | Here) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes servers every second, each as the job of its name; *more* is said of each job."""
    config, log = folder / "prometheus.yml", folder / "prometheus.log"
    jobs = (JOB.format(name=name, port=each.port, more=more) for name, each in served.items())
    config.write_text("global: {scrape_interval: 1s, scrape_timeout: 900ms}\nscrape_configs:\n" + "".join(jobs))
    with started(program, config, log) as running:
        yield running


@contextmanager
def started(program: Path, config: Path, log: Path) -> Iterator[Prometheus]:
    """Run a Prometheus with this configuration; what it stores lies beside that."""
    command = [
        str(program),
        f"--config.file={config}",
        f"--storage.tsdb.path={config.parent / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        running = Prometheus(log)
        until(lambda: running.is_ready or process.poll() is not None, "Prometheus")
        assert process.poll() is None, log.read_text()
        yield running
    finally:
        process.kill()
        process.wait()


def test_prometheus_stores_what_the_page_says(prometheus: Path, tmp_path: Path) -> None:
    """Every series of the page with its labels and value, read in the format that Prometheus itself asks for."""
    folders = [tmp_path / "dcgm", tmp_path / "semconv"]
    for folder in folders:
        folder.mkdir()
    with (
        serving(models.h100_mig(), folders[0]) as dcgm,
        serving(models.h100_mig(), folders[1], "--naming", "semconv") as semconv,
        scraping(prometheus, tmp_path, dcgm=dcgm, semconv=semconv) as running,
    ):
        for served, prefix in ((dcgm, "DCGM_"), (semconv, "hw_")):
            until(partial(_is_stored, running, served, prefix), f"the {prefix} values of the page in Prometheus")
        up = running.query("sum by (__name__) (up)")
        codes = running.query("sum by (__name__, code) (otelgpu_scrapes_total)")

    assert list(up.values()) == [2]
    assert [labels for _, labels in codes] == [frozenset({("code", "200")})]


def test_prometheus_scrapes_with_certificate_and_password(prometheus: Path, tmp_path: Path, node: Start) -> None:
    """Its own format of both, and its own client; without them nothing is read."""
    made = make_certificates(tmp_path)
    (tmp_path / "web.yml").write_text(
        "tls_server_config:\n  {cert_file: server.pem, key_file: server.key, client_ca_file: ca.pem,\n"
        f"   client_auth_type: RequireAndVerifyClientCert, min_version: TLS13}}\nbasic_auth_users: {{alice: {HASH}}}\n"
    )
    tls = f"ca_file: {made.file('ca.pem')}, cert_file: {made.file('client.pem')}, key_file: {made.file('client.key')}"
    more = f"    scheme: https\n    tls_config: {{{tls}}}\n    basic_auth: {{username: alice, password: {SECRET}}}\n"
    with (
        here(node(models.h100(2), server=Server(web_config=str(tmp_path / "web.yml")))) as served,
        scraping(prometheus, tmp_path, more, secured=served) as running,
    ):
        until(lambda: len(running.query("DCGM_FI_DEV_GPU_TEMP")) == 2, "the GPUs in Prometheus")
        refused = running.query("otelgpu_web_refused_total")

    assert set(refused.values()) == {0}


def _is_stored(running: Prometheus, served: Served, prefix: str) -> bool:
    page = {_series(line.name, line.labels): line.value for line in lines_of(served.page())}
    readings = {key: value for key, value in page.items() if key[0].startswith(prefix)}
    return len(readings) > 20 and readings == running.query(f'{{__name__=~"{prefix}.*"}}')


@pytest.mark.parametrize("name", ["t4", "h100", "h100_mig", "rtx_4090", "mixed"])
def test_promtool_accepts_all_but_the_names_of_dcgm_exporter(node: Start, promtool: Path, name: str) -> None:
    """Whatever else it says would be ours to mend."""
    page = node(models.MAKERS[name]()).settled_page()

    lines = [line for line in lines_of(page) if line.name.startswith("DCGM_")]
    expected = Counter((line.name, CAMEL) for line in lines if "modelName" in line.labels)
    shown = {line.name for line in lines}
    expected.update((name, TOTAL) for name in WITHOUT_TOTAL if name in shown)
    expected.update((name, KIND) for name in ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER",) if name in shown)
    assert complaints(promtool, page) == expected


@pytest.mark.parametrize("name", ["t4", "h100", "h100_mig", "rtx_4090", "mixed"])
def test_promtool_accepts_all_names_of_opentelemetry(node: Start, promtool: Path, name: str) -> None:
    """These names are nobody's heritage: there is nothing to forgive."""
    page = node(models.MAKERS[name](), naming="semconv").settled_page()

    assert complaints(promtool, page) == Counter()


@pytest.mark.parametrize("naming", ["dcgm", "semconv"])
def test_promtool_accepts_a_page_without_readings(node: Start, promtool: Path, naming: str) -> None:
    """What otelgpu says about itself is beyond reproach."""
    page = node(models.none(), naming=naming).page()

    assert "otelgpu_source_up" in page
    assert complaints(promtool, page) == Counter()


def complaints(promtool: Path, page: str) -> Counter[tuple[str, str]]:
    """What `promtool check metrics` says: (metric, complaint), as often as it says so."""
    done = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False, timeout=60
    )
    said = [line.partition(" ") for line in done.stderr.splitlines()]
    assert done.stdout == ""
    assert (done.returncode == 0) is (said == [])
    return Counter((name, complaint) for name, _, complaint in said)
