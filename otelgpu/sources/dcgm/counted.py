"""What happened to the GPUs since the sweep before: XIDs and clock events, from the samples that the engine keeps.

Rule 1: nothing is asked for what nobody wants.
Rule 2: what the engine knew before the first look is not counted: it happened before the counts began. From then on
        nothing is counted twice, over another connection to the same engine neither.
Rule 3: counts are given with what they come from: while that cannot be read there is none, or a standing number would
        look like a quiet time. The engine tells XIDs when they happen, so a moment in which it can tell none says
        nothing of them; that it never can does.
Rule 4: `listen` is called in the thread that counts the GPUs, `answers` in those of the slots and the sampler's.
"""

import ctypes
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from ctypes import c_longlong

from otelgpu.counts import CLOCK_COUNTS, XID_COUNTS, ClockCounts, Counting, XidCounts
from otelgpu.events import Told, Xid, unheard
from otelgpu.fields import CATALOGUE, Field
from otelgpu.model import Device, Gap, Missing, Reading
from otelgpu.sources.dcgm.connection import Connection
from otelgpu.sources.dcgm.errors import DcgmError
from otelgpu.sources.dcgm.readable import CLOCK_REASONS, XID_ERRORS
from otelgpu.sources.dcgm.structs import FE_GPU, Enumeration
from otelgpu.sources.dcgm.values import MICRO, Refusal, judged, refusal_of
from otelgpu.sources.dcgm.watches import HEARD_KEPT, Watched

NOT_HEARD = Refusal(Gap.FAILED, "the engine has not been asked yet")
PASSING = frozenset((Gap.FAILED, Gap.TIMEOUT, Gap.LOST))
HEARD_OF: Mapping[int, frozenset[int]] = {XID_ERRORS: XID_COUNTS | {XID_ERRORS}, CLOCK_REASONS: CLOCK_COUNTS}


class Counted:
    """Counts for the fields that are wanted."""

    def __init__(self) -> None:
        self._counting = Counting()
        self._told: Told = unheard
        self._fields: tuple[Field, ...] = ()
        self._xids = XidCounts((), self._counting, time.monotonic)
        self._clocks: dict[str, ClockCounts] = {}  # by UUID
        self._codes: dict[str, int] = {}  # the last XID, by UUID
        self._since: dict[int, tuple[int, int]] = {}  # connection, and DCGM's time of what comes next over it, by field
        self._last: dict[tuple[int, str], int] = {}  # DCGM's time of the last one, by field and UUID
        self._refusals: dict[int, Refusal] = {}
        self._heard_at: dict[int, float] = {}  # when what is counted was last asked for with success, by field
        self._expire = math.inf
        self._watched = Watched()
        self._of_gpu: dict[tuple[int, str], Refusal] = {}  # of one GPU, by field and UUID

    @property
    def sources(self) -> Sequence[int]:
        """The fields whose samples are counted."""
        wanted = {field.id for field in self._fields}
        return [id_ for id_, counts in HEARD_OF.items() if counts & wanted]

    def want(self, fields: Iterable[Field], counting: Counting, told: Told, *, expire: float) -> None:
        """Count for other fields from now on. What has been counted stays; it is given for *expire* seconds."""
        self._expire = expire
        self._fields = tuple(field for field in fields if any(field.id in ids for ids in HEARD_OF.values()))
        self._counting, self._told = counting, told
        self._xids.want(self._fields, counting)
        for clocks in list(self._clocks.values()):  # a slot that was stuck may come back at any moment
            clocks.want(self._fields, counting)

    def listen(self, connection: Connection, watched: Watched, uuids: Mapping[int, str]) -> None:
        """Take what has come; *uuids* are those of the GPUs by DCGM's id. Raise DcgmError when the engine is gone."""
        if watched is not self._watched:
            self._watched = watched
            self._of_gpu = {
                (id_, uuids[entity]): refusal
                for (kind, entity), refusal in watched.lacking.items()
                for id_ in self.sources
                if kind == FE_GPU and entity in uuids
            }
        for id_ in self.sources:
            if id_ not in watched.heard:
                self._refusals[id_] = watched.refused.get(id_, NOT_HEARD)
                continue
            try:
                self._take(connection, id_, watched.heard[id_], uuids)
            except DcgmError as error:
                self._refusals[id_] = refusal_of(error)
            else:
                self._refusals.pop(id_, None)
                self._heard_at[id_] = time.monotonic()

    def answers(self, device: Device) -> list[Reading | Missing]:
        """Give what was counted of a GPU, or why there is nothing."""
        found: list[Reading | Missing] = []
        for id_ in self.sources:
            fields = [field for field in self._fields if field.id in HEARD_OF[id_]]
            refusal = self._refusals.get(id_) or self._of_gpu.get((id_, device.uuid)) or self._too_old(id_)
            if refusal is not None:
                found += (Missing(field, device, refusal.gap, refusal.reason) for field in fields)
            elif id_ == XID_ERRORS:
                found += self._of_xids(device, self._codes.get(device.uuid, 0))
            else:
                found += self._clocks_of(device.uuid).readings(device)
        return found

    def heard(self, device: Device) -> Sequence[Reading]:
        """Give the XIDs of a GPU that does not answer; nothing where it had none."""
        code = self._codes.get(device.uuid)
        return () if code is None or XID_ERRORS not in self.sources else self._of_xids(device, code)

    def _too_old(self, id_: int) -> Refusal | None:
        """Say why there are no counts while the engine holds the call that asks for what they are made of."""
        age = time.monotonic() - self._heard_at.get(id_, -math.inf)
        if age <= self._expire:
            return None
        return NOT_HEARD if math.isinf(age) else Refusal(Gap.TIMEOUT, f"the engine has not answered for {age:.0f} s")

    def _of_xids(self, device: Device, last: int) -> list[Reading]:
        first = [Reading(field, device, last) for field in self._fields if field.id == XID_ERRORS]
        return [*first, *self._xids.readings(device)]

    def _clocks_of(self, uuid: str) -> ClockCounts:
        clocks = self._clocks.get(uuid)
        if clocks is None:
            clocks = self._clocks[uuid] = ClockCounts(self._fields, self._counting, time.monotonic)
        return clocks

    def _take(self, connection: Connection, id_: int, place: tuple[int, int], uuids: Mapping[int, str]) -> None:
        field = CATALOGUE[id_]
        heard: list[tuple[str, int, int]] = []  # UUID, number, DCGM's time

        def each(kind: int, entity: int, values: "ctypes._Pointer[ctypes.Structure]", many: int, _: object) -> int:
            uuid = uuids.get(entity, "") if kind == FE_GPU else ""
            for value in values[:many]:
                number = judged(value, field)
                if not uuid:
                    continue
                if isinstance(number, int) and field.lowest <= number <= field.highest:
                    self._of_gpu.pop((id_, uuid), None)
                    heard.append((uuid, number, value.ts))
                elif not isinstance(number, Refusal):
                    self._of_gpu[id_, uuid] = Refusal(Gap.INVALID, f"DCGM answered {number}, which it cannot be")
                elif id_ != XID_ERRORS or number.gap not in PASSING:
                    self._of_gpu[id_, uuid] = number
            return 0

        after = c_longlong(0)
        group, fields = place
        over, since = self._since.get(id_, (0, 0))
        asked = since if over == connection.number else 0
        connection.ask("dcgmGetValuesSince_v2", group, fields, asked, ctypes.byref(after), Enumeration(each), None)
        newest = max(after.value, asked)
        if newest < since and not any(self._last.get((id_, uuid)) == taken for uuid, _, taken in heard):
            since = 0  # another engine, whose clock is behind that of the one before: nothing of it has been counted
        for uuid, number, taken in heard:
            self._note(id_, uuid, number, taken, is_counted=over > 0 and taken >= since)
            self._last[id_, uuid] = taken
        self._since[id_] = connection.number, newest

    def _note(self, id_: int, uuid: str, number: int, taken: int, *, is_counted: bool) -> None:
        if id_ == CLOCK_REASONS:
            if is_counted:
                self._clocks_of(uuid).add(number)
        elif number:
            self._codes[uuid] = number
            if is_counted:
                self._xids.add(uuid, number)
                now, then = time.time(), taken / MICRO
                # What is kept is no older than that: another time is that of a clock that is wrong, or none.
                self._told(Xid(uuid, number, then if abs(now - then) <= HEARD_KEPT else now))
