"""What a host sees of its GPUs, from the driver's answers to the data points of its own reader."""

import gc
import logging
import threading
import time
import weakref

import pytest
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, Sum

from otelgpu import OtelgpuError, observe
from otelgpu.embed.engine import STOP
from otelgpu.fields import CATALOGUE
from tests.embed.conftest import Observe
from tests.embed.host import Host, ids, points
from tests.fakenvml import Fake, models
from tests.harness import patient

EVERYTHING = {"*"}


def ours() -> list[str]:
    """The threads of otelgpu."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("otelgpu")]


def test_a_host_sees_its_gpus_under_the_names_of_the_conventions(fake: Fake, host: Host, watch: Observe) -> None:
    """One call, and the readings are there: official name, base unit, the device in full, and no owner."""
    fake.show(models.h100(2))
    watch(host)

    metrics = host.collect()
    power = metrics["hw.power"]
    (first, _) = points(metrics, "hw.power")

    assert isinstance(power.data, Gauge)
    assert power.unit == "W"
    gpu = models.h100(2).gpus[0]
    assert dict(first.attributes or {}) == {
        "hw.id": gpu.uuid,
        "hw.name": "GPU 0",
        "hw.type": "gpu",
        "hw.model": gpu.name,
        "hw.vendor": "NVIDIA",
        "hw.serial_number": gpu.serial,
        "hw.driver_version": models.h100(2).driver,
        "hw.firmware_version": gpu.vbios,
    }
    assert first.value == pytest.approx(gpu.answers["nvmlDeviceGetPowerUsage"] / 1000)  # type: ignore[operator]


def test_fields_that_share_a_name_are_one_instrument(fake: Fake, host: Host, watch: Observe) -> None:
    """Several DCGM fields of one metric differ by an attribute, and a total is a counter, a state an up-down one."""
    fake.show(models.h100(1))
    watch(host)

    metrics = host.collect()
    places = [(point.attributes or {})["hw.sensor_location"] for point in points(metrics, "hw.temperature")]
    energy, memory = metrics["hw.energy"].data, metrics["hw.gpu.memory.usage"].data

    assert sorted(map(str, places)) == ["core", "memory"]
    assert isinstance(energy, Sum)
    assert energy.is_monotonic
    assert isinstance(memory, Sum)
    assert not memory.is_monotonic
    assert 0 <= points(metrics, "hw.gpu.utilization")[0].value <= 1


def test_a_collection_reads_one_snapshot(fake: Fake, host: Host, watch: Observe) -> None:
    """Every instrument of a collection tells of the same sweep, and one sweep is all a collection costs."""
    fake.show(models.h100(1))
    watch(host)
    host.collect()
    fake.reset_calls()
    host.collect()

    assert fake.calls("nvmlDeviceGetCount_v2") == 1


def test_readers_share_a_sweep_within_reuse(fake: Fake, watch: Observe) -> None:
    """A host with a Prometheus page and a push asks the driver once for both."""
    fake.show(models.h100(1))
    readers = [InMemoryMetricReader(), InMemoryMetricReader()]
    host = Host(readers)
    watch(host, reuse=10)
    for reader in readers:
        assert reader.get_metrics_data() is not None

    assert fake.calls("nvmlDeviceGetCount_v2") == 1


def test_nothing_runs_before_a_collection_and_nothing_after_the_end(fake: Fake, host: Host, watch: Observe) -> None:
    """A host that imports and observes us pays when it collects; after stop it has its driver and threads back."""
    fake.show(models.h100(2))
    watching = watch(host)
    before, asked = ours(), fake.calls()
    host.collect()
    during, held = ours(), fake.inits
    watching.stop()
    watching.stop()

    assert (before, asked) == ([], 0)
    assert sorted(during) == ["otelgpu-driver", "otelgpu-gpu-0", "otelgpu-gpu-1", "otelgpu-sampler"]
    assert held == 1
    assert (ours(), fake.inits) == ([], 0)
    assert host.collect() == {}


def test_nothing_is_asked_while_nobody_collects(fake: Fake, host: Host, watch: Observe) -> None:
    """Idle GPUs may sleep, and the host's idle process too: no thread of ours wakes up for anything."""
    fake.show(models.h100(1))
    watch(host)
    host.collect()
    fake.reset_calls()
    used = time.process_time()
    threading.Event().wait(0.3)

    assert fake.calls() == 0
    assert time.process_time() - used < 0.05


def test_a_stopped_observation_holds_no_reading(fake: Fake, host: Host) -> None:
    """The SDK never forgets a callback; what hangs on ours must be nothing, or each restart would leak."""
    fake.show(models.h100(1))
    watching = observe(host.provider, source="nvml")
    session = weakref.ref(watching._registration.session)  # type: ignore[union-attr]  # noqa: SLF001
    host.collect()
    watching.stop()
    gc.collect()

    assert session() is None


def test_a_provider_can_be_observed_again(
    fake: Fake, host: Host, watch: Observe, caplog: pytest.LogCaptureFixture
) -> None:
    """Off and on again, with other fields the second time: instruments are not registered twice, new ones are added."""
    fake.show(models.h100(1))
    watch(host, fields=["DCGM_FI_DEV_POWER_USAGE"]).stop()
    watch(host, fields=["DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_TEMP"])

    assert sorted(host.collect()) == ["hw.power", "hw.status", "hw.temperature"]
    assert caplog.messages == []


def test_a_second_observation_of_a_provider_does_nothing(
    fake: Fake, host: Host, watch: Observe, caplog: pytest.LogCaptureFixture
) -> None:
    """Two libraries that both observe the GPUs get one set of series, and a line that says so."""
    fake.show(models.h100(1))
    watch(host)
    second = watch(host)
    second.stop()

    assert len(host.points("hw.power")) == 1
    assert caplog.messages == ["this MeterProvider is observed already; the second observation does nothing"]


def test_two_providers_are_observed_apart(fake: Fake, host: Host, watch: Observe) -> None:
    """Stopping one leaves the other alone, with the driver it uses."""
    fake.show(models.h100(1))
    other = Host()
    first = watch(host, fields=["DCGM_FI_DEV_GPU_TEMP"])
    watch(other)
    host.collect()
    other.collect()
    first.stop()

    assert host.collect() == {}
    assert len(other.points("hw.power")) == 1


def test_a_hung_gpu_costs_the_collections_the_deadline_once(fake: Fake, host: Host, watch: Observe) -> None:
    """The host is late once; after that the rest is reported at full speed, and the stuck GPU is absent, not stale."""
    scenario = models.h100(2)
    fake.show(scenario)
    deadline = patient(0.4)
    watch(host, deadline=deadline)
    assert len(host.points("hw.power")) == 2
    fake.show(scenario.with_gpu(1, hangs=EVERYTHING))

    times = []
    seen = []
    for _ in range(4):
        started = time.monotonic()
        seen.append(ids(host.points("hw.power")))
        times.append(time.monotonic() - started)

    assert seen == [[scenario.gpus[0].uuid]] * 4
    assert 0.75 * deadline < times[0] < deadline + patient(0.5)
    assert max(times[1:]) < patient(0.3)


def test_a_hung_driver_costs_the_collections_the_deadline_once(fake: Fake, host: Host, watch: Observe) -> None:
    """Also when the driver as a whole never answers, not even how many GPUs there are."""
    fake.show(models.h100(2).but(hangs=EVERYTHING))
    deadline = patient(0.4)
    watching = watch(host, deadline=deadline)

    times = []
    for _ in range(3):
        started = time.monotonic()
        assert host.collect() == {}
        times.append(time.monotonic() - started)
    started = time.monotonic()
    watching.stop()

    assert 0.75 * deadline < times[0] < deadline + patient(0.5)
    assert max(times[1:]) < patient(0.1)
    assert time.monotonic() - started < STOP + 1
    fake.show(models.h100(2))
    fake.quiet()
    watching.stop()
    assert (ours(), fake.inits) == ([], 0)


def test_no_gpu_is_one_line_and_no_series(
    fake: Fake, host: Host, watch: Observe, caplog: pytest.LogCaptureFixture
) -> None:
    """A laptop without a GPU runs the same program: it is told once."""
    fake.show(models.h100(1).but(gpus=()))
    watch(host)

    assert [host.collect() for _ in range(3)] == [{}, {}, {}]
    assert caplog.messages == ["no GPU is there to be observed; there will be no hw.* series"]


def test_no_driver_is_one_line_no_series_and_no_attempts(
    fake: Fake, host: Host, watch: Observe, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is tried again and again in the background of a process that has other things to do."""
    fake.show(models.h100(1).but(errors={"nvmlInit_v2": 9}))
    watch(host)

    assert [host.collect() for _ in range(3)] == [{}, {}, {}]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "source nvml is down" in caplog.text
    fake.reset_calls()
    threading.Event().wait(1.2)  # the first attempt of its own accord would come after a second
    assert fake.calls() == 0


def test_gpus_and_fields_can_be_chosen(fake: Fake, host: Host, watch: Observe) -> None:
    """By argument, in any form that is natural in Python; and no thread is kept for the others."""
    fake.show(models.h100(4))
    watch(host, devices=[1, models.h100(4).gpus[3].uuid], fields="DCGM_FI_DEV_POWER_USAGE,150")
    host.collect()

    assert sorted(host.collect()) == ["hw.power", "hw.status", "hw.temperature"]
    assert ids(host.points("hw.power")) == [models.h100(4).gpus[slot].uuid for slot in (1, 3)]
    assert [name for name in ours() if "gpu" in name.removeprefix("otelgpu")] == ["otelgpu-gpu-1", "otelgpu-gpu-3"]


def test_variables_hold_where_no_argument_is_given(
    fake: Fake, host: Host, watch: Observe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same words as everywhere; the argument goes over the variable."""
    fake.show(models.h100(2))
    monkeypatch.setenv("OTELGPU_FIELDS", "DCGM_FI_DEV_POWER_USAGE")
    monkeypatch.setenv("OTELGPU_DEVICES", "0")
    watch(host, devices="1")

    assert list(host.collect()) == ["hw.power", "hw.status"]
    assert ids(host.points("hw.power")) == [models.h100(2).gpus[1].uuid]


def test_a_wrong_variable_never_raises(
    fake: Fake, host: Host, watch: Observe, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What stands in the environment must not bring a training run down; the sound ones still hold."""
    fake.show(models.h100(2))
    monkeypatch.setenv("OTELGPU_SAMPLING_REUSE", "fast")
    monkeypatch.setenv("OTELGPU_DEVICES", "0")
    watch(host, reuse=None)

    assert len(host.points("hw.power")) == 1
    assert caplog.messages == [
        'OTELGPU_SAMPLING_REUSE: expected a number of seconds, got "fast"; it counts as not set',
    ]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"reuse": "fast"}, "reuse fast: expected a number of seconds"),
        ({"fields": ["DCGM_FI_DEV_GPU_TMP"]}, "no such field; did you mean DCGM_FI_DEV_GPU_TEMP?"),
        ({"feilds": "all"}, "feilds: no such argument; did you mean fields?"),
        ({"once": "maybe"}, "once maybe: expected true or false or null"),
        ({"source": "simulated:9xh9000"}, "there is no model"),
    ],
)
def test_a_wrong_argument_raises_at_once(host: Host, settings: dict[str, object], problem: str) -> None:
    """A mistake in the host's own code is told where it is made."""
    with pytest.raises(OtelgpuError, match=problem.replace("?", r"\?")):
        observe(host.provider, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("provider", [5, "provider", object()])
def test_what_is_no_provider_is_told(provider: object) -> None:
    """As any other wrong argument."""
    with pytest.raises(OtelgpuError, match=f"meter_provider: expected a MeterProvider, got {type(provider).__name__}"):
        observe(provider)  # type: ignore[arg-type]


def test_xid_errors_cost_no_thread_unless_they_are_named(fake: Fake, host: Host, watch: Observe) -> None:
    """The thread that waits for events wakes up twice a second: not in a process that did not ask for it."""
    fake.show(models.h100(1))
    watch(host).stop()
    host.collect()
    assert fake.live_event_sets == 0

    watch(host, fields=["DCGM_FI_DEV_XID_ERRORS"])
    host.collect()

    assert fake.live_event_sets == 1


def test_every_readable_field_can_be_observed(fake: Fake, host: Host, watch: Observe) -> None:
    """No two fields make one series, and none breaks the collection of the host."""
    fake.show(models.h100(2))
    watch(host, fields="all")
    metrics = host.collect()

    assert len(metrics) > 12
    for name, metric in metrics.items():
        found = points(metrics, name)
        assert len({tuple(sorted((point.attributes or {}).items())) for point in found}) == len(found)
        assert metric.unit is not None
    assert {field.semconv.name for field in CATALOGUE.values() if field.semconv} | {"hw.status"} >= metrics.keys()


def test_a_mig_instance_is_a_device_of_its_own(fake: Fake, host: Host, watch: Observe) -> None:
    """Its memory is its own, its parent is named, and the parent's power stands on the parent."""
    scenario = models.MAKERS["h100_mig"]()
    fake.show(scenario)
    watch(host)
    metrics = host.collect()
    memory = points(metrics, "hw.gpu.memory.usage")
    parents = {(point.attributes or {}).get("hw.parent") for point in memory}

    assert all(
        str(device).startswith("MIG-") for device in ids(memory) if device not in {g.uuid for g in scenario.gpus}
    )
    assert parents - {None} <= {gpu.uuid for gpu in scenario.gpus}
    assert all(str(device).startswith("GPU-") for device in ids(points(metrics, "hw.power")))
