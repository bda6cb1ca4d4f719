"""A node of GPUs that do not exist, for demonstrations, tests and work on dashboards.

Rule 1: the same spec, seed and time since the start give the same sample; reads at one instant agree with each other.
Rule 2: what a GPU model cannot answer is a Missing here too; the simulated node is as honest as a real one.
Rule 3: a read costs the same at any time; nothing runs in between and nothing is kept.

    SimulatedSource(fields, spec="4xt4+2xa100-mig")
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import ClassVar, NamedTuple

from otelgpu.counts import Counting
from otelgpu.fields import Field, Kind
from otelgpu.health import HEALTH
from otelgpu.model import Device, Gap, Missing, Reading, Sample, SourceFacts
from otelgpu.peers import P2P_STATUS, pair
from otelgpu.sources.simulated.answers import BOARD, FACTS, NO_VALUE, SLICE, UNKNOWN, Need
from otelgpu.sources.simulated.counted import COUNTED, counted
from otelgpu.sources.simulated.gpu import Gpu, Now, Slice, SliceNow, gpus, now
from otelgpu.sources.simulated.links import LINKS
from otelgpu.sources.simulated.models import DRIVER_VERSION, NVML_VERSION
from otelgpu.sources.simulated.spec import SpecError, parse_spec

__all__ = ["SimulatedSource", "SpecError", "parse_spec"]


class _Plan(NamedTuple):
    """What is put to one GPU at every read, and what is known beforehand."""

    gpu: Gpu
    instances: tuple[Device, ...]
    facts: tuple[Reading, ...]
    board: tuple[tuple[Field, Callable[[Now], float]], ...]
    slices: tuple[tuple[Field, Callable[[SliceNow], float]], ...]
    missing: tuple[Missing, ...]


P2P_OK, P2P_UNSUPPORTED = 0, 5  # NVML's numbers


class SimulatedSource:
    """A Source whose GPUs are closed formulas. Raise SpecError when *spec* is wrong."""

    readable: ClassVar[frozenset[int]] = frozenset(chain(FACTS, BOARD, LINKS, SLICE, COUNTED, (P2P_STATUS, HEALTH)))

    def __init__(
        self,
        fields: Iterable[Field],
        *,
        spec: str = "8xh100",
        seed: int = 0,
        counting: Counting = Counting(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = gpus(parse_spec(spec), seed)
        self.want(fields, counting)
        self._facts = SourceFacts(
            name="simulated",
            driver_version=DRIVER_VERSION,
            library_version=NVML_VERSION,
            simulated=True,
            detail=spec,
        )
        self._clock = clock
        self._started_at = clock()

    def want(self, fields: Iterable[Field], counting: Counting) -> None:
        """Read other fields from now on; the node goes on as it is."""
        wanted = tuple(fields)
        self._counting = counting
        self._counted = tuple(field for field in wanted if field.id in COUNTED)
        self._plans = tuple(_plan(gpu, wanted, self._node) for gpu in self._node)

    def count(self) -> int:
        """Say how many GPUs the spec asked for."""
        return len(self._plans)

    def device(self, slot: int) -> Device:
        """Say which GPU is in a slot."""
        return self._plans[slot].gpu.device

    def read(self, slot: int) -> Sample:
        """Say how the GPU in a slot and its MIG instances stand at this moment."""
        plan = self._plans[slot]
        gpu = plan.gpu
        board = now(gpu, max(self._clock() - self._started_at, 0.0))
        device = gpu.device
        readings = [Reading(field, device, take(board)) for field, take in plan.board]
        for piece, moment in zip(gpu.slices, board.slices, strict=True):
            owner = piece.device
            readings += [Reading(field, owner, take(moment)) for field, take in plan.slices]
        if self._counted:
            readings += counted(gpu, board.seconds, self._counted, self._counting)
        return Sample(device, plan.instances, (*plan.facts, *readings), plan.missing)

    def so_far(self, slot: int, reason: str) -> None:
        """Say that nothing is under way: every answer is there at once."""

    def heard(self, device: Device) -> Sequence[Reading]:  # noqa: ARG002
        """Give nothing: no simulated GPU goes down."""
        return ()

    def facts(self) -> SourceFacts:
        """Say what the simulated driver is."""
        return self._facts

    def close(self) -> None:
        """Do nothing: there is no driver to let go of."""


def _plan(gpu: Gpu, wanted: tuple[Field, ...], node: tuple[Gpu, ...]) -> _Plan:
    instances = tuple(piece.device for piece in gpu.slices) if gpu.mig else ()
    rows = {**BOARD, **LINKS}
    of_pairs = chain.from_iterable(_pairs(gpu, field, node) for field in wanted if field.id == P2P_STATUS)
    facts = (
        *chain.from_iterable(_facts(gpu, field, instances) for field in wanted if field.id in FACTS),
        *of_pairs,
    )
    board = tuple((field, rows[field.id]) for field in wanted if field.id in rows)
    slices = tuple((field, SLICE[field.id]) for field in wanted if field.id in SLICE)
    return _Plan(
        gpu,
        instances,
        tuple(fact for fact in facts if isinstance(fact, Reading)),
        tuple((field, row.take) for field, row in board if _refusal(gpu, row.needs) is None),
        tuple((field, row.take) for field, row in slices if _refusal(gpu, row.needs) is None),
        (
            *(fact for fact in facts if isinstance(fact, Missing)),
            *chain.from_iterable(_missing(gpu, field, row.needs) for field, row in board),
            *chain.from_iterable(_missing(gpu, field, row.needs, gpu.slices) for field, row in slices),
            *(
                Missing(field, gpu.device, Gap.UNSUPPORTED, UNKNOWN)
                for field in wanted
                if field.id not in SimulatedSource.readable
            ),
        ),
    )


def _facts(gpu: Gpu, field: Field, instances: tuple[Device, ...]) -> Iterator[Reading | Missing]:
    """Answer a field that never changes; a label belongs to the instances as well, since it names what they are on."""
    owners = (gpu.device, *instances) if field.kind is Kind.LABEL else (gpu.device,)
    for device in owners:
        value = FACTS[field.id](gpu, device)
        if value is None or value == "":
            yield Missing(field, device, Gap.UNSUPPORTED, NO_VALUE)
        else:
            yield Reading(field, device, value)


def _pairs(gpu: Gpu, field: Field, node: tuple[Gpu, ...]) -> Iterator[Reading | Missing]:
    """Say which of the others a GPU reaches over NVLink: those of its model, where there are several of it."""
    others = [other for other in node if other is not gpu]
    if not others:
        yield Missing(field, gpu.device, Gap.UNSUPPORTED, "there is no other GPU")
    for other in others:
        is_near = gpu.peers and other.peers and gpu.model is other.model
        status = P2P_OK if is_near else P2P_UNSUPPORTED
        yield Reading(field, gpu.device, status, pair(other.device.uuid, status))


def _refusal(gpu: Gpu, needs: tuple[Need, ...]) -> str | None:
    return next((need.reason for need in needs if not need.met(gpu)), None)


def _missing(gpu: Gpu, field: Field, needs: tuple[Need, ...], slices: tuple[Slice, ...] = ()) -> Iterator[Missing]:
    reason = _refusal(gpu, needs)
    if reason is not None:
        for device in [piece.device for piece in slices] or [gpu.device]:
            yield Missing(field, device, Gap.UNSUPPORTED, reason)
