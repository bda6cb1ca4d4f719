"""What counts as a change of a file, whoever makes it and how."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from otelgpu import watch as watching
from otelgpu.watch import Watch
from tests.harness import until


def keep_time(path: Path, change: Callable[[Path], object]) -> None:
    """Change a file and put its time back, as `cp -p` and `rsync -t` do."""
    before = path.stat()
    change(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap(path: Path, *, target: str) -> None:
    """Put a link in the place of what has that name, at once."""
    new = path.with_name("..new")
    new.symlink_to(target)
    new.rename(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "written in place": lambda folder: (folder / "data" / "file").write_text("longer"),
    "the same size and time": lambda folder: keep_time(folder / "data" / "file", lambda path: path.write_text("def")),
    "a time that goes back": lambda folder: os.utime(folder / "data" / "file", (1, 1)),
    "another in its place": lambda folder: (folder / "other" / "file").rename(folder / "data" / "file"),
    "gone": lambda folder: (folder / "data" / "file").unlink(),
    "not to be read": lambda folder: (folder / "data" / "file").chmod(0),  # with it a read that fails is one more
    "another folder": lambda folder: swap(folder / "..data", target="other"),
    "a loop": lambda folder: swap(folder / "..data", target="..data"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_any_change_is_told_and_so_is_its_end(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal that is not seen ends with a certificate that nobody takes, weeks later."""
    monkeypatch.setattr(watching, "QUIET", 0.01)
    for name in ("data", "other", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("abc")
    (tmp_path / "..data").symlink_to("data")
    path = tmp_path / "..data" / "file"
    told: list[tuple[object, ...]] = []
    watch = Watch(lambda: [str(path), str(tmp_path / "nowhere" / "file"), "\0"], lambda: told.append(state(path)), 0.01)
    watch.start()
    try:
        CHANGES[kind](tmp_path)
        until(lambda: told[-1:] == [state(path)], "the change")
        swap(tmp_path / "..data", target="new")
        until(lambda: told[-1:] == [state(path)], "its end")
    finally:
        watch.stop()


def state(path: Path) -> tuple[object, ...]:
    """What a reader would see, and when that came to be."""
    try:
        return path.resolve(), path.stat()
    except (OSError, RuntimeError) as error:
        return (type(error),)
