"""The NVIDIA driver library (NVML) as a source; the only package that imports pynvml."""

from otelgpu.sources.nvml.source import NvmlSource

__all__ = ["NvmlSource"]
