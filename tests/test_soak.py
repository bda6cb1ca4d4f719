"""A month of a busy node in minutes: GPUs, MIG instances, XIDs and jobs come and go under ten thousand scrapes.

Rule 1: what is measured is what the program says of itself, in a process of its own.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakenvml import Gpu, Scenario, models
from tests.faults.rig import FEW, distinct
from tests.harness import Line, Served, lines_of, serving, values

PROFILES = (models.H100_1G, models.H100_2G, models.H100_3G)
CHANGE = 10  # collections between two changes
SETTLED = 1000  # collections after which nothing may grow any more
ROOM = 1.5  # MB; nearly all of it is the fake's, which never forgets a UUID: with the same few it is 0.2
FIELDS = (*FEW, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_TOTAL")
WHOLE = distinct(models.h100(4))


class Machine:
    """Four GPUs that are never left in peace."""

    def __init__(self, folder: Path) -> None:
        self._chance = random.Random(6)
        self._folder = folder
        self._turn = 0
        self.scenario = WHOLE.but(gpus=tuple(self._spent(gpu) for gpu in WHOLE.gpus))

    def change(self) -> Scenario:
        """Change what is there, and who runs on it."""
        self._turn += 1
        events = self.scenario.events[-20:]
        self.scenario = WHOLE.but(gpus=tuple(self._gpu(gpu) for gpu in WHOLE.gpus), events=events)
        if self._chance.random() < 0.5:
            self.scenario = self.scenario.with_xid(self._chance.randrange(4), self._chance.choice((13, 31, 79, 94)))
        for slot in range(4):
            (self._folder / str(slot)).write_text(f"job-{self._turn}\n" if self._chance.random() < 0.7 else "")
        return self.scenario

    def rest(self) -> Scenario:
        """Let all be well again, with one GPU in parts."""
        parts = ((9, models.H100_1G), (11, models.H100_1G))
        gpus = (WHOLE.gpus[0], models.split(WHOLE.gpus[1], *parts), *WHOLE.gpus[2:])
        self.scenario = WHOLE.but(gpus=tuple(self._spent(gpu) for gpu in gpus), events=self.scenario.events)
        for slot in range(4):
            (self._folder / str(slot)).write_text(f"last-{slot}\n")
        return self.scenario

    def _gpu(self, gpu: Gpu) -> Gpu:
        state = self._chance.choice(("whole", "whole", "split", "split", "lost", "gone"))
        if state == "split":
            ids = self._chance.sample(range(1, 14), self._chance.randint(1, 4))
            gpu = models.split(gpu, *((gi, self._chance.choice(PROFILES)) for gi in ids))
            parts = [
                part and part.but(uuid=f"MIG-{self._turn:08x}-{gpu.uuid[4:12]}-{part.gi}") for part in gpu.instances
            ]
            gpu = gpu.but(instances=tuple(parts))
        return self._spent(gpu.but(lost=state == "lost", gone=state == "gone"))

    def _spent(self, gpu: Gpu) -> Gpu:
        energy = 1_000_000 + 1000 * self._turn
        return gpu.but(fields={83: energy}, answers={"nvmlDeviceGetTotalEnergyConsumption": energy})


def counters(page: str) -> Iterator[Line]:
    """The samples of all counters."""
    kinds = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE") and line.endswith(" counter")}
    yield from (line for line in lines_of(page) if line.name in kinds)


def check_monotonic(page: str, before: dict[tuple[str, frozenset[tuple[str, str]]], float]) -> None:
    """No counter goes back: nothing was reset here."""
    for line in counters(page):
        key = line.name, frozenset(line.labels.items())
        assert line.value >= before.get(key, 0), line
        before[key] = line.value


def soak(served: Served, machine: Machine, collections: int) -> tuple[list[float], set[float]]:
    """Scrape so often; return the sizes (MB) after each SETTLED collections and the numbers of open files."""
    sizes: list[float] = []
    files: set[float] = set()
    before: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for number in range(collections):
        if number % CHANGE == 0:
            machine.change().write(served.scenario)
        page = served.page()
        assert "overflow" not in page
        if number % CHANGE == 0:
            check_monotonic(page, before)
        if number % SETTLED == SETTLED - 1:
            sizes.append(values(page, "otelgpu_process_resident_memory_bytes")[""] / 1e6)
        if number > CHANGE:
            files.add(values(page, "otelgpu_process_open_fds")[""])
    return sizes, files


def check_last(page: str, machine: Machine) -> None:
    """What exists is there, whole, and nothing else."""
    shown = {(line.labels["UUID"], line.labels.get("GPU_I_ID", "")) for line in lines_of(page) if "UUID" in line.labels}
    there = {(gpu.uuid, "") for gpu in machine.scenario.gpus}
    there |= {(gpu.uuid, str(part.gi)) for gpu in machine.scenario.gpus for part in gpu.instances if part}
    jobs = {line.labels["hpc_job"] for line in lines_of(page) if line.labels.get("hpc_job")}

    assert shown == there
    assert jobs == {f"last-{slot}" for slot in range(4)}
    assert values(page, "otelgpu_gpus", by="state") == {"up": 4}


@pytest.mark.parametrize("collections", [100, pytest.param(10_000, marks=pytest.mark.soak)])
def test_a_node_that_never_rests_leaves_nothing_behind(
    collections: int, tmp_path: Path, cc: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory and open files stay, counters only grow, no series is folded, and the last page shows what there is."""
    assert cc.exists()
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    machine = Machine(jobs)
    flags = ("--fields", ",".join(FIELDS), "--reuse", "0", "--hpc-job-mapping-dir", str(jobs), "--jobs-refresh", "1")
    with serving(machine.scenario, tmp_path, *flags, "--log-level", "error") as served:
        sizes, files = soak(served, machine, collections)
        machine.rest().write(served.scenario)
        done = served.counts.calls("nvmlDeviceGetCount_v2")
        while values(page := served.page(), "otelgpu_gpus", by="state") != {"up": 4} or "last-3" not in page:
            assert served.counts.calls("nvmlDeviceGetCount_v2") < done + 2000

        check_last(page, machine)
        with capsys.disabled():
            if sizes:
                print(f"\nRSS in MB after each {SETTLED} collections: {sizes}; open files: {sorted(files)}")  # noqa: T201
        assert max(files) - min(files) <= 4
        assert not sizes or sizes[-1] - sizes[1] < ROOM
        assert served.stop() == 0
