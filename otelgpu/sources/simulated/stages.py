"""What jobs look like: the stages they go through, as tables.

Rule 1: a stage says how an engine is used while it lasts, in shares of what the GPU can do; nothing here knows a model.
Rule 2: load - swell - ripple >= 0 and load + swell + ripple <= 1 (a test holds it), so that no wave is ever cut off
        and every integral over it stays exact.
Rule 3: to add a kind of job, add its stages and name it in PLAIN or SHARED.
"""

from typing import NamedTuple


class Mix(NamedTuple):
    """Shares of a busy engine's time; `occupancy` is of warps, `decode` and `encode` are of the media engines."""

    sm: float = 0.0
    occupancy: float = 0.0
    tensor: float = 0.0
    dram: float = 0.0
    fp64: float = 0.0
    fp32: float = 0.0
    fp16: float = 0.0
    integer: float = 0.0
    decode: float = 0.0
    encode: float = 0.0


class Stage(NamedTuple):
    """One stage of a job. `draw` is the share of the power budget that a fully loaded engine takes in it.

    The load is load + swell * slow wave + ripple * fast wave; `memory`, `link`, `rx` and `tx` (PCIe) are shares of
    the job's peak and of the line rates.
    """

    seconds: tuple[float, float]  # shortest, longest
    load: float = 0.0
    swell: float = 0.0
    swell_s: float = 60.0
    ripple: float = 0.0
    ripple_s: float = 2.0
    draw: float = 0.0
    memory: float = 1.0
    link: float = 0.0
    rx: float = 0.0005
    tx: float = 0.0003
    mix: Mix = Mix()
    awake: bool = True  # a process holds the GPU: full clocks
    capped: bool = False  # wants more power than the limit allows


class Job(NamedTuple):
    """Stages that open a job, and stages that are gone through again and again."""

    opening: tuple[Stage, ...]
    repeated: tuple[Stage, ...]
    times: tuple[int, int]


_TRANSFORMER = Mix(sm=0.9, occupancy=0.34, tensor=0.52, dram=0.55, fp32=0.11, fp16=0.07, integer=0.12)
_DENSE = Mix(sm=0.97, occupancy=0.42, tensor=0.81, dram=0.48, fp32=0.14, fp16=0.05, integer=0.1)
_TOKENS = Mix(sm=0.62, occupancy=0.21, tensor=0.24, dram=0.78, fp32=0.06, fp16=0.12, integer=0.09, decode=0.2)
_SOLVER = Mix(sm=0.83, occupancy=0.55, dram=0.66, fp64=0.38, fp32=0.21, integer=0.17, encode=0.1)

REST = Stage((300, 1500), swell_s=47, memory=0.0, awake=False)
SETTLE = REST._replace(seconds=(900, 900))

_LOADING = (
    Stage((8, 20), load=0.02, draw=0.5, memory=0.3, rx=0.12),
    Stage((8, 20), load=0.04, draw=0.5, memory=0.65, rx=0.18),
    Stage((10, 30), load=0.06, draw=0.5, memory=0.9, rx=0.1),
)
_STEPS = Stage(
    (1200, 2400),
    load=0.87,
    swell=0.03,
    swell_s=240,
    ripple=0.09,
    ripple_s=1.7,
    draw=0.88,
    link=0.24,
    rx=0.03,
    tx=0.01,
    mix=_TRANSFORMER,
)
_CHECKPOINT = Stage((12, 30), load=0.07, draw=0.5, tx=0.22)
_BURN = Stage(
    (2400, 3600),
    load=0.98,
    swell=0.01,
    swell_s=180,
    ripple=0.008,
    ripple_s=3.1,
    draw=1.0,
    link=0.31,
    rx=0.02,
    tx=0.01,
    mix=_DENSE,
    capped=True,
)
_SERVE = Stage(
    (3600, 7200),
    load=0.5,
    swell=0.32,
    swell_s=900,
    ripple=0.14,
    ripple_s=11,
    draw=0.72,
    link=0.04,
    rx=0.006,
    tx=0.008,
    mix=_TOKENS,
)
_SOLVE = Stage(
    (600, 1800),
    load=0.62,
    swell=0.2,
    swell_s=90,
    ripple=0.1,
    ripple_s=5,
    draw=0.64,
    memory=0.7,
    link=0.08,
    rx=0.05,
    tx=0.04,
    mix=_SOLVER,
)

TRAINING = Job(_LOADING, (_STEPS, _CHECKPOINT), (2, 5))
DEMANDING = Job(_LOADING, (_BURN, _CHECKPOINT), (1, 2))
INFERENCE = Job(_LOADING[:2], (_SERVE,), (1, 2))
SOLVING = Job(_LOADING[:1], (_SOLVE,), (1, 3))

PLAIN = (TRAINING, INFERENCE, DEMANDING, SOLVING, INFERENCE, TRAINING)  # a GPU by itself
SHARED = (INFERENCE, SOLVING, TRAINING, INFERENCE)  # a slice of one: never meets the board's limits alone
