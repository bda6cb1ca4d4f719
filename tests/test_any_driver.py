"""Whatever a driver answers: the page can be read, tells nothing twice, shows nothing impossible, and explains gaps.

Rule 1: a driver here is a real model with anything broken: error codes, garbage, lost GPUs, MIG layouts, XIDs, texts.
Rule 2: what is asserted holds for all of them; what one of them is worth is asserted elsewhere.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from otelgpu.export.page import Format
from otelgpu.fields import CATALOGUE
from otelgpu.model import Gap, Snapshot
from otelgpu.sources.nvml import NvmlSource
from tests.fakelib.control import Written
from tests.fakenvml import Code, Gpu, Scenario, Typed, models
from tests.fakenvml.build import functions
from tests.fakenvml.everything import everything
from tests.fakenvml.scenario import FieldAnswer, Instance
from tests.harness import Node, lines_of
from tests.test_catalogue import ANY_WORD, WIDE

Start = Callable[..., Node]

# 1 to 28 but for those that mean an argument of ours was wrong, and two that nobody has documented.
CODES = (1, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 23, 25, 26, 27, 28, 999, 4242)
WHOLE = (0, 1, 2, 7, 99, 101, 255, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -1)
REAL = (0.0, -0.0, 0.5, 1.0, 100.0, 100.5, -1.0, 1e300, -1e300, math.inf, -math.inf, math.nan)
ONES32 = 2**32 - 1
SENTINELS = frozenset({ONES32, 2**64 - 1})  # NVML_VALUE_NOT_AVAILABLE, of 32 and 64 bits
BYTES = "By"  # of which there may be one less than 4 GiB
TEXTS = ("", " ", '"', "\\", "a\nb", "{}=,", "\x00", "\x07", "é", b"\xff\xfe", "N/A", "x" * 63)
DRIVERS = (None, "", "390.157", "470.256.02", "535.183.01", "550.54.15", "570.124.06", "580.105.08", "999", "ä.b")
CHANGED = tuple(
    sorted(name for name in functions() if name.startswith(("nvmlDevice", "nvmlGpuInstance", "nvmlSystem", "nvmlGpm")))
)
TEXT_FUNCTIONS = (
    *("nvmlDeviceGetName", "nvmlDeviceGetSerial", "nvmlDeviceGetVbiosVersion", "nvmlDeviceGetBoardPartNumber"),
    "nvmlDeviceGetInforomImageVersion",
)
MODELS = (*(make for name, make in models.MAKERS.items() if name != "crowd"), everything)
# Without XIDs and clock events, whose threads take half a second to end; `SLOW` has them.
NEVER = {"DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_XID_ERRORS_TOTAL"}
NEVER |= {"DCGM_EXP_CLOCK_EVENTS_COUNT", "DCGM_EXP_CLOCK_EVENTS_TOTAL"}
READ = [field for field in CATALOGUE.values() if field.id in NvmlSource.readable and not 9100 <= field.id < 9200]
QUICK = tuple(field.name for field in READ if field.name not in NEVER)
SLOW = tuple(field.name for field in READ)


def pieces(values: tuple[FieldAnswer, ...]) -> st.SearchStrategy[FieldAnswer]:
    return st.one_of(st.sampled_from(values), st.sampled_from(CODES).map(Code))


METRIC = st.one_of(st.sampled_from(REAL), st.sampled_from(CODES).map(Code))
FIELD = pieces((*WHOLE, *(Typed("f64", number) for number in REAL), *(Typed("i64", n) for n in (-1, -(2**63))), None))


D = TypeVar("D", Gpu, Instance)


@st.composite
def broken(draw: st.DrawFn, device: D) -> D:
    """A device with some answers changed."""
    asked = sorted({key if isinstance(key, str) else str(key[0]) for key in device.answers}) or ["nvmlDeviceGetName"]
    garbage = st.one_of(st.none(), st.sampled_from(WHOLE), st.tuples(*[st.sampled_from(WHOLE)] * 4))
    answers = draw(st.dictionaries(st.sampled_from(asked), garbage, max_size=4))
    answers |= draw(st.dictionaries(st.sampled_from(TEXT_FUNCTIONS), st.sampled_from((None, *TEXTS)), max_size=2))
    return device.but(
        answers=answers,
        errors=draw(st.dictionaries(st.sampled_from(CHANGED), st.sampled_from(CODES), max_size=4)),
        fields=draw(st.dictionaries(st.integers(1, 289), FIELD, max_size=12)),
        gpm=draw(st.dictionaries(st.integers(1, 60), METRIC, max_size=6)),
    )


@st.composite
def layouts(draw: st.DrawFn, gpu: Gpu) -> Gpu:
    """A GPU with some of its MIG instances, and those broken."""
    if not gpu.instances or draw(st.booleans()):
        return gpu
    kept = draw(st.sets(st.integers(0, len(gpu.instances) - 1)))
    parts = [draw(broken(part)) if part and n in kept else None for n, part in enumerate(gpu.instances)]
    return gpu.but(instances=tuple(parts))


@st.composite
def scenarios(draw: st.DrawFn, model: Scenario) -> Scenario:
    """A machine of one model in some state."""
    gpus: list[Gpu] = []
    for gpu in model.gpus:
        changed = draw(layouts(draw(broken(gpu)) if draw(st.booleans()) else gpu))
        state = draw(st.sampled_from(("well", "well", "well", "lost", "gone", "unnamed", "all-fails")))
        if state in ("lost", "gone"):
            changed = changed.but(**{state: True})
        elif state == "unnamed":
            changed = changed.but(uuid=draw(st.sampled_from(("", "GPU-", 'GPU-\n"', model.gpus[0].uuid))))
        elif state == "all-fails":
            changed = changed.but(errors={"*": draw(st.sampled_from(CODES))})
        gpus.append(changed)
    scenario = model.but(
        gpus=tuple(gpus),
        driver=draw(st.sampled_from(DRIVERS)),
        errors=draw(st.dictionaries(st.sampled_from(CHANGED), st.sampled_from(CODES), max_size=2)),
        removed_code=draw(st.sampled_from((None, 2, 3))),
    )
    for code in draw(st.lists(st.sampled_from((0, 13, 79, 998, 2**31)), max_size=2)) if gpus else ():
        scenario = scenario.with_xid(draw(st.integers(0, len(gpus) - 1)), code)
    return scenario


@st.composite
def lives(draw: st.DrawFn) -> tuple[Scenario, ...]:
    """Some states of one machine, in the order in which they come."""
    model = draw(st.sampled_from(MODELS))()
    return tuple(draw(st.lists(scenarios(model), min_size=1, max_size=3)))


NAMINGS = st.sampled_from((("dcgm", "4.8.2"), ("dcgm", "4.8.3"), ("dcgm", "4.9"), ("semconv", "4.8.2")))


def check_page(page: str, form: Format) -> None:
    """It can be read by Prometheus' own parser, and no series stands there twice."""
    parse = openmetrics_families if form is Format.OPENMETRICS else text_string_to_metric_families
    families = list(parse(page))
    seen = Counter(
        (sample.name, tuple(sorted(sample.labels.items()))) for family in families for sample in family.samples
    )
    names = Counter(family.name for family in families)

    assert not [series for series, count in seen.items() if count > 1]
    assert not [name for name, count in names.items() if count > 1]
    for line in lines_of(page.removesuffix("# EOF\n")):
        if line.name.startswith(("DCGM_", "hw_")):
            assert math.isfinite(line.value), line


def check_snapshot(snapshot: Snapshot, wanted: frozenset[int]) -> None:
    """Every number is within what its field can have, and what has none says why."""
    told = {(gap.field.id, gap.device.gpu_uuid) for gap in snapshot.missing}
    for gap in snapshot.missing:
        assert gap.reason
    for id_, numbers in snapshot.numbers.items():
        field = CATALOGUE[id_]
        for key, number in numbers.items():
            assert field.lowest <= number <= field.highest, (field.name, number)
            # Whatever may be any word, and 32 ones in a field that may have more bits than that.
            is_wide = number == ONES32 and (field.is_total or field.unit == BYTES or field.id in WIDE)
            assert number not in SENTINELS or is_wide or field.id in ANY_WORD, field.name
            told.add((id_, snapshot.series[key].device.gpu_uuid))
    gpus = {uuid: device.gpu_uuid for uuid, device in snapshot.devices().items()}
    for uuid, rows in snapshot.labels.items():
        told |= {(field.id, gpus.get(uuid, uuid)) for field, _ in rows}
    for state in snapshot.states:
        if not state.up:
            assert isinstance(state.gap, Gap)
            assert state.reason
            continue
        untold = [CATALOGUE[id_].name for id_ in sorted(wanted) if (id_, state.device.uuid) not in told]
        assert not untold, state.device
    assert snapshot.source_up or snapshot.source_reason


def check_life(node: Start, life: Sequence[Written], naming: tuple[str, str], fields: tuple[str, ...]) -> None:
    running = node(life[0], fields=fields, naming=naming[0], compat=naming[1])
    wanted = frozenset(field.id for field in running.pipeline.fields)
    try:
        for scenario in life:
            running.show(scenario)
            snapshot = running.sweep()
            check_snapshot(snapshot, wanted)
            forms = (Format.TEXT, Format.OPENMETRICS) if naming[0] == "semconv" else (Format.TEXT,)
            for form in forms:
                check_page(running.page(sweep=False, form=form), form)
            event(f"up: {sum(state.up for state in snapshot.states)}")
    finally:
        running.stop()


@settings(max_examples=20, derandomize=True, database=None, suppress_health_check=[*HealthCheck])
@given(life=lives(), naming=NAMINGS)
def test_any_driver_gets_a_true_page(life: tuple[Scenario, ...], naming: tuple[str, str], node: Start) -> None:
    """The same few each time; `make soak` tries many more."""
    check_life(node, life, naming, QUICK)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of a scenario that holds; nobody prints it
@settings(max_examples=500, database=None, suppress_health_check=[*HealthCheck], print_blob=True)
@given(life=lives(), naming=NAMINGS)
def test_many_more_drivers_get_a_true_page(life: tuple[Scenario, ...], naming: tuple[str, str], node: Start) -> None:
    """Others each time, and with what is told by events."""
    check_life(node, life, naming, SLOW)
