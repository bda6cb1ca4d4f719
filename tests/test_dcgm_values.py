"""Every field that DCGM gives, from the engine's answer to the page: the same as through NVML.

Rule 1: what DCGM answers is worked out here from what the driver would: by what DCGM's own table of fields and its
        documentation say of units, never by what otelgpu does with them.
"""

import ctypes
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from otelgpu.fields import CATALOGUE, Field
from otelgpu.model import Snapshot
from otelgpu.sources.dcgm import structs
from otelgpu.sources.dcgm.readable import COUNTED, READABLE, XID_ERRORS, unreadable
from otelgpu.sources.dcgm.values import Refusal, judged
from otelgpu.sources.nvml.source import NvmlSource
from tests import fakedcgm
from tests.conftest import RECORDINGS
from tests.fakedcgm import models as engines
from tests.fakenvml import models as drivers
from tests.fakenvml.everything import everything
from tests.harness import Line, Node, lines_of, series, values

Start = Callable[..., Node]
MIB = 1 << 20
REFERENCE = RECORDINGS.parent / "reference"
BOTH = sorted((READABLE & NvmlSource.readable) - COUNTED - {XID_ERRORS, 9003})
NAMES = tuple(CATALOGUE[id_].name for id_ in BOTH)
LABELS = {CATALOGUE[id_].name for id_ in BOTH if not CATALOGUE[id_].is_numeric}

# DCGM's units where they are not the driver's, by field.
WATTS = (155, 157, *range(160, 165))
MEBIBYTES = (90, 92, 93, *range(250, 254))
RATIOS = (*range(1001, 1009), *range(1013, 1035))
BYTES = (*range(1009, 1013), *range(1040, 1080))
LINK_MEGABYTES = (*range(440, 450), *range(475, 481), *range(494, 497), *range(825, 844), *range(879, 898))

# 4.9 shows these in a smaller unit than the one that DCGM has them in.
GRAINS = {CATALOGUE[id_].dcgm49.name: MIB for id_ in MEBIBYTES}
GRAINS |= {CATALOGUE[id_].dcgm49.name: 1_024_000 for id_ in LINK_MEGABYTES if CATALOGUE[id_].dcgm49.unit == "By/s"}


CONVERTED: tuple[tuple[tuple[int, ...], Callable[[float], float]], ...] = (
    (WATTS, lambda milliwatts: milliwatts / 1000),
    (MEBIBYTES, lambda size: size // MIB),
    (RATIOS, lambda percent: percent / 100),
    (BYTES, lambda mebibytes: int(mebibytes * MIB)),
    (LINK_MEGABYTES, lambda rate: int(rate / 1024 / 1000)),
)


def engines_number(field: Field, number: float | str) -> float | str:
    """What DCGM has where the driver says *number*."""
    if isinstance(number, str):
        return number
    for ids, convert in CONVERTED:
        if field.id in ids:
            return convert(number)
    return int(number) if field.dcgm.number == "int" else float(number)


def as_engine(snapshot: Snapshot) -> fakedcgm.Gpu:
    """The GPU of a snapshot as DCGM has it."""
    (state,) = snapshot.states
    device = state.device
    read: dict[int, int | float | str] = {
        id_: number for id_, numbers in snapshot.numbers.items() for number in numbers.values() if id_ in READABLE
    }
    read |= {field.id: text for rows in snapshot.labels.values() for field, text in rows}
    read |= {52: device.index, 55: device.minor or 0}
    return fakedcgm.Gpu(
        uuid=device.uuid,
        name=device.model,
        pci=device.pci_bus_id,
        serial=device.serial,
        vbios=device.vbios_version,
        driver=device.driver_version,
        fields={id_: engines_number(CATALOGUE[id_], number) for id_, number in read.items()},
        profiling=((0, 0, *(id_ for id_ in read if id_ in range(1001, 1065))), (1, 0, *range(1065, 1100))),
    )


def shared(gpu: fakedcgm.Gpu) -> fakedcgm.Scenario:
    """A machine with this GPU, which has the values of the system as well."""
    system = {id_: gpu.fields[id_] for id_ in (1, 2, 4, 5) if id_ in gpu.fields}
    return fakedcgm.Scenario(gpus=(gpu,), fields=system)


def test_a_field_shows_through_dcgm_what_it_shows_through_nvml(node: Start, dcgm_node: Start) -> None:
    """A dashboard may not tell which of the two was asked: units, labels, rounding, and which field is which."""
    settings: dict[str, Any] = {"fields": NAMES, "compat": "4.8.2,4.9"}
    driver = node(everything(), **settings)
    driver.settled_page()
    snapshot = driver.sweep()
    asked = driver.page(sweep=False)  # of the same sweep: a rate is another in the next
    engine = dcgm_node(shared(as_engine(snapshot)), **settings)
    told = engine.page()

    assert [_named(line) for line in lines_of(told)] == [_named(line) for line in lines_of(asked)]
    wrong = [
        (one.name, one.value, other.value)
        for one, other in zip(_fields(told), _fields(asked), strict=True)
        if not math.isclose(one.value, other.value, rel_tol=1e-12, abs_tol=_grain(one.name))
    ]
    assert not wrong
    shown = {line.name for line in _fields(told)}
    lacking = {CATALOGUE[id_].name for id_ in BOTH if CATALOGUE[id_].is_numeric} - shown
    assert not lacking, "these have no number in this test"


def _fields(page: str) -> list[Line]:
    return [line for line in lines_of(page) if line.name.startswith("DCGM_")]


def _named(line: Line) -> tuple[str, Mapping[str, str]]:
    return (line.name, line.labels) if line.name.startswith("DCGM_") else ("", {})


def _grain(name: str) -> float:
    """How far DCGM's rounding may be off, in the unit that is shown: less than one of its own steps."""
    return GRAINS.get(name, 0)


STRUCTS = {
    "dcgmConnectV2Params_v2": structs.ConnectParams,
    "dcgmStartEmbeddedV2Params_v1": structs.EmbeddedParams,
    "dcgmGroupEntityPair_t": structs.EntityPair,
    "dcgmFieldValue_v1": structs.FieldValue1,
    "dcgmFieldValue_v2": structs.FieldValue2,
    "dcgmDeviceIdentifiers_v1": structs.Identifiers,
    "dcgmDeviceAttributes_v3": structs.DeviceAttributes,
    "dcgmMigEntityInfo_t": structs.MigEntityInfo,
    "dcgmMigHierarchyInfo_v2": structs.MigHierarchyInfo,
    "dcgmMigHierarchy_v2": structs.MigHierarchy,
    "dcgmProfMetricGroupInfo_v2": structs.ProfMetricGroup,
    "dcgmProfGetMetricGroups_v3": structs.ProfMetricGroups,
    "dcgmVersionInfo_v2": structs.VersionInfo,
}


def _reference(name: str) -> Any:
    path = REFERENCE / name
    if not path.is_file():
        pytest.skip("the measured description of DCGM is not beside this checkout")
    return json.loads(path.read_text())


def test_structs_are_laid_out_as_in_dcgm() -> None:
    """An engine writes where its header says, whatever we believe."""
    known = _reference("dcgm-abi.json")
    ours = {}
    theirs = {}
    for name, struct in STRUCTS.items():
        fields = {field["name"]: (field["offset"], field["size"]) for field in known["structs"][name]["fields"]}
        theirs[name] = known["structs"][name]["size"], {key: at for key, at in fields.items() if "." not in key}
        members = {key: getattr(struct, key) for key, *_ in struct._fields_}
        ours[name] = ctypes.sizeof(struct), {key: (member.offset, member.size) for key, member in members.items()}
    versions = {entry["hex"] for key, entry in known["versions"].items() if entry["struct_size"] > 1}

    assert ours == theirs
    assert {hex(structs.version_of(struct)) for struct in structs.VERSIONS} <= versions


def test_dcgms_types_and_levels_are_the_catalogues() -> None:
    """Which entity is asked, and how the answer is read, goes by the catalogue."""
    known = _reference("dcgm-fields.json")["fields"]
    types = {"i": "int", "d": "double", "s": "text"}
    levels = {"DCGM_FE_NONE": "global", "DCGM_FE_GPU": "gpu", "DCGM_FE_GPU_I": "gpu_i", "DCGM_FE_GPU_CI": "gpu_ci"}
    asked = [CATALOGUE[id_] for id_ in sorted(READABLE) if id_ < 9000]
    theirs = {field.id: known[str(field.id)] for field in asked}

    assert len(asked) > 450
    assert [(f.id, f.dcgm.number) for f in asked] == [(f.id, types[theirs[f.id]["type"]]) for f in asked]
    assert [f.id for f in asked if levels.get(theirs[f.id]["entity_level"]) != f.level] == [526]
    units = {"W": WATTS, "mJ": (156,), "KB/": (200, 201), "MB/": LINK_MEGABYTES}
    said = {f.id: theirs[f.id]["unit"] for f in asked if theirs[f.id]["unit"] in units}
    assert not {id_: unit for id_, unit in said.items() if id_ not in units[unit]}


def test_every_field_is_read_or_has_a_reason() -> None:
    """Who asks for a field and gets nothing is told why."""
    reasons = unreadable()

    assert set(reasons) | READABLE == set(CATALOGUE)
    assert not set(reasons) & READABLE
    assert all(reasons.values())


DEVICES = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_FB_USED", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DRIVER_VERSION")


def named(scenario: fakedcgm.Scenario) -> fakedcgm.Scenario:
    """The machine with MIG, where the instances have the names and UUIDs that the driver gives them."""
    for place, theirs in enumerate(each for each in drivers.a100_mig().gpus[0].instances if each is not None):
        profile = (theirs.name or "").rpartition(" ")[2]
        scenario = scenario.with_instance(0, place, fields={50: profile, 54: theirs.uuid})
    return scenario


MACHINES = {
    "h100": (drivers.h100(2), engines.h100(2)),
    "t4": (drivers.t4(2), engines.t4(2)),
    "mig": (drivers.a100_mig(), named(engines.a100_mig())),
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_has_the_same_devices_through_both(name: str, node: Start, dcgm_node: Start) -> None:
    """Dashboards and owners find GPUs and instances by these: indexes, UUIDs, bus ids, models, MIG profiles and ids."""
    driver, engine = MACHINES[name]
    asked, told = node(driver, fields=DEVICES), dcgm_node(engine, fields=DEVICES)
    for each in (asked, told):
        each.page()
    theirs, ours = (
        {uuid: replace(device, placement=None) for uuid, device in each.sweep().devices().items()}
        for each in (asked, told)
    )

    assert ours == theirs
    assert _labels(told.page()) >= _labels(asked.page())  # profiling before Hopper is told by DCGM alone
    assert _labels(told.page(), "DCGM_FI_DEV") == _labels(asked.page(), "DCGM_FI_DEV")


def _labels(page: str, prefix: str = "DCGM_") -> set[tuple[str, frozenset[tuple[str, str]]]]:
    return {(line.name, frozenset(line.labels.items())) for line in lines_of(page) if line.name.startswith(prefix)}


def test_an_instance_that_dcgm_does_not_name_goes_by_its_ids(dcgm_node: Start) -> None:
    """Some engines give the name and UUID of the GPU for its instances: two devices of one UUID could not be told."""
    running = dcgm_node(engines.a100_mig(), fields=("DCGM_FI_DEV_FB_USED",))
    gpu = engines.a100_mig().gpus[0]
    used = {line.labels.get("GPU_I_ID"): line.value for line in lines_of(running.page()) if "GPU_I_ID" in line.labels}
    uuids = {device.uuid for device in running.sweep().devices().values() if device.instance_id is not None}

    assert used == {str(each.nvml): each.fields[252] for each in gpu.instances}
    assert uuids == {f"MIG-{gpu.uuid}/{each.nvml}/0" for each in gpu.instances}
    assert 'GPU_I_PROFILE=""' in running.page()


TEMPERATURE, POWER, USED, BRAND = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED", 51
NO_VALUES: Mapping[str, tuple[fakedcgm.Blank | fakedcgm.Code | int, str, str]] = {
    "no value": (fakedcgm.Blank.UNSAID, "failed", "DCGM has no value yet"),
    "not found": (fakedcgm.Blank.NOT_FOUND, "unsupported", "DCGM did not find it"),
    "not supported": (fakedcgm.Blank.NOT_SUPPORTED, "unsupported", "DCGM says that it is not supported"),
    "not permitted": (fakedcgm.Blank.NOT_PERMITTED, "denied", "DCGM may not ask for it"),
    "no data": (fakedcgm.Code(-14), "failed", "DCGM has no value yet"),
    "needs root": (fakedcgm.Code(-29), "denied", "the engine has to run as root for it"),
    "no answer": (fakedcgm.Code(-57), "timeout", "the driver did not answer the engine in time"),
    "not known": (fakedcgm.Code(-30), "failed", "DCGM error -30"),
    "a blank of 32 bits": (0x7FFFFFF2, "unsupported", "DCGM says that it is not supported"),
    "not true": (4000, "invalid", "the driver answered 4000, which is not within -60 to 250"),
}


def test_what_is_no_value_is_missing_for_its_reason(dcgm_node: Start) -> None:
    """DCGM has four blanks for each type, beside a status: none is a temperature of 9,223,372,036,854,775,794."""
    running = dcgm_node(engines.h100(), fields=(TEMPERATURE, POWER, USED, "DCGM_FI_DEV_BRAND"))
    found = {}
    for name, (value, _, _) in NO_VALUES.items():
        running.show(engines.h100().with_gpu(0, fields={150: value}))
        page = running.page()
        gaps = [(gap.gap, gap.reason) for gap in running.sweep().missing]
        found[name] = (value, *gaps[0])

        assert len(gaps) == 1, name
        assert not values(page, TEMPERATURE)
        assert values(page, POWER) == {"0": 68.92}

    assert found == NO_VALUES
    running.show(engines.h100().with_gpu(0, fields={155: fakedcgm.Blank.NOT_SUPPORTED, BRAND: fakedcgm.Code(-17)}))
    page = running.page()
    assert values(page, TEMPERATURE) == {"0": 29}
    assert not series(page, POWER)
    assert "DCGM_FI_DEV_BRAND" not in page


def test_a_number_that_no_gpu_has_is_no_label(dcgm_node: Start) -> None:
    """What is dropped as a value may not stand in every label; DCGM's own number is there."""
    told = engines.h100(2).with_gpu(0, fields={52: -5, 55: -7}).with_gpu(1, fields={52: 1 << 40, 55: 1 << 40})
    page = dcgm_node(told, fields=(TEMPERATURE,)).page()

    assert {(line.labels["gpu"], line.labels["device"]) for line in lines_of(page) if line.name == TEMPERATURE} == {
        ("0", "nvidia0"),
        ("1", "nvidia1"),
    }


def test_a_value_of_another_type_is_none() -> None:
    """A newer engine may make a double of what was an integer: its bytes would be 4,631,107,791,820,423,168 degrees."""
    value = structs.FieldValue2(fieldId=150, fieldType=ord("d"))
    value.value.dbl = 42.0

    refused = judged(value, CATALOGUE[150])
    assert isinstance(refused, Refusal)
    assert refused.gap == "invalid"


EXTREMES: Mapping[str, tuple[int, float, str]] = {
    "highest": (2**63 - 17, 1.7e308, "x" * 255),
    "lowest": (-(2**63), -1.7e308, "<<<"),
    "blank": (2**63 - 16, 2.0**47, "<<<SOMETHING>>>"),
    "all ones": (-1, math.inf, 'a"b\\c\nd'),
    "not a number": (2**32 - 1, math.nan, "\u00e9"),
    "almost nothing": (1, 5e-324, " "),
}


def test_no_answer_breaks_the_page(dcgm_node: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever an engine answers, the page can be read, and no number on it is one that its field cannot have."""
    asked = [CATALOGUE[id_] for id_ in sorted(READABLE - COUNTED - {XID_ERRORS, 9003})]
    running = dcgm_node(engines.h100(), fields=tuple(field.name for field in asked))
    for number, real, text in EXTREMES.values():
        by_type: dict[str, int | float | str] = {"int": number, "double": real, "text": text}
        told = {field.id: by_type[field.dcgm.number] for field in asked}
        profiling = engines.h100().gpus[0].profiling
        gpu = engines.h100().gpus[0].but(fields=told, profiling=(*profiling, (1, 0, *range(1018, 1080))))
        running.show(fakedcgm.Scenario(gpus=(gpu,), fields={id_: told[id_] for id_ in (1, 2, 4, 5)}))
        running.page()
        page = running.page()

        assert all(math.isfinite(line.value) for line in lines_of(page))
        numbers = running.sweep().numbers
        assert all(
            CATALOGUE[id_].lowest <= value <= CATALOGUE[id_].highest
            for id_, read in numbers.items()
            for value in read.values()
        )
    assert not [record for record in caplog.records if record.exc_info]


def test_shares_have_no_dust(dcgm_node: Start) -> None:
    """0.57 times 100 is 56.99999999999999 in binary: no dashboard has to see that."""
    shares = {1001 + place: (7 + 10 * place) / 100 for place in range(8)}
    running = dcgm_node(engines.h100().with_gpu(0, fields=shares), fields=("profiling",), naming="semconv")
    running.page()
    numbers = {id_: next(iter(told.values())) for id_, told in running.sweep().numbers.items() if id_ in shares}

    assert numbers == {id_: round(100 * share) for id_, share in shares.items()}
