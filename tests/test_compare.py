"""`otelgpu compare`: what it finds between two pages, and how it says so.

Rule 1: the command is run as from a shell; pages come from recordings, from our server, or stand here line by line.
"""

import gzip
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from otelgpu.cli import main
from otelgpu.compare import fetch as fetching
from otelgpu.compare.command import command
from otelgpu.compare.difference import ASIDE
from otelgpu.config import Server
from tests.conftest import GOLDEN, RECORDINGS, ROOT, Golden
from tests.fakenvml import models
from tests.harness import LIMIT, Node
from tests.recorded.dcgm_page import recording, scenario
from tests.webserver import HASH, here, make_certificates

Start = Callable[..., Node]
Run = Callable[..., tuple[int, str, list[str]]]

MODEL = ',modelName="M"'
TEMP, CLOCK = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_SM_CLOCK"
ENERGY, XID = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_XID_ERRORS"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Compare in an empty folder; give the status, what was printed, and what was complained of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def compare(*arguments: str) -> tuple[int, str, list[str]]:
        status = main(["compare", *arguments])
        out, err = capsys.readouterr()
        return status, out, [line.removeprefix("otelgpu: ") for line in err.splitlines()]

    return compare


def line(name: str, value: object, *, gpu: int = 0, host: str = "n", more: str = "") -> str:
    """A sample line."""
    return f'{name}{{gpu="{gpu}",UUID="GPU-{gpu}",Hostname="{host}"{more}}} {value}'


def body(out: str) -> list[str]:
    """What is said between the names of the pages and the sum."""
    return [text.strip() for text in out.splitlines()[2:-1]]


def difference(run: Run, a: Sequence[str], b: Sequence[str], *flags: str) -> tuple[int, list[str]]:
    """Compare two pages of these lines."""
    Path("a").write_text("\n".join([*a, ""]))
    Path("b").write_text("\n".join([*b, ""]))
    status, out, complaints = run("a", "b", *flags)
    assert complaints == []
    return status, body(out)


# ---- pages of real machines


@pytest.mark.parametrize(
    "name",
    [
        "tesla-t4-whole-pod-550.54.14.prom",
        "a100-sxm4-40gb-mig-3-instances-520.56.06.prom",
        "h100-mig-1g.10gb-535.129.03.prom",
    ],
)
@pytest.mark.usefixtures("recordings")
def test_a_page_of_dcgm_exporter_and_ours_of_the_same_machine(
    name: str, run: Run, node: Start, golden: Golden, tmp_path: Path
) -> None:
    """What somebody who moves sees, and what he has to look into."""
    theirs = RECORDINGS / "dcgm-exporter" / name
    samples = [each for each in recording(theirs.read_text()).samples if each.name != "DCGM_FI_DEV_COUNT"]
    (tmp_path / "theirs.prom").write_text(theirs.read_text())
    (tmp_path / "ours.prom").write_text(node(scenario(samples)).settled_page())
    status, out, complaints = run("theirs.prom", "ours.prom")
    as_json = run("theirs.prom", "ours.prom", "--format", "json")[1]

    assert (status, complaints) == (1, [])
    assert f"\n{json.loads(as_json)['differences']} differences; " in out
    golden(f"compare/{name.removesuffix('.prom')}.txt", out)


def test_the_page_on_moving_shows_what_is_printed() -> None:
    """Its example is a comparison that was made."""
    printed = (GOLDEN / "compare" / "tesla-t4-whole-pod-550.54.14.txt").read_text().splitlines()[2:]

    assert "\n".join(printed) in (ROOT / "docs" / "migrate-from-dcgm-exporter.md").read_text()


def test_the_record_holds_everything(run: Run, golden: Golden) -> None:
    """A script that watches a migration reads it."""
    Path("a").write_text(
        f"# TYPE {TEMP} gauge\n{line(TEMP, 40, host='x')}\n{line(TEMP, 'NaN', gpu=1)}\n{line(ENERGY, 5)}\n"
        f"{line('DCGM_FI_DEV_FB_USED', 1)}\n{line(CLOCK, 1)}\n{line(CLOCK, 1)}\ngo_threads 5\n"
    )
    Path("b").write_text(
        f"# TYPE {TEMP} counter\n{line(TEMP, 50)}\n{line(TEMP, 40, gpu=1)}\n{line(ENERGY, 5, gpu=2)}\n"
        f"{line('DCGM_FI_DEV_FB_USED_BYTES', 1)}\n{line(CLOCK, 1, more=MODEL)}\n"
    )
    status, out, complaints = run("a", "b", "--format", "json")

    assert (status, complaints) == (1, [])
    golden("compare/record.json", out)


# ---- what is a difference, and what is none


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([f'{TEMP}{{gpu="0",UUID="u"}} 40'], [f'{TEMP}{{UUID="u",gpu="0",}} 40.000000 1700000000000']),
        ([line(TEMP, 40), line(TEMP, 41, gpu=1)], [line(TEMP, 41, gpu=1), line(TEMP, 40)]),
        ([line(TEMP, 40, more=',pod=""')], [line(TEMP, 40)]),
        ([f"# HELP {TEMP} x", line(TEMP, 40)], [f"# HELP {TEMP} y", "", "# a remark", line(TEMP, 40)]),
        ([line(TEMP, 40)], [line(TEMP, 43)]),
        ([line(ENERGY, 1_000_000_000)], [line(ENERGY, 1_009_000_000)]),
        ([line("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.5)], [line("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.59)]),
        ([line("DCGM_FI_DEV_SM_CLOCK_HERTZ", 1.98e9)], [line("DCGM_FI_DEV_SM_CLOCK_HERTZ", 1.97e9)]),
        ([line("my_gauge", 100)], [line("my_gauge", 104)]),
        (["# TYPE x counter", "x_total 1", "# EOF"], ["# TYPE x_total counter", "x_total 1"]),  # OpenMetrics
        (
            [line("my_gauge", "NaN"), line("my_gauge", "+Inf", gpu=1)],
            [line("my_gauge", "NaN"), line("my_gauge", "+Inf", gpu=1)],
        ),
    ],
    ids=lambda lines: lines[-1],
)
def test_what_is_no_difference(a: list[str], b: list[str], run: Run) -> None:
    """Order, notation, words of help, and what moves between two looks."""
    assert difference(run, a, b) == (0, [])


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (line(TEMP, 40), line(TEMP, 44), f'{TEMP}{{gpu="0",UUID="GPU-0"}}: 40 in A, 44 in B'),
        (line(XID, 79), line(XID, 78), f'{XID}{{gpu="0",UUID="GPU-0"}}: 79 in A, 78 in B'),
        (
            line(ENERGY, 10**9),
            line(ENERGY, 2 * 10**9),
            f'{ENERGY}{{gpu="0",UUID="GPU-0"}}: 1000000000 in A, 2000000000 in B',
        ),
        (line("my_gauge", "NaN"), line("my_gauge", 1), 'my_gauge{gpu="0",UUID="GPU-0"}: nan in A, 1 in B'),
        (line("my_gauge", "-Inf"), line("my_gauge", "+Inf"), 'my_gauge{gpu="0",UUID="GPU-0"}: -inf in A, inf in B'),
    ],
    ids=["gauge", "code", "counter", "nan", "infinity"],
)
def test_values_too_far_apart(a: str, b: str, said: str, run: Run) -> None:
    """A code is another code, however near its number is."""
    assert difference(run, [a], [b]) == (1, ["Values", said])
    assert difference(run, [a], [b], "--ignore", "*")[0] == 0


def test_the_tolerance_can_be_changed(run: Run) -> None:
    """Of a node at rest values are equal; of a busy one they are further apart."""
    a, b = [line(TEMP, 40)], [line(TEMP, 46)]

    assert difference(run, a, b)[0] == 1
    assert difference(run, a, b, "--tolerance", "2")[0] == 0
    assert difference(run, a, [line(TEMP, 40.5)], "--tolerance", "0")[0] == 1


def test_a_label_is_one_difference_for_all_series(run: Run) -> None:
    """The list stays readable, and every series is still found on the other page."""
    a = [line(name, 1, gpu=gpu) for name in (TEMP, CLOCK) for gpu in range(3)]
    b = [text.replace("Hostname", "hostname").replace('"}', '",cluster="east"}') for text in a]

    assert difference(run, a, b) == (
        1,
        [
            "Labels",
            "Hostname: only in A, on 6 series of 2 names",
            "hostname: only in B, on 6 series of 2 names",
            "cluster: only in B, on 6 series of 2 names",
        ],
    )
    assert difference(
        run, a, [text.replace('Hostname="n"', "").replace(",}", "}") for text in a], "--ignore-label", "Hostname"
    ) == (0, [])


def test_labels_that_differ_by_nature_do_not_count(run: Run) -> None:
    """A pod has a host name of its own; a pod may have ended between the two looks."""
    a = [line(TEMP, 40, host="pod-a", more=',pod="one"')]
    b = [line(TEMP, 40, host="pod-b", more=',pod="two"')]
    status, said = difference(run, a, b)

    assert status == 0
    assert said == [
        "Not counted",
        f'Hostname: "pod-a" in A, "pod-b" in B, on 1 series of 1 name: {ASIDE["Hostname"]}',
        f'pod: "one" in A, "two" in B, on 1 series of 1 name: {ASIDE["pod"]}',
    ]


def test_the_copies_of_a_shared_gpu_find_each_other(run: Run) -> None:
    """Nothing but the pod tells them apart, and one page may have them in another order or lack one."""
    pods = [line(TEMP, 40, more=f',pod="{pod}"') for pod in ("one", "two", "three")]

    assert difference(run, pods, pods[::-1]) == (0, [])
    assert difference(run, pods, [line(TEMP, 40)], "--ignore-label", "pod") == (0, [])
    assert difference(run, pods, [pods[2], pods[0]]) == (
        1,
        ["Series only in A", f'{{gpu="0",UUID="GPU-0",pod="two"}}: {TEMP}'],
    )


def test_names_types_and_series_of_one_page_alone(run: Run) -> None:
    """With the name that the other page has for the field, and each GPU named once."""
    old = [
        "# TYPE x_total counter",
        "x_total 1",
        line(TEMP, 40),
        line(CLOCK, 1),
        line(CLOCK, 1, gpu=1),
        line(XID, 0, gpu=1),
        line(XID, 0),
    ]
    new = [
        "# TYPE x_total gauge",
        "x_total 1",
        line(f"{TEMP}_CELSIUS", 40),
        line(CLOCK, 1),
        line(XID, 0),
        line("mine", 1),
    ]

    assert difference(run, old, new) == (
        1,
        [
            "Names only in A",
            f"{TEMP}: 1 series; B calls it {TEMP}_CELSIUS",
            "Names only in B",
            f"{TEMP}_CELSIUS: 1 series; A calls it {TEMP}",
            "mine: 1 series",
            "Types",
            "x_total: counter in A, gauge in B",
            "Series only in A",
            f'{{gpu="1",UUID="GPU-1"}}: {CLOCK}, {XID}',
        ],
    )


def test_uuids_may_have_another_name(run: Run) -> None:
    """`--use-old-namespace` on one side: the GPU's number tells the series apart then."""
    a = [line(TEMP, 40 + 20 * gpu, gpu=gpu) for gpu in range(2)]

    assert difference(run, a, [text.replace("UUID", "uuid") for text in a]) == (
        1,
        ["Labels", "UUID: only in A, on 2 series of 1 name", "uuid: only in B, on 2 series of 1 name"],
    )


def test_what_exporters_say_of_themselves_does_not_count(run: Run) -> None:
    """Unless it is asked for."""
    a, b = ["go_threads 4", line(TEMP, 40), line(TEMP, 40)], ["otelgpu_source_up 1", line(TEMP, 40)]

    assert difference(run, a, b) == (
        0,
        ["Not counted", f"{TEMP}: 1 series more than once in A", "2 names of what exporters say of themselves"],
    )
    assert difference(run, a, b, "--only", "go_*", "--only", "otelgpu_*") == (
        1,
        ["Names only in A", "go_threads: 1 series", "Names only in B", "otelgpu_source_up: 1 series"],
    )


# ---- where pages come from


def test_pages_of_two_servers(run: Run, node: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As both run beside each other: one open, one with a certificate and a password."""
    made = make_certificates(tmp_path)
    (tmp_path / "web.yml").write_text(
        f"tls_server_config: {{cert_file: server.pem, key_file: server.key}}\nbasic_auth_users: {{alice: {HASH}}}\n"
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(made.file("ca.pem")))
    scenario = models.h100(2)
    with (
        here(node(scenario)) as plain,
        here(node(scenario, server=Server(web_config=str(tmp_path / "web.yml")))) as guarded,
    ):
        a, b = f"http://127.0.0.1:{plain.port}", f"localhost:{guarded.port}/metrics"
        good = run(a, f"https://alice:correct%20horse@{b}", "--tolerance", "1000", "--again", "0.01")
        wrong = run(f"http://127.0.0.1:{plain.port}/nowhere", f"https://alice:nothing@{b}")
        plain_text = run(a, f"http://alice:nothing@{b}")
        monkeypatch.delenv("SSL_CERT_FILE")
        unknown = run(a, f"https://alice:nothing@{b}")

    assert (good[0], good[2]) == (0, [])
    assert good[1].startswith(f"A: {a} (")
    assert wrong == (
        2,
        "",
        [f"http://127.0.0.1:{plain.port}/nowhere: answered 404 Not Found", f"https://{b}: answered 401 Unauthorized"],
    )
    assert plain_text[0] == unknown[0] == 2
    assert "nothing" not in str([plain_text, unknown])
    assert "SSL_CERT_FILE names a file with the authority of its certificate" in unknown[2][0]


def test_a_page_from_standard_input(run: Run, tmp_path: Path) -> None:
    """`otelgpu once | otelgpu compare URL -`, and nothing of the program's own start is in the way."""
    Path("a").write_text(line(TEMP, 40) + "\n")
    asked = [sys.executable, "-m", "otelgpu", "compare", "a", "-"]
    done = subprocess.run(
        asked,
        input=line(TEMP, 50),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=LIMIT,
        check=False,
        env={"PYTHONPATH": str(ROOT)},
    )

    assert (done.returncode, done.stderr) == (1, "")
    assert "40 in A, 50 in B" in done.stdout
    assert run("-", "-") == (2, "", ["only one of the pages can be read from standard input"])
    assert run("a", "a", "--again", "1") == (2, "", ["--again: neither of the pages is asked for by URL"])


def test_a_counter_that_falls_between_two_looks(
    node: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To Prometheus that is a restart, and `increase()` adds the whole number once more."""
    scenario = models.h100(1)
    running = node(scenario)
    (tmp_path / "a").write_text(running.settled_page())
    waited: list[float] = []

    def fall(seconds: float) -> None:
        waited.append(seconds)
        gpu = scenario.gpus[0]
        running.show(scenario.with_gpu(0, fields={**gpu.fields, 83: 5}))

    with here(running) as served:
        arguments = [str(tmp_path / "a"), f"http://127.0.0.1:{served.port}", "--again", "60", "--tolerance", "1000"]
        with command(fall).make_context("compare", arguments) as context:
            status = context.command.invoke(context)
    said = capsys.readouterr().out.splitlines()

    assert waited == [60]
    assert status == 1
    assert said[said.index("Counters that went back") + 1].startswith(f'  {ENERGY}{{gpu="0",')
    assert said[-1].startswith("1 difference; ")


# ---- what cannot be compared


@contextmanager
def answering(*parts: bytes, stays: bool = False) -> Iterator[str]:
    """A server that answers each request with these bytes, and then hangs up, or goes on with the last ones."""
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(1 << 16)
                for part in parts:
                    connection.sendall(part)
                with suppress(OSError):
                    while stays and not over.wait(DRIP):
                        connection.sendall(parts[-1])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}/metrics"
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(LIMIT)


OK = b"HTTP/1.1 200 OK\r\n"
DRIP = 0.05  # seconds from one byte to the next


@pytest.mark.parametrize(
    ("parts", "stays", "said"),
    [
        ((OK, b""), True, "no page within 0.3 s"),
        ((OK + b"Name: ", b"x"), True, "no page within 0.3 s"),
        ((b"HTTP/1.1 100 Continue\r\n\r\n",), True, "no page within 0.3 s"),
        ((OK + b"\r\n", b"#"), True, "no page within 0.3 s"),
        ((OK + b"Content-Length: 9\r\n\r\nup 1\n", b""), True, "no page within 0.3 s"),
        ((OK + b"Content-Length: 9\r\n\r\n", b"up 1\n"), False, "the connection ended 4 bytes too early"),
        (
            (OK + b"Transfer-Encoding: chunked\r\n\r\n9\r\nup 1\n",),
            False,
            "the answer is cut off, or its chunks are wrong",
        ),
        (
            (OK + b"Content-Encoding: gzip\r\n\r\n", gzip.compress(b"up 1\n")),
            False,
            'came in an encoding that was not asked for: "gzip"',
        ),
        ((b"SSH-2.0-OpenSSH_9.2\r\n",), False, 'no answer in HTTP: "SSH-2.0-OpenSSH_9.2\\r\\n"'),
        (
            (OK + b"\r\n<html>\n</html>\n",),
            False,
            'line 1 is no metric in Prometheus\'s text format: "<html>" (and 1 more like it)',
        ),
        ((OK + b"\r\n",), False, "there is no metric on it"),
        ((OK + b"\r\nup 1\nup\xff 1\n",), False, "line 2 is not UTF-8 text"),
        (
            (b"HTTP/1.1 302 Found\r\nLocation: http://eve:pw@elsewhere/\r\n\r\n",),
            False,
            "answered 302 Found; it points to http://elsewhere/",
        ),
        ((OK + b"\r\n" + b"up 1\n" * 1000,), False, "more than 0 MiB is no page of metrics"),
        (
            (OK + b"Content-Length: 99999\r\n\r\n" + b"up 1\n" * 1000,),
            False,
            "more than 0 MiB is no page of metrics",
        ),
    ],
)
def test_an_answer_that_is_no_page(
    parts: tuple[bytes, ...], said: str, run: Run, monkeypatch: pytest.MonkeyPatch, *, stays: bool
) -> None:
    """One line that says what came instead, without the password."""
    monkeypatch.setattr(fetching, "LARGEST", 4096)
    with answering(*parts, stays=stays) as place:
        Path("good").write_text(line(TEMP, 40))
        answer = run("good", f"http://bob:pw@{place}", "--timeout", "0.3")

    assert answer == (2, "", [f"http://{place}: {said}"])


def test_everything_that_is_wrong_is_told_at_once(run: Run) -> None:
    """A place that is mistyped, and a page that is none."""
    Path("bad").write_text(f"# TYPE {TEMP}\n{line(TEMP, 40)}\n{TEMP}{{gpu=0}} 1\n{TEMP} x\n# TYPE a b c\n")

    assert run("nowhere", "bad") == (
        2,
        "",
        [
            "nowhere: No such file or directory",
            f'bad: line 3 is no metric in Prometheus\'s text format: "{TEMP}{{gpu=0}} 1" (and 1 more like it)',
        ],
    )
    assert run("http://h:99999", "ftp://a:b@x/") == (
        2,
        "",
        ["http://h:99999: a port is 0 to 65535", 'ftp://x/: expected http:// or https://, got "ftp"'],
    )
    assert run("https://a:b@", "http://h/a b")[2] == [
        "https://: expected a host after ://",
        '"http://h/a b": a URL is of ASCII characters without blanks; %20 stands for one',
    ]
    assert run("a") == (2, "", ["Missing argument 'B'."])


def test_nothing_of_it_is_loaded_to_serve() -> None:
    """A plain scrape target stays small."""
    script = "import sys, otelgpu.cli as cli; cli._program(); print([one for one in sys.modules if 'compare' in one])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=LIMIT, check=True
    )

    assert done.stdout == "[]\n"
