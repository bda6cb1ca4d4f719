"""Faults while somebody looks: fifty clients and a hang, other MIG instances in the middle of a sweep."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakenvml import Scenario, models
from tests.faults.rig import FEW, MIB, POWER, USED, check_truth, distinct, source_up, up
from tests.harness import Node, Reply, Served, lines_of, serving, until, values

Start = Callable[..., Node]

DEADLINE = 2.0
ROOM = 0.5  # seconds beyond the deadline in which a page comes
CLIENTS = 50
THREADS = "otelgpu_process_threads"
TRIO = distinct(models.h100(3))
NAMES = [gpu.uuid for gpu in TRIO.gpus]
HANGING = TRIO.with_gpu(1, hangs={"nvmlDeviceGetPowerUsage"})
FLAGS = ("--fields", ",".join(FEW), "--reuse", "0", "--deadline", f"{DEADLINE:g}", "--server-max-requests", "64")


def at_once(served: Served) -> tuple[list[Reply], float]:
    """Ask with many clients at the same moment; return the answers, and how long the slowest one took."""
    gate = threading.Barrier(CLIENTS)
    replies: list[Reply] = []
    seconds: list[float] = []

    def scrape() -> None:
        gate.wait()
        began = time.monotonic()
        replies.append(served.get())
        seconds.append(time.monotonic() - began)

    threads = [threading.Thread(target=scrape) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return replies, max(seconds)


def check_others(replies: list[Reply]) -> None:
    """All were answered, with the GPUs that answer."""
    assert [reply.status for reply in replies] == [200] * CLIENTS
    for reply in replies:
        assert check_truth(reply.text) == {NAMES[0], NAMES[2]}
        assert up(reply.text) == {NAMES[0]: 1, NAMES[1]: 0, NAMES[2]: 1}


def test_fifty_clients_pay_for_a_hang_once_and_together(tmp_path: Path, cc: Path) -> None:
    """Nobody waits longer than for the deadline, and from then on nobody waits; no thread is left behind."""
    assert cc.exists()
    with serving(TRIO, tmp_path, *FLAGS) as served:
        until(lambda: check_truth(served.page()) == set(NAMES), "pages are served")
        before = values(served.page(), THREADS)[""]
        HANGING.write(served.scenario)
        replies, first = at_once(served)
        check_others(replies)
        waves = [at_once(served) for _ in range(4)]
        for replies, _ in waves:
            check_others(replies)
        began = time.monotonic()
        healthy, ready = served.get("/healthz"), served.get("/readyz")
        seconds = time.monotonic() - began

        assert first < DEADLINE + ROOM + 1.0  # fifty clients of this process, on a machine with other work
        assert min(slowest for _, slowest in waves) < DEADLINE / 2
        assert (healthy.status, ready.status) == (200, 200)
        assert seconds < DEADLINE / 2
        assert values(served.page(), THREADS)[""] <= before

        TRIO.write(served.scenario)
        until(lambda: check_truth(served.page()) == set(NAMES), "the GPU is back")
        assert served.stop() == 0


def test_a_driver_that_hangs_at_the_start_keeps_no_client(tmp_path: Path, cc: Path) -> None:
    """The port is there before the driver, and nothing behind it waits for one."""
    assert cc.exists()
    with serving(TRIO.but(hangs={"nvmlInit_v2"}), tmp_path, *FLAGS) as served:
        began = time.monotonic()
        assert served.get("/healthz").status == 200
        assert served.get("/readyz").status == 503
        assert time.monotonic() - began < DEADLINE
        assert source_up(served.page()) == 0

        TRIO.write(served.scenario)
        until(lambda: served.get("/readyz").status == 200, "ready")
        assert check_truth(served.page()) == set(NAMES)


def layout(profile: models.Profile, *ids: int) -> Scenario:
    """A slow GPU with these instances; what one uses follows from its profile and its id, and so does its UUID."""
    whole = models.split(TRIO.gpus[0], *((id_, profile) for id_ in ids))
    parts = [
        part and part.but(uuid=f"MIG-{profile.name}-{part.gi}", memory_used=used(profile, part.gi))
        for part in whole.instances
    ]
    slow = {"nvmlDeviceGetPowerUsage": 0.02, "nvmlDeviceGetMigDeviceHandleByIndex": 0.005}
    return TRIO.but(gpus=(whole.but(instances=tuple(parts), delays=slow), *TRIO.gpus[1:]))


def used(profile: models.Profile, id_: int) -> int:
    return (len(profile.name) * 100 + int(profile.name[0]) * 10 + id_) * MIB


LAYOUTS = (
    layout(models.H100_1G, 7, 8, 9, 10),
    layout(models.H100_2G, 9, 7),
    layout(models.H100_3G, 7),
    TRIO,
)


def check_instances(page: str) -> set[str]:
    """What an instance uses is its own, by id and profile; return the profiles that are shown."""
    by_name = {profile.name: profile for profile in (models.H100_1G, models.H100_2G, models.H100_3G)}
    shown = [line for line in lines_of(page) if line.name == USED and line.labels.get("GPU_I_ID")]
    for line in shown:
        profile = by_name[line.labels["GPU_I_PROFILE"]]
        assert line.value == used(profile, int(line.labels["GPU_I_ID"])) // MIB
    return {line.labels["GPU_I_PROFILE"] for line in shown}


@pytest.mark.parametrize("code", [None, 3], ids=["not-found", "invalid"])
def test_instances_that_change_in_the_middle_of_a_sweep_are_not_mixed(code: int | None, node: Start) -> None:
    """Ids are used again by others: no value of one ever stands under another's name, and the GPU stays."""
    running = node(LAYOUTS[0], fields=FEW)
    for number in range(12):
        after = LAYOUTS[(number + 1) % len(LAYOUTS)].but(removed_code=code)
        running.pipeline.sampler.refresh(0.02, max_age=0)  # begins a sweep that is not over at once
        running.show(after)
        check_instances(running.page(sweep=False))
        check_instances(running.page())
        page = running.page()

        assert len(check_instances(page)) == (0 if after.gpus[0].instances == () else 1)
        assert values(page, POWER, by="UUID").keys() == set(NAMES)
