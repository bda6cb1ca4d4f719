"""Reload of the program: what causes it, and that nobody who scrapes notices.

Rule 1: a scraper asks all the time; each of its pages has every GPU.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakenvml import Scenario, models
from tests.faults.rig import distinct
from tests.harness import DROP_IN, Served, lines_of, serving, until, values

PAIR = distinct(models.h100(2))
HUNG = PAIR.with_gpu(1, hangs={"nvmlDeviceGetPowerUsage"})
TEMPERATURE, POWER, USED = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED"
GONE = 5.0  # seconds after the signal

pytestmark = pytest.mark.usefixtures("cc")


@contextmanager
def scraped(served: Served) -> Iterator[None]:
    """Scrape all the time; at the end every page has had both GPUs."""
    over, pages, bad = threading.Event(), [0], []

    def scrape() -> None:
        while not over.is_set():
            reply = served.get()
            pages[0] += 1
            if reply.status != 200 or set(values(reply.text, TEMPERATURE)) != {"0", "1"}:
                bad.append(reply.text)

    threads = [threading.Thread(target=scrape) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()

    assert not bad
    assert pages[0] > 0


def labelled(served: Served, name: str = TEMPERATURE) -> set[str]:
    """The values of the label `rack` on a page."""
    return {line.labels.get("rack", "") for line in lines_of(served.page()) if line.name == name}


def mount(folder: Path, **files: str) -> None:
    """Put files there as Kubernetes does with a ConfigMap: a folder of its own each time, and one link swapped."""
    made = folder / f"..{time.monotonic_ns()}"
    made.mkdir(parents=True)
    for name, text in files.items():
        (made / name.replace("_", ".")).write_text(text, encoding="utf-8")
    link = folder / "..new"
    link.symlink_to(made.name)
    link.rename(folder / "..data")
    for name in files:
        path = folder / name.replace("_", ".")
        if not path.is_symlink():
            path.symlink_to(f"..data/{path.name}")


def test_a_mounted_configmap_a_file_and_a_signal_cause_a_reload(tmp_path: Path) -> None:
    """Nobody who scrapes notices, and wrong settings are logged once and change nothing."""
    folder, csv = tmp_path / "mounted", f"{TEMPERATURE}, gauge, Temperature.\n"
    mount(folder, settings_yaml="labels: {rack: a}\nserver: {reload_interval: 0.1}\n", fields_csv=csv)
    settings = folder / "settings.yaml"
    flags = ("--config", str(settings), "--fields", str(folder / "fields.csv"), "--reuse", "0")
    with serving(PAIR, tmp_path, *flags) as served:
        assert labelled(served) == {"a"}
        with scraped(served):
            mount(folder, settings_yaml="labels: {rack: b}\nserver: {reload_interval: 0.1}\n", fields_csv=csv)
            until(lambda: labelled(served) == {"b"}, "the mount")
            (folder / "fields.csv").write_text(f"{csv}{POWER}, gauge, Power.\n", encoding="utf-8")
            until(lambda: bool(values(served.page(), POWER)), "the CSV file")
            settings.write_text("labels: {rack: c}\n", encoding="utf-8")  # 0.1 s needs a restart to go
            served.process.send_signal(signal.SIGHUP)
            until(lambda: labelled(served, POWER) == {"c"}, "the signal")
            settings.write_text("labels: {rack: c}\nsampling: {deadline: soon}\n", encoding="utf-8")
            until(lambda: values(served.page(), "otelgpu_config_last_reload_successful") == {"": 0}, "wrong settings")
            mount(folder, settings_yaml="labels: {rack: d}\n", fields_csv=csv)
            until(lambda: labelled(served) == {"d"}, "right ones again")
        assert values(served.page(), "otelgpu_config_last_reload_successful") == {"": 1}
        assert served.stop() == 0
    assert served.logged(f'{settings}:2: sampling.deadline: expected a number of seconds, got "soon"') == 1
    assert "Traceback" not in "".join(served.log)


def test_the_drop_in_reads_its_csv_file_again_on_sighup(tmp_path: Path) -> None:
    """As dcgm-exporter does; but a file that is wrong, or away, does not end it."""
    csv = tmp_path / "counters.csv"
    csv.write_text(f"{TEMPERATURE}, gauge, Temperature.\n", encoding="utf-8")
    flags = ("-f", str(csv), "-a", "127.0.0.1:0", "--server-reload-interval", "null", "--listen", "127.0.0.1:0")
    with serving(PAIR, tmp_path, *flags, program=DROP_IN) as served, scraped(served):
        csv.unlink()
        served.process.send_signal(signal.SIGHUP)
        until(lambda: values(served.page(), "otelgpu_config_last_reload_successful") == {"": 0}, "no file")
        csv.write_text(f"{TEMPERATURE}, gauge, Temperature.\n{USED}, gauge, Used.\n", encoding="utf-8")
        served.process.send_signal(signal.SIGHUP)
        until(lambda: len(values(served.page(), USED)) == 2, "the new field")
    assert served.logged("no such file or directory") == 1


@pytest.mark.parametrize("scenario", [PAIR, HUNG], ids=["well", "hung"])
def test_any_mix_of_signals_ends_with_sigterm(scenario: Scenario, tmp_path: Path) -> None:
    """Reloads, letting go and taking again, all at once, with a GPU that hangs: gone in time, and quietly."""
    settings = tmp_path / "s.yaml"
    settings.write_text("labels: {rack: a}\n", encoding="utf-8")
    numbers = random.Random(7).choices((signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2), (3, 1, 1), k=40)
    with serving(scenario, tmp_path, "--config", str(settings), "--reuse", "0", "--deadline", "0.5") as served:
        served.page()
        pause = threading.Event()
        for number in numbers:
            served.process.send_signal(number)
            pause.wait(0.02)
        assert served.get("/healthz").status == 200
        served.process.send_signal(signal.SIGHUP)
        began = time.monotonic()
        assert served.stop() == 0, "".join(served.log)
        assert time.monotonic() - began < GONE
    assert "Traceback" not in "".join(served.log)
    assert "abort" not in "".join(served.log)  # what the fake does when a call overlaps nvmlShutdown


@pytest.mark.soak
def test_memory_stays_flat_over_a_hundred_reloads(tmp_path: Path) -> None:
    """Of a process that has reloaded a few times, as that costs once what a start costs."""
    settings = tmp_path / "s.yaml"

    def reload(number: int) -> None:
        settings.write_text(f"labels: {{rack: r{number}}}\n", encoding="utf-8")
        served.process.send_signal(signal.SIGHUP)
        until(lambda: labelled(served) == {f"r{number}"}, "the reload")

    settings.write_text("labels: {rack: a}\n", encoding="utf-8")
    flags = ("--config", str(settings), "--reuse", "0", "--server-reload-interval", "null")
    with serving(models.h100(8), tmp_path, *flags) as served:
        for number in range(20):
            reload(number)
        before = resident(served.process.pid)
        for number in range(20, 120):
            reload(number)
        after = resident(served.process.pid)

        assert after - before < 1 << 20, (before, after)


def resident(pid: int) -> int:
    """Resident memory of a process, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
