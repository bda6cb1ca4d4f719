"""What one process (with its children) uses of a GPU: fields that DCGM does not have.

Rule 1: their ids are negative, so that no field of DCGM is ever mistaken for one of them; they stand in no catalogue
        and have no dcgm name that is shown anywhere.
"""

from otelgpu.fields.row import Field, Kind, Level, Number, Shape

PROCESS_MEMORY = -1
PROCESS_SM = -2
PROCESS_IDS = frozenset({PROCESS_MEMORY, PROCESS_SM})


def _field(ident: int, name: str, unit: str, text: str, shape: Shape, highest: float) -> Field:
    own = Shape(name, unit, Number.INT)
    return Field(
        id=ident,
        name=name,
        new_name=name,
        aliases=(),
        kind=Kind.GAUGE,
        level=Level.GPU,
        unit=unit,
        number=Number.INT,
        help=text,
        dcgm=own,
        dcgm49=own,
        semconv=shape,
        highest=highest,
    )


PROCESS_FIELDS: tuple[Field, ...] = (
    _field(
        PROCESS_MEMORY,
        "OTELGPU_PROCESS_MEMORY_USED",
        "By",
        "GPU memory that this process and its children use",
        Shape("hw.gpu.nvidia.process.memory.usage", "By", Number.INT),
        2**63 - 1,
    ),
    _field(
        PROCESS_SM,
        "OTELGPU_PROCESS_SM_UTIL",
        "%",
        "Share of the last seconds in which this process and its children had work on the multiprocessors",
        Shape("hw.gpu.nvidia.process.sm.utilization", "1", Number.DOUBLE, 1, 100),
        100,
    ),
)
