"""The simulated node, seen through the Source protocol with a clock that the test turns."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import pytest

from otelgpu.errors import OtelgpuError
from otelgpu.fields import CATALOGUE, DEFAULT_FIELDS, Number
from otelgpu.health import HEALTH
from otelgpu.model import Gap, Reading, Sample
from otelgpu.sources import Source
from otelgpu.sources.simulated import SimulatedSource, SpecError, parse_spec
from otelgpu.sources.simulated.models import MODELS
from otelgpu.sources.simulated.spec import MOST_GPUS
from otelgpu.sources.simulated.stages import PLAIN, REST, SHARED
from tests.conftest import Golden

HOUR = 3600.0
DAY = 24 * HOUR
MEBI = 1024 * 1024

MEMORY_TEMP, GPU_TEMP, POWER, ENERGY, LIMIT = 140, 150, 155, 156, 164
SM_CLOCK, REASONS, UTIL, XID, REPLAYS = 100, 112, 203, 230, 202
TOTAL, FREE, USED, RESERVED = 250, 251, 252, 253
POWER_THROTTLED, HEAT_THROTTLED, CORRECTABLE_ROWS, NVLINK = 240, 241, 394, 449
ENGINE, DRAM = 1001, 1005
IDLE, CAPPED, HOT = 0x1, 0x4, 0x20

EVERY_SPEC = [*MODELS, *(f"{key}-mig" for key, model in MODELS.items() if model.layout)]


@dataclass
class Clock:
    """A clock that stands still until the test turns it."""

    at: float = 1000.0

    def __call__(self) -> float:
        return self.at


def node(spec: str, *ids: int, seed: int = 0) -> tuple[SimulatedSource, Clock]:
    clock = Clock()
    fields = [CATALOGUE[ident] for ident in ids] if ids else CATALOGUE.values()
    return SimulatedSource(fields, spec=spec, seed=seed, clock=clock), clock


def number(sample: Sample, ident: int, uuid: str = "") -> float:
    """The one number of a field on the GPU, or on the instance with that UUID."""
    (found,) = [r for r in sample.readings if r.field.id == ident and r.device.uuid == (uuid or sample.device.uuid)]
    assert not isinstance(found.number, str)
    return found.number


def samples(source: SimulatedSource, clock: Clock, slot: int, *, step: float, seconds: float) -> list[Sample]:
    begin = clock.at
    taken = []
    for turn in range(int(seconds / step)):
        clock.at = begin + turn * step
        taken.append(source.read(slot))
    clock.at = begin
    return taken


def series(readings: tuple[Reading, ...]) -> list[tuple[int, str, int | float | str]]:
    return [(reading.field.id, reading.device.uuid, reading.number) for reading in readings]


@pytest.mark.parametrize("spec", EVERY_SPEC)
def test_all_fields_of_each_model_are_as_reviewed(spec: str, golden: Golden) -> None:
    """What a simulated model has, and does not have, is a promise to whoever tests a dashboard on it."""
    source, clock = node(spec, *sorted(SimulatedSource.readable))
    clock.at += HOUR
    sample = source.read(0)
    instances = {device.uuid: f"0/{device.instance_id}" for device in sample.instances}
    lines = [
        f"{reading.field.name} {instances.get(reading.device.uuid, '0')} "
        f"{' '.join(f'{name}={text}' for name, text in reading.attributes)} {reading.number}"
        for reading in sample.readings
    ]
    lines += [f"{gap.field.name} {instances.get(gap.device.uuid, '0')} - {gap.gap}" for gap in sample.missing]

    golden(f"fields/simulated-{spec}.txt", "".join(f"{' '.join(line.split())}\n" for line in sorted(lines)))


def test_it_is_a_source() -> None:
    """The sampler knows nothing but the protocol."""
    source: Source = SimulatedSource(DEFAULT_FIELDS)

    assert source.count() == 8
    assert source.device(3) == source.read(3).device
    source.close()
    source.close()


@pytest.mark.parametrize("spec", ["8xh100", "2xa100-mig", "4xt4+4xl40s"])
def test_the_same_seed_and_clock_give_the_same_samples(spec: str) -> None:
    """A demonstration that looks different each time, or a golden file that moves, would be of no use."""
    one, first = node(spec, seed=7)
    two, second = node(spec, seed=7)
    second.at = first.at = 1000.0
    for at in (1000.0, 1000.25, 5321.5, 1000.0 + 3 * DAY + 17.0):
        first.at = second.at = at
        for slot in range(one.count()):
            sample = one.read(slot)

            assert sample == one.read(slot)  # reads at one instant agree
            assert series(sample.readings) == series(two.read(slot).readings)


def test_what_was_read_before_changes_nothing() -> None:
    """The state is a function of the time: somebody who looks often sees the same node as somebody who looks rarely."""
    often, clock = node("2xh100")
    rarely, late = node("2xh100")
    samples(often, clock, 1, step=60, seconds=2 * HOUR)
    clock.at = late.at = late.at + 2 * HOUR

    assert series(often.read(1).readings) == series(rarely.read(1).readings)


def test_another_seed_is_another_node() -> None:
    """Two simulated nodes in one Prometheus must not share UUIDs."""
    one, _ = node("4xh100", POWER, seed=1)
    two, _ = node("4xh100", POWER, seed=2)
    uuids = {source.device(slot).uuid for source in (one, two) for slot in range(4)}

    assert len(uuids) == 8


def test_only_the_time_since_the_start_counts() -> None:
    """time.monotonic begins anywhere; the node must not depend on when the machine was booted."""
    early, late = Clock(5.0), Clock(9_000_000.0)
    one = SimulatedSource(DEFAULT_FIELDS, clock=early)
    two = SimulatedSource(DEFAULT_FIELDS, clock=late)
    early.at += 700.0
    late.at += 700.0

    assert series(one.read(0).readings) == series(two.read(0).readings)


def test_energy_is_the_integral_of_power() -> None:
    """Whoever divides the energy of an interval by its length must get the power that was shown in it."""
    source, clock = node("2xh100+1xt4+1xa100-mig", POWER, ENERGY)
    step = 0.05
    for slot in range(source.count()):
        for begin in (0.0, 4000.0, 40_000.0, 90_000.0):
            clock.at = 1000.0 + begin
            taken = samples(source, clock, slot, step=step, seconds=60.0)
            powers = [number(sample, POWER) for sample in taken]
            joules = (number(taken[-1], ENERGY) - number(taken[0], ENERGY)) / 1000
            trapezoid = sum(a + b for a, b in pairwise(powers)) / 2 * step / 1000

            assert joules == pytest.approx(trapezoid, rel=1e-3, abs=0.1)


def test_energy_only_grows() -> None:
    """It is a counter: one step back and rate() shows a spike, also where one simulated day follows the other."""
    source, clock = node("2xh100+1xb200-mig", ENERGY)
    for slot in range(source.count()):
        energies = [number(s, ENERGY) for s in samples(source, clock, slot, step=97.0, seconds=2.5 * DAY)]

        assert all(a < b for a, b in pairwise(energies))


def test_temperature_lags_behind_power() -> None:
    """Heat needs a minute: when power jumps the temperature has hardly moved yet, a few minutes later it has."""
    source, clock = node("1xh100", POWER, GPU_TEMP)
    taken = samples(source, clock, 0, step=1.0, seconds=DAY / 4)
    jumps = [
        at
        for at in range(1, len(taken) - 400)
        if number(taken[at - 1], POWER) < 80_000
        and number(taken[at + 400], POWER) > 400_000
        and number(taken[at], POWER) > 90_000
    ]
    steps = [abs(number(b, GPU_TEMP) - number(a, GPU_TEMP)) for a, b in pairwise(taken)]

    assert jumps
    assert max(steps) <= 1
    for at in jumps:
        assert number(taken[at + 400], GPU_TEMP) - number(taken[at], GPU_TEMP) > 10


@pytest.mark.parametrize("spec", EVERY_SPEC)
def test_every_reading_can_be_true(spec: str) -> None:
    """What lies outside a field's bounds is dropped as garbage further on; the kind of number is the series' kind."""
    source, clock = node(spec)
    kinds = {Number.INT: int, Number.DOUBLE: float, Number.TEXT: str}
    for sample in samples(source, clock, 0, step=613.0, seconds=DAY):
        for field, _, value, _ in sample.readings:
            assert type(value) is kinds[field.number], field.name
            assert isinstance(value, str) or field.lowest <= value <= field.highest, (field.name, value)
        if not sample.instances:
            assert number(sample, POWER) <= number(sample, LIMIT)


@pytest.mark.parametrize("spec", EVERY_SPEC)
def test_every_field_is_answered_or_said_to_be_missing(spec: str) -> None:
    """A field that silently has no value cannot be explained by `otelgpu doctor`; one series twice sums a counter."""
    source, _ = node(spec)
    sample = source.read(0)
    series = [(reading.field.id, reading.device.uuid, reading.attributes) for reading in sample.readings]
    keys = [key[:2] for key in series]
    gaps = [(missing.field.id, missing.device.uuid) for missing in sample.missing]

    assert len(series) == len(set(series))
    assert not set(keys) & set(gaps)
    assert {ident for ident, _ in keys + gaps} == set(CATALOGUE) - {HEALTH}  # which is judged of the others
    assert {missing.gap for missing in sample.missing} == {Gap.UNSUPPORTED}
    assert all(missing.reason for missing in sample.missing)
    assert {ident for ident, _ in keys} <= source.readable <= set(CATALOGUE)


@pytest.mark.parametrize("spec", EVERY_SPEC)
def test_memory_adds_up_and_follows_the_jobs(spec: str) -> None:
    """The size of the memory is used + free + reserved, always; jobs take it in a few steps, not as a ramp."""
    source, clock = node(spec, TOTAL, FREE, USED, RESERVED)
    seen: dict[str, set[float]] = {}
    for sample in samples(source, clock, 0, step=60.0, seconds=DAY):
        for device in sample.instances or (sample.device,):
            total, free, used, reserved = (
                number(sample, ident, device.uuid) for ident in (TOTAL, FREE, USED, RESERVED)
            )
            seen.setdefault(device.uuid, set()).add(used)

            assert used + free + reserved == total
            assert min(used, free) > 0
    for levels in seen.values():
        assert 4 < len(levels) < 80


@pytest.mark.parametrize("spec", ["8xh100", "1xrtx4090", "4xt4+2xl40s"])
def test_a_day_shows_all_that_a_dashboard_is_for(spec: str) -> None:
    """Somebody who works on a dashboard or an alert needs each of these to happen without waiting for a real fault."""
    source, clock = node(spec, REASONS, UTIL, XID, SM_CLOCK)
    reasons: Counter[int] = Counter()
    utils, xids, clocks = set(), set(), set()
    for slot in range(source.count()):
        for sample in samples(source, clock, slot, step=120.0, seconds=DAY):
            reasons[int(number(sample, REASONS))] += 1
            utils.add(number(sample, UTIL))
            xids.add(number(sample, XID))
            clocks.add(number(sample, SM_CLOCK))

    assert set(reasons) == {0, IDLE, CAPPED, HOT}
    assert min(utils) == 0
    assert max(utils) >= 97
    assert len(utils) > 40
    assert xids - {0}
    assert len(clocks) > 4


def test_time_spent_throttled_is_counted_exactly() -> None:
    """The counters and the mask of reasons tell the same story."""
    source, clock = node("1xh100", REASONS, POWER_THROTTLED, HEAT_THROTTLED, SM_CLOCK, GPU_TEMP)
    step = 10.0
    taken = samples(source, clock, 0, step=step, seconds=DAY)
    for ident, reason in ((POWER_THROTTLED, CAPPED), (HEAT_THROTTLED, HOT)):
        counted = (number(taken[-1], ident) - number(taken[0], ident)) / 1e9
        seen = step * sum(number(sample, REASONS) == reason for sample in taken)

        assert counted == pytest.approx(seen, abs=12 * step)
        assert counted > HOUR / 10
    for sample in taken:
        if number(sample, REASONS) == HOT:
            assert number(sample, GPU_TEMP) == MODELS["h100"].highest_c[0]
            assert number(sample, SM_CLOCK) < MODELS["h100"].sm_mhz[1]


def test_xids_come_one_after_the_other_and_stay() -> None:
    """The field holds the last XID: it never goes back to 0, and the node has about one in six hours."""
    source, clock = node("4xh100", XID)
    changes = 0
    for slot in range(4):
        codes = [number(sample, XID) for sample in samples(source, clock, slot, step=300.0, seconds=8 * DAY)]
        seen = codes.index(next(code for code in codes if code))
        changes += sum(a != b for a, b in pairwise(codes))

        assert all(codes[seen:])
    assert 12 <= changes <= 32  # equal codes in a row do not show


@pytest.mark.parametrize("ident", [REPLAYS, 310, 312])
def test_rare_errors_are_rare_and_only_grow(ident: int) -> None:
    """Error counters that stand still show nothing, and ones that race hide the real alert."""
    source, clock = node("8xh100", ident)
    grown = 0.0
    for slot in range(8):
        counts = [number(sample, ident) for sample in samples(source, clock, slot, step=HOUR, seconds=10 * DAY)]
        grown += counts[-1] - counts[0]

        assert counts == sorted(counts)
    assert 0 < grown < 400


def test_gpus_that_work_together_have_the_same_jobs() -> None:
    """With NVLink a job spans GPUs: they are busy at the same time, though not with the same power."""
    source, clock = node("4xh100", UTIL, POWER, NVLINK)
    pairs = list(zip(*(samples(source, clock, slot, step=300.0, seconds=DAY) for slot in range(2)), strict=True))

    assert all((number(a, UTIL) == 0) == (number(b, UTIL) == 0) for a, b in pairs)
    assert any(number(a, POWER) != number(b, POWER) for a, b in pairs)
    assert any(number(a, NVLINK) > 1e9 for a, _ in pairs)


@pytest.mark.parametrize(
    ("spec", "ident"),
    [
        ("t4", MEMORY_TEMP),
        ("t4", CORRECTABLE_ROWS),
        ("v100", CORRECTABLE_ROWS),
        ("l4", NVLINK),
        ("rtx4090", NVLINK),
        ("rtx3090", 310),
        ("a100", ENGINE),
        ("l40s", DRAM),
        ("h100", 191),
        ("rtx5090", 53),
        ("h100-mig", UTIL),
    ],
)
def test_a_model_does_not_answer_what_the_product_cannot(spec: str, ident: int) -> None:
    """dcgm-exporter shows a T4 with a memory temperature of 0; here, as on real hardware, there is none."""
    source, _ = node(spec, ident)
    sample = source.read(0)

    assert not sample.readings
    assert {missing.gap for missing in sample.missing} == {Gap.UNSUPPORTED}


@pytest.mark.parametrize("spec", [spec for spec in EVERY_SPEC if spec.endswith("-mig")])
def test_mig_instances_answer_for_themselves_and_the_gpu_for_the_board(spec: str) -> None:
    """Memory of a partitioned GPU is shown once, on the instances; power once, on the GPU: sums stay right."""
    source, _ = node(spec, POWER, GPU_TEMP, SM_CLOCK, TOTAL, USED, ENGINE)
    sample = source.read(0)
    model = MODELS[spec.removesuffix("-mig")]
    board = {reading.field.id for reading in sample.readings if reading.device is sample.device}
    on_instances = Counter(reading.field.id for reading in sample.readings if reading.device is not sample.device)
    total = sum(number(sample, TOTAL, device.uuid) for device in sample.instances)

    assert board == {POWER, GPU_TEMP, SM_CLOCK}
    assert on_instances == {TOTAL: 4, USED: 4} | ({ENGINE: 4} if model.gpm else {})
    assert 0.8 * model.memory_mib * MEBI < total < model.memory_mib * MEBI
    assert sum(int(device.profile[0]) for device in sample.instances) == 7
    assert {device.gpu_uuid for device in sample.instances} == {sample.device.uuid}
    assert len({device.instance_id for device in sample.instances}) == 4


def test_the_power_of_a_partitioned_gpu_is_made_of_its_instances() -> None:
    """A share of the board's energy for each pod must find power where the instances were busy."""
    source, clock = node("h100-mig", POWER, ENGINE)
    idle, busy = [], []
    for sample in samples(source, clock, 0, step=60.0, seconds=DAY):
        work = sum(number(sample, ENGINE, device.uuid) * int(device.profile[0]) / 7 for device in sample.instances)
        if work == 0:
            idle.append(number(sample, POWER))
        elif work > 60:
            busy.append(number(sample, POWER))

    assert busy
    assert max(idle, default=0.0) < 110_000
    assert min(busy) > 250_000


def test_identities_look_like_real_ones() -> None:
    """Relabelling rules and joins with other exporters match on these forms."""
    source, _ = node("8xh100+2xa100-mig+2xrtx4090")
    devices = [source.device(slot) for slot in range(source.count())]
    instances = [device for slot in range(source.count()) for device in source.read(slot).instances]

    assert [device.index for device in devices] == list(range(12))
    assert len({device.uuid for device in devices + instances}) == 12 + 8
    assert all(device.uuid.startswith("GPU-") and len(device.uuid) == 40 for device in devices)
    assert all(device.uuid.startswith("MIG-") and len(device.uuid) == 40 for device in instances)
    assert [d.pci_bus_id for d in devices] == sorted({d.pci_bus_id for d in devices})
    assert all(device.pci_bus_id == device.pci_bus_id.upper() and len(device.pci_bus_id) == 16 for device in devices)
    assert all(device.serial.isdigit() and len(device.serial) == 13 for device in devices[:10])
    assert {device.serial for device in devices[10:]} == {""}
    assert [device.profile for device in instances[:4]] == ["3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"]


def test_facts_say_that_this_is_no_real_node() -> None:
    """A simulated node that could be taken for a real one would be worse than none."""
    facts = node("2xL4")[0].facts()

    assert facts.simulated
    assert (facts.name, facts.detail, facts.driver_version) == ("simulated", "2xL4", "570.124.06")


@pytest.mark.parametrize(
    ("text", "models"),
    [
        ("8xh100", ["NVIDIA H100 80GB HBM3"] * 8),
        ("H200", ["NVIDIA H200"]),
        (" 2 x A100-MIG ", ["NVIDIA A100-SXM4-40GB"] * 2),
        ("1xt4 + 2xRTX5090", ["Tesla T4", "NVIDIA GeForce RTX 5090", "NVIDIA GeForce RTX 5090"]),
        ("64xb200", ["NVIDIA B200"] * 64),
    ],
)
def test_a_spec_names_the_gpus_in_order(text: str, models: list[str]) -> None:
    """The slots follow the text, so that `gpu="0"` is what was written first."""
    source, _ = node(text, POWER)

    assert [source.device(slot).model for slot in range(source.count())] == models
    assert sum(part.number for part in parse_spec(text)) == len(models)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a part is empty"),
        ("8xh100+", "a part is empty"),
        ("8xk80", 'there is no model "k80"'),
        ("0xh100", '"0xh100" is no GPU at all'),
        ("-1xh100", '"-1xh100" is not a count and a model'),
        ("8*h100", '"8*h100" is not a count and a model'),
        ("٣xh100", '"٣xh100" is not a count and a model'),
        ("8xl\u212a0", '"8xl\u212a0" is not a count and a model'),
        ("4xt4-mig", "t4 cannot be partitioned"),
        ("65xh100", "65 GPUs are too many"),
        ("60xh100+5xt4", "65 GPUs are too many"),
        ("h100-mig-mig", '"h100-mig-mig" is not a count and a model'),
    ],
)
def test_a_wrong_spec_says_what_would_be_right(text: str, problem: str) -> None:
    """The user sees one line and can correct the text without looking anything up."""
    with pytest.raises(SpecError) as caught:
        node(text, POWER)
    message = str(caught.value)

    assert isinstance(caught.value, OtelgpuError)
    assert isinstance(caught.value, ValueError)
    assert message.startswith(f'simulated node "{text}": {problem}; write [COUNTx]MODEL[-mig]')
    assert all(word in message for word in (*MODELS, "8xh100", str(MOST_GPUS)))
    assert "\n" not in message


def test_no_wave_is_ever_cut_off() -> None:
    """Energy is integrated in closed form, which holds only while the load stays between nothing and everything."""
    for job in (*PLAIN, *SHARED):
        for stage in (*job.opening, *job.repeated, REST):
            assert stage.load - stage.swell - stage.ripple >= 0
            assert stage.load + stage.swell + stage.ripple <= 1


def test_what_is_counted_agrees_with_what_is_seen() -> None:
    """The counts of a demonstration come from its own XIDs and clocks: a dashboard shows both side by side."""
    source, clock = node("2xh100", REASONS, XID, 9001, 9002, 9005, 9006)
    clock.at += 5.1 * HOUR  # the first XID and all that is counted here come soon after
    first = counted(source.read(0), 9006)
    before: dict[tuple[int, str], int | float] = {}
    last: dict[str, float] = {}
    begun: Counter[str] = Counter()
    bits = {IDLE: "gpu_idle", CAPPED: "power_cap", HOT: "sw_thermal"}
    mask = int(number(source.read(0), REASONS))
    codes: set[int] = set()
    for sample in samples(source, clock, 0, step=1.0, seconds=1.8 * HOUR):
        codes.add(int(number(sample, XID)))
        now = int(number(sample, REASONS))
        begun.update(word for bit, word in bits.items() if now & ~mask & bit)
        mask = now
        last = counted(sample, 9006)
        totals = {(ident, word): value for ident in (9005, 9006) for word, value in counted(sample, ident).items()}
        assert all(totals[key] >= value for key, value in before.items())
        before = totals
        assert all(value <= 300 for value in counted(sample, 9002).values())

    assert {word: value - first[word] for word, value in last.items() if value > first[word]} == begun
    assert begun.keys() == {"gpu_idle", "power_cap"}
    assert {int(code) for (ident, code), value in before.items() if ident == 9005 and value} == codes - {0} != set()


def test_counts_of_the_window_are_its_samples() -> None:
    """A GPU that did nothing for the whole window was idle in every sample; an XID leaves the window again."""
    source, clock = node("1xh100", 9001, 9002)
    begin, seen = clock.at, set[float]()
    for minute in range(0, 24 * 60, 5):
        clock.at = begin + 600 + 60 * minute
        seen |= set(counted(source.read(0), 9002).values())
    clock.at = begin + DAY
    found = counted(source.read(0), 9001)

    assert {0, 300} <= seen
    assert set(found.values()) == {0}


def counted(sample: Sample, ident: int) -> dict[str, float]:
    """The numbers of a field by the label that tells its series apart."""
    return {
        reading.attributes[-1][1]: float(reading.number) for reading in sample.readings if reading.field.id == ident
    }
