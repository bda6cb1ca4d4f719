"""The CSV files that come with otelgpu, and what stands for those of dcgm-exporter's image."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from otelgpu.config import Config, Flag, files, load
from otelgpu.config.counters import parse
from otelgpu.config.files import DATA, WORDS
from otelgpu.config.shipping import shipped_files
from otelgpu.errors import ConfigError
from otelgpu.fields import DEFAULT_FIELDS, find
from otelgpu.sources.choice import wanted_fields
from tests.conftest import ROOT
from tests.fakenvml import models
from tests.harness import Node, lines_of

ETC = "/etc/dcgm-exporter/"


def rows(text: str) -> list[tuple[str, str, bool]]:
    """Name, type and whether it is on, of each row that is on or has a # in front."""
    found = []
    for line in text.splitlines():
        parsed = parse(line.removeprefix("#").encode(), "f")
        found += [(row.name, row.kind, not line.startswith("#")) for row in parsed.rows]
    return found


def settings(path: str) -> Config:
    return load(environ={}, flags=[Flag("--fields", "fields", path)])


@pytest.mark.parametrize("name", sorted(WORDS))
def test_the_shipped_files_are_what_the_catalogue_says(name: str) -> None:
    """They are made from the code, so they cannot fall behind."""
    assert (DATA / name).read_text() == shipped_files()[name], "out of date: run `make golden`"
    assert {path.name for path in DATA.iterdir()} == set(WORDS) == set(shipped_files())


@pytest.mark.parametrize("name", sorted(WORDS))
def test_a_shipped_file_names_what_theirs_does(name: str) -> None:
    """Whoever switches images has the same series, and finds the same rows to switch on."""
    known = ROOT.parent / "shared" / "reference" / "default-counters.json"
    if not known.exists():
        pytest.skip("the list of dcgm-exporter's rows is not beside this checkout")
    theirs = [
        (row["field"], row["type"], row["enabled"]) for row in json.loads(known.read_text())["files"][f"etc/{name}"]
    ]
    # A row that stands twice there stands once here: on, where one of the two is.
    on = {field for field, _, enabled in theirs if enabled}
    expected = dict.fromkeys(row for row in theirs if (row[2] or row[0] not in on) and find(row[0]) is not None)

    assert rows((DATA / name).read_text()) == list(expected)


@pytest.mark.parametrize("name", sorted(WORDS))
def test_nothing_is_wrong_with_a_shipped_file(name: str) -> None:
    """Also with the rows that are off, once somebody switches them on."""
    for text in (shipped_files()[name], shipped_files()[name].replace("\n# D", "\nD").replace("\n# d", "\nd")):
        parsed = parse(text.encode(), "f")

        assert (parsed.problems, parsed.remarks) == ([], [])


def test_the_default_file_is_the_default() -> None:
    """The page is the same with the file and without it."""
    parsed = parse((DATA / "default-counters.csv").read_bytes(), "f")

    assert sorted(row.field for row in parsed.rows) == [field.id for field in DEFAULT_FIELDS]


@pytest.mark.parametrize("name", ["default-counters.csv", "dcp-metrics-included.csv"])
@pytest.mark.parametrize("compat", ["4.8.2", "4.9"])
def test_a_path_of_the_image_stands_for_the_default_fields(name: str, compat: str) -> None:
    """The Helm chart and gpu-operator name these paths; under 4.9 the names are those of 4.9."""
    config = load(environ={"OTELGPU_COMPAT": compat}, flags=[Flag("-f", "fields", ETC + name)])

    assert config.fields == ("default",)
    assert config.counters == ()
    assert [(remark.level, remark.text) for remark in config.remarks] == [
        (logging.INFO, f"-f: {ETC}{name} is not there; what comes with otelgpu under that name is shown")
    ]


def test_the_file_of_old_names_is_shown_with_old_names(node: Callable[..., Node]) -> None:
    """Dashboards of 1.x go on working."""
    config = settings(f"{ETC}1.x-compatibility-metrics.csv")
    page = node(models.h100(1), fields=config.fields, counters=config.counters).settled_page()
    names = {line.name for line in lines_of(page)}

    assert {"dcgm_sm_clock", "dcgm_gpu_utilization", "dcgm_fb_used", "dcgm_xid_errors"} < names
    assert not any(name.startswith("DCGM_") for name in names)
    assert len(wanted_fields(config)) == 20


def test_a_file_that_is_there_goes_over_the_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chart mounts its ConfigMap over the file of the image."""
    monkeypatch.setattr(files, "THEIRS", f"{tmp_path}/")
    (tmp_path / "default-counters.csv").write_text("DCGM_FI_DEV_GPU_TEMP, gauge, x\n")
    there, gone = (settings(f"{tmp_path}/{name}") for name in ("default-counters.csv", "dcp-metrics-included.csv"))

    assert [row.field for row in there.counters] == [150]
    assert gone.fields == ("default",)


def test_another_path_of_the_image_is_not_made_up() -> None:
    """gpu-operator mounts files of other names there: when the mount failed that is an error."""
    with pytest.raises(ConfigError) as caught:
        settings(f"{ETC}dcgm-metrics.csv")

    assert list(caught.value.problems) == [f"--fields {ETC}dcgm-metrics.csv: no such file or directory"]
