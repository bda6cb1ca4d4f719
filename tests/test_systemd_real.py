"""`make soak`: otelgpu installed by the words of deploy/systemd/README.md under a real systemd, the first process.

Rule 1: what the page says to type is run as it stands there, line by line; only where pip finds otelgpu is told beside.
Rule 2: that machine is this kernel with namespaces and a Debian of its own; nothing outside is seen or changed.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.building import AUTHORITIES, PROCESSORS, bootstrap, program, run
from tests.conftest import ROOT
from tests.fakenvml import library, models
from tests.fakenvml.build import SONAME
from tests.harness import until

UNITS = ROOT / "deploy" / "systemd"
README = (UNITS / "README.md").read_text(encoding="utf-8")
INSTALL, ENABLE = re.findall(r"(?ms)^```sh\n(.*?)^```$", README)
LONG = 120.0  # seconds that a start or an end of something may take on a busy machine
PACKAGES = ("systemd-sysv", "dbus", "procps", "curl", "python3", "python3-venv", "ca-certificates")

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("cc")]


@dataclass(frozen=True, slots=True)
class Machine:
    """A systemd that is running: its process, as seen from here, and its files."""

    pid: int
    root: Path

    def do(self, script: str, *, network: bool = False, fails: bool = False) -> str:
        """Run lines of a shell there; what they print. With *network* where this machine's is at hand."""
        namespaces = ["--mount", "--pid", "--uts", "--ipc", "--cgroup", *([] if network else ["--net"])]
        enter = [program("nsenter"), f"--target={self.pid}", *namespaces]
        environ = ["env", "-i", "PATH=/usr/sbin:/usr/bin", "HOME=/root", f"PIP_CERT={AUTHORITIES}"]
        pip = ["PIP_CONSTRAINT=/root/constraints.txt", "PIP_DISABLE_PIP_VERSION_CHECK=1"]
        done = subprocess.run(
            [*enter, *environ, *pip, "bash", "-ec", script], capture_output=True, text=True, check=False, timeout=600
        )
        assert (done.returncode == 0) is not fails, f"{script}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout + (done.stderr if fails else "")

    def shown(self, *properties: str) -> dict[str, str]:
        """What systemd says of the service."""
        text = self.do(f"systemctl show otelgpu --property={','.join(properties)}")
        return dict(line.split("=", 1) for line in text.splitlines())

    def journal(self) -> str:
        """All that the service has said."""
        return self.do("journalctl --unit=otelgpu --output=cat --no-pager")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a machine with a driver, and this folder of the checkout in the home of root."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a machine")
    made = tmp_path_factory.mktemp("machine") / "root"
    (this,) = (each for each in PROCESSORS if each.is_this)
    bootstrap(made, this, *PACKAGES)
    shutil.copy(AUTHORITIES, made / AUTHORITIES[1:])
    home = made / "root"
    shutil.copytree(UNITS, home / "systemd")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(home), cwd=ROOT)
    (wheel,) = home.glob("*.whl")
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    (home / "constraints.txt").write_text(f"{pins}\notelgpu @ file:///root/{wheel.name}\n", encoding="utf-8")
    shutil.copy(library() / SONAME, made / "usr/lib" / SONAME)
    models.h100(2).write(made / "usr/share/scenario")
    (made / "usr/share/scenario").chmod(0o644)
    told = made / "etc/systemd/system/otelgpu.service.d/driver.conf"
    told.parent.mkdir(parents=True)
    told.write_text("[Service]\nEnvironment=FAKENVML_SCENARIO=/usr/share/scenario\n", encoding="utf-8")
    return made


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group for the whole of it."""
    mounted = re.search(r"^\S+ (\S+) cgroup2 ", Path("/proc/self/mounts").read_text(encoding="utf-8"), re.MULTILINE)
    if mounted is None:
        pytest.skip("there are no control groups of the second version here")
    made = Path(mounted[1], f"otelgpu-test-{os.getpid()}")
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield made

    def is_gone() -> bool:
        try:
            for folder, _, _ in os.walk(made, topdown=False):
                Path(folder).rmdir()
        except OSError:  # busy until the last process has ended
            return False
        return True

    until(is_gone, "the control group is empty", LONG)


@pytest.fixture
def machine(root: Path, group: Path) -> Iterator[Machine]:
    """The machine, started."""
    is_up = re.compile("running|degraded")  # a unit that fails is none of ours: a kernel that is not its own, say
    namespaces = ("--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup")
    words = [program("unshare"), *namespaces, "--fork", "--kill-child", sys.executable, "-m", "tests.booted", str(root)]
    enter = ["sh", "-ec", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *words]
    with subprocess.Popen(enter, cwd=ROOT, stdin=subprocess.DEVNULL) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        try:
            until(lambda: process.poll() is not None or len(children.read_text().split()) == 1, "it is started", LONG)
            assert process.returncode is None
            started = Machine(int(children.read_text()), root)
            comm = Path(f"/proc/{started.pid}/comm")
            until(lambda: process.poll() is not None or comm.read_text() == "systemd\n", "systemd is started", LONG)
            until(lambda: is_up.search(started.do("systemctl is-system-running || true")) is not None, "it is up", LONG)
            yield started
        finally:
            process.kill()


def test_the_documented_commands_make_a_service_that_runs(machine: Machine) -> None:
    """Installed, enabled and scraped as the page says; then reloaded, hung, stopped, and started by its socket."""
    machine.do(INSTALL, network=True)
    page = machine.do(f"cd /root/systemd\n{ENABLE}")
    serving = {"ActiveState": "active", "StatusText": "serving http://localhost:9400/metrics", "NRestarts": "0"}

    assert page.count("\n") == 10  # `head`
    assert "DCGM_FI_DEV_SM_CLOCK{" in page
    assert machine.shown(*serving) == serving
    assert "listening on http://localhost:9400/metrics" in machine.journal()
    assert "DCGM_FI_DEV_GPU_TEMP{" in machine.do("curl -s localhost:9400/metrics")
    process = machine.do("cat /proc/$(systemctl show --property=MainPID --value otelgpu)/status")
    lines = dict(line.split(":\t", 1) for line in process.splitlines())
    assert int(lines["Uid"].split()[0]) > 1000  # an account of the moment
    assert (int(lines["CapEff"], 16), lines["NoNewPrivs"], lines["Seccomp"]) == (0, "1", "2")
    machine.do("systemd-analyze verify --man=no /etc/systemd/system/otelgpu.service")
    assert " OK " in machine.do("systemd-analyze security otelgpu --no-pager").splitlines()[-1]

    # Reload: the same process goes on; with wrong settings too.
    settings = "/etc/otelgpu/otelgpu.yaml"
    machine.do(f"echo '{{}}' > {settings}; echo OTELGPU_CONFIG={settings} >> /etc/otelgpu/otelgpu.env")
    machine.do("systemctl restart otelgpu")
    before = machine.shown("MainPID")
    machine.do("systemctl reload otelgpu")
    until(lambda: "otelgpu.reload: reloaded" in machine.journal(), "it has read them again", LONG)
    machine.do(f"echo 'labels: {{1: a}}' > {settings}; systemctl reload otelgpu")
    wrong = "the settings are wrong; those before stay in force"
    until(lambda: machine.shown("StatusText")["StatusText"] == wrong, "systemd is told", LONG)
    assert machine.shown("MainPID") == before
    machine.do(f"echo '{{}}' > {settings}; systemctl reload otelgpu")
    until(lambda: machine.shown("StatusText")["StatusText"] == serving["StatusText"], "systemd is told", LONG)

    # A process that stands still is ended by the watchdog, and started anew.
    folder = "/etc/systemd/system/otelgpu.service.d"
    machine.do(f"printf '[Service]\\nWatchdogSec=3\\nTimeoutAbortSec=1\\nRestartSec=0\\n' > {folder}/soon.conf")
    machine.do("systemctl daemon-reload; systemctl restart otelgpu; systemctl kill --signal=STOP otelgpu")
    until(lambda: machine.shown(*serving) == serving | {"NRestarts": "1"}, "it is started anew", LONG)
    machine.do(f"rm {folder}/soon.conf; systemctl daemon-reload")

    # Stopped by what it understands, not killed.
    machine.do("systemctl stop otelgpu")
    assert machine.shown("Result", "ExecMainCode", "ExecMainStatus") == {
        "Result": "success",
        "ExecMainCode": str(os.CLD_EXITED),
        "ExecMainStatus": "0",
    }
    machine.do("curl -s localhost:9400/metrics", fails=True)

    # The socket: the first scrape starts it, and no scrape is refused while it is started anew.
    machine.do("install -m 644 /root/systemd/otelgpu.socket /etc/systemd/system/")
    machine.do("sed -i 's/^#ARGS=/ARGS=/' /etc/otelgpu/otelgpu.env; systemctl daemon-reload")
    machine.do(
        "systemctl reset-failed otelgpu; systemctl start otelgpu.socket"
    )  # five starts in 10 s were one too many
    assert machine.shown("ActiveState") == {"ActiveState": "inactive"}
    assert "DCGM_FI_DEV_GPU_TEMP{" in machine.do("curl -s localhost:9400/metrics")
    restarted = machine.do("systemctl restart --no-block otelgpu; curl -s localhost:9400/metrics")
    assert "DCGM_FI_DEV_GPU_TEMP{" in restarted
