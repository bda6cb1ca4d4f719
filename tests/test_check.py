"""`otelgpu check FILE...`: what is wrong with a file, before anything is started with it."""

import os
from pathlib import Path

import pytest

from tests.harness import command

TEMP = "DCGM_FI_DEV_GPU_TEMP"

# Name and content of a file; what is said on stdout and on stderr; the exit status.
CASES: dict[str, tuple[str, str, list[str], list[str], int]] = {
    "good fields": ("f.csv", f"# x\n{TEMP}, gauge, x\n203, gauge, x\n", ["f.csv: good (2 fields)"], [], 0),
    "good settings": ("s.yaml", "fields: [default]\nsampling: {reuse: 2}\n", ["s.yaml: good (settings)"], [], 0),
    "nothing": ("f.csv", "# nothing\n", ["f.csv: good (0 fields)"], [], 0),
    "fields by content": ("counters", f"# x: y\n{TEMP}, gauge, x: y\n", ["counters: good (1 field)"], [], 0),
    "settings by content": ("otelgpu.conf", "# a, b\nnaming: semconv\n", ["otelgpu.conf: good (settings)"], [], 0),
    "settings on one line": ("otelgpu.conf", "{naming: semconv}\n", ["otelgpu.conf: good (settings)"], [], 0),
    "wrong fields": (
        "f.csv",
        "\nDCGM_FI_DEV_GPU_TMP, gauge, x\nx\n",
        [],
        [
            'otelgpu: f.csv:2: no such field; did you mean DCGM_FI_DEV_GPU_TEMP?, got "DCGM_FI_DEV_GPU_TMP"',
            "otelgpu: f.csv:3: expected NAME, TYPE, HELP, got 1 of them",
        ],
        2,
    ),
    "wrong settings": (
        "s.yaml",
        "sampling:\n  dedline: 1\nsource: simulated:3xx\nfields: [gone.csv]\n",
        [],
        [
            "otelgpu: s.yaml:2: sampling.dedline: no such setting; did you mean sampling.deadline?",
            "otelgpu: s.yaml:3: source: ",
            'otelgpu: s.yaml:4: fields: no such file or directory, got "gone.csv"',
        ],
        2,
    ),
    "odd fields": (
        "f.csv",
        f"{TEMP}, gauge, x\n150, gauge, x\n",
        ["f.csv: good (1 field)"],
        ["otelgpu: warning: f.csv:2: 150 is passed over: the same field stands in line 1"],
        0,
    ),
    "a good web configuration": ("web.yml", "rate_limit: {}\n", ["web.yml: good (a web configuration)"], [], 0),
    "a wrong web configuration": (
        "web.yml",
        "basic_auth_users: {a: b}\n",
        [],
        ["otelgpu: web.yml:1: basic_auth_users.a: expected a hash"],
        2,
    ),
    "settings that are no YAML": ("s.yaml", "a: [\n", [], ["otelgpu: s.yaml:2: "], 2),
}


@pytest.mark.parametrize("case", CASES)
def test_a_file_is_judged_as_at_the_start(case: str, tmp_path: Path) -> None:
    """A pipeline that rolls files out stops at a bad one; a person learns what would be right."""
    name, content, out, err, status = CASES[case]
    (tmp_path / name).write_text(content)
    done = command(None, tmp_path, "check", name)

    assert done.stdout.splitlines() == out
    assert [line[: len(start)] for line, start in zip(done.stderr.splitlines(), err, strict=True)] == err
    assert done.returncode == status


def test_all_files_are_judged_and_one_bad_one_is_enough(tmp_path: Path) -> None:
    """The good ones are named too, so that it is seen what was looked at."""
    (tmp_path / "a.csv").write_text("x\n")
    (tmp_path / "b.yaml").write_text("naming: dcgm\n")
    environ = {"OTELGPU_NAMING": "nonsense", "DCGM_EXPORTER_INTERVAL": "-1"}
    done = command(None, tmp_path, "check", "a.csv", "gone.csv", "gone.yaml", "b.yaml", environ=environ)

    assert done.stdout == "b.yaml: good (settings)\n"
    assert done.stderr.splitlines() == [
        "otelgpu: a.csv:1: expected NAME, TYPE, HELP, got 1 of them",
        "otelgpu: gone.csv: no such file or directory",
        "otelgpu: gone.yaml: no such file or directory",
    ]
    assert done.returncode == 2


@pytest.mark.parametrize("arguments", [(), ("--lenient", "f.csv")])
def test_what_check_does_not_take_is_one_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """As with every command."""
    done = command(None, tmp_path, "check", *arguments)

    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.returncode == 2


def test_a_pipe_is_read_where_somebody_has_written(tmp_path: Path) -> None:
    """`check <(...)` judges what is written; one that nobody writes is a wrong file, and not a program that hangs."""
    os.mkfifo(tmp_path / "silent.yaml")
    written: dict[str, int] = {}
    for text in (f"{TEMP}, gauge, x\n", "naming: bogus\n"):
        end, other = os.pipe()
        os.write(other, text.encode())
        os.close(other)
        written[f"/proc/{os.getpid()}/fd/{end}"] = end
    fields, settings = written
    done = command(None, tmp_path, "check", "silent.yaml", *written)
    for end in written.values():
        os.close(end)

    assert done.stdout == f"{fields}: good (1 field)\n"
    assert done.stderr.splitlines() == [
        "otelgpu: silent.yaml: a pipe from which nothing comes; expected a file",
        f"otelgpu: {settings}: settings from a pipe cannot be checked; expected a file",
    ]
    assert done.returncode == 2
