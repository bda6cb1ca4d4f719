"""What the engine is told to sample.

Rule 1: an engine samples what is watched, and of nothing else has a value. It is shared with others, and has room for
        64 groups and 64 field groups: all GPUs are one group, and what is no longer wanted is given back.
Rule 2: one field that an engine does not know or have fails the whole list it is in, so a list that is refused is
        halved until the field is found. Profiling fields are lists of their own, and only those that DCGM names for
        that kind of GPU: of these one that a GPU lacks would fail the others too.
Rule 3: what is to be sampled now is watched before what was is let go of, or its values would be gone for a while.
Rule 4: what is refused is tried again after longer and longer waits (see `again`).
"""

import ctypes
import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from ctypes import c_uint16
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from otelgpu.fields import Field
from otelgpu.model import Gap
from otelgpu.sources.dcgm.connection import Connection
from otelgpu.sources.dcgm.errors import BAD_LIST, DcgmError
from otelgpu.sources.dcgm.readable import OF_INSTANCE, PROFILING
from otelgpu.sources.dcgm.structs import GROUP_EMPTY, MOST_IN_GROUP, Handle, ProfMetricGroups, version_of
from otelgpu.sources.dcgm.values import MICRO, Entity, Refusal, refusal_of

logger = logging.getLogger(__name__)

KEPT = 3  # paces that the engine keeps a sample: only the newest is read
HEARD_KEPT = 600.0  # seconds that it keeps what is counted: as long as nobody may have looked

T = TypeVar("T")
Refused: TypeAlias = dict[int, Refusal]  # by field id


@dataclass(frozen=True, slots=True)
class Gpu:
    """What is watched of one GPU: itself, and its instances."""

    itself: Entity
    instances: tuple[Entity, ...]


@dataclass(slots=True)
class Watched:
    """What came of it: the fields refused of all GPUs, and of each; group and field group of what is `heard`."""

    refused: Refused = field(default_factory=dict)
    of_gpu: dict[Entity, Refused] = field(default_factory=dict)
    heard: dict[int, tuple[int, int]] = field(default_factory=dict)
    lacking: dict[Entity, Refusal] = field(default_factory=dict)  # which entities are in no group, and why

    def refuse(self, gpus: Iterable[Gpu], refused: Refused) -> None:
        """Note that fields are refused of some GPUs."""
        for gpu in gpus:
            self.of_gpu[gpu.itself] = self.of_gpu.get(gpu.itself, {}) | refused

    @property
    def is_whole(self) -> bool:
        """Whether nothing was refused."""
        return not (self.refused or self.lacking or any(self.of_gpu.values()))


class Watches:
    """The groups, field groups and watches of this process. Used by one thread at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._prefix = f"otelgpu-{os.urandom(4).hex()}"  # process ids are alike in containers
        self._numbers = itertools.count()
        self._groups: list[int] = []
        self._lists: list[tuple[int, int]] = []  # field groups, with the group that they are watched on

    def watch(
        self, gpus: Sequence[Gpu], fields: Iterable[Field], *, interval: float, heard: Sequence[int], heard_at: float
    ) -> Watched:
        """Watch *fields* each *interval* seconds, and have *heard* kept for long, each *heard_at* seconds.

        What was watched before is no longer. Raise DcgmError.
        """
        groups, lists = self._groups, self._lists
        self._groups, self._lists = [], []
        watched = Watched()
        if not gpus:
            self._give_back(groups, lists)
            return watched
        wanted = [field.id for field in fields]
        plain = [id_ for id_ in wanted if id_ not in PROFILING]
        try:
            everything = self._group([gpu.itself for gpu in gpus], watched)
            watched.refused |= self._watch(everything, plain, interval, interval * KEPT)
            instances = [entity for gpu in gpus for entity in gpu.instances]
            theirs = [id_ for id_ in plain if id_ in OF_INSTANCE]
            if instances and theirs:
                refused = self._watch_beside(instances, theirs, interval, watched)
                watched.refuse((gpu for gpu in gpus if gpu.instances), refused)
            for id_ in heard:
                refused = self._watch(everything, [id_], heard_at, HEARD_KEPT)
                watched.refused |= refused
                if not refused:
                    watched.heard[id_] = everything, self._lists[-1][0]
            self._profile(gpus, [id_ for id_ in wanted if id_ in PROFILING], interval, watched)
            self._sample_now()
        finally:
            self._give_back(groups, lists)
        return watched

    def release(self) -> None:
        """Give everything back."""
        groups, lists = self._groups, self._lists
        self._groups, self._lists = [], []
        self._give_back(groups, lists)

    def forget(self) -> None:
        """Note that the engine is another one."""
        self._groups, self._lists = [], []

    def _profile(self, gpus: Sequence[Gpu], wanted: Sequence[int], interval: float, watched: Watched) -> None:
        """Watch the profiling fields: a group for all GPUs that have the same."""
        alike: dict[tuple[int, ...], list[Gpu]] = {}
        for gpu in gpus if wanted else ():
            had = self._profiled(gpu)
            if isinstance(had, Refusal):
                watched.refuse([gpu], dict.fromkeys(wanted, had))
                continue
            lacks = Refusal(Gap.UNSUPPORTED, "DCGM does not name it among the profiling fields of this GPU")
            watched.refuse([gpu], {id_: lacks for id_ in wanted if id_ not in had})
            alike.setdefault(tuple(id_ for id_ in wanted if id_ in had), []).append(gpu)
        for ids, these in alike.items():
            if ids:
                entities = [entity for gpu in these for entity in (gpu.itself, *gpu.instances)]
                watched.refuse(these, self._watch_beside(entities, ids, interval, watched))

    def _profiled(self, gpu: Gpu) -> frozenset[int] | Refusal:
        """Ask which profiling fields a GPU has."""
        groups = ProfMetricGroups(version=version_of(ProfMetricGroups), gpuId=gpu.itself[1])
        try:
            self._connection.ask("dcgmProfGetSupportedMetricGroups", ctypes.byref(groups))
        except DcgmError as error:
            return refusal_of(error)
        found = groups.metricGroups[: groups.numMetricGroups]
        return frozenset(id_ for group in found for id_ in group.fieldIds[: group.numFieldIds])

    def _group(self, entities: Iterable[Entity], watched: Watched) -> int:
        handle = Handle()
        self._connection.ask("dcgmGroupCreate", GROUP_EMPTY, self._name(), ctypes.byref(handle))
        self._groups.append(handle.value)
        for kind, id_ in entities:
            try:
                self._connection.ask("dcgmGroupAddEntity", handle, kind, id_)
            except DcgmError as error:
                watched.lacking[kind, id_] = refusal_of(error)  # one that is lost just now costs itself
        return handle.value

    def _watch_beside(
        self, entities: Iterable[Entity], ids: Sequence[int], interval: float, watched: Watched
    ) -> Refused:
        """Watch a list of fields on a group of its own; an engine that has no room for one more refuses them all."""
        try:
            group = self._group(entities, watched)
        except DcgmError as error:
            return dict.fromkeys(ids, refusal_of(error))
        return self._watch(group, ids, interval, interval * KEPT)

    def _sample_now(self) -> None:
        """Have the first values taken, which else come a pace later: of an engine that cannot just now they do."""
        try:
            self._connection.ask("dcgmUpdateAllFields", 1)
        except DcgmError as error:
            logger.debug("no values before the next pace: %s", refusal_of(error).reason)

    def _watch(self, group: int, ids: Sequence[int], interval: float, keep: float) -> Refused:
        """Watch a list of fields, in as few pieces as there may be; give back those that are refused."""
        refused: Refused = {}
        for piece in pieces(ids, MOST_IN_GROUP):
            try:
                self._watch_list(group, piece, interval, keep)
            except DcgmError as error:
                if error.code in BAD_LIST and len(piece) > 1:
                    half = len(piece) // 2
                    refused |= self._watch(group, piece[:half], interval, keep)
                    refused |= self._watch(group, piece[half:], interval, keep)
                else:
                    refused |= dict.fromkeys(piece, self._refusal(error))
        return refused

    def _watch_list(self, group: int, ids: Sequence[int], interval: float, keep: float) -> None:
        handle = Handle()
        array = (c_uint16 * len(ids))(*ids)
        self._connection.ask("dcgmFieldGroupCreate", len(ids), array, self._name(), ctypes.byref(handle))
        self._lists.append((handle.value, group))
        try:
            self._connection.ask("dcgmWatchFields", group, handle, int(interval * MICRO), keep, 0)
        except DcgmError:
            self._lists.pop()
            self._undo("dcgmFieldGroupDestroy", handle.value)
            raise

    def _refusal(self, error: DcgmError) -> Refusal:
        if error.code in BAD_LIST:
            engine = f"DCGM {self._connection.version}".strip()
            return Refusal(Gap.UNSUPPORTED, f"{engine} does not know this field, or has it on no GPU here: {error}")
        return refusal_of(error)

    def _name(self) -> bytes:
        """Make a name that no other group of the engine has."""
        return f"{self._prefix}-{next(self._numbers)}".encode()

    def _give_back(self, groups: Iterable[int], lists: Iterable[tuple[int, int]]) -> None:
        for fields, group in lists:
            self._undo("dcgmUnwatchFields", group, fields)
            self._undo("dcgmFieldGroupDestroy", fields)
        for group in groups:
            self._undo("dcgmGroupDestroy", group)

    def _undo(self, name: str, *handles: int) -> None:
        try:
            self._connection.ask(name, *handles)
        except DcgmError as error:
            logger.debug("not given back: %s", error)


def pieces(things: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Cut a list into pieces of *most*."""
    return (things[first : first + most] for first in range(0, len(things), most))
