"""All fields of each kind of machine, and under each kind of driver: what is there, and why the rest is not.

Rule 1: compared as `otelgpu record` shows it, readings and gaps; the form of a page is compared elsewhere.
Rule 2: a driver lacks what it does not know for good, so each is looked at in a process of its own (see `apart`).
"""

import multiprocessing
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.apart import ALL, PIDS, Seen, seen, table_of
from tests.conftest import Golden
from tests.fakenvml import library, models
from tests.fakenvml.drivers import DRIVERS, Driver
from tests.fakenvml.rarer import RARER
from tests.harness import LIMIT, Node, lines_of

Start = Callable[..., Node]
Under = Callable[[Driver], Seen]

MAKERS = {name: maker for name, maker in models.MAKERS.items() if name not in ("none", "crowd", "mixed")} | dict(RARER)


@pytest.fixture(scope="module")
def under(cc: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Under]:
    """What is seen of the GPU that answers everything under a driver; each is looked at once."""
    assert cc.exists()
    context = multiprocessing.get_context("forkserver")  # starts once what each look would start anew
    context.set_forkserver_preload(["tests.apart"])
    with context.Pool(1, maxtasksperchild=1) as pool:

        @cache
        def look(driver: Driver) -> Seen:
            library(driver.without)  # is compiled here, so that a compiler that fails is told of
            place = tmp_path_factory.mktemp("driver")
            return pool.apply_async(seen, (driver.version, place)).get(LIMIT)

        yield look


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_all_fields_of_each_model_are_as_reviewed(name: str, node: Start, golden: Golden) -> None:
    """Whoever asks for everything gets what this GPU has, and is told why it has no more."""
    running = node(MAKERS[name](), fields=ALL)
    running.settled_page()

    golden(f"fields/{name}.txt", table_of(running.sweep()))


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.version)
def test_what_each_driver_does_not_answer_is_as_reviewed(driver: Driver, under: Under, golden: Golden) -> None:
    """An old driver costs the fields that it does not know, and no other; none is filled with something else."""
    golden(f"fields/driver-{driver.version}.txt", under(driver).gaps)


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.version)
def test_no_driver_gives_another_number_than_the_newest(driver: Driver, under: Under) -> None:
    """A field id that meant something else once would show as another number under the same name."""
    newest = _numbers(under(DRIVERS[-1]).page)
    older = _numbers(under(driver).page)
    second = {name for name, _ in older} & OTHER_WAY

    differing = {key[0] for key, number in older.items() if newest.get(key) != number}
    assert differing <= second | ({*REASONS} if driver.version.startswith(("575", "580.65")) else set())
    assert len(older) > 150


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.version)
def test_every_driver_tells_the_same_of_processes(driver: Driver, under: Under) -> None:
    """The lists have had two versions, and entries of two lengths: a wrong one reads memory as a pid."""
    lines = [line for line in lines_of(under(driver).page) if line.name == "otelgpu_owner_memory_used_bytes"]

    assert {line.labels["pid"]: line.value for line in lines} == {str(pid): 2.0**30 * pid for pid in PIDS}


# What this GPU answers otherwise where the driver knows only the second way: see tests/fakenvml/everything.py.
OTHER_WAY = {
    "DCGM_FI_DEV_POWER_MGMT_LIMIT",
    "DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN",
    "DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX",
    "DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF",
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
    "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_FB_TOTAL",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_FB_USED_PERCENT",
    "DCGM_FI_DEV_NVLINK_GET_STATE",
    "DCGM_FI_DEV_PLATFORM_MODULE_ID",
    *(f"DCGM_FI_DEV_ECC_{bit}_{span}_SRM" for bit in ("SBE", "DBE") for span in ("VOL", "AGG")),
}
REASONS = tuple(
    f"DCGM_FI_DEV_CLOCKS_EVENT_REASON_{word}_NS"
    for word in ("SW_THERM_SLOWDOWN", "HW_THERM_SLOWDOWN", "HW_POWER_BRAKE_SLOWDOWN")
)


def _numbers(page: str) -> dict[tuple[str, str], float]:
    return {
        (line.name, line.labels.get("nvlink", "")): line.value
        for line in lines_of(page)
        if line.name.startswith(("DCGM_", "OTELGPU_"))
    }
