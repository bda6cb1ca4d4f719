"""Kustomize, as far as deploy/kubernetes uses it, for machines without kubectl.

Rule 1: strict: a key, a kind of patch or a list of which nothing is said here is an error.
Rule 2: where there is a kubectl or kustomize, a test compares both on every overlay.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]

_KEYS = {"apiVersion", "kind", "resources", "components", "patches"}
# By what entries of a list are told apart in a strategic merge; a list of anything but objects is replaced.
_NAMED = ("initContainers", "containers", "env", "volumes")
_MERGED_BY = {**dict.fromkeys(_NAMED, "name"), "volumeMounts": "mountPath"}


class KustomizeError(Exception):
    """A folder that cannot be built, and why."""


def build(folder: Path) -> list[Json]:
    """Give back the objects of an overlay or base."""
    return _applied(folder, [])


def _applied(folder: Path, objects: list[Json]) -> list[Json]:
    said: Json = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if unknown := set(said) - _KEYS:
        raise KustomizeError(f"{folder}: {unknown}")
    for name in said.get("resources", ()):
        path = folder / name
        objects += build(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    for name in said.get("components", ()):
        objects = _applied(folder / name, objects)
    for patch in said.get("patches", ()):
        content = yaml.safe_load((folder / patch["path"]).read_text())
        target = patch.get("target")
        found = [one for one in objects if _is_meant(one, target or content)]
        if target is None and len(found) != 1:
            raise KustomizeError(f"{folder}: {patch['path']} means {len(found)} objects")
        for one in found:
            index = objects.index(one)
            objects[index] = _added(one, content) if isinstance(content, list) else _merged(one, content, "")
    return objects


def _is_meant(one: Json, wanted: Mapping[str, Any]) -> bool:
    names = wanted.get("metadata", wanted)
    return bool(
        one["kind"] == wanted["kind"]
        and all(one["metadata"][key] == names[key] for key in {"name", "namespace"} & set(names))
    )


def _added(one: Json, operations: list[Json]) -> Json:
    """Apply a JSON patch that only adds keys."""
    result = copy.deepcopy(one)
    for operation in operations:
        if operation["op"] != "add":
            raise KustomizeError(f"operation {operation['op']}")
        *steps, last = operation["path"].removeprefix("/").split("/")
        holder: Any = result
        for step in steps:
            holder = holder[int(step) if isinstance(holder, list) else step]
        holder[last] = operation["value"]
    return result


def _merged(under: Any, over: Any, key: str) -> Any:
    if isinstance(over, dict) and isinstance(under, dict):
        result = dict(under)
        for name, value in over.items():
            if value is None:
                result.pop(name, None)
            else:
                result[name] = _merged(under.get(name), value, name)
        return result
    if isinstance(over, list) and isinstance(under, list) and any(isinstance(one, dict) for one in over):
        by = _MERGED_BY.get(key)
        if by is None:
            raise KustomizeError(f"by what are entries of {key!r} told apart?")
        known = {one[by]: one for one in under}
        first = [_merged(known.pop(one[by], {}), one, "") for one in over]
        return [*first, *known.values()]
    return copy.deepcopy(over)
