"""What names a machine, a person or a program is replaced, the same by the same everywhere in one recording.

Rule 1: replaced are UUIDs, serial numbers, GUIDs, and whatever tells owners apart: processes, users, jobs, pods, units.
        A host name, an address and a setting never come into a recording: no source is asked for one, and what its
        words quote of the settings (where the driver is looked for) is replaced.
Rule 2: kept is what a defect may depend on: models, versions, MIG profiles, PCI addresses, the driver's own words.
Rule 3: numbers are given by the order of appearance, so that two recordings cannot be joined by what was masked.
"""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace as changed

from otelgpu.fields import CATALOGUE
from otelgpu.model import Device, DeviceUse, Owner, Use
from otelgpu.sources.recorded.form import Absence, Answer, Down, Slot, Sweep

# Texts that name one machine: serial number, UUID, what CUDA calls it, fabric, GUID, chassis.
NAMING: Mapping[str, str] = {
    CATALOGUE[id_].name: kind
    for id_, kind in ((53, "serial"), (54, "uuid"), (68, "uuid"), (172, "uuid"), (571, "guid"), (572, "serial"))
}
PEER = "peer_uuid"  # the attribute of a reading about two GPUs
PROCESS = CATALOGUE[3].name  # otelgpu's own, which may be a user's program
OF_ANYBODY = ("kind", "rest", "labels", "claim")  # of an Owner: what names nobody, and what no source knows
LEAST = 6  # characters of a name that is looked for in the words of others: a short one stands there by chance

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


class Mask:
    """Replaces names; what was replaced once is replaced alike ever after. *settings*: what they name, and its mask."""

    def __init__(self, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self._settings = settings
        self._names: dict[str, str] = {}
        self._uuid_of: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def name(self, text: str, kind: str) -> str:
        """Replace a text that is a name as a whole; a UUID in it keeps its form, and what stands around it."""
        if not text:
            return text
        if _UUID.search(text):
            return self._uuids(text)
        if text not in self._names:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._names[text] = f"{kind}-{self._counts[kind]}"
        return self._names[text]

    def words(self, text: str) -> str:
        """Replace the names that are known by now in a text of the driver's."""
        for name, masked in self._settings.items():
            text = text.replace(name, masked)
        text = self._uuids(text)
        for name, masked in self._names.items():
            if len(name) >= LEAST:
                text = text.replace(name, masked)
        return text

    def sweep(self, sweep: Sweep) -> Sweep:
        """Replace all names in a sweep."""
        slots = tuple(self._slot(slot) for slot in sweep.slots)
        heard = {self.name(uuid, "uuid"): tuple(map(self._answer, told)) for uuid, told in sweep.heard.items()}
        facts = replace(sweep.facts, detail="")  # the name of a file, where a replay is recorded
        return changed(sweep, facts=facts, slots=slots, heard=heard, down=self.words(sweep.down))

    def _slot(self, slot: Slot) -> Slot:
        return Slot(
            device=None if slot.device is None else self._device(slot.device),
            down=None if slot.down is None else Down(slot.down.gap, self.words(slot.down.reason)),
            instances=tuple(map(self._device, slot.instances)),
            readings=tuple(map(self._answer, slot.readings)),
            missing=tuple(Absence(one.field, one.gap, self.words(one.reason), one.on) for one in slot.missing),
            used=tuple(map(self._used, slot.used)),
        )

    def _device(self, device: Device) -> Device:
        return replace(
            device,
            uuid=self.name(device.uuid, "uuid"),
            gpu_uuid=self.name(device.gpu_uuid, "uuid"),
            serial=self.name(device.serial, "serial"),
        )

    def _answer(self, answer: Answer) -> Answer:
        attributes = {
            key: self.name(text, "uuid") if key == PEER else self.words(text) for key, text in answer.attributes.items()
        }
        number = answer.number
        if isinstance(number, str):
            kind = "process" if answer.field == PROCESS else NAMING.get(answer.field)
            number = self.words(number) if kind is None else self.name(number, kind)
        return Answer(answer.field, number, answer.on, attributes)

    def _used(self, used: DeviceUse) -> DeviceUse:
        return replace(
            used,
            device=self._device(used.device),
            uses=tuple(Use(self._owner(use.owner), *use[1:]) for use in used.uses),
            jobs=tuple(map(self._owner, used.jobs)),
        )

    def _owner(self, owner: Owner) -> Owner:
        """Replace every text that tells an owner; what kind of owner it is stays."""
        texts: dict[str, Any] = {  # of one type each, which only the fields know
            part.name: self.name(getattr(owner, part.name), part.name)
            for part in fields(owner)
            if part.name not in OF_ANYBODY
        }
        return Owner(owner.kind, rest=owner.rest, **texts)

    def _uuids(self, text: str) -> str:
        return _UUID.sub(lambda match: self._uuid(match[0].lower()), text)

    def _uuid(self, uuid: str) -> str:
        if uuid not in self._uuid_of:
            self._uuid_of[uuid] = f"00000000-0000-4000-8000-{len(self._uuid_of) + 1:012x}"
        return self._uuid_of[uuid]
