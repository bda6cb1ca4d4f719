"""The pages on moving from other exporters: every name of ours in them is one that a page shows.

Rule 1: their names were read in their documentation, or are in the recordings; ours come out of the catalogue.
"""

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import pytest

from otelgpu.fields import CATALOGUE, Field, find
from otelgpu.reference import page_name
from otelgpu.sources.nvml.questions import READABLE
from otelgpu.sources.nvml.source import BESIDE
from tests.conftest import GOLDEN, ROOT
from tests.fakenvml import models
from tests.harness import Node
from tests.webserver import here

DOCS = ROOT / "docs"
_ROW = re.compile(r"^\| `(\w+)` \| `([A-Z]\w+)(?: ([*/]) ([\d.]+))?` \| `(\w+)(?:\{(.*)\})?` \|$", re.MULTILINE)
_OURS = re.compile(r"\b(?:DCGM_(?:FI|EXP)_|OTELGPU_(?:ENC|FBC)_)\w*[A-Z0-9]\b(?!_?\*)")
BASE = ("_bytes", "_ratio", "_hz", "_joules_total", "_bytes_per_second")  # theirs in units of OpenTelemetry


class Row(NamedTuple):
    """One row: their name, our field, what its number is multiplied with, our name in OpenTelemetry's form."""

    theirs: str
    field: Field
    factor: Fraction
    name: str
    attributes: str


def rows() -> Iterator[Row]:
    for theirs, ours, sign, number, name, attributes in _ROW.findall((DOCS / "migrate-from-others.md").read_text()):
        field = find(ours)
        assert field is not None, ours
        factor = Fraction(number or 1)
        yield Row(theirs, field, 1 / factor if sign == "/" else factor, name, attributes)


def test_each_field_is_read_and_has_these_names() -> None:
    """A query that is written by the table finds something."""
    table = list(rows())
    assert len([row for row in table if row.theirs.startswith("nvidia_smi_")]) > 40
    assert len([row for row in table if row.theirs.startswith("gpu_")]) > 15
    for row in table:
        shape = row.field.semconv
        assert shape is not None
        assert row.field.id in READABLE | BESIDE, row.theirs
        assert page_name(row.field) == row.name, row.theirs
        told = ",".join(f'{name.replace(".", "_")}="{text}"' for name, text in shape.attributes)
        assert told == row.attributes, row.theirs


def test_numbers_are_those_of_nvidia_gpu_exporter() -> None:
    """Where its name says a base unit, as OpenTelemetry's does, the factor is the catalogue's; elsewhere it is 1."""
    for row in rows():
        shape, shown = row.field.semconv, row.field.dcgm
        assert shape is not None
        if row.theirs.startswith("nvidia_smi_"):
            scale = Fraction(shape.numerator, shape.denominator) / Fraction(shown.numerator, shown.denominator)
            assert row.factor == (scale if row.theirs.endswith(BASE) else 1), row.theirs


def test_the_names_of_nvitop_are_those_of_its_source(recordings: Path) -> None:
    """As the recordings have them."""
    known = {
        line.split("\t")[0] for line in (recordings / "nvitop-exporter" / "metric-names.txt").read_text().splitlines()
    }
    text = (DOCS / "migrate-from-others.md").read_text().partition("## nvitop-exporter")[2]
    told = set(re.findall(r"`((?:gpu|process)_\w+_(?:Percentage|MiB|MHz|W|C|MiBps))`", text))

    assert len(told) > 20
    assert told <= known


@pytest.mark.parametrize("name", ["migrate-from-others.md", "migrate-from-dcgm-exporter.md", "scaling.md"])
def test_every_name_in_the_text_exists(name: str, node: Callable[..., Node]) -> None:
    """Of fields, and of what otelgpu says of itself."""
    text = (DOCS / name).read_text()
    fields = {spelling for field in CATALOGUE.values() for spelling in (field.name, field.new_name, field.dcgm49.name)}
    running = node(models.h100(1), fields=("default", "DCGM_EXP_XID_ERRORS_TOTAL"))
    with here(running) as served:
        assert served.get() == 200  # so that scrapes are counted
    pages = [running.settled_page(), (GOLDEN / "page" / "processes_pod.txt").read_text()]
    own = {found for page in pages for found in re.findall(r"^# TYPE (otelgpu_\w+)", page, re.MULTILINE)}
    listed = (DOCS / "kubernetes.md").read_text()

    assert {each for each in _OURS.findall(text) if each not in fields} == set()
    assert {
        each for each in re.findall(r"`(otelgpu_\w+)", text) if each not in own and f"`{each}" not in listed
    } == set()
