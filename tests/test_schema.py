"""The JSON Schema of the settings file: an editor says what otelgpu will say."""

import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from jsonschema import Draft7Validator

from otelgpu.config import load
from otelgpu.config.keys import SETTINGS, Setting, Shape, leaf_kind
from otelgpu.config.schema import schema, schema_text
from otelgpu.errors import ConfigError
from tests.conftest import ROOT

VALIDATOR = Draft7Validator(schema())
# What has to be set beside a value at its limit, so that the two do not contradict each other.
BESIDE = {
    "sampling.reuse": {"expire": 3600},
    "sampling.expire": {"reuse": 0},
    "sampling.interval": {"expire": 3600},
    "kubernetes.refresh": {"expire": 86400},
    "kubernetes.expire": {"refresh": 1},
}


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run where files may be written."""
    monkeypatch.chdir(tmp_path)
    Path("x").touch()  # what a setting names that is a file has to be there, which no schema can know


def agrees(text: str) -> bool:
    """Whether otelgpu takes a file of this text; an assertion that the schema says the same."""
    Path("otelgpu.yaml").write_text(text)
    told = [error.message for error in VALIDATOR.iter_errors(yaml.safe_load(text))]
    refused: list[str] = []
    try:
        load(environ={}, config_path="otelgpu.yaml")
    except ConfigError as error:
        refused += error.problems
    assert bool(told) == bool(refused), f"{text!r}: the schema says {told}, otelgpu {refused}"
    return not refused


def in_file(setting: Setting, value: object) -> str:
    """A settings file with this one value."""
    section, _, name = setting.key.rpartition(".")
    if not section:
        return json.dumps({name: value})
    return json.dumps({section: {name: value} | BESIDE.get(setting.key, {})})


def values_of(setting: Setting) -> Iterator[tuple[object, bool]]:
    """Values of a setting, and whether they are good."""
    kind = leaf_kind(setting)
    yield None, True
    if setting.shape is not Shape.MAPPING:
        yield {"x": 1}, False
        yield [[1]], False
    if setting.shape is Shape.LIST:
        yield [], False
    if setting.parse is not None or setting.shape is not Shape.ONE or setting.key == "server.web_config":
        return  # of which the schema knows only that it is a text
    if kind is bool:
        yield from ((True, True), (False, True), ("maybe", False), ([True], False), (2, False))
    elif get_args(kind):
        yield from ((word, True) for word in get_args(kind))
        yield from (("x", False), (7, False))
    elif kind in (int, float):
        about = limits(setting)
        low, high = about.get("minimum", about.get("exclusiveMinimum", 0)), about["maximum"]
        yield from ((low, "minimum" in about), (high, True), (low - 1, False), (high + 1, False), ("x", False))
        yield from (("500ms", True), ("1 parsec", False)) if kind is float and low < 0.5 else ((True, False),)
    else:
        yield from (("x", True), (["x"], False))


def limits(setting: Setting) -> dict[str, Any]:
    """The limits of a number, as the schema has them."""
    found: Any = schema()["properties"]
    for name in setting.key.split("."):
        found = found["properties"][name] if "properties" in found else found[name]
    return next(form for form in found["anyOf"] if "maximum" in form)


@pytest.mark.parametrize("key", SETTINGS)
def test_the_schema_says_of_each_setting_what_otelgpu_says(key: str) -> None:
    """Whoever writes the file sees the mistake while he writes it, and is not told of one that is none."""
    setting = SETTINGS[key]
    for value, is_good in values_of(setting):
        assert agrees(in_file(setting, value)) is is_good, value


GOOD = (
    "compat: 4.9",
    "compat: 4.8.3",
    "hostname: 7",
    "labels: {cluster: east, rack: 12, spare: true, later: }",
    "server: {listen: ':9400'}",
    "server: {listen: [':9400', 'unix:/run/otelgpu.sock']}",
    "devices: 0\nfields: [default, 203]",
    "devices: [0, 2-5, f]",
    "sampling:\n  reuse: 500ms\n  interval: 1m\n  expire: 2 m",
    "sampling:",
)
BAD = (
    "samplng: {reuse: 1}",
    "sampling: {reus: 1}",
    "sampling: 1",
    "[naming]",
    "labels: [a]",
    "labels: {a: {b: 1}}",
    "naming: prometheus",
)


@pytest.mark.parametrize("text", [*GOOD, *BAD])
def test_a_file_is_judged_alike_by_both(text: str) -> None:
    """Every way to write a value that the documentation shows, and mistakes in keys and shapes."""
    assert agrees(text) is (text in GOOD)


def test_the_schema_in_the_documentation_is_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Editors fetch it from there; it is a schema, describes every setting and has its default."""
    written = tmp_path / "schema.json"
    monkeypatch.setattr(sys, "argv", ["schema", str(written)])
    monkeypatch.delitem(sys.modules, "otelgpu.config.schema")  # else runpy warns that it is there already
    runpy.run_module("otelgpu.config.schema", run_name="__main__")
    Draft7Validator.check_schema(schema())
    text = (ROOT / "docs" / "settings.schema.json").read_text(encoding="utf-8")
    top = schema()["properties"]
    described = {
        f"{section}.{name}"
        for section, about in top.items()
        for name, row in about.get("properties", {}).items()
        if row["description"]
    } | {name for name, about in top.items() if "properties" not in about}

    assert written.read_text() == schema_text()
    assert text == schema_text(), "docs/settings.schema.json is out of date: run `make golden`"
    assert described == set(SETTINGS)
    assert top["sampling"]["properties"]["reuse"]["default"] == 1
    assert all(Draft7Validator(row).is_valid(row["default"]) for row in top.values() if "default" in row)
