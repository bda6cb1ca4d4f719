"""What an NVML source is made of, as one value: it can be sent to another process.

Rule 1: plain values only; who is asked to read processes and who is not is decided here, for both kinds of process.
"""

from collections.abc import Iterable
from functools import partial
from typing import Literal

from msgspec import Struct

from otelgpu.counts import Counting
from otelgpu.events import Told
from otelgpu.fields import CATALOGUE, Field
from otelgpu.sources.nvml.slot import UseMaker
from otelgpu.sources.nvml.source import NvmlSource


class Order(Struct, frozen=True, kw_only=True):
    """The arguments of NvmlSource. `telling` are those of processes.owners.Telling; None: no process is asked about."""

    fields: tuple[int, ...]  # ids
    telling: tuple[Literal["off", "pod", "container", "process"], bool, bool, bool, bool] | None
    proc_root: str
    slow_interval: float  # seconds
    counting: Counting
    sys_root: str | None
    driver_root: str


def source_for(order: Order, told: Told, fields: Iterable[Field]) -> NvmlSource:
    """Make the source. *told* hears of each XID at once; *fields* are those of the order."""
    return NvmlSource(
        fields,
        told,
        uses=_uses(order),
        slow_interval=order.slow_interval,
        counting=order.counting,
        sys_root=order.sys_root,
        driver_root=order.driver_root,
    )


def go_over(source: NvmlSource, order: Order, told: Told, fields: Iterable[Field]) -> None:
    """Have a source read what another order names, from the next sweep on; its roots stay."""
    source.want(fields, told, uses=_uses(order), slow_interval=order.slow_interval, counting=order.counting)


def fields_of(order: Order) -> list[Field]:
    """Look up the fields in another process."""
    return [CATALOGUE[id_] for id_ in order.fields]


def _uses(order: Order) -> UseMaker | None:
    """Build what asks who uses the GPUs, where somebody wants to know."""
    if order.telling is None:
        return None
    from otelgpu.processes.owners import ProcessOwners, Telling
    from otelgpu.processes.proc import ProcFolder
    from otelgpu.sources.nvml.uses import Uses

    by, *rest = order.telling
    return partial(Uses, owners=ProcessOwners(ProcFolder(order.proc_root), Telling(by, *rest)))
