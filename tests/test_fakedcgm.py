"""The fake DCGM behaves as DCGM does, seen through ctypes.

Rule 1: a test here is about the fake itself; what otelgpu makes of DCGM is tested elsewhere.
Rule 2: structs are read by offset, from the measured description of DCGM where that is at hand.
"""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakedcgm import (
    Blank,
    CannotBuildError,
    Code,
    Fake,
    Growing,
    Incident,
    Past,
    Scenario,
    Status,
    Time,
    Timed,
    functions,
    library,
    models,
    preload,
)
from tests.fakedcgm.build import OLD_SONAME

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT.parent / "shared" / "reference"
EMBEDDED = 0x7FFFFFFF
ALL_GPUS = 0x7FFFFFFF
TEMPERATURE, POWER, UTILIZATION, UUID, XID, SM_ACTIVE = 150, 155, 203, 54, 230, 1002
BADPARAM, GENERIC, VERSION, NO_DATA, NOT_WATCHED, INVALID, LIMIT, UNLOADED = -1, -3, -12, -14, -16, -21, -24, -33
INT_BLANK, REAL_BLANK = 0x7FFFFFFFFFFFFFF0, float(1 << 47)

CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


class Number(ctypes.Union):
    """What a value may be."""

    _fields_ = (("i64", ctypes.c_int64), ("dbl", ctypes.c_double), ("raw", ctypes.c_char * 4096))


class Value(ctypes.Structure):
    """dcgmFieldValue_v2."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("group", ctypes.c_uint),
        ("id", ctypes.c_uint),
        ("field", ctypes.c_ushort),
        ("type", ctypes.c_ushort),
        ("status", ctypes.c_int),
        ("unused", ctypes.c_uint),
        ("ts", ctypes.c_int64),
        ("value", Number),
    )

    def answer(self) -> int | float | str | tuple[int, int]:
        """The value; the status and the reason when it is blank."""
        if self.type == ord("s"):
            text = bytes(ctypes.string_at(ctypes.addressof(self.value))).decode()
            return (self.status, 0) if text.startswith("<<<") else text
        number = self.value.dbl if self.type == ord("d") else self.value.i64
        blank = REAL_BLANK if self.type == ord("d") else INT_BLANK
        return (self.status, int(number - blank)) if number >= blank else number


class Dcgm:
    """One connection to the fake, with a group and the field groups that it made."""

    def __init__(self, fake: Fake, address: str = "127.0.0.1:5555") -> None:
        self.lib = fake.library
        self.handle = ctypes.c_size_t()
        self.rc = self.connect(address)

    def connect(self, address: str, version: int = 0x2000010) -> int:
        params = (ctypes.c_uint * 4)(version, 0, 0, 0)
        return int(self.lib.dcgmConnect_v2(address.encode(), params, ctypes.byref(self.handle)))

    def ask(self, function: str, *args: Any) -> int:
        return int(self.lib[function](self.handle, *args))

    def field_group(self, *fields: int, name: str = "fields") -> tuple[int, ctypes.c_size_t]:
        made = ctypes.c_size_t()
        ids = (ctypes.c_ushort * len(fields))(*fields)
        return self.ask("dcgmFieldGroupCreate", len(fields), ids, name.encode(), ctypes.byref(made)), made

    def watch(self, *fields: int, group: int = ALL_GPUS, name: str = "fields") -> int:
        made = self.field_group(*fields, name=name)[1]
        return self.ask(
            "dcgmWatchFields",
            ctypes.c_size_t(group),
            made,
            ctypes.c_longlong(1_000_000),
            ctypes.c_double(10.5),
            ctypes.c_int(0),
        )

    def raw(self, *fields: int, entities: tuple[tuple[int, int], ...] = ((1, 0),), flags: int = 0) -> Any:
        """The return code and the values, entity by entity."""
        pairs = (ctypes.c_uint * (2 * len(entities)))(*(number for pair in entities for number in pair))
        ids = (ctypes.c_ushort * len(fields))(*fields)
        values = (Value * (len(entities) * len(fields)))()
        rc = self.ask("dcgmEntitiesGetLatestValues", pairs, len(entities), ids, len(fields), flags, values)
        return rc, values

    def read(self, *fields: int, **how: Any) -> list[int | float | str | tuple[int, int]]:
        rc, values = self.raw(*fields, **how)
        assert rc == 0
        return [value.answer() for value in values]

    def since(self, field_group: ctypes.c_size_t, start: int) -> tuple[list[tuple[int, int, int, int]], int]:
        """GPU, field, time and number of everything since *start*, and where to go on."""
        given: list[tuple[int, int, int, int]] = []
        thread = threading.get_ident()

        def callback(_: int, identity: int, at: int, count: int, user: int) -> int:
            assert (count, user, threading.get_ident()) == (1, 7, thread)
            raw = ctypes.string_at(at, 32)
            field, ts, number = (int.from_bytes(raw[a:b], "little") for a, b in ((4, 6), (16, 24), (24, 32)))
            given.append((identity, field, ts, number))
            return 0

        further = ctypes.c_longlong()
        rc = self.ask(
            "dcgmGetValuesSince_v2",
            ctypes.c_size_t(ALL_GPUS),
            field_group,
            ctypes.c_longlong(start),
            ctypes.byref(further),
            CALLBACK(callback),
            ctypes.c_void_p(7),
        )
        assert rc == 0
        return given, further.value


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    """The fake with two H100, after dcgmInit."""
    try:
        fake = preload(tmp_path / "scenario")
    except CannotBuildError as error:
        pytest.skip(str(error))
    fake.show(models.h100(2))
    fake.reset_calls()
    fake.library.dcgmInit()
    yield fake
    fake.show(Scenario()).quiet()
    while fake.inits:
        fake.library.dcgmShutdown()


@pytest.fixture
def abi() -> Any:
    """What was measured of DCGM."""
    if not (REFERENCE / "dcgm-abi.json").exists():
        pytest.skip("the description of DCGM is not beside this checkout")
    return json.loads((REFERENCE / "dcgm-abi.json").read_text())


def test_structs_and_codes_are_those_of_dcgm(abi: Any, cc: Path, tmp_path: Path) -> None:
    """Every struct of dcgm.h has DCGM's size and offsets, every field DCGM's type and level, every code its number."""
    header = (ROOT / "tests/fakedcgm/c/dcgm.h").read_text()
    lines = []
    for name in re.findall(r"^} (dcgm\w+);", header, re.MULTILINE):
        if (struct := abi["structs"].get(name)) is not None:
            lines.append(f"_Static_assert(sizeof({name}) == {struct['size']}, {name!r});".replace("'", '"'))
            members = (member for member in struct["fields"] if "offset" in member)
            lines += (
                f'_Static_assert(offsetof({name}, {member["name"]}) == {member["offset"]}, "{name}.{member["name"]}");'
                for member in members
            )
    source = tmp_path / "abi.c"
    source.write_text('#include "dcgm.h"\n' + "\n".join(lines))
    made = subprocess.run(
        [str(cc), "-fsyntax-only", f"-I{ROOT}/tests/fakedcgm/c", str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    codes = re.findall(r"R\((\w+), (-?\d+)\)", (ROOT / "tests/fakedcgm/c/returns.def").read_text())
    rows = re.findall(r"F\((\d+), '(.)', (\d+), (\d)", (ROOT / "tests/fakedcgm/c/fields.def").read_text())
    levels = abi["enums"]["dcgm_field_entity_group_t"]["values"]
    known = json.loads((REFERENCE / "dcgm-fields.json").read_text())["fields"]
    said = {
        (identity, field["type"], str(levels[field["entity_level"]]), str(int(field["scope"] == "global")))
        for identity, field in known.items()
        if field.get("has_meta") is not False
    }

    assert (made.returncode, made.stderr) == (0, "")
    assert len(lines) > 150
    assert {name: int(code) for name, code in codes} == abi["enums"]["dcgmReturn_t"]["values"]
    assert set(rows) == said


def test_functions_are_those_of_dcgm(abi: Any) -> None:
    """The fake exports nothing that DCGM would not."""
    assert {name for name in functions() if not abi["functions"][name]["exported"]} == set()


def test_a_struct_of_another_version_is_refused(fake: Fake) -> None:
    """VER_MISMATCH, and the struct stays as it was; DCGM 3 has a group info of its own."""
    dcgm = Dcgm(fake)
    wrong = (ctypes.c_uint * 400)(0x1000008)
    attributes = (ctypes.c_uint * 1305)(0x3001464)

    assert dcgm.rc == 0
    for function, *args in (
        ("dcgmHostengineVersionInfo", wrong),
        ("dcgmGetDeviceAttributes", 0, wrong),
        ("dcgmGetGpuInstanceHierarchy", wrong),
        ("dcgmProfGetSupportedMetricGroups", wrong),
        ("dcgmGroupGetInfo", ctypes.c_size_t(ALL_GPUS), wrong),
    ):
        assert dcgm.ask(function, *args) == VERSION, function
    assert dcgm.connect("x", version=0x2000008) == VERSION
    assert dcgm.ask("dcgmGetDeviceAttributes", 0, attributes) == 0
    assert b"NVIDIA H100 80GB HBM3\0" in bytes(attributes)
    assert dcgm.ask("dcgmGetDeviceAttributes", 5, attributes) == BADPARAM
    fake.show(models.h100(2).but(release="3.3.9"))
    info = (ctypes.c_uint * 2114)(0x2000308)
    assert dcgm.ask("dcgmGroupGetInfo", ctypes.c_size_t(ALL_GPUS), info) == 0
    assert list(info[66:70]) == [1, 0, 1, 1]
    info[0] = 0x3002108
    assert dcgm.ask("dcgmGroupGetInfo", ctypes.c_size_t(ALL_GPUS), info) == VERSION


def test_only_what_is_watched_has_values(fake: Fake) -> None:
    """Not watched, unknown GPU, unsaid, of the wrong kind: a status or a blank, never a number."""
    scenario = models.h100(2)
    fake.show(scenario.with_gpu(0, fields={UTILIZATION: Blank.NOT_PERMITTED, 204: Code(-19), 206: None, UUID: None}))
    dcgm = Dcgm(fake)
    before = dcgm.read(TEMPERATURE, POWER, UUID)
    watched = dcgm.watch(TEMPERATURE, POWER, UTILIZATION, 204, 206, UUID)

    assert before == [(NOT_WATCHED, 0)] * 3
    assert watched == 0
    assert dcgm.read(TEMPERATURE, POWER, UTILIZATION, 204, 206, UUID, 100) == [
        *(scenario.gpus[0].fields[TEMPERATURE], scenario.gpus[0].fields[POWER], (0, 3), (-19, 0), (0, 2), (0, 0)),
        (NOT_WATCHED, 0),
    ]
    assert dcgm.read(UUID, entities=((1, 9), (1, 1))) == [(NOT_WATCHED, 0), scenario.gpus[1].uuid]
    assert dcgm.raw(TEMPERATURE, 9999)[0] == GENERIC
    assert dcgm.read(100, flags=1) == [scenario.gpus[0].fields[100]]
    assert fake.watched()[0].fields == (TEMPERATURE, POWER, UTILIZATION, 204, 206, UUID)
    assert (fake.watched()[0].interval_us, fake.watched()[0].keep_age) == (1_000_000, 10.5)


def test_a_lost_gpu_has_no_values(fake: Fake) -> None:
    """It is still in the list of all devices, not in that of supported ones."""
    dcgm = Dcgm(fake)
    dcgm.watch(TEMPERATURE)
    fake.show(models.h100(2).with_gpu(0, status=Status.LOST))
    status, ids, count = ctypes.c_uint(), (ctypes.c_uint * 32)(), ctypes.c_int()

    assert dcgm.read(TEMPERATURE, entities=((1, 0), (1, 1)))[0] == (NOT_WATCHED, 0)
    assert (dcgm.ask("dcgmGetGpuStatus", 0, ctypes.byref(status)), status.value) == (0, Status.LOST)
    assert (dcgm.ask("dcgmGetAllDevices", ids, ctypes.byref(count)), count.value) == (0, 2)
    assert (dcgm.ask("dcgmGetAllSupportedDevices", ids, ctypes.byref(count)), count.value, ids[0]) == (0, 1, 1)


def test_profiling_fields_begin_blank_and_fail_together(fake: Fake) -> None:
    """The first sample is blank; one that a GPU lacks fails the watch; without the module, every one does."""
    dcgm = Dcgm(fake)

    assert dcgm.watch(SM_ACTIVE) == 0
    assert [dcgm.read(SM_ACTIVE)[0] for _ in range(2)] == [(0, 0), 0.02]
    assert dcgm.watch(SM_ACTIVE, 1090, name="more") == UNLOADED
    fake.show(models.mixed())
    assert dcgm.watch(SM_ACTIVE, name="t4") == UNLOADED
    fake.show(models.h100().but(no_profiling=True))
    assert dcgm.watch(SM_ACTIVE, name="no module") == UNLOADED
    fake.show(models.h100().but(no_nvml=True))
    assert dcgm.watch(TEMPERATURE, name="no nvml") == -56


def test_samples_come_when_the_engine_takes_them(fake: Fake) -> None:
    """A scenario may want dcgmUpdateAllFields; values and times then go on sample by sample."""
    grows = {156: Growing(100, 5), TEMPERATURE: Timed(40, Time(at=1000, step=10)), POWER: Timed(1.5, Time(age=60.0))}
    fake.show(models.h100().with_gpu(0, fields=grows).but(needs_update=True))
    dcgm = Dcgm(fake)
    dcgm.watch(156, TEMPERATURE, POWER)
    early = dcgm.read(156)
    dcgm.ask("dcgmUpdateAllFields", 1)
    first = dcgm.raw(156, TEMPERATURE, POWER)[1]
    dcgm.ask("dcgmUpdateAllFields", 1)
    second = dcgm.raw(156, TEMPERATURE)[1]

    assert early == [(NO_DATA, 0)]
    assert [value.answer() for value in first] == [100, 40, 1.5]
    assert [value.answer() for value in second] == [105, 40]
    assert (first[1].ts, second[1].ts) == (1000, 1010)
    assert -300e6 < first[2].ts - time.time() * 1e6 <= -60e6 + 1e6


def test_what_happened_is_given_once(fake: Fake) -> None:
    """XIDs in order, with their times; from the returned time on nothing comes twice."""
    fake.show(models.h100(2).with_gpu(0, fields={XID: Past(())}).with_xid(0, 79, at=1000).with_xid(0, 48, at=2000))
    dcgm = Dcgm(fake)
    fields = dcgm.field_group(XID)[1]
    dcgm.ask(
        "dcgmWatchFields", ctypes.c_size_t(ALL_GPUS), fields, ctypes.c_longlong(1), ctypes.c_double(0), ctypes.c_int(0)
    )
    seen, further = dcgm.since(fields, 0)

    assert seen[:2] == [(0, XID, 1000, 79), (0, XID, 2000, 48)]
    assert dcgm.read(XID) == [48]
    assert dcgm.since(fields, further) == ([], further)
    fake.show(models.h100(2).with_gpu(0, fields={XID: Past(())}))
    assert dcgm.read(XID) == [(NO_DATA, 0)]


def test_limits_are_those_of_dcgm(fake: Fake) -> None:
    """127 fields a field group, 128 a question, 64 field groups, 64 groups of which two are the engine's own."""
    dcgm = Dcgm(fake)
    text = (ROOT / "tests/fakedcgm/c/fields.def").read_text()
    many = [int(number) for number in re.findall(r"F\((\d+),", text) if int(number) < 1000][:129]
    made = ctypes.c_size_t()

    assert dcgm.field_group(*many[:128])[0] == LIMIT
    assert dcgm.field_group(*many[:127])[0] == 0
    assert dcgm.field_group(*many[:1])[0] == -26
    assert dcgm.raw(*many[:128])[0] == 0
    assert dcgm.raw(*many)[0] == LIMIT
    assert [dcgm.field_group(TEMPERATURE, name=str(n))[0] for n in range(64)] == [0] * 63 + [LIMIT]
    assert [dcgm.ask("dcgmGroupCreate", 0, b"g", ctypes.byref(made)) for _ in range(63)] == [0] * 62 + [LIMIT]
    assert (fake.groups, fake.field_groups, fake.handles) == (62, 64, 1)


def test_nothing_outlives_its_connection_or_its_engine(fake: Fake) -> None:
    """Groups and watches go with the connection; an engine that was started anew knows neither."""
    dcgm = Dcgm(fake)
    dcgm.watch(TEMPERATURE)
    alive = (fake.handles, fake.field_groups, fake.watches)
    dcgm.ask("dcgmDisconnect")
    closed = (fake.handles, fake.field_groups, fake.watches)
    again = Dcgm(fake)
    again.watch(TEMPERATURE)
    fake.show(models.h100(2).but(gone=True))
    gone = again.raw(TEMPERATURE)[0], Dcgm(fake).rc
    fake.show(models.h100(2).but(engine=2))
    back = again.raw(TEMPERATURE)[0], Dcgm(fake).read(TEMPERATURE)[0]

    assert (alive, closed) == ((1, 1, 1), (0, 0, 0))
    assert gone == (INVALID, INVALID)
    assert back == (INVALID, (NOT_WATCHED, 0))
    assert again.ask("dcgmDisconnect") == INVALID
    fake.library.dcgmShutdown()
    assert (fake.handles, fake.field_groups, fake.watches, fake.inits) == (0, 0, 0, 0)
    assert Dcgm(fake).rc == -10


def test_one_embedded_engine(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second start says OK and gives no handle; the host engine's end does not touch it; it changes the folder."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("DCGM_HOME_DIR", str(tmp_path))
    params = (ctypes.c_uint64 * 13)(0x3000068 | 1 << 32)
    handle = ctypes.c_size_t(EMBEDDED)
    first = fake.library.dcgmStartEmbedded_v2(params), params[1]
    second = fake.library.dcgmStartEmbedded_v2(params), params[1]
    fake.show(models.h100(2).but(gone=True))
    count = ctypes.c_int()

    assert (first, second) == ((0, EMBEDDED), (0, 0))
    assert Path.cwd() == tmp_path
    assert fake.library.dcgmGetAllDevices(handle, (ctypes.c_uint * 32)(), ctypes.byref(count)) == 0
    assert (count.value, fake.handles, fake.last_start.split()[0]) == (2, 1, "mode=1")
    assert fake.library.dcgmStopEmbedded(handle) == 0
    assert fake.library.dcgmStopEmbedded(handle) == 0
    assert fake.library.dcgmGetAllDevices(handle, (ctypes.c_uint * 32)(), ctypes.byref(count)) == INVALID
    assert fake.handles == 0


def test_instances_have_their_places(fake: Fake) -> None:
    """Each GPU instance, then its compute instance; both have values when they are watched."""
    fake.show(models.a100_mig())
    dcgm = Dcgm(fake)
    hierarchy = (ctypes.c_uint * 18370)(0x2011F08)
    group = ctypes.c_size_t()
    dcgm.ask("dcgmGroupCreate", 3, b"instances", ctypes.byref(group))
    dcgm.watch(252, group=group.value)
    rc = dcgm.ask("dcgmGetGpuInstanceHierarchy", hierarchy)
    entities = [tuple(hierarchy[2 + 41 * i : 6 + 41 * i]) for i in range(hierarchy[1])]
    numbers = [tuple(hierarchy[38 + 41 * i : 43 + 41 * i]) for i in range(hierarchy[1])]

    assert rc == 0
    assert entities == [(4, 0, 1, 0), (5, 0, 4, 0), (4, 1, 1, 0), (5, 1, 4, 1), (4, 2, 1, 0), (5, 2, 4, 2)]
    assert numbers[0] == (0, 7, 0xFFFFFFFF, 19, 1)
    assert numbers[5] == (0, 5, 0, 0, 2)
    assert dcgm.read(252, entities=((4, 0), (4, 2), (5, 0))) == [3, 5, (NOT_WATCHED, 0)]
    fake.show(models.a100())
    assert dcgm.read(252, entities=((4, 0),)) == [(NOT_WATCHED, 0)]


def test_incidents_come_out_of_a_health_check(fake: Fake) -> None:
    """Only of the systems that are watched, the worst is the whole."""
    found = (Incident(1, 10, 5, "PCIe replays"), Incident(16, 20, 7, "memory"), Incident(128, 20, 9, "heat"))
    fake.show(models.h100(2).with_gpu(1, health=found))
    dcgm = Dcgm(fake)
    group = ctypes.c_size_t()
    dcgm.ask("dcgmGroupCreate", 0, b"all", ctypes.byref(group))
    response = (ctypes.c_uint * (1069068 // 4))(0x510500C)
    quiet = dcgm.ask("dcgmHealthCheck", group, response), response[2]
    dcgm.ask("dcgmHealthSet", group, 1 | 16)

    assert quiet == (0, 0)
    assert dcgm.ask("dcgmHealthCheck", group, response) == 0
    assert list(response[1:5]) == [20, 2, 1, 10]
    assert bytes(response)[20:32] == b"PCIe replays"
    assert list(response[3 + 259 : 3 + 261]) == [1, 1]
    assert dcgm.ask("dcgmHealthCheck", ctypes.c_size_t(999), response) == -5


def test_faults_are_as_they_are_told(fake: Fake) -> None:
    """Codes for a function or for one GPU's values, the first calls only, until it is released."""
    slow = "dcgmEntitiesGetLatestValues"
    fake.show(models.h100(2).but(errors={"dcgmGetAllDevices": -17}).with_gpu(1, errors={slow: -57}))
    dcgm = Dcgm(fake)
    dcgm.watch(TEMPERATURE)
    codes = dcgm.ask("dcgmGetAllDevices", None, None), dcgm.read(TEMPERATURE, entities=((1, 0), (1, 1)))[1]
    fake.show(models.h100(2).with_gpu(0, hangs={slow}))
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(dcgm.read(TEMPERATURE)))
    thread.start()
    until = time.monotonic() + 30
    while not fake.calls(slow) > 1 and time.monotonic() < until:
        time.sleep(0.001)
    hanging = fake.inflight
    other = dcgm.read(TEMPERATURE, entities=((1, 1),))
    fake.quiet()
    thread.join(30)

    assert codes == (-17, (-57, 0))
    assert (hanging, other, len(done), fake.inflight) == (1, [models.h100(2).gpus[1].fields[TEMPERATURE]], 1, 0)
    assert fake.calls(slow, gpu=1) == 1


def test_only_the_first_calls_hang(fake: Fake) -> None:
    """So many from when the scenario is shown; the next one answers at once."""
    fake.show(models.h100().but(hangs={"dcgmGetAllDevices": 1}))
    dcgm = Dcgm(fake)
    answers: list[int] = []

    def ask() -> None:
        answers.append(dcgm.ask("dcgmGetAllDevices", (ctypes.c_uint * 32)(), ctypes.byref(ctypes.c_int())))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 30
    while not answers and time.monotonic() < until:  # whichever came second
        time.sleep(0.001)
    before = list(answers), fake.inflight
    fake.quiet()
    for thread in threads:
        thread.join(30)

    assert before == ([0], 1)
    assert answers == [0, 0]


def test_an_address_is_reachable_or_not(fake: Fake) -> None:
    """At once, or after the caller's whole timeout, which a test may cut short."""
    fake.show(models.h100().but(addresses=("host:1",)))
    codes = Dcgm(fake, "host:1").rc, Dcgm(fake, "host:2").rc
    fake.show(models.h100().but(addresses=("host:1",), slow_refusal=True))
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(Dcgm(fake, "host:3").rc))
    thread.start()
    until = time.monotonic() + 30
    while not fake.last_connect.startswith("host:3") and time.monotonic() < until:
        time.sleep(0.001)
    fake.quiet()
    thread.join(30)

    assert codes == (0, INVALID)
    assert done == [INVALID]
    assert fake.last_connect == "host:3 timeout_ms=0 unix=0 persist=0"


def test_what_ends_the_process(cc: Path, tmp_path: Path) -> None:
    """LIVE_DATA with a profiling field, as in DCGM 4. An old library is found under the old soname."""
    models.h100().but(missing={"dcgmGetGpuStatus"}, release="3.3.9").write(tmp_path / "other")
    program = f"""
import ctypes
lib = ctypes.CDLL({OLD_SONAME!r})
assert not hasattr(lib, "dcgmGetGpuStatus")
lib.errorString.restype = ctypes.c_char_p
assert lib.errorString(-12).endswith(b"VER_MISMATCH") and lib.errorString(7) is None
version = (ctypes.c_uint * 129)(0x2000204)
assert lib.dcgmVersionInfo(version) == 0 and b"version:3.3.9;" in bytes(version)
handle = ctypes.c_size_t()
assert lib.dcgmInit() == 0
assert lib.dcgmConnect_v2(b"x", (ctypes.c_uint * 4)(0x2000010), ctypes.byref(handle)) == 0
print("so far", flush=True)
values = (ctypes.c_char * 4128)()
lib.dcgmEntitiesGetLatestValues(handle, (ctypes.c_uint * 2)(1, 0), 1, (ctypes.c_ushort * 1)(1002), 1, 1, values)
"""
    folder = library(frozenset({"dcgmGetGpuStatus"}), OLD_SONAME)
    environ = os.environ | {"LD_LIBRARY_PATH": str(folder), "FAKEDCGM_SCENARIO": str(tmp_path / "other")}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60, check=False
    )

    assert (ended.stdout, ended.stderr, ended.returncode) == ("so far\n", "", -signal.SIGSEGV)
    assert cc.exists()
