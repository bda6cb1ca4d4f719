"""Start the files of an image as a runtime would, ask for the page and the health, and say what came of it.

`unshare --mount --net python -m tests.imaged` reads what to do from stdin, as JSON, and prints JSON. It is root in a
mount and a network namespace of its own; what it starts is the image's user, in a root that is read-only. What stands
for another processor is handed to an emulator, which is in that root too.
"""

import fcntl
import json
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

LIMIT = 300.0  # seconds: an emulator on a busy machine is slow
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def main() -> None:
    """Do it once."""
    told = json.load(sys.stdin)
    root = told["root"]
    _mount("--bind", root, root)
    _mount("--bind", told["host"], f"{root}/mnt")
    for place in (root, f"{root}/mnt"):
        _mount("-o", "remount,ro,bind", place)
    _mount("-t", "proc", "proc", f"{root}/proc")
    _mount("--bind", "/dev", f"{root}/dev")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
    chroot = shutil.which("chroot")
    assert chroot is not None
    inside = [chroot, f"--userspec={told['user']}", root, *told["emulator"]]
    environ = dict(text.split("=", 1) for text in told["env"])
    with subprocess.Popen(
        [*inside, *told["command"]], env=environ, stdout=subprocess.PIPE, stderr=sys.stderr, text=True
    ) as process:
        assert process.stdout is not None
        try:
            announced = process.stdout.readline()
            _wait_until_ready()
            page = _get("/metrics")
            health = subprocess.run([*inside, *told["health"]], env=environ, check=False, timeout=LIMIT).returncode
            status = Path(f"/proc/{process.pid}/status").read_text()
            read, write = (
                subprocess.run([*inside, "/bin/sh", "-c", f"echo {text}"], env=environ, check=False).returncode == 0
                for text in ("< /opt/otelgpu/pyvenv.cfg >&2", "> /opt/otelgpu/x")
            )
            process.send_signal(signal.SIGTERM)
            ended = process.wait(LIMIT)
        finally:
            process.kill()
    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    print(  # noqa: T201 - what was asked for
        json.dumps(
            {
                "announced": announced,
                "page": page,
                "health": health,
                "uid": lines["Uid"].split()[0],
                "caps": lines["CapEff"],
                "rss_kb": int(lines["VmRSS"].split()[0]),
                "could_read": read,
                "could_write": write,
                "status": ended,
            }
        )
    )


def _get(path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:9400{path}", timeout=LIMIT) as answer:
        return str(answer.read().decode())


def _wait_until_ready() -> None:
    """Wait until GPUs could be read; after LIMIT raise what /readyz says."""
    ends = time.monotonic() + LIMIT
    while True:
        try:
            _get("/readyz")
        except urllib.error.HTTPError as error:
            if time.monotonic() > ends:
                raise RuntimeError(error.read().decode()) from error
            threading.Event().wait(0.1)
        else:
            return


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, timeout=LIMIT)


if __name__ == "__main__":
    main()
