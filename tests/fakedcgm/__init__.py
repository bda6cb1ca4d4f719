"""A fake DCGM: a `libdcgm.so.4` (or `.so.3`) in C, driven by a scenario file.

    from tests.fakedcgm import models, preload

    fake = preload(tmp_path / "dcgm")              # once per process; ctypes then finds it under its soname
    fake.show(models.h100(8))                      # what DCGM answers from now on
    fake.show(models.h100(8).with_gpu(0, status=Status.LOST))

In another process:

    models.h100(8).write(path)
    environ = {"LD_LIBRARY_PATH": str(library()), "FAKEDCGM_SCENARIO": str(path), "FAKEDCGM_COUNTS": str(counts)}
    Counts(counts).calls("dcgmEntitiesGetLatestValues")

`Scenario`, `Gpu`, `GpuInstance`, `ComputeInstance` and `Entity` are frozen; `but`, `with_gpu` and `with_instance` give
changed copies, in which mappings (fields, errors, delays) are laid over the old ones and None takes a value away:

    hot = models.h100().with_gpu(0, fields={150: 97})
    unsaid = hot.with_gpu(0, fields={150: Blank.NOT_SUPPORTED, 155: Code(-19)})
    stuck = hot.with_gpu(0, hangs={"dcgmEntitiesGetLatestValues"})
    no_engine, another_engine = hot.but(gone=True), hot.but(engine=2)
    happened = hot.with_xid(0, 79, at=1_700_000_000_000_000)

What it does as DCGM does: versions of structs, limits, one embedded engine, connections that die with their engine,
values only of what is watched, first samples of profiling fields that are blank, a watch that one unsupported profiling
field fails, a crash for LIVE_DATA with a profiling field.
What it does for tests: counts, delays, hangs, errors and crashes for every function, for all or for one entity. A rule
with an error for one entity makes that the status of its values. The format of the file is described in c/scenario.c.
"""

from tests.fakedcgm.build import functions, library
from tests.fakedcgm.control import Fake, Watch, preload
from tests.fakedcgm.scenario import (
    Blank,
    Code,
    ComputeInstance,
    Entity,
    Gpu,
    GpuInstance,
    Growing,
    Incident,
    Past,
    Scenario,
    Status,
    Time,
    Timed,
    link_id,
)
from tests.fakelib.build import CannotBuildError
from tests.fakelib.control import Counts

__all__ = [
    "Blank",
    "CannotBuildError",
    "Code",
    "ComputeInstance",
    "Counts",
    "Entity",
    "Fake",
    "Gpu",
    "GpuInstance",
    "Growing",
    "Incident",
    "Past",
    "Scenario",
    "Status",
    "Time",
    "Timed",
    "Watch",
    "functions",
    "library",
    "link_id",
    "preload",
]
