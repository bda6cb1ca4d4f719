"""The lock of `embed.once`, and the places it may stand at. How processes share it is in test_processes.py."""

import os
from pathlib import Path

import pytest

from otelgpu.embed import once
from otelgpu.embed.once import HostLock


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A runtime folder, and what stands for /tmp."""
    runtime, shared = tmp_path / "runtime", tmp_path / "tmp"
    runtime.mkdir(mode=0o700)
    shared.mkdir(mode=0o700)
    monkeypatch.setattr(once, "SHARED", shared)
    return runtime, shared


def test_the_lock_stands_in_the_users_runtime_folder(places: tuple[Path, Path]) -> None:
    """Where the system makes one it is the user's own, and gone at logout. The file says who holds it."""
    runtime, shared = places
    lock = HostLock("", {"XDG_RUNTIME_DIR": str(runtime)})

    assert lock.take()
    assert (runtime / "otelgpu" / "reporter-all.lock").read_text() == f"{os.getpid()}\n"
    assert list(shared.iterdir()) == []
    lock.release()
    lock.release()


@pytest.mark.parametrize("runtime", ["", "relative", "/nowhere/at/all"])
def test_without_a_runtime_folder_it_stands_in_tmp(runtime: str, places: tuple[Path, Path]) -> None:
    """In containers and under sudo there is none; a folder with the user's number keeps users apart."""
    lock = HostLock("", {"XDG_RUNTIME_DIR": runtime})

    assert lock.take()
    assert (places[1] / f"otelgpu-{os.getuid()}").stat().st_mode & 0o777 == 0o700
    lock.release()


def test_one_holds_it_at_a_time(places: tuple[Path, Path]) -> None:
    """And the next one has it as soon as the first lets go; a different scope is a different lock."""
    environ = {"XDG_RUNTIME_DIR": str(places[0])}
    first, second, other = HostLock("", environ), HostLock("", environ), HostLock("CUDA_VISIBLE_DEVICES=1", environ)

    assert [lock.take() for lock in (first, second, other, first)] == [True, False, True, True]
    first.release()
    assert second.take()
    second.release()
    other.release()


@pytest.mark.parametrize("trap", ["link", "open", "file", "name"])
def test_an_unsafe_place_is_not_used(trap: str, places: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    """Whoever plants a link in a shared folder gets nothing written; every process reports, and says so once."""
    shared = places[1]
    folder, target = shared / f"otelgpu-{os.getuid()}", shared / "target"
    match trap:
        case "link":
            target.mkdir()
            folder.symlink_to(target)
        case "open":
            folder.mkdir()
            folder.chmod(0o777)
        case "file":
            folder.write_text("")
        case _:
            folder.mkdir(mode=0o700)
            target.write_text("precious")
            (folder / "reporter-all.lock").symlink_to(target)
    locks = [HostLock("", {}), HostLock("", {})]

    assert [lock.take() for lock in (*locks, *locks)] == [True] * 4
    assert len(caplog.messages) == 2
    if trap == "name":
        assert target.read_text() == "precious"
    elif trap != "file":
        assert list(folder.iterdir()) == []


def test_anothers_runtime_folder_is_left_alone(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `sudo -E` the variable names the folder of the user before, who could not use a folder of root's there."""
    runtime, shared = places
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    lock = HostLock("", {"XDG_RUNTIME_DIR": str(runtime)})
    lock.take()

    assert list(runtime.iterdir()) == []
    assert [path.name for path in shared.iterdir()] == ["otelgpu-4711"]


@pytest.mark.parametrize("place", ["missing", "full"])
def test_a_place_that_cannot_be_written_is_one_line(
    place: str, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A container may have no /tmp, or one that takes nothing: everybody reports then."""
    if place == "missing":
        monkeypatch.setattr(once, "SHARED", places[1] / "nowhere")
    else:
        monkeypatch.setattr(once, "SHARED", Path("/proc"))
    lock = HostLock("", {})

    assert [lock.take() for _ in range(3)] == [True] * 3
    assert len(caplog.messages) == 1
    lock.release()


def test_a_planted_pipe_or_device_holds_nobody_up(places: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    """Opening a pipe that nobody writes to would wait for ever."""
    folder = places[1] / f"otelgpu-{os.geteuid()}"
    folder.mkdir(mode=0o700)
    os.mkfifo(folder / "reporter-all.lock", 0o600)

    assert HostLock("", {}).take()
    assert len(caplog.messages) == 1


def test_a_host_that_closed_our_file_keeps_its_own(places: tuple[Path, Path], tmp_path: Path) -> None:
    """A daemon closes all files at its start; the number of ours is then given to one of the host's."""
    lock = HostLock("", {"XDG_RUNTIME_DIR": str(places[0])})
    assert lock.take()
    number = lock._file  # noqa: SLF001 - the number that the host closes
    assert number is not None
    os.close(number)
    other = HostLock("", {"XDG_RUNTIME_DIR": str(places[0])})
    with (tmp_path / "precious").open("w") as precious:
        os.dup2(precious.fileno(), number)
        lock.release()
        os.write(number, b"still open")
        os.close(number)

    assert other.take()
    assert not lock.take()  # it was lost with the file, and is another's by now
    other.release()
    assert lock.take()
    lock.release()
    assert (tmp_path / "precious").read_text() == "still open"
