"""systemd: what it is told, the sockets that it passes, and the units in deploy/systemd."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from otelgpu.config import Address
from otelgpu.export.page import NoPage
from otelgpu.server.application import Site
from otelgpu.server.beside import Beside
from otelgpu.server.listen import bound_all
from otelgpu.server.notify import Notify
from otelgpu.server.pages import Pages
from otelgpu.server.running import Life
from tests.conftest import ROOT
from tests.fakenvml import models
from tests.harness import LIMIT, OTELGPU, command, serving, until, values

PAIR = models.h100(2)
UNITS = ROOT / "deploy" / "systemd"
# What systemd does between binding and starting: the descriptors from 3 on, and whose they are.
LAUNCHER = """
import os, sys, socket
kinds = os.environ.pop("KINDS").split(",")
sockets = []
for kind in kinds:
    family = socket.AF_UNIX if kind.startswith("/") else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
    sock.bind(kind if kind.startswith("/") else ("127.0.0.1", 0))
    if kind != "udp":
        sock.listen()
    sockets.append(sock)
moved = [os.dup(sock.fileno()) for sock in sockets for _ in range(8)][7::8]
for place, descriptor in enumerate(moved, 3):
    os.dup2(descriptor, place, inheritable=True)
os.environ |= {"LISTEN_FDS": str(len(kinds)), "LISTEN_PID": os.environ.pop("PID", str(os.getpid()))}
os.execv(sys.executable, [sys.executable, "-m", "otelgpu", "serve", *sys.argv[1:]])
"""


class Listener:
    """A service manager's socket."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(LIMIT)

    def next(self, *, alive: bool = False) -> dict[str, str]:
        """The next message; signs of life are passed over unless they are wanted."""
        while True:
            said = dict(line.split("=", 1) for line in self._socket.recv(4096).decode().split("\n"))
            if alive or "WATCHDOG" not in said:
                return said

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[tuple[str, Listener]]:
    """One with an abstract name."""
    address = f"@otelgpu-test-{os.getpid()}"
    made = Listener(address)
    yield address, made
    made.close()


@pytest.mark.usefixtures("cc")
def test_systemd_is_told_of_start_life_reload_and_end(listener: tuple[str, Listener], tmp_path: Path) -> None:
    """`systemctl start` and `reload` wait for these, and a watchdog ends what gives no sign of life."""
    address, manager = listener
    settings = tmp_path / "s.yaml"
    settings.write_text("labels: {rack: a}\n", encoding="utf-8")
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "100000"}
    with serving(PAIR, tmp_path, "--config", str(settings), environ=environ) as served:
        ready = manager.next()
        assert served.page()
        assert [manager.next(alive=True) for _ in range(2)] == [{"WATCHDOG": "1"}] * 2

        served.process.send_signal(signal.SIGHUP)
        reloading, again = manager.next(), manager.next()
        settings.write_text("labels: {1: a}\n", encoding="utf-8")
        served.process.send_signal(signal.SIGHUP)
        manager.next()
        wrong = manager.next()
        assert served.stop() == 0
        stopping = manager.next()

    assert ready == {"READY": "1", "STATUS": f"serving {served.urls[0]}"}
    assert reloading.keys() == {"RELOADING", "MONOTONIC_USEC", "STATUS"}
    assert int(reloading["MONOTONIC_USEC"]) > 0
    assert again == ready
    assert wrong == {"READY": "1", "STATUS": "the settings are wrong; those before stay in force"}
    assert stopping == {"STOPPING": "1", "STATUS": "stopping"}


def test_the_socket_may_be_a_path(tmp_path: Path) -> None:
    """As it is but in containers."""
    manager = Listener(str(tmp_path / "notify"))
    Notify({"NOTIFY_SOCKET": str(tmp_path / "notify")}).ready("serving")

    assert manager.next() == {"READY": "1", "STATUS": "serving"}
    manager.close()


@pytest.mark.parametrize(
    ("environ", "pulse"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_signs_of_life_come_twice_in_the_time_that_systemd_waits(environ: dict[str, str], pulse: float | None) -> None:
    """And only where they are wanted of this process."""
    assert Notify(environ).pulse == pulse


@pytest.mark.usefixtures("cc")
def test_nobody_who_listens_is_one_line_in_the_log(tmp_path: Path) -> None:
    """The page is worth more than who is told of it."""
    with serving(PAIR, tmp_path, environ={"NOTIFY_SOCKET": str(tmp_path / "gone")}) as served:
        assert served.page()
        assert served.stop() == 0
    assert served.logged("NOTIFY_SOCKET: [Errno 2] No such file or directory") == 1


def test_there_is_no_sign_of_life_while_healthz_is_bad() -> None:
    """A loop that goes round while nothing is read any more is no life: systemd is to start it anew."""
    problem: list[str] = []
    beats = threading.Semaphore(0)
    asked = threading.Semaphore(0)

    class Manager(Notify):
        def ready(self, status: str = "") -> None: ...

        def alive(self) -> None:
            assert not problem
            beats.release()

        def stopping(self) -> None: ...

    def is_alive() -> str | None:
        asked.release()
        return problem[0] if problem else None

    with ThreadPoolExecutor(1) as executor:
        pages = Pages(NoPage(), refresh=lambda _: None, is_fresh=lambda _: True, executor=executor)
        site = Site(pages, 1, "", is_ready=lambda: None, is_alive=is_alive, answered=lambda *_: None)
        life = Life(lambda: None, lambda _: True)
        beside = Beside(
            site, bound_all([(Address("127.0.0.1"), "")]), life, manager=Manager({"WATCHDOG_USEC": "20000"})
        )
        beside.start()
        assert beats.acquire(timeout=LIMIT)
        problem.append("the sampler's thread has ended")
        while asked.acquire(blocking=False):
            pass
        for _ in range(3):
            assert asked.acquire(timeout=LIMIT)
        while beats.acquire(blocking=False):
            pass
        for _ in range(3):
            assert asked.acquire(timeout=LIMIT)
        assert not beats.acquire(blocking=False)
        problem.clear()
        assert beats.acquire(timeout=LIMIT)
        beside.stop()


@pytest.mark.usefixtures("cc")
def test_sockets_that_systemd_passes_are_served(tmp_path: Path) -> None:
    """And left as they are: the next process gets them too. With every line of the file of variables in force."""
    path = tmp_path / "s"
    text = (UNITS / "otelgpu.env").read_text(encoding="utf-8")
    environ = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", text, re.MULTILINE))
    assert unit("otelgpu.service")["Service"]["ExecStart"] == ["/usr/bin/otelgpu serve $ARGS"]
    assert environ["ARGS"] == "--web-systemd-socket"
    settings = tmp_path / "otelgpu.yaml"
    settings.write_text("{}")
    environ |= {"KINDS": f"tcp,{path}", "OTELGPU_CONFIG": str(settings)}
    flags = (*environ["ARGS"].split(), "--listen", "127.0.0.1:1")  # a port that nobody may have
    with serving(PAIR, tmp_path, *flags, environ=environ, program=("-c", LAUNCHER)) as served:
        until(lambda: len(served.urls) == 2, "both addresses")
        assert values(served.page(), "DCGM_FI_DEV_GPU_TEMP")
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(LIMIT)
            client.connect(str(path))
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
        assert served.urls[1] == f"unix:{path}"
        assert served.stop() == 0
    assert path.is_socket()


WRONG = {
    "none": ({}, OTELGPU, "systemd has passed no sockets (LISTEN_FDS is not set)"),
    "of-another": (
        {"KINDS": "tcp", "PID": "1"},
        ("-c", LAUNCHER),
        "systemd has passed no sockets (they are meant for process 1)",
    ),
    "no-stream": ({"KINDS": "tcp,udp"}, ("-c", LAUNCHER), "descriptor 4 is no listening stream socket"),
}


@pytest.mark.usefixtures("cc")
@pytest.mark.parametrize("what", WRONG)
def test_what_is_passed_wrongly_is_refused(what: str, tmp_path: Path) -> None:
    """Served nowhere, with a healthy process, would be found out by a missing alert."""
    environ, program, says = WRONG[what]
    words = ("serve",) if program == OTELGPU else ()
    done = command(PAIR, tmp_path, *words, "--web-systemd-socket", environ=environ, program=program)

    assert done.returncode == 1
    assert done.stderr.startswith(f"otelgpu: --web-systemd-socket: server.systemd_socket: {says}")


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian's package systemd)")
    return found


@pytest.mark.usefixtures("cc")
def test_the_real_systemd_socket_activate(tmp_path: Path) -> None:
    """The program that systemd has for trying it: it starts otelgpu with the first connection, which is served."""
    activate = program("systemd-socket-activate")
    path = tmp_path / "port"
    kept = [f"-E{name}" for name in ("PATH", "PYTHONPATH", "FAKENVML_SCENARIO", "LD_LIBRARY_PATH")]
    words = [activate, "-l", str(path), *kept, sys.executable, "-m", "otelgpu", "serve", "--web-systemd-socket"]
    launch = f"import os; os.execv({activate!r}, {words!r})"
    with serving(PAIR, tmp_path, ready=False, program=("-c", launch)) as served:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(LIMIT)
            until(lambda: client.connect_ex(str(path)) == 0, "it listens")  # the file is there before
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            with client.makefile("rb") as answer:
                assert b"DCGM_FI_DEV_GPU_TEMP{" in answer.read()
        assert served.stop() == 0


def unit(name: str) -> dict[str, dict[str, list[str]]]:
    """The sections of a unit; a key may stand several times."""
    sections: dict[str, dict[str, list[str]]] = {}
    for line in (UNITS / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = sections[line.strip("[]")] = {}
        elif line and not line.startswith("#"):
            key, _, text = line.partition("=")
            section.setdefault(key, []).append(text)
    return sections


def test_the_units_say_what_otelgpu_does() -> None:
    """Ready, alive and reload as it tells them; nothing that keeps it from the GPUs or from its own limits."""
    service = unit("otelgpu.service")["Service"]

    assert service["Type"] == ["notify"]
    assert service["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert "WatchdogSec" in service
    assert service["DynamicUser"] == ["yes"]
    assert {"char-nvidia rw", "char-nvidiactl rw", "char-nvidia-caps rw"} <= set(service["DeviceAllow"])
    assert service["PrivateDevices"] == ["no"]
    assert not [line for line in service["SystemCallFilter"] if line.startswith("~") and "@resources" in line]
    assert unit("otelgpu.socket")["Socket"]["Accept"] == ["no"]


def test_systemd_knows_all_of_it_and_finds_little_left_open(tmp_path: Path) -> None:
    """A misspelt line is only a warning in a journal, and leaves open what it was to close."""
    analyze = program("systemd-analyze")
    text = (UNITS / "otelgpu.service").read_text(encoding="utf-8")
    (tmp_path / "otelgpu.service").write_text(text.replace("/usr/bin/otelgpu", "/bin/true"), encoding="utf-8")
    shutil.copy(UNITS / "otelgpu.socket", tmp_path)
    units = [str(tmp_path / name) for name in ("otelgpu.service", "otelgpu.socket")]
    verified = subprocess.run([analyze, "verify", "--man=no", *units], capture_output=True, text=True, check=False)
    judged = subprocess.run(
        [analyze, "security", "--offline=yes", "--threshold=25", units[0]], capture_output=True, text=True, check=False
    )

    assert (verified.returncode, verified.stderr) == (0, "")
    assert judged.returncode == 0, judged.stdout[-300:]
