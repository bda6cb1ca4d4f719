"""Whatever an engine answers: the page can be read, tells nothing twice, shows nothing impossible, and explains gaps.

Rule 1: an engine here is a real model with anything broken: codes, blanks, garbage, times, lost GPUs, instances, XIDs.
Rule 2: what is asserted is what tests/test_any_driver.py asserts of a driver.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otelgpu.fields import CATALOGUE
from otelgpu.sources.dcgm.readable import READABLE, XID_ERRORS
from tests.fakedcgm import Blank, Code, Gpu, GpuInstance, Growing, Past, Scenario, Status, Time, Timed, models
from tests.fakedcgm.scenario import Value
from tests.harness import Node
from tests.test_any_driver import NAMINGS, TEXTS, check_life

Start = Callable[..., Node]

CODES = (-1, -3, -6, -10, -11, -12, -13, -14, -15, -16, -17, -18, -19, -20, -21, -29, -33, -56, -57, -67, -4242, 7)
WHOLE = (0, 1, 99, 101, 0x7FFFFFF0, 0x7FFFFFF3, 2**32 - 2, 2**47, 2**63 - 17, 2**63 - 14, 2**63 - 1, -1, -(2**63))
REAL = (0.0, -0.0, 0.57, 100.5, -1.0, 2.0**47 - 1, 2.0**47 + 2, 1e300, -1e300, math.inf, -math.inf, math.nan, 5e-324)
LONG = (*TEXTS, "x" * 256, b"\xff" * 256, "<<<", "<<<ANYTHING>>>", "<<<NOT_PERM>>>")
ATTRIBUTES = (*(text for text in LONG if isinstance(text, str) and len(text) < 256), None)
TIMES = st.sampled_from((Time(at=0), Time(at=-5), Time(at=2**62, step=-1), Time(age=-3600.0), Time(age=1e6), None))
CHANGED = (
    *("dcgmGetAllDevices", "dcgmGetGpuStatus", "dcgmGetDeviceAttributes", "dcgmGetGpuInstanceHierarchy"),
    *("dcgmProfGetSupportedMetricGroups", "dcgmGroupCreate", "dcgmGroupAddEntity", "dcgmFieldGroupCreate"),
    *("dcgmWatchFields", "dcgmUnwatchFields", "dcgmGroupDestroy", "dcgmFieldGroupDestroy", "dcgmUpdateAllFields"),
    *("dcgmEntitiesGetLatestValues", "dcgmGetValuesSince_v2", "dcgmHostengineVersionInfo", "dcgmConnect_v2"),
)
ERRORS = st.dictionaries(st.sampled_from(CHANGED), st.sampled_from(CODES), max_size=2)
READ = sorted(id_ for id_ in READABLE if id_ < 9000 and id_ != XID_ERRORS)
MODELS = (lambda: models.h100(3), models.mixed, models.a100_mig, models.none)
FATES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.builds(dict, status=st.sampled_from(Status)),
    st.just({"gone": True}),
    st.just({"profiling": ()}),
    st.sampled_from(CODES).map(lambda code: {"errors": {"*": code}}),
)
NAMES = st.dictionaries(
    st.sampled_from(("name", "pci", "serial", "driver", "vbios")), st.sampled_from(ATTRIBUTES), max_size=2
)
NO_UUIDS = ("", "<<<NULL>>>", 'GPU-\n"', "x" * 255)
D = TypeVar("D", Gpu, GpuInstance)


def answers(id_: int) -> st.SearchStrategy[Value]:
    """What a field may have: of its own type, or none."""
    number = CATALOGUE[id_].dcgm.number
    of_type: tuple[Any, ...] = {"int": WHOLE, "double": REAL, "text": LONG}[number]
    value = st.one_of(st.sampled_from(of_type), st.sampled_from(Blank), st.sampled_from(CODES).map(Code))
    if number != "text":
        value = st.one_of(value, st.builds(Growing, st.just(1000), st.sampled_from((-7, 1))))
    return st.one_of(value, st.builds(Timed, value, TIMES.filter(bool)))


@st.composite
def broken(draw: st.DrawFn, device: D) -> D:
    """A device with some answers changed."""
    ids = draw(st.lists(st.sampled_from(READ), max_size=12, unique=True))
    return device.but(fields={id_: draw(answers(id_)) for id_ in ids}, errors=draw(ERRORS), time=draw(TIMES))


@st.composite
def scenarios(draw: st.DrawFn, model: Scenario) -> Scenario:
    """A machine of one model in some state."""
    gpus: list[Gpu] = []
    for number, gpu in enumerate(model.gpus):
        changed = (draw(broken(gpu)) if draw(st.booleans()) else gpu).but(id=number, **draw(NAMES))
        kept = draw(st.lists(st.sampled_from(gpu.instances), unique_by=id)) if gpu.instances else ()
        changed = changed.but(instances=tuple(draw(broken(part)) for part in kept))
        changed = changed.but(
            **draw(FATES), uuid=draw(st.sampled_from((*[gpu.uuid] * 9, *NO_UUIDS, model.gpus[0].uuid)))
        )
        past = draw(st.lists(st.tuples(st.integers(-1, 2**62), st.sampled_from((0, 13, 79, -1, 2**40))), max_size=2))
        gpus.append(changed.but(fields={XID_ERRORS: Past(tuple(past))}) if past else changed)
    gpus = draw(st.permutations(gpus)) if draw(st.booleans()) else gpus
    return model.but(
        gpus=tuple(gpus),
        errors=draw(ERRORS),
        time=draw(TIMES),
        gone=draw(st.sampled_from((False, False, False, True))),
        engine=draw(st.sampled_from((1, 1, 2))),
        release=draw(st.sampled_from(("4.6.0", "3.3.9", ""))),
        no_nvml=draw(st.sampled_from((False, False, False, True))),
        no_profiling=draw(st.booleans()),
        unknown=draw(st.sets(st.sampled_from(READ), max_size=3)),
    )


@st.composite
def lives(draw: st.DrawFn) -> tuple[Scenario, ...]:
    """Some states of one machine, in the order in which they come."""
    model = draw(st.sampled_from(MODELS))()
    return tuple(draw(st.lists(scenarios(model), min_size=1, max_size=3)))


@settings(max_examples=20, derandomize=True, database=None, suppress_health_check=[*HealthCheck])
@given(life=lives(), naming=NAMINGS)
def test_any_engine_gets_a_true_page(life: tuple[Scenario, ...], naming: tuple[str, str], dcgm_node: Start) -> None:
    """The same few each time; `make soak` tries many more."""
    check_life(dcgm_node, life, naming, ("all",))


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@settings(max_examples=500, database=None, suppress_health_check=[*HealthCheck], print_blob=True)
@given(life=lives(), naming=NAMINGS)
def test_many_more_engines_get_a_true_page(
    life: tuple[Scenario, ...], naming: tuple[str, str], dcgm_node: Start
) -> None:
    """Others each time."""
    check_life(dcgm_node, life, naming, ("all",))
