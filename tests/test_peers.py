"""Which GPUs reach each other over NVLink: DCGM_EXP_P2P_STATUS."""

import threading
import time
from collections.abc import Callable

import pytest

from otelgpu.config import Sampling, SourceChoice
from otelgpu.peers import WORDS
from tests.fakenvml import Fake, Scenario, models
from tests.faults.rig import missing, up
from tests.harness import LIMIT, Node, lines_of, patient, series, short, until, values

Start = Callable[..., Node]

P2P, POWER, ASKED = "DCGM_EXP_P2P_STATUS", "DCGM_FI_DEV_POWER_USAGE", "nvmlDeviceGetP2PStatus"
NVLINK = 2
EVERY_TIME = Sampling(reuse=0, deadline=LIMIT, slow_interval=0)


def machine(number: int, *pairs: tuple[int, int, int]) -> Scenario:
    """GPUs that all reach each other, but for these: from, to and NVML's number."""
    scenario = models.h100(number)
    for slot in range(number):
        statuses = {(ASKED, other, NVLINK): 0 for other in range(number) if other != slot}
        statuses |= {(ASKED, to, NVLINK): status for begin, to, status in pairs if begin == slot}
        scenario = scenario.with_gpu(slot, answers=statuses)
    return scenario


def reached(page: str) -> dict[tuple[str, str], tuple[float, str]]:
    """The status and its word, by the two GPUs."""
    return {
        (line.labels["gpu"], line.labels["peer_gpu"]): (line.value, line.labels["link_status"])
        for line in lines_of(page)
        if line.name == P2P
    }


def test_each_direction_has_its_series(node: Start) -> None:
    """A link may work one way only; dcgm-exporter's labels, and the UUID of the other, which no renumbering changes."""
    scenario = machine(3, (0, 1, 4), (2, 0, 5))
    running = node(scenario, fields=(P2P,))
    running.page()
    page = running.page()

    well = dict.fromkeys([(a, b) for a in "012" for b in "012" if a != b], (0, "OK"))
    assert reached(page) == well | {("0", "1"): (4, "DisabledByRegKey"), ("2", "0"): (5, "NotSupported")}
    (line,) = (line for line in series(page, P2P) if 'gpu="0"' in line and 'peer_gpu="1"' in line)
    assert line.endswith(f',link_status="DisabledByRegKey",peer_gpu="1",peer_uuid="{scenario.gpus[1].uuid}"}} 4')
    assert f"# TYPE {P2P} gauge" in page.splitlines()


@pytest.mark.parametrize("status", range(len(WORDS)))
def test_each_status_has_its_word(status: int, node: Start) -> None:
    """The words of dcgm-exporter."""
    running = node(machine(2, (0, 1, status)), fields=(P2P,))
    running.page()

    assert reached(running.page())["0", "1"] == (status, WORDS[status])


def test_a_status_that_nobody_knows_is_dropped(node: Start) -> None:
    """A number of a newer driver that would read as another state."""
    running = node(machine(2, (0, 1, 7)), fields=(P2P,))
    running.page()
    page = running.page()

    assert set(reached(page)) == {("1", "0")}
    assert missing(page) == {"invalid": 1}


def test_it_is_asked_seldom_and_of_nobody_else(node: Start, fake: Fake) -> None:
    """It grows with the square of the GPUs, and changes hardly ever."""
    running = node(machine(4), fields=(P2P, POWER))
    for _ in range(4):
        running.page()

    assert [fake.calls(ASKED, gpu=slot) for slot in range(4)] == [3, 3, 3, 3]
    fake.reset_calls()
    node(machine(4), fields=(POWER,)).page()
    assert fake.calls(ASKED) == 0


def test_a_change_is_seen_when_it_is_asked_again(node: Start) -> None:
    """The old state's series ends with it."""
    running = node(machine(2), fields=(P2P,), sampling=EVERY_TIME)
    running.page()
    assert reached(running.page())["0", "1"] == (0, "OK")
    running.show(machine(2, (0, 1, 6)))

    assert reached(running.page()) == {("0", "1"): (6, "Unknown"), ("1", "0"): (0, "OK")}


def test_one_gpu_alone_reaches_nobody(node: Start) -> None:
    """Absent with the reason."""
    page = node(models.h100(), fields=(P2P, POWER)).page()

    assert reached(page) == {}
    assert missing(page) == {"unsupported": 1}


@pytest.mark.parametrize(("code", "gap"), [(3, "unsupported"), (13, "unsupported"), (4, "denied"), (999, "failed")])
def test_a_driver_that_does_not_say_costs_this_field(code: int, gap: str, node: Start, fake: Fake) -> None:
    """Asked once for an answer that will not change, and again for one that may."""
    running = node(machine(2).with_gpu(0, errors={ASKED: code}), fields=(P2P, POWER))
    for _ in range(3):
        page = running.page()

    assert set(reached(page)) == {("1", "0")}
    assert len(values(page, POWER)) == 2
    assert missing(page) == {gap: 1}
    assert (fake.calls(ASKED, gpu=0) > 1) == (gap == "failed")


def test_a_lost_gpu_costs_its_pairs_and_its_number_stays(node: Start) -> None:
    """The driver renumbers when one is lost: the others must not be told of a GPU that they are not about."""
    running = node(machine(3), fields=(P2P, POWER), sampling=EVERY_TIME)
    running.page()
    assert len(reached(running.page())) == 6
    running.show(machine(3).with_gpu(0, gone=True))
    running.page()
    running.page()
    page = running.page()

    assert reached(page) == {("1", "2"): (0, "OK"), ("2", "1"): (0, "OK")}
    assert sorted(up(page).values()) == [0, 1, 1]
    running.show(machine(3))
    until(lambda: len(reached(running.page())) == 6, "it is back")
    running.show(machine(3).with_gpu(0, lost=True))
    running.page()
    page = running.page()
    assert reached(page) == {("1", "2"): (0, "OK"), ("2", "1"): (0, "OK")}
    assert sorted(up(page).values()) == [0, 1, 1]


def test_a_question_that_hangs_costs_its_gpu(node: Start) -> None:
    """The others go on, and do not ask about the one that is stuck."""
    running = node(machine(3), fields=(P2P, POWER), sampling=short(slow_interval=0))
    running.page()
    running.show(machine(3).with_gpu(1, hangs={ASKED}))
    running.page()
    threading.Event().wait(0.6)  # from then on the stuck GPU counts as stuck for the others
    page = running.page()
    began = time.monotonic()
    for _ in range(10):
        running.page()

    assert reached(page) == {("0", "2"): (0, "OK"), ("2", "0"): (0, "OK")}
    assert set(values(page, POWER)) == {"0", "2"}
    assert sorted(up(page).values()) == [0, 1, 1]
    assert time.monotonic() - began < patient(1.0)
    running.show(machine(3))
    until(lambda: len(reached(running.page())) == 6, "it is back")


def test_the_other_gpu_has_its_name_in_opentelemetry(node: Start) -> None:
    """By hw.gpu.nvidia.peer.id, the hw.id of the other; the word for the value is no attribute: it would change."""
    scenario = machine(2)
    running = node(scenario, fields=(P2P,), naming="semconv")
    running.page()
    lines = [line for line in lines_of(running.page()) if line.name == "hw_gpu_nvidia_p2p_status"]

    assert {line.labels["hw_gpu_nvidia_peer_id"] for line in lines} == {gpu.uuid for gpu in scenario.gpus}
    assert not [label for line in lines for label in line.labels if "link_status" in label or "peer_uuid" in label]


def test_the_simulated_node_has_groups(node: Start) -> None:
    """GPUs of one model with NVLink reach each other, those without reach nobody."""
    simulated = SourceChoice("simulated", "2xh100+1xt4")
    page = node(models.h100(), source=simulated, fields=(P2P,)).page()

    far = dict.fromkeys([("0", "2"), ("1", "2"), ("2", "0"), ("2", "1")], (5, "NotSupported"))
    assert reached(page) == far | {("0", "1"): (0, "OK"), ("1", "0"): (0, "OK")}
