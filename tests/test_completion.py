"""What a shell completes: asked for through the scripts that it evaluates, once by a real bash."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from otelgpu.cli import main
from otelgpu.fields import GROUPS
from tests.conftest import ROOT
from tests.harness import LIMIT

COMMANDS = {"serve", "once", "devices", "doctor", "fields", "check", "compare", "completion", "record"}
# What is typed, the last word begun, and what is offered for it.
TYPED: dict[tuple[str, ...], set[str]] = {
    ("on",): {"once"},
    ("--comp",): {"--compat"},
    ("--vers",): {"--version"},
    ("serve", "--sou"): {"--source"},
    ("once", "--sou"): {"--source"},
    ("--compat", ""): {"4.8.2", "4.8.3", "4.9"},
    ("--source", "nv"): {"nvml"},
    ("serve", "--naming", "s"): {"semconv"},
    ("--fields", "DCGM_FI_DEV_GPU_TEM"): {"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_LIMIT"},
    ("--fields", "default,vg"): {"default,vgpu"},
    ("--fields", "non"): {"none"},
    ("--devices", "0,g"): {"0,g", "0,g+i"},
    ("once", "--format", "t"): {"text", "table"},
    ("completion", "z"): {"zsh"},
    ("--kubernetes", ""): set(),
    ("nonsense", "--comp"): {"--compat"},
}
FILES = (
    ("--config", "o"),
    ("check", "o"),
    ("--fields", "./o"),
    ("--fields", "default,/etc/o"),
    ("--otlp-client-key", "o"),
)


def offered(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: Sequence[str]) -> list[str]:
    """What otelgpu answers the script of bash: a kind and a text in each line."""
    monkeypatch.setenv("_OTELGPU_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(["otelgpu", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return [line for line in out.splitlines() if line]


@pytest.mark.parametrize("words", TYPED, ids=" ".join)
def test_what_can_stand_there_is_offered(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands, flags, and the values of a flag; a list is completed at its end."""
    assert set(offered(capsys, monkeypatch, words)) == {f"plain,{text}" for text in TYPED[words]}


def test_all_commands_and_groups_are_offered(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever does not know where to begin sees what there is."""
    assert set(offered(capsys, monkeypatch, [""])) >= {f"plain,{name}" for name in COMMANDS}
    assert set(offered(capsys, monkeypatch, ["--fields", ""])) >= {f"plain,{name}" for name in (*GROUPS, "all")}


@pytest.mark.parametrize("words", FILES, ids=" ".join)
def test_files_are_left_to_the_shell(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the folders, and how to quote."""
    assert offered(capsys, monkeypatch, words) == [f"file,{words[-1]}"]


def test_a_real_bash_completes(tmp_path: Path) -> None:
    """The line of ~/.bashrc, and then what a Tab does."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    program = tmp_path / "otelgpu"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m otelgpu "$@"\n')
    program.chmod(0o755)
    lines = ['eval "$(otelgpu completion bash)"', "complete -p otelgpu"]
    for words in (["--comp"], ["--source", "auto", "--fields", "vg"]):
        lines += [f"COMP_WORDS=(otelgpu {' '.join(words)}) COMP_CWORD={len(words)} COMPREPLY=()"]
        lines += ["_otelgpu_completion otelgpu", 'echo "${COMPREPLY[*]}"']
    done = subprocess.run(
        [bash, "--norc", "-euc", "\n".join(lines)],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )

    assert done.stdout.splitlines() == ["complete -o nosort -F _otelgpu_completion otelgpu", "--compat", "vgpu"]
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_one_that_it_reads(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a shell that is not here, that the script calls otelgpu back."""
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out

    assert f"_OTELGPU_COMPLETE={shell}_complete" in script
    if path := shutil.which(shell):
        read = subprocess.run([path, "-n"], input=script, text=True, capture_output=True, check=False, timeout=LIMIT)
        assert (read.returncode, read.stderr) == (0, "")
