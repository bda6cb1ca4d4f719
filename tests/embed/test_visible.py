"""`only_visible`: the GPUs and MIG instances that CUDA and the container runtime let this process see."""

import pytest

from tests.embed.conftest import Observe
from tests.embed.host import Host, ids, points
from tests.fakenvml import Fake, models

FOUR = [gpu.uuid for gpu in models.h100(4).gpus]
CUDA, RUNTIME = "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("variable", "text", "slots"),
    [
        (CUDA, "0", [0]),
        (CUDA, "2,0", [0, 2]),
        (CUDA, " 1 , 3 ", [1, 3]),
        (CUDA, FOUR[2], [2]),
        (CUDA, FOUR[1][:12], [1]),
        (CUDA, FOUR[3].upper(), [3]),
        (CUDA, "", []),
        (CUDA, "-1", []),
        (CUDA, "0,-1,1", [0]),
        (CUDA, "none", []),
        (CUDA, "9", []),
        (RUNTIME, "all", [0, 1, 2, 3]),
        (RUNTIME, "none", []),
        (RUNTIME, "void", []),
        (RUNTIME, "", []),
        (RUNTIME, "1,2", [1, 2]),
        (RUNTIME, f"{FOUR[0]},{FOUR[3]}", [0, 3]),
        (RUNTIME, "4,5,6,7", [0, 1, 2, 3]),  # a container's GPUs, under the numbers that they have on the host
    ],
)
def test_gpus_are_visible_as_cuda_and_the_runtime_say(
    variable: str, text: str, slots: list[int], fake: Fake, host: Host, watch: Observe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By number, UUID or the beginning of one, up to the first that is none; and the words of the runtime."""
    fake.show(models.h100(4))
    monkeypatch.setenv(variable, text)
    watch(host, only_visible=True)

    assert ids(host.points("hw.power")) == [FOUR[slot] for slot in slots]


def test_cuda_goes_over_the_runtime(fake: Fake, host: Host, watch: Observe, monkeypatch: pytest.MonkeyPatch) -> None:
    """What CUDA sees is what the process can use, of all that the container has."""
    fake.show(models.h100(4))
    monkeypatch.setenv(RUNTIME, "all")
    monkeypatch.setenv(CUDA, "3")
    watch(host, only_visible=True)

    assert ids(host.points("hw.power")) == [FOUR[3]]


def test_without_the_variables_every_gpu_is_visible(fake: Fake, host: Host, watch: Observe) -> None:
    """As it is to CUDA."""
    fake.show(models.h100(4))
    watch(host, only_visible=True)

    assert ids(host.points("hw.power")) == FOUR


def test_the_variable_is_read_when_somebody_collects(
    fake: Fake, host: Host, watch: Observe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launchers set it after imports, as late as CUDA itself looks."""
    fake.show(models.h100(4))
    watch(host, only_visible=True)
    monkeypatch.setenv(CUDA, "1")

    assert ids(host.points("hw.power")) == [FOUR[1]]


@pytest.mark.parametrize("form", ["uuid", "beginning", "old", "number"])
def test_of_a_partitioned_gpu_only_the_visible_instance_is_shown(
    form: str, fake: Fake, host: Host, watch: Observe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with one instance is told of its memory alone, not of its neighbours' nor of the whole GPU's power."""
    scenario = models.MAKERS["h100_mig"]()
    fake.show(scenario)
    gpu = scenario.gpus[0]
    place, instance = next((i, one) for i, one in enumerate(gpu.instances) if one is not None and i > 0)
    text = {
        "uuid": instance.uuid,
        "beginning": instance.uuid[:14],
        "old": f"MIG-{gpu.uuid}/{instance.gi}/{instance.ci}",
        "number": f"0:{place}",
    }[form]
    monkeypatch.setenv(CUDA if form != "number" else RUNTIME, text)
    watch(host, only_visible=True)
    metrics = host.collect()

    assert ids(points(metrics, "hw.gpu.memory.usage")) == [instance.uuid]
    assert "hw.power" not in metrics
