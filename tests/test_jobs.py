"""Jobs on the page: from the files of a scheduler's prolog to the label hpc_job."""

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PosixPath

import pytest

from otelgpu.config import Jobs as JobSettings
from otelgpu.config import Kubernetes
from otelgpu.fields import CATALOGUE
from otelgpu.fields.row import Level
from tests.conftest import Golden
from tests.fakekubelet import Kubelet, pod
from tests.fakenvml import Scenario, models
from tests.harness import LIMIT, Node, lines_of, until, values
from tests.test_kubernetes import kubelet, readings_of

__all__ = ["kubelet"]  # the fixture

H100 = models.h100(2)
MIG = models.a100_mig()  # GPU 0 with instances 7, 9 and 5, GPU 1 whole
TEMPERATURE, MEMORY = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_FB_USED"


@dataclass
class Host:
    """A machine whose scheduler writes job files."""

    node: Node
    folder: Path

    def writes(self, **files: str | bytes | None) -> None:
        """Write files (`_0` is "0", `_0_7` is "0.7"; None removes), and wait until they have been looked at."""
        for name, text in files.items():
            path = self.folder / name[1:].replace("_", ".")
            if text is None:
                path.unlink()
            else:
                path.write_bytes(text if isinstance(text, bytes) else text.encode())
        self.look()

    def look(self) -> None:
        """Have the folder looked at once more, and wait for the end of it."""
        jobs = self.node.pipeline.attribution.jobs
        assert jobs is not None
        before = jobs.finished
        jobs.hurry()
        until(lambda: jobs.finished > before, "a look")

    def jobs(self, name: str = MEMORY) -> list[tuple[str, str, str]]:
        """GPU, instance and job of each sample of a family, on a fresh page."""
        return [
            (line.labels["gpu"], line.labels.get("GPU_I_ID", ""), line.labels.get("hpc_job", "-"))
            for line in lines_of(self.node.page())
            if line.name == name
        ]


Starter = Callable[..., Host]


@pytest.fixture
def host(node: Callable[..., Node], tmp_path: Path) -> Starter:
    """Start a machine with a job folder: `host(scenario, _0="42")`."""

    def start(scenario: Scenario = H100, *, is_there: bool = True, **files: str | bytes) -> Host:
        folder = tmp_path / "jobs"
        if is_there:
            folder.mkdir()
        started = Host(node(scenario, jobs=JobSettings(dir=str(folder), refresh=3600)), folder)
        assert started.node.pipeline.attribution.looked(LIMIT)
        if files:
            started.writes(**files)
        return started

    return start


def test_the_page_of_a_machine_with_jobs_is_as_reviewed(host: Starter, golden: Golden) -> None:
    """One job on an instance, two on a whole GPU: every label of every series is seen and meant."""
    golden("page/jobs.txt", readings_of(host(MIG, _0_7="41\n", _1="42\n43\n").node.settled_page()))


def test_each_job_of_a_gpu_has_a_copy_of_its_series(host: Starter) -> None:
    """As with dcgm-exporter: a job's figures are found by its number alone."""
    assert host(_0="41\n42\n").jobs() == [("0", "", "41"), ("0", "", "42"), ("1", "", "-")]


def test_a_job_on_gpu_0_is_not_one_on_cpu_0(node: Callable[..., Node], tmp_path: Path) -> None:
    """dcgm-exporter takes the number of a CPU for that of a GPU; whatever is told, a job is on what its GPU tells."""
    (tmp_path / "0").write_text("41\n")
    started = node(H100, fields=("all",), jobs=JobSettings(dir=str(tmp_path), refresh=3600))
    assert started.pipeline.attribution.looked(LIMIT)
    of_cpus = {field.dcgm.name for field in CATALOGUE.values() if field.level in (Level.CPU, Level.CORE)}
    labelled = [line for line in lines_of(started.page()) if "hpc_job" in line.labels]

    assert of_cpus
    assert len(labelled) > 50
    assert {line.labels["gpu"] for line in labelled} == {"0"}
    assert not {line.name for line in labelled} & of_cpus


def test_an_instance_has_a_file_of_its_own(host: Starter) -> None:
    """The file of the GPU speaks of the GPU's own series, that of an instance of the instance's."""
    started = host(MIG, _0="parent", _0_9="part", _0_8="nobody", _5="nobody")

    assert started.jobs() == [("0", "7", "-"), ("0", "9", "part"), ("0", "5", "-"), ("1", "", "-")]
    assert started.jobs(TEMPERATURE) == [("0", "", "parent"), ("1", "", "-")]


@pytest.mark.parametrize(
    ("content", "jobs"),
    [
        ("42", ["42"]),
        ("42\r\n43\r\n", ["42", "43"]),
        ("  42\t\n\n \n43", ["42", "43"]),
        ("43\n42\n43\n", ["42", "43"]),
        ("\ufeff42\n", ["42"]),
        ('a"b\\c', ['a"b\\c']),
        ("", ["-"]),
        ("\n\n", ["-"]),
    ],
)
def test_jobs_are_trimmed_and_escaped(host: Starter, content: str, jobs: list[str]) -> None:
    """dcgm-exporter takes lines as they are: an empty one becomes an empty label, a quote breaks the whole page."""
    assert [job for gpu, _, job in host(_0=content).jobs() if gpu == "0"] == jobs


def test_a_number_with_zeros_before_it_is_no_file_of_a_gpu(host: Starter) -> None:
    """Two files would speak of one GPU, and the one that nobody writes would hide the other."""
    assert host(_0="41", _00="99").jobs() == [("0", "", "41"), ("1", "", "-")]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff\xfe4\x002\x00", "it is not UTF-8"),
        (b"x" * 70_000, "a line has more than 1024 characters"),
        (b"1\n" * 600_000, "it has more than 1048576 bytes"),
        ("".join(f"{job}\n" for job in range(257)).encode(), "it has more than 256 jobs"),
    ],
)
def test_a_bad_file_costs_only_itself(
    host: Starter, content: bytes, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One unreadable job file makes dcgm-exporter answer 500 for the whole node."""
    started = host(_0=content, _1="42")
    for _ in range(3):
        started.look()

    assert started.jobs() == [("0", "", "-"), ("1", "", "42")]
    assert values(started.node.page(), "otelgpu_attribution_skipped_files", "source") == {"jobs": 1}
    assert [record.getMessage() for record in caplog.records] == [f"{started.folder}/0 is skipped: {problem}"]
    caplog.set_level(logging.INFO)
    started.writes(_0="41")
    assert started.jobs() == [("0", "", "41"), ("1", "", "42")]
    assert values(started.node.page(), "otelgpu_attribution_skipped_files", "source") == {"jobs": 0}
    assert [record.getMessage() for record in caplog.records][1:] == [f"{started.folder}/0 can be read"]


def test_what_is_no_job_file_is_left_alone(host: Starter) -> None:
    """Folders, other names and a pipe that nobody writes to do no harm."""
    started = host(_1="42")
    (started.folder / "0.7").mkdir()
    for name in ("00x", ".0", "0.", "0.7.1", "readme", "-1", "0.7~"):
        (started.folder / name).write_text("43")
    os.mkfifo(started.folder / "0")
    (started.folder / "3").symlink_to(started.folder / "nowhere")
    started.look()

    assert started.jobs() == [("0", "", "-"), ("1", "", "42")]
    assert values(started.node.page(), "otelgpu_attribution_skipped_files", "source") == {"jobs": 1}


def test_the_end_of_a_job_ends_its_label(host: Starter) -> None:
    """The epilog removes the file, or writes the next job into it."""
    started = host(_0="41", _1="42")
    started.writes(_0="51", _1=None)

    assert started.jobs() == [("0", "", "51"), ("1", "", "-")]


def test_a_file_is_read_again_only_when_it_has_changed(host: Starter) -> None:
    """Job folders are on network disks; a look costs one stat a file."""
    started = host(_0="41")
    table = _table(started)
    for _ in range(3):
        started.look()
    same = _table(started)
    started.writes(_0="51")

    assert same is table
    assert _table(started) is not table


def _table(started: Host) -> object:
    jobs = started.node.pipeline.attribution.jobs
    assert jobs is not None
    return jobs.table()


def test_a_folder_that_is_not_there_yet_is_waited_for(host: Starter, caplog: pytest.LogCaptureFixture) -> None:
    """dcgm-exporter says so once and never again; here a metric tells, and the folder is found when it comes."""
    started = host(is_there=False)
    started.look()
    missing = started.node.page()
    started.folder.mkdir()
    started.writes(_0="41")

    assert started.jobs() == [("0", "", "41"), ("1", "", "-")]
    assert values(missing, "otelgpu_attribution_up", "source") == {"jobs": 0}
    assert values(started.node.page(), "otelgpu_attribution_up", "source") == {"jobs": 1}
    assert [record.getMessage() for record in caplog.records] == [
        f"{started.folder}: No such file or directory; no job is shown"
    ]


def test_a_job_and_a_pod_stand_side_by_side(node: Callable[..., Node], kubelet: Kubelet, tmp_path: Path) -> None:
    """A batch system may run inside Kubernetes; the copies of the one carry the labels of the other."""
    (tmp_path / "0").write_text("41\n42")
    kubelet.pods = [pod("a", H100.gpus[0].uuid)]
    kubelet.start()
    settings = Kubernetes(enabled=True, socket=str(kubelet.path))
    started = node(H100, kubernetes=settings, jobs=JobSettings(dir=str(tmp_path)))
    assert started.pipeline.attribution.looked(LIMIT)
    lines = [line.labels for line in lines_of(started.page()) if line.name == MEMORY]

    assert [(x.get("pod"), x.get("hpc_job")) for x in lines] == [("a", "41"), ("a", "42"), (None, None)]


def test_a_disk_that_hangs_holds_up_no_page(host: Starter) -> None:
    """The folder is on a network disk, and the network is down: pages go on with the last known jobs."""
    started = host(_0="41")
    jobs = started.node.pipeline.attribution.jobs
    assert jobs is not None
    reached, released = threading.Event(), threading.Event()

    class Hanging(PosixPath):
        def __fspath__(self) -> str:
            reached.set()
            released.wait(LIMIT)
            return str(self)

    jobs._folder = Hanging(started.folder)  # noqa: SLF001
    jobs.hurry()
    assert reached.wait(LIMIT)

    assert started.jobs() == [("0", "", "41"), ("1", "", "-")]
    assert not jobs.stop(0)
    released.set()
    assert jobs.stop(LIMIT)
