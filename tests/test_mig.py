"""MIG: instances as devices of their own, while GPUs are partitioned anew at any moment.

Rule 1: each instance here has used MiB equal to a number of its own, so that a value under a wrong instance is seen.
"""

import threading
from collections.abc import Callable, Mapping, Sequence

import pytest

from otelgpu.config import Mig
from otelgpu.model import Gap, Snapshot
from tests.fakenvml import Fake, Gpu, Instance, Scenario, models
from tests.faults.rig import LOST, missing, up
from tests.harness import Node, lines_of, values

Start = Callable[..., Node]

USED, POWER, UTIL = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_UTIL"
VISIBLE, OTHER = "DCGM_FI_DEV_CUDA_VISIBLE_DEVICES_STR", "GPU-0000dead-0000-4000-8000-000000000000"
ENGINE, PCIE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_PCIE_TX_BYTES"
FIELDS = (POWER, USED, UTIL, ENGINE, PCIE)
MIB = models.MIB
WINDOW = 0.11


def instance(number: int, *, gi: int, ci: int = 0, profile: str = "1g.10gb", used: int | None = None) -> Instance:
    """An instance with *number* in its UUID, as its MiB in use and as its engine activity in percent."""
    return Instance(
        uuid=f"MIG-{number:08x}-0000-4000-8000-000000000000",
        gi=gi,
        ci=ci,
        name=f"NVIDIA H100 80GB HBM3 MIG {profile}",
        memory=10_000 * MIB,
        memory_used=(number if used is None else used) * MIB,
        gpm={1: float(number), 20: 99.0},
    )


def split(*instances: Instance | None, whole: Gpu | None = None) -> Scenario:
    """One H100 with MIG on and these instances, beside one with MIG off."""
    first, second = models.h100(2).gpus
    base = models.split(whole or first)
    return models.h100(2).but(gpus=(base.but(instances=instances), second))


A, B, C = instance(11, gi=7), instance(12, gi=8), instance(13, gi=9, profile="2g.20gb")
OFF = models.h100(2)


def of_instances(page: str, name: str = USED) -> Mapping[tuple[str, str], float]:
    """The values of the instances, by GPU_I_ID and GPU_I_PROFILE."""
    return {
        (line.labels["GPU_I_ID"], line.labels["GPU_I_PROFILE"]): line.value
        for line in lines_of(page)
        if line.name == name and "GPU_I_ID" in line.labels
    }


def of_gpus(page: str, name: str) -> set[str]:
    """The GPUs that show a field themselves."""
    return {line.labels["gpu"] for line in lines_of(page) if line.name == name and "GPU_I_ID" not in line.labels}


def settled(running: Node) -> str:
    running.page()
    threading.Event().wait(WINDOW)
    return running.page()


def test_instances_answer_for_themselves_and_the_gpu_for_the_rest(node: Start) -> None:
    """What instances have of their own is not shown on the GPU too, or a sum would count it twice."""
    page = settled(node(split(A, B, C), fields=FIELDS))

    assert of_instances(page) == {("7", "1g.10gb"): 11, ("8", "1g.10gb"): 12, ("9", "2g.20gb"): 13}
    assert of_instances(page, ENGINE) == {("7", "1g.10gb"): 0.11, ("8", "1g.10gb"): 0.12, ("9", "2g.20gb"): 0.13}
    assert of_gpus(page, USED) == of_gpus(page, ENGINE) == {"1"}
    assert of_gpus(page, POWER) == of_gpus(page, PCIE) == {"0", "1"}
    assert of_gpus(page, UTIL) == {"1"}
    assert not of_instances(page, POWER)
    assert not of_instances(page, PCIE)  # the port belongs to the whole GPU
    assert len(up(page)) == 2


def test_values_of_the_gpu_can_be_repeated_on_its_instances(node: Start) -> None:
    """dcgm-exporter's manner: every series of a partitioned GPU stands on an instance."""
    page = settled(node(split(A, C), fields=FIELDS, mig=Mig(parent_values="repeat")))
    watts = values(page, POWER)["0"]

    assert of_instances(page, POWER) == {("7", "1g.10gb"): watts, ("9", "2g.20gb"): watts}
    assert of_gpus(page, POWER) == {"1"}
    assert of_instances(page) == {("7", "1g.10gb"): 11, ("9", "2g.20gb"): 13}


def test_mig_can_be_turned_on_and_off(node: Start) -> None:
    """What a GPU could not answer with MIG on is asked again with MIG off, also when there were no instances."""
    running = node(OFF, fields=FIELDS)
    for scenario, instances, whole in (
        (OFF, set(), {"0", "1"}),
        (split(), set(), {"1"}),
        (OFF, set(), {"0", "1"}),
        (split(A), {("7", "1g.10gb")}, {"1"}),
        (split(), set(), {"1"}),
        (split(A, B), {("7", "1g.10gb"), ("8", "1g.10gb")}, {"1"}),
        (OFF, set(), {"0", "1"}),
    ):
        running.show(scenario)
        page = running.page()

        assert set(of_instances(page)) == instances
        assert of_gpus(page, UTIL) == whole
        assert of_gpus(page, USED) == ({"1"} if instances else {"0", "1"})


def test_partitions_change_between_two_sweeps(node: Start) -> None:
    """The next page shows the instances there are, each with its own values."""
    running = node(split(A, B), fields=FIELDS)
    for parts in ((A, C), (C,), (B, A, C), (None, B), (A,)):
        running.show(split(*parts))
        present = [part for part in parts if part is not None]

        page = running.page()
        assert of_instances(page) == {
            (str(part.gi), (part.name or "").rpartition(" ")[2]): part.memory_used / MIB for part in present
        }


def test_an_id_used_again_does_not_carry_values_over(node: Start) -> None:
    """NVML gives the ids of a destroyed instance away again: the UUID tells, and profiling begins anew."""
    running = node(split(A), fields=FIELDS)
    assert of_instances(settled(running), ENGINE) == {("7", "1g.10gb"): 0.11}
    again = instance(55, gi=7, profile="2g.20gb")
    running.show(split(again))
    threading.Event().wait(WINDOW)
    page = running.page()

    assert of_instances(page) == {("7", "2g.20gb"): 55}
    assert not of_instances(page, ENGINE)  # a window from the old instance to the new one says nothing
    threading.Event().wait(WINDOW)
    assert of_instances(running.page(), ENGINE) == {("7", "2g.20gb"): 0.55}


def snapshot_of(running: Node) -> Snapshot:
    """What the last page was made of."""
    snapshot = running.pipeline.sampler.latest
    assert snapshot is not None
    return snapshot


SLOW = A.but(delays={"nvmlDeviceGetMemoryInfo_v2": 0.2})


def read_while(running: Node, before: Sequence[Instance], after: Sequence[Instance], code: int) -> str:
    """Take a page during which the GPU is partitioned anew: while its first instance, which is `SLOW`, is read."""
    running.show(split(*before))
    calls = running.fake.calls("nvmlDeviceGetMemoryInfo_v2", gpu=0)
    taken: list[str] = []
    reader = threading.Thread(target=lambda: taken.append(running.page()))
    reader.start()
    while running.fake.calls("nvmlDeviceGetMemoryInfo_v2", gpu=0) == calls:
        pass
    running.show(split(*after).but(removed_code=code))
    reader.join()
    return taken[0]


@pytest.mark.parametrize("code", [2, 6])
def test_an_instance_that_goes_while_it_is_read_shows_nothing(code: int, node: Start) -> None:
    """Repartitioned in the middle of a sweep: half of an instance is no instance, and the GPU goes on."""
    running = node(split(A, B), fields=FIELDS)
    settled(running)
    page = read_while(running, (SLOW, B), (instance(77, gi=7), B), code)

    assert of_instances(page) == {("8", "1g.10gb"): 12}
    assert up(page) == dict.fromkeys(up(page), 1)
    assert of_gpus(page, POWER) == {"0", "1"}
    assert of_instances(running.page()) == {("7", "1g.10gb"): 77, ("8", "1g.10gb"): 12}


def test_when_no_instance_is_left_the_gpu_says_why(node: Start) -> None:
    """What belongs to instances is asked of them alone: of a GPU that lost them meanwhile nobody else would tell."""
    running = node(split(A), fields=(POWER, USED))
    page = read_while(running, (SLOW,), (), 2)
    gaps = [(gap.field.name, gap.device.uuid, gap.gap) for gap in snapshot_of(running).missing]

    assert not of_instances(page)
    assert of_gpus(page, POWER) == {"0", "1"}
    assert (USED, split().gpus[0].uuid, Gap.FAILED) in gaps


def test_an_instance_belongs_to_the_gpu_that_answers_for_it(node: Start) -> None:
    """A GPU that comes back under another UUID has its instances; the one that is lost has them no more."""
    running = node(split(A), fields=(USED, VISIBLE, "DCGM_EXP_GPU_HEALTH_STATUS"))
    old = split(A).gpus[0].uuid
    running.show(split(A).with_gpu(0, uuid=OTHER))
    running.page()  # the handle that is known is lost; the next sweep looks anew
    page = running.page()
    snapshot = snapshot_of(running)
    instances = {state.device.uuid: state.instances for state in snapshot.states}

    assert up(page)[old] == 0
    assert not instances[old]
    assert [each.gpu_uuid for each in instances[OTHER]] == [OTHER]
    assert snapshot.devices()[A.uuid].gpu_uuid == OTHER
    assert {field.name for field, _ in snapshot.labels[A.uuid]} == {VISIBLE}


@pytest.mark.parametrize("function", ["nvmlDeviceGetUUID", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetMemoryInfo_v2"])
@pytest.mark.parametrize("code", [2, 6, 999])
def test_an_instance_that_does_not_answer_costs_itself(function: str, code: int, node: Start) -> None:
    """The others, and the GPU, are as before."""
    broken = split(A, B).with_instance(0, 0, errors={function: code})
    page = node(broken, fields=(POWER, USED)).page()

    assert of_instances(page) == {("8", "1g.10gb"): 12}
    assert of_gpus(page, POWER) == {"0", "1"}


def test_an_instance_of_a_lost_gpu_is_lost_with_it(node: Start) -> None:
    """There is no instance without its GPU."""
    running = node(split(A, B), fields=FIELDS)
    running.show(split(A, B).with_gpu(0, lost=True))
    page = running.page()

    assert not of_instances(page)
    assert sorted(up(page).values()) == [0, 1]
    running.show(split(A, B))
    assert len(of_instances(running.page())) == 2


def test_several_compute_instances_are_one_device(node: Start, fake: Fake) -> None:
    """dcgm-exporter counts GPU instances: memory and activity are theirs, and the first compute instance speaks."""
    shared = instance(21, gi=1, ci=0, profile="1c.3g.40gb")
    also = instance(22, gi=1, ci=1, profile="1c.3g.40gb", used=21)
    page = settled(node(split(shared, also, B), fields=FIELDS))

    assert of_instances(page) == {("1", "3g.40gb"): 21, ("8", "1g.10gb"): 12}
    assert of_instances(page, ENGINE) == {("1", "3g.40gb"): 0.21, ("8", "1g.10gb"): 0.12}
    assert fake.live_samples


def test_an_a100_has_no_profiling_for_instances(node: Start) -> None:
    """GPM came with Hopper; the fields are absent with that reason, on the GPUs where they were asked for."""
    page = settled(node(models.a100_mig(), fields=(POWER, USED, ENGINE)))

    assert len(of_instances(page)) == 3
    assert ENGINE not in page
    assert missing(page) == {"unsupported": 2}


@pytest.mark.parametrize("code", [4, 999])
def test_a_mode_that_cannot_be_asked_stays_as_it_was(code: int, node: Start) -> None:
    """One failed question must not make seven instances vanish and the GPU speak for them."""
    running = node(split(A, B), fields=FIELDS)
    running.page()
    running.show(split(A, B).with_gpu(0, errors={"nvmlDeviceGetMigMode": code}))

    assert len(of_instances(running.page())) == 2


def test_the_most_instances_need_not_be_told(node: Start) -> None:
    """A driver that does not say how many instances there can be is asked for those there are."""
    page = node(split(A, B).with_gpu(0, errors={"nvmlDeviceGetMaxMigDeviceCount": 999}), fields=FIELDS).page()

    assert len(of_instances(page)) == 2


def test_sixteen_gpus_with_seven_instances_each_are_all_told_apart(node: Start) -> None:
    """The largest node there is: GPU instance ids repeat on every GPU, and nothing is mixed."""
    crowd = models.crowd()
    for slot in range(16):
        for index in range(7):
            crowd = crowd.with_instance(slot, index, memory_used=(100 * slot + index) * MIB)
    page = settled(node(crowd, fields=FIELDS))
    by_place = {
        (int(line.labels["gpu"]), int(line.labels["GPU_I_ID"])): line.value
        for line in lines_of(page)
        if line.name == USED
    }

    assert by_place == {(slot, 7 + index): 100 * slot + index for slot in range(16) for index in range(7)}
    assert len(of_gpus(page, POWER)) == 16


def test_instances_leave_no_samples_behind(node: Start, fake: Fake) -> None:
    """An instance that is gone takes its sample objects along; nothing grows while GPUs are partitioned."""
    before = fake.live_samples
    running = node(split(A, B), fields=FIELDS)
    running.page()
    two = fake.live_samples - before
    for parts in ((A,), (A, B, C), (), (A, B)):
        running.show(split(*parts))
        running.page()

    assert fake.live_samples - before == two == 2 * 4  # two GPUs and two instances, two samples each
    running.show(split(A, B).with_gpu(0, errors={"nvmlDeviceGetMigMode": LOST}))
    running.page()
    assert fake.live_samples - before == 2
    assert running.stop()
    assert fake.live_samples == before


def test_new_instances_make_no_new_series_keys(node: Start) -> None:
    """The SDK forgets no key: UUIDs, new at each partitioning, must not be in it."""
    running = node(split(A, B), fields=FIELDS)
    keys: set[str] = set()
    for number in range(20, 120, 2):
        running.show(split(instance(number, gi=7), instance(number + 1, gi=8)))
        keys |= running.sweep().series.keys()

    assert len(keys) == 4  # two GPUs and two places
    assert of_instances(running.page()) == {("7", "1g.10gb"): 118, ("8", "1g.10gb"): 119}


def test_the_faults_of_an_instance_end_with_it(node: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A GPU that is partitioned anew all day long has instances without end: their faults are forgotten."""
    bad = split(instance(11, gi=7, used=2**40), B)
    running = node(bad, fields=FIELDS)
    running.show(split(B))
    running.page()
    running.show(bad)
    pages = [running.page() for _ in range(2)]

    dropped = [record for record in caplog.records if "is dropped" in record.getMessage()]
    assert len(dropped) == 2
    assert [of_instances(page) for page in pages] == [{("8", "1g.10gb"): 12}] * 2
