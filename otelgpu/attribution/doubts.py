"""Pods of which it is not sure that they are still those that the API server spoke of.

Rule 1: the kubelet tells a pod by its name alone. One that began or ceased to hold something while no watch was open
        may have been made anew under that name: no UID or label of it is shown until the server has said them again.
Rule 2: a connection is lost before that is noticed: once a watch is over, who has changed since its last word is in
        doubt as well.
"""

import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from otelgpu.attribution.mirror import Mirror
from otelgpu.attribution.podmeta import PodKey, PodMeta, PodMetaTable


class Doubts:
    """What is sure of the table of *metas*."""

    def __init__(self, metas: Mirror[PodKey, PodMeta]) -> None:
        self._metas = metas
        self._since: Mapping[PodKey, float] = {}
        self._sure: tuple[PodMetaTable, frozenset[PodKey], PodMetaTable] | None = None

    def renewed(self, pods: Iterable[PodKey]) -> None:
        """Be told by the kubelet's thread that these pods hold something else than before."""
        now = time.monotonic()
        self._since = {**self._unsettled(), **dict.fromkeys(pods, now)}

    def table(self) -> PodMetaTable:
        """Return what is known for sure; the same object for as long as nothing changes."""
        table = self._metas.table()
        if not self._since or self._metas.is_connected:
            return table
        doubted = frozenset(self._unsettled()) & table.keys()
        if not doubted:
            return table
        sure = self._sure
        if sure is None or sure[0] is not table or sure[1] != doubted:
            kept = MappingProxyType({key: meta for key, meta in table.items() if key not in doubted})
            sure = self._sure = (table, doubted, kept)
        return sure[2]

    def _unsettled(self) -> Mapping[PodKey, float]:
        """List those of which the server has said nothing since."""
        told_at = self._metas.told_at
        return {key: at for key, at in self._since.items() if told_at is None or at > told_at}
