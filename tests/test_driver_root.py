"""`--driver-root`: the driver library of another container or of the host, mounted below a folder."""

import shutil
from pathlib import Path

import pytest

from otelgpu.config import load
from otelgpu.errors import ConfigError
from otelgpu.sources.nvml.loading import library_in, loading_error
from tests.fakenvml import library, models, wrong_architecture
from tests.fakenvml.build import SONAME
from tests.harness import command, refused, serving, until, values

NOWHERE = {"LD_LIBRARY_PATH": ""}
TEMP = "DCGM_FI_DEV_GPU_TEMP"


def driver(root: Path) -> Path:
    """Lay out a root as a driver container has it: the soname is a link, here a whole one, which means that root."""
    real = root / "opt" / "nvidia" / "libnvidia-ml.so.580.105.08"
    real.parent.mkdir(parents=True)
    shutil.copy(library() / SONAME, real)
    (root / "usr" / "lib64").mkdir(parents=True)
    (root / "usr" / "lib64" / "libnvidia-ml.so").symlink_to("/opt/nvidia/libnvidia-ml.so.580.105.08")
    (root / "usr" / "lib64" / SONAME).symlink_to("libnvidia-ml.so")
    return real


def test_the_library_is_taken_from_there_once_it_is_there(tmp_path: Path) -> None:
    """The GPU Operator's driver container takes minutes to install what it has, and an exporter is there before."""
    root = tmp_path / "run" / "nvidia" / "driver"
    with serving(models.h100(2), tmp_path, "--driver-root", f"{root}/", environ=NOWHERE) as served:
        before = values(served.page(), TEMP)
        driver(root)
        until(lambda: set(values(served.page(), TEMP)) == {"0", "1"}, "the driver")
        status = served.stop()

    assert before == {}
    assert served.logged(f"{root} has it in none of usr/lib64, ") == 1
    assert status == 0


def test_doctor_says_which_library_it_is(tmp_path: Path) -> None:
    """Whoever mounted the wrong folder sees what was taken."""
    real = driver(tmp_path / "root")
    done = command(
        models.h100(1), tmp_path, "doctor", environ=NOWHERE | {"OTELGPU_DRIVER_ROOT": str(tmp_path / "root")}
    )

    assert f" {real}\n" in done.stdout


LINKS = {  # by name below the root: where it leads; and where the library is found
    "NixOS": ({"run/opengl-driver": "/nix/store/x"}, "nix/store/x/lib"),
    "out and back": ({"usr/lib64": "../../../../../lib/a", "lib/a/": ""}, "lib/a"),
    "a loop": ({"usr/lib64": "/lib64", "lib64": "/usr/lib64"}, None),
    "the host's": ({"usr/lib64": str(library())}, None),
    "a folder of that name": ({f"usr/lib64/{SONAME}/": ""}, None),
}


@pytest.mark.usefixtures("cc")
@pytest.mark.parametrize("kind", LINKS)
def test_links_lead_to_what_they_do_in_that_root(tmp_path: Path, kind: str) -> None:
    """Of folders too: NixOS has none but links, and the host's library may be for another driver."""
    links, place = LINKS[kind]
    for name, target in links.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if target:
            path.symlink_to(target)
        else:
            path.mkdir(parents=True)
    if place is not None:
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / SONAME).write_bytes(b"")

    assert library_in(str(tmp_path)) == (None if place is None else f"{tmp_path}/{place}/{SONAME}")


def test_a_root_that_cannot_be_looked_at_has_no_library() -> None:
    """It may be somebody else's folder; here its name is too long, as root may see all folders."""
    root = f"/{'x' * 256}"

    assert library_in(root) is None
    assert loading_error(root).startswith(f"{root} has it in none of ")


@pytest.mark.parametrize("kind", ["empty", "for another processor"])
def test_no_other_library_is_taken(tmp_path: Path, kind: str) -> None:
    """The one of the image or of the host may be for another driver: its numbers would be wrong, or none."""
    root = tmp_path / "root"
    root.mkdir()
    if kind != "empty":
        wrong_architecture(root / "usr" / "lib64")
    flags = ("--listen", "127.0.0.1:0", "--source", "nvml", "--log-level", "error", "--driver-root", str(root))
    code, said = refused(models.h100(), tmp_path, *flags)

    assert code == 1
    (line,) = said
    place = f"{root}/usr/lib64/{SONAME}"
    reason = f"{root} has it in none of usr/lib64, " if kind == "empty" else f"{place}: "
    assert line.startswith(f"otelgpu: --source: nvml: libnvidia-ml.so.1 could not be loaded ({reason}")
    assert (f"; {place} is for " in line) == (kind != "empty")


def test_a_root_is_a_whole_path() -> None:
    """What is relative would depend on where otelgpu was started."""
    with pytest.raises(
        ConfigError, match=r'^OTELGPU_DRIVER_ROOT: expected a whole path, which begins with /, got "run"$'
    ):
        load(environ={"OTELGPU_DRIVER_ROOT": "run"})
    assert load(environ={"OTELGPU_DRIVER_ROOT": "/"}).driver_root == load(environ={}).driver_root
    assert load(environ={"OTELGPU_DRIVER_ROOT": "/run/nvidia/driver/"}).driver_root == "/run/nvidia/driver"
