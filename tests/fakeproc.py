"""A /proc of a test's own: the few files that otelgpu reads, of processes that do not exist."""

import itertools
import shutil
from dataclasses import dataclass, field
from pathlib import Path

HOST = "pid:[4026531836]"
UID = "0f5e9c1a-6c1d-4d7e-9a53-{:012x}"


def uid(number: int) -> str:
    """The UID of a pod."""
    return UID.format(number)


def container_id(number: int) -> str:
    """The id of a container."""
    return f"{number:064x}"


def pod_path(number: int, container: int = 1) -> str:
    """The control group of a pod's container, as kubelet and containerd name it under systemd."""
    name = uid(number).replace("-", "_")
    slices = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{name}.slice"
    return f"{slices}/cri-containerd-{container_id(container)}.scope"


def job_path(job: int, step: str = "0") -> str:
    """The control group of a job's step under Slurm and version 2."""
    return f"/system.slice/slurmstepd.scope/job_{job}/step_{step}/user/task_0"


@dataclass
class FakeProc:
    """The folder. Each process that is started begins later than the one before."""

    folder: Path
    ticks: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1000))

    def __post_init__(self) -> None:
        self.namespace(HOST)

    def namespace(self, text: str | None) -> None:
        """Say in which process id namespace it is; None: nothing tells."""
        link = self.folder / "self" / "ns" / "pid"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        if text is not None:
            link.symlink_to(text)

    def run(
        self, pid: int, path: str = "/", *, name: str | bytes = "python3", user: int = 0, groups: str | None = None
    ) -> None:
        """Start a process with this control group (version 2), or with these lines of them."""
        self.end(pid)
        place = self.folder / str(pid)
        place.mkdir()
        shown = name.encode() if isinstance(name, str) else name
        head, tail = f"{pid} (".encode(), f") S {'0 ' * 18}{next(self.ticks)} 0 0\n".encode()
        (place / "stat").write_bytes(head + shown + tail)
        (place / "cgroup").write_text(f"0::{path}\n" if groups is None else groups)
        (place / "status").write_text(f"Name:\tx\nUid:\t{user}\t{user}\t{user}\t{user}\nGid:\t0\t0\t0\t0\n")

    def end(self, pid: int) -> None:
        """End a process."""
        shutil.rmtree(self.folder / str(pid), ignore_errors=True)
