"""Who reports: the resource that all metrics of this process belong to.

Rule 1: what the user says (OTEL_RESOURCE_ATTRIBUTES, then OTEL_SERVICE_NAME) goes over what otelgpu knows, and that
        over what detectors find.
Rule 2: `service.instance.id` is the node's name: the same after a restart, so that no second set of series begins.
Rule 3: a detector that fails costs its own attributes.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import cast
from urllib.parse import unquote

from opentelemetry.sdk.resources import Attributes, Resource, ResourceDetector
from opentelemetry.util.types import AttributeValue

from otelgpu import __version__

logger = logging.getLogger(__name__)

DETECTORS = ("process", "os", "host")
NAMED_DETECTORS = "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS"
_GROUP = "opentelemetry_resource_detector"
_NOT_OURS = ("otel", "service_instance")  # read here from *environ*; a random instance id for each start


def plain_resource(environ: Mapping[str, str]) -> Resource:
    """Name the service, and add what the user says."""
    ours = {"service.name": "otelgpu", "service.version": __version__}
    return Resource(ours | said(environ))


def full_resource(environ: Mapping[str, str], node: str) -> Resource:
    """Say all that is known of process, machine and node; *node* is the name that the machine is known by."""
    found: Attributes = {}
    for name, detector in _detectors(environ):
        try:
            found = {**found, **{key: _fit(value) for key, value in detector().detect().attributes.items()}}
        except Exception as error:  # noqa: BLE001 - whatever a detector of somebody else's raises
            logger.warning("resource detector %s failed, its attributes will be absent: %s", name, error)
    kubernetes = environ.get("NODE_NAME", "")
    if kubernetes or "KUBERNETES_SERVICE_HOST" in environ:
        found = {name: value for name, value in found.items() if name != "host.id"}  # that of the image
    ours = {
        "service.name": "otelgpu",
        "service.version": __version__,
        "service.instance.id": node,
        "host.name": node,
        "k8s.node.name": kubernetes,
    }
    return Resource({**found, **{name: text for name, text in ours.items() if text}, **said(environ)})


def _fit(value: AttributeValue) -> AttributeValue:
    """Make a text fit for UTF-8, which a path need not be: the encoder would leave it out and log."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Sequence):
        return tuple(_fit(each) for each in value)
    return value


def said(environ: Mapping[str, str]) -> dict[str, str]:
    """Read what the user says about the resource."""
    attributes: dict[str, str] = {}
    for entry in environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        name, sign, text = entry.partition("=")
        if sign and name.strip():
            attributes[name.strip()] = unquote(text.strip())
        elif entry.strip():
            logger.warning("OTEL_RESOURCE_ATTRIBUTES: expected NAME=VALUE, got %r; this entry is left out", entry)
    if service := environ.get("OTEL_SERVICE_NAME", "").strip():
        attributes["service.name"] = service
    return attributes


def _detectors(environ: Mapping[str, str]) -> Iterable[tuple[str, type[ResourceDetector]]]:
    asked = [name.strip() for name in environ.get(NAMED_DETECTORS, "").split(",") if name.strip()]
    import importlib.metadata  # here: a megabyte that a plain scrape target has no use for

    known = {entry.name: entry for entry in importlib.metadata.entry_points(group=_GROUP)}
    names = list(dict.fromkeys((*DETECTORS, *(known if "*" in asked else asked))))
    for name in names:
        if name in _NOT_OURS:
            continue
        if name not in known:
            logger.warning("%s: there is no resource detector %s", NAMED_DETECTORS, name)
            continue
        try:
            yield name, cast("type[ResourceDetector]", known[name].load())
        except Exception as error:  # noqa: BLE001 - an import of somebody else's
            logger.warning("resource detector %s cannot be loaded: %s", name, error)
