"""A machine that gives too little: descriptors, threads, memory, standard streams, and time before a signal.

Rule 1: the limits are the kernel's own, but for threads: root may have any number, so a preloaded library refuses.
Rule 2: a signal that has to come at one moment is sent by the process itself, from within the import of a module.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.fakenvml import models
from tests.harness import LIMIT, serving, until, values

TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
NOT_LOADED = 9  # NVML_ERROR_DRIVER_NOT_LOADED
NODE = ("--source", "simulated:2xt4", "--listen", "127.0.0.1:0", "--log-level", "error")


def ran(
    *arguments: str, before: str = "", environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run otelgpu under a shell that first does what *before* says (`ulimit -n 8`); it has to end by itself."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **(environ or {})}
    command = ["sh", "-c", f'{before or ":"}\nexec "$@"', "sh", sys.executable, "-m", "otelgpu", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)


@pytest.fixture(scope="session")
def few_threads(cc: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that refuses threads."""
    made = tmp_path_factory.mktemp("threads") / "threads.so"
    source = Path(__file__).with_name("threads.c")
    subprocess.run([cc, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return made


# at the start

DESCRIPTORS = "there are not enough file descriptors (ulimit -n)"
MEMORY = "there is not enough memory (ulimit -v, or the limit of the container)"
THREADS = "there are not enough threads (ulimit -u, ulimit -v, or pids.max of the container)"


@pytest.mark.parametrize("count", [5, 6, 7, 8])
def test_too_few_descriptors_to_start_are_one_line(count: int) -> None:
    """Whatever needs the one that is missing, an import or the server: no traceback, and the limit is named."""
    ended = ran("serve", *NODE, before=f"ulimit -n {count}")

    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", f"otelgpu: cannot start: {DESCRIPTORS}\n")


def test_a_handful_of_descriptors_is_enough() -> None:
    """The same node with a few more serves: the limit above is no guess."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    command = ["sh", "-c", 'ulimit -n 16; exec "$@"', "sh", sys.executable, "-m", "otelgpu", *NODE]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        code = process.wait(LIMIT)

    assert first.startswith("listening on http://127.0.0.1:")
    assert code == 0


@pytest.mark.parametrize("kilobytes", [24_000, 32_000, 50_000])
def test_too_little_memory_to_start_is_one_line(kilobytes: int) -> None:
    """An import that cannot map a library fails in several ways; the user reads of the one cause."""
    ended = ran("serve", *NODE, before=f"ulimit -v {kilobytes}")

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr in (f"otelgpu: cannot start: {MEMORY}\n", f"otelgpu: cannot start: {THREADS}\n")


@pytest.mark.parametrize("count", [0, 2, 4, 6, 12, 17])
def test_too_few_threads_to_start_are_one_line(few_threads: Path, tmp_path: Path, count: int) -> None:
    """A pod with a small pids.max learns it at the start, and not by a page of 500s."""
    (tmp_path / "threads").write_text(str(count))
    preload = {"LD_PRELOAD": str(few_threads), "FAKE_THREADS": str(tmp_path / "threads")}
    path = tmp_path / "socket"
    ended = ran("serve", *NODE, "--listen", f"unix:{path}", environ=preload)

    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", f"otelgpu: cannot start: {THREADS}\n")
    assert not path.exists()


# while running


def test_a_gpu_without_a_thread_is_told_and_got_over(few_threads: Path, tmp_path: Path) -> None:
    """The driver comes up when no thread is left for its GPUs: the page stays, and /healthz says what is wrong."""
    limit = tmp_path / "limit"
    preload = {"LD_PRELOAD": str(few_threads), "FAKE_THREADS": str(limit)}
    absent = models.h100(2).but(errors={"nvmlInitWithFlags": NOT_LOADED})
    with serving(absent, tmp_path, "--reuse", "0", environ=preload) as served:
        until(lambda: served.logged("is down") == 1, "a first try")
        healthy = served.get("/healthz").status
        limit.write_text("0")
        models.h100(2).write(served.scenario)
        until(lambda: served.get("/healthz").status == 503, "the lack of a thread")
        told = served.get("/healthz").text
        pages = [served.page() for _ in range(3)]
        limit.unlink()
        until(lambda: len(values(served.page(), TEMPERATURE)) == 2, "both GPUs")
        after = served.get("/healthz").status
        code = served.stop()

    lacking = "no thread for otelgpu-gpu-0 and 1 more: can't start new thread"
    assert (healthy, after, code) == (200, 200, 0)
    assert told.startswith(lacking)
    assert all(values(page, TEMPERATURE) == {} for page in pages)
    assert served.logged("no thread for otelgpu-gpu-0: can't start new thread") == 1
    assert served.logged("every worker has its thread again") == 1
    assert served.logged("Traceback") == 0


def test_pages_need_no_new_thread(few_threads: Path, tmp_path: Path) -> None:
    """What answers requests is there before the first one: a limit that is reached later costs no page."""
    limit = tmp_path / "limit"
    preload = {"LD_PRELOAD": str(few_threads), "FAKE_THREADS": str(limit)}
    with serving(models.h100(2), tmp_path, "--reuse", "0", environ=preload) as served:
        until(lambda: served.get("/readyz").status == 200, "the first sweep")
        limit.write_text("0")
        pages = [served.get(Accept_Encoding=coding) for coding in ("gzip", "") for _ in range(4)]
        healthy = served.get("/healthz").status
        code = served.stop()

    assert {page.status for page in pages} == {200}
    assert len(values(pages[-1].text, TEMPERATURE)) == 2
    assert (healthy, code) == (200, 0)
    assert served.logged("Traceback") == 0


# the log


def test_a_gpu_that_comes_and_goes_fills_no_log(tmp_path: Path) -> None:
    """A loose riser: five lines of each kind a minute, and at the end how often it was and how it stood."""
    good = models.h100(2)
    lost = good.with_gpu(1, lost=True)
    with serving(good, tmp_path, "--reuse", "0") as served:
        for _ in range(12):
            lost.write(served.scenario)
            served.page()
            good.write(served.scenario)
            served.page()
        before = (served.logged("is down"), served.logged("is back"))
        code = served.stop()

    assert 5 <= before[0] < 10  # the reason may be another when the driver is caught in the middle of a question
    assert before[1] == 5
    assert code == 0
    assert served.logged("is back") == 6
    (more,) = re.findall(r"is back \(and ([0-9]+) times more in 60 s\)", "".join(served.log))
    assert 4 <= int(more) <= 6  # a sweep that meets the driver between two states may miss one


# standard streams


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_socket_gets_the_number_of_a_closed_stream(tmp_path: Path, closed: str) -> None:
    """A supervisor that closes them would else have the log written into somebody's connection."""
    path = tmp_path / "socket"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "otelgpu"]
    command += ["--source", "simulated:2xt4", "--listen", f"unix:{path}"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env=env, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        until(path.is_socket, "a socket")
        places = [str(Path(f"/proc/{process.pid}/fd/{number}").readlink()) for number in range(3)]
        process.send_signal(signal.SIGTERM)
        code = process.wait(LIMIT)

    assert places == ["/dev/null"] * 3
    assert code == 0


# signals before anything is there


@pytest.fixture
def heeded() -> Iterator[None]:
    """Let children heed SIGINT also where this run was started in the background of a script, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


KILLS_ITSELF = """
import atexit, os, sys
def now():
    os.kill(os.getpid(), int(os.environ["KILL_WITH"]))
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["KILL_AT"]:
            now()
        return None
sys.meta_path.insert(0, Finder())
if os.environ["KILL_AT"] == "exit":
    atexit.register(now)
"""
MOMENTS = ("otelgpu.cli", "click", "msgspec", "otelgpu.pipeline", "opentelemetry.sdk.metrics", "tornado.web")


def killed(tmp_path: Path, *arguments: str, at: str, number: int) -> tuple[int, str, str]:
    """Run otelgpu, which gets a signal when it imports a module; give its status, stdout and stderr."""
    (tmp_path / "sitecustomize.py").write_text(KILLS_ITSELF)
    environ = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "KILL_AT": at, "KILL_WITH": str(int(number))}
    ended = ran(*arguments, environ=environ)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", MOMENTS)
def test_serve_ends_well_whenever_it_is_told_to(tmp_path: Path, moment: str, number: int) -> None:
    """A pod that is deleted while Python still imports was stopped, and did not fail."""
    status, out, err = killed(tmp_path, "serve", *NODE, at=moment, number=number)

    assert (status, out, err) == (0, "", "")


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("moment", [*MOMENTS, "otelgpu.tables"])
def test_a_look_that_is_broken_off_says_nothing(tmp_path: Path, moment: str, number: int, status: int) -> None:
    """Ctrl-C at any moment leaves the prompt and no traceback; the status is that of the signal."""
    node = ("--source", "simulated:2xt4", "--format", "json", "--log-level", "error")

    assert killed(tmp_path, "once", *node, at=moment, number=number) == (status, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_the_very_end_changes_nothing(tmp_path: Path, number: int) -> None:
    """The work is done and its status known: an impatient second signal must not turn it into a failure."""
    status, out, err = killed(tmp_path, "--version", at="exit", number=number)

    assert (status, err) == (0, "")
    assert out.startswith("otelgpu ")


@pytest.mark.usefixtures("heeded")
def test_a_look_that_waits_for_the_driver_can_be_broken_off(tmp_path: Path) -> None:
    """The driver hangs and so does the look: Ctrl-C ends it at once."""
    scenario = models.h100().but(hangs={"nvmlInitWithFlags"})
    path = scenario.write(tmp_path / "scenario")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "FAKENVML_SCENARIO": str(path)}
    env |= {"LD_LIBRARY_PATH": str(scenario.library()), "FAKENVML_COUNTS": str(tmp_path / "counts")}
    command = [sys.executable, "-m", "otelgpu", "once", "--deadline", "60", "--log-level", "error"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: _is_in_call(process.pid), "a call under way")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=5)

    assert (process.returncode, out, err) == (130, "", "")


def _is_in_call(pid: int) -> bool:
    """Whether the driver has been loaded and the thread that asks it runs."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return "libnvidia-ml" in maps and len(list(Path(f"/proc/{pid}/task").iterdir())) > 2
