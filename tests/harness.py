"""The product as tests use it: in this process (`Node`), or as a program of its own (`Served`).

Rule 1: everything below the driver's door is the real thing: service, sampler, pynvml, the fake library in C.
Rule 2: nothing sleeps: what has to be waited for is an event of the product, with a limit.
"""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from otelgpu.config import Config, Sampling, SourceChoice, Suspended
from otelgpu.export.page import Format
from otelgpu.model import Snapshot
from otelgpu.pipeline import Pipeline
from otelgpu.reload import LastReload
from otelgpu.sources import Source
from tests.fakelib.control import Fake as AnyFake
from tests.fakelib.control import Written
from tests.fakenvml import Counts, Scenario, library

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 20.0  # seconds: far beyond what anything here takes, short of what a person would wait
NVML, DCGM = SourceChoice("nvml"), SourceChoice("dcgm")
ENGINE = "127.0.0.1:5555"
OTELGPU = ("-m", "otelgpu")
DROP_IN = ("-c", "import sys; from otelgpu.__main__ import dcgm_exporter; sys.exit(dcgm_exporter())")

_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"(?:,|$)')


class Line(NamedTuple):
    """One sample line of a page."""

    name: str
    labels: Mapping[str, str]
    value: float


def lines_of(page: str) -> list[Line]:
    """Read every sample line of a page; a line that cannot be read is an error."""
    lines: list[Line] = []
    for text in page.splitlines():
        if not text or text.startswith("#"):
            continue
        match = _SAMPLE.match(text)
        assert match is not None, f"not a sample line: {text!r}"
        labels = {
            name: value.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")
            for name, value in _LABEL.findall(match[2] or "")
        }
        lines.append(Line(match[1], labels, float(match[3])))
    return lines


def values(page: str, name: str, by: str = "gpu") -> dict[str, float]:
    """The values of one family, by one label."""
    return {line.labels.get(by, ""): line.value for line in lines_of(page) if line.name == name}


def series(page: str, prefix: str = "DCGM_") -> list[str]:
    """The sample lines whose name begins with *prefix*, as they stand."""
    return [text for text in page.splitlines() if text.startswith(prefix)]


def until(met: Callable[[], bool], what: str, limit: float = LIMIT) -> None:
    """Wait for a condition that another thread or process will meet; fail with *what* after *limit* seconds."""
    ends = time.monotonic() + limit
    pause = threading.Event()
    while not met():
        assert time.monotonic() < ends, f"{what}: not within {limit} s"
        pause.wait(0.005)


def status_of(process: int) -> dict[str, str]:
    """What the kernel says of a process, by name."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return {name: " ".join(text.split()) for name, _, text in (line.partition(":") for line in lines)}


def patient(seconds: float) -> float:
    """So many seconds, and more while others keep this machine busy: a limit that only what hangs is to miss."""
    busy = os.getloadavg()[0] / (2 * len(os.sched_getaffinity(0)))
    return seconds * min(max(busy, 1.0), 10.0)


def short(seconds: float = 0.3, *, slow_interval: float = 60.0) -> Sampling:
    """Sampling for a test in which something hangs: no reuse, and a deadline that all else meets."""
    return Sampling(reuse=0, deadline=patient(seconds), slow_interval=slow_interval)


@dataclass
class Node:
    """A pipeline in this process over a fake. Sweeps happen only when asked for."""

    fake: AnyFake
    config: Config
    environ: Mapping[str, str] = field(default_factory=dict)
    tap: Callable[[Source], Source] = lambda source: source
    reloads: LastReload | None = None

    def __post_init__(self) -> None:
        self.pipeline = Pipeline(self.config, self.environ, tap=self.tap, reloads=self.reloads)
        self.pipeline.attribution.start()
        self.pipeline.sampler.start()
        self.pipeline.sampler.refresh()

    def show(self, scenario: Written) -> None:
        """From now on the fake answers this."""
        self.fake.show(scenario)

    def sweep(self, deadline: float | None = None) -> Snapshot:
        """Make a new sweep and return its snapshot."""
        snapshot = self.pipeline.sampler.refresh(deadline, max_age=0)
        assert snapshot is not None
        return snapshot

    def page(self, *, sweep: bool = True, form: Format = Format.TEXT) -> str:
        """Make a new sweep (or take the last) and return its page."""
        snapshot = self.sweep() if sweep else self.pipeline.sampler.latest
        shown = snapshot is not None and self.pipeline.is_fresh(snapshot)
        return self.pipeline.page(snapshot, form, shown=shown).decode()

    def settled_page(self) -> str:
        """A page with rates and windows: two sweeps, as far apart as the shortest window."""
        threading.Event().wait(0.11)  # the window is the driver's own time, which no clock of ours turns
        return self.page()

    def stop(self) -> bool:
        """End it; False when the driver held a thread."""
        return self.pipeline.stop(5)


def config(source: SourceChoice = NVML, **changes: object) -> Config:
    """Settings for a test: no reuse, so that every page is a sweep, and a host name that is the same everywhere.

    The deadline is one that nothing misses, however busy the machine; where something hangs see `short`.

    `compat` may be a text, as a person writes it.
    """
    if isinstance(compat := changes.get("compat"), str):
        changes["compat"] = tuple(compat.split(","))
    # The addresses of the fake's GPUs may be those of this machine's.
    suspended = Suspended(sys_root="/nowhere")
    usual = {
        "source": source,
        "hostname": "node-1",
        "sampling": Sampling(reuse=0, deadline=LIMIT),
        "suspended": suspended,
    }
    return Config(**(usual | changes))  # type: ignore[arg-type]


class Reply(NamedTuple):
    """What a server answered."""

    status: int
    headers: Mapping[str, str]  # names in small letters
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


@dataclass
class Served:
    """A running `otelgpu serve`. `log` grows while it runs."""

    process: subprocess.Popen[str]
    counts: Counts
    scenario: Path
    log: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)

    def get(self, path: str = "/metrics", *, timeout: float = LIMIT, **headers: str) -> Reply:
        """Ask with GET; headers are given with _ for -."""
        return self.request("GET", path, timeout=timeout, **headers)

    def request(self, method: str, path: str, *, timeout: float = LIMIT, **headers: str) -> Reply:
        """Ask the first address."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            return Reply(answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def page(self) -> str:
        """The text of /metrics."""
        reply = self.get()
        assert reply.status == 200
        return reply.text

    @property
    def host(self) -> str:
        """The host of the first address."""
        return re.sub(r"^http://\[?([^\]/]*?)\]?:\d+/.*$", r"\1", self.urls[0])

    @property
    def port(self) -> int:
        """The port of the first address."""
        return int(re.sub(r"^http://.*:(\d+)/.*$", r"\1", self.urls[0]))

    def connect(self) -> socket.socket:
        """Open a bare connection."""
        return socket.create_connection((self.host, self.port), timeout=LIMIT)

    def logged(self, text: str) -> int:
        """How many log lines hold *text*."""
        return sum(text in line for line in list(self.log))

    def stop(self, number: signal.Signals = signal.SIGTERM, limit: float = LIMIT) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(limit)


def refused(
    scenario: Scenario | None, folder: Path, *flags: str, environ: Mapping[str, str] | None = None
) -> tuple[int, list[str]]:
    """Run `otelgpu serve`, with these flags alone, that ends by itself; return its exit status and what it said."""
    done = command(scenario, folder, "serve", *flags, environ=environ)
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()


def command(
    scenario: Scenario | None,
    folder: Path,
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    program: Sequence[str] = OTELGPU,
) -> "subprocess.CompletedProcess[str]":
    """Run a command of otelgpu over the fake driver (*scenario* None: over no driver at all) until it ends."""
    return subprocess.run(
        [sys.executable, *program, *arguments],
        env=_environ(scenario, folder, environ),
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=LIMIT,
        check=False,
    )


def _environ(scenario: Scenario | None, folder: Path, environ: Mapping[str, str] | None) -> dict[str, str]:
    """Give the environment of a process over the fake driver, whose scenario it writes."""
    path, counts = folder / "scenario", folder / "counts"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "FAKENVML_SCENARIO": str(path)}
    env |= {"FAKENVML_COUNTS": str(counts), "OTELGPU_HOSTNAME": "node-1", "OTELGPU_SUSPENDED_SYS_ROOT": "/nowhere"}
    if scenario is not None:
        scenario.write(path)
        env["LD_LIBRARY_PATH"] = str(library(scenario.missing))
    return env | dict(environ or {})


@contextmanager
def serving(
    scenario: Scenario | None,
    folder: Path,
    *flags: str,
    environ: Mapping[str, str] | None = None,
    ready: bool = True,
    program: Sequence[str] = (*OTELGPU, "serve"),
) -> Iterator[Served]:
    """Run `otelgpu serve` on a free port over the fake driver (*scenario* None: over no driver at all)."""
    path, counts = folder / "scenario", folder / "counts"
    env = _environ(scenario, folder, environ)
    command = [sys.executable, *program, *flags]
    if "OTELGPU_SERVER_LISTEN" not in env and not any(flag.startswith("--listen") for flag in flags):
        command += ["--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)
    assert process.stdout is not None
    assert process.stderr is not None
    served = Served(process, Counts(counts), path)
    readers = [
        threading.Thread(target=served.log.extend, args=(process.stderr,), daemon=True),
        threading.Thread(target=served.urls.extend, args=(_urls(process.stdout),), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        if ready:
            until(lambda: bool(served.urls) or process.poll() is not None, "an address")
            assert served.urls, "".join(served.log)
        yield served
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for reader in readers:
            reader.join(LIMIT)
        process.stdout.close()
        process.stderr.close()


def _urls(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        match = re.search(r"(https?://\S+|unix:\S+)", line)
        if match:
            yield match[1]
