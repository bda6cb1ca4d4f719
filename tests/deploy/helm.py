"""The chart rendered with a file of values, as `helm template` does."""

import json
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tests.conftest import ROOT
from tests.deploy.gotemplate import Chart, merged

CHART = ROOT / "deploy" / "helm" / "otelgpu"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
Json = dict[str, Any]


def render(
    values: Json, *, name: str = "gpu", namespace: str = "monitoring", build: str = ""
) -> tuple[list[Json], str]:
    """Give back the objects, and the notes; *build* ends the versions. Raise ValidationError or TemplateError."""
    files = {path.relative_to(CHART).as_posix(): path.read_text() for path in CHART.rglob("*") if path.is_file()}
    about = yaml.safe_load(files["Chart.yaml"])
    given = merged(yaml.safe_load(files["values.yaml"]), values)
    jsonschema.Draft7Validator(json.loads(files["values.schema.json"])).validate(_without_nothing(given))
    chart = Chart(files)
    root: Mapping[str, Any] = {
        "Values": given,
        "Chart": {
            "Name": about["name"],
            "Version": about["version"] + build,
            "AppVersion": about["appVersion"] + build,
        },
        "Release": {"Name": name, "Namespace": namespace, "Service": "Helm"},
        "Template": {"BasePath": "templates"},
        "Files": {"Get": files.__getitem__},
    }
    objects: list[Json] = []
    for path in sorted(files):
        if path.startswith("templates/") and path.endswith(".yaml"):
            objects += [one for one in yaml.load_all(chart.render(path, root), _Strict) if one is not None]
    return objects, chart.render("templates/NOTES.txt", root)


class _Strict(yaml.SafeLoader):
    """YAML in which no key stands twice: of two, Kubernetes takes the last and newer readers none."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        """Raise AssertionError where it does."""
        read = super().construct_mapping(node, deep)
        assert len(read) == len(node.value), f"a key stands twice in {[*read]}"
        return read


def values_of(path: Path) -> Json:
    """Read a file of values."""
    read: Json = yaml.safe_load(path.read_text())
    return read


def _without_nothing(value: Any) -> Any:
    """Leave out what was set to null, which takes a key away."""
    if isinstance(value, dict):
        return {key: _without_nothing(inner) for key, inner in value.items() if inner is not None}
    return value
