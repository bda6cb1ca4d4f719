"""What waits for the collector: in order, and bounded."""

import threading
from dataclasses import dataclass

from otelgpu.export.push.buffer import Buffer
from tests.harness import LIMIT


@dataclass
class _Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def _payloads(buffer: Buffer) -> list[bytes]:
    buffer.close()
    found: list[bytes] = []
    while (batch := buffer.head()) is not None:
        found.append(batch.payload)
        buffer.done(batch)
    return found


def test_batches_come_out_in_order() -> None:
    """A collector that sees yesterday after today takes it for a reset, or refuses it."""
    buffer = Buffer(most_bytes=100, most_seconds=100)
    for payload in (b"a", b"b", b"c"):
        buffer.put(payload, 1)

    assert len(buffer) == buffer.size == 3
    assert _payloads(buffer) == [b"a", b"b", b"c"]
    assert buffer.size == 0


def test_the_oldest_is_dropped_when_there_is_no_room() -> None:
    """A collector that is away for a week must not take the node's memory."""
    buffer = Buffer(most_bytes=10, most_seconds=100)
    for number in range(9):
        buffer.put(bytes([number]) * 4, points=7)

    assert buffer.size == 8
    assert buffer.dropped == {"full": 7}
    assert buffer.dropped_points == 49
    assert _payloads(buffer) == [bytes([7]) * 4, bytes([8]) * 4]


def test_a_batch_larger_than_the_whole_buffer_is_dropped() -> None:
    """It would otherwise stay at the front for ever."""
    buffer = Buffer(most_bytes=10, most_seconds=100)
    buffer.put(b"x" * 11, 1)

    assert (len(buffer), buffer.size, buffer.dropped) == (0, 0, {"full": 1})


def test_what_is_too_old_is_dropped() -> None:
    """Most backends refuse what is older than that, and nobody waits for it."""
    clock = _Clock()
    buffer = Buffer(most_bytes=100, most_seconds=10, clock=clock)
    for now in (0, 5, 9):
        clock.now = now
        buffer.put(bytes([now]), 1)
    clock.now = 15

    assert _payloads(buffer) == [b"\x05", b"\x09"]
    assert buffer.dropped == {"expired": 1}


def test_a_batch_dropped_while_it_is_sent_takes_no_other_with_it() -> None:
    """The one at the front is another one by the time the collector has answered."""
    buffer = Buffer(most_bytes=4, most_seconds=100)
    buffer.put(b"aaaa", 1)
    sending = buffer.head()
    buffer.put(b"bbbb", 1)
    assert sending is not None
    buffer.done(sending)

    assert _payloads(buffer) == [b"bbbb"]


def test_the_front_is_waited_for_until_the_buffer_is_closed() -> None:
    """The thread that sends sleeps while there is nothing to send, and ends when told to."""
    buffer = Buffer(most_bytes=100, most_seconds=100)
    found: list[bytes | None] = []

    def take() -> None:
        for _ in range(2):
            batch = buffer.head()
            found.append(None if batch is None else batch.payload)
            if batch is not None:
                buffer.done(batch)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    buffer.put(b"a", 1)
    buffer.close()
    thread.join(LIMIT)

    assert found == [b"a", None]


def test_a_batch_that_arrives_after_there_was_no_room_for_it_is_not_lost() -> None:
    """It was on its way: what is delivered is no drop, and what is not is one, whenever that comes out."""
    buffer = Buffer(most_bytes=2, most_seconds=100)
    buffer.put(b"aa", 3)
    first = buffer.head()
    assert first is not None
    buffer.put(b"bb", 5)
    assert not buffer.dropped
    buffer.done(first)
    assert not buffer.dropped

    second = buffer.head()
    assert second is not None
    assert second.payload == b"bb"
    buffer.put(b"cc", 7)
    buffer.failed(second)
    assert (buffer.dropped, buffer.dropped_points) == ({"full": 1}, 5)
    third = buffer.head()  # the other is not there to be tried again
    assert third is not None
    assert third.payload == b"cc"
    buffer.done(third, dropped="refused")
    assert buffer.dropped == {"full": 1, "refused": 1}
