"""Hosts as programs: forks, the global provider, locks between processes, the end.

Rule 1: what one process must tell another travels through pipes; nobody guesses how long something takes.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.embed.host import SIMULATED, environ, run
from tests.fakenvml import Counts, models
from tests.harness import LIMIT, patient

HEAD = """
import os, sys, threading
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

def ours():
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("otelgpu"))

def count(reader, name="hw.power"):
    data = reader.get_metrics_data()
    scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
    return sum(len(m.data.data_points) for scope in scopes for m in scope.metrics if m.name == name)

def child(work):
    into, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(out, repr(work()).encode())
        finally:
            os._exit(0)
    os.close(out)
    with os.fdopen(into) as answers:
        text = answers.read()
    os.waitpid(pid, 0)
    return text

reader = InMemoryMetricReader()
provider = MeterProvider([reader])
"""


def test_a_child_of_a_fork_starts_afresh(tmp_path: Path) -> None:
    """A pre-fork server collects in its workers: no thread, lock or driver of the master is used there."""
    program = f"""{HEAD}
import otelgpu
watching = otelgpu.observe(provider, reuse=0)
assert count(reader) == 2 and ours()
before = child(lambda: (ours(), count(reader), ours(), watching.stop(), ours(), count(reader)))
print(before)
print(count(reader), ours())
"""
    ran = run(program, environ(tmp_path, models.h100(2)))
    threads = ["otelgpu-driver", "otelgpu-gpu-0", "otelgpu-gpu-1", "otelgpu-sampler"]

    assert ran.stdout.splitlines() == [repr(([], 2, threads, None, [], 0)), f"2 {threads}"]
    assert ran.stderr == ""
    assert Counts(tmp_path / "counts").calls("nvmlInitWithFlags") == 2  # one each: the child did not use the master's


def test_a_fork_before_the_first_collection_leaves_the_driver_to_the_children(tmp_path: Path) -> None:
    """A master that only forks (gunicorn --preload) never opens the driver."""
    program = f"""{HEAD}
from otelgpu import GpuInstrumentor
GpuInstrumentor().instrument(meter_provider=provider)
print([child(lambda: count(reader)) for _ in range(3)], ours())
"""
    ran = run(program, environ(tmp_path, models.h100(2)))

    assert ran.stdout == "['2', '2', '2'] []\n"
    assert Counts(tmp_path / "counts").calls("nvmlInitWithFlags") == 3


def test_a_fork_during_a_sweep_does_not_lock_the_child(tmp_path: Path) -> None:
    """The moment of a fork is not ours to choose: here a driver call is under way and a sweep is waited for."""
    program = f"""{HEAD}
import otelgpu
otelgpu.observe(provider, reuse=0, deadline={patient(0.5)})
other = MeterProvider([second := InMemoryMetricReader()])
otelgpu.observe(other, reuse=0, deadline={patient(0.5)})
collecting = threading.Thread(target=count, args=(reader,), daemon=True)
collecting.start()
while "otelgpu-gpu-0" not in ours():
    pass
print(child(lambda: count(second)))
os._exit(0 if sys.stdout.flush() is None else 1)
"""
    scenario = models.h100(2).with_gpu(0, hangs={"nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues"})
    ran = run(program, environ(tmp_path, scenario))

    assert ran.stdout == "1\n"


def test_a_fork_during_the_first_collection_does_not_lock_the_child(tmp_path: Path) -> None:
    """It imports what reads the driver; a child made meanwhile would wait for that import for ever."""
    program = f"""{HEAD}
import otelgpu
otelgpu.observe(provider)
other = MeterProvider([second := InMemoryMetricReader()])
otelgpu.observe(other)
importing, forked = threading.Event(), threading.Event()
class Slow:
    def find_spec(self, name, *_):
        if name == "otelgpu.sources.nvml.source" and not importing.is_set():
            importing.set()
            forked.wait(0.5)
sys.meta_path.insert(0, Slow())
collecting = threading.Thread(target=count, args=(reader,), daemon=True)
collecting.start()
importing.wait()
print(child(lambda: count(second)))
"""
    ran = run(program, environ(tmp_path, models.h100(2)))

    assert ran.stdout == "2\n"


def test_multiprocessing_workers_are_apart(tmp_path: Path) -> None:
    """A data loader's workers, however they are started, neither break nor are broken."""
    (tmp_path / "worker.py").write_text("def work(number):\n    return number * 2\n")
    program = f"""{HEAD}
import multiprocessing, otelgpu
from worker import work
otelgpu.observe(provider, reuse=0)
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(work, range(3)), count(reader))
"""
    script = tmp_path / "main.py"
    script.write_text(program)
    env = environ(tmp_path, models.h100(2))
    ran = run(str(script), env | {"PYTHONPATH": f"{env['PYTHONPATH']}{os.pathsep}{tmp_path}"}, sys.executable)

    assert ran.stdout.splitlines() == [f"{method} [0, 2, 4] 2" for method in ("fork", "spawn", "forkserver")]


def test_the_global_provider_can_be_set_later(tmp_path: Path) -> None:
    """Libraries instrument at import, programs set their provider in main: what was registered before is not lost."""
    program = f"""{HEAD}
from otelgpu import GpuInstrumentor, observe
GpuInstrumentor().instrument()
print(count(reader), ours())
metrics.set_meter_provider(provider)
print(count(reader))
GpuInstrumentor().uninstrument()
print(count(reader), ours())
with observe(provider, fields=["DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_UTIL"]):
    print(count(reader), count(reader, "hw.gpu.utilization"))
"""
    ran = run(program, environ(tmp_path, OTELGPU_SOURCE=SIMULATED))

    assert ran.stdout.splitlines() == ["0 []", "2", "0 []", "2 2"]
    assert "already" not in ran.stderr


def test_uninstrument_leaves_no_thread_and_no_driver(tmp_path: Path) -> None:
    """A notebook that turns it off has its process back as it was."""
    program = f"""{HEAD}
from otelgpu import GpuInstrumentor
for _ in range(3):
    GpuInstrumentor().instrument(meter_provider=provider, reuse=0)
    assert count(reader) == 2 and ours()
    GpuInstrumentor().uninstrument()
    print(count(reader), ours())
"""
    ran = run(program, environ(tmp_path, models.h100(2)))

    assert ran.stdout == "0 []\n" * 3
    assert ran.stderr == ""
    assert Counts(tmp_path / "counts").gauge("inits") == 0


@pytest.mark.parametrize("where", ["provider", "stand-in"])
def test_a_hundred_times_on_and_off_leaves_nothing(where: str, tmp_path: Path) -> None:
    """A notebook's cell, or a test suite of the host: no thread, file, driver, object or memory is left of it."""
    arguments = "meter_provider=provider, " if where == "provider" else ""
    program = f"""{HEAD}
import gc
from otelgpu import GpuInstrumentor

def left():
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return threading.active_count(), len(os.listdir("/proc/self/fd")), len(gc.get_objects()), pages

for turn in range(121):
    GpuInstrumentor().instrument({arguments}reuse=0)
    count(reader)
    GpuInstrumentor().uninstrument()
    if turn == 20:
        before = left()
after = left()
print(*(late - early for early, late in zip(before, after)))
"""
    ran = run(program, environ(tmp_path, models.h100(2)))
    threads, files, objects, pages = map(int, ran.stdout.split())

    assert (threads, files) == (0, 0)
    assert objects < 100
    assert pages * os.sysconf("SC_PAGESIZE") < 2_000_000
    assert Counts(tmp_path / "counts").gauge("inits") == 0


def test_a_provider_that_is_made_global_later_shows_each_gpu_once(tmp_path: Path) -> None:
    """A library observes the global provider, the program its own, which it makes the global one afterwards."""
    program = f"""{HEAD}
from otelgpu import observe
first = observe()
observe(provider)
print(count(reader))
metrics.set_meter_provider(provider)
print(count(reader), count(reader, "hw.status"))
first.stop()
print(count(reader))
"""
    ran = run(program, environ(tmp_path, OTELGPU_SOURCE=SIMULATED))

    assert ran.stdout.splitlines() == ["2", "2 8", "2"]


def test_a_child_ends_nothing_of_its_parents(tmp_path: Path) -> None:
    """The driver held a thread when the parent stopped; the child has the handle, but neither thread nor lock."""
    program = f"""{HEAD}
import otelgpu
watching = otelgpu.observe(provider, reuse=0, deadline=0.2)
count(reader)
watching.stop()
engine = watching._engine
assert engine is not None
engine._lock.acquire()  # as another thread might have at the moment of the fork
print(child(watching.stop))
sys.stdout.flush()
os._exit(0)
"""
    ran = run(program, environ(tmp_path, models.h100(2).with_gpu(0, hangs={"*"})), limit=30)

    assert ran.stdout == "None\n"


def test_a_daemon_that_closed_all_files_reports_again(tmp_path: Path) -> None:
    """It closes every file, opens its own and forks: no file of the host is closed, and the lock is taken anew."""
    program = f"""{HEAD}
import otelgpu
otelgpu.observe(provider, reuse=0, once=True)
first = count(reader)
os.closerange(3, 100)
files = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]

def work():
    null = os.stat(os.devnull).st_rdev
    return [os.fstat(file).st_rdev for file in files] == [null] * 20, count(reader)

print(first, child(work))
"""
    ran = run(program, environ(tmp_path, OTELGPU_SOURCE=SIMULATED))

    assert ran.stdout == "2 (True, 2)\n"


@pytest.mark.parametrize("hangs", [False, True])
def test_a_host_ends_as_ever(hangs: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """No thread of ours keeps a finished program alive, not even one that the driver holds."""
    deadline = patient(0.2) if hangs else LIMIT
    program = f"{HEAD}\nimport otelgpu\notelgpu.observe(provider, deadline={deadline})\nprint(count(reader))\n"
    scenario = models.h100(2)
    if hangs:
        scenario = scenario.with_gpu(1, hangs={"*"})
    ran = run(program, environ(tmp_path, scenario), limit=15)

    assert ran.stdout == ("1\n" if hangs else "2\n")


REPORTER = f"""{HEAD}
import otelgpu
watching = otelgpu.observe(provider, reuse=0, once=True)
for line in sys.stdin:
    if line == "stop\\n":
        watching.stop()
    print(count(reader), flush=True)
"""


class Reporter:
    """A process that collects when it is told to, and says how many GPUs it reported."""

    def __init__(self, env: dict[str, str]) -> None:
        command = [sys.executable, "-c", REPORTER]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, word: str = "collect") -> int:
        """Have it collect."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def kill(self) -> None:
        """End it at once, as the kernel would for want of memory."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def test_one_process_of_a_host_reports_until_it_dies(tmp_path: Path) -> None:
    """Sixteen workers on eight GPUs are eight series, not 128; when the reporter is killed another takes over."""
    env = environ(tmp_path, OTELGPU_SOURCE=SIMULATED)
    workers = [Reporter(env) for _ in range(3)]
    try:
        first = [worker.ask() for worker in workers]
        again = [worker.ask() for worker in workers]
        workers.pop(0).kill()
        after = [worker.ask() for worker in workers]
        stopped = workers[0].ask("stop")
        last = workers[1].ask()
    finally:
        for worker in workers:
            worker.kill()

    assert (first, again) == ([2, 0, 0], [2, 0, 0])
    assert after == [2, 0]
    assert (stopped, last) == (0, 2)


def test_a_child_does_not_hold_the_lock_of_its_parent(tmp_path: Path) -> None:
    """The lock is free when its holder dies, whoever it has forked: else nobody would report any more."""
    env = environ(tmp_path, OTELGPU_SOURCE=SIMULATED)
    program = f"""{HEAD}
import otelgpu
otelgpu.observe(provider, reuse=0, once=True)
assert count(reader) == 2
parent = os.getpid()
if os.fork() == 0:
    print("child", count(reader), flush=True)  # the parent lives: nothing
    while os.getppid() == parent:
        threading.Event().wait(0.005)
    for _ in range(2000):  # the kernel hands a child on before the last thread of its parent has closed the lock
        if (last := count(reader)) > 0:
            break
        threading.Event().wait(0.005)
    print("child", last, flush=True)
    os._exit(0)
sys.stdin.readline()
os._exit(0)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        first = process.stdout.readline()
        process.stdin.write("end\n")
        process.stdin.close()
        last = process.stdout.readline()

    assert first == "child 0\n"
    assert last == "child 2\n"


def test_processes_that_see_different_gpus_all_report(tmp_path: Path) -> None:
    """Ranks that were given a GPU each report that one; the lock is between those that see the same."""
    env = environ(tmp_path, models.h100(2), OTELGPU_EMBED_ONLY_VISIBLE="true")
    workers = [Reporter(env | {"CUDA_VISIBLE_DEVICES": text}) for text in ("0", "1", "1")]
    try:
        seen = [worker.ask() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()

    assert seen == [1, 1, 0]


def test_importing_does_nothing_and_costs_nothing(tmp_path: Path) -> None:
    """`import otelgpu` at the top of a program: no OpenTelemetry, no thread, no environment, no log."""
    program = """
import sys, threading
import otelgpu
print(sorted(name for name in sys.modules if name.startswith(("otelgpu", "opentelemetry", "pynvml"))))
print(threading.active_count())
"""
    ran = run(program, environ(tmp_path, OTELGPU_SAMPLING_REUSE="nonsense"))

    assert ran.stdout.splitlines() == ["['otelgpu']", "1"]
    assert ran.stderr == ""


def test_observing_loads_no_sdk(tmp_path: Path) -> None:
    """A library relies on the API alone; whether there is an SDK, and when it is loaded, is the program's to say."""
    program = """
import sys
from opentelemetry.metrics import NoOpMeterProvider
from otelgpu import observe
observe()
observe(NoOpMeterProvider()).stop()
others = ("opentelemetry.sdk", "opentelemetry.exporter", "pynvml", "grpc")
print([name for name in sys.modules if name.startswith(others)])
"""
    ran = run(program, environ(tmp_path))

    assert ran.stdout == "[]\n"


def test_without_the_extra_there_is_one_clear_error(tmp_path: Path) -> None:
    """Somebody who installed plain otelgpu is told which extra to add, and what works without."""
    program = """
import sys
sys.modules["opentelemetry.instrumentation.instrumentor"] = None
try:
    from otelgpu import GpuInstrumentor
except ImportError as error:
    print(error)
from otelgpu import observe
"""
    ran = run(program, environ(tmp_path))

    assert "pip install 'otelgpu[instrumentation]'" in ran.stdout
