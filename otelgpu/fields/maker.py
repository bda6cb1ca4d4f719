"""From a line of a table to a Field.

Rule 1: a table line holds what cannot be derived: id, names, measure, words. Everything else follows from the measure.
Rule 2: names are written without `DCGM_FI_` (or another *prefix*). A semconv place is `name{key=value,...}`; a name
        that does not begin with `hw.` and a key without a dot stand under `hw.gpu.nvidia.`.
Rule 3: a numeric line without a semconv place gets `hw.gpu.nvidia.` and its newest DCGM name in lower case.
"""

from otelgpu.fields.measures import Measure, Scale
from otelgpu.fields.row import Field, Kind, Level, Shape

PREFIX = "DCGM_FI_"
NVIDIA = "hw.gpu.nvidia."

# What the help line calls a unit; the words dcgm-exporter's users know. "1" is said only of ratios.
SHOWN = {
    "1": "ratio 0-1",
    "%": "%",
    "By": "bytes",
    "By/s": "bytes/s",
    "Cel": "C",
    "Hz": "Hz",
    "J": "J",
    "MBy/s": "MB/s",
    "MHz": "MHz",
    "MiBy": "MiB",
    "W": "W",
    "kBy/s": "KB/s",
    "kHz": "kHz",
    "mJ": "mJ",
    "mV": "mV",
    "mW/s": "mW/s",
    "ms": "ms",
    "ns": "ns",
    "s": "s",
    "us": "us",
}


def row(  # noqa: PLR0913  (a field has this many facts; all but the first four are rare)
    ident: int,
    name: str,
    measure: Measure,
    text: str,
    *,
    new: str = "",
    base: str = "",
    sem: str = "",
    kind: Kind | None = None,
    level: Level = Level.GPU,
    aliases: tuple[str, ...] = (),
    default: bool = False,
    prefix: str = PREFIX,
) -> Field:
    """Make the Field of one table line. `base` is its base-unit name in DCGM 4.7, where it has one."""
    old = prefix + name
    renamed = prefix + new if new else old
    dcgm = _shape(old, measure.dcgm)
    if base:
        dcgm49 = _shape(prefix + base, measure.base)
    elif new:
        dcgm49 = _shape(renamed, measure.dcgm)
    else:
        dcgm49 = dcgm
    unit = measure.dcgm.unit
    shown = SHOWN.get(unit, "") if unit != "1" or measure.ratio else ""
    return Field(
        id=ident,
        name=old,
        new_name=renamed,
        aliases=aliases,
        kind=kind or measure.kind,
        level=level,
        unit=measure.unit,
        number=measure.number,
        help=f"{text} ({shown})" if shown else text,
        dcgm=dcgm,
        dcgm49=dcgm49,
        semconv=None if measure.semconv is None else _place(sem or rule_name(new or name), measure.semconv),
        lowest=measure.lowest,
        highest=measure.highest,
        default=default,
    )


def _shape(name: str, scale: Scale) -> Shape:
    return Shape(name, *scale)


def rule_name(name: str) -> str:
    """Make the last part of an OpenTelemetry name from a DCGM name without its prefix."""
    return name.split("_", 1)[1].lower()


def _place(text: str, scale: Scale) -> Shape:
    name, _, rest = text.partition("{")
    if not name.startswith("hw."):
        name = NVIDIA + name
    attributes = tuple(_attribute(pair) for pair in rest[:-1].split(",")) if rest else ()
    return Shape(name, *scale, attributes)


def _attribute(pair: str) -> tuple[str, str]:
    key, _, value = pair.partition("=")
    return (key if "." in key else NVIDIA + key, value)
