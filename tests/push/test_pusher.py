"""What the sending thread does about each outcome, with a sender that is scripted and a clock that is turned."""

import logging
import threading
from dataclasses import dataclass, field

import pytest

from otelgpu.export.push.buffer import Buffer
from otelgpu.export.push.outcome import Delivered, Failed, Outcome, Refused
from otelgpu.export.push.pusher import LONGEST_ASKED, Pusher
from otelgpu.pause import LONGEST
from tests.harness import LIMIT


@dataclass
class _Sender:
    """Gives its outcomes in turn, then delivers; keeps what it was handed."""

    outcomes: list[Outcome | Exception] = field(default_factory=list)
    handed: list[bytes] = field(default_factory=list)
    place: str = "there"
    closed: int = 0

    def send(self, payload: bytes) -> Outcome:
        self.handed.append(payload)
        outcome = self.outcomes.pop(0) if self.outcomes else Delivered()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def close(self) -> None:
        self.closed += 1


@dataclass
class _Run:
    sender: _Sender
    buffer: Buffer
    pusher: Pusher
    pauses: list[float]


def _run(*outcomes: Outcome | Exception, batches: int = 1, draw: float = 0.0) -> _Run:
    """Send so many batches through a sender with these outcomes, to the end."""
    sender, pauses = _Sender(list(outcomes)), list[float]()
    buffer = Buffer(most_bytes=1000, most_seconds=1000)
    pusher = Pusher(buffer, sender, pause=pauses.append, draw=lambda: draw, wall=lambda: 77.0)
    for number in range(batches):
        buffer.put(bytes([number]), points=10)
    buffer.close()
    pusher.start()
    _join(pusher)
    return _Run(sender, buffer, pusher, pauses)


def _join(pusher: Pusher) -> None:
    for thread in threading.enumerate():
        if thread.name == "otelgpu-push":
            thread.join(LIMIT)
    assert pusher.stop(LIMIT)


def test_batches_are_sent_in_order_and_counted() -> None:
    """The plain case."""
    run = _run(batches=3)

    assert run.sender.handed == [b"\0", b"\1", b"\2"]
    assert (run.pusher.sent.batches, run.pusher.sent.payload, run.pusher.sent.last_unix) == (3, 3, 77.0)
    assert run.pauses == []


def test_the_same_batch_is_tried_until_it_is_delivered() -> None:
    """Nothing overtakes: the collector sees every series in order."""
    run = _run(Failed("503"), Failed("503"), batches=2)

    assert run.sender.handed == [b"\0", b"\0", b"\0", b"\1"]
    assert run.pusher.sent.failed == 2


def test_pauses_double_up_to_a_limit_and_begin_anew_after_a_delivery() -> None:
    """A dead collector is not hammered; one that is back is not made to wait."""
    run = _run(*[Failed("gone")] * 7, Delivered(), Failed("gone"), batches=2)

    assert run.pauses == [1, 2, 4, 8, 16, LONGEST, LONGEST, 1]


@pytest.mark.parametrize(("draw", "pause"), [(0.0, 1.0), (0.5, 0.75), (1.0, 0.5)])
def test_pauses_differ_from_node_to_node(draw: float, pause: float) -> None:
    """A thousand nodes that come back in the same second take the collector down again."""
    run = _run(Failed("gone"), draw=draw)

    assert run.pauses == [pytest.approx(pause)]


def test_a_collector_that_says_when_to_come_back_is_taken_at_its_word() -> None:
    """To come earlier makes it worse; a day is a mistake of the other side."""
    run = _run(Failed("429", 7.5), Failed("429", 1.0), Failed("429", 86400.0))

    assert run.pauses == [7.5, 1.0, LONGEST_ASKED]


@pytest.mark.parametrize("after", [0.0, -3.0, 0.001])
def test_a_collector_that_says_at_once_is_not_hammered(after: float) -> None:
    """A proxy says so as long as what is behind it is away, and so does a date on a clock that is late."""
    run = _run(*[Failed("503", after)] * 4)

    assert run.pauses == [1, 2, 4, 8]


def test_a_refused_batch_is_dropped_and_the_next_one_sent_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """It will not be better the next time, and the ones behind it are good."""
    with caplog.at_level(logging.INFO):
        run = _run(Refused("400 Bad Request"), Refused("400 Bad Request"), batches=3)

    assert run.sender.handed == [b"\0", b"\1", b"\2"]
    assert run.buffer.dropped == {"refused": 2}
    assert run.buffer.dropped_points == 20
    assert run.pauses == []
    assert [record.getMessage() for record in caplog.records] == [
        "there refuses batches of metrics, which are dropped: 400 Bad Request"
    ]


def test_a_partial_success_is_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The stock exporters take it for a success, and points are missing without a trace."""
    with caplog.at_level(logging.INFO):
        run = _run(Delivered(3, "too old"), Delivered(2, "too old"), batches=2)

    assert (run.pusher.sent.rejected_points, run.pusher.sent.batches) == (5, 2)
    assert [record.getMessage() for record in caplog.records] == ["there did not take some of the points: too old"]


@pytest.mark.parametrize(("said", "counted"), [(-5, 0), (2**63 - 1, 20), (11, 20)])
def test_no_more_points_are_rejected_than_there_were(said: int, counted: int) -> None:
    """A total must not go back, and past 2^63 no batch could be written any more."""
    run = _run(Delivered(said), Delivered(said), batches=2)

    assert run.pusher.sent.rejected_points == counted
    assert run.pusher.sent.points == 20 - counted


def test_a_fault_is_told_when_it_appears_and_when_it_clears(caplog: pytest.LogCaptureFixture) -> None:
    """A line per attempt would fill the disk over a weekend."""
    with caplog.at_level(logging.INFO):
        _run(*[Failed("connection refused")] * 5, batches=3)

    assert [record.getMessage() for record in caplog.records] == [
        "there takes no metrics (connection refused); they are kept and sent later",
        "there takes metrics again; 2 more batches wait for it",
    ]


def test_an_unforeseen_exception_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    """The stock reader's thread dies of it, and nobody notices for days."""
    with caplog.at_level(logging.INFO):
        run = _run(RuntimeError("boom"), RuntimeError("boom"), batches=2)

    assert run.pusher.sent.batches == 2
    assert sum("unforeseen" in record.getMessage() for record in caplog.records) == 1


def test_stopping_tries_once_more_and_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    """At SIGTERM a collector that is there gets everything; one that is not holds nobody up."""
    sender = _Sender([Failed("gone")] * 9)
    pausing, closed = threading.Event(), threading.Event()

    class Noted(Buffer):
        def close(self) -> None:
            super().close()
            closed.set()

    def pause(_: float) -> None:
        pausing.set()
        closed.wait(LIMIT)

    buffer = Noted(most_bytes=1000, most_seconds=1000)
    pusher = Pusher(buffer, sender, pause=pause)
    for payload in (b"a", b"b"):
        buffer.put(payload, 1)
    pusher.start()
    assert pausing.wait(LIMIT)
    ended = pusher.stop(LIMIT)

    assert ended
    assert sender.handed == [b"a", b"a"]
    assert sender.closed == 1
    assert "2 batches of metrics could not be delivered to there before the end" in caplog.text


@pytest.mark.parametrize("started", [True, False])
def test_stopping_twice_does_no_harm(started: bool) -> None:  # noqa: FBT001 - a table of two
    """Signals come twice, and a provider shuts its readers down once more."""
    pusher = Pusher(Buffer(most_bytes=1, most_seconds=1), _Sender())
    if started:
        pusher.start()

    assert pusher.stop(LIMIT)
    assert pusher.stop(LIMIT)


def test_an_attempt_that_hangs_does_not_hold_up_the_end() -> None:
    """Name servers take half a minute; SIGTERM has five seconds."""
    hanging, release = threading.Event(), threading.Event()

    class Hanging(_Sender):
        def send(self, payload: bytes) -> Outcome:
            hanging.set()
            release.wait(LIMIT)
            return super().send(payload)

    buffer = Buffer(most_bytes=10, most_seconds=10)
    pusher = Pusher(buffer, Hanging())
    buffer.put(b"a", 1)
    pusher.start()
    assert hanging.wait(LIMIT)
    ended = pusher.stop(0.01)
    release.set()

    assert not ended
