"""Compare two pages: names, types, labels, series and values.

Rule 1: two series are the same when their name and the labels that tell devices apart are; of several that are, those
        go together that have most labels in common. So a label that one page lacks is one difference, not many.
Rule 2: what differs by its nature (ASIDE, OWN) is told and does not count.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import NamedTuple, TypeAlias

from otelgpu.compare.page import Page, Sample
from otelgpu.compare.tolerance import is_total, tolerance
from otelgpu.fields import find

Key: TypeAlias = frozenset[tuple[str, str]]

# Labels that tell series apart, on whichever page they stand.
_IDENTITY = frozenset({"gpu", "UUID", "GPU_I_ID", "nvlink", "nvswitch", "cpu", "cpucore", "xid", "link"})
# Labels that describe a device or its user, and tell series apart only where several users share one.
_OWNERS = frozenset(
    {"pod", "namespace", "container", "pod_name", "pod_namespace", "container_name", "pod_uid", "hpc_job"}
)
_DESCRIBING = _OWNERS | {
    "Hostname",
    "hostname",
    "modelName",
    "device",
    "pci_bus_id",
    "GPU_I_PROFILE",
    "err_code",
    "err_msg",
}

ASIDE: Mapping[str, str] = {
    **dict.fromkeys(("Hostname", "hostname"), "each exporter takes the name of its own host or pod"),
    **dict.fromkeys(sorted(_OWNERS), "pods and jobs come and go between two looks"),
}
# What exporters say of themselves, and Prometheus of a scrape.
OWN = ("otelgpu_*", "go_*", "process_*", "promhttp_*", "scrape_*", "up", "target_info")


@dataclass(frozen=True, slots=True)
class Scope:
    """What is compared: families by patterns (`DCGM_FI_PROF_*`), all labels but some; *factor* widens tolerances."""

    only: Sequence[str] = ()
    ignore: Sequence[str] = ()
    ignore_label: Collection[str] = ()
    factor: float = 1.0

    def holds(self, name: str) -> bool:
        """Whether a family is compared at all."""
        is_wanted = any(fnmatchcase(name, one) for one in self.only) if self.only else True
        return is_wanted and not any(fnmatchcase(name, one) for one in self.ignore)

    def is_own(self, name: str) -> bool:
        """Whether a family is told of and does not count: unless it was asked for."""
        return not self.only and any(fnmatchcase(name, one) for one in OWN)


class TypeDifference(NamedTuple):
    """A family that has two types."""

    name: str
    a: str
    b: str


class LabelDifference(NamedTuple):
    """A label that stands on one page only (the other text is None), or has two texts; on how many series of what."""

    label: str
    a: str | None
    b: str | None
    series: int
    families: tuple[str, ...]
    aside: str  # why it does not count; "" where it does


class ValueDifference(NamedTuple):
    """Two values that are further apart than they may be."""

    name: str
    labels: Mapping[str, str]  # of the series in A
    a: float
    b: float


class OneSided(NamedTuple):
    """A family that stands on one page only, how many series it has, and what the other page calls it, if it does."""

    name: str
    series: int
    other_name: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that two pages differ in. Lists are in the order of A's page, then B's."""

    a: Page
    b: Page
    families: int
    series: int  # that were found on both
    own: tuple[str, ...]
    only_in_a: tuple[OneSided, ...]
    only_in_b: tuple[OneSided, ...]
    types: tuple[TypeDifference, ...]
    labels: tuple[LabelDifference, ...]
    series_only_in_a: tuple[Sample, ...]
    series_only_in_b: tuple[Sample, ...]
    values: tuple[ValueDifference, ...]
    twice: tuple[str, ...]  # series that stand twice on a page

    @property
    def count(self) -> int:
        """How many differences there are that count."""
        counted = [one for one in self.labels if not one.aside]
        sides = (self.only_in_a, self.only_in_b, self.series_only_in_a, self.series_only_in_b)
        return sum(map(len, (*sides, self.types, counted, self.values)))


def compare(a: Page, b: Page, scope: Scope) -> Comparison:
    """Compare two pages of one machine."""
    here, there = _by_name(a, scope), _by_name(b, scope)
    names = [name for name in here if name in there]
    pairs: list[tuple[Sample, Sample]] = []
    left: list[Sample] = []
    right: list[Sample] = []
    for name in names:
        found, more, others = _paired(here[name], there[name])
        pairs += found
        left += more
        right += others
    return Comparison(
        a=a,
        b=b,
        families=len(names),
        series=len(pairs),
        own=tuple(dict.fromkeys(each.name for page in (a, b) for each in page.samples if scope.is_own(each.name))),
        only_in_a=tuple(_one_sided(here, there)),
        only_in_b=tuple(_one_sided(there, here)),
        types=tuple(TypeDifference(name, a.kind(name), b.kind(name)) for name in names if a.kind(name) != b.kind(name)),
        labels=tuple(_labels(pairs)),
        series_only_in_a=tuple(left),
        series_only_in_b=tuple(right),
        values=tuple(
            ValueDifference(one.name, one.labels, one.value, other.value)
            for one, other in pairs
            if not tolerance(one.name, b.kind(one.name), scope.factor).allows(one.value, other.value)
        ),
        twice=tuple(_twice(a, "A", scope)) + tuple(_twice(b, "B", scope)),
    )


def went_back(before: Page, after: Page, scope: Scope) -> Iterator[ValueDifference]:
    """Find the counters of one exporter that fell between two looks: to Prometheus each is a restart of the counter."""
    earlier = {(one.name, _key(one)): one.value for one in before.samples}
    for one in after.samples:
        was = earlier.get((one.name, _key(one)))
        is_counted = scope.holds(one.name) and after.kind(one.name) == "counter" and is_total(one.name)
        if was is not None and is_counted and one.value < was:
            yield ValueDifference(one.name, one.labels, was, one.value)


def _by_name(page: Page, scope: Scope) -> dict[str, list[Sample]]:
    """Give the series that are compared, each once: the last that stands there counts."""
    families: defaultdict[str, dict[Key, Sample]] = defaultdict(dict)
    for each in page.samples:
        if scope.holds(each.name) and not scope.is_own(each.name):
            labels = {name: text for name, text in each.labels.items() if name not in scope.ignore_label}
            sample = each._replace(labels=labels)
            families[each.name][_key(sample)] = sample
    return {name: list(series.values()) for name, series in families.items()}


def _twice(page: Page, side: str, scope: Scope) -> Iterator[str]:
    counted = Counter((each.name, _key(each)) for each in page.samples)
    for name, times in Counter(name for (name, _), number in counted.items() if number > 1).items():
        if scope.holds(name):
            yield f"{name}: {times} series more than once in {side}"


def _one_sided(here: Mapping[str, Sequence[Sample]], there: Mapping[str, object]) -> Iterator[OneSided]:
    by_field = {field.id: name for name in there if (field := find(name)) is not None}
    for name, samples in here.items():
        if name not in there:
            field = find(name)
            yield OneSided(name, len(samples), "" if field is None else by_field.get(field.id, ""))


def _paired(
    here: Sequence[Sample], there: Sequence[Sample]
) -> tuple[list[tuple[Sample, Sample]], list[Sample], list[Sample]]:
    """Put the series of one family together; give also what is left over on either side."""
    names_here, names_there = ({name for each in side for name in each.labels} for side in (here, there))
    telling = (names_here & names_there - _DESCRIBING) | _IDENTITY
    telling -= {name for name in telling if name.startswith("DCGM_FI_")}  # fields as labels describe
    if not ("UUID" in names_here and "UUID" in names_there):
        telling -= {"UUID"}  # one page calls it otherwise
    equal = {_key(each): each for each in there}
    pairs = [(each, equal.pop(_key(each))) for each in here if _key(each) in equal]
    taken = {_key(each) for each, _ in pairs}
    buckets: defaultdict[Key, list[Sample]] = defaultdict(list)
    for other in equal.values():
        buckets[_key(other, telling)].append(other)
    left = []
    for each in here:
        if _key(each) in taken:
            continue
        if bucket := buckets[_key(each, telling)]:
            best = max(bucket, key=partial(_in_common, each))
            bucket.remove(best)
            pairs.append((each, best))
        else:
            left.append(each)
    order = {_key(each): place for place, each in enumerate(here)}
    pairs.sort(key=lambda pair: order[_key(pair[0])])
    return pairs, left, [other for bucket in buckets.values() for other in bucket]


def _in_common(one: Sample, other: Sample) -> int:
    return len(one.labels.items() & other.labels.items())


def _key(sample: Sample, telling: Collection[str] | None = None) -> Key:
    """Give a series' labels, or those of them that tell series apart."""
    return frozenset(pair for pair in sample.labels.items() if telling is None or pair[0] in telling)


def _labels(pairs: Iterable[tuple[Sample, Sample]]) -> Iterator[LabelDifference]:
    """Find the labels in which series differ. A label that one page lacks is told once, whatever its text."""
    found: defaultdict[tuple[str, str | None, str | None], list[str]] = defaultdict(list)
    for one, other in pairs:
        for label in dict.fromkeys((*one.labels, *other.labels)):
            a, b = one.labels.get(label), other.labels.get(label)
            if a != b:
                is_both = a is not None and b is not None
                texts = (a, b) if is_both else (None if a is None else "", None if b is None else "")
                found[label, *texts].append(one.name)
    for (label, a, b), names in found.items():
        aside = ASIDE.get(label, "") if a is not None and b is not None else ""
        yield LabelDifference(label, a, b, len(names), tuple(dict.fromkeys(names)), aside)
