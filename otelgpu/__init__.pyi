# What type checkers see of the names that __init__.py loads when they are first used.
from otelgpu.config import Config as Config
from otelgpu.embed import Observation as Observation
from otelgpu.embed import observe as observe
from otelgpu.errors import OtelgpuError as OtelgpuError
from otelgpu.instrumentor import GpuInstrumentor as GpuInstrumentor

__version__: str
