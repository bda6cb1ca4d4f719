"""`python -m tests.least serve ...`: otelgpu with the least that a process can have. Has to be started as root.

Rule 1: what is taken away is taken away for good, before anything of otelgpu is imported.
"""

import ctypes
import os
import resource
import runpy
import sys
from pathlib import Path

NOBODY = 65534
CLONE_NEWNS = 0x20000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 0x4000, 0x40000
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
EPERM_STATUS = 77  # of who may not take things away


def give_up_rights() -> None:
    """Make the root read-only for this process, forbid it to write files, and be nobody without capabilities."""
    libc = ctypes.CDLL(None, use_errno=True)
    Path(os.environ["FAKENVML_SCENARIO"]).chmod(0o644)
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        sys.exit(EPERM_STATUS)
    open_the_way(libc, Path(sys.base_prefix))
    if libc.mount(b"none", b"/", None, MS_REMOUNT | MS_BIND | MS_RDONLY, None):
        sys.exit(EPERM_STATUS)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def open_the_way(libc: ctypes.CDLL, place: Path) -> None:
    """Show this Python to nobody, here alone, where it lies in a folder that is closed to others (root's home)."""
    closed = [folder for folder in (place, *place.parents) if not folder.stat().st_mode & 0o001]
    if not closed:
        return
    held = os.open(place, os.O_PATH)
    if libc.mount(b"none", bytes(closed[-1]), b"tmpfs", 0, b"mode=755"):
        sys.exit(EPERM_STATUS)
    place.mkdir(parents=True)
    if libc.mount(f"/proc/self/fd/{held}".encode(), bytes(place), None, MS_BIND, None):
        sys.exit(EPERM_STATUS)
    os.close(held)


if __name__ == "__main__":
    give_up_rights()
    runpy.run_module("otelgpu", run_name="__main__", alter_sys=True)
