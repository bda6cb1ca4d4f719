"""What the looking commands show: a snapshot or the catalogue as plain records, as JSON or as a table.

Rule 1: a record is made once and drawn twice, so that a script finds all that a person sees.
Rule 2: rich is imported only to draw a table; nothing here prints.
Rule 3: a value that could not be read is not in the records; its gap and its reason are.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from io import StringIO
from typing import TypedDict

from otelgpu.config.words import one_line
from otelgpu.fields import CATALOGUE, Field
from otelgpu.model import Device, Snapshot
from otelgpu.sources.reasons import reasons_of

_UNBOUNDED = 100_000  # columns: a table that goes into a pipe is never folded


class InstanceRecord(TypedDict):
    """A MIG instance, inside the record of its GPU."""

    instance_id: int
    profile: str
    uuid: str


class DeviceRecord(TypedDict):
    """A GPU that was seen, and whether it answers."""

    index: int
    uuid: str
    model: str
    pci_bus_id: str
    up: bool
    gap: str | None
    reason: str
    instances: list[InstanceRecord]


class ReadingRecord(TypedDict):
    """One reading: the driver's own number in its own unit, or the text of a label field."""

    field: str
    device: str
    attributes: dict[str, str]
    value: int | float | str
    unit: str


class GapRecord(TypedDict):
    """A field that has no value on some devices, for one reason."""

    field: str
    gap: str
    reason: str
    devices: list[str]


class FieldRecord(TypedDict):
    """A row of the catalogue; from `wanted` on what the selected source makes of it.

    `reason`: why the source can never read it, whatever the GPU; empty where it can.
    """

    id: int
    name: str
    new_name: str
    type: str
    unit: str
    level: str
    semconv: str | None
    wanted: bool
    answered_by: list[str]
    readings: list[ReadingRecord]
    gaps: list[GapRecord]
    reason: str


def json_text(record: object) -> str:
    """Write a record as JSON that a person can read too."""
    return json.dumps(record, indent=2) + "\n"


def snapshot_record(snapshot: Snapshot) -> dict[str, object]:
    """Give back all that one sweep gave."""
    return {
        "time": snapshot.unix,
        "source": {**asdict(snapshot.facts), "up": snapshot.source_up, "reason": snapshot.source_reason},
        "devices": device_records(snapshot),
        "readings": reading_records(snapshot),
        "missing": gap_records(snapshot),
    }


def device_records(snapshot: Snapshot) -> list[DeviceRecord]:
    """One record for each GPU ever seen, with its MIG instances inside."""
    instances: dict[str, list[InstanceRecord]] = {}
    for device in _devices(snapshot).values():
        if device.instance_id is not None:
            one = InstanceRecord(instance_id=device.instance_id, profile=device.profile, uuid=device.uuid)
            instances.setdefault(device.gpu_uuid, []).append(one)
    return [
        DeviceRecord(
            index=state.device.index,
            uuid=state.device.uuid,
            model=state.device.model,
            pci_bus_id=state.device.pci_bus_id,
            up=state.up,
            gap=state.gap,
            reason=state.reason,
            instances=instances.get(state.device.uuid, []),
        )
        for state in snapshot.states
    ]


def reading_records(snapshot: Snapshot) -> list[ReadingRecord]:
    """One record for each reading, by field id and then by device; the label fields come last."""
    readings = [
        ReadingRecord(
            field=CATALOGUE[number].name,
            device=snapshot.series[key].device.uuid,
            attributes=dict(snapshot.series[key].attributes),
            value=value,
            unit=CATALOGUE[number].unit,
        )
        for number, values in sorted(snapshot.numbers.items())
        for key, value in values.items()
    ]
    labels = [
        ReadingRecord(field=field.name, device=uuid, attributes={}, value=text, unit="")
        for uuid, texts in snapshot.labels.items()
        for field, text in texts
    ]
    return readings + labels


def gap_records(snapshot: Snapshot) -> list[GapRecord]:
    """One record for each field and reason, with the devices it holds for."""
    found: dict[tuple[str, str, str], GapRecord] = {}
    for missing in snapshot.missing:
        key = (missing.field.name, missing.gap, missing.reason)
        empty = GapRecord(field=key[0], gap=str(missing.gap), reason=missing.reason, devices=[])
        found.setdefault(key, empty)["devices"].append(missing.device.uuid)
    return list(found.values())


def field_records(wanted: Iterable[Field], snapshot: Snapshot | None) -> list[FieldRecord]:
    """One record for each field of the catalogue; `snapshot` None: it is not known who answers."""
    wanted_ids = {field.id for field in wanted}
    why = reasons_of(snapshot.facts.name) if snapshot else {}
    readings: dict[str, list[ReadingRecord]] = {}
    for reading in reading_records(snapshot) if snapshot else ():
        readings.setdefault(reading["field"], []).append(reading)
    gaps: dict[str, list[GapRecord]] = {}
    for gap in gap_records(snapshot) if snapshot else ():
        gaps.setdefault(gap["field"], []).append(gap)
    return [
        FieldRecord(
            id=field.id,
            name=field.name,
            new_name=field.new_name,
            type=str(field.kind),
            unit=field.unit,
            level=str(field.level),
            semconv=field.semconv.name if field.semconv else None,
            wanted=field.id in wanted_ids,
            answered_by=list(dict.fromkeys(reading["device"] for reading in readings.get(field.name, ()))),
            readings=readings.get(field.name, []),
            gaps=gaps.get(field.name, []),
            reason=why.get(field.id, ""),
        )
        for field in CATALOGUE.values()
    ]


def devices_table(snapshot: Snapshot, *, width: int | None) -> str:
    """Draw the GPUs, each MIG instance on a line of its own below its GPU."""
    rows: list[Sequence[object]] = []
    for gpu in device_records(snapshot):
        state = "up" if gpu["up"] and not gpu["gap"] else _because(gpu["gap"] or "down", gpu["reason"])
        rows.append((gpu["index"], gpu["uuid"], gpu["model"], gpu["pci_bus_id"], state))
        rows += [
            ("", f"  {one['uuid']}", f"  MIG {one['profile']}", f"  instance {one['instance_id']}", "")
            for one in gpu["instances"]
        ]
    return _drawn(("GPU", "UUID", "Model", "PCI bus id", "State"), rows, width=width)


def readings_table(snapshot: Snapshot, *, width: int | None) -> str:
    """Draw the readings, and below them what has no value and why."""
    return _drawn(("Field", "GPU", "Attributes", "Value", "Unit"), reading_rows(snapshot), width=width)


def reading_rows(snapshot: Snapshot) -> Iterator[tuple[object, ...]]:
    """List the rows of `readings_table`."""
    named = _namer(snapshot)
    for reading in reading_records(snapshot):
        attributes = " ".join(f"{name}={value}" for name, value in reading["attributes"].items())
        unit = "" if reading["unit"] == "1" else reading["unit"]
        yield reading["field"], named(reading["device"]), attributes, reading["value"], unit
    for gap in gap_records(snapshot):
        yield from ((gap["field"], named(gpu), "", "-", _because(gap["gap"], gap["reason"])) for gpu in gap["devices"])


def fields_table(wanted: Iterable[Field], snapshot: Snapshot | None, *, width: int | None) -> str:
    """Draw the catalogue; the last column is empty for a field that is not wanted."""
    these = named_group(snapshot) if snapshot else " ".join
    rows = [
        (
            field["id"],
            field["name"],
            field["new_name"] if field["new_name"] != field["name"] else "",
            field["type"],
            "" if field["unit"] == "1" else field["unit"],
            field["level"],
            field["semconv"] or "",
            "yes" if field["wanted"] else "",
            "; ".join(_says(field, these)) if field["wanted"] and snapshot else "",
        )
        for field in field_records(wanted, snapshot)
    ]
    columns = ("Id", "Name", "New name", "Type", "Unit", "Level", "semconv", "Wanted", "Answer")
    return _drawn(columns, rows, width=width)


def _says(field: FieldRecord, these: Callable[[list[str]], str]) -> Iterator[str]:
    values: dict[str, list[int | float | str]] = {}
    for reading in field["readings"]:
        values.setdefault(reading["device"], []).append(reading["value"])
    alike: dict[str, list[str]] = {}
    for uuid, told in values.items():
        alike.setdefault(_summed_up(told), []).append(uuid)
    for text, uuids in alike.items():
        yield f"{text} ({these(uuids)})"
    for gap in field["gaps"]:
        yield f"{_because(gap['gap'], gap['reason'])} ({these(gap['devices'])})"
    if not values and not field["gaps"]:
        yield f"nobody: {field['reason'] or 'this source does not read it'}"


def _summed_up(values: list[int | float | str]) -> str:
    """Say in a few words what a device answered: a field may have a series for each link."""
    numbers = {value for value in values if not isinstance(value, str)}
    return f"{len(values)} values, {min(numbers)} to {max(numbers)}" if len(numbers) > 1 else str(values[0])


def _because(gap: str, reason: str) -> str:
    return f"{gap}: {reason}" if reason else gap


def _namer(snapshot: Snapshot) -> Callable[[str], str]:
    """Make the function that names a device by its UUID in a table: "0", or "0/1" for a MIG instance."""
    names = {
        uuid: str(device.index) if device.instance_id is None else f"{device.index}/{device.instance_id}"
        for uuid, device in _devices(snapshot).items()
    }
    return lambda uuid: names.get(uuid, uuid)


def named_group(snapshot: Snapshot) -> Callable[[list[str]], str]:
    """Make the function that names several devices by their UUIDs: "GPU 0 1 2/1", or "all"."""
    named = _namer(snapshot)
    everyone = set(_devices(snapshot))
    return lambda uuids: "all" if set(uuids) == everyone else f"GPU {' '.join(named(uuid) for uuid in uuids)}"


def _devices(snapshot: Snapshot) -> dict[str, Device]:
    """Every GPU and MIG instance that the snapshot speaks of, by UUID."""
    found = {state.device.uuid: state.device for state in snapshot.states}
    for series in snapshot.series.values():
        found.setdefault(series.device.uuid, series.device)
    for missing in snapshot.missing:
        found.setdefault(missing.device.uuid, missing.device)
    return found


def _drawn(columns: Sequence[str], rows: Iterable[Sequence[object]], *, width: int | None) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(one_line(str(cell)), overflow="fold") for cell in row))
    drawn = StringIO()
    Console(file=drawn, width=width or _UNBOUNDED, color_system=None).print(table)
    return "".join(f"{line.rstrip()}\n" for line in drawn.getvalue().splitlines())
