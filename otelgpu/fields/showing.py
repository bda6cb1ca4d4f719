"""What a scheme shows of a field beyond its Shape: the kind and the help line.

Rule 1: in dcgm naming (up to 4.8) both are dcgm-exporter's, right or wrong: dashboards rely on them.
Rule 2: elsewhere a rate or a state is a gauge, whatever a shipped CSV calls it, and the help names the unit shown.
"""

from otelgpu.fields.maker import SHOWN
from otelgpu.fields.row import Field, Kind, Shape

# Gauges to Prometheus, but sums that may fall (UpDownCounter) in the semantic conventions.
UP_DOWN = frozenset({"hw.gpu.memory.limit", "hw.gpu.memory.usage", "hw.gpu.nvidia.process.memory.usage", "hw.status"})


def kind_in(field: Field, shape: Shape) -> Kind:
    """Give the kind of *field* when it is shown as *shape*."""
    if shape is field.dcgm or field.kind is not Kind.COUNTER:
        return field.kind
    return Kind.COUNTER if field.is_total else Kind.GAUGE


def help_in(field: Field, shape: Shape) -> str:
    """Give the help line of *field* with the unit of *shape*; `field.help` names that of dcgm naming."""
    suffix = f" ({SHOWN.get(field.dcgm.unit)})"
    if shape.unit == field.dcgm.unit or not field.help.endswith(suffix):
        return field.help
    return f"{field.help.removesuffix(suffix)} ({SHOWN[shape.unit]})"
