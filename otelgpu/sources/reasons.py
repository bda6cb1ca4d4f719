"""Why a source can never give a field, for whoever shows the fields.

Rule 1: the module of a source is imported when that source is asked about, and not before.
"""

from collections.abc import Mapping


def reasons_of(name: str) -> Mapping[int, str]:
    """Say of each field that the source of this name cannot read why; nothing for one that answers what it has."""
    if name == "nvml":
        from otelgpu.sources.nvml.source import NvmlSource
        from otelgpu.sources.nvml.unreadable import unreadable

        return unreadable(NvmlSource.readable)
    if name == "dcgm":
        from otelgpu.sources.dcgm.readable import unreadable as left_out

        return left_out()
    return {}
