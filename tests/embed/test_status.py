"""hw.status on somebody else's provider."""

from pathlib import Path

import pytest
from opentelemetry.sdk.metrics.export import Sum

from tests.embed.conftest import Observe
from tests.embed.host import Host, ids
from tests.embed.test_described import described
from tests.fakenvml import Code, Fake, Scenario, models
from tests.harness import serving, until
from tests.push.collectors import collector

HEALTHY = {4: 0, 31: 0, 142: 0, 143: 0, 144: 0, 145: 0, 230: 0}


def machine(gpus: int = 2, **fields: int) -> Scenario:
    """GPUs that are well; the first has these field values, by `f` and NVML's number."""
    scenario = models.h100(gpus)
    for slot in range(gpus):
        scenario = scenario.with_gpu(slot, fields=HEALTHY)
    return scenario.with_gpu(0, fields={int(name.removeprefix("f")): number for name, number in fields.items()})


def states(host: Host) -> dict[object, object]:
    """Collect, and give the state of each device by hw.id; each has one."""
    found = [point.attributes or {} for point in host.points("hw.status") if point.value == 1]
    assert len({attributes["hw.id"] for attributes in found}) == len(found)
    return {attributes["hw.id"]: attributes["hw.state"] for attributes in found}


def test_a_host_sees_how_its_gpus_are(fake: Fake, host: Host, watch: Observe) -> None:
    """In the shape of the conventions: a point for each state, 1 for the one that holds."""
    scenario = machine(f144=1)
    fake.show(scenario)
    watch(host)
    metric = host.collect()["hw.status"]
    first, second = (gpu.uuid for gpu in scenario.gpus)

    assert isinstance(metric.data, Sum)
    assert not metric.data.is_monotonic
    assert metric.unit == "1"
    assert sorted(point.value for point in metric.data.data_points) == [0] * 6 + [1] * 2
    assert {"hw.type", "hw.name", "hw.model", "hw.vendor"} <= set(metric.data.data_points[0].attributes or {})
    assert states(host) == {first: "predicted_failure", second: "ok"}


def test_a_lost_gpu_and_its_instances_have_failed(fake: Fake, host: Host, watch: Observe) -> None:
    """An embedded otelgpu keeps in sight what it saw."""
    scenario = models.h100_mig().with_gpu(0, fields=HEALTHY)
    fake.show(scenario)
    watch(host)
    well = states(host)
    fake.show(scenario.with_gpu(0, lost=True))

    assert set(well.values()) == {"ok"}
    assert len(well) == 5
    assert states(host) == dict.fromkeys(well, "failed")


def test_a_gpu_that_failed_to_answer_is_not_called_well(fake: Fake, host: Host, watch: Observe) -> None:
    """Here as in the service."""
    scenario = machine().with_gpu(1, fields={145: Code(999)})
    fake.show(scenario)
    watch(host)

    assert states(host) == {scenario.gpus[0].uuid: "ok"}


@pytest.mark.parametrize("fields", [["DCGM_FI_DEV_POWER_USAGE"], ["all"]])
def test_the_status_is_there_whichever_fields_are_named(
    fields: list[str], fake: Fake, host: Host, watch: Observe
) -> None:
    """What is read for it alone is not shown for itself."""
    fake.show(machine(1, f145=1))
    watch(host, fields=fields)
    metrics = host.collect()

    assert list(states(host).values()) == ["failed"]
    assert ("hw.gpu.nvidia.memory.row.remap.failed" in metrics) is (fields == ["all"])


def test_no_fields_are_no_status(fake: Fake, host: Host, watch: Observe) -> None:
    """Nothing wanted is nothing asked."""
    fake.show(machine())
    watch(host, fields=["none"])

    assert host.collect() == {}


def test_a_process_that_reports_only_itself_has_no_status(fake: Fake, host: Host, watch: Observe) -> None:
    """Each of eight ranks would report all eight GPUs."""
    fake.show(machine())
    watch(host, only_process=True)

    assert "hw.status" not in host.collect()


def test_only_what_is_visible_has_a_status(
    fake: Fake, host: Host, watch: Observe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four GPUs the one that CUDA may use."""
    scenario = machine(4)
    fake.show(scenario)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    watch(host, only_visible=True)

    assert states(host) == {scenario.gpus[2].uuid: "ok"}


@pytest.mark.parametrize("fields", [["default"], ["all"]])
def test_a_visible_instance_shares_the_fate_of_a_gpu_that_is_not(
    fields: list[str], fake: Fake, host: Host, watch: Observe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is the GPU's; of the GPU itself and of its other instances there is no word."""
    scenario = models.h100_mig().with_gpu(0, fields=HEALTHY | {145: 1})
    fake.show(scenario)
    instance = scenario.gpus[0].instances[1]
    assert instance is not None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", instance.uuid)
    watch(host, only_visible=True, fields=fields)
    metrics = host.collect()

    assert states(host) == {instance.uuid: "failed"}
    for name in metrics:
        assert set(ids(host.points(name))) == {instance.uuid}
    fake.show(scenario.with_gpu(0, lost=True))
    assert states(host) == {instance.uuid: "failed"}


def test_another_observation_begins_with_a_clean_slate(fake: Fake, host: Host, watch: Observe) -> None:
    """What a link once was is remembered by the observation that saw it."""
    fake.show(machine(1))
    first = watch(host)
    wide = states(host)
    fake.show(machine(1).with_gpu(0, answers={"nvmlDeviceGetCurrPcieLinkWidth": 4}))
    narrow = states(host)
    first.stop()
    watch(host)

    assert [*wide.values(), *narrow.values(), *states(host).values()] == ["ok", "degraded", "ok"]


def test_the_provider_of_a_file_has_the_status(tmp_path: Path) -> None:
    """OTEL_CONFIG_FILE, with the page in DCGM's names: the status is for the file's provider alone."""
    scenario = machine(2, f4=1)
    with collector() as sink, serving(scenario, tmp_path, environ=described(tmp_path, sink.url)) as served:
        until(lambda: len([one for one in sink.points("hw.status") if one.value == 1]) >= 2, "a status for each")
        page = served.page()
        served.stop()
    found = {
        str(one.attributes["hw.id"]): one.attributes["hw.state"] for one in sink.points("hw.status") if one.value == 1
    }

    assert found == dict(zip((gpu.uuid for gpu in scenario.gpus), ("degraded", "ok"), strict=True))
    assert "hw_status" not in page


def test_the_health_of_the_parts_can_be_asked_for(fake: Fake, host: Host, watch: Observe) -> None:
    """What it needs beyond that is read for it; without `fields` of its own nothing more is on the provider."""
    fake.show(machine(f145=1))
    watch(host, fields=["DCGM_EXP_GPU_HEALTH_STATUS", "DCGM_EXP_XID_ERRORS_TOTAL"])
    first, second = (gpu.uuid for gpu in machine().gpus)
    points = host.points("hw.gpu.nvidia.health.status")

    memory = {point.attributes["hw.id"]: point.value for point in points if "MEM" in (point.attributes or {}).values()}  # type: ignore[index]
    assert memory == {first: 20, second: 0}
    assert set(host.collect()) == {"hw.gpu.nvidia.health.status", "hw.gpu.nvidia.xid.errors", "hw.status"}
