"""The catalogue: complete against DCGM, sound in itself, and stable in what it shows."""

import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from otelgpu.fields import (
    CATALOGUE,
    DEFAULT_FIELDS,
    LABEL_FIELDS,
    UP_DOWN,
    Field,
    Kind,
    Level,
    Number,
    Shape,
    find,
    help_in,
    kind_in,
    suggest,
)
from otelgpu.fields.process import PROCESS_FIELDS
from otelgpu.fields.xid import XIDS, xid_text

REFERENCE = Path(__file__).parents[2] / "shared" / "reference"
FIELDS = list(CATALOGUE.values())
SEMCONV = [(field, field.semconv) for field in FIELDS if field.semconv is not None]

# UCUM as far as we use it, with {annotations}.
UNIT = re.compile(r"(1|%|\{[a-z]+\}|(k|M|m|u|n|Mi|Ki)?(Hz|W|J|By|s|V)|Cel|rpm)(/s)?")

# Units and numbers that the semantic conventions fix (shared/reference/semconv.md).
OFFICIAL = {
    "hw.gpu.utilization": ("1", Number.DOUBLE, Kind.GAUGE),
    "hw.gpu.memory.limit": ("By", Number.INT, Kind.GAUGE),
    "hw.gpu.memory.usage": ("By", Number.INT, Kind.GAUGE),
    "hw.gpu.memory.utilization": ("1", Number.DOUBLE, Kind.GAUGE),
    "hw.gpu.io": ("By", Number.INT, Kind.COUNTER),
    "hw.power": ("W", Number.DOUBLE, Kind.GAUGE),
    "hw.energy": ("J", Number.DOUBLE, Kind.COUNTER),
    "hw.errors": ("{error}", Number.INT, Kind.COUNTER),
    "hw.temperature": ("Cel", Number.DOUBLE, Kind.GAUGE),
    "hw.temperature.limit": ("Cel", Number.DOUBLE, Kind.GAUGE),
    "hw.fan.speed_ratio": ("1", Number.DOUBLE, Kind.GAUGE),
}


def reference(name: str) -> Any:
    path = REFERENCE / name
    if not path.exists():
        pytest.skip(f"{path} is not here; it is beside the repository in the project's workplace")
    return json.loads(path.read_text())


def dcgm_fields() -> Mapping[int, Mapping[str, Any]]:
    """DCGM's own table, without the placeholder 0."""
    fields = reference("dcgm-fields.json")["fields"]
    return {int(ident): about for ident, about in fields.items() if about["has_meta"]}


def shown(shape: Shape, number: float) -> Fraction:
    return Fraction(number) * shape.numerator / shape.denominator


def spellings(field: Field) -> set[str]:
    return {field.name, field.new_name, field.dcgm49.name, *field.aliases}


def test_every_field_of_dcgm_has_one_row() -> None:
    """A field that DCGM knows can be asked for, and what dcgm-exporter and otelgpu add; the placeholder 0 is none."""
    known = dcgm_fields()

    assert len(known) == 643
    assert list(CATALOGUE) == [*sorted(known), *range(9001, 9007), *range(9101, 9111)]


def test_rows_have_dcgms_old_and_new_names() -> None:
    """A CSV file of any generation finds its field."""
    # Two aliases are markers for the end of a range that happen to share the number of a field.
    markers = {"DCGM_FI_MAX_VGPU_FIELDS", "DCGM_FI_MAX_NVSWITCH_FIELDS"}

    for ident, about in dcgm_fields().items():
        field = CATALOGUE[ident]
        assert field.new_name == about["name"]
        assert {field.name, field.new_name, *field.aliases} == {about["name"], *about["aliases"]} - markers


def test_rows_have_dcgms_types_and_levels() -> None:
    """An int64 prints as an integer, a double with decimals, and each field goes to its group of entities."""
    numbers = {"i": Number.INT, "d": Number.DOUBLE, "s": Number.TEXT, "b": Number.BINARY, "t": Number.BINARY}
    levels = {"NONE": Level.GLOBAL, "CPU_CORE": Level.CORE}

    for ident, about in dcgm_fields().items():
        field, level = CATALOGUE[ident], about["entity_level"].removeprefix("DCGM_FE_")
        assert field.dcgm.number is numbers[about["type"]]
        assert field.level is (levels.get(level) or Level(level.lower()))


def test_shipped_csv_rows_have_their_kind() -> None:
    """TYPE lines are those of dcgm-exporter's default file; of two rows for one field the enabled one counts."""
    rows: dict[str, dict[str, Any]] = {}
    for line in reference("default-counters.json")["files"]["etc/default-counters.csv"]:
        if line["field"].startswith("DCGM_FI_") and (line["enabled"] or line["field"] not in rows):
            rows[line["field"]] = line

    for name, line in rows.items():
        field = find(name)
        assert field is not None
        assert (field.name, field.kind, field.default) == (name, line["type"], line["enabled"])
    assert sum(field.default for field in FIELDS) == sum(line["enabled"] for line in rows.values())


def test_names_of_every_shipped_csv_are_found() -> None:
    """The compatibility file with lower-case 1.x names works as well."""
    files = reference("default-counters.json")["files"]
    names = {line["field"] for lines in files.values() for line in lines}

    assert [name for name in sorted(names) if find(name) is None] == []


def test_defaults_are_the_26_of_the_image() -> None:
    """Without a CSV file the page has what dcgm-exporter's image shows: 25 families and the driver's version."""
    expected = [
        *[1, 100, 101, 140, 150, 155, 156, 202, 203, 204, 206, 207, 230, 251, 252, 253, 393, 394, 395],
        *[449, 526, 1001, 1004, 1005, 1009, 1010],
    ]

    assert [field.id for field in DEFAULT_FIELDS] == expected
    assert [field.name for field in DEFAULT_FIELDS if field.kind is Kind.LABEL] == ["DCGM_FI_DRIVER_VERSION"]


def test_ids_ascend_and_match_their_rows() -> None:
    """Whoever walks through the catalogue meets the order of the page."""
    assert list(CATALOGUE) == sorted(CATALOGUE)
    assert all(ident == field.id for ident, field in CATALOGUE.items())


def test_no_name_means_two_fields() -> None:
    """A name of any generation leads to one field."""
    owners = Counter(name for field in FIELDS for name in spellings(field))

    assert [name for name, many in owners.items() if many > 1] == []
    assert len({field.name.lower() for field in FIELDS}) == len(FIELDS)  # the SDK lower-cases instrument names


def test_shapes_carry_the_names_of_their_generation() -> None:
    """The dcgm page prints the old name; the 4.9 page prints the new one or that of the base unit."""
    assert all(field.dcgm.name == field.name for field in FIELDS)
    same_unit = [field for field in FIELDS if field.dcgm49.unit == field.dcgm.unit]
    assert [field.id for field in same_unit if field.dcgm49.name != field.new_name] == [1508]  # renamed in DCGM 4.7
    assert all(
        re.fullmatch(r"(DCGM_FI|DCGM_EXP|OTELGPU)_[A-Z0-9_]+", name) for field in FIELDS for name in spellings(field)
    )


def test_a_changed_unit_has_a_changed_name() -> None:
    """Two pages never show one name with two meanings, but for GPU_UTIL_RATIO, which upstream itself re-used."""
    changed = [field for field in FIELDS if field.dcgm49.unit != field.dcgm.unit]

    assert all(field.dcgm49.name != field.name for field in changed)
    assert [field.id for field in changed if field.dcgm49.name == field.new_name] == [203]


def test_23_defaults_are_renamed_in_4_9_and_eleven_change_unit() -> None:
    """The numbers that dcgm-exporter 4.9's release names."""
    renamed = [field for field in DEFAULT_FIELDS if field.dcgm49.name != field.name]

    assert len(renamed) == 23
    assert [field.id for field in renamed if field.dcgm49.unit != field.dcgm.unit] == [
        *[100, 101, 156, 203, 204, 206, 207, 251, 252, 253, 449],
    ]


def test_help_says_something_of_its_own() -> None:
    """A help line is there, is short, fits a HELP line, and no two fields have the same."""
    texts = [field.help for field in FIELDS]

    assert len(set(texts)) == len(texts)
    assert all(
        10 < len(text) <= 140 and (text[0].isupper() or text.startswith("vGPU")) and text[-1] not in ".!"
        for text in texts
    )
    assert not any("\n" in text or "\\" in text or '"' in text for text in texts)


def test_units_are_ucum() -> None:
    """OTLP backends read units by UCUM."""
    units = {shape.unit for field in FIELDS for shape in (field.dcgm, field.dcgm49, field.semconv) if shape}
    units |= {field.unit for field in FIELDS}

    assert [unit for unit in sorted(units) if not UNIT.fullmatch(unit)] == []


def test_text_and_binary_stay_out_of_semconv() -> None:
    """What is no number is no metric."""
    for field in FIELDS:
        numeric = field.number in {Number.INT, Number.DOUBLE}
        assert (field.semconv is not None) == numeric
        assert (field.kind is Kind.LABEL) == (field.number is Number.TEXT)
        assert field.dcgm.number in ({Number.INT, Number.DOUBLE} if numeric else {field.number})
    assert [field for field in FIELDS if field.kind is Kind.LABEL] == list(LABEL_FIELDS)


def test_semconv_series_are_told_apart() -> None:
    """Two fields never give the same series; equal keys would be added up or drop one another."""
    series = Counter((shape.name, tuple(sorted(shape.attributes))) for _, shape in SEMCONV)

    assert [key for key, many in series.items() if many > 1] == []


def test_a_semconv_name_has_one_meaning() -> None:
    """All rows of one name agree in unit, number, kind, attribute names and level: one instrument, one schema."""
    meanings = defaultdict(set)
    for field, shape in SEMCONV:
        keys = tuple(sorted(key for key, _ in shape.attributes))
        if shape.name == "hw.errors":
            keys = ()
        meanings[shape.name].add((shape.unit, shape.number, kind_in(field, shape), keys))

    assert {name: found for name, found in meanings.items() if len(found) > 1} == {}


def test_official_names_have_official_units() -> None:
    """`hw.*` names are those of the conventions, with their unit and number; the rest stands under hw.gpu.nvidia."""
    for field, shape in SEMCONV:
        if not shape.name.startswith("hw.gpu.nvidia."):
            assert (shape.unit, shape.number, kind_in(field, shape)) == OFFICIAL[shape.name]
        assert re.fullmatch(r"[a-z][a-z0-9_.]*[a-z0-9]", shape.name)
        assert all(re.fullmatch(r"[a-z][a-z0-9_.]+", key) and value for key, value in shape.attributes)
    assert {shape.name for _, shape in SEMCONV} >= UP_DOWN - {
        "hw.status",
        *(field.semconv.name for field in PROCESS_FIELDS if field.semconv),
    }


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("hw.power", "hw.type"),
        ("hw.energy", "hw.type"),
        ("hw.errors", "hw.type"),
        ("hw.errors", "error.type"),
        ("hw.temperature", "hw.sensor_location"),
        ("hw.temperature.limit", "hw.limit_type"),
        ("hw.gpu.utilization", "hw.gpu.task"),
        ("hw.gpu.io", "network.io.direction"),
    ],
)
def test_required_attributes_are_there(name: str, key: str) -> None:
    """What the conventions require and a field fixes stands in its row."""
    shapes = [shape for _, shape in SEMCONV if shape.name == name]

    assert shapes
    assert all(key in dict(shape.attributes) for shape in shapes)


@pytest.mark.parametrize(
    ("ident", "number", "dcgm", "dcgm49", "semconv"),
    [
        (203, 35, "35", "0.35", "0.35"),
        (100, 1980, "1980", "1980000000", "1980000000"),
        (155, 70123, "70.123", "70.123", "70.123"),
        (156, 1999, "1999", "1.999", "1.999"),
        (252, 3 * 2**30, "3072", "3221225472", "3221225472"),
        (1001, 50, "0.5", "0.5", "0.5"),
        (1009, 1.5, "1572864", "1572864", "1572864"),
        (449, 2_048_000, "2", "2048000", "2048000"),
        (191, 105, "105", "1.05", "1.05"),
        (240, 2_500_000_000, "2500000000", "2.5", "2.5"),
        (200, 7, "7", "7", "7000"),
        (150, 41, "41", "41", "41"),
    ],
)
def test_scales_are_exact(ident: int, number: float, *, dcgm: str, dcgm49: str, semconv: str) -> None:
    """The driver's number comes out in each scheme's unit without a rounding of ours."""
    field = CATALOGUE[ident]

    assert field.semconv is not None
    assert shown(field.dcgm, number) == Fraction(dcgm)
    assert shown(field.dcgm49, number) == Fraction(dcgm49)
    assert shown(field.semconv, number) == Fraction(semconv)


def test_dividing_last_keeps_percentages_clean() -> None:
    """35 % is 0.35 and not 0.35000000000000003, for every whole percentage."""
    shape = CATALOGUE[203].semconv

    assert shape is not None
    assert [n * shape.numerator / shape.denominator for n in range(101)] == [float(f"{n}e-2") for n in range(101)]


def test_numbers_do_not_lose_their_fraction_on_the_way_to_base_units() -> None:
    """A scheme shows an integer only where the driver's number is one or DCGM itself cuts."""
    for field, shape in SEMCONV:
        if shape.number is Number.INT:
            assert field.number is Number.INT
            assert shape.denominator == 1


# Numbers that say nothing: DCGM's blanks (not set, not found, not supported, not permitted) and all ones.
NOTHING = (2**64 - 1, *range(0x7FFFFFFFFFFFFFF0, 0x7FFFFFFFFFFFFFF4))
NOTHING_REAL = tuple(2.0**47 + code for code in range(4))
NOTHING_IN_32 = (0xFFFFFFFF, *range(0x7FFFFFF0, 0x7FFFFFF4))
ANY_WORD = {  # any word can be true
    **dict.fromkeys((70, 71, 72, 73, 86, 87, 88, 89), "a set of 64 CPUs or NUMA nodes"),
    64: "a state for each of up to 32 GPUs",
}
BELOW_ZERO = {  # where -1 means something; elsewhere it stands for nothing
    **dict.fromkeys((870, 871), "a link of which the switch knows no state or type"),
    1503: "a daemon that could not be asked",
}
WIDE = {  # numbers of 64 bits, or of 32 that may have any value
    **dict.fromkeys((58, 59), "two 16-bit ids in one word; all ones is a GPU that is gone"),
    83: "a checksum",
    **dict.fromkeys(range(1305, 1310), "a mask of PCIe errors"),
    **dict.fromkeys((581, 582), "microseconds since an event"),
    **dict.fromkeys((9001, 9002), "counted by otelgpu itself"),
}


def test_every_number_has_bounds_that_shut_out_what_says_nothing() -> None:
    """A blank or a word of all ones that came through would be a number on a page; what has no bound has a reason."""
    wide_units = {"By", "By/s", "MiBy/s"}
    for field, _ in SEMCONV:
        blanks = (*NOTHING, *NOTHING_REAL) if field.number is Number.DOUBLE else NOTHING
        assert field.lowest >= 0 or field.unit == "Cel" or field.id in ANY_WORD or field.id in BELOW_ZERO
        let_in = {number for number in blanks if field.lowest <= number <= field.highest}
        assert bool(let_in) is (field.id in ANY_WORD), f"{field.name} lets {let_in} in"
        is_wide = field.is_total or field.unit in wide_units or field.id in ANY_WORD
        let_in = {number for number in NOTHING_IN_32 if field.lowest <= number <= field.highest}
        assert not let_in or is_wide or field.id in WIDE, f"{field.name} lets {let_in} in"
        assert let_in or field.id not in WIDE, f"{field.name} needs no reason any more"


def test_bounds_are_sane() -> None:
    """The bounds leave room for what can be true, and shut out DCGM's blanks."""
    for field, _ in SEMCONV:
        assert field.lowest <= (1 if "hw.limit_type" in str(field.semconv) and field.unit == "Cel" else 0)
        assert field.highest > 0
        if field.number is Number.DOUBLE:
            assert field.highest < 2**47
        elif field.lowest != -(2**63):  # a set of 64 CPUs may have any bit set
            assert field.highest <= 0x7FFFFFFFFFFFFFEF


@pytest.mark.parametrize(
    ("ident", "number"),
    [
        (203, 4294967295),
        (155, 3_700_000),
        (156, 0x7FFFFFFFFFFFFFF0),
        (202, 0xFFFFFFFF),
        (1001, 140737488355328.0),
        (150, 2147483632),
        (190, 32),
        (573, 255),
        (252, -1),
        (393, 0xFFFFFFFF),
        (112, 0xFFFFFFFF),
    ],
)
def test_garbage_is_out_of_bounds(ident: int, number: float) -> None:
    """Sentinels, all ones and what drivers were seen to report are no readings."""
    field = CATALOGUE[ident]

    assert not field.lowest <= number <= field.highest


@pytest.mark.parametrize(
    ("ident", "number"),
    [(203, 100), (155, 1_400_000), (150, -10), (153, -20), (191, 104), (252, 288 * 2**30), (1001, 100.4), (230, 172)],
)
def test_extremes_of_real_hardware_are_in_bounds(ident: int, number: float) -> None:
    """A hot, cold, big or busy GPU is believed."""
    field = CATALOGUE[ident]

    assert field.lowest <= number <= field.highest


@pytest.mark.parametrize(
    ("name", "ident"),
    [
        ("DCGM_FI_DEV_GPU_UTIL", 203),
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", 203),
        ("DCGM_FI_DEV_SM_CLOCK_HERTZ", 100),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 112),
        ("DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND", 449),
        ("dcgm_sm_clock", 100),
        ("203", 203),
    ],
)
def test_a_field_is_found_by_each_of_its_names(name: str, ident: int) -> None:
    """Names of all generations and the plain id lead to the row."""
    assert find(name) is CATALOGUE[ident]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0",
        "0203",
        " 203",
        "٢٠٣",
        "²",
        "9" * 5000,
        "DCGM_FI_UNKNOWN",
        "dcgm_fi_dev_gpu_util",
        "DCGM_FI_DEV_GPU_UTIL ",
    ],
)
def test_a_wrong_name_is_not_found(name: str) -> None:
    """Names are exact, as in dcgm-exporter; the placeholder 0 is no field."""
    assert find(name) is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("DCGM_FI_DEV_GPU_UTILL", "DCGM_FI_DEV_GPU_UTIL"),
        ("dcgm_fi_dev_gpu_util", "DCGM_FI_DEV_GPU_UTIL"),
        ("DCGM_FI_DEV_POWER_USGE", "DCGM_FI_DEV_POWER_USAGE"),
        ("dcgm_sm_clok", "dcgm_sm_clock"),
        ("temperature of the moon", None),
        ("", None),
    ],
)
def test_a_near_miss_is_corrected(name: str, meant: str | None) -> None:
    """The error message about a wrong name offers the right one, and nothing when nothing is near."""
    assert suggest(name) == meant


def test_a_rate_is_a_gauge_outside_dcgm_naming() -> None:
    """dcgm-exporter declares the NVLink rate a counter; only its own page repeats that."""
    field = CATALOGUE[449]

    assert field.semconv is not None
    assert kind_in(field, field.dcgm) is Kind.COUNTER
    assert kind_in(field, field.dcgm49) is Kind.GAUGE
    assert kind_in(field, field.semconv) is Kind.GAUGE


def test_help_names_the_unit_that_is_shown() -> None:
    """The same words, with the unit of the scheme."""
    field = CATALOGUE[100]

    assert help_in(field, field.dcgm) == field.help == "Clock of the streaming multiprocessors (MHz)"
    assert help_in(field, field.dcgm49) == "Clock of the streaming multiprocessors (Hz)"
    assert all(help_in(other, shape) for other, shape in SEMCONV)
    assert help_in(CATALOGUE[203], CATALOGUE[203].dcgm49).endswith("(ratio 0-1)")


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "No Error"), (79, "GPU has fallen off the bus"), (48, "Double Bit ECC Error"), (5, "Unknown Error")],
)
def test_xid_codes_have_words(code: int, text: str) -> None:
    """`err_msg` says what an XID means, and "Unknown Error" for a code that nobody documents."""
    assert xid_text(code) == text


def test_xid_words_fit_a_label() -> None:
    """Codes ascend, and no text is empty or needs escaping."""
    assert list(XIDS) == sorted(XIDS)
    assert xid_text(-1) == xid_text(10**9) == "Unknown Error"
    assert all(text and not set(text) & set('"\\\n') for text in XIDS.values())


def test_importing_the_catalogue_stays_small() -> None:
    """A scrape target pays for the table on every start: no heavy module comes along, and less than 1.5 MB."""
    script = (
        "import sys, tracemalloc; import dataclasses, enum, typing; import otelgpu; tracemalloc.start();"
        "import otelgpu.fields; print(tracemalloc.get_traced_memory()[0], 'difflib' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    size, difflib = answer.stdout.split()

    assert int(size) < 1_500_000
    assert difflib == "False"
