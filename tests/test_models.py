"""All fields of each kind of machine, and under each kind of driver: what is there, and why the rest is not.

Rule 1: compared as `otelgpu record` shows it, readings and gaps; the form of a page is compared elsewhere.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from otelgpu.fields import CATALOGUE
from otelgpu.model import Snapshot
from otelgpu.sources.nvml.questions import READABLE, XID_ERRORS
from otelgpu.tables import readings_table
from tests.conftest import Golden
from tests.fakenvml import models
from tests.fakenvml.drivers import DRIVERS, Driver, under
from tests.fakenvml.everything import everything
from tests.fakenvml.rarer import RARER
from tests.harness import Node, lines_of

Start = Callable[..., Node]

ALL = tuple(CATALOGUE[id_].name for id_ in sorted(READABLE - {XID_ERRORS}))
MAKERS = {name: maker for name, maker in models.MAKERS.items() if name not in ("none", "crowd", "mixed")} | dict(RARER)


def _table(snapshot: Snapshot) -> str:
    """The readings and gaps, one space between columns: a wider name is not to change every line."""
    return "".join(f"{' '.join(line.split())}\n" for line in readings_table(snapshot, width=None).splitlines())


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_all_fields_of_each_model_are_as_reviewed(name: str, node: Start, golden: Golden) -> None:
    """Whoever asks for everything gets what this GPU has, and is told why it has no more."""
    running = node(MAKERS[name](), fields=ALL)
    running.settled_page()

    golden(f"fields/{name}.txt", _table(running.sweep()))


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.version)
def test_what_each_driver_does_not_answer_is_as_reviewed(driver: Driver, node: Start, golden: Golden) -> None:
    """An old driver costs the fields that it does not know, and no other; none is filled with something else."""
    running = node(under(driver, everything()), fields=ALL)
    running.settled_page()
    snapshot = running.sweep()

    shown = replace(snapshot, numbers={}, labels={})
    golden(f"fields/driver-{driver.version}.txt", _table(shown))


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.version)
def test_no_driver_gives_another_number_than_the_newest(driver: Driver, node: Start) -> None:
    """A field id that meant something else once would show as another number under the same name."""
    newest = _numbers(node(under(DRIVERS[-1], everything()), fields=ALL).settled_page())
    older = _numbers(node(under(driver, everything()), fields=ALL).settled_page())
    second = {name for name, _ in older} & OTHER_WAY

    differing = {key[0] for key, number in older.items() if newest.get(key) != number}
    assert differing <= second | ({*REASONS} if driver.version.startswith(("575", "580.65")) else set())
    assert len(older) > 150


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
        if line.name.startswith("DCGM_")
    }
