"""`make soak`: the image for each processor, built by buildah on a Debian, looked at and started.

Rule 1: what was built for another processor than this one's is run by qemu, and by nothing else is it made otherwise.
"""

import json
import re
import shutil
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import otelgpu
from tests.building import PROCESSORS, Builder, Processor, program, run
from tests.conftest import ROOT
from tests.fakenvml import library, models
from tests.fakenvml.build import SONAME
from tests.harness import lines_of, values

LARGEST = 60 * 1000 * 1000  # bytes beside the base, compressed
MOST_MEMORY = 50 * 1024 * 1024  # bytes, with two GPUs: a start that compiles takes more
COPIED = ("opt/otelgpu", "usr/bin/dcgm-exporter", "etc/dcgm-exporter")  # a layer each

pytestmark = pytest.mark.soak


@dataclass(frozen=True, slots=True)
class Built:
    """An image: what it says of itself, and its files."""

    processor: Processor
    settings: Any
    root: Path

    @property
    def config(self) -> Any:
        """How a container of it is run."""
        return self.settings["config"]


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """The builder, with the base in its store."""
    made = Builder(tmp_path_factory.mktemp("store"))
    made.make_base()
    return made


@pytest.fixture(scope="module", params=PROCESSORS, ids=lambda processor: processor.name)
def built(builder: Builder, request: pytest.FixtureRequest) -> Iterator[Built]:
    """The image, built from the Dockerfile."""
    image = builder.build(request.param)
    container = builder.do("from", "--pull=never", "--arch", request.param.name, image)
    yield Built(request.param, builder.settings(image), Path(builder.do("mount", container)))
    builder.do("rm", container)


def test_the_image_says_how_it_is_run(built: Built) -> None:
    """Without a word in the manifest: not as root, the driver asked for, the health known."""
    told = built.config
    revision = run(program("git"), "rev-parse", "HEAD", cwd=ROOT).strip()

    assert built.settings["architecture"] == built.processor.name
    assert told["User"] == "65534:65534"
    assert told["Entrypoint"] == ["dcgm-exporter"]
    assert told["ExposedPorts"] == {"9400/tcp": {}}
    assert {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"} <= {*told["Env"]}
    assert told["Labels"]["org.opencontainers.image.version"] == otelgpu.__version__
    assert told["Labels"]["org.opencontainers.image.revision"] == revision
    assert told["Healthcheck"]["Test"][0] == "CMD"


def test_the_image_holds_what_it_needs_and_no_more(built: Built, capsys: pytest.CaptureFixture[str]) -> None:
    """Both programs, the three files, no compiler, no pip beside the base's; and its layers are small."""
    root, opt = built.root, built.root / "opt" / "otelgpu"
    own = {path.name for path in (opt / "bin").iterdir()}
    all_tools = own | {path.name for folder in ("usr/bin", "usr/local/bin") for path in (root / folder).glob("*")}
    layers = {name: compressed(root, name) for name in COPIED}
    with capsys.disabled():
        print(f"\n{built.processor.name}, bytes beside its base, compressed: {layers}")  # noqa: T201 - what was measured
    processors = {int.from_bytes(path.read_bytes()[18:20], "little") for path in opt.glob("lib/**/*.so*")}

    assert {"otelgpu", "dcgm-exporter"} <= own
    assert not [name for name in own if name.startswith(("pip", "uv"))]
    assert not list(opt.glob("lib/*/site-packages/pip"))
    assert not {"cc", "gcc", "ld", "as", "make"} & all_tools
    assert processors == {built.processor.elf}
    assert {path.name: path.read_bytes() for path in (root / "etc/dcgm-exporter").iterdir()} == {
        path.name: path.read_bytes() for path in (ROOT / "otelgpu/data").iterdir()
    }
    assert not list(opt.glob("lib/*/site-packages/tests"))
    compiled = [path.read_bytes()[4:8] for path in opt.glob("lib/*/site-packages/**/*.pyc")]
    assert len(compiled) > 1000
    assert {*compiled} == {b"\x01\0\0\0"}  # good whatever the times of the files are
    assert sum(layers.values()) < LARGEST


def compressed(root: Path, name: str) -> int:
    """The size of a layer as registries keep it."""
    archive = root.parent / "layer.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=6) as packed:
        packed.add(root / name, name)
    size = archive.stat().st_size
    archive.unlink()
    return size


def test_the_image_serves_as_nobody_from_a_root_that_is_read_only(
    built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a driver that is mounted below a folder; its page is asked for, and its health as Docker does it.

    The fake driver is this processor's; on the other one the GPUs are simulated.
    """
    host = tmp_path / "host"
    (host / "usr/lib64").mkdir(parents=True)
    shutil.copy(library() / SONAME, host / "usr/lib64" / SONAME)
    models.h100(2).write(host / "scenario")
    (host / "scenario").chmod(0o644)
    emulator, driver = [], ["--driver-root", "/mnt"]
    python = []
    if not built.processor.is_this:
        shutil.copy(program(f"qemu-{built.processor.machine}-static"), host / "qemu")
        emulator, driver = ["/mnt/qemu"], ["--source", "simulated:2xh100"]
        python = ["/opt/otelgpu/bin/python"]  # that the kernel would find in a program's first line
    assert built.config["Entrypoint"] == ["dcgm-exporter"]
    # By its path, as manifests for dcgm-exporter's image have it.
    command = ["/usr/bin/dcgm-exporter", "-f", "/etc/dcgm-exporter/default-counters.csv", *driver]
    health = built.config["Healthcheck"]["Test"][1:]
    assert health[0] == "python3"
    asked = {
        "root": str(built.root),
        "host": str(host),
        "user": built.config["User"],
        "env": [*built.config["Env"], "FAKENVML_SCENARIO=/mnt/scenario", "OTELGPU_HOSTNAME=node-1"],
        "emulator": emulator,
        "command": [*python, *command],
        "health": [*(python or health[:1]), *health[1:]],
    }
    namespaces = (program("unshare"), "--mount", "--net", sys.executable, "-m", "tests.imaged")
    seen = json.loads(run(*namespaces, input=json.dumps(asked), cwd=ROOT))
    with capsys.disabled():
        print(f"\nthe process of the image has {seen['rss_kb'] / 1024:.1f} MiB")  # noqa: T201 - what was measured

    assert set(values(seen["page"], "DCGM_FI_DEV_GPU_TEMP")) == {"0", "1"}
    assert "DCGM_FI_DRIVER_VERSION" in lines_of(seen["page"])[0].labels
    assert re.fullmatch(r"listening on http://\S+:9400/metrics\n", seen["announced"])
    if built.processor.is_this:  # or it is the emulator's too
        assert seen["rss_kb"] < MOST_MEMORY / 1024
    assert (seen["health"], seen["status"], seen["uid"]) == (0, 0, "65534")
    assert int(seen["caps"], 16) == 0
    assert seen["could_read"]
    assert not seen["could_write"]
