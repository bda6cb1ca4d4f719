"""A fake NVIDIA driver: a `libnvidia-ml.so.1` in C that the real pynvml loads, driven by a scenario file.

    from tests.fakenvml import models, preload

    fake = preload(tmp_path / "scenario")            # once per process; then pynvml finds the fake
    fake.show(models.h100())                         # what the driver answers from now on
    fake.show(models.h100().with_gpu(0, lost=True))  # changes while it runs

In another process:

    models.h100().write(path)
    environ = {"LD_LIBRARY_PATH": str(library()), "FAKENVML_SCENARIO": str(path), "FAKENVML_COUNTS": str(counts)}
    Counts(counts).calls("nvmlDeviceGetPowerUsage")

`Scenario`, `Gpu` and `Instance` are frozen; `but`, `with_gpu` and `with_instance` give changed copies, in which
mappings (answers, fields, gpm, errors, delays) are laid over the old ones and None takes an answer away:

    hot = models.mixed().with_gpu(1, answers={("nvmlDeviceGetTemperature", 0): 97})
    stuck = hot.with_gpu(0, hangs={"nvmlDeviceGetPowerUsage"})
    old = hot.but(missing=frozenset({"nvmlDeviceGetMemoryInfo_v2"}))  # then load old.library()

What it does as NVML does: UNINITIALIZED outside of init and shutdown, counted init, handles that belong to a UUID
and not to an index, GPU_IS_LOST, fields with a code each, sizes of lists, GPM sample pairs, events.
What it does for tests: counts, delays, hangs, errors for every function; it aborts the process when a call overlaps
the last nvmlShutdown. The format of the file is described in c/scenario.c, a new function is a row in c/functions.def.
pynvml's nvmlInit calls nvmlInitWithFlags: rules for either hold for both, counts are apart.
"""

from tests.fakelib.build import CannotBuildError
from tests.fakelib.control import Counts
from tests.fakenvml.build import functions, library, wrong_architecture
from tests.fakenvml.control import Fake, preload
from tests.fakenvml.scenario import ALL_LINKS, NO_INSTANCE, Code, Gpu, Instance, Process, Running, Scenario, Typed, Xid

__all__ = [
    "ALL_LINKS",
    "NO_INSTANCE",
    "CannotBuildError",
    "Code",
    "Counts",
    "Fake",
    "Gpu",
    "Instance",
    "Process",
    "Running",
    "Scenario",
    "Typed",
    "Xid",
    "functions",
    "library",
    "preload",
    "wrong_architecture",
]
