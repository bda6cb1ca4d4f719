"""A look at the GPU that answers everything, under a driver that really lacks what it does not have.

Rule 1: one process holds one build of the fake for ever, so `seen` is called in a process that has loaded none.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from otelgpu.config import Processes
from otelgpu.fields import CATALOGUE
from otelgpu.model import Snapshot
from otelgpu.sources.nvml.questions import READABLE, XID_ERRORS
from otelgpu.tables import reading_rows
from tests.fakenvml import Process, preload
from tests.fakenvml.drivers import DRIVERS, under
from tests.fakenvml.everything import everything
from tests.fakeproc import FakeProc
from tests.harness import Node, config

ALL = tuple(CATALOGUE[id_].name for id_ in sorted(READABLE - {XID_ERRORS}))
PIDS = (11, 12, 13)  # each holds as many GiB as its number says


@dataclass(frozen=True, slots=True)
class Seen:
    """The page with all fields and each process, and the gaps as a table."""

    page: str
    gaps: str


def table_of(snapshot: Snapshot) -> str:
    """The rows that `otelgpu record` shows, one space between columns: a wider name is not to change every line."""
    rows = ("Field", "GPU", "Attributes", "Value", "Unit"), *reading_rows(snapshot)
    return "".join(f"{' '.join(' '.join(map(str, row)).split())}\n" for row in rows)


def seen(version: str, folder: Path) -> Seen:
    """Look at the GPU under this driver; the fake's files go to *folder*."""
    (driver,) = (driver for driver in DRIVERS if driver.version == version)
    proc = FakeProc(folder / "proc")
    for pid in PIDS:
        proc.run(pid)
    used = tuple(Process(pid, pid << 30) for pid in PIDS)
    fake = preload(folder / "scenario", driver.without)
    fake.show(under(driver, everything().with_gpu(0, processes=used)))
    node = Node(fake, config(fields=ALL, processes=Processes(by="process", proc_root=str(proc.folder))))
    try:
        page = node.settled_page()
        return Seen(page, table_of(replace(node.sweep(), numbers={}, labels={})))
    finally:
        node.stop()
