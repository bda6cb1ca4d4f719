"""The container of rendered manifests as the kubelet would start it, on a machine without Kubernetes.

Rule 1: arguments and variables are the manifest's own; only paths of mounts are moved, into folders of the test.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]
TOLD = {"spec.nodeName": "node-1", "metadata.name": "otelgpu-x7", "metadata.namespace": "monitoring"}


def daemonset(objects: list[Json]) -> Json:
    """Find the one DaemonSet."""
    (found,) = [one for one in objects if one["kind"] == "DaemonSet"]
    return found


def containers(objects: list[Json]) -> list[Json]:
    """All containers, those that only run at the start first."""
    spec = daemonset(objects)["spec"]["template"]["spec"]
    return [*(spec.get("initContainers") or ()), *spec["containers"]]


def container(objects: list[Json]) -> Json:
    """Find otelgpu's container."""
    (found,) = (one for one in containers(objects) if one["name"] == "otelgpu")
    assert found["command"] == ["otelgpu", "serve"]
    return dict(found)


def environ_of(one: Json, secrets: Mapping[tuple[str, str], str] | None = None) -> dict[str, str]:
    """The variables; an optional Secret that is not in *secrets* leaves its variable out."""
    environ: dict[str, str] = {}
    for variable in one["env"]:
        source = variable.get("valueFrom", {})
        if "value" in variable:
            environ[variable["name"]] = variable["value"]
        elif "fieldRef" in source:
            environ[variable["name"]] = TOLD[source["fieldRef"]["fieldPath"]]
        else:
            secret = source["secretKeyRef"]
            found = (secrets or {}).get((secret["name"], secret["key"]))
            assert found is not None or secret.get("optional")
            if found is not None:
                environ[variable["name"]] = found
    return environ


def moved(text: str, folders: Mapping[str, Path]) -> str:
    """Give a text in which paths of mounts lead into *folders*, by mount path."""
    for place, folder in folders.items():
        text = text.replace(place, str(folder))
    return text


def laid_out(objects: list[Json], folder: Path, given: Mapping[str, Path]) -> dict[str, Path]:
    """Where each mount of the container lies: Secrets and folders of the node are *given*, the rest is made."""
    spec = daemonset(objects)["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in spec.get("volumes") or ()}
    mounts = {one["mountPath"]: volumes[one["name"]] for one in container(objects).get("volumeMounts") or ()}
    places = {mount: given.get(volume["name"], folder / volume["name"]) for mount, volume in mounts.items()}
    for mount, volume in mounts.items():
        if "emptyDir" in volume:
            places[mount].mkdir()
        name = volume.get("configMap", {}).get("name")
        for one in objects:
            if one["kind"] == "ConfigMap" and one["metadata"]["name"] == name:
                places[mount].mkdir()
                for file, text in one["data"].items():
                    (places[mount] / file).write_text(moved(text, places))
    return places
