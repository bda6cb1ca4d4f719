"""CSV files of fields: what is read from them, what is said about them, and what the page makes of it."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otelgpu.config import Config, Flag, load
from otelgpu.config.counters import KINDS, merged, parse
from otelgpu.errors import ConfigError
from otelgpu.fields import CATALOGUE, GROUPS
from otelgpu.sources.choice import wanted_fields
from tests.fakenvml import models
from tests.harness import Node, command, lines_of, serving, values

Start = Callable[..., Node]

TEMP, UTIL, DRIVER = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DRIVER_VERSION"

GOUGE = 'expected gauge, counter, label, histogram, summary or untyped; did you mean gauge?, got "gouge"'
BEHIND = 'text stands behind the closing quote; a quote within quotes is written ""'


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run where metrics.csv can be named without a folder, as in the messages below."""
    monkeypatch.chdir(tmp_path)


def loaded(text: str | bytes, *entries: str, lenient: bool = False, name: str = "metrics.csv") -> Config:
    """Load the settings with a CSV file of this text among the fields."""
    Path(name).write_bytes(text.encode() if isinstance(text, str) else text)
    flags = [Flag("--fields", "fields", ",".join((*entries, name)))]
    return load(environ={}, flags=[*flags, Flag("--lenient", "lenient", str(lenient).lower())])


def problems(text: str | bytes) -> Sequence[str]:
    """Give back what is wrong with a file of this text."""
    with pytest.raises(ConfigError) as caught:
        loaded(text)
    return caught.value.problems


def shown(config: Config) -> dict[str, object]:
    """The settings that a page of these fields needs."""
    return {"fields": config.fields, "counters": config.counters, "compat": config.compat}


def families(page: str, word: str = "TYPE") -> dict[str, str]:
    """What stands behind the names in the TYPE (or HELP) lines of DCGM's families."""
    found = re.findall(rf"^# {word} ((?:DCGM|dcgm)_\S+) ?(.*)$", page, re.MULTILINE)
    names = [name for name, _ in found]
    assert len(set(names)) == len(names), "a family stands twice"
    return dict(found)


# ---- what is read

# Each of these means the one row below; the first ones do so for dcgm-exporter too.
SAME = {
    "plain": f"{TEMP}, gauge, Temp",
    "no blanks": f"{TEMP},gauge,Temp",
    "blanks at the ends": f"  {TEMP}  ,  gauge  ,  Temp  ",
    "line feed": f"{TEMP}, gauge, Temp\n",
    "CRLF": f"{TEMP}, gauge, Temp\r\n",
    "CRLF and comments": f"# a, b, c\r\n\r\n{TEMP}, gauge, Temp\r\n# end\r\n",
    "quoted": f'{TEMP}, gauge,"Temp"',
    "all quoted": f'"{TEMP}","gauge","Temp"',
    "indented comment": f"  # a comment\n{TEMP}, gauge, Temp",
    "comment behind a tab": f"\t# a, b, c\n{TEMP}, gauge, Temp",
    "line of blanks": f"   \t \n{TEMP}, gauge, Temp",
    "tabs": f"{TEMP}\t,\tgauge\t,\tTemp\t",
    "byte order mark": f"\ufeff{TEMP}, gauge, Temp",
    "byte order mark before a comment": f"\ufeff# comment\n{TEMP}, gauge, Temp",
    "quoted after a blank": f'{TEMP}, gauge, "Temp"',
    "blanks behind the quote": f'{TEMP}, gauge, "Temp" \t',
    "type in capitals": f"{TEMP}, Gauge, Temp",
    "no-break space": f"{TEMP},\u00a0gauge, Temp",
}


@pytest.mark.parametrize("case", SAME)
def test_a_row_is_read_however_it_is_written(case: str) -> None:
    """Files come from editors, spreadsheets, templates and ConfigMaps of many hands."""
    (row,) = loaded(SAME[case]).counters

    assert (row.field, row.name, row.kind, row.help) == (150, TEMP, "gauge", "Temp")


@pytest.mark.parametrize(
    ("written", "help_"),
    [
        ('"a, b"', "a, b"),
        ('"say ""hot"""', 'say "hot"'),
        ('of the "core"', 'of the "core"'),
        ("a # b", "a # b"),
        ("", ""),
        ('""', ""),
        ("°C", "°C"),
    ],
)
def test_help_is_any_text(written: str, help_: str) -> None:
    """A # within a row is no comment, and a quote within the help is a quote."""
    assert [row.help for row in loaded(f"{TEMP}, gauge, {written}").counters] == [help_]


SPELLINGS = {
    "dcgm_gpu_utilization": 203,  # 1.x
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 112,  # 3.x
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 112,
    "DCGM_FI_DEV_GPU_TEMP": 150,
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS": 150,  # 4.6
    "DCGM_FI_DEV_GPU_UTIL_RATIO": 203,  # 4.9
    "203": 203,
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_generation_of_names_and_ids_is_known(spelling: str) -> None:
    """A file of any age goes on working."""
    config = loaded(f"{spelling}, gauge, x")

    assert [row.field for row in config.counters] == [SPELLINGS[spelling]]
    assert [field.id for field in wanted_fields(config)] == [SPELLINGS[spelling]]


def test_entries_of_fields_may_be_mixed() -> None:
    """Words, groups, names, ids and files: one list says all that is to be read."""
    config = loaded(f"{TEMP}, gauge, x\n", "vgpu", "203", DRIVER)
    several = load(environ={}, flags=[Flag("--fields", "fields", "none")])
    wanted = {field.id for field in wanted_fields(config)}

    assert wanted == {150, 203, 1} | {field.id for field in GROUPS["vgpu"]}
    assert wanted_fields(several) == []
    assert set().union(*(set(rows) for rows in GROUPS.values())) == set(CATALOGUE.values())


def test_a_file_is_told_by_its_slash_or_its_ending(tmp_path: Path) -> None:
    """No field, group or word has either; so a mistyped name is never taken for a file, nor a file for a name."""
    (tmp_path / "list").write_text(f"{TEMP}, gauge, x")
    found = load(environ={"OTELGPU_FIELDS": "./list"})

    assert [row.place for row in found.counters] == ["./list:1"]
    with pytest.raises(ConfigError, match="no such field"):
        load(environ={"OTELGPU_FIELDS": "list"})


def test_the_settings_file_may_name_a_csv_file() -> None:
    """All that is wrong with either is told at once."""
    Path("otelgpu.yaml").write_text("fields: [default, metrics.csv, other.csv]\nsampling: {reuse: x}\n")
    Path("metrics.csv").write_text(f"\n{TEMP}, gouge, x\n")
    with pytest.raises(ConfigError) as caught:
        load(environ={}, config_path="otelgpu.yaml")

    assert sorted(caught.value.problems) == [
        f"metrics.csv:2: {GOUGE}",
        'otelgpu.yaml:1: fields: no such file or directory, got "other.csv"',
        'otelgpu.yaml:2: sampling.reuse: expected a number of seconds, got "x"',
    ]


def test_a_file_that_another_layer_overrides_is_not_read() -> None:
    """An image's variable names a file that a flag replaces; it need not be there."""
    config = load(environ={"OTELGPU_FIELDS": "gone.csv"}, flags=[Flag("--fields", "fields", "default")])

    assert config.counters == ()


# ---- what is wrong

WRONG: dict[str, tuple[str | bytes, list[str]]] = {
    "unknown name": (
        "# fields\n\nDCGM_FI_DEV_GPU_TMP, gauge, x",
        ['metrics.csv:3: no such field; did you mean DCGM_FI_DEV_GPU_TEMP?, got "DCGM_FI_DEV_GPU_TMP"'],
    ),
    "name in small letters": (
        "dcgm_fi_dev_gpu_temp, gauge, x",
        ['metrics.csv:1: no such field; did you mean DCGM_FI_DEV_GPU_TEMP?, got "dcgm_fi_dev_gpu_temp"'],
    ),
    "no name": (", gauge, x", ['metrics.csv:1: no such field; `otelgpu fields` lists them, got ""']),
    "name and type": (
        "DCGM_FI_DEV_GPU_TMP, gouge, x",
        [
            'metrics.csv:1: no such field; did you mean DCGM_FI_DEV_GPU_TEMP?, got "DCGM_FI_DEV_GPU_TMP"',
            f"metrics.csv:1: {GOUGE}",
        ],
    ),
    "text as a gauge": (
        "DCGM_FI_DEV_NAME, gauge, x",
        ['metrics.csv:1: DCGM_FI_DEV_NAME is a text: expected label, got "gauge"'],
    ),
    "two columns": (f"{TEMP}, gauge", ["metrics.csv:1: expected NAME, TYPE, HELP, got 2 of them"]),
    "four columns": (
        f"{TEMP}, gauge, a, b",
        ["metrics.csv:1: expected NAME, TYPE, HELP; help with a comma stands in double quotes, got 4 of them"],
    ),
    "quote not closed": (
        f'{TEMP}, gauge, "x\n{UTIL}, gouge, x\n',
        [
            f'metrics.csv:1: the quote that opens here is never closed, got "{TEMP}, gauge, \\"x"',
            f"metrics.csv:2: {GOUGE}",
        ],
    ),
    "text behind a quote": (
        f'{TEMP}, gauge, "x" y',
        [
            f'metrics.csv:1: {BEHIND}, got "{TEMP}, gauge, \\"x\\" y"',
        ],
    ),
    "every row": (
        "a, gauge, x\r\n# b\r\nc, gauge, x\r\nd\r\n",
        [
            'metrics.csv:1: no such field; `otelgpu fields` lists them, got "a"',
            'metrics.csv:3: no such field; `otelgpu fields` lists them, got "c"',
            "metrics.csv:4: expected NAME, TYPE, HELP, got 1 of them",
        ],
    ),
    "UTF-16": ("x".encode("utf-16"), ["--fields metrics.csv: the file is UTF-16; expected UTF-8"]),
    "no text": (b"\x7fELF\0\0", ["--fields metrics.csv: not a text file"]),
    "too large": (b"#" * (1 << 20) + b"#", ["--fields metrics.csv: larger than 1 MiB, so not a list of fields"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_every_problem_is_told_with_the_line_of_the_editor(case: str) -> None:
    """Whoever mends a file must not be told of the next mistake only after that, or be sent to another line."""
    text, expected = WRONG[case]

    assert list(problems(text)) == expected


def test_the_rows_of_a_file_are_told_with_the_mistakes_beside_it() -> None:
    """Whoever mends one mistake and starts again must not find the next one then."""
    Path("metrics.csv").write_text("nope, gauge, x\n")
    with pytest.raises(ConfigError) as caught:
        load(environ={}, flags=[Flag("--fields", "fields", "nope,metrics.csv,gone.csv")])

    assert [problem.split(": ")[0] for problem in caught.value.problems] == [
        "--fields nope",
        "metrics.csv:1",
        "--fields gone.csv",
    ]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """A volume that is mounted in place of a file is a common slip."""
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ConfigError) as caught:
        load(environ={"OTELGPU_FIELDS": "folder.csv"})

    assert list(caught.value.problems) == ['OTELGPU_FIELDS: is a directory, got "folder.csv"']


def test_with_lenient_the_other_rows_are_shown(tmp_path: Path) -> None:
    """A file that is newer than otelgpu costs the rows that it does not know, and says which."""
    text = f"{TEMP}, gauge, x\nDCGM_FI_DEV_GPU_TMP, gouge, x\n{UTIL}, gauge, x\nDCGM_FI_NEW, gauge, x\n"
    (tmp_path / "metrics.csv").write_text(text)
    with serving(models.h100(1), tmp_path, "--fields", "metrics.csv", "--lenient") as served:
        page = served.page()
        log = [line.partition("otelgpu.commands: ")[2].strip() for line in served.log if "metrics.csv" in line]

    assert set(families(page)) == {TEMP, UTIL}
    assert values(page, "otelgpu_config_skipped_rows") == {"": 2}
    assert [line.split(" ")[0] for line in log] == ["metrics.csv:2:", "metrics.csv:2:", "metrics.csv:4:"]
    assert all(line.endswith("; the row is passed over") for line in log)


def test_without_lenient_nothing_starts(tmp_path: Path) -> None:
    """A metric that an alert waits for must not be lost by a slip of the pen."""
    (tmp_path / "metrics.csv").write_text("DCGM_FI_DEV_GPU_TMP, gauge, x\nx\n")
    done = command(models.h100(1), tmp_path, "serve", "--fields", "metrics.csv")

    assert done.returncode == 2
    assert [line.split(" ")[1] for line in done.stderr.splitlines()] == ["metrics.csv:1:", "metrics.csv:2:"]


# ---- remarks

REMARKS: dict[str, tuple[str | bytes, list[str]]] = {
    "the same again": (
        f"{TEMP}, gauge, a\n{TEMP}, counter, b\n",
        [f"metrics.csv:2: {TEMP} is passed over: the same field stands in line 1"],
    ),
    "a number and a name": (
        f"150, gauge, a\n{TEMP}, gauge, b\n",
        [f"metrics.csv:2: {TEMP} is passed over: the same field stands in line 1"],
    ),
    "a label and a family": (
        f"{TEMP}, label, a\ndcgm_gpu_temp, gauge, b\n",
        ["metrics.csv:2: dcgm_gpu_temp is passed over: the same field stands in line 1"],
    ),
    "a histogram": (
        f"{TEMP}, histogram, a\n",
        [f"metrics.csv:1: {TEMP} is one number, so its type is no histogram; expected gauge"],
    ),
    "help over two lines": (f'{TEMP}, gauge, "a\nb"\n', ["metrics.csv:1: the quoted text goes on to line 2"]),
    "Latin-1": (
        f"{TEMP}, gauge, in \xb0C\n".encode("latin-1"),
        ["metrics.csv:1: not UTF-8 (byte 0xb0); such characters are replaced"],
    ),
}


@pytest.mark.parametrize("case", REMARKS)
def test_what_is_odd_is_said_once_and_taken(case: str) -> None:
    """dcgm-exporter takes these files too, so they are no errors; but nobody means them."""
    text, expected = REMARKS[case]
    config = loaded(text)

    assert [remark.text for remark in config.remarks] == expected
    assert len(config.counters) == 1
    assert config.counters[0].line == 1


# ---- the page


def test_name_type_and_help_of_the_file_are_on_the_page(node: Start) -> None:
    """Dashboards made for a file's own names, and people who read its help, find both."""
    config = loaded(
        'dcgm_gpu_temp, counter, "Hot, or ""not""\nat all"\n'
        "DCGM_FI_DEV_SM_CLOCK, untyped,\n"
        "156, summary, energy\n"
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS, gauge, why\n"
    )
    page = node(models.h100(2), **shown(config)).page()

    assert families(page) == {
        "dcgm_gpu_temp": "counter",
        "DCGM_FI_DEV_SM_CLOCK": "untyped",
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "summary",
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": "gauge",
    }
    assert families(page, "HELP")["dcgm_gpu_temp"] == 'Hot, or "not"\\nat all'
    assert families(page, "HELP")["DCGM_FI_DEV_SM_CLOCK"] == ""
    assert set(values(page, "dcgm_gpu_temp")) == {"0", "1"}


def test_a_name_tells_the_unit(node: Start) -> None:
    """Under an old name stand the old units and under a new one the new, as each generation of dashboards expects."""
    config = loaded(f"{UTIL}, gauge, x\nDCGM_FI_DEV_GPU_UTIL_RATIO, gauge, x\n")
    busy = models.h100(1).with_gpu(0, answers={"nvmlDeviceGetUtilizationRates": (42, 3)})
    pages = [node(busy, **(shown(config) | {"compat": compat})).page() for compat in ("4.8.2", "4.8.3", "4.9")]

    assert [values(page, UTIL)["0"] for page in pages] == [42] * 3
    assert [values(page, "DCGM_FI_DEV_GPU_UTIL_RATIO")["0"] for page in pages] == [0.42] * 3


def test_a_number_is_shown_by_the_name_of_the_generation(node: Start) -> None:
    """An id says what is read, and leaves it to `compat` how that is called."""
    config = loaded("203, gauge, x\n1, label, x\n")
    pages = {compat: node(models.h100(1), **(shown(config) | {"compat": compat})).page() for compat in ("4.8.2", "4.9")}

    assert {compat: set(families(page)) for compat, page in pages.items()} == {
        "4.8.2": {UTIL},
        "4.9": {"DCGM_FI_DEV_GPU_UTIL_RATIO"},
    }
    assert DRIVER in lines_of(pages["4.8.2"])[0].labels
    assert "DCGM_FI_SYSTEM_DRIVER_VERSION" in lines_of(pages["4.9"])[0].labels


def test_label_rows_become_labels_of_every_series(node: Start) -> None:
    """Texts and numbers alike, in the order of their names, under the name that the file gives them."""
    config = loaded(
        f"{TEMP}, gauge, x\nDCGM_FI_SYSTEM_DRIVER_VERSION, label, x\nDCGM_FI_DEV_GPU_UTIL, label, x\n"
        "DCGM_FI_DEV_POWER_USAGE, label, x\n"
    )
    running = node(models.h100(2), **shown(config))
    page = running.page()
    labels = {line.labels["gpu"]: line.labels for line in lines_of(page) if line.name == TEMP}
    before = labels["0"][UTIL]
    running.show(models.h100(2).with_gpu(0, answers={"nvmlDeviceGetUtilizationRates": (99, 3)}))
    after = {line.labels["gpu"]: line.labels for line in lines_of(running.page()) if line.name == TEMP}

    assert set(families(page)) == {TEMP}
    assert [name for name in labels["0"] if "FI" in name] == [
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_SYSTEM_DRIVER_VERSION",
    ]
    assert re.fullmatch(r"\d+\.\d{6}", labels["0"]["DCGM_FI_DEV_POWER_USAGE"])
    assert (before != "99", after["0"][UTIL], after["1"]) == (True, "99", labels["1"])


def test_an_instance_has_the_labels_of_its_gpu(node: Start) -> None:
    """Who selects by a label finds the MIG instances too."""
    config = loaded("DCGM_FI_DEV_FB_USED, gauge, x\nDCGM_FI_DEV_GPU_TEMP, label, x\n")
    lines = [
        line for line in lines_of(node(models.h100_mig(), **shown(config)).page()) if line.name.endswith("FB_USED")
    ]

    assert any("GPU_I_ID" in line.labels for line in lines)
    assert all(line.labels.get(TEMP) for line in lines)


# ---- whatever is in the file

WORDS = st.sampled_from((TEMP, UTIL, "203", "dcgm_gpu_temp", DRIVER, "DCGM_FI_DEV_GPU_TMP", *KINDS, "guage", "x", ""))
CELLS = st.one_of(
    WORDS,
    WORDS.map('"{}"'.format),
    st.text(max_size=8),
    st.text(st.sampled_from('", \t#\ra\ufeff\u2028\x0b'), max_size=6),
)
ROWS = st.lists(CELLS, max_size=4).map(",".join)
FILES = st.one_of(
    st.lists(ROWS, max_size=8).flatmap(lambda rows: st.sampled_from(("\n", "\r\n")).map(lambda end: end.join(rows))),
    st.text(max_size=80),
).map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=80)


def _check(content: bytes) -> None:
    """Each line is blank, a comment, within a row, or has a problem; and what is kept can be shown."""
    parsed = parse(content, "f.csv")
    remarks = list(parsed.remarks)
    kept = merged(parsed.rows, remarks)

    lines = content.decode("utf-8-sig", "replace").split("\n")
    spans = {
        int(at): int(end)
        for r in parsed.remarks
        if (m := re.match(r"f.csv:(\d+): .* line (\d+)$", r.text))
        for at, end in [m.groups()]
    }
    told = {row.line for row in parsed.rows} | {int(p.text.split(":")[1]) for p in parsed.problems}
    told |= {line for at, end in spans.items() for line in range(at, end + 1)}
    silent = [n for n, line in enumerate(lines, 1) if line.strip() and not line.strip().startswith("#")]
    assert not set(silent) - told
    assert parsed.bad == {int(problem.text.split(":")[1]) for problem in parsed.problems}
    assert not parsed.bad & {row.line for row in parsed.rows}
    passed_over = [remark for remark in remarks if "is passed over" in remark.text]
    assert len(kept) + len(passed_over) == len(parsed.rows)
    for problem in parsed.problems:
        line = problem.finished(hint=True)
        assert line.isprintable()
        assert len(line) < 400
    assert all(row.kind in KINDS and row.field in CATALOGUE for row in kept)


@given(FILES)
def test_whatever_a_file_holds_ends_as_rows_or_problems(content: bytes) -> None:
    """No file may end in a traceback, and no row may be lost without a word."""
    _check(content)


@pytest.mark.soak
@settings(max_examples=100_000)
@given(FILES)
def test_whatever_a_file_holds_ends_as_rows_or_problems_for_long(content: bytes) -> None:
    """The same for many more files than there is time for otherwise."""
    _check(content)


def test_a_file_of_mistakes_is_refused_in_time() -> None:
    """A megabyte of rows that are not known is told in full, and quickly."""
    rows = (1 << 20) // 30
    text = "".join(f"DCGM_FI_DEV_X{n}, gauge, x\n" for n in range(rows))[: 1 << 20]

    assert len(problems(text)) >= rows - 1


def test_quotes_without_an_end_are_refused_in_time() -> None:
    """Each row opens a quote and none closes it: that must not be looked for to the end again and again."""
    text = "".join(f'{TEMP}, gauge, x, "\n"",' for _ in range(20_000))

    assert problems(text)
