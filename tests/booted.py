"""Become the first process of a machine: the systemd in ROOT, in namespaces of its own.

`unshare --pid --mount --uts --ipc --net --cgroup --fork --kill-child python -m tests.booted ROOT`: what is mounted
here is seen nowhere else, and is gone with the namespaces.
"""

import os
import subprocess
import sys
from pathlib import Path

DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
TMPFS = ("-t", "tmpfs", "-o", "mode=755", "tmpfs")


def main(root: str) -> None:
    """Mount what a kernel and an initial file system would have, and start systemd."""
    _mount("--make-rprivate", "/")
    _mount("--bind", root, root)
    _mount("-t", "proc", "proc", f"{root}/proc")
    _mount("--bind", f"{root}/proc/sys", f"{root}/proc/sys")
    _mount("-o", "remount,ro,bind", f"{root}/proc/sys")  # most of it is the one kernel's, and no namespace's
    _mount("-t", "sysfs", "-o", "ro", "sysfs", f"{root}/sys")
    _mount("-t", "cgroup2", "cgroup2", f"{root}/sys/fs/cgroup")
    _mount(*TMPFS, f"{root}/run")
    _mount(*TMPFS, f"{root}/dev")
    for name, (major, minor) in DEVICES.items():
        os.mknod(f"{root}/dev/{name}", 0o020666, os.makedev(major, minor))
        Path(f"{root}/dev/{name}").chmod(0o666)
    os.chdir(root)
    Path("run/outside").mkdir()
    subprocess.run(["pivot_root", ".", "run/outside"], check=True)
    os.chroot(".")
    subprocess.run(["/usr/bin/umount", "--lazy", "/run/outside"], check=True)
    environ = {"PATH": "/usr/sbin:/usr/bin", "container": "otelgpu-test"}  # so that it leaves the kernel as it is
    os.execve("/lib/systemd/systemd", ["/lib/systemd/systemd", "--show-status=no"], environ)  # noqa: S606


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


if __name__ == "__main__":
    main(sys.argv[1])
