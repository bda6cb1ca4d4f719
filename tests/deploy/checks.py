"""What is wrong with rendered manifests: against Kubernetes' own schemas, and against each other.

Rule 1: schemas of the oldest Kubernetes that is supported, of the newest, and of one between; strict, so that a key
        that Kubernetes would pass over in silence is an error.
Rule 2: what no schema can tell (a name that is spelt in two ways) is a rule of `misfits`.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import jsonschema
from kubernetes_validate.utils import validate

from tests.deploy.containers import containers

Json = dict[str, Any]

VERSIONS = ("1.25", "1.31", "1.37")

# The Prometheus operator's kinds, as far as we set them; from its API reference (monitoring.coreos.com/v1).
_TEXT: Json = {"type": "string"}
_TEXTS: Json = {"type": "object", "additionalProperties": _TEXT}


def _object(*required: str, **properties: Json) -> Json:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
    }


_KEY = _object("name", "key", name=_TEXT, key=_TEXT)
_RELABELINGS: Json = {
    "type": "array",
    "items": _object(
        action=_TEXT,
        sourceLabels={"type": "array", "items": _TEXT},
        targetLabel=_TEXT,
        regex=_TEXT,
        replacement=_TEXT,
        separator=_TEXT,
    ),
}
_ENDPOINT = _object(
    "port",
    port=_TEXT,
    honorLabels={"type": "boolean"},
    interval={"type": "string", "pattern": "^[0-9]+(s|m)$"},
    scrapeTimeout={"type": "string", "pattern": "^[0-9]+(s|m)$"},
    scheme={"enum": ["http", "https"]},
    tlsConfig=_object(
        serverName=_TEXT, insecureSkipVerify={"type": "boolean"}, ca=_object("secret", secret=_KEY), cert=_KEY
    ),
    basicAuth=_object("username", "password", username=_KEY, password=_KEY),
    relabelings=_RELABELINGS,
    metricRelabelings=_RELABELINGS,
)
_MONITOR = _object(
    "selector",
    "endpoints",
    selector=_object("matchLabels", matchLabels=_TEXTS),
    namespaceSelector=_object("matchNames", matchNames={"type": "array", "items": _TEXT}),
    endpoints={"type": "array", "minItems": 1, "items": _ENDPOINT},
)
_RULE = _object(
    "alert",
    "expr",
    "labels",
    "annotations",
    **{"for": {"type": "string", "pattern": "^[0-9]+(s|m|h)$"}},
    alert=_TEXT,
    expr=_TEXT,
    labels=_TEXTS,
    annotations=_TEXTS,
)
_RULES = _object(
    "groups",
    groups={
        "type": "array",
        "minItems": 1,
        "items": _object("name", "rules", name=_TEXT, rules={"type": "array", "minItems": 1, "items": _RULE}),
    },
)
OPERATOR = {"ServiceMonitor": _MONITOR, "PrometheusRule": _RULES}


def problems(objects: Iterable[Json]) -> Iterator[str]:
    """Say what Kubernetes would refuse or pass over."""
    for one in objects:
        yield from _refusals(json.dumps(one, sort_keys=True))


@cache  # most objects are the same in many overlays
def _refusals(text: str) -> tuple[str, ...]:
    return tuple(_refused(json.loads(text)))


def _refused(one: Json) -> Iterator[str]:
    name = f"{one['kind']} {one['metadata']['name']}"
    if one["apiVersion"] == "monitoring.coreos.com/v1":
        for error in jsonschema.Draft202012Validator(OPERATOR[one["kind"]]).iter_errors(one["spec"]):
            yield f"{name}: {error.json_path}: {error.message}"
        return
    for version in VERSIONS:
        try:
            validate(one, version, strict=True)
        except jsonschema.ValidationError as error:
            yield f"{name} in {version}: {error.json_path}: {error.message}"


@dataclass(frozen=True)
class _Rendered:
    """Manifests by kind, and what the one DaemonSet starts."""

    objects: list[Json]

    def of(self, kind: str) -> list[Json]:
        return [one for one in self.objects if one["kind"] == kind]

    @property
    def daemons(self) -> Json:
        (found,) = self.of("DaemonSet")
        return found

    @property
    def pod(self) -> Json:
        return dict(self.daemons["spec"]["template"]["spec"])

    @property
    def containers(self) -> list[Json]:
        return containers(self.objects)


def misfits(objects: list[Json]) -> Iterator[str]:
    """Say what does not fit together."""
    found = _Rendered(objects)
    for rule in (_places, _selectors, _monitors, _ports, _accounts, _mounts, _rights):
        yield from rule(found)


def _places(found: _Rendered) -> Iterator[str]:
    where = found.daemons["metadata"]["namespace"]
    for one in found.objects:
        if not one["kind"].startswith("Cluster") and one["metadata"].get("namespace") != where:
            yield f"{one['kind']} is in another namespace"


def _selectors(found: _Rendered) -> Iterator[str]:
    labels = found.daemons["spec"]["template"]["metadata"]["labels"]
    selectors = [("DaemonSet", found.daemons["spec"]["selector"]["matchLabels"])]
    selectors += [("Service", one["spec"]["selector"]) for one in found.of("Service")]
    selectors += [("NetworkPolicy", one["spec"]["podSelector"]["matchLabels"]) for one in found.of("NetworkPolicy")]
    for kind, selector in selectors:
        if not selector.items() <= labels.items():
            yield f"{kind} selects other pods"
        if any("version" in key for key in selector):
            yield f"{kind} selects by version, so no other version can be applied over it"


def _monitors(found: _Rendered) -> Iterator[str]:
    for monitor in found.of("ServiceMonitor"):
        (service,) = found.of("Service")
        if not monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items():
            yield "ServiceMonitor selects other services"
        if {one["port"] for one in monitor["spec"]["endpoints"]} != {one["name"] for one in service["spec"]["ports"]}:
            yield "ServiceMonitor scrapes a port that the service does not have"


def _ports(found: _Rendered) -> Iterator[str]:
    ports = {port["name"] for one in found.containers for port in one.get("ports", ())}
    for service in found.of("Service"):
        if {one["targetPort"] for one in service["spec"]["ports"]} != ports:
            yield "Service leads to a port that the container does not have"


def _accounts(found: _Rendered) -> Iterator[str]:
    account, where = found.pod["serviceAccountName"], found.daemons["metadata"]["namespace"]
    if account not in ({one["metadata"]["name"] for one in found.of("ServiceAccount")} or {"default"}):
        yield "DaemonSet runs as somebody else"
    for binding in found.of("ClusterRoleBinding"):
        (role,) = found.of("ClusterRole")
        subjects = [(one["name"], one["namespace"]) for one in binding["subjects"]]
        if binding["roleRef"]["name"] != role["metadata"]["name"] or subjects != [(account, where)]:
            yield "ClusterRoleBinding binds something else"


def _mounts(found: _Rendered) -> Iterator[str]:
    mounted = {mount["name"] for one in found.containers for mount in one.get("volumeMounts") or ()}
    if mounted != {one["name"] for one in found.pod.get("volumes") or ()}:
        yield "volumes and where they are mounted differ"
    for one in found.containers:
        names = [variable["name"] for variable in one.get("env") or ()]
        if len(names) != len(set(names)):
            yield f"{one['name']}: a variable is set twice"
        places = [mount["mountPath"] for mount in one.get("volumeMounts") or ()]
        if len(places) != len(set(places)):
            yield f"{one['name']}: two volumes at one place"


def _rights(found: _Rendered) -> Iterator[str]:
    for one in found.containers:
        context = one.get("securityContext", {})
        if context.get("privileged") and not context["allowPrivilegeEscalation"]:
            yield "a container that is privileged cannot be denied more rights"
