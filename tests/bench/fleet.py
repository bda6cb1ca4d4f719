"""`python -m tests.bench.fleet [NODES ...]`: a Prometheus that scrapes examples/fleet.py, for docs/scaling.md.

Rule 1: not part of `make bench`: it takes minutes, and has no bound to keep.
Rule 2: the first figures are of the usual pace of 15 s; how well samples compress is measured at one scrape a second,
        so that the block of a few minutes holds chunks as full as those of two hours.
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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.conftest import ROOT

PACE, WINDOW = 15, 180  # seconds
FAST_NODES, FAST_WINDOW = 10, 360  # one scrape a second: three chunks of 120 samples in each series
_SAMPLE = re.compile(r"^([a-z_]+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@contextmanager
def running(command: list[str], ready: str, log: Path) -> Iterator[tuple[int, str]]:
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
def observed(nodes: int, pace: int) -> Iterator[tuple[int, int, str, Path]]:
    """Run a fleet and a Prometheus; give the pid of each, Prometheus's address and its folder."""
    folder = Path(tempfile.mkdtemp(prefix="otelgpu-fleet-"))
    fleet = [sys.executable, "examples/fleet.py", "--nodes", str(nodes), "--port", "0"]
    with ExitStack() as stack:
        fleet_pid, url = stack.enter_context(running(fleet, r"nodes: (\S+)", folder / "fleet.log"))
        config = (ROOT / "examples" / "fleet-prometheus.yml").read_text()
        config = config.replace("http://127.0.0.1:9500/targets", url).replace("15s", f"{pace}s")
        (folder / "prometheus.yml").write_text(
            config.replace("scrape_timeout: 10s", f"scrape_timeout: {min(pace, 10)}s")
        )
        prometheus = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--web.listen-address=127.0.0.1:0",
            "--web.enable-admin-api",
        ]
        ready = r'msg="Listening on" address=(\S+)'
        pid, address = stack.enter_context(running(prometheus, ready, folder / "prometheus.log"))
        yield fleet_pid, pid, address, folder
    shutil.rmtree(folder)


def query(address: str, text: str) -> float:
    """Ask Prometheus for one number."""
    url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
    with urllib.request.urlopen(url, timeout=60) as reply:
        return float(json.load(reply)["data"]["result"][0]["value"][1])


def own(address: str) -> Mapping[str, float]:
    """Read what Prometheus says of itself: the sum of each name."""
    found: defaultdict[str, float] = defaultdict(float)
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as reply:
        for name, value in _SAMPLE.findall(reply.read().decode()):
            found[name] += float(value)
    return found


def cpu(pid: int) -> float:
    """Give the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def usual(nodes: int) -> None:
    """Print what a fleet costs at the usual pace."""
    with observed(nodes, PACE) as (fleet, prometheus, address, _):
        time.sleep(2 * PACE)  # each node has been scraped, some twice
        before = own(address), cpu(fleet), cpu(prometheus), time.monotonic()
        time.sleep(WINDOW)
        after = own(address), cpu(fleet), cpu(prometheus), time.monotonic()
        seconds = after[3] - before[3]
        samples = "prometheus_tsdb_head_samples_appended_total"
        print(
            f"{nodes} nodes:"
            f" up {query(address, 'sum(up)'):.0f},"
            f" series {after[0]['prometheus_tsdb_head_series']:.0f},"
            f" samples/s {(after[0][samples] - before[0][samples]) / seconds:.0f},"
            f" scrape median {query(address, 'quantile(0.5, scrape_duration_seconds)') * 1000:.0f} ms,"
            f" p99 {query(address, 'quantile(0.99, scrape_duration_seconds)') * 1000:.0f} ms,"
            f" Prometheus {after[0]['process_resident_memory_bytes'] / 1e6:.0f} MB"
            f" and {(after[2] - before[2]) / seconds:.3f} cores,"
            f" fleet {(after[1] - before[1]) / seconds:.3f} cores",
            flush=True,
        )


def compressed() -> None:
    """Print how many bytes a page and a sample take."""
    with observed(FAST_NODES, 1) as (_, __, address, folder):
        url = re.search(r"nodes: (\S+)", (folder / "fleet.log").read_text())
        assert url is not None
        page = url[1].replace("targets", "node-0000/metrics")
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


def main() -> None:
    """Measure."""
    for nodes in [int(word) for word in sys.argv[1:]] or [10, 100, 300]:
        usual(nodes)
    compressed()


if __name__ == "__main__":
    main()
