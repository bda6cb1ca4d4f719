"""Which owners are shown by themselves, and what energy each of them has used.

Rule 1: used by the sampler's thread alone, once a sweep: whoever reads, and how often, changes nothing.
Rule 2: the energy of a GPU since the sweep before is shared by the multiprocessor time of this one: an owner with 40 %
        gets 40 % of it, and what is nobody's (idle time, unknown processes) is UNATTRIBUTED. Shares are whole mJ and
        the rest gets what is left, so that the parts are the whole, exactly.
Rule 3: an owner that has its place keeps it while it is there, or its total would go back. Places are given by memory.
        Whoever finds none is part of OTHER.
Rule 4: an owner that has gone keeps its total for KEEP seconds, so that the last of it is scraped; memory follows the
        owners there are, and the limits.
Rule 5: the totals of a GPU add up to its own counter at any time. What it had used before it was first seen is PAST,
        and so is the total of an owner that is forgotten: were another's to grow by it, energy would seem to be used
        twice. When the GPU's counter begins again all of them do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from otelgpu.model import OTHER, PAST, UNATTRIBUTED, Device, DeviceUse, Owner, OwnerKind, Sample, Spent, Use

KEEP = 600.0  # seconds
ENERGY = 156  # DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION
ALL = 100  # percent

THE_OTHERS = Owner(OwnerKind.REST, rest=OTHER)
THE_REST = Owner(OwnerKind.REST, rest=UNATTRIBUTED)
THE_PAST = Owner(OwnerKind.REST, rest=PAST)

_Place = tuple[str, Owner]  # the device's UUID, and its owner


@dataclass(slots=True)
class _Account:
    """One owner's energy. `is_measured`: its multiprocessor time was told at least once."""

    since_unix: float
    seen_at: float
    millijoules: int = 0
    is_measured: bool = False


@dataclass(slots=True)
class _Gpu:
    """What is remembered of one GPU. `counter`: its energy at the sweep before, in mJ."""

    accounts: dict[_Place, _Account] = field(default_factory=dict)
    there: frozenset[_Place] = frozenset()
    counter: int | None = None
    others: _Account | None = None
    rest: _Account | None = None
    past: _Account | None = None

    def begin_again(self, at: float, unix: float) -> None:
        """Let all totals begin at 0 at this moment. Those who have gone have no part in what comes."""
        self.accounts = {
            place: _Account(unix, account.seen_at, is_measured=account.is_measured)
            for place, account in self.accounts.items()
            if place in self.there
        }
        self.others = None if self.others is None else _Account(unix, at, is_measured=True)
        self.rest, self.past = _Account(unix, at), _Account(unix, at)


class Ledger:
    """Keeps the accounts of all GPUs; *per_gpu* and *in_all* limit how many owners are shown by themselves.

    Without *shares_energy* nothing but the uses is looked at.
    """

    def __init__(self, *, per_gpu: int, in_all: int, shares_energy: bool) -> None:
        self._per_gpu = per_gpu
        self._in_all = in_all
        self._shares_energy = shares_energy
        self._gpus: dict[str, _Gpu] = {}

    def entered(
        self, samples: Sequence[Sample], known: Iterable[str], at: float, unix: float
    ) -> tuple[tuple[DeviceUse, ...], tuple[Spent, ...]]:
        """Enter one sweep, made *at* (monotonic); give the uses as they are shown, and the energy of each owner.

        Only of the GPUs that answered. What is remembered of a GPU that is not among the *known* UUIDs is dropped.
        """
        self._gpus = {uuid: gpu for uuid in known if (gpu := self._gpus.get(uuid))}
        answered = {sample.device.uuid for sample in samples if sample.used}
        for uuid in self._gpus.keys() - answered:
            self._gpus[uuid].there = frozenset()  # others may have the places meanwhile
        used: list[DeviceUse] = []
        spent: list[Spent] = []
        for sample in samples:
            if not sample.used:
                continue
            gpu = self._gpus.setdefault(sample.device.uuid, _Gpu())
            self._give_places(gpu, sample.used, at=at, unix=unix)
            if self._shares_energy and (energy := _energy(sample)) is not None:
                self._share(gpu, energy, sample, at=at, unix=unix)
                spent += _spent(gpu, sample.device, unix)
            used += [_folded(use, gpu.there) for use in sample.used]
        return tuple(used), tuple(spent)

    def _give_places(self, gpu: _Gpu, used: Sequence[DeviceUse], *, at: float, unix: float) -> None:
        present = {
            (each.device.uuid, use.owner): use
            for each in used
            for use in each.uses
            if use.owner.kind is not OwnerKind.REST
        }
        staying = gpu.there & present.keys()
        gpu.there = staying
        room = min(self._per_gpu - len(staying), self._in_all - sum(len(each.there) for each in self._gpus.values()))
        # One that was here of late comes back to its total; then the largest.
        new = sorted(
            present.keys() - staying,
            key=lambda place: (place not in gpu.accounts, -(present[place].memory or 0), place),
        )
        gpu.there = staying | frozenset(new[: max(room, 0)])
        for place in gpu.there:
            gpu.accounts.setdefault(place, _Account(unix, at)).seen_at = at
        gone = sorted(gpu.accounts.keys() - gpu.there, key=lambda place: (gpu.accounts[place].seen_at, place))
        for count, place in enumerate(gone):
            if at - gpu.accounts[place].seen_at > KEEP or len(gone) - count > self._per_gpu:
                forgotten = gpu.accounts.pop(place)
                if gpu.past is not None:  # else nothing was shared yet
                    gpu.past.millijoules += forgotten.millijoules

    def _share(self, gpu: _Gpu, energy: int, sample: Sample, *, at: float, unix: float) -> None:
        """Share what was used since the sweep before. A counter that has gone back began again at 0 meanwhile."""
        before, gpu.counter = gpu.counter, energy
        if gpu.rest is None or gpu.past is None:
            gpu.rest, gpu.past = _Account(unix, at), _Account(unix, at, energy)
        passed = 0 if before is None else energy - before
        if passed < 0:
            gpu.begin_again(at, unix)
            passed = energy
        own = next((each for each in sample.used if each.device.uuid == sample.device.uuid), None)
        uses = () if own is None else own.uses
        whole = max(ALL, sum(use.sm or 0 for use in uses))
        left = passed
        for use in uses:
            if use.sm is None or use.owner == THE_REST:
                continue
            account = gpu.accounts.get((sample.device.uuid, use.owner))
            if account is None or (sample.device.uuid, use.owner) not in gpu.there:
                account = gpu.others = gpu.others or _Account(unix, at)
            part = passed * use.sm // whole
            account.millijoules += part
            account.is_measured = True
            left -= part
        gpu.rest.millijoules += left


def _energy(sample: Sample) -> int | None:
    """Find the GPU's energy counter, in mJ."""
    for reading in sample.readings:
        if reading.field.id == ENERGY and reading.device.uuid == sample.device.uuid:
            number = reading.number
            is_true = isinstance(number, int) and reading.field.lowest <= number <= reading.field.highest
            return int(number) if is_true else None
    return None


def _spent(gpu: _Gpu, device: Device, unix: float) -> Iterable[Spent]:
    accounts = [(owner, account) for (_, owner), account in sorted(gpu.accounts.items(), key=lambda item: item[0])]
    for owner, account in (*accounts, (THE_OTHERS, gpu.others), (THE_PAST, gpu.past), (THE_REST, gpu.rest)):
        if account is not None and (account.is_measured or owner in (THE_PAST, THE_REST)):
            account.since_unix = min(account.since_unix, unix)  # the clock may have been set back
            yield Spent(device, owner, account.millijoules, account.since_unix)


def _folded(used: DeviceUse, there: frozenset[_Place]) -> DeviceUse:
    """Sum the owners that have no place."""
    uuid = used.device.uuid
    shown = [use for use in used.uses if use.owner.kind is OwnerKind.REST or (uuid, use.owner) in there]
    folded = [use for use in used.uses if use.owner.kind is not OwnerKind.REST and (uuid, use.owner) not in there]
    if not folded:
        return used
    memory, *shares = zip(*(use[1:] for use in folded), strict=True)
    others = Use(THE_OTHERS, total(memory), *(total(each, ALL) for each in shares))
    return replace(used, uses=(*shown, others), folded=len(folded))


def total(parts: Iterable[int | None], most: int | None = None) -> int | None:
    """Add up, to no more than *most*; None where a part is not known."""
    known = list(parts)
    if any(part is None for part in known):
        return None
    summed = sum(part for part in known if part is not None)
    return summed if most is None else min(summed, most)
