"""A training loop whose metrics and GPUs go out together. Runs without torch and without a GPU as well.

    python examples/training_loop.py                 # console
    OTLP=1 python examples/training_loop.py          # to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names
    torchrun --nproc-per-node 8 examples/training_loop.py

Each rank reports its loss. The GPUs of the host are reported by one rank (`once=True`), and by another when that one
dies. `only_visible=True` would have each rank report the GPUs of its own CUDA_VISIBLE_DEVICES instead, and
`only_process=True` what each rank uses of them.
"""

import importlib
import os
import random
from typing import Any

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

import otelgpu

STEPS = int(os.environ.get("STEPS", "200"))


def exporter() -> MetricExporter:
    """Where metrics go."""
    if os.environ.get("OTLP"):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        return OTLPMetricExporter()
    return ConsoleMetricExporter()


def torch_or_none() -> Any:
    """Give PyTorch where it is installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


class Model:
    """A line through noise, fitted with torch on the GPU where there is one, else by hand."""

    def __init__(self) -> None:
        self._slope = 0.0
        self._torch = torch_or_none()
        if self._torch is None:
            return
        device = "cuda" if self._torch.cuda.is_available() else "cpu"
        self._layer = self._torch.nn.Linear(1, 1).to(device)
        self._optimizer = self._torch.optim.SGD(self._layer.parameters(), lr=0.05)
        self._device = device

    def step(self) -> float:
        """Take one step and give the loss."""
        x = random.uniform(-1, 1)
        target = 3 * x + random.gauss(0, 0.01)
        if self._torch is None:
            error = self._slope * x - target
            self._slope -= 0.1 * error * x
            return error * error
        loss = (self._layer(self._torch.tensor([x], device=self._device)) - target).pow(2).sum()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return float(loss)


def main() -> None:
    """Train, and report."""
    rank = os.environ.get("RANK", "0")
    reader = PeriodicExportingMetricReader(exporter(), export_interval_millis=10_000)
    resource = Resource.create({"service.name": "training", "service.instance.id": rank})
    provider = MeterProvider([reader], resource=resource)
    metrics.set_meter_provider(provider)
    otelgpu.observe(once=True)

    loss = metrics.get_meter("training").create_gauge("training.loss")
    model = Model()
    value = 0.0
    for _ in range(STEPS):
        value = model.step()
        loss.set(value)
    provider.shutdown()  # the last export
    print(f"rank {rank}: loss {value:.4f}")


if __name__ == "__main__":
    main()
