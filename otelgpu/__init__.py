"""otelgpu: a GPU exporter built on the OpenTelemetry SDK. Importing it does nothing."""

from otelgpu.config import Config
from otelgpu.errors import OtelgpuError

__version__ = "0.1.0"
__all__ = ["Config", "OtelgpuError", "__version__"]
