"""What Kubernetes costs a scrape: 56 MIG instances and 500 pods, against the same machine without a kubelet."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from otelgpu.config import Kubernetes, Sampling
from otelgpu.export.page import Format
from otelgpu.model import Owners
from tests.bench.figures import Figure, interleaved, median
from tests.fakekubelet import Kubelet, pod
from tests.fakenvml import models, preload
from tests.harness import LIMIT, Node, config

PODS = 500
GPUS = 8  # with seven instances each


def owner_figures() -> Iterator[Figure]:
    """Time the page made from one sweep, and what a changed table costs the first page after it."""
    folder = Path(tempfile.mkdtemp(prefix="otelgpu-"))
    scenario = models.crowd(GPUS)
    instances = [one.uuid for gpu in scenario.gpus for one in gpu.instances if one is not None]
    # Alone: the first 56 have an instance each, the others none. Shared: nine to an instance.
    shared = [pod(f"pod-{i:03}", f"{instances[i % len(instances)]}::{i}") for i in range(PODS)]
    alone = [pod(f"pod-{i:03}", *instances[i : i + 1]) for i in range(PODS)]
    fake = preload(folder / "scenario")
    fake.show(scenario)
    plain = Node(fake, config(sampling=Sampling(reuse=60, expire=3600)))
    try:
        for name, pods in (("each instance with a pod", alone), ("9 pods an instance", shared)):
            kubelet = Kubelet(folder / "kubelet.sock", pods)
            kubelet.start()
            owned = Node(fake, config(sampling=Sampling(reuse=60, expire=3600), kubernetes=_kubernetes(kubelet)))
            assert owned.pipeline.attribution.looked(LIMIT)
            lines = plain.settled_page().count("GPU_I_ID=")
            assert owned.settled_page().count('pod="') > len(instances), "no pod is shown"
            theirs, ours = interleaved(lambda: plain.page(sweep=False), lambda: owned.page(sweep=False))  # noqa: B023
            yield Figure(
                f"page with {len(instances)} instances and {PODS} pods, {name}, of the page without",
                ours / theirs,
                1.2,
                detail=f"{ours * 1000:.1f} ms against {theirs * 1000:.1f} ms; {lines} series of instances",
            )
            yield _change(owned, name)
            owned.stop()
            kubelet.stop()
    finally:
        plain.stop()


def _kubernetes(kubelet: Kubelet) -> Kubernetes:
    return Kubernetes(enabled=True, socket=str(kubelet.path), refresh=3600, expire=3600)


def _change(node: Node, name: str) -> Figure:
    """Time the first page after the kubelet has told something new: every prefix is written again."""
    snapshot = node.sweep()
    owners = node.pipeline.attribution.owners(snapshot)
    reader = node.pipeline.reader
    identities = iter(range(owners.identity + 1, owners.identity + 1000))

    def page() -> None:
        reader.page(snapshot, Format.TEXT, shown=True, owners=Owners(next(identities), owners.by_device))

    return Figure(f"first page after a change, {name}", median(page) * 1000, 100, "ms")
