"""Read a page of metrics (text format 0.0.4).

Rule 1: prometheus_client's own parser reads each line, one at a time: so a line that is wrong has a number, and a page
        that says a family's type twice, as dcgm-exporter does, is no mistake.
Rule 2: an empty label is none, as it is to Prometheus.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from otelgpu.config.words import shown

# What a family's samples may add to its name: those of histograms, and in OpenMetrics those of counters.
_ENDINGS = ("_bucket", "_sum", "_count", "_total")


class Sample(NamedTuple):
    """One sample line."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Page:
    """What stands on a page; `types` by the name of the family, as it says the first time."""

    name: str
    types: Mapping[str, str]
    samples: tuple[Sample, ...]

    def kind(self, name: str) -> str:
        """Give the type of what the sample *name* belongs to; `untyped` where the page does not say."""
        if name in self.types:
            return self.types[name]
        family = next((name.removesuffix(end) for end in _ENDINGS if name.endswith(end)), "")
        return self.types.get(family, "untyped")


def read_page(name: str, text: str) -> Page:
    """Read a text. Raise ValueError, with a finished sentence, for one that is no page."""
    types: dict[str, str] = {}
    samples: list[Sample] = []
    wrong: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        if words[:2] == ["#", "TYPE"] and len(words) == 4:  # noqa: PLR2004 - # TYPE name type
            # Not by the parser, which cuts the `_total` off the name of a counter.
            types.setdefault(words[2], words[3])
        elif words[:1] != ["#"] and not line.startswith("#"):
            try:
                samples += _samples(line)
            except ValueError:
                wrong.append((number, line))
    if wrong:
        number, line = wrong[0]
        more = f" (and {len(wrong) - 1} more like it)" if len(wrong) > 1 else ""
        raise ValueError(f"line {number} is no metric in Prometheus's text format: {shown(line.strip())}{more}")
    if not samples:
        raise ValueError("there is no metric on it")
    return Page(name, types, tuple(samples))


def _samples(line: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(line):
        for each in family.samples:
            labels = {name: text for name, text in each.labels.items() if text}
            yield Sample(each.name, labels, float(each.value))
