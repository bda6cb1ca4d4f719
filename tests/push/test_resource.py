"""Who reports: what the resource says, and who is asked for it."""

import importlib.metadata
import logging
from collections.abc import Mapping

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics
from opentelemetry.sdk.resources import Resource, ResourceDetector

from otelgpu import __version__
from otelgpu.export.resource import full_resource, plain_resource


class Cloud(ResourceDetector):
    """A detector of somebody else's."""

    def detect(self) -> Resource:
        return Resource({"cloud.region": "here", "service.name": "cloud"})


class Broken(ResourceDetector):
    """One that fails."""

    def detect(self) -> Resource:
        raise OSError("no such metadata service")


@pytest.fixture
def detectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the two beside the SDK's own, and one that cannot be loaded."""
    real = importlib.metadata.entry_points

    def entry_points(*, group: str) -> list[importlib.metadata.EntryPoint]:
        ours = {"cloud": f"{__name__}:Cloud", "broken": f"{__name__}:Broken", "lost": "no_such_module:Lost"}
        added = [importlib.metadata.EntryPoint(name, value, group) for name, value in ours.items()]
        return [*real(group=group), *added]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)


def _full(environ: Mapping[str, str]) -> Mapping[str, object]:
    return full_resource(environ, "node-1").attributes


def test_the_instance_is_the_node() -> None:
    """A random instance id would begin a second set of series at each restart."""
    attributes = _full({"NODE_NAME": "node-1"})

    assert attributes["service.name"] == "otelgpu"
    assert attributes["service.version"] == __version__
    assert attributes["service.instance.id"] == attributes["host.name"] == attributes["k8s.node.name"] == "node-1"


def test_outside_kubernetes_there_is_no_node_name() -> None:
    """An empty attribute says something that is not so."""
    assert "k8s.node.name" not in _full({})


def test_process_machine_and_system_are_described() -> None:
    """The SDK's detectors, without being asked for."""
    assert {"process.pid", "process.runtime.version", "os.type", "host.arch"} <= _full({}).keys()
    assert "process.command_args" not in _full({})  # flags may hold passwords


def test_in_a_pod_the_machine_id_is_left_out() -> None:
    """It would be that of the image, the same on every node."""
    assert "host.id" not in _full({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})


def test_the_service_can_be_named() -> None:
    """OTEL_SERVICE_NAME goes over OTEL_RESOURCE_ATTRIBUTES, as everywhere."""
    environ = {"OTEL_SERVICE_NAME": "gpus", "OTEL_RESOURCE_ATTRIBUTES": "service.name=other,a=b"}

    assert plain_resource(environ).attributes["service.name"] == _full(environ)["service.name"] == "gpus"


def test_attributes_can_be_added(caplog: pytest.LogCaptureFixture) -> None:
    """OTEL_RESOURCE_ATTRIBUTES, decoded, over what otelgpu knows itself; what is no attribute is told."""
    environ = {"OTEL_RESOURCE_ATTRIBUTES": "k8s.cluster.name=a%2Cb, host.name = mine ,nonsense,"}
    attributes = _full(environ)

    assert attributes["k8s.cluster.name"] == plain_resource(environ).attributes["k8s.cluster.name"] == "a,b"
    assert attributes["host.name"] == "mine"
    assert "'nonsense'" in caplog.text


@pytest.mark.usefixtures("detectors")
@pytest.mark.parametrize("names", ["cloud", "broken,cloud,lost,nobody,otel", "*"])
def test_further_detectors_are_asked(names: str, caplog: pytest.LogCaptureFixture) -> None:
    """OTEL_EXPERIMENTAL_RESOURCE_DETECTORS; one that fails costs its own attributes, and none goes over ours."""
    with caplog.at_level(logging.WARNING):
        attributes = _full({"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": names})

    assert attributes["cloud.region"] == "here"
    assert attributes["service.name"] == "otelgpu"
    assert attributes["service.instance.id"] == "node-1"
    assert ("no such metadata service" in caplog.text) is (names != "cloud")
    assert ("no resource detector nobody" in caplog.text) is ("nobody" in names)


def test_a_path_that_is_no_text_is_sent_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A path may hold any bytes; the encoder would log a traceback for every batch and leave the path out."""
    monkeypatch.setattr("sys.orig_argv", ["/opt/\udcff/python"])
    encoded = encode_metrics(MetricsData([ResourceMetrics(full_resource({}, "node-1"), [], "")]))
    (resource,) = encoded.resource_metrics

    assert "process.command" in {pair.key for pair in resource.resource.attributes}
    assert caplog.text == ""
