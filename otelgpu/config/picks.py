"""Which GPUs and MIG instances are read: the entries of `devices`.

Rule 1: dcgm-exporter's selectors mean the same: `f`, `g`, `i`, `g:0,2-5`, `i:0-6`, `g+i`. Beyond it stand indexes
        alone, UUIDs and PCI bus ids, with or without `g:` in front.
Rule 2: an instance goes by DCGM's number: eight times the index of its GPU, and its place among that GPU's instances
        (dcgm_structs.h: DCGM_MAX_INSTANCES_PER_GPU); views.py counts the places.
"""

import re
from dataclasses import dataclass, replace
from typing import Self

INSTANCES = 8  # numbers that DCGM keeps for the instances of one GPU
_LARGEST_INDEX = 9999
_PICK = (
    "expected all, an index (0), a range (2-5), a GPU's UUID (GPU-...) or a PCI bus id (00000000:8D:00.0); behind g: "
    "GPUs without their MIG instances, behind i: instances by number"
)
_INSTANCE = (
    f"expected i:NUMBER or i:FIRST-LAST; the number is {INSTANCES} x the GPU's index + the instance's place on it"
)
_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_UUID = re.compile(r"GPU-[0-9A-Za-z/-]+", re.IGNORECASE | re.ASCII)
_PCI = re.compile(r"(?:([0-9a-f]{4}|[0-9a-f]{8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE | re.ASCII)
_HEADS = ("f", "g", "i")


@dataclass(frozen=True, slots=True)
class Pick:
    """One entry of `devices`: every GPU, a range of indexes, a UUID or a PCI bus id (the one that is set).

    `gpus`: series of the GPUs themselves are shown; `parts`: those of their instances, of `numbers` where that is set.
    """

    text: str
    indexes: range | None = None
    uuid: str = ""  # in small letters
    pci_bus_id: str = ""  # in full and in small letters: 00000000:8d:00.0
    gpus: bool = True
    parts: bool = True
    numbers: range | None = None

    def __str__(self) -> str:
        return self.text

    def matches(self, *, index: int, uuid: str, pci_bus_id: str) -> bool:
        """Whether this entry picks the GPU with this index, UUID and PCI bus id, or instances of it."""
        if self.indexes is not None:
            return index in self.indexes
        if self.uuid:
            return self.uuid == uuid.lower()
        return not self.pci_bus_id or self.pci_bus_id == full_pci_bus_id(pci_bus_id)

    def has_part(self, *, index: int, place: int) -> bool:
        """Whether this entry, which matches a GPU, picks the instance in a place of it."""
        return self.parts and (self.numbers is None or INSTANCES * index + place in self.numbers)

    @classmethod
    def all(cls) -> Self:
        """Pick every device."""
        return cls("all")


_WORDS = {"all": Pick.all(), "f": Pick("f"), "g": Pick("g", parts=False), "i": Pick("i", gpus=False)}


def split_devices(text: str) -> list[str]:
    """Split a list of entries. What follows `g:` or `i:` is a list of its own, up to a `+`."""
    pieces: list[str] = []
    for part in text.split("+"):
        head, colon, rest = part.strip().partition(":")
        has_head = bool(colon) and head.lower() in _HEADS
        entries = [piece for entry in (rest if has_head else part).split(",") if (piece := entry.strip())]
        pieces += [f"{head}:{entry}" for entry in entries or [""]] if has_head else entries
    return pieces


def parse_pick(text: str) -> Pick:
    """Read one entry of `devices`."""
    if (word := _WORDS.get(text.lower())) is not None:
        return replace(word, text=text)
    head, colon, rest = text.partition(":")
    match head.lower() if colon else "":
        case "f":
            raise ValueError("f is every GPU; for some of them write g: or i:")
        case "g":
            return replace(_device(rest), text=text, parts=False)
        case "i":
            return _instances(text, rest)
        case _:
            return _device(text)


def _instances(text: str, rest: str) -> Pick:
    numbers = _range(rest)
    if numbers is None:
        raise ValueError(_INSTANCE)
    indexes = range(numbers[0] // INSTANCES, numbers[-1] // INSTANCES + 1)
    return Pick(text, indexes=indexes, gpus=False, numbers=numbers)


def _device(text: str) -> Pick:
    if indexes := _range(text):
        return Pick(text, indexes=indexes)
    if _UUID.fullmatch(text):
        return Pick(text, uuid=text.lower())
    if pci := full_pci_bus_id(text):
        return Pick(text, pci_bus_id=pci)
    raise ValueError(_PICK)


def _range(text: str) -> range | None:
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ValueError(f"a range goes up; did you mean {last}-{first}?")
    if last > _LARGEST_INDEX:
        raise ValueError(f"an index is 0 to {_LARGEST_INDEX}")
    return range(first, last + 1)


def full_pci_bus_id(text: str) -> str:
    """Spell a PCI bus id in full and in small letters (8D:00.0 is 00000000:8d:00.0); "" for anything else."""
    match = _PCI.fullmatch(text)
    return f"{(match[1] or '').rjust(8, '0')}:{match[2]}".lower() if match else ""
