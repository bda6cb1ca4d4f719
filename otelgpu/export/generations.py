"""The generations of dcgm-exporter whose names stand on one page: one, or two while dashboards move on.

Rule 1: what both generations name alike is shown once, with the labels of both; the rest once under each name.
Rule 2: the first generation is that of whatever has one name only.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from otelgpu.export.join import DcgmJoin, shape_named
from otelgpu.fields import Field, Shape


class Generations:
    """The joins of a page, one for each generation."""

    def __init__(self, joins: Sequence[DcgmJoin]) -> None:
        self.first, *others = joins
        self._joins = joins
        self._all = replace(self.first, also=tuple(join.compat for join in others))

    def named(self, item: Field, known: Sequence[str]) -> Iterator[tuple[str, Shape, DcgmJoin]]:
        """Give each name of a field, beyond those that are *known*, with what is shown and labelled under it.

        A field with known names gets others only where several generations are wanted.
        """
        if known and len(self._joins) == 1:
            return
        for name in dict.fromkeys(join.shape(item).name for join in self._joins):
            if name not in known:
                yield name, shape_named(item, name), self.of(item, name)

    def of(self, item: Field, name: str) -> DcgmJoin:
        """Give what labels a field under a name: the generation that has it, or all where several or none have."""
        theirs = [join for join in self._joins if join.shape(item).name == name]
        return theirs[0] if len(theirs) == 1 else self._all
