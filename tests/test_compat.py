"""`--compat`: the pages of dcgm-exporter's generations, one or two at a time, in text and in OpenMetrics.

Rule 1: each generation has a whole page here that was reviewed; a released name, label or unit never changes unseen.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.samples import Sample

from otelgpu.config import Flag, Kubernetes, load
from otelgpu.export.page import Format
from otelgpu.fields import CATALOGUE
from otelgpu.sources.nvml.questions import READABLE, XID_ERRORS
from tests.conftest import Golden
from tests.fakenvml import models
from tests.fakenvml.everything import everything
from tests.harness import Line, Node, lines_of
from tests.test_page import OWN

Start = Callable[..., Node]

ALL = tuple(CATALOGUE[id_].name for id_ in sorted(READABLE - {XID_ERRORS}))
HOSTS = {"Hostname", "hostname"}
TEMP, NEW_TEMP = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"
SHARED = "DCGM_FI_DEV_PCIE_LINK_GEN"  # has the same name in all generations
OLD_DRIVER, NEW_DRIVER = "DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION"
OLD_CSV = "/etc/dcgm-exporter/1.x-compatibility-metrics.csv"


def of_file(text: str) -> dict[str, object]:
    """The settings for the rows of a file."""
    loaded = load(environ={}, flags=[Flag("--fields", "fields", text)])
    return {"fields": loaded.fields, "counters": loaded.counters}


PAGES: Mapping[str, Mapping[str, Any]] = {
    "4.8.2": {"compat": "4.8.2"},
    "4.8.3": {"compat": "4.8.3"},
    "4.9": {"compat": "4.9"},
    "4.8.2,4.9": {"compat": "4.8.2,4.9"},
    "4.8.3,4.8.2": {"compat": "4.8.3,4.8.2"},
    "1.x": {**of_file(OLD_CSV), "kubernetes": Kubernetes(old_names=True)},
    "labels": {"hostname": "none", "replace_blanks_in_model_name": True, "labels": {"rack": "7"}},
}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_of_each_generation_is_as_reviewed(name: str, node: Start, golden: Golden) -> None:
    """Names, labels, units, types and their order, on a GPU with MIG instances."""
    page = node(models.a100_mig(), **PAGES[name]).settled_page()

    golden(f"compat/{name}.txt", "".join(f"{line}\n" for line in page.splitlines() if not OWN.match(line)))


def by_family(page: str) -> dict[str, list[str]]:
    """The lines of each of DCGM's families, its HELP and TYPE among them."""
    found: dict[str, list[str]] = {}
    for line in page.splitlines():
        name = line.split()[2] if line.startswith("# ") else line.partition("{")[0]
        if name.startswith("DCGM_"):
            found.setdefault(name, []).append(line)
    return found


def labels_of(page: str, name: str) -> set[str]:
    return {label for line in lines_of(page) if line.name == name for label in line.labels}


@pytest.mark.parametrize("compat", ["4.8.2,4.9", "4.9,4.8.3"])
def test_two_generations_are_the_lines_of_both(compat: str, node: Start) -> None:
    """A dashboard of either finds what it would find alone; what both name alike stands once, with both labels."""
    running = node(everything(), fields=ALL, compat=compat)
    both = by_family(running.settled_page())
    alone = [by_family(node(everything(), fields=ALL, compat=each).settled_page()) for each in compat.split(",")]
    shared = alone[0].keys() & alone[1].keys()

    assert both.keys() == alone[0].keys() | alone[1].keys()
    assert len(shared) > 50
    assert len(both) - len(shared) > 300
    for theirs in alone:
        assert {name: both[name] for name in theirs.keys() - shared} == {
            name: lines for name, lines in theirs.items() if name not in shared
        }
    for name in shared:
        sizes = {len(lines[name]) for lines in (both, *alone)}
        heads = {tuple(lines[name][:2]) for lines in (both, *alone)}
        assert (len(sizes), len(heads)) == (1, 1)


def test_labels_are_those_of_each_generation(node: Start) -> None:
    """`Hostname` on the old names, `hostname` on the new ones, and both where the name is the same."""
    told = {*HOSTS, OLD_DRIVER, NEW_DRIVER}
    fields = ("default", SHARED)
    page = node(models.t4(), compat="4.8.2,4.9", fields=fields).page()
    nameless = node(models.t4(), compat="4.8.2,4.9", fields=fields, hostname="none").page()

    assert labels_of(page, TEMP) & told == {"Hostname", OLD_DRIVER}
    assert labels_of(page, NEW_TEMP) & told == {"hostname", NEW_DRIVER}
    assert labels_of(page, SHARED) & told == told
    assert labels_of(nameless, SHARED) & told == told - HOSTS


def test_a_file_says_the_names_and_the_generations_come_on_top(node: Start, tmp_path: Path) -> None:
    """Whoever has a CSV file of his own moves on as everybody does; without a second generation it says all."""
    file = tmp_path / "own.csv"
    file.write_text(
        f"{TEMP}, gauge, How warm\ndcgm_power_usage, gauge, Drawn\n203, gauge, Busy\n{OLD_DRIVER}, label,\n"
    )

    def names(compat: str) -> list[str]:
        found = lines_of(node(models.t4(), **of_file(str(file)), compat=compat).page())
        return list(dict.fromkeys(line.name for line in found if line.name.lower().startswith("dcgm_")))

    old = [TEMP, "dcgm_power_usage", "DCGM_FI_DEV_GPU_UTIL"]
    new = [NEW_TEMP, "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS", "DCGM_FI_DEV_GPU_UTIL_RATIO"]
    assert names("4.8.2") == old
    assert sorted(names("4.8.2,4.9")) == sorted([*old, *new])


# ---- OpenMetrics

Samples: TypeAlias = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(lines: Iterable[Line | Sample]) -> Samples:
    """Every sample of a page, but for those that change with time."""
    return {(one.name, frozenset(one.labels.items())): one.value for one in lines if not OWN.match(one.name)}


NAMINGS: Mapping[str, Mapping[str, Any]] = {
    **{compat: {"compat": compat} for compat in ("4.8.2", "4.8.3", "4.9", "4.8.2,4.9")},
    "1.x": PAGES["1.x"],
    "semconv": {"naming": "semconv"},
}


@pytest.mark.parametrize("name", NAMINGS)
def test_openmetrics_says_what_the_text_says(name: str, node: Start) -> None:
    """The official parser takes every line; all that is lost is that a counter without `_total` is of no known type."""
    running = node(everything(), **({"fields": ALL} | dict(NAMINGS[name])))
    text = running.settled_page()
    page = running.page(sweep=False, form=Format.OPENMETRICS)
    families = list(openmetrics_families(page))  # type: ignore[no-untyped-call]

    theirs = [family for family in families if not family.name.startswith("otelgpu_")]
    ours = [family for family in families if family.name.startswith("otelgpu_")]
    kinds = dict(line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE "))
    assert page.endswith("\n# EOF\n")
    assert len(theirs) > 10
    assert samples_of(sample for family in families for sample in family.samples) == samples_of(lines_of(text))
    assert {family.type for family in ours} >= {"counter", "gauge"}
    assert {"seconds", "bytes"} <= {family.unit for family in ours}
    if name == "semconv":
        assert {family.type for family in theirs} >= {"counter", "gauge"}
    else:
        assert {family.name for family in theirs if family.type == "unknown"} == {
            each for each, kind in kinds.items() if kind != "gauge" and each.lower().startswith("dcgm_")
        }
        assert {family.type for family in theirs} == {"gauge", "unknown"}
