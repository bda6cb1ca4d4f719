"""What each owner uses of a GPU: from the driver's lists of processes, by way of /proc, to the page and to OTLP."""

import gc
import itertools
import logging
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from otelgpu.config import Config, Jobs, Limits, Otlp, Processes
from otelgpu.doctor import examine
from otelgpu.export.page import Format
from otelgpu.export.push.setup import Push
from otelgpu.sampler import Sampler
from otelgpu.sources.nvml.uses import Uses
from tests.conftest import ROOT, Golden
from tests.fakenvml import Code, Fake, Process, Scenario, Typed, models, preload
from tests.fakeproc import HOST, FakeProc, container_id, job_path, pod_path, uid
from tests.harness import Node, config, lines_of, refused, series, serving, values
from tests.push.collectors import Collector, collector
from tests.test_mig import instance, split

UTILIZATION, INFO = "nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo"
COMPUTE, GRAPHICS = "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"
MPS = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
FUNCTIONS = (COMPUTE, GRAPHICS, MPS, UTILIZATION, INFO)
LATER = int((time.time() + 3600) * 1_000_000)  # a time stamp that is young whenever the test runs
MEMORY, SM = "otelgpu_owner_memory_used_bytes", "otelgpu_owner_sm_utilization_ratio"
ENERGY = "otelgpu_owner_energy_joules_total"
GIB = 1 << 30
REST, PAST = ("owner=unattributed",), ("owner=past",)
NOT_SUPPORTED, UNKNOWN, DENIED = 3, 999, 4
GPU = models.h100(2).gpus[0].uuid

Start = Callable[..., Node]


def sample(pid: int, sm: int, *others: int, at: int = LATER) -> tuple[int, ...]:
    """A sample of the driver: process, time stamp, SM, memory, encoder, decoder."""
    return (pid, at, sm, *(*others, 0, 0, 0)[:3])


def using(used: Mapping[int, int], *samples: tuple[int, ...], scenario: Scenario | None = None) -> Scenario:
    """Two H100, of which these processes hold so much memory (GiB) of GPU 0 and have these samples."""
    listed = tuple(Process(pid, gib * GIB) for pid, gib in used.items())
    answers = {UTILIZATION: tuple(number for one in samples for number in one)}
    return (scenario or models.h100(2)).with_gpu(0, processes=listed, answers=answers)


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """A /proc of the host without any process."""
    folder = tmp_path / "proc"
    folder.mkdir()
    return FakeProc(folder)


@pytest.fixture
def start(node: Start, proc: FakeProc) -> Start:
    """Start a node that shows processes: `start(scenario, by="container")`."""

    def started(
        scenario: Scenario, *, by: str = "pod", names: bool = False, users: bool = False, **settings: object
    ) -> Node:
        processes = Processes(by=by, proc_root=str(proc.folder), names=names, users=users)  # type: ignore[arg-type]
        return node(scenario, processes=processes, **settings)

    return started


def owners(page: str, name: str = MEMORY) -> dict[tuple[str, ...], float]:
    """The values of a family by the owner's labels, each as NAME=TEXT; of GPU 0 without its own labels."""
    return {
        tuple(f"{key}={text}" for key, text in line.labels.items() if key not in {"gpu", "UUID"}): line.value
        for line in lines_of(page)
        if line.name == name and line.labels["gpu"] == "0"
    }


def pod_label(number: int) -> tuple[str]:
    """How a pod is known whose name nobody has told."""
    return (f"pod_uid={uid(number)}",)


def owned(page: str) -> str:
    """All that a page says of owners."""
    return "".join(
        f"{line}\n"
        for line in page.splitlines()
        if line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(("otelgpu_owner", "otelgpu_processes"))
    )


# ---- off


def set_wall(monkeypatch: pytest.MonkeyPatch, kind: type[Uses | Sampler], wall: Callable[[], float]) -> None:
    """Give whatever of this kind is made from now on another wall clock."""
    defaults = kind.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "wall", wall)


def test_when_off_the_driver_is_not_asked_about_processes(node: Start, fake: Fake) -> None:
    """It is off unless asked for: not one call, not one series, not one instrument."""
    scenario = using({11: 1}, sample(11, 40))
    started = node(scenario)
    page = started.page()

    assert [fake.calls(function) for function in FUNCTIONS] == [0] * len(FUNCTIONS)
    assert owned(page) == ""
    assert started.sweep().used == ()
    assert started.sweep().energy == ()


def test_when_on_everything_else_stays_as_it_was(node: Start, start: Start) -> None:
    """The page of dcgm-exporter is not touched by it."""
    scenario = using({11: 1}, sample(11, 40))

    assert series(start(scenario).page()) == series(node(scenario).page())


# ---- what is measured


def test_what_a_pod_uses_is_the_sum_over_its_processes(start: Start, proc: FakeProc) -> None:
    """With time-slicing and MPS this alone tells the pods of a GPU apart; sums over pods are true."""
    for pid, pod in ((11, 1), (12, 1), (21, 2)):
        proc.run(pid, pod_path(pod, pid))
    page = start(
        using({11: 1, 12: 2, 21: 4}, sample(11, 40, 10, 1, 2), sample(12, 5, 3, 0, 4), sample(21, 30, 20, 0, 0))
    ).page()
    one, two = pod_label(1), pod_label(2)

    assert owners(page) == {one: 3 * GIB, two: 4 * GIB}
    assert owners(page, SM) == {one: 0.45, two: 0.3}
    assert owners(page, "otelgpu_owner_memory_bandwidth_utilization_ratio") == {one: 0.13, two: 0.2}
    assert owners(page, "otelgpu_owner_encoder_utilization_ratio") == {one: 0.01, two: 0}
    assert owners(page, "otelgpu_owner_decoder_utilization_ratio") == {one: 0.06, two: 0}


def test_a_process_that_is_on_two_lists_counts_once(start: Start, proc: FakeProc) -> None:
    """CUDA and graphics in one program, or a client of MPS: it is one process, with one memory."""
    proc.run(11, pod_path(1))
    proc.run(12, pod_path(2))
    both = (Process(11, 3 * GIB),)
    scenario = using({11: 3}).with_gpu(0, graphics_processes=both, answers={MPS: (11, 3 * GIB, 0, 0, 12, GIB, 0, 0)})

    assert owners(start(scenario).page()) == {pod_label(1): 3 * GIB, pod_label(2): GIB}


def test_an_idle_owner_has_zero_and_not_nothing(start: Start, proc: FakeProc) -> None:
    """The driver has samples only of those that work; the query succeeded, so the others did nothing."""
    proc.run(11, pod_path(1))
    proc.run(21, pod_path(2))
    page = start(using({11: 1, 21: 1}, sample(11, 40))).page()

    assert owners(page, SM) == {pod_label(1): 0.4, pod_label(2): 0}


def test_when_nobody_works_everybody_has_zero(start: Start, proc: FakeProc) -> None:
    """Then the driver says that it has found nothing, which is no failure."""
    proc.run(11, pod_path(1))

    assert owners(start(using({11: 1})).page(), SM) == {pod_label(1): 0}


def test_an_old_sample_says_nothing(start: Start, proc: FakeProc) -> None:
    """The driver gives samples of long ago to whoever asks from time 0 on: what was done then is not done now."""
    proc.run(11, pod_path(1))
    old = int((time.time() - 60) * 1_000_000)

    assert owners(start(using({11: 1}, sample(11, 90, at=old))).page(), SM) == {pod_label(1): 0}


def test_a_sample_from_before_the_clock_was_set_back_says_nothing(
    start: Start, proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver keeps old samples; by their time stamps they would be the newest until the clock has caught up."""
    now = time.time()
    times = [now]
    set_wall(monkeypatch, Uses, lambda: times[-1])
    proc.run(11, pod_path(1))
    old, new = sample(11, 77, at=int(now * 1_000_000)), sample(11, 5, at=int((now - 1800) * 1_000_000))
    started = start(using({11: 1}, old))
    before = owners(started.page(), SM)
    times.append(now - 1800)
    started.show(using({11: 1}, old, new))

    assert before == {pod_label(1): 0.77}
    assert owners(started.page(), SM) == {pod_label(1): 0.05}


def test_only_the_newest_sample_counts(start: Start, proc: FakeProc) -> None:
    """Two samples of one process are two moments, not twice the work."""
    proc.run(11, pod_path(1))
    scenario = using({11: 1}, sample(11, 70, at=LATER + 9), sample(11, 20, at=LATER))

    assert owners(start(scenario).page(), SM) == {pod_label(1): 0.7}


@pytest.mark.parametrize("code", [UNKNOWN, DENIED])
@pytest.mark.parametrize(
    ("function", "what", "absent", "there"), [(COMPUTE, "memory", MEMORY, SM), (UTILIZATION, "utilization", SM, MEMORY)]
)
def test_a_query_that_failed_leaves_its_values_absent(
    code: int, function: str, what: str, absent: str, there: str, start: Start, proc: FakeProc
) -> None:
    """A zero, or the last value, would be a statement; the reason stands beside it."""
    proc.run(11, pod_path(1))
    scenario = using({11: 1}, sample(11, 40))
    started = start(scenario)
    started.page()
    started.show(scenario.with_gpu(0, errors={function: code}))
    page = started.page()
    gap = {UNKNOWN: "failed", DENIED: "denied"}[code]

    assert owners(page, absent) == {}
    assert owners(page, there) == {pod_label(1): pytest.approx(0.4 if there == SM else GIB)}
    assert owners(page, "otelgpu_owners_missing") == {(f"what={what}", f"gap={gap}"): 1}
    started.show(scenario)
    assert owners(started.page(), absent).keys() == {pod_label(1)}


def test_the_newer_question_is_asked_where_the_older_is_not_known(start: Start, proc: FakeProc, fake: Fake) -> None:
    """From driver 550 on there are two; what one does not know is not asked again at each sweep."""
    proc.run(11, pod_path(1))
    answers = {UTILIZATION: None, INFO: (11, LATER, 40, 10, 1, 2, 0, 0)}
    started = start(using({11: 1}).with_gpu(0, answers=answers))
    page = started.page()
    fake.reset_calls()
    again = started.page()

    assert owners(page, SM) == owners(again, SM) == {pod_label(1): 0.4}
    assert fake.calls(UTILIZATION, 0) == 0


def test_a_list_that_grows_while_it_is_asked_for_is_asked_for_again(start: Start, proc: FakeProc, fake: Fake) -> None:
    """Between the two calls that a list takes, a process may start; three times in a row it is given up."""
    proc.run(11, pod_path(1))
    scenario = using({11: 1}, sample(11, 40))
    started = start(scenario)
    started.show(scenario.with_gpu(0, errors={UTILIZATION: 7}))
    fake.reset_calls()
    page = started.page()

    assert owners(page, SM) == {}
    assert fake.calls(UTILIZATION, 0) == 6
    assert owners(page, "otelgpu_owners_missing") == {("what=utilization", "gap=failed"): 1}


@pytest.mark.parametrize("share", [101, 0xFFFFFFFF])
def test_a_share_that_cannot_be_true_is_absent(share: int, start: Start, proc: FakeProc) -> None:
    """All ones is how a driver says that it does not know; its owner's other values stay."""
    proc.run(11, pod_path(1))
    page = start(using({11: 1}, sample(11, share, 10))).page()

    assert owners(page, SM) == {}
    assert owners(page, "otelgpu_owner_memory_bandwidth_utilization_ratio") == {pod_label(1): 0.1}


@pytest.mark.parametrize("memory", [0xFFFFFFFFFFFFFFFF, 1 << 60])
def test_memory_that_is_not_told_is_absent_for_its_owner_alone(memory: int, start: Start, proc: FakeProc) -> None:
    """A sum that lacks a part would pass for the whole."""
    for pid, pod in ((11, 1), (12, 1), (21, 2)):
        proc.run(pid, pod_path(pod))
    listed = (Process(11, GIB), Process(12, memory), Process(21, GIB))

    assert owners(start(using({}).with_gpu(0, processes=listed)).page()) == {pod_label(2): GIB}


def test_shares_of_several_processes_end_at_the_whole(start: Start, proc: FakeProc) -> None:
    """Their samples are not of the same instant, so they can add up to a little too much."""
    proc.run(11, pod_path(1))
    proc.run(12, pod_path(1))

    assert owners(start(using({11: 1, 12: 1}, sample(11, 80), sample(12, 30))).page(), SM) == {pod_label(1): 1}


def test_an_instance_has_its_own_owners(start: Start, proc: FakeProc, fake: Fake) -> None:
    """On MIG memory is told for each instance; utilisation is not, and the GPU's own list would count all twice."""
    proc.run(11, pod_path(1))
    proc.run(12, pod_path(2))
    scenario = (
        models.h100_mig()
        .with_gpu(0, processes=(Process(11, GIB), Process(12, GIB)))
        .with_instance(0, 0, processes=(Process(11, GIB),))
        .with_instance(0, 2, processes=(Process(12, 2 * GIB),))
    )
    page = start(scenario).page()

    assert owners(page) == {("GPU_I_ID=2", *pod_label(1)): GIB, ("GPU_I_ID=9", *pod_label(2)): 2 * GIB}
    assert owners(page, SM) == {}
    assert owners(page, ENERGY) == {REST: 0, PAST: values(page, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")["0"] / 1000}
    assert {line.labels["gap"] for line in lines_of(page) if line.name == "otelgpu_owners_missing"} == {"unsupported"}
    assert fake.calls(UTILIZATION) == 0


# ---- whose it is

PATHS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "containerd under systemd": (pod_path(1, 7), pod_label(1)),
    "CRI-O": (pod_path(1, 7).replace("cri-containerd-", "crio-"), pod_label(1)),
    "the kubelet's own driver": (f"/kubepods/besteffort/pod{uid(1)}/{container_id(7)}", pod_label(1)),
    "a guaranteed pod": (f"/kubepods/pod{uid(1)}/{container_id(7)}", pod_label(1)),
    "a static pod": (f"/kubepods/burstable/pod{'ab' * 16}/{container_id(7)}", (f"pod_uid={'ab' * 16}",)),
    "kind": (f"/docker/{container_id(9)}/kubelet.slice/kubelet-{pod_path(1)[1:]}", pod_label(1)),
    "seen out of a namespace": (f"/../../{pod_path(1, 7).rpartition('burstable-')[2]}", pod_label(1)),
    "kind with podman": (f"/machine.slice/libpod-{container_id(9)}.scope/container{pod_path(1)}", pod_label(1)),
    "k3d": (f"/system.slice/docker-{container_id(9)}.scope/kubepods/burstable/pod{uid(1)}", pod_label(1)),
    "a node's own, seen out of a container": (f"/../..{pod_path(1)}", pod_label(1)),
    "a neighbour, seen out of a pod": (f"/../../kubepods-burstable-pod{uid(1)}.slice/x", pod_label(1)),
    "a neighbour, seen out of a pod of another class": (f"/../../../besteffort/pod{uid(1)}/x", pod_label(1)),
    "a user who plays pod": (
        f"/user.slice/user-1000.slice/user@1000.service{pod_path(1).rpartition('/')[0]}",
        ("unit=user@1000.service",),
    ),
    "a user who plays pod, seen out of a namespace": (
        f"/../../user.slice/user-1000.slice/user@1000.service/pod{uid(1)}",
        ("unit=user@1000.service",),
    ),
    "a service with groups of its own that plays pod": (
        f"/system.slice/ci.service/kubepods/besteffort/pod{uid(1)}",
        ("unit=ci.service",),
    ),
    "a group of the right name at the top": (f"/pod{uid(1)}", ("owner=unattributed",)),
    "docker in a pod": (f"{pod_path(1, 7)}/docker/{container_id(8)}", pod_label(1)),
    "a pod that is gone": (f"{pod_path(1, 7)} (deleted)", pod_label(1)),
    "docker": (f"/docker/{container_id(7)}", (f"container_id={container_id(7)}",)),
    "docker under systemd": (
        f"/system.slice/docker-{container_id(7)}.scope",
        (f"container_id={container_id(7)}",),
    ),
    "podman": (f"/machine.slice/libpod-{container_id(7)}.scope/container", (f"container_id={container_id(7)}",)),
    "podman of a user": (
        f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{container_id(7)}.scope",
        (f"container_id={container_id(7)}",),
    ),
    "containerd alone": (f"/system.slice/nerdctl-{container_id(7)}.scope", (f"container_id={container_id(7)}",)),
    "a service": ("/system.slice/ollama.service", ("unit=ollama.service",)),
    "a service of a user": (
        "/user.slice/user-1000.slice/user@1000.service/app.slice/app-jupyter@1.service",
        ("unit=app-jupyter@1.service",),
    ),
    "a session": ("/user.slice/user-1000.slice/session-3.scope", ("unit=session-3.scope",)),
    "Slurm": (job_path(42), ("hpc_job=42",)),
    "Slurm with several daemons": ("/system.slice/node7_slurmstepd.scope/job_42/step_batch/user", ("hpc_job=42",)),
    "Slurm, version 1": ("/slurm/uid_1000/job_42/step_0/task_0", ("hpc_job=42",)),
    "Slurm seen out of a namespace": ("/../slurmstepd.scope/job_42/step_0/user/task_0", ("hpc_job=42",)),
    "a user who plays Slurm": (
        "/user.slice/user-1000.slice/user@1000.service/slurm/job_42/step_0",
        ("unit=user@1000.service",),
    ),
    "a container that plays pod": (f"{pod_path(1, 7)}/kubepods/pod{uid(2)}/{container_id(8)}", pod_label(1)),
    "a job that plays pod": (f"{job_path(42)}/kubepods/pod{uid(2)}/{container_id(8)}", ("hpc_job=42",)),
    "a job that plays lines": (
        f"{job_path(42)}/x\x0c0::/kubepods/pod{uid(2)}/{container_id(8)}",
        ("hpc_job=42",),
    ),
    "a pod that plays lines": (
        f"/kubepods/pod{uid(1)}/x\u20280::/kubepods/pod{uid(2)}/{container_id(8)}",
        pod_label(1),
    ),
    "none of these": ("/init.slice", ("owner=unattributed",)),
    "the root": ("/", ("owner=unattributed",)),
}


def test_the_owner_is_found_by_the_control_group(start: Start, proc: FakeProc) -> None:
    """Every runtime names control groups in its own way; none of them should take a switch to be understood."""
    started = start(using({11: 1}))
    found = {}
    for case, (path, _) in PATHS.items():
        proc.run(11, path)  # another process of this id
        found[case] = owners(started.page())

    assert found == {case: {owner: GIB} for case, (_, owner) in PATHS.items()}


@pytest.mark.parametrize(
    ("groups", "owner"),
    [
        (f"9:name=systemd:/\n8:pids:{pod_path(1)}\n7:memory:/docker/{container_id(7)}\n0::/\n", pod_label(1)),
        ("12:cpuset:/\n4:devices:/slurm_node7/uid_1000/job_42/step_0\n1:name=systemd:/system.slice/slurmd.service\n",
         ("hpc_job=42",)),
        ((f"3:cpu,cpuacct:/system.slice/containerd.service/kubepods-besteffort-pod{uid(1).replace('-', '_')}.slice:cri-"
         f"containerd:{container_id(7)}\n"), pod_label(1)),
        (f"2:memory:/system.slice/docker.service\n1:cpu:/docker/{container_id(7)}\n",
         (f"container_id={container_id(7)}",)),
        ("nonsense\n\n0::\n:::\n", ("owner=unattributed",)),
        ("", ("owner=unattributed",)),
    ],
)  # fmt: skip
def test_of_several_hierarchies_the_one_that_says_most_counts(
    groups: str, owner: tuple[str, ...], start: Start, proc: FakeProc
) -> None:
    """Under version 1 not every controller has the process in its container, and a line may be anything."""
    proc.run(11, groups=groups)

    assert owners(start(using({11: 1})).page()) == {owner: GIB}


def test_by_container_a_pod_is_told_apart(start: Start, proc: FakeProc) -> None:
    """Two containers of a pod, two steps of a job."""
    for pid, path in ((1, pod_path(1, 7)), (2, pod_path(1, 8)), (3, job_path(42, "0")), (4, job_path(42, "extern"))):
        proc.run(pid, path)
    page = start(using({1: 1, 2: 2, 3: 3, 4: 4}), by="container").page()

    assert owners(page) == {
        (f"container_id={container_id(7)}", *pod_label(1)): GIB,
        (f"container_id={container_id(8)}", *pod_label(1)): 2 * GIB,
        ("hpc_job=42", "slurm_step=0"): 3 * GIB,
        ("hpc_job=42", "slurm_step=extern"): 4 * GIB,
    }


def test_process_ids_are_shown_only_by_process(start: Start, proc: FakeProc) -> None:
    """Each is a new series for ever, so whoever wants them says so."""
    proc.run(11, pod_path(1, 7))
    proc.run(12)
    scenario = using({11: 1, 12: 2})

    assert "pid=" not in start(scenario).page()
    assert "pid=" not in start(scenario, by="container").page()
    assert owners(start(scenario, by="process").page()) == {
        (f"container_id={container_id(7)}", "pid=11", *pod_label(1)): GIB,
        ("pid=12",): 2 * GIB,
    }


def test_names_and_users_are_shown_on_request(start: Start, proc: FakeProc) -> None:
    """On a workstation the user is the owner; a process of no unit and no container has at least a name."""
    proc.run(11, "/system.slice/jupyter.service", name="python3", user=1000)
    proc.run(12, "/system.slice/jupyter.service", name="python3", user=1001)
    proc.run(13, name="Xorg (:0)", user=0)
    page = start(using({11: 1, 12: 2, 13: 3}), names=True, users=True).page()

    assert owners(page) == {
        ("process=python3", "unit=jupyter.service", "user=1000"): GIB,
        ("process=python3", "unit=jupyter.service", "user=1001"): 2 * GIB,
        ("process=Xorg (:0)", "user=0"): 3 * GIB,
    }


@pytest.mark.parametrize("name", [b"\xff\xfe\x00\x01", b'a\nb"c\\', b") S 1 (", b"", b"x" * 500])
def test_garbage_for_a_name_breaks_no_page(name: bytes, start: Start, proc: FakeProc, fake: Fake) -> None:
    """A process calls itself what it likes, and drivers have been seen to give names of random bytes."""
    proc.run(11, pod_path(1), name=name)
    fake.show(using({11: 1}))
    page = start(using({11: 1}), names=True).page()
    shown = owners(page)

    assert list(shown.values()) == [GIB]
    assert all(pod_label(1)[0] in labels for labels in shown)
    assert all(len(text) < 80 and text.isprintable() for labels in shown for text in labels)
    assert fake.calls("nvmlSystemGetProcessName") == 0


# ---- processes that come and go


def test_a_process_id_that_is_used_again_is_another_process(start: Start, proc: FakeProc) -> None:
    """The kernel gives ids out again; by its start a process is told from the one before."""
    proc.run(11, pod_path(1))
    started = start(using({11: 1}))
    before = owners(started.page())
    proc.run(11, pod_path(2))

    assert (before, owners(started.page())) == ({pod_label(1): GIB}, {pod_label(2): GIB})


def test_what_a_process_did_is_not_given_to_the_next_one_with_its_id(
    start: Start, proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample that is older than the process is of the one that had the id before, whom nobody can tell any more."""
    now = time.time()
    set_wall(monkeypatch, Uses, lambda: now)
    done = sample(11, 40, at=int((now - 1) * 1_000_000))
    proc.run(11, pod_path(1))
    started = start(using({11: 1}, done))
    before = owners(started.page(), SM)
    proc.ticks = itertools.count(int((time.clock_gettime(time.CLOCK_BOOTTIME) + 3600) * os.sysconf("SC_CLK_TCK")))
    proc.run(11, pod_path(2))
    after = started.page()
    started.show(using({}, done))
    elsewhere = started.page()

    assert before == {pod_label(1): 0.4}
    assert owners(after, SM) == {pod_label(2): 0, REST: 0.4}
    assert owners(after) == {pod_label(2): GIB, REST: 0}
    assert owners(elsewhere, SM) == {REST: 0.4}


def test_what_is_known_of_a_process_is_not_asked_again(start: Start, proc: FakeProc) -> None:
    """Its control group is read once in its life."""
    proc.run(11, pod_path(1))
    started = start(using({11: 1}))
    before = owners(started.page())
    (proc.folder / "11" / "cgroup").unlink()

    assert owners(started.page()) == before


def test_a_process_that_has_just_ended_is_still_whose_it_was(start: Start, proc: FakeProc) -> None:
    """The driver's sample outlives the process by a second: its work was its owner's."""
    proc.run(11, pod_path(1))
    started = start(using({11: 1}, sample(11, 40)))
    started.page()
    proc.end(11)
    started.show(using({}, sample(11, 40)))
    page = started.page()

    assert owners(page, SM) == {pod_label(1): 0.4}
    assert owners(page) == {pod_label(1): 0}


def test_a_process_that_nobody_saw_alive_is_nobodys(start: Start, proc: FakeProc) -> None:
    """It came and went between two sweeps; what it used is told, but not under a name."""
    proc.run(11, pod_path(1))
    page = start(using({11: 1, 12: 2}, sample(12, 30))).page()

    assert owners(page) == {pod_label(1): GIB, ("owner=unattributed",): 2 * GIB}
    assert owners(page, SM) == {pod_label(1): 0, ("owner=unattributed",): 0.3}
    assert owners(page, "otelgpu_processes_unknown") == {(): 1}


def test_without_the_hosts_process_ids_nothing_is_said(
    start: Start, proc: FakeProc, caplog: pytest.LogCaptureFixture
) -> None:
    """In a namespace of its own, process 11 is somebody else: a wrong owner is worse than none."""
    caplog.set_level(logging.INFO)
    proc.run(11, pod_path(1))
    proc.namespace("pid:[4026532101]")
    started = start(using({11: 1}, sample(11, 40)))
    pages = [started.page() for _ in range(3)]
    proc.namespace("pid:[4026531836]")
    after = started.page()

    assert [owners(page, MEMORY) | owners(page, SM) for page in pages] == [{}] * 3
    assert owners(pages[0], "otelgpu_owners_missing") == {("what=owner", "gap=denied"): 1}
    assert owners(after) == {pod_label(1): GIB}
    said = [record.getMessage() for record in caplog.records if record.name == "otelgpu.processes.owners"]
    assert len(said) == 2
    assert "hostPID: true" in said[0]
    assert "again" in said[1]


def test_a_proc_that_is_not_mounted_is_a_message_and_no_owner(
    start: Start, proc: FakeProc, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest of the page is there."""
    proc.namespace(None)
    page = start(using({11: 1})).page()

    assert owners(page) == {}
    assert "DCGM_FI_DEV_GPU_TEMP" in page
    assert [record.levelno for record in caplog.records if "self/ns/pid" in record.getMessage()] == [logging.WARNING]


@pytest.mark.parametrize(
    ("answers", "gaps"),
    [
        ({COMPUTE: None, GRAPHICS: None, UTILIZATION: None}, {"memory", "utilization"}),
        ({COMPUTE: (), GRAPHICS: None, UTILIZATION: None}, {"utilization"}),
    ],
)
def test_a_driver_that_shows_no_processes_says_so(
    answers: Mapping[str, object], gaps: set[str], start: Start, fake: Fake
) -> None:
    """WSL2 and vGPU guests: nothing is there, and why; it is asked again seldom."""
    started = start(models.h100(2).with_gpu(0, answers=answers))
    page = started.page()
    fake.reset_calls()
    started.page()

    assert owners(page) == owners(page, SM) == {}
    assert owners(page, "otelgpu_owners_missing") == {(f"what={what}", "gap=unsupported"): 1 for what in gaps}
    assert sum(fake.calls(function, 0) for function in (GRAPHICS, MPS, UTILIZATION, INFO)) == 0


def test_a_process_without_an_id_is_nobodys(start: Start, proc: FakeProc) -> None:
    """A vGPU host lists its guests' processes as 0; process 0 is nobody's on any machine."""
    proc.run(0, pod_path(1))

    assert owners(start(using({0: 1})).page()) == {("owner=unattributed",): GIB}


# ---- limits


def test_what_is_beyond_the_limit_is_summed(start: Start, proc: FakeProc) -> None:
    """A node where everybody runs hundreds of small things must not make hundreds of series; the sum stays true."""
    for pid in range(1, 6):
        proc.run(pid, pod_path(pid))
    scenario = using({pid: pid for pid in range(1, 6)}, *(sample(pid, 10 * pid) for pid in range(1, 6)))
    page = start(scenario, limits=Limits(owners_per_gpu=2)).page()

    assert owners(page) == {pod_label(4): 4 * GIB, pod_label(5): 5 * GIB, ("owner=other",): 6 * GIB}
    assert owners(page, SM) == {pod_label(4): 0.4, pod_label(5): 0.5, ("owner=other",): 0.6}
    assert owners(page, "otelgpu_owners_folded") == {(): 3}


def test_the_limit_in_all_goes_over_all_gpus(start: Start, proc: FakeProc) -> None:
    """Eight GPUs with a hundred owners each are eight hundred owners."""
    for pid in range(1, 5):
        proc.run(pid, pod_path(pid))
    scenario = using({1: 1, 2: 2}).with_gpu(1, processes=(Process(3, 3 * GIB), Process(4, 4 * GIB)))
    page = start(scenario, limits=Limits(owners=3)).page()
    shown = [
        (line.labels["gpu"], "pod_uid" in line.labels, line.value) for line in lines_of(page) if line.name == MEMORY
    ]

    assert shown == [("0", True, GIB), ("0", True, 2 * GIB), ("1", True, 4 * GIB), ("1", False, 3 * GIB)]


def test_an_owner_keeps_its_place_while_it_is_there(start: Start, proc: FakeProc) -> None:
    """A series that vanished because another one grew would look like an end."""
    for pid in range(1, 4):
        proc.run(pid, pod_path(pid))
    started = start(using({1: 1, 2: 2}), limits=Limits(owners_per_gpu=2))
    started.page()
    started.show(using({1: 1, 2: 2, 3: 9}))
    full = owners(started.page())
    started.show(using({1: 1, 3: 9}))
    freed = owners(started.page())

    assert full == {pod_label(1): GIB, pod_label(2): 2 * GIB, ("owner=other",): 9 * GIB}
    assert freed == {pod_label(1): GIB, pod_label(3): 9 * GIB}


def test_every_compute_instance_of_a_gpu_instance_is_asked(start: Start, proc: FakeProc) -> None:
    """A GPU instance is one device, and its users are those of all its compute instances, in one sum for each owner."""
    for pid, pod in ((11, 1), (12, 2), (13, 2)):
        proc.run(pid, pod_path(pod))
    first = instance(21, gi=1, ci=0, profile="1c.3g.40gb").but(processes=(Process(11, GIB), Process(12, GIB)))
    second = instance(22, gi=1, ci=1, profile="1c.3g.40gb").but(processes=(Process(13, 2 * GIB),))
    page = start(split(first, second)).page()

    assert owners(page) == {("GPU_I_ID=1", *pod_label(1)): GIB, ("GPU_I_ID=1", *pod_label(2)): 3 * GIB}
    assert owners(page, "otelgpu_owners_missing") == {("GPU_I_ID=1", "what=utilization", "gap=unsupported"): 1}


# ---- energy


def counter(millijoules: int | None, scenario: Scenario) -> Scenario:
    """The scenario with GPU 0's energy counter at this."""
    return scenario.with_gpu(0, fields={83: millijoules}, answers={"nvmlDeviceGetTotalEnergyConsumption": millijoules})


def test_energy_is_shared_by_measured_use(start: Start, proc: FakeProc) -> None:
    """40 % of the time is 40 % of the energy; idle time is nobody's; together they are what the GPU has used."""
    proc.run(11, pod_path(1))
    proc.run(21, pod_path(2))
    both = using({11: 1, 21: 1}, sample(11, 40), sample(21, 25))
    started = start(counter(5_000_000, both))
    first = owners(started.page(), ENERGY)
    started.show(counter(5_010_003, both))
    second = owners(started.page(), ENERGY)
    started.show(counter(5_012_003, using({11: 1, 21: 1}, sample(21, 100))))
    third = owners(started.page(), ENERGY)
    rest = ("owner=unattributed",)

    assert first == {pod_label(1): 0, pod_label(2): 0, rest: 0, PAST: 5000}
    assert second == {pod_label(1): 4.001, pod_label(2): 2.5, rest: 3.502, PAST: 5000}
    assert third == {pod_label(1): 4.001, pod_label(2): 4.5, rest: 3.502, PAST: 5000}
    assert sum(third.values()) == pytest.approx(5012.003, abs=1e-9)


def test_who_works_more_than_the_whole_shares_the_whole(start: Start, proc: FakeProc) -> None:
    """Samples of several processes can add up to more than 100 %; more energy than there was is given to nobody."""
    proc.run(11, pod_path(1))
    proc.run(21, pod_path(2))
    both = using({11: 1, 21: 1}, sample(11, 90), sample(21, 60))
    started = start(counter(1000, both))
    started.show(counter(2500, both))

    assert owners(started.page(), ENERGY) == {pod_label(1): 0.9, pod_label(2): 0.6, REST: 0, PAST: 1}


def test_it_does_not_matter_who_reads_and_how_often(start: Start, proc: FakeProc) -> None:
    """It is added up once for each sweep: pages of the same sweep say the same."""
    proc.run(11, pod_path(1))
    scenario = using({11: 1}, sample(11, 50))
    started = start(counter(1000, scenario))
    started.show(counter(3000, scenario))
    started.sweep()
    pages = [owners(started.page(sweep=False), ENERGY) for _ in range(3)]

    assert pages == [{pod_label(1): 1, REST: 1, PAST: 1}] * 3


def test_totals_begin_again_when_the_counter_does(start: Start, proc: FakeProc) -> None:
    """The driver was loaded anew: what the counter shows now was used since, and that is all there is to be shared."""
    proc.run(11, pod_path(1))
    scenario = using({11: 1}, sample(11, 50))
    started = start(counter(9_000_000, scenario))
    started.show(counter(9_001_000, scenario))
    before = owners(started.page(), ENERGY)
    started.show(counter(400, scenario))
    after = owners(started.page(), ENERGY)

    assert before == {pod_label(1): 0.5, REST: 0.5, PAST: 9000}
    assert after == {pod_label(1): 0.2, REST: 0.2, PAST: 0}


def test_energy_that_is_told_as_a_double_is_shared_too(start: Start, proc: FakeProc) -> None:
    """A field value says of which type it is, and a driver may choose another one."""
    proc.run(11, pod_path(1))
    scenario = using({11: 1}, sample(11, 50))
    started = start(scenario.with_gpu(0, fields={83: Typed("f64", 1000)}))
    started.show(scenario.with_gpu(0, fields={83: Typed("f64", 3000)}))

    assert owners(started.page(), ENERGY) == {pod_label(1): 1, REST: 1, PAST: 1}


def test_energy_that_was_not_told_for_a_while_is_shared_when_it_is(start: Start, proc: FakeProc) -> None:
    """A failed question loses nothing of the total, and shows nothing meanwhile."""
    proc.run(11, pod_path(1))
    scenario = using({11: 1}, sample(11, 50))
    started = start(counter(1000, scenario))
    started.show(scenario.with_gpu(0, fields={83: Code(UNKNOWN)}))
    between = owners(started.page(), ENERGY)
    started.show(counter(3000, scenario))

    assert between == {}
    assert owners(started.page(), ENERGY) == {pod_label(1): 1, REST: 1, PAST: 1}


def test_without_measured_use_all_energy_is_nobodys(start: Start, proc: FakeProc) -> None:
    """A zero for the owner would say that it used none."""
    proc.run(11, pod_path(1))
    scenario = using({11: 1}).with_gpu(0, answers={UTILIZATION: None})
    started = start(counter(1000, scenario))
    started.show(counter(3000, scenario))

    assert owners(started.page(), ENERGY) == {REST: 2, PAST: 1}


def test_an_owner_that_has_gone_keeps_its_total_for_a_while(
    start: Start, proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last seconds are scraped after it has ended; when it comes back it goes on from there."""
    proc.run(11, pod_path(1))
    scenario = using({11: 1}, sample(11, 50))
    started = start(counter(1000, scenario))
    started.show(counter(3000, scenario))
    started.page()
    started.show(counter(4000, using({})))
    gone = owners(started.page(), ENERGY)
    started.show(counter(6000, scenario))
    back = owners(started.page(), ENERGY)
    monkeypatch.setattr("otelgpu.ledger.KEEP", -1)
    started.show(counter(6000, using({})))
    forgotten = owners(started.page(), ENERGY)

    assert gone == {pod_label(1): 1, REST: 2, PAST: 1}
    assert back == {pod_label(1): 2, REST: 3, PAST: 1}
    assert forgotten == {REST: 3, PAST: 3}


@pytest.mark.parametrize("keep", [600, -1])
def test_the_sum_over_owners_is_the_gpus_own_counter_at_any_time(
    keep: float, start: Start, proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads, whoever comes, goes, is forgotten and comes back, is too many, and when the counter begins again.

    And so is the sum of what came on top, without the past, which nobody uses any more.
    """
    monkeypatch.setattr("otelgpu.ledger.KEEP", keep)
    chance = random.Random(4)
    for pid in range(1, 9):
        proc.run(pid, pod_path(pid))
    total = 7_000_000
    started = start(counter(total, using({})), limits=Limits(owners_per_gpu=3))
    before = owners(started.page(), ENERGY)
    for turn in range(60):
        passed = chance.randrange(100_000)
        total = passed if turn == 40 else total + passed
        pids = chance.sample(range(1, 9), chance.randrange(7))
        used = using(dict.fromkeys(pids, 1), *(sample(pid, chance.randrange(60)) for pid in pids))
        started.show(counter(total, used))
        page = started.page()
        now = owners(page, ENERGY)
        grown = sum(
            max(value - (before.get(who, 0) if turn != 40 else 0), 0) for who, value in now.items() if who != PAST
        )

        assert sum(now.values()) == pytest.approx(values(page, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")["0"] / 1000)
        assert sum(now.values()) == pytest.approx(total / 1000)
        assert grown == pytest.approx(passed / 1000)
        before = now


def test_those_beyond_the_limit_have_a_total_together(start: Start, proc: FakeProc) -> None:
    """And the sum is the GPU's own all the same."""
    for pid in (1, 2, 3):
        proc.run(pid, pod_path(pid))
    scenario = using({1: 3, 2: 2, 3: 1}, sample(1, 20), sample(2, 30), sample(3, 40))
    started = start(counter(1000, scenario), limits=Limits(owners_per_gpu=1))
    started.show(counter(2000, scenario))

    assert owners(started.page(), ENERGY) == {pod_label(1): 0.2, ("owner=other",): 0.7, REST: 0.1, PAST: 1}


def test_a_gpu_that_is_down_shows_no_owners_and_loses_no_energy(start: Start, proc: FakeProc) -> None:
    """When it is back its owners go on from where they were."""
    proc.run(11, pod_path(1))
    scenario = using({11: 1}, sample(11, 50))
    started = start(counter(1000, scenario))
    started.show(counter(3000, scenario))
    started.page()
    started.show(counter(3000, scenario).with_gpu(0, lost=True))
    down = started.page()
    started.show(counter(5000, scenario))

    assert owners(down) == owners(down, ENERGY) == {}
    assert owners(started.page(), ENERGY) == {pod_label(1): 2, REST: 2, PAST: 1}


# ---- Slurm's jobs on the series of the GPU


def jobs_of(page: str) -> set[tuple[str, str, str]]:
    """GPU, job and user of the series of GPU temperature."""
    return {
        (line.labels["gpu"], line.labels.get("hpc_job", "-"), line.labels.get("slurm_user", "-"))
        for line in lines_of(page)
        if line.name == "DCGM_FI_DEV_GPU_TEMP"
    }


@pytest.mark.parametrize("path", [job_path(42), "/slurm/uid_1000/job_42/step_0/task_0"])
def test_jobs_are_found_without_a_prolog(path: str, node: Start, proc: FakeProc, fake: Fake) -> None:
    """The processes on a GPU are in the job's control group; that is all a label hpc_job takes."""
    proc.run(11, path, user=1000)
    settings = Processes(proc_root=str(proc.folder))
    plain = node(using({11: 1}), processes=settings, jobs=Jobs(slurm=True))
    page = plain.page()
    with_user = node(using({11: 1}), processes=settings, jobs=Jobs(slurm=True, slurm_user=True))

    assert jobs_of(page) == {("0", "42", "-"), ("1", "-", "-")}
    assert jobs_of(with_user.page()) == {("0", "42", "1000"), ("1", "-", "-")}
    assert "otelgpu_owner_" not in page
    assert fake.calls(UTILIZATION) == 0


def test_a_job_that_has_ended_is_no_longer_on_the_gpu(node: Start, proc: FakeProc) -> None:
    """The label follows the processes, sweep by sweep; two jobs share the GPU's series as with a prolog's files."""
    proc.run(11, job_path(42))
    proc.run(12, job_path(43))
    started = node(using({11: 1, 12: 1}), processes=Processes(proc_root=str(proc.folder)), jobs=Jobs(slurm=True))
    two = jobs_of(started.page())
    started.show(using({12: 1}))
    one = jobs_of(started.page())

    assert {job for gpu, job, _ in two if gpu == "0"} == {"42", "43"}
    assert {job for gpu, job, _ in one if gpu == "0"} == {"43"}


def test_jobs_on_an_instance_label_the_instance(node: Start, proc: FakeProc) -> None:
    """A job on a MIG instance has no part in the others."""
    proc.run(11, job_path(42))
    scenario = models.h100_mig().with_instance(0, 1, processes=(Process(11, GIB),))
    page = node(scenario, processes=Processes(proc_root=str(proc.folder)), jobs=Jobs(slurm=True)).page()
    jobs = [line.labels for line in lines_of(page) if "hpc_job" in line.labels and line.name.startswith("DCGM")]

    assert {labels.get("GPU_I_ID") for labels in jobs} == {"3"}


# ---- whole outputs, and the other ways out


def everybody(proc: FakeProc) -> Scenario:
    """A pod with two containers, a job, a service, a container, a stray process, and an instance of its own."""
    proc.run(11, pod_path(1, 7))
    proc.run(12, pod_path(1, 8))
    proc.run(13, job_path(42), user=1000)
    proc.run(14, "/system.slice/ollama.service", name="ollama", user=998)
    proc.run(15, f"/docker/{container_id(9)}")
    scenario = using(
        {11: 1, 12: 2, 13: 3, 14: 4, 15: 5, 16: 6}, sample(11, 10, 1), sample(13, 20, 2, 3, 4), sample(16, 5)
    )
    mig = models.a100_mig().gpus[0]
    scenario = scenario.but(gpus=(*scenario.gpus[:1], mig)).with_instance(1, 0, processes=(Process(11, GIB),))
    return counter(1_000_000, scenario)


@pytest.mark.parametrize("by", ["pod", "container", "process"])
def test_the_page_of_owners_is_as_reviewed(by: str, start: Start, proc: FakeProc, golden: Golden) -> None:
    """Every label of every series is seen and meant."""
    scenario = everybody(proc)
    started = start(scenario, by=by, names=by == "process", users=by == "process")
    started.show(counter(1_002_000, scenario))

    golden(f"page/processes_{by}.txt", owned(started.page()))


def test_the_semconv_page_tells_the_same(start: Start, proc: FakeProc, golden: Golden) -> None:
    """Under OpenTelemetry's names of the device and of the owner."""
    scenario = everybody(proc)
    started = start(scenario, by="process", names=True, users=True, naming="semconv")
    started.show(counter(1_002_000, scenario))

    golden("page/processes_semconv.txt", owned(started.page()))


def test_openmetrics_takes_the_total_by_its_family(start: Start, proc: FakeProc) -> None:
    """There the family of a counter is named without _total."""
    started = start(everybody(proc))
    page = started.page(form=Format.OPENMETRICS)

    assert "# TYPE otelgpu_owner_energy_joules counter" in page
    assert "otelgpu_owner_energy_joules_total{" in page


def test_prometheus_takes_the_page(start: Start, proc: FakeProc, promtool: Path) -> None:
    """A label that stands twice, or a strange name, costs the whole page."""
    page = start(everybody(proc), by="process", names=True, users=True).page()
    checked = subprocess.run([promtool, "check", "metrics"], input=page.encode(), capture_output=True, check=False)
    lines = lines_of(page)

    assert b"error while linting" not in checked.stderr
    assert len({(line.name, *sorted(line.labels.items())) for line in lines}) == len(lines)


def pushed(node: Node, sink: Collector, *scenarios: Scenario) -> None:
    """Push once, and once more after each of these."""
    (push,) = node.pipeline.pushes
    assert isinstance(push, Push)
    push.pusher.start()
    push.reader.push()
    for scenario in scenarios:
        node.show(scenario)
        node.sweep()
        push.reader.push()
    sink.expect(1 + len(scenarios))


def test_a_collector_is_told_too(start: Start, proc: FakeProc) -> None:
    """Under OpenTelemetry's attributes, with the time of the sweep; a process id is a number there."""
    scenario = everybody(proc)
    with collector() as sink:
        started = start(scenario, by="process", users=True, otlp=Otlp(endpoint=sink.url))
        pushed(started, sink, counter(1_002_000, scenario))
    told = [point.attributes for point in sink.points("otelgpu.owner.memory.used") if point.value == 3 * GIB]
    spent = [point.value for point in sink.points("otelgpu.owner.energy") if point.attributes.get("process.pid") == 13]

    assert told[0] == {
        "hw.id": GPU,
        "hw.gpu.nvidia.job.id": "42",
        "hw.gpu.nvidia.job.step": "0",
        "process.pid": 13,
        "process.user.id": "1000",
    }
    assert spent == [0, 0.4]


def test_after_the_clock_was_set_back_no_total_begins_later_than_it_ends(
    start: Start, proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes them would refuse such points until the clock has caught up; the numbers themselves go on."""
    now = time.time()
    times = [now]
    set_wall(monkeypatch, Sampler, lambda: times[-1])
    scenario = everybody(proc)
    with collector() as sink:
        started = start(scenario, otlp=Otlp(endpoint=sink.url))
        pushed(started, sink, counter(1_002_000, scenario))
        (push,) = started.pipeline.pushes
        assert isinstance(push, Push)
        for energy, late in ((1_005_000, 1800), (1_006_000, 1700)):
            times.append(now - late)
            started.show(counter(energy, scenario))
            started.sweep()
            push.reader.push()
        sink.expect(4)
    spent = [point for point in sink.points("otelgpu.owner.energy") if "hw.gpu.nvidia.job.id" in point.attributes]

    assert [point.value for point in spent] == pytest.approx([0, 0.4, 1.0, 1.2])
    assert [(point.start - int(now * 1e9)) // 10**9 for point in spent] == [0, 0, -1800, -1800]


def test_as_deltas_the_energy_is_what_came_on_top(start: Start, proc: FakeProc) -> None:
    """As for every other total that is pushed as deltas; the first number is the baseline."""
    scenario = everybody(proc)
    with collector() as sink:
        started = start(scenario, otlp=Otlp(endpoint=sink.url, temporality="delta"))
        pushed(started, sink, counter(1_002_000, scenario), counter(1_005_000, scenario))
    spent = [point.value for point in sink.points("otelgpu.owner.energy") if "hw.gpu.nvidia.job.id" in point.attributes]

    assert spent == pytest.approx([0.4, 0.6])


def test_readings_that_are_too_old_tell_no_use(start: Start, proc: FakeProc) -> None:
    """A use is of its sweep; when the driver hangs, nothing is said."""
    proc.run(11, pod_path(1))
    started = start(using({11: 1}, sample(11, 40)))
    snapshot = started.sweep()
    page = started.pipeline.page(snapshot, Format.TEXT, shown=False).decode()

    assert owned(page) == ""


# ---- many of them


class Grown(NamedTuple):
    """The last page, and what the process took after each tenth sweep."""

    page: str
    objects: list[int]
    blocks: list[int]  # of Python's memory, texts and numbers too
    resident: list[float]  # MB


def come_and_go(sweeps: int, folder: Path) -> Grown:
    """Let fifty new processes run at each sweep, and none of those before."""
    many, grown, page = 50, Grown("", [], [], []), ""
    proc = FakeProc(folder)
    settings = config(processes=Processes(by="process", proc_root=str(folder)), limits=Limits(owners_per_gpu=40))
    fake = preload(folder / "scenario").show(using({}))
    running = Node(fake, settings)
    for turn in range(sweeps):
        pids = range(1 + many * turn, 1 + many * (turn + 1))
        for pid in pids:
            proc.run(pid, pod_path(pid), name=f"worker-{pid}")
        running.show(counter(1000 * turn, using(dict.fromkeys(pids, 1), *(sample(pid, 2) for pid in pids))))
        page = running.page()
        for pid in pids:
            proc.end(pid)
        if turn % 10 == 0:
            gc.collect()
            grown.objects.append(len(gc.get_objects()))
            grown.blocks.append(sys.getallocatedblocks())
            grown.resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6)
    running.stop()
    return grown._replace(page=page)


@pytest.mark.parametrize("sweeps", [30, pytest.param(2_000, marks=pytest.mark.soak)])
def test_memory_stays_flat_however_many_processes_come_and_go(sweeps: int, proc: FakeProc, cc: Path) -> None:
    """100,000 processes in the long run: at the end only those that are there are known.

    In a process of its own: what the other tests have left in this one goes up and down.
    """
    assert cc.exists()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
        grown = alone.submit(come_and_go, sweeps, proc.folder).result()
    energy = owners(grown.page, ENERGY)

    assert len(owners(grown.page)) == 41
    assert len(energy) <= 40 + 40 + 3  # those that are there, as many that have gone, and the rest
    assert sum(energy.values()) == pytest.approx(sweeps - 1)
    assert grown.objects[-1] < grown.objects[1] * 1.02 + 500
    assert grown.blocks[-1] < grown.blocks[1] + 2000 + sweeps
    resident = grown.resident
    assert resident[-1] - resident[len(resident) // 4] < 5, resident[:: len(resident) // 10 or 1]


# ---- the program


def test_the_program_reads_the_real_proc(tmp_path: Path) -> None:
    """This test's own process is on the GPU, and it is found in the kernel's own files."""
    if str(Path("/proc/self/ns/pid").readlink()) != HOST:
        pytest.skip("not in the host's process id namespace")
    me = os.getpid()
    name = Path("/proc/self/comm").read_text().strip()
    flags = ("--processes", "process", "--processes-names", "--processes-users", "--reuse", "0")
    with serving(using({me: 1}, sample(me, 40)), tmp_path, *flags) as served:
        page = served.page()
        assert served.stop() == 0
    (labels,) = owners(page)

    assert {f"pid={me}", f"process={name}", f"user={os.getuid()}"} <= set(labels)
    assert owners(page, SM) == {labels: 0.4}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--processes", "pods"), "--processes pods: expected off, pod, container or process"),
        (
            ("--processes", "pod", "--source", "simulated"),
            "processes.by: a simulated node has no processes",
        ),
        (("--jobs-slurm", "--source", "simulated"), "--jobs-slurm: jobs.slurm: a simulated node has no processes"),
        (("--proc-root", "proc"), "--proc-root proc: expected a whole path, which begins with /"),
        (("--limits-owners-per-gpu", "0"), "--limits-owners-per-gpu 0: expected a whole number from 1 to 10000"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(flags: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """It names the flag and what would be right."""
    status, lines = refused(using({}), tmp_path, *flags)

    assert status == 2
    assert said in lines[-1]


def test_the_setting_can_come_from_a_file(tmp_path: Path, proc: FakeProc) -> None:
    """`off` is a word here, though YAML likes to read it as false."""
    proc.run(11, pod_path(1))
    file = tmp_path / "otelgpu.yaml"
    file.write_text(f"processes: {{by: pod, proc_root: {proc.folder}}}\nlimits: {{owners: 7}}\n")
    with serving(using({11: 1}), tmp_path, "--config", str(file)) as served:
        on = served.page()
    file.write_text("processes: {by: off}\n")
    with serving(using({11: 1}), tmp_path, "--config", str(file)) as served:
        off = served.page()

    assert owners(on) == {pod_label(1): GIB}
    assert owned(off) == ""


def test_when_off_none_of_it_is_loaded() -> None:
    """A plain scrape target stays small."""
    code = (
        "import sys; from otelgpu.config import Config, SourceChoice; from otelgpu.glance import look;"
        "look(Config(source=SourceChoice('simulated', '1xh100')), {});"
        "print(sorted({'otelgpu.processes', 'otelgpu.ledger', 'otelgpu.export.uses'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)

    assert done.stdout == "[]\n"


def test_the_doctor_says_what_is_missing(fake: Fake, proc: FakeProc) -> None:
    """Whoever wonders why there are no owners asks it first."""
    proc.run(11, pod_path(1))
    settings = config(processes=Processes(by="pod", proc_root=str(proc.folder)))

    def said(scenario: Scenario, of: Config = settings) -> list[tuple[str, str]]:
        fake.show(scenario)
        return [(str(each.verdict), each.text) for each in examine(of, {}) if each.topic == "processes"]

    assert said(using({11: 1}), config()) == []
    assert [verdict for verdict, _ in said(using({11: 1}))] == ["ok"]
    refused = using({11: 1}).with_gpu(0, errors={COMPUTE: DENIED})
    assert said(refused) == [("problem", f"{GPU}: memory of its processes: denied")]
    silent = using({11: 1}).with_gpu(0, answers={UTILIZATION: None})
    assert said(silent) == [("note", f"{GPU}: utilization of its processes: unsupported")]
    proc.namespace("pid:[4026532101]")
    ((verdict, text),) = said(using({11: 1}))
    assert verdict == "problem"
    assert "not the host's process id namespace" in text
