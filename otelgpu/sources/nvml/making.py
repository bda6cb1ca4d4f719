"""What is asked of a GPU and its instances: makes the readers of each, and makes them anew when that changes.

Rule 1: all calls but `want` come from the thread of the GPU; what it reads is taken once, so that a change in between
        is met by the next sweep.
Rule 2: readers that are made anew because other fields are wanted go on with the window of those before: a value that
        is wanted before and after is there in each sweep.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import pynvml

from otelgpu.fields import Field
from otelgpu.sources.nvml.gpm import GpmWindow, is_supported
from otelgpu.sources.nvml.handles import Handle
from otelgpu.sources.nvml.mig import Instance
from otelgpu.sources.nvml.plan import Plan
from otelgpu.sources.nvml.questions import GPM_METRICS, QUESTIONS
from otelgpu.sources.nvml.slot import Readers, Slot, UseMaker

GPM_FIELDS = frozenset(row.field_id for row in GPM_METRICS)
INSTANCE_FIELDS = frozenset(take.field_id for question in QUESTIONS if question.instance for take in question.takes)
INSTANCE_GPM_FIELDS = frozenset(row.field_id for row in GPM_METRICS if row.instance)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is asked; `edition` counts the changes."""

    fields: tuple[Field, ...]
    uses: UseMaker | None
    slow_interval: float
    edition: int


class Making:
    """Makes readers. *beside* are the fields that no plan asks for."""

    def __init__(self, beside: frozenset[int], clock: Callable[[], float]) -> None:
        self._beside = beside
        self._clock = clock
        self._wanted = _Wanted((), None, 0.0, 0)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields that are wanted."""
        return self._wanted.fields

    @property
    def edition(self) -> int:
        """How often something else was wanted."""
        return self._wanted.edition

    def want(self, fields: Iterable[Field], uses: UseMaker | None, slow_interval: float) -> None:
        """Ask for this from the next read of each GPU on."""
        self._wanted = _Wanted(tuple(fields), uses, slow_interval, self._wanted.edition + 1)

    def no_gpm(self, handle: Handle) -> str | None:
        """Say why a GPU has no GPM; None when it has, or nobody wants to know."""
        return is_supported(handle) if any(field.id in GPM_FIELDS for field in self._wanted.fields) else None

    def of_gpu(self, known: Slot, *, has_instances: bool) -> Readers:
        """Give the GPU's own readers. What its instances answer is theirs: asked of both, sums would count it twice."""
        wanted = self._wanted
        if known.edition != wanted.edition:
            known.no_gpm, known.edition = self.no_gpm(known.handle), wanted.edition
        mode = known.mig.is_on, has_instances
        window: GpmWindow | None = None
        if known.own is not None and known.own[0] == mode:
            if known.own[1].edition == wanted.edition:
                return known.own[1]
            window = known.own[1].gpm
        elif known.own is not None:
            known.own[1].free()
        theirs = INSTANCE_FIELDS if has_instances else frozenset[int]()
        theirs_gpm = INSTANCE_GPM_FIELDS if has_instances and known.no_gpm is None else frozenset[int]()
        fields = [field for field in wanted.fields if field.id not in theirs | theirs_gpm]
        take = partial(pynvml.nvmlGpmSampleGet, known.handle)
        if window is None:
            window = GpmWindow(known.device, take, self._clock)
        readers = self._readers(wanted, fields, window, (known, None))
        known.own = mode, readers
        return readers

    def of_instance(self, known: Slot, instance: Instance) -> Readers:
        """Give the readers of one instance."""
        wanted = self._wanted
        before = known.instances.get(instance)
        if before is not None and before.edition == wanted.edition:
            return before
        gpm = INSTANCE_GPM_FIELDS if known.no_gpm is None else frozenset[int]()
        fields = [field for field in wanted.fields if field.id in INSTANCE_FIELDS | gpm]
        window = None if before is None else before.gpm
        if window is None:
            take = partial(pynvml.nvmlGpmMigSampleGet, known.handle, instance.device.instance_id)
            window = GpmWindow(instance.device, take, self._clock)
        readers = known.instances[instance] = self._readers(wanted, fields, window, (known, instance))
        return readers

    def _readers(
        self, wanted: _Wanted, fields: list[Field], window: GpmWindow, whose: tuple[Slot, Instance | None]
    ) -> Readers:
        known, instance = whose
        device, handle = (known.device, known.handle) if instance is None else (instance.device, instance.handle)
        profiled = [field for field in fields if field.id in GPM_FIELDS]
        asked = [field for field in fields if field.id not in GPM_FIELDS | self._beside]
        refused = [] if known.no_gpm is None else [(field, known.no_gpm) for field in profiled]
        plan = Plan(asked, device, handle, refused=refused, clock=self._clock, slow_interval=wanted.slow_interval)
        is_profiled = bool(profiled) and known.no_gpm is None
        if is_profiled:
            window.want(profiled)
        else:
            window.free()
        uses = None if wanted.uses is None else wanted.uses(device, handle)
        return Readers(plan, window if is_profiled else None, uses, wanted.edition)
