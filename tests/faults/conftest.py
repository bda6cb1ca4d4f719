"""What holds after every fault.

Rule 1: whatever a test breaks, in the end otelgpu has given back all that it took from the driver.
"""

from collections.abc import Iterator

import pytest

from tests.fakenvml import Fake


def _taken(fake: Fake) -> tuple[int, int, int]:
    return fake.inits, fake.live_samples, fake.live_event_sets


@pytest.fixture(autouse=True)
def nothing_left(fake: Fake) -> Iterator[None]:
    """Connections, sample objects and event sets are back when all pipelines have ended."""
    before = _taken(fake)
    yield
    assert _taken(fake) == before
