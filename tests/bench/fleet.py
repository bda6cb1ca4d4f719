"""`python -m tests.bench.fleet [PART ...] [NODES ...]`: what reads examples/fleet.py, measured for docs/scaling.md.

Rule 1: not part of `make bench`: it takes minutes, and has no bound to keep.
Rule 2: parts are `scrape` (a Prometheus), `agent` (one in agent mode that writes to another), `rotel` and `otelcol`
        (collectors that are pushed to; the second has to be on the PATH) and `sizes`; all when none is named.
Rule 3: scrapes and pushes come at their usual paces; how well samples compress is measured at one scrape a second, so
        that the block of a few minutes holds chunks as full as those of two hours.
Rule 4: the nodes give way to what is measured: all of them share the machine.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

from tests.conftest import ROOT
from tests.push.collectors import Rotel, free_port, rotel_program

PACE, PUSH_PACE, WINDOW = 15, 60, 180  # seconds
FAST_NODES, FAST_WINDOW = 10, 360  # one scrape a second: three chunks of 120 samples in each series
BATCHES_SENT, BYTES_SENT = "otelgpu_otlp_batches_sent_total", "otelgpu_otlp_payload_bytes_total"
Program: TypeAlias = AbstractContextManager[tuple[int, str]]  # while it runs: its pid, and where it is reached
_SAMPLE = re.compile(r"^([a-z_]+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@contextmanager
def running(command: Sequence[str], ready: str, log: Path) -> Iterator[tuple[int, str]]:
    """Run a program until it has said something like *ready*; give its pid and what the pattern found."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT)
    try:
        while not (found := re.search(ready, log.read_text())):
            if process.poll() is not None:
                raise SystemExit(log.read_text())
            time.sleep(0.1)
        yield process.pid, found[1]
    finally:
        process.terminate()
        process.wait()


@contextmanager
def working_in() -> Iterator[Path]:
    """Give a folder that is removed at the end, unless something went wrong: its logs say what."""
    folder = Path(tempfile.mkdtemp(prefix="otelgpu-fleet-"))
    yield folder
    shutil.rmtree(folder)


def fleet(nodes: int, folder: Path, *flags: str) -> Program:
    """Run a fleet; give its pid and the address of its list of nodes."""
    command = ["nice", sys.executable, "examples/fleet.py", "--nodes", str(nodes), "--port", "0", *flags]
    return running(command, r"nodes: (\S+)", folder / "fleet.log")


def prometheus(folder: Path, name: str, config: str, *flags: str) -> Program:
    """Run a Prometheus; give its pid and its address."""
    (folder / f"{name}.yml").write_text(config)
    command = ["prometheus", f"--config.file={folder / name}.yml", "--web.listen-address=127.0.0.1:0", *flags]
    return running(command, r'msg="Listening on" address=(\S+)', folder / f"{name}.log")


def scrapes(url: str, pace: int) -> str:
    """Give the configuration of examples/fleet-prometheus.yml, for another address and pace."""
    config = (ROOT / "examples" / "fleet-prometheus.yml").read_text()
    config = config.replace("http://127.0.0.1:9500/targets", url).replace("15s", f"{pace}s")
    return config.replace("scrape_timeout: 10s", f"scrape_timeout: {min(pace, 10)}s")


def got(url: str) -> bytes:
    """Get a page."""
    with urllib.request.urlopen(url, timeout=60) as reply:
        return bytes(reply.read())


def query(address: str, text: str) -> float:
    """Ask Prometheus for one number."""
    answer = got(f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': text})}")
    return float(json.loads(answer)["data"]["result"][0]["value"][1])


def own(address: str) -> Mapping[str, float]:
    """Read what a server says of itself: the sum of each name."""
    found: defaultdict[str, float] = defaultdict(float)
    for name, value in _SAMPLE.findall(got(f"http://{address}/metrics").decode()):
        found[name] += float(value)
    return found


def cpu(pid: int) -> float:
    """Give the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def memory(pid: int, row: str = "VmRSS") -> float:
    """Give the MB that a process has now, or had at most (`VmHWM`)."""
    found = re.search(rf"^{row}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def over(window: float, look: Callable[[], Mapping[str, float]]) -> Mapping[str, float]:
    """Give how fast each number of *look* grows, a second."""
    began, before = time.monotonic(), look()
    time.sleep(began + window - time.monotonic())
    seconds, after = time.monotonic() - began, look()
    return {name: (value - before.get(name, 0)) / seconds for name, value in after.items()}


def scraped(nodes: int) -> None:
    """Print what a fleet costs at the usual pace."""
    with (
        working_in() as folder,
        fleet(nodes, folder) as (fleet_pid, url),
        prometheus(folder, "prometheus", scrapes(url, PACE), f"--storage.tsdb.path={folder / 'data'}") as (pid, at),
    ):
        time.sleep(2 * PACE)  # each node has been scraped, some twice
        rates = over(WINDOW, lambda: {**own(at), "prometheus": cpu(pid), "fleet": cpu(fleet_pid)})
        print(
            f"{nodes} nodes:"
            f" up {query(at, 'sum(up)'):.0f},"
            f" series {own(at)['prometheus_tsdb_head_series']:.0f},"
            f" samples/s {rates['prometheus_tsdb_head_samples_appended_total']:.0f},"
            f" scrape median {query(at, 'quantile(0.5, scrape_duration_seconds)') * 1000:.0f} ms,"
            f" p99 {query(at, 'quantile(0.99, scrape_duration_seconds)') * 1000:.0f} ms,"
            f" Prometheus {memory(pid):.0f} MB and {rates['prometheus']:.3f} cores,"
            f" fleet {rates['fleet']:.3f} cores",
            flush=True,
        )


def sent_on(nodes: int) -> None:
    """Print what an agent that scrapes a fleet costs, and the Prometheus that it writes to."""
    with (
        working_in() as folder,
        fleet(nodes, folder) as (_, url),
        prometheus(
            folder, "receiver", "", f"--storage.tsdb.path={folder / 'data'}", "--web.enable-remote-write-receiver"
        ) as (receiver, there),
        prometheus(
            folder,
            "agent",
            f"{scrapes(url, PACE)}\nremote_write: [{{url: http://{there}/api/v1/write}}]\n",
            "--enable-feature=agent",
            f"--storage.agent.path={folder / 'agent'}",
        ) as (agent, here),
    ):
        time.sleep(2 * PACE)
        rates = over(WINDOW, lambda: {**own(there), **own(here), "receiver": cpu(receiver), "agent": cpu(agent)})
        sent = {name: rates[f"prometheus_remote_storage_{name}"] for name in ("samples_total", "bytes_total")}
        print(
            f"{nodes} nodes: agent {memory(agent):.0f} MB and {rates['agent']:.3f} cores,"
            f" {own(here)['prometheus_remote_storage_shards']:.0f} shards,"
            f" samples/s {sent['samples_total']:.0f} in"
            f" {rates['prometheus_remote_storage_sent_batch_duration_seconds_count']:.2f} requests/s"
            f" of {sent['bytes_total'] / 1000:.1f} kB/s;"
            f" receiver {memory(receiver):.0f} MB and {rates['receiver']:.3f} cores,"
            f" series {own(there)['prometheus_tsdb_head_series']:.0f},"
            f" samples/s {rates['prometheus_tsdb_head_samples_appended_total']:.0f}",
            flush=True,
        )


@contextmanager
def otelcol(folder: Path, sink: str) -> Iterator[tuple[int, str]]:
    """Run an OpenTelemetry Collector as examples/compose sets it up; give its pid and where it takes OTLP."""
    address = f"127.0.0.1:{free_port()}"
    config = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": address}}}},
        "processors": {"memory_limiter": {"check_interval": "1s", "limit_mib": 512}, "batch": {}},
        "exporters": {"otlphttp": {"endpoint": sink}},
        "service": {
            "telemetry": {"metrics": {"level": "none"}},  # its own page would take a port that others use
            "pipelines": {
                kind: {"receivers": ["otlp"], "processors": ["memory_limiter", "batch"], "exporters": ["otlphttp"]}
                for kind in ("metrics", "logs")
            },
        },
    }
    (folder / "otelcol.yaml").write_text(json.dumps(config))  # which is YAML
    command = ["otelcol", f"--config={folder / 'otelcol.yaml'}"]
    with running(command, r"(Everything is ready)", folder / "otelcol.log") as (pid, _):
        yield pid, f"http://{address}"


@contextmanager
def started(collector: Rotel) -> Iterator[tuple[int, str]]:
    """Run a rotel; give its pid and where it takes OTLP."""
    collector.start()
    try:
        assert collector.process is not None
        yield collector.process.pid, collector.url("http")
    finally:
        collector.kill()


def rotel(folder: Path, sink: str) -> Program:
    """Run a rotel that hands on; give its pid and where it takes OTLP."""
    (folder / "gateway").mkdir()
    return started(Rotel(rotel_program(), sink, folder / "gateway"))


def pushed(gateway: Callable[[Path, str], Program], nodes: int) -> None:
    """Print what a collector costs that a fleet pushes to, and that hands on to another one."""
    with (
        working_in() as folder,
        started(Rotel(rotel_program(), "http://127.0.0.1:9", folder, exporter="blackhole")) as (_, sink),
        gateway(folder, sink) as (pid, url),
        fleet(nodes, folder, "--push", url, "--push-interval", str(PUSH_PACE)) as (_, targets),
    ):
        pages = [targets.replace("http://", "").replace("targets", f"node-{node:04}") for node in range(nodes)]

        def counted() -> Mapping[str, float]:
            used = cpu(pid)
            nodes_say = [own(page) for page in pages]
            sent = {name: sum(node[name] for node in nodes_say) for name in (BATCHES_SENT, BYTES_SENT)}
            return {"gateway": used, **sent}

        time.sleep(PUSH_PACE)
        rates = over(WINDOW, counted)
        print(
            f"{nodes} nodes: {gateway.__name__} {memory(pid):.0f} MB, at most {memory(pid, 'VmHWM'):.0f} MB,"
            f" and {rates['gateway']:.4f} cores,"
            f" batches/s {rates[BATCHES_SENT]:.2f} of {rates[BYTES_SENT] / rates[BATCHES_SENT] / 1000:.2f} kB,"
            f" {rates[BYTES_SENT] / 1000:.1f} kB/s",
            flush=True,
        )


def compressed() -> None:
    """Print how many bytes a page and a sample take."""
    with (
        working_in() as folder,
        fleet(FAST_NODES, folder) as (_, url),
        prometheus(
            folder, "prometheus", scrapes(url, 1), f"--storage.tsdb.path={folder / 'data'}", "--web.enable-admin-api"
        ) as (_, address),
    ):
        page = url.replace("targets", "node-0000/metrics")
        sizes = []
        for headers in ({}, {"Accept-Encoding": "gzip"}):
            with urllib.request.urlopen(urllib.request.Request(page, headers=headers), timeout=60) as reply:
                sizes.append(len(reply.read()))
        time.sleep(FAST_WINDOW)
        ask = urllib.request.Request(f"http://{address}/api/v1/admin/tsdb/snapshot", method="POST")
        with urllib.request.urlopen(ask, timeout=60) as reply:
            snapshot = folder / "data" / "snapshots" / json.load(reply)["data"]["name"]
        for meta in snapshot.glob("*/meta.json"):
            stats = json.loads(meta.read_text())["stats"]
            chunks = sum(file.stat().st_size for file in (meta.parent / "chunks").iterdir())
            index = (meta.parent / "index").stat().st_size
            print(
                f"page {sizes[0]} bytes, gzip {sizes[1]};"
                f" block of {stats['numSeries']} series and {stats['numSamples']} samples:"
                f" {chunks / stats['numSamples']:.2f} bytes a sample,"
                f" {index / stats['numSeries']:.0f} bytes of index a series",
                flush=True,
            )


PARTS: Mapping[str, Callable[[int], None]] = {
    "scrape": scraped,
    "agent": sent_on,
    "rotel": partial(pushed, rotel),
    "otelcol": partial(pushed, otelcol),
}


def main() -> None:
    """Measure."""
    words = sys.argv[1:]
    parts = [word for word in words if word in PARTS or word == "sizes"] or [*PARTS, "sizes"]
    for part in parts:
        if part == "sizes":
            compressed()
            continue
        for nodes in [int(word) for word in words if word not in parts] or [10, 100, 300]:
            PARTS[part](nodes)


if __name__ == "__main__":
    main()
