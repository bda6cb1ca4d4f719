"""What users, drivers and hardware get wrong: one clear message each, and nothing else lost.

Rule 1: messages are compared whole, as the user reads them.
Rule 2: a driver's nonsense is seen from the page: what was dropped, what is still there.
"""

import csv
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from otelgpu.config.picks import parse_pick
from otelgpu.fields import CATALOGUE
from otelgpu.model import Device, GpuState, Reading, Sample, SourceFacts
from otelgpu.snapshots import Assembler, Times
from tests.fakenvml import ALL_LINKS, Code, Scenario, Typed, models, wrong_architecture
from tests.fakenvml import library as fake_library
from tests.fakenvml.build import SONAME
from tests.fakenvml.everything import everything
from tests.harness import Node, patient, refused, series, serving, until, values

Start = Callable[..., Node]

POWER = "DCGM_FI_DEV_POWER_USAGE"
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
UTIL = "DCGM_FI_DEV_GPU_UTIL"
COPY_UTIL = "DCGM_FI_DEV_MEM_COPY_UTIL"
ACTIVE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
DROPPED = "otelgpu_values_dropped_total"
UNKNOWN, LOST = 999, 15
NVLINK_COUNT = 91  # field id


def samples_of(page: str, name: str) -> list[Mapping[str, str]]:
    """The labels of one family, as the reference parser reads them."""
    families = list(text_string_to_metric_families(page))
    return [sample.labels for family in families for sample in family.samples if sample.name == name]


# settings


def test_wrong_settings_are_all_named_with_their_place(tmp_path: Path) -> None:
    """Whoever mends them mends them once: file, environment and flags are judged together."""
    (tmp_path / "conf.yaml").write_text(
        "sampling:\n  reuse: soon\n  deadlin: 3\nfields: [DCGM_FI_DEV_SM_CLOK, default]\nsource: nvlm\n"
    )
    flags = ("--config", "conf.yaml", "--naming", "dcmg", "--listen", "127.0.0.1:99999")
    wrong = {"OTELGPU_SERVER_MAX_REQUESTS": "0", "OTELGPU_SAMPLING_REUSED": "1"}
    code, said = refused(models.h100(), tmp_path, *flags, environ=wrong)

    sources = "expected auto, nvml, dcgm, simulated, simulated:SPEC (such as simulated:8xh100) or replay:FILE"
    assert code == 2
    assert said == [
        'otelgpu: conf.yaml:2: sampling.reuse: expected a number of seconds, got "soon"',
        "otelgpu: conf.yaml:3: sampling.deadlin: no such setting; did you mean sampling.deadline?",
        'otelgpu: conf.yaml:4: fields: no such field; did you mean DCGM_FI_DEV_SM_CLOCK?, got "DCGM_FI_DEV_SM_CLOK"',
        f'otelgpu: conf.yaml:5: source: {sources}, got "nvlm"',
        "otelgpu: OTELGPU_SAMPLING_REUSED: no such setting; did you mean OTELGPU_SAMPLING_REUSE?",
        'otelgpu: OTELGPU_SERVER_MAX_REQUESTS: expected a whole number from 1 to 10000, got "0"',
        "otelgpu: --naming dcmg: expected dcgm or semconv",
        "otelgpu: --listen 127.0.0.1:99999: a port is 0 to 65535",
    ]


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("DCGM_FI_DEV_POWER_USAG", "did you mean DCGM_FI_DEV_POWER_USAGE?"),
        ("dcgm_fi_dev_gpu_temp", "did you mean DCGM_FI_DEV_GPU_TEMP?"),
        ("nothing-like-it", "`otelgpu fields` lists them"),
    ],
)
def test_an_unknown_field_is_refused_with_what_was_meant(tmp_path: Path, field: str, hint: str) -> None:
    """A slip in a long list of fields must not become a hole on a dashboard."""
    code, said = refused(models.h100(), tmp_path, "--fields", f"default,{field}")

    assert code == 2
    assert said == [f"otelgpu: --fields {field}: no such field; {hint}"]


def test_fields_that_nobody_can_read_are_one_warning(tmp_path: Path) -> None:
    """A list of fields made for DCGM goes on working, and says once what it will not show."""
    unread = ("DCGM_FI_DEV_VGPU_PER_PROCESS_UTILIZATION", "DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS")
    with serving(models.h100(), tmp_path, "--fields", ",".join((POWER, *unread))) as served:
        pages = [served.page() for _ in range(3)]
        code = served.stop()

    warnings = [line.split(" ", 1)[1] for line in served.log if " INFO " not in line]
    assert code == 0
    assert all(len(values(page, POWER)) == 1 for page in pages)
    assert len(warnings) == 1
    assert warnings[0].startswith(
        "WARNING otelgpu.sources.choice: --fields: no source here can read 2 of the fields asked for, "
        "they will be absent: "
    )
    assert [name in warnings[0] for name in unread] == [True, True]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "--config conf.yaml: no such file or directory"),
        ("", "--config conf.yaml: is a directory"),
        (b"source: \xff\n", "conf.yaml:1: not UTF-8 (byte 0xff)"),
        (b"a: [1\nb: 2", "conf.yaml:2: not YAML: did not find expected ',' or ']', while parsing a flow sequence"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, content: str | bytes | None, said: str) -> None:
    """Not a traceback of a YAML library."""
    if isinstance(content, bytes):
        (tmp_path / "conf.yaml").write_bytes(content)
    elif content is not None:
        (tmp_path / "conf.yaml").mkdir()
    code, lines = refused(models.h100(), tmp_path, "--config", "conf.yaml")

    assert code == 2
    assert lines == [f"otelgpu: {said}"]


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    """The commonest mishap: dcgm-exporter still runs. The line says which setting to change."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = refused(models.h100(), tmp_path, environ={"OTELGPU_SERVER_LISTEN": address})

    assert code == 1
    assert said == [f"otelgpu: OTELGPU_SERVER_LISTEN: {address}: another program is using this address"]


# the driver as a whole


@pytest.mark.parametrize("place", ["flag", "variable"])
def test_who_names_nvml_wants_a_driver_at_the_start(tmp_path: Path, place: str) -> None:
    """A service that could never work does not start; a library for another processor is named as such."""
    folder = wrong_architecture(tmp_path / "lib")
    environ = {"LD_LIBRARY_PATH": str(folder)} | ({"OTELGPU_SOURCE": "nvml"} if place == "variable" else {})
    flags = ("--listen", "127.0.0.1:0", "--log-level", "error", *(("--source", "nvml") if place == "flag" else ()))
    code, said = refused(models.h100(), tmp_path, *flags, environ=environ)

    asked_by = "--source" if place == "flag" else "OTELGPU_SOURCE"
    assert code == 1
    assert len(said) == 1
    assert said[0].startswith(f"otelgpu: {asked_by}: nvml: libnvidia-ml.so.1 could not be loaded (libnvidia-ml.so.1: ")
    assert f"; {folder / SONAME} is for " in said[0]
    assert said[0].endswith("or in a container run with the NVIDIA runtime and NVIDIA_DRIVER_CAPABILITIES=utility")


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (models.h100().but(errors={"nvmlInitWithFlags": 9}), "the NVIDIA kernel driver is not loaded"),
        (models.h100().but(errors={"nvmlInitWithFlags": 18}), "of different versions"),
        (models.h100().but(hangs={"nvmlInitWithFlags"}), "the driver does not answer"),
    ],
)
def test_a_driver_that_does_not_answer_at_the_start_is_one_line(tmp_path: Path, broken: Scenario, reason: str) -> None:
    """The reason is in the last line, where people look."""
    flags = ("--listen", "127.0.0.1:0", "--source", "nvml", "--deadline", f"{patient(0.3):g}", "--log-level", "error")
    code, said = refused(broken, tmp_path, *flags)

    assert code == 1
    assert len(said) == 1
    assert said[0].startswith("otelgpu: --source: nvml: ")
    assert reason in said[0]


def test_a_node_without_gpus_is_no_error(tmp_path: Path) -> None:
    """A driver that counts none has answered."""
    with serving(models.none(), tmp_path, "--source", "nvml") as served:
        page = served.page()

    assert values(page, "otelgpu_source_up", "source") == {"nvml": 1}
    assert series(page) == []


def test_a_library_that_never_loads_keeps_only_its_thread(tmp_path: Path) -> None:
    """The folder that the driver is mounted from may hang: the page says so in time, and a signal ends the process."""
    folder = tmp_path / "lib"
    folder.mkdir()
    os.mkfifo(folder / SONAME)  # opened for reading it waits for a writer, for ever
    environ = {"LD_LIBRARY_PATH": str(folder)}
    with serving(models.h100(), tmp_path, "--deadline", "0.3", environ=environ) as served:
        page = served.page()
        code = served.stop()

    assert values(page, "otelgpu_source_up", "source") == {"nvml": 0}
    assert code == 0


def test_auto_waits_for_the_driver(tmp_path: Path) -> None:
    """On a node where the driver is installed later (gpu-operator) the exporter finds it by itself."""
    folder = wrong_architecture(tmp_path / "lib")
    with serving(models.h100(), tmp_path, environ={"LD_LIBRARY_PATH": str(folder)}) as served:
        until(lambda: served.logged("is down") > 0, "a first try")
        before = served.page()
        shutil.copy(fake_library() / SONAME, folder / "whole")
        (folder / "whole").replace(folder / SONAME)
        until(lambda: served.get("/readyz").status == 200, "a driver")
        after = served.page()

    assert series(before) == []
    assert values(before, "otelgpu_source_up", "source") == {"nvml": 0}
    assert served.logged(f"{folder / SONAME} is for ") == 1
    assert served.logged("is back") == 1
    assert len(values(after, POWER)) == 1


# texts

TEXTS = {
    "quotes": b"NVIDIA \"H100\" '80GB'",
    "backslashes": rb"C:\new\\table" + b"\\",
    "newlines": b"first\nsecond\r\nthird\rfourth",
    "utf8": "NVIDIA H100 — 超級 🚀".encode(),
    "invalid-utf8": b"NVIDIA \xff\xfe H\xc3",
    "separators": "a\u2028b\u2029c\u0085d\u000be".encode(),
    "control": b"\x1b[2Jbell\x07\x01\x7f",
    "format": b'x",gpu="9"} 1\n# TYPE e\ne 2',
    "spaces": b"  H100\t ",
}  # a serial has room for 29 bytes


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_of_the_driver_come_through_whole(node: Start, promtool: Path, kind: str) -> None:
    """Whatever stands in a board's memory is a label value, and never a line of its own."""
    raw = TEXTS[kind]
    functions = ("nvmlDeviceGetName", "nvmlDeviceGetSerial", "nvmlDeviceGetUUID", "nvmlDeviceGetVbiosVersion")
    odd = models.h100(2).with_gpu(0, answers=dict.fromkeys(functions, raw))
    fields = (POWER, "DCGM_FI_DEV_NAME", "DCGM_FI_DEV_SERIAL", "DCGM_FI_DEV_UUID", "DCGM_FI_DEV_VBIOS_VERSION")
    page = node(odd, fields=fields).page()
    semconv_page = node(odd, fields=fields, naming="semconv").page()

    text = raw.decode("utf-8", "replace")
    labels, other = samples_of(page, POWER)
    [attributes, _] = samples_of(semconv_page, "hw_power_watts")
    assert {labels[name] for name in ("UUID", "modelName", *(name for name in fields[1:] if name in labels))} == {text}
    assert {attributes[name] for name in ("hw_id", "hw_model", "hw_serial_number", "hw_firmware_version")} == {text}
    assert other["UUID"].startswith("GPU-")
    for each in (page, semconv_page):
        checked = subprocess.run([promtool, "check", "metrics"], input=each.encode(), capture_output=True, check=False)
        assert b"error while linting" not in checked.stderr
        assert checked.returncode in (0, 3)  # 3: matters of style


# devices


def test_a_device_that_is_not_there_is_one_warning(node: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A mistyped index or UUID would else be a page without GPUs and without a word."""
    caplog.set_level("WARNING", "otelgpu")
    picks = tuple(parse_pick(text) for text in ("1", "7", "GPU-0000"))
    running = node(models.h100(2), devices=picks)
    page = running.page()
    said = [record.getMessage() for record in caplog.records if "devices" in record.getMessage()]

    assert set(values(page, "otelgpu_gpu_up")) == {"1"}
    assert said == ["default: devices: no GPU here matches 7", "default: devices: no GPU here matches GPU-0000"]


# numbers

# What a field was seen to answer (blank-and-garbage-values.tsv says where), and how the fake is made to say it.
GARBAGE: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "9223372036854775794": (ENERGY, {"fields": {83: 9223372036854775794}}),
    "9223372036854775792": ("DCGM_FI_DEV_MEMORY_TEMP", {"fields": {82: 9223372036854775792}}),
    "140737488355328.0": (ACTIVE, {"gpm": {1: 140737488355328.0}}),
    "140737488355331.0": (ACTIVE, {"gpm": {1: 140737488355331.0}}),
    "4294967295": (UTIL, {"answers": {"nvmlDeviceGetUtilizationRates": (4294967295, 3)}}),
    "100000": (UTIL, {"answers": {"nvmlDeviceGetUtilizationRates": (100000, 3)}}),
    "3700000": (POWER, {"answers": {"nvmlDeviceGetPowerUsage": 3700000}}),
    "2147483632": ("DCGM_FI_DEV_GPU_TEMP", {"answers": {("nvmlDeviceGetTemperature", 0): 2147483632}}),
    "2147483635": ("DCGM_FI_DEV_SM_CLOCK", {"answers": {("nvmlDeviceGetClockInfo", 1): 2147483635}}),
    "2147483634": ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", {"fields": {94: 2147483634}}),
    "9223372036854775808": (ENERGY, {"fields": {83: 2**63}}),
    "18446744073709551615": (ENERGY, {"fields": {83: 2**64 - 1}}),
    "nan": (ACTIVE, {"gpm": {1: float("nan")}}),
    "inf": (ACTIVE, {"gpm": {1: float("inf")}}),
}


def test_every_number_that_was_seen_is_tried(recordings: Path) -> None:
    """The table above keeps up with what was collected in the field."""
    path = recordings / "dcgm-exporter" / "blank-and-garbage-values.tsv"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    with path.open() as file:
        seen = [row["value"].split(" ")[0] for row in csv.DictReader(file, delimiter="\t")]

    assert [number for number in seen if number[0].isdigit() and number not in GARBAGE] == []


@pytest.mark.parametrize("number", GARBAGE)
def test_a_number_that_cannot_be_true_costs_itself(node: Start, caplog: pytest.LogCaptureFixture, number: str) -> None:
    """It is dropped, counted and logged when it appears and when it clears; the other GPU and fields stay."""
    caplog.set_level("INFO", "otelgpu")
    field, changes = GARBAGE[number]
    good = models.h100(2)
    running = node(good)
    page = running.settled_page if field == ACTIVE else running.page  # a window of GPM takes its time
    before = running.settled_page()
    running.show(good.with_gpu(0, **changes))
    pages = [page() for _ in range(3)]
    running.show(good)
    page()
    after = page()

    dropped = [values(page, DROPPED, "field").get(field, 0) for page in pages]
    logged = [record.getMessage() for record in caplog.records if field in record.getMessage()]
    assert set(values(before, field)) == set(values(after, field)) == {"0", "1"}
    assert set(values(pages[-1], field)) == {"1"}
    assert dropped[-1] == dropped[-2] + 1
    assert names(pages[-1]) == names(before)
    assert ["is dropped" in logged[0], "can be true again" in logged[-1], len(logged)] == [True, True, 2]


def names(page: str) -> set[str]:
    """The families with readings."""
    return {line.partition("{")[0] for line in series(page)}


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_counter_that_is_no_number_costs_its_rate(node: Start, number: float) -> None:
    """A rate is worked out from counters; one that is no number must not take the GPU along."""
    broken = {(code, ALL_LINKS): Typed("f64", number) for code in (138, 139)}
    running = node(models.h100(2))
    before = running.settled_page()
    running.show(models.h100(2).with_gpu(0, fields=broken))
    page = running.settled_page()
    rate = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"

    assert set(values(before, rate)) == {"0", "1"}
    assert set(values(page, rate)) == {"1"}
    assert names(page) == names(before)
    assert values(page, "otelgpu_gpu_up") == {"0": 1, "1": 1}
    assert values(page, DROPPED, "field")[rate] >= 1


@pytest.mark.parametrize("count", [500, 100_000, 4_000_000_000])
def test_a_count_that_cannot_be_true_changes_nothing(node: Start, caplog: pytest.LogCaptureFixture, count: int) -> None:
    """Each GPU gets a thread: a driver in trouble must not be able to ask for a hundred thousand."""
    running = node(models.h100(2))
    threads = threading.active_count()
    running.show(models.h100(2).but(answers={"nvmlDeviceGetCount_v2": count}))
    pages = [running.page() for _ in range(3)]
    running.show(models.h100(2))
    pages.append(running.page())

    assert all(set(values(page, "DCGM_FI_DEV_GPU_TEMP")) == {"0", "1"} for page in pages)
    assert threading.active_count() == threads
    assert sum("cannot be true" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("places", [1_000_000, 4_294_967_295])
def test_places_for_instances_that_cannot_be_true_change_nothing(node: Start, places: int) -> None:
    """A loop over four thousand million places would keep the thread of the GPU for hours."""
    page = node(models.h100_mig()).page()
    odd = node(models.h100_mig().with_gpu(0, answers={"nvmlDeviceGetMaxMigDeviceCount": places})).page()

    assert series(odd) == series(page)


@pytest.mark.parametrize("links", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_number_of_links_that_cannot_be_true_changes_nothing(node: Start, links: float) -> None:
    """It says which links are asked, and is shown nowhere: it must not take the GPU along."""
    usual = node(everything(), fields=("all",)).settled_page()
    odd = everything().with_gpu(0, fields={NVLINK_COUNT: Typed("f64", links)})
    page = node(odd, fields=("all",)).settled_page()

    assert names(page) == names(usual)
    assert len(series(page)) == len(series(usual))


def test_one_uuid_for_two_instances_puts_no_value_under_the_wrong_gpu(caplog: pytest.LogCaptureFixture) -> None:
    """Which of the two a value belongs to could not be told: the first one is shown, the other is missing.

    Put together by hand: the fake driver knows a device by its UUID, so its two would be one.
    """
    used, visible = CATALOGUE[252], CATALOGUE[68]
    samples = []
    for index, number in enumerate((111, 222)):
        gpu = Device(f"GPU-{index}", f"GPU-{index}", index, "H100", f"00000000:0{index}:00.0")
        instance = replace(gpu, uuid="MIG-1", profile="1g.10gb", instance_id=7)
        readings = Reading(used, instance, number), Reading(visible, instance, f"MIG-1 of {index}")
        samples.append(Sample(gpu, (instance,), readings))
    assembler = Assembler([used, visible], heard=lambda _: ())
    for _ in range(2):
        snapshot = assembler.snapshot(
            [GpuState(sample.device, up=True) for sample in samples],
            samples,
            facts=SourceFacts("by hand"),
            reason=None,
            times=Times(1.0, 1.0, 1.0, 0.0),
        )

    assert snapshot.numbers == {252: {"GPU-0/7": 111}}
    assert snapshot.series["GPU-0/7"].device.gpu_uuid == "GPU-0"
    assert snapshot.labels["MIG-1"] == ((visible, "MIG-1 of 0"),)
    assert [(gap.field.id, gap.device.gpu_uuid) for gap in snapshot.missing] == [(252, "GPU-1"), (68, "GPU-1")]
    assert sum("calls itself MIG-1" in record.getMessage() for record in caplog.records) == 1


# in the middle


def test_an_error_on_one_field_costs_that_field(node: Start) -> None:
    """The question that failed is told apart from a GPU that failed."""
    good = models.h100(2)
    running = node(good)
    before = running.settled_page()
    running.show(good.with_gpu(1, errors={"nvmlDeviceGetUtilizationRates": UNKNOWN}))
    page = running.page()
    running.show(good)
    after = running.page()

    lost = {line.rpartition(" ")[0] for line in series(before)} - {line.rpartition(" ")[0] for line in series(page)}
    assert {line.partition("{")[0] for line in lost} == {UTIL, COPY_UTIL}
    assert {line for line in lost if 'gpu="1"' not in line} == set()
    assert values(page, "otelgpu_gpu_up") == {"0": 1, "1": 1}
    assert values(page, "otelgpu_missing", "gap")["failed"] == 2
    assert set(values(after, UTIL)) == {"0", "1"}


@pytest.mark.parametrize(
    "changes",
    [{"lost": True}, {"errors": {"*": LOST}}, {"fields": {83: Code(LOST)}}],
    ids=["lost", "answers-lost", "one-field-lost"],
)
def test_a_gpu_that_fails_costs_itself(
    node: Start, caplog: pytest.LogCaptureFixture, changes: Mapping[str, object]
) -> None:
    """Seven GPUs of a node are watched on while one is replaced; the log has a line for each change."""
    caplog.set_level("INFO", "otelgpu")
    good = models.h100(3)
    running = node(good)
    before = running.settled_page()
    running.show(good.with_gpu(1, **changes))
    pages = [running.page() for _ in range(3)]
    running.show(good)
    running.page()
    after = running.settled_page()

    assert {frozenset(values(page, UTIL)) for page in pages} == {frozenset({"0", "2"})}
    assert {len(series(page)) for page in pages} == {len(series(before)) * 2 // 3}
    assert values(pages[-1], "otelgpu_gpu_up") == {"0": 1, "1": 0, "2": 1}
    assert set(values(after, UTIL)) == {"0", "1", "2"}
    assert sum("(gpu 1) is down" in record.getMessage() for record in caplog.records) == 1
    assert sum("(gpu 1) is back" in record.getMessage() for record in caplog.records) == 1
