"""All fields of DCGM 4.6, what dcgm-exporter works out itself, and what neither has, one row each.

Rule 1: a row is written once, in the table of its subject; this module only puts the tables together.
Rule 2: help texts are our own words; names and ids are DCGM's and never change.
Rule 3: `base=` is the base-unit name of DCGM 4.7 (ids 1600 to 1649 there), which dcgm-exporter 4.9 shows. The spellings
        were read in go-dcgm's tests and in public notes on NVIDIA's 4.7 field reference (September 2026). Inferred from
        240, 241 and DCGM's naming standard: those of 242 to 247. A field without one keeps its 4.6 name and unit.

Id 0 (DCGM_FI_UNKNOWN, DCGM_FI_SYSTEM_FIELD_UNKNOWN) is a placeholder without metadata and no field: 643 rows, and
beside them the six of `exporter` and the ten of `own`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from otelgpu.fields.catalogue import device, exporter, host, identity, nvlink, nvswitch, own, profiling, vgpu
from otelgpu.fields.row import Field

_TABLES = (identity, device, nvlink, vgpu, nvswitch, profiling, host, exporter, own)

CATALOGUE: Mapping[int, Field] = MappingProxyType(
    {field.id: field for field in sorted((field for table in _TABLES for field in table.ROWS), key=lambda f: f.id)}
)
GROUPS: Mapping[str, tuple[Field, ...]] = MappingProxyType(
    {table.__name__.rpartition(".")[2]: tuple(table.ROWS) for table in _TABLES}
)
