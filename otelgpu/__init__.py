"""otelgpu: a GPU exporter built on OpenTelemetry. Importing it does nothing; each name is loaded when first used."""

import importlib

__version__ = "0.1.0"
__all__ = ["Config", "GpuInstrumentor", "Observation", "OtelgpuError", "__version__", "observe"]

_PLACES = {
    "Config": "otelgpu.config",
    "GpuInstrumentor": "otelgpu.instrumentor",
    "Observation": "otelgpu.embed",
    "OtelgpuError": "otelgpu.errors",
    "observe": "otelgpu.embed",
}


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(place), name)
