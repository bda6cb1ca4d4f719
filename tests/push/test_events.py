"""Events: what happens in the driver, through the product, to the log records that a collector has.

Rule 1: what comes of one sweep or XID is waited for at the collector; time of the driver's own (its windows) passes.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.sdk.resources import Resource

from otelgpu import events
from otelgpu.config import Kubernetes, Otlp, SourceChoice
from otelgpu.events import Detector, Event, Xid
from otelgpu.export.join import SemconvJoin
from otelgpu.export.push.events import Events
from otelgpu.export.push.mailbox import BURST, MOST_XIDS, Mailbox
from otelgpu.export.push.records import OWNERS, Records
from otelgpu.fields import CATALOGUE
from otelgpu.fields.xid import XIDS
from otelgpu.fields.xid_advice import XID_ADVICE, xid_advice
from otelgpu.model import Device, Gap, GpuState, Owner, OwnerKind, Owners, Snapshot
from otelgpu.snapshots import Assembler, Times
from otelgpu.sources.simulated import SimulatedSource
from otelgpu.sources.simulated.answers import BOARD, BoardRow
from otelgpu.throttle import Limits
from tests.conftest import Golden
from tests.fakedcgm import models as machines
from tests.fakekubelet import Kubelet, pod
from tests.fakenvml import Fake, Scenario, models
from tests.harness import LIMIT, Node, serving, short, until, values
from tests.push.collectors import Answer, Collector, Rotel, free_port, pairs, partial
from tests.push.snapshots import GPUS, snapshot

PAIR = models.h100(2)
POWER = "DCGM_FI_DEV_POWER_USAGE"
HOT = 270  # NVML's id of the time that the hardware holds clocks down for heat
PROTOCOLS = ("grpc", "http/protobuf")
SECOND = 1_000_000_000

Telling = Callable[..., Node]


@pytest.fixture
def telling(node: Callable[..., Node], quick: None, sink: Collector) -> Telling:
    """Start nodes that send events to the sink, and no metrics unless told: `telling(scenario, **settings)`."""
    assert quick is None

    def start(scenario: Scenario, otlp: Mapping[str, object] | None = None, **settings: object) -> Node:
        to = Otlp(**({"endpoint": sink.url} | dict(otlp or {})))  # type: ignore[arg-type]
        running = node(scenario, **({"otlp": to, "fields": (POWER,)} | settings))
        running.pipeline.events.start()
        return running

    return start


@pytest.fixture
def kubelet(open_folder: Path) -> Iterator[Kubelet]:
    """A kubelet; its socket has a short path, as sockets need."""
    made = Kubelet(open_folder / "kubelet.sock")
    made.start()
    yield made
    made.stop()


def said(record: LogRecord) -> dict[str, object]:
    """The attributes of a record."""
    return pairs(list(record.attributes))


def names(sink: Collector) -> list[str]:
    return [record.event_name.removeprefix("hw.gpu.nvidia.") for record in sink.records()]


def codes(records: list[LogRecord]) -> list[object]:
    return [said(record)["hw.gpu.nvidia.xid.code"] for record in records]


def dict_of(table: Mapping[int, BoardRow]) -> dict[int, BoardRow]:
    """A table that a test changes a row of."""
    assert isinstance(table, dict)
    return table


# ---- XIDs


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_xid_arrives_at_once_with_all_that_is_known(
    protocol: str, rotel: Rotel, sink: Collector, tmp_path: Path
) -> None:
    """Behind a real collector, long before the next push, and although nobody asked for the field."""
    flags = ("--otlp", rotel.url(protocol), "--otlp-protocol", protocol, "--otlp-interval", "3600", "--fields", POWER)
    with serving(PAIR, tmp_path, *flags, "--label", "rack=a", environ={"NODE_NAME": "node-7"}) as served:
        sink.expect(1)
        before = time.time()
        PAIR.with_xid(1, 79).write(served.scenario)
        (record,) = sink.expect_records(1)
        took = time.time() - before
        page = served.page()
    resource = pairs(list(sink.logged[0].message.resource_logs[0].resource.attributes))

    assert took < 5
    assert record.event_name == "hw.gpu.nvidia.xid"
    assert (record.severity_number, record.severity_text) == (21, "FATAL")
    assert record.body.string_value == "XID 79 on GPU 1: GPU has fallen off the bus"
    assert before * SECOND <= record.time_unix_nano <= record.observed_time_unix_nano < (before + 5) * SECOND
    assert said(record) == {
        "error.type": "xid.79",
        "hw.gpu.nvidia.xid.code": 79,
        "hw.gpu.nvidia.xid.meaning": "GPU has fallen off the bus",
        "hw.gpu.nvidia.advice": xid_advice(79).text,
        "hw.id": PAIR.gpus[1].uuid,
        "hw.name": "GPU 1",
        "hw.type": "gpu",
        "hw.model": "NVIDIA H100 80GB HBM3",
        "hw.vendor": "NVIDIA",
        "hw.serial_number": PAIR.gpus[1].serial,
        "hw.driver_version": "580.105.08",
        "hw.firmware_version": PAIR.gpus[1].vbios,
        "rack": "a",
    }
    assert resource["service.name"] == "otelgpu"
    assert resource["k8s.node.name"] == "node-7"
    assert "XID" not in page


def test_equal_codes_in_a_row_are_an_event_each(telling: Telling, sink: Collector) -> None:
    """A value that does not change hides the second error; a log must not."""
    running = telling(PAIR)
    running.show(PAIR.with_xid(0, 31).with_xid(0, 31).with_xid(1, 31))
    records = sink.expect_records(3)

    assert [said(record)["hw.name"] for record in records] == ["GPU 0", "GPU 0", "GPU 1"]
    assert codes(records) == [31, 31, 31]
    assert {"hw.gpu.nvidia.xid.count"}.isdisjoint(said(records[1]))


def test_an_xid_of_an_instance_names_the_instance(telling: Telling, sink: Collector) -> None:
    """Whoever uses another instance of that GPU need not be woken."""
    running = telling(models.h100_mig())
    instance = next(each for each in running.pipeline.sampler.latest.devices().values() if each.instance_id == 2)  # type: ignore[union-attr]
    running.show(models.h100_mig().with_xid(0, 43, gi=2, ci=0))
    (record,) = sink.expect_records(1)
    attributes = said(record)

    assert attributes["hw.id"] == instance.uuid
    assert attributes["hw.parent"] == instance.gpu_uuid
    assert attributes["hw.gpu.nvidia.mig.id"] == "2"
    assert attributes["hw.gpu.nvidia.mig.profile"] == instance.profile
    assert attributes["hw.gpu.nvidia.mig.compute.id"] == "0"
    assert f"MIG instance 2 ({instance.profile}) of GPU 0" in record.body.string_value


def test_a_code_that_nobody_documents_says_so(telling: Telling, sink: Collector) -> None:
    """An empty meaning or an invented one would both mislead."""
    telling(PAIR).show(PAIR.with_xid(0, 4711))
    (record,) = sink.expect_records(1)

    assert "4711" in record.body.string_value
    assert "does not document" in record.body.string_value
    assert said(record)["hw.gpu.nvidia.advice"] == xid_advice(4711).text
    assert record.severity_text == "WARN"


def test_a_code_that_cannot_be_costs_no_other_event(telling: Telling, sink: Collector) -> None:
    """A driver that answers all ones: OTLP has no such int, and one refused value would lose the whole batch."""
    telling(PAIR).show(PAIR.with_xid(0, 2**64 - 1).with_xid(1, 79))
    records = sink.expect_records(2)

    assert codes(records) == [str(2**64 - 1), 79]


def test_a_time_that_cannot_be_costs_no_event(dcgm_node: Callable[..., Node], quick: None, sink: Collector) -> None:
    """An engine tells when an XID was; with a broken clock OTLP has no such time, and the whole batch would be lost."""
    assert quick is None
    engine = machines.h100(1)
    running = dcgm_node(engine, otlp=Otlp(endpoint=sink.url), fields=(POWER,))
    running.pipeline.events.start()
    before = time.time()
    running.show(engine.with_xid(0, 31, at=int((before + 1) * 1e6)).with_xid(0, 79, at=2**62))
    running.page()
    records = sink.expect_records(2)

    assert codes(records) == [31, 79]
    assert records[0].time_unix_nano == pytest.approx((before + 1) * SECOND, abs=1000 * 1000)
    assert before * SECOND <= records[1].time_unix_nano <= records[1].observed_time_unix_nano


def test_every_documented_code_has_advice() -> None:
    """An event with a meaning and no advice leaves the person on call alone."""
    assert XID_ADVICE.keys() == XIDS.keys()
    assert all(len(advice.text) > 20 and advice.text.endswith(".") for advice in XID_ADVICE.values())
    assert xid_advice(4711) not in XID_ADVICE.values()


def test_a_storm_of_xids_stays_small_and_is_counted(telling: Telling, sink: Collector) -> None:
    """10,000 at once: a handful of records, which say how many there were; other GPUs are heard meanwhile."""
    running = telling(PAIR)
    mailbox = running.pipeline.events
    uuid = PAIR.gpus[0].uuid
    for _ in range(10_000):
        mailbox.told(Xid(uuid, 31, time.time()))
    mailbox.told(Xid(PAIR.gpus[1].uuid, 79, time.time()))

    def told() -> int:
        return sum(int(str(said(one).get("hw.gpu.nvidia.xid.count", 1))) for one in sink.records(events.XID))

    until(lambda: told() == 10_001, "all of them, as counts")

    assert len(sink.records()) < 4 * BURST
    assert [said(one)["hw.name"] for one in sink.records() if said(one)["hw.gpu.nvidia.xid.code"] == 79] == ["GPU 1"]
    assert values(running.page(), "otelgpu_otlp_events_dropped_total", by="reason")["queue"] == 0


def test_equal_xids_are_put_together_as_long_as_they_go_on() -> None:
    """First each alone; then one a second with a count; and each alone again after a second of silence."""
    now = 100.0
    mailbox = Mailbox(lambda: now)
    mailbox.put_sweep(snapshot({}, at=now))
    taken: list[list[int]] = []

    for count in (BURST + 5, 7, 0, 0, 2):
        for _ in range(count):
            mailbox.put_xid(Xid("GPU-0", 31, now))
        mailbox.put_sweep(snapshot({}, at=now))  # or there might be nothing to take
        told = mailbox.take()
        assert told is not None
        taken.append([xid.times for xid in told.xids])
        now += 1.0

    assert taken == [[1] * BURST, [5 + 7], [], [], [1, 1]]


def test_kinds_of_xid_beyond_all_measure_are_dropped_and_counted() -> None:
    """Memory stays bounded whatever a broken driver says."""
    mailbox = Mailbox()
    for code in range(MOST_XIDS + 50):
        mailbox.put_xid(Xid("GPU-0", code, 1.0))
    mailbox.close()
    told = mailbox.take()

    assert told is not None
    assert len(told.xids) == MOST_XIDS
    assert mailbox.dropped == 50
    assert mailbox.take() is None


def test_an_xid_before_the_first_sweep_waits_for_it(telling: Telling, sink: Collector) -> None:
    """The driver tells what happened as soon as it is asked; which GPU that is says the first sweep."""
    telling(PAIR.with_xid(0, 79))
    (record,) = sink.expect_records(1)

    assert said(record)["hw.name"] == "GPU 0"


def test_an_xid_has_the_gpus_looked_at(telling: Telling, sink: Collector) -> None:
    """79 means that the GPU is gone; nobody has to scrape for that to be known."""
    running = telling(PAIR)
    running.show(PAIR.with_xid(1, 79).with_gpu(1, lost=True))
    until(lambda: names(sink) == ["xid", "lost"], "both events")

    assert said(sink.records()[1])["hw.id"] == PAIR.gpus[1].uuid


# ---- lost and recovered


def test_a_gpu_that_is_lost_and_comes_back_is_told_twice(telling: Telling, sink: Collector) -> None:
    """Once each, however many sweeps there are; with the reason, and with how long it was gone."""
    running = telling(PAIR)
    for scenario in (PAIR, PAIR.with_gpu(1, lost=True), PAIR.with_gpu(1, lost=True), PAIR, PAIR):
        running.show(scenario)
        running.sweep()
    lost, back = sink.expect_records(2)

    assert names(sink) == ["lost", "recovered"]
    assert (lost.severity_text, back.severity_text) == ("FATAL", "INFO")
    assert said(lost)["error.type"] == "lost"
    assert said(lost)["hw.id"] == said(back)["hw.id"] == PAIR.gpus[1].uuid
    assert said(lost)["hw.gpu.nvidia.lost.reason"] == said(back)["hw.gpu.nvidia.lost.reason"] == "GPU is lost"
    assert "reset" in str(said(lost)["hw.gpu.nvidia.advice"])
    assert 0 <= float(str(said(back)["hw.gpu.nvidia.lost.duration"])) < 20
    assert lost.time_unix_nano <= back.time_unix_nano


def test_a_gpu_that_hangs_is_told_with_its_reason(telling: Telling, sink: Collector) -> None:
    """A call that does not return is another case for whoever is on call than a GPU that has fallen off the bus."""
    running = telling(PAIR, sampling=short())
    running.show(PAIR.with_gpu(0, hangs={"nvmlDeviceGetPowerUsage"}))
    running.sweep()
    (record,) = sink.expect_records(1, events.LOST)

    assert said(record)["error.type"] == "timeout"
    assert record.severity_text == "ERROR"


def test_a_gpu_that_was_never_opened_is_told_by_its_number() -> None:
    """It has no UUID until it is back, and is the same GPU then."""
    nameless = Device("", "", 1, "", "")
    up, down = (
        GpuState(GPUS[0], up=True),
        GpuState(nameless, up=False, gap=Gap.LOST, reason="GPU is lost", since_unix=5),
    )
    detector = Detector(Limits())
    told = [
        event
        for at, states in ((10, (up, down)), (11, (up, down)), (12, (up, GpuState(GPUS[1], up=True))))
        for event in detector.sweep(_with_states(snapshot({}, at=at), *states))
    ]

    assert [(event.name, event.device.index) for event in told] == [(events.LOST, 1), (events.RECOVERED, 1)]
    assert told[1].device is GPUS[1]


def test_a_driver_that_goes_away_takes_every_gpu_along(telling: Telling, sink: Collector) -> None:
    """And brings them back, when it was only loaded anew."""
    running = telling(PAIR)
    running.show(PAIR.but(errors={"*": 9, "nvmlShutdown": 0, "nvmlEventSetFree": 0}))
    running.sweep()
    running.show(PAIR)
    until(lambda: running.sweep().source_up, "the driver")
    sink.expect_records(4)

    assert names(sink) == ["lost", "lost", "recovered", "recovered"]


# ---- MIG


def test_a_change_of_the_mig_instances_is_told(telling: Telling, sink: Collector) -> None:
    """What is there now and what was before; a GPU that does not answer has not changed anything."""
    whole = models.h100_mig()
    running = telling(whole)
    before = [f"{each.instance_id}: {each.profile}" for each in _instances(running)]
    for scenario in (whole.with_gpu(0, lost=True), whole, whole.without_instance(0, 1), whole.without_instance(0, 1)):
        running.show(scenario)
        running.sweep()
    sink.expect_records(3)
    after = [f"{each.instance_id}: {each.profile}" for each in _instances(running)]
    (record,) = sink.records(events.MIG_CHANGED)

    assert names(sink) == ["lost", "recovered", "mig.changed"]
    assert len(after) == len(before) - 1
    assert said(record)["hw.gpu.nvidia.mig.instances"] == after
    assert said(record)["hw.gpu.nvidia.mig.instances.before"] == before
    assert said(record)["hw.id"] == whole.gpus[0].uuid


def _instances(running: Node) -> list[Device]:
    latest = running.pipeline.sampler.latest
    assert latest is not None
    found = [device for device in latest.devices().values() if device.instance_id is not None]
    return sorted(found, key=lambda device: device.instance_id or 0)


# ---- throttling


def test_clocks_that_are_held_down_are_told_at_both_ends(telling: Telling, sink: Collector) -> None:
    """With the reason, the share of the time, and at the end how long it went on."""
    running = telling(PAIR)
    window = threading.Event()
    for heat in (0, 0, 1000, 1000, 1000):  # seconds in all: more than any window
        running.show(PAIR.with_gpu(1, fields={HOT: heat * SECOND}))
        window.wait(0.15)  # the window is the driver's own time, which no clock of ours turns
        running.sweep()
    begun, over = sink.expect_records(2)

    assert names(sink) == ["throttle.started", "throttle.ended"]
    assert said(begun)["hw.name"] == said(over)["hw.name"] == "GPU 1"
    assert said(begun)["hw.gpu.nvidia.throttle.reason"] == "hw_thermal"
    assert said(begun)["hw.gpu.nvidia.throttle.share"] == 1
    assert said(over)["hw.gpu.nvidia.throttle.share"] == 0
    assert 0.1 < float(str(said(over)["hw.gpu.nvidia.throttle.duration"])) < 20
    assert said(over)["hw.gpu.nvidia.throttle.time"] == 1000
    assert (begun.severity_text, over.severity_text) == ("WARN", "INFO")


def _held(limits: Limits, *sweeps: Mapping[int, int]) -> list[tuple[str, str, float]]:
    """What one GPU's numbers (by field, ten seconds apart) are told as: event, reason and share."""
    detector, told = Detector(limits), list[Event]()
    for place, numbers in enumerate(sweeps):
        of = {CATALOGUE[id_]: {GPUS[0]: number} for id_, number in numbers.items()}
        sweep = _with_states(snapshot(of, at=100.0 + 10 * place), GpuState(GPUS[0], up=True))
        told += detector.sweep(sweep)
    return [
        (
            event.name.rpartition(".")[2],
            str(event.attributes["hw.gpu.nvidia.throttle.reason"]),
            float(str(event.attributes["hw.gpu.nvidia.throttle.share"])),
        )
        for event in told
    ]


S = SECOND


@pytest.mark.parametrize(
    ("limits", "sweeps", "told"),
    [
        # around the limit: once, until it is well below
        (
            Limits(),
            [{1422: 0}, {1422: S}, {1422: 2 * S - 10**8}, {1422: 3 * S}, {1422: 3 * S + 10**8}],
            [("started", "sw_thermal", 0.1), ("ended", "sw_thermal", 0.01)],
        ),
        (Limits(), [{1422: 0}, {1422: S - 1}], []),
        (Limits(0.5), [{1424: 0}, {1424: 6 * S}], [("started", "hw_power_brake", 0.6)]),
        (Limits(0), [{1424: 0, 241: 0}, {1424: 6 * S, 241: 6 * S}], []),
        # the power limit is told only where that is asked for
        (Limits(), [{1420: 0}, {1420: 10 * S}], []),
        (Limits(0, 0.5), [{1420: 0}, {1420: 10 * S}], [("started", "sw_power_cap", 1.0)]),
        # the general counter speaks where the finer ones are not there, and never beside them
        (Limits(), [{241: 0}, {241: 5 * S}], [("started", "thermal", 0.5)]),
        (Limits(), [{241: 0, 1422: 0}, {241: 5 * S, 1422: 5 * S}], [("started", "sw_thermal", 0.5)]),
        # a counter that went back, or is not there for a while, says nothing
        (Limits(), [{1422: 9 * S}, {1422: 4 * S}, {1422: 4 * S}], []),
        (Limits(), [{1422: 0}, {}, {1422: 4 * S}], [("started", "sw_thermal", 0.2)]),
        # bits, where there is no counter: when two sweeps in a row saw them
        (Limits(), [{112: 0x40}, {112: 0}, {112: 0x40}, {112: 0}], []),
        (
            Limits(),
            [{112: 0x40}, {112: 0x40}, {112: 0x1}],
            [("started", "hw_thermal", 1.0), ("ended", "hw_thermal", 0.0)],
        ),
        (Limits(), [{112: 0x48}, {112: 0x48}], [("started", "hw_thermal", 1.0)]),
        (Limits(), [{112: 0x8}, {112: 0x8}], [("started", "hw_slowdown", 1.0)]),
        (Limits(), [{112: 0x40, 1423: 0}, {112: 0x40, 1423: 0}], []),
        (Limits(), [{112: 0x113}, {112: 0x113}], []),  # idle, application clocks, sync boost, display
    ],
)
def test_throttling_begins_and_ends_once(
    limits: Limits, sweeps: list[Mapping[int, int]], told: list[tuple[str, str, float]]
) -> None:
    """Each line is a case of its own: what the driver counts, sweep by sweep, and what somebody is told."""
    assert _held(limits, *sweeps) == told


def test_values_that_stand_on_the_instances_are_followed_too() -> None:
    """With `mig.parent_values: repeat` a GPU's numbers are on its instances; it is still one GPU, told once."""
    slices = [Device(f"MIG-{i}", GPUS[0].uuid, 0, "", "", profile="1g", instance_id=i) for i in (1, 2)]
    detector, told = Detector(Limits(), codes=True), list[Event]()
    for at, heat, code in ((100.0, 0, 0), (110.0, 5 * S, 31)):
        numbers = {CATALOGUE[1423]: dict.fromkeys(slices, heat), CATALOGUE[230]: dict.fromkeys(slices, code)}
        told += detector.sweep(_with_states(snapshot(numbers, at=at), GpuState(GPUS[0], up=True)))

    assert [(event.name, event.device) for event in told] == [
        (events.XID, GPUS[0]),
        (events.THROTTLE_STARTED, GPUS[0]),
    ]


def test_sweeps_that_follow_at_once_are_one_window() -> None:
    """The counters move in steps of a tenth of a second: between two scrapes of a millisecond all or nothing moves."""
    detector, told = Detector(Limits()), list[Event]()
    for at, heat in ((100.0, 0), (110.0, 0), (110.01, S // 10), (110.02, S // 10), (120.0, S // 10)):
        numbers = {CATALOGUE[1423]: {GPUS[0]: heat}}
        told += detector.sweep(_with_states(snapshot(numbers, at=at), GpuState(GPUS[0], up=True)))

    assert told == []


def _with_states(sweep: Snapshot, *states: GpuState) -> Snapshot:
    fields = {name: getattr(sweep, name) for name in Snapshot.__dataclass_fields__}
    return Snapshot(**(fields | {"states": states}))


# ---- owners


def test_an_event_names_the_owner_of_that_moment(telling: Telling, kubelet: Kubelet, sink: Collector) -> None:
    """Whose job died is the first question; the pod that came afterwards has nothing to do with it."""
    gpus = [gpu.uuid for gpu in PAIR.gpus]
    kubelet.pods = [pod("train-0", gpus[0]), pod("shared-a", f"{gpus[1]}::0"), pod("shared-b", f"{gpus[1]}::1")]
    settings = Kubernetes(enabled=True, socket=str(kubelet.path), refresh=3600, expire=3600)
    sink.log_answers += [Answer(503)] * 3
    running = telling(PAIR, kubernetes=settings)
    pods = running.pipeline.attribution.pods
    assert pods is not None
    assert running.pipeline.attribution.looked(LIMIT)
    running.show(PAIR.with_xid(0, 31).with_xid(1, 31))
    until(lambda: not sink.log_answers, "a collector that does not take them yet")
    kubelet.pods = [pod("train-1", gpus[0])]
    asked = pods.finished
    pods.hurry()
    until(lambda: pods.finished > asked, "the next pod")
    first, second = sink.expect_records(2)
    running.show(PAIR.with_xid(0, 31).with_xid(1, 31).with_xid(0, 13))
    third = sink.expect_records(3)[2]

    assert said(first)["k8s.pod.name"] == "train-0"
    assert said(first)["k8s.namespace.name"] == "team"
    assert said(first)["k8s.container.name"] == "main"
    assert OWNERS not in said(first)
    assert "k8s.pod.name" not in said(second)  # it is nobody's alone
    assert said(second)[OWNERS] == ["team/shared-a/main", "team/shared-b/main"]
    assert said(third)["k8s.pod.name"] == "train-1"


def test_the_owners_of_the_instances_of_a_lost_gpu_are_named(
    telling: Telling, kubelet: Kubelet, sink: Collector
) -> None:
    """They go with their GPU, and with them whoever used them."""
    whole = models.h100_mig()
    uuids = [instance.uuid for instance in whole.gpus[0].instances if instance is not None]
    kubelet.pods = [pod("small", uuids[0], resource="nvidia.com/mig-1g.10gb")]
    settings = Kubernetes(enabled=True, socket=str(kubelet.path), refresh=3600, expire=3600)
    running = telling(whole, kubernetes=settings)
    assert running.pipeline.attribution.looked(LIMIT)
    running.sweep()
    running.show(whole.with_gpu(0, lost=True))
    running.sweep()
    (record,) = sink.expect_records(1, events.LOST)

    assert said(record)[OWNERS] == ["team/small/main"]


# ---- delivery


@pytest.mark.usefixtures("fake")
def test_events_of_an_outage_arrive_later_in_order_with_their_own_times(
    rotel: Rotel, sink: Collector, tmp_path: Path
) -> None:
    """The collector is often on the node that is in trouble."""
    scenario, times = PAIR, list[tuple[float, float]]()
    flags = ("--otlp", rotel.url("http/protobuf"), "--otlp-interval", "3600", "--fields", POWER)
    with serving(scenario, tmp_path, *flags) as served:
        sink.expect(1)
        rotel.kill()
        for code in (13, 31, 43, 31, 79):
            began = time.time()
            scenario = scenario.with_xid(0, code)
            scenario.write(served.scenario)
            waiting = len(times) + 1
            until(lambda: values(served.page(), "otelgpu_otlp_events_buffered")[""] == waiting, "it waits")  # noqa: B023
            times.append((began, time.time()))
        until(lambda: values(served.page(), "otelgpu_otlp_events_attempts_failed_total")[""] > 0, "a failed attempt")
        rotel.start()
        records = sink.expect_records(5)
        until(lambda: values(served.page(), "otelgpu_otlp_events_sent_total") == {"": 5}, "all are counted")
        logged = served.logged("takes no events")

    assert codes(records) == [13, 31, 43, 31, 79]
    assert all(
        began * SECOND <= record.time_unix_nano <= ended * SECOND
        for record, (began, ended) in zip(records, times, strict=True)
    )
    assert logged == 1


@pytest.mark.usefixtures("fake")
def test_what_is_queued_is_sent_before_the_end(sink: Collector, tmp_path: Path) -> None:
    """The last thing that a node has to say is often why it is drained."""
    sink.log_answers += [Answer(503, (("Retry-After", "600"),))]
    with serving(PAIR, tmp_path, "--otlp", sink.url, "--otlp-interval", "3600", "--fields", POWER) as served:
        sink.expect(1)
        PAIR.with_xid(0, 31).with_xid(0, 31).write(served.scenario)
        until(lambda: values(served.page(), "otelgpu_otlp_events_attempts_failed_total") == {"": 1}, "an attempt")

        assert served.stop() == 0
    assert codes(sink.records()) == [31, 31]


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_collector_that_is_silent_does_not_hold_up_the_end(protocol: str, sink: Collector, tmp_path: Path) -> None:
    """Neither with metrics nor with events that wait: a pod has its seconds to end, and not more."""
    sink.silent.set()
    flags = ("--otlp", sink.url, "--otlp-protocol", protocol, "--otlp-interval", "0.1", "--reuse", "0")
    with serving(PAIR, tmp_path, *flags) as served:
        PAIR.with_xid(0, 31).write(served.scenario)
        until(lambda: values(served.page(), "otelgpu_otlp_events_buffered")[""] > 0, "an event that waits")
        began = time.perf_counter()
        code = served.stop()
        took = time.perf_counter() - began

        assert code == 0
        assert took < 5
        assert not served.logged("Traceback")


def test_what_a_collector_does_not_take_is_counted(telling: Telling, sink: Collector) -> None:
    """Refused for good, or taken in part: nothing is lost without a trace on the page."""
    sink.log_answers += [Answer(400), partial(1, "too long")]
    running = telling(PAIR)
    running.show(PAIR.with_xid(0, 31))
    until(lambda: len(sink.log_answers) == 1, "the first")
    running.show(PAIR.with_xid(0, 31).with_xid(0, 43))
    until(lambda: not sink.log_answers, "the second")
    until(
        lambda: (
            values(running.page(), "otelgpu_otlp_events_dropped_total", by="reason")
            == {"refused": 1, "rejected": 1, "expired": 0, "full": 0, "queue": 0, "failed": 0}
        ),
        "both are counted",
    )

    assert values(running.page(), "otelgpu_otlp_events_sent_total") == {"": 0}
    assert values(running.page(), "otelgpu_otlp_batches_dropped_total", by="reason")["refused"] == 0


@pytest.mark.usefixtures("fake")
def test_a_collector_that_takes_no_logs_gets_its_metrics_all_the_same(sink: Collector, tmp_path: Path) -> None:
    """Many collectors have a pipeline for metrics alone; events are on without anybody asking."""
    sink.log_answers += [Answer(404)] * 9
    with serving(PAIR, tmp_path, "--otlp", sink.url, "--otlp-interval", "0.1", "--reuse", "0") as served:
        PAIR.with_xid(0, 31).with_xid(0, 43).with_xid(0, 13).write(served.scenario)
        until(
            lambda: values(served.page(), "otelgpu_otlp_events_dropped_total", by="reason")["refused"] == 3,
            "all are refused",
        )
        sink.expect(len(sink.received) + 3)

        assert served.logged("refuses batches of events") == 1
        assert values(served.page(), "otelgpu_otlp_batches_dropped_total", by="reason")["refused"] == 0


def test_a_collector_that_is_away_for_long_costs_bounded_memory(telling: Telling, sink: Collector) -> None:
    """Events have a buffer of their own with a bound of its own; the newest ones stay."""
    sink.log_answers += [Answer(503, (("Retry-After", "600"),))]
    running = telling(PAIR, {"buffer_bytes": 16 * 4000})
    (buffer,) = _events(running).buffers
    for code in range(1, 30):
        running.pipeline.events.told(Xid(PAIR.gpus[0].uuid, code, time.time()))
        until(lambda: len(buffer) + buffer.dropped["full"] == code, "it waits, or has made room")  # noqa: B023

    assert buffer.dropped["full"] > 10
    assert 3000 < buffer.size <= 4000


def _events(running: Node) -> Events:
    found = running.pipeline.events
    assert isinstance(found, Events)
    return found


def test_an_event_that_cannot_be_written_costs_itself(
    telling: Telling, sink: Collector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread goes on, says so once, and says when it works again."""
    caplog.set_level(logging.INFO, "otelgpu")
    broken = threading.Event()
    broken.set()
    running = telling(PAIR)
    right = Records.request

    def request(self: Records, told: list[Event], owners: Owners, observed_unix: float) -> bytes:
        if told and broken.is_set():
            raise RuntimeError("broken")
        return right(self, told, owners, observed_unix)

    monkeypatch.setattr(Records, "request", request)
    scenario = PAIR
    for place in range(2):
        scenario = scenario.with_xid(0, 31)
        running.show(scenario)
        until(lambda: _events(running).failed == place + 1, "a failure")  # noqa: B023
    broken.clear()
    running.show(scenario.with_xid(0, 79))
    sink.expect_records(1)

    assert codes(sink.records()) == [79]
    assert sum("could not be told" in one.getMessage() for one in caplog.records) == 1
    until(lambda: any("can be told again" in one.getMessage() for one in caplog.records), "it says so")


# ---- on and off


@pytest.mark.usefixtures("fake")
def test_without_events_nothing_is_sent_and_nobody_waits(sink: Collector, tmp_path: Path) -> None:
    """Off is off: no request to /v1/logs, no thread that waits for XIDs, no field that nobody asked for."""
    scenario = PAIR.with_xid(0, 79)
    flags = ("--otlp", sink.url, "--otlp-interval", "0.1", "--fields", POWER, "--otlp-events", "false")
    with serving(scenario, tmp_path, *flags) as served:
        sink.expect(3)
        page = served.page()
        served.stop()

    assert not sink.logged
    assert served.counts.calls("nvmlEventSetCreate") == 0
    assert served.counts.calls("nvmlDeviceGetCurrentClocksEventReasons") == 0
    assert "otelgpu_otlp_events" not in page


def test_without_otlp_nobody_waits_for_events(node: Callable[..., Node], fake: Fake) -> None:
    """A plain scrape target costs what it cost before."""
    running = node(PAIR, fields=(POWER,))
    page = running.page()

    assert fake.calls("nvmlEventSetCreate") == 0
    assert fake.calls("nvmlDeviceGetCurrentClocksEventReasons") == 0
    assert "otelgpu_otlp" not in page


def test_what_is_read_for_events_is_not_shown(telling: Telling) -> None:
    """Neither as series nor as something that is missing."""
    with_events = telling(models.t4(1)).page()
    without = telling(models.t4(1), {"events": False}).page()

    def ours(page: str) -> list[str]:
        return [line for line in page.splitlines() if line.startswith(("DCGM_", "otelgpu_missing"))]

    assert ours(with_events) == ours(without)


def test_a_simulated_node_has_events_too() -> None:
    """Dashboards for events are built on machines without a GPU: every code that the node shows is told, once."""
    now = 0.0
    fields = [CATALOGUE[230]]
    source = SimulatedSource(fields, spec="2xh100", clock=lambda: now)
    assembler, detector = Assembler(fields, heard=source.heard), Detector(Limits(), codes=True)
    told, shown, before = list[Event](), list[tuple[int, int]](), dict[int, int]()
    for hour in range(48):
        now = 3600.0 * hour
        samples = [source.read(slot) for slot in range(source.count())]
        states = [GpuState(sample.device, up=True) for sample in samples]
        for sample in samples:
            code = int(sample.readings[0].number)
            if before.get(sample.device.index, code) != code:
                shown.append((sample.device.index, code))
            before[sample.device.index] = code
        sweep = assembler.snapshot(states, samples, facts=source.facts(), reason=None, times=Times(now, now, now, 0.1))
        told += detector.sweep(sweep)

    assert len(shown) > 3
    assert [(one.device.index, one.attributes["hw.gpu.nvidia.xid.code"]) for one in told] == shown


def test_a_simulated_node_sends_what_it_reads(
    telling: Telling, sink: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same pipeline over another source: the codes come from its sweeps, since nobody tells them."""
    shown = [0]
    monkeypatch.setitem(dict_of(BOARD), 230, BoardRow(lambda now: shown[0] * now.gpu.device.index))
    running = telling(PAIR, source=SourceChoice("simulated", "2xh100"))
    for code in (0, 31, 31, 0, 13):
        shown[0] = code
        running.sweep()
    records = sink.expect_records(2)

    assert codes(records) == [31, 13]
    assert {said(record)["hw.name"] for record in records} == {"GPU 1"}


def test_events_go_to_the_console_where_that_is_asked_for(
    node: Callable[..., Node], capfd: pytest.CaptureFixture[str]
) -> None:
    """OTEL_LOGS_EXPORTER=console: the first look at what would be sent."""
    running = node(PAIR, fields=(POWER,), log_exporters=("console",))
    running.pipeline.events.start()
    running.show(PAIR.with_xid(0, 31))
    lines: list[str] = []

    def printed() -> bool:
        lines.extend(capfd.readouterr().out.splitlines())
        return bool(lines)

    until(printed, "a line")
    (record,) = json.loads(lines[0])["resourceLogs"][0]["scopeLogs"][0]["logRecords"]

    assert record["eventName"] == "hw.gpu.nvidia.xid"


def test_logs_may_have_a_collector_of_their_own(
    node: Callable[..., Node], sink: Collector, quick: None, fake: Fake
) -> None:
    """Where the metrics are pushed to is not asked then."""
    assert quick is None
    assert fake.inflight >= 0
    logs = Otlp(endpoint=f"{sink.url}/elsewhere/logs", headers={"x-token": "b"}, compression="none")
    origins = {"logs.endpoint": "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"}
    metrics = Otlp(endpoint=f"http://127.0.0.1:{free_port()}")
    running = node(PAIR, fields=(POWER,), otlp=metrics, logs=logs, origins=origins)
    running.pipeline.events.start()
    running.show(PAIR.with_xid(0, 31))
    sink.expect_records(1)

    assert sink.logged[0].path == "/elsewhere/logs"
    assert sink.logged[0].headers["x-token"] == "b"
    assert "content-encoding" not in sink.logged[0].headers


# ---- the whole batch


def test_a_batch_is_as_reviewed(golden: Golden) -> None:
    """Names, attributes and sentences of every kind of event: somebody's alerts will be built on them."""
    gpu = GPUS[0]
    slices = [
        Device(f"MIG-{i}", gpu.uuid, 0, gpu.model, gpu.pci_bus_id, profile="1g.10gb", instance_id=7 + i) for i in (0, 1)
    ]
    detector = Detector(Limits())

    def sweep(at: float, identity: int, instances: list[Device], heat: int, *, up: bool = True) -> list[Event]:
        state = GpuState(gpu, up=True)
        if not up:
            state = GpuState(gpu, up=False, gap=Gap.LOST, reason="GPU is lost", since_unix=at - 1)
        numbers = {CATALOGUE[252]: dict.fromkeys(instances, 1), CATALOGUE[1423]: {gpu: heat}} if up else {}
        made = _with_states(snapshot(numbers, at=at, identity=identity), state)
        return detector.sweep(made)

    told = sweep(1000, 1, slices, 0)
    told += sweep(1010, 1, slices, 4 * S)
    told += [detector.xid(Xid(gpu.uuid, 94, 1012, 7, 0)), detector.xid(Xid(gpu.uuid, 31, 1013, times=12))]
    told += sweep(1020, 1, slices, 4 * S)
    told += sweep(1030, 2, [], 0, up=False)
    told += sweep(1040, 3, slices[:1], 4 * S)
    told += [detector.xid(Xid("GPU-unknown", 4711, 1050))]
    owner = Owner(OwnerKind.POD, "team", "train-0", "main")
    owners = Owners(1, {slices[0].uuid: (owner,), slices[1].uuid: (Owner(OwnerKind.JOB, job="17"),)})
    records = Records(Resource({"service.name": "otelgpu"}), SemconvJoin((("rack", "a"),)))
    message = ExportLogsServiceRequest.FromString(records.request(told, owners, 1060))

    assert {event.name for event in told} == {
        events.XID,
        events.LOST,
        events.RECOVERED,
        events.MIG_CHANGED,
        events.THROTTLE_STARTED,
        events.THROTTLE_ENDED,
    }
    golden("events/batch.json", json.dumps(MessageToDict(message), indent=1, sort_keys=True) + "\n")
