"""Every field that NVML can give, from the driver's answer to the page.

Rule 1: the GPU of these tests answers every question with another number, so that a mix-up of fields, links,
        directions or places shows on the page.
"""

import json
from collections.abc import Callable

import pytest

from otelgpu.config import Sampling
from otelgpu.fields import CATALOGUE
from otelgpu.sources.nvml.questions import FIELD_VALUES, READABLE, XID_ERRORS
from tests.conftest import RECORDINGS, Golden
from tests.fakenvml import ALL_LINKS
from tests.fakenvml.everything import everything
from tests.harness import Node, lines_of, series
from tests.test_page import OWN

Start = Callable[..., Node]

REFERENCE = RECORDINGS.parent / "reference" / "dcgm-fields.json"
ALL = tuple(CATALOGUE[id_].name for id_ in sorted(READABLE - {XID_ERRORS}))
NUMBERS = tuple(CATALOGUE[id_].name for id_ in sorted(READABLE - {XID_ERRORS}) if CATALOGUE[id_].is_numeric)
LABELS = tuple(CATALOGUE[id_].name for id_ in sorted(READABLE) if not CATALOGUE[id_].is_numeric)
AT_ONCE = Sampling(reuse=0, slow_interval=0)


def test_two_hundred_fields_and_more_can_be_read() -> None:
    """What a CSV file of a dashboard names is there on any GPU that has it, without DCGM."""
    assert set(CATALOGUE) >= READABLE
    assert len(READABLE) >= 450


def test_every_field_the_source_claims_is_on_the_page(node: Start) -> None:
    """A row that answers nothing is dead; a field that is lost on the way is worse."""
    page = node(everything(), fields=ALL).settled_page()

    lines = [line for line in lines_of(page) if line.name.startswith("DCGM_")]
    assert set(NUMBERS) - {line.name for line in lines} == set()
    assert {label for label in lines[0].labels if label.startswith("DCGM_")} == set(LABELS)


@pytest.mark.parametrize("compat", ["4.8.2", "4.9"])
def test_the_page_of_a_gpu_that_answers_everything(compat: str, node: Start, golden: Golden) -> None:
    """Each number says which answer of the driver it is: see tests/fakenvml/everything.py."""
    page = node(everything(), fields=NUMBERS, compat=compat).settled_page()

    shown = "".join(f"{line}\n" for line in page.splitlines() if not OWN.match(line) and not line.startswith("# HELP"))
    golden(f"page/everything-{compat}.txt", shown)


def test_the_texts_of_a_gpu_that_answers_everything(node: Start, golden: Golden) -> None:
    """Versions, serial numbers and places are labels: queries select by them."""
    page = node(everything(), fields=("DCGM_FI_DEV_GPU_TEMP", *LABELS)).page()

    golden("page/everything-texts.txt", "".join(f"{line}\n" for line in series(page)))


def test_the_page_of_a_driver_without_field_values(node: Start, golden: Golden) -> None:
    """What an old driver, or one that refuses the batch, answers with single calls is on the page all the same."""
    old = everything().with_gpu(0, errors={"nvmlDeviceGetFieldValues": 3})
    page = node(old, fields=NUMBERS).settled_page()

    shown = "".join(f"{line}\n" for line in page.splitlines() if line.startswith("DCGM_"))
    golden("page/everything-without-field-values.txt", shown)


def test_the_traffic_of_one_link_is_told_of_that_link(node: Start) -> None:
    """Eighteen links in two directions have 36 counters, and a field each: a mix-up would show the wrong cable."""
    scenario = everything()
    running = node(scenario, fields=ALL)
    running.settled_page()
    running.show(scenario.with_gpu(0, fields={(138, 3): 10**8, (139, 4): 10**8, (138, ALL_LINKS): 10**8}))
    page = running.settled_page()

    moving = {
        (line.name.removeprefix("DCGM_FI_DEV_NVLINK_"), line.labels.get("nvlink"))
        for line in lines_of(page)
        if "BANDWIDTH" in line.name or "THROUGHPUT_PER" in line.name
        if line.value > 0 and "C2C" not in line.name
    }
    assert moving == {
        ("BANDWIDTH_L3", None),
        ("BANDWIDTH_L4", None),
        ("TX_BANDWIDTH_L3", None),
        ("RX_BANDWIDTH_L4", None),
        ("TX_BANDWIDTH_TOTAL", None),
        ("BANDWIDTH_TOTAL", None),
        ("THROUGHPUT_PER_LINK", "3"),
        ("THROUGHPUT_PER_LINK", "4"),
        ("TX_THROUGHPUT_PER_LINK", "3"),
        ("RX_THROUGHPUT_PER_LINK", "4"),
    }


@pytest.mark.skipif(not REFERENCE.exists(), reason="reference/dcgm-fields.json is not beside this checkout")
def test_field_values_are_those_that_dcgm_asks_for() -> None:
    """DCGM's own table says which field value is behind a field; ours was written by hand."""
    known = {
        int(id_): row["nvml_field_id"]
        for id_, row in json.loads(REFERENCE.read_text())["fields"].items()
        if row.get("nvml_field_id")
    }
    ours: dict[int, set[int]] = {}
    for row in FIELD_VALUES:
        ours.setdefault(row.field_id, set()).add(row.nvml_id)

    compared = {id_: nvml_id for id_, nvml_id in known.items() if id_ in ours}
    assert len(compared) > 100
    assert {id_: nvml_id for id_, nvml_id in compared.items() if nvml_id not in ours[id_]} == {}
