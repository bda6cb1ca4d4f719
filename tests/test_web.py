"""The web configuration file, as whoever writes it meets it, and its TLS and passwords as clients do: curl and openssl.

Rule 1: a wrong file is told by line and key, all of it at once; a wrong change leaves the last good one in force.
Rule 2: whether something is refused is seen from the client's side.
"""

import contextlib
import re
import select
import signal
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import bcrypt
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from otelgpu import watch as watching
from otelgpu.config import Server
from otelgpu.config.given import Problem
from otelgpu.config.load import finished
from otelgpu.config.webfile import Web, read
from otelgpu.errors import ConfigError
from otelgpu.server import driver
from otelgpu.server import guard as guarding
from otelgpu.server.passwords import MOST_WAITING
from tests.conftest import Golden
from tests.fakenvml import models
from tests.harness import Node, command, serving, until
from tests.test_systemd import Listener
from tests.webserver import HASH, SECRET, Certificates, Here, here, make_certificates, status

Start = Callable[..., Node]

OTHER_KEY = "tls_server_config: {cert_file: server.pem, key_file: other.key}\n"
TLS = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
CHECKED = f"{TLS}  client_ca_file: ca.pem\n  client_auth_type: "
USERS = f"basic_auth_users:\n  alice: {HASH}\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The certificates."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def write(made: Certificates) -> Callable[[str], Path]:
    """Write a web configuration file beside the certificates."""

    def write(text: str) -> Path:
        path = made.folder / "web.yml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def serve(node: Start, write: Callable[[str], Path]) -> Iterator[Callable[[str], Here]]:
    """Serve one GPU behind a file of this text, until the test ends."""
    with contextlib.ExitStack() as stack:

        def serve(text: str) -> Here:
            started = node(models.h100(), server=Server(web_config=str(write(text))))
            return stack.enter_context(here(started))

        yield serve


def judged(path: Path) -> tuple[Web, list[str]]:
    """What a file holds, and what is wrong with it, without its folder."""
    problems: list[Problem] = []
    web = read(str(path), asked_by=f"--web-config-file {path}", problems=problems)
    return web, [line.replace(f"{path.parent}/", "") for line in finished(problems)]


# the file

GOOD = f"""\
tls_server_config:
  cert_file: server.pem
  key_file: server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.pem
  client_allowed_sans: [client, "::1"]
  min_version: TLS12
  max_version: TLS13
  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]
  prefer_server_cipher_suites: false
  curve_preferences: [X25519]
http_server_config:
  http2: false
  headers:
    Strict-Transport-Security: max-age=31536000
    X-Frame-Options: deny
    X-XSS-Protection: ""
basic_auth_users:
  alice: {HASH}
rate_limit:
  interval: 1m1.5s
  burst: 20
"""


def test_every_key_of_the_format_is_taken(write: Callable[[str], Path]) -> None:
    """A file that serves node_exporter today serves otelgpu tomorrow."""
    path = write(GOOD)
    web, wrong = judged(path)

    assert wrong == []
    assert web.remarks == ()
    assert web.context is not None
    assert web.context.verify_mode is ssl.CERT_REQUIRED
    assert web.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert {suite["name"] for suite in web.context.get_ciphers() if suite["protocol"] != "TLSv1.3"} == {
        "ECDHE-ECDSA-AES128-GCM-SHA256"
    }
    assert web.sans == {"client", "::1"}
    assert web.headers == {"Strict-Transport-Security": "max-age=31536000", "X-Frame-Options": "deny"}
    assert web.users == {"alice": HASH.encode()}
    assert web.rate == (61.5, 20)
    assert [Path(file).name for file in web.files] == ["web.yml", "server.pem", "server.key", "ca.pem"]
    assert HASH not in repr(web)


@pytest.mark.parametrize("text", ["", "---\n", "# nothing\n", "tls_server_config:\nbasic_auth_users: {}\n"], ids=repr)
def test_a_file_that_asks_for_nothing_is_none(write: Callable[[str], Path], text: str) -> None:
    """Prometheus' own example is a file of comments."""
    assert judged(write(text)) == (Web(files=(str(write(text)),)), [])


WRONG = {
    "everything": """\
tls_server_config:
  cert_file: gone.pem
  key_fil: server.key
  min_version: TLS14
  client_auth_type: VerifyIt
  client_allowed_sans: []
  cipher_suites: [TLS_X, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA25]
  curve_preferences: X25519
http_server_config:
  http2: maybe
  headers:
    X-Frame-Options: foo
    X-Content-Type-Options: "a\\nb"
    Server: x
basic_auth_users:
  alice: hunter2
  $2y$10$hunter2: bob
  a:b: x
  bob: [hunter2]
rate_limit:
  interval: 1
  burst: 0
web: {}
""",
    "secrets in the wrong place": "basic_auth_users: hunter2\ntls_server_config: hunter2\n",
    "no certificate": "tls_server_config: {key_file: server.key}\n",
    "files that are not there": "tls_server_config: {cert_file: a.pem, key_file: b.key, client_ca_file: c.pem}\n",
    "an empty name": "tls_server_config: {cert_file: '', key_file: ''}\n",
    "a key of another": OTHER_KEY,
    "the wrong way round": "tls_server_config: {cert_file: server.key, key_file: server.pem}\n",
    "a key with a password": "tls_server_config: {cert_file: server.pem, key_file: locked.key}\n",
    "authorities that are none": f"{TLS}  client_ca_file: server.key\n  client_auth_type: RequireAndVerifyClientCert\n",
    "authorities for nobody": f"{TLS}  client_ca_file: ca.pem\n",
    "names for nobody": f"{CHECKED}VerifyClientCertIfGiven\n  client_allowed_sans: [client]\n",
    "certificates that nobody checks": f"{TLS}  client_auth_type: RequireAnyClientCert\n",
    "both": f"{TLS}  cert: x\n",
    "versions": f"{TLS}  min_version: TLS13\n  max_version: TLS12\n",
    "suites of another version": f"{TLS}  max_version: TLS12\n  cipher_suites: [TLS_AES_128_GCM_SHA256]\n",
    "a costly hash": f"basic_auth_users: {{alice: {HASH.replace('$04$', '$20$')}}}\n",
    "a name that cannot be printed": 'tls_server_config: {cert_file: "\\u0600\\n", key_file: server.key}\n',
    "a hash that was mistyped": f"basic_auth_users: {{alice: {HASH[:28]}A{HASH[29:]}}}\n",
    "no burst": "rate_limit: {interval: 1s}\n",
    "twice": f"{TLS}{TLS}",
    "a list": "- tls_server_config\n",
    "no YAML": "tls_server_config: {\n",
    "no UTF-8": "tls_server_config: \udcff\n",
}


def test_what_is_wrong_is_told_by_line(write: Callable[[str], Path], golden: Golden) -> None:
    """All of it at once, with what would be right, and no secret."""
    told = []
    for case, text in WRONG.items():
        path = write("")
        path.write_bytes(text.encode(errors="surrogateescape"))
        wrong = judged(path)[1]
        told += [f"# {case}", *wrong, ""]

        assert wrong, case
    text = "\n".join(told)

    assert "hunter2" not in text
    golden("web-config.txt", text)


def test_what_openssl_does_otherwise_is_a_remark(write: Callable[[str], Path]) -> None:
    """Stricter than asked for, or without a difference that anybody sees, but not in silence."""
    curves = "  curve_preferences: [X25519, CurveP256]\n"
    path = write(f"{CHECKED}RequireAnyClientCert\n{curves}http_server_config: {{http2: true}}\n")
    web, wrong = judged(path)

    assert wrong == []
    assert web.context is not None
    assert web.context.verify_mode is ssl.CERT_REQUIRED
    section = "web.yml:1: tls_server_config: "
    assert [remark.replace(f"{path.parent}/", "") for remark in web.remarks] == [
        "web.yml:7: http_server_config.http2: HTTP/2 is not spoken; clients get HTTP/1.1",
        f"{section}of several curve_preferences none is enforced: OpenSSL's own choice, X25519 first, stands",
        f"{section}client_auth_type RequireAnyClientCert: certificates of clients are checked all the same",
    ]


def test_the_start_tells_it_with_all_else(tmp_path: Path) -> None:
    """Whoever mends a manifest wants to mend it once; both programs read the file by each of its names."""
    (tmp_path / "web.yml").write_text("rate_limits: {}\n")
    for environ in ({}, {"OTELGPU_SERVER_WEB_CONFIG": "web.yml"}, {"DCGM_EXPORTER_WEB_CONFIG_FILE": "web.yml"}):
        flags = () if environ else ("--web-config-file=web.yml",)
        done = command(None, tmp_path, "serve", "--deadline=0", *flags, environ=environ)
        assert done.returncode == 2
        assert [line for line in done.stderr.splitlines() if "deadline" not in line] == [
            "otelgpu: web.yml:1: rate_limits: no such setting; did you mean rate_limit?"
        ]
        assert len(done.stderr.splitlines()) == 2


# TLS and passwords


def test_curl_reads_the_page_with_certificate_and_password(serve: Callable[[str], Here], made: Certificates) -> None:
    """Each half alone is refused, every answer holds the headers, and every path is guarded."""
    headers = "http_server_config: {headers: {X-Frame-Options: deny}}\n"
    node = serve(f"{CHECKED}RequireAndVerifyClientCert\n  client_allowed_sans: [client]\n{USERS}{headers}")
    ca, alice = ("--cacert", made.file("ca.pem")), ("-u", f"alice:{SECRET}")
    client, other, stranger = map(made.flags, ("client", "other", "stranger"))

    page = node.curl("/metrics", *ca, *client, *alice)[0]
    assert page.startswith("HTTP/1.1 200 OK")
    assert "\nDCGM_FI_DEV_GPU_TEMP{" in page
    for path in ("/metrics", "/healthz", "/readyz", "/health", "/", "/none", "/-/release"):
        for wrong in ((), ("-u", "alice:wrong"), ("-u", f"bob:{SECRET}"), ("-H", "Authorization: Basic !")):
            got = node.curl(path, *ca, *client, *wrong)[0]
            assert got.startswith("HTTP/1.1 401 "), (path, wrong)
            assert 'Www-Authenticate: Basic realm="otelgpu"' in got
            assert "X-Frame-Options: deny" in got
    assert status(node.curl("/none", *ca, *client, *alice)) == 404
    for refused in ((), other, stranger):
        assert status(node.curl("/metrics", *ca, *refused, *alice)) == 0
    assert status(node.curl("/metrics", *client, *alice)) == 0  # curl does not know the authority
    assert "this port speaks HTTPS" in node.curl("/metrics", scheme="http")[0]
    assert 'otelgpu_web_refused_total{reason="tls"} 5' in node.curl("/metrics", *ca, *client, *alice)[0]


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ("NoClientCert", {"none", "client", "stranger"}),
        ("RequestClientCert", {"none", "client", "stranger"}),
        ("VerifyClientCertIfGiven", {"none", "client"}),
        ("RequireAnyClientCert", {"client"}),
        ("RequireAndVerifyClientCert", {"client"}),
    ],
)
def test_certificates_of_clients_are_asked_for_as_told(
    serve: Callable[[str], Here], made: Certificates, asked: str, allowed: set[str]
) -> None:
    """Go's five ways."""
    text = f"{CHECKED}{asked}\n"
    node = serve(text if asked != "NoClientCert" else TLS)
    came = set()
    for name in ("none", "client", "stranger"):
        own = () if name == "none" else made.flags(name)
        if status(node.curl("/healthz", "--cacert", made.file("ca.pem"), *own)) == 200:
            came.add(name)

    assert came == allowed


def test_versions_outside_the_limits_are_refused(serve: Callable[[str], Here], made: Certificates) -> None:
    """An audit asks for nothing below 1.2; a client that cannot do 1.3 is heard of in the log."""
    node = serve(f"{TLS}  min_version: TLS13\n")
    ca = ("--cacert", made.file("ca.pem"))

    assert status(node.curl("/healthz", *ca)) == 200
    assert status(node.curl("/healthz", *ca, "--tls-max", "1.2")) == 0


def test_certificates_may_stand_in_the_file(serve: Callable[[str], Here], made: Certificates) -> None:
    """One secret is easier to mount than four files; nothing is written to a disk for it."""
    section = {"cert": made.file("server.pem").read_text(), "key": made.file("server.key").read_text()}
    section |= {"client_ca": made.file("ca.pem").read_text(), "client_auth_type": "RequireAndVerifyClientCert"}
    node = serve(yaml.safe_dump({"tls_server_config": section}))
    own = made.flags("client")

    assert status(node.curl("/healthz", "--cacert", made.file("ca.pem"), *own)) == 200
    assert status(node.curl("/healthz", "--cacert", made.file("ca.pem"))) == 0


def test_the_limit_of_requests_holds(serve: Callable[[str], Here]) -> None:
    """For everybody together, as exporter-toolkit has it."""
    node = serve("rate_limit: {interval: 1h, burst: 3}\n")

    assert [node.get("/healthz") for _ in range(5)] == [200, 200, 200, 429, 429]


def test_a_right_password_is_checked_once(serve: Callable[[str], Here], monkeypatch: pytest.MonkeyPatch) -> None:
    """A check costs 50 ms and more by design; a wrong one costs that each time, whether or not there is such a user."""
    asked: list[bytes] = []
    real = bcrypt.checkpw

    def counted(password: bytes, hashed: bytes) -> bool:
        asked.append(hashed)
        return real(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", counted)
    node = serve(USERS)

    def ask(user: str, password: str) -> int:
        return status(node.curl("/healthz", "-u", f"{user}:{password}", scheme="http"))

    assert [ask("alice", SECRET) for _ in range(3)] == [200] * 3
    assert asked == [HASH.encode()]
    assert [ask("alice", "x" * 100), ask("alice", "wrong"), ask("alice", "wrong"), ask("bob", SECRET)] == [401] * 4
    assert asked[1:4] == [HASH.encode()] * 3
    assert asked[4][:7] == HASH.encode()[:7]
    assert len(asked) == 5
    assert ask("alice", SECRET) == 200
    assert len(asked) == 5


def test_the_thread_of_passwords_ends_with_the_server(node: Start, write: Callable[[str], Path]) -> None:
    """Inside another process each page that was served and ended would leave one behind."""
    started = node(models.h100(), server=Server(web_config=str(write(USERS))))
    with here(started) as served:
        assert status(served.curl("/healthz", "-u", f"alice:{SECRET}", scheme="http")) == 200
        during = ours()

    assert {"otelgpu-password", "otelgpu-watch"} <= during
    until(lambda: not ours() & {"otelgpu-password", "otelgpu-watch"}, "the end of the threads")


def ours() -> set[str]:
    """The threads that run."""
    return {thread.name for thread in threading.enumerate()}


def test_passwords_never_hold_up_the_loop(serve: Callable[[str], Here], monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of wrong ones fills a short queue; whoever is known already is served meanwhile."""
    go_on, began = threading.Event(), threading.Event()
    real = bcrypt.checkpw

    def slow(password: bytes, hashed: bytes) -> bool:
        if password != SECRET.encode():
            began.set()
            assert go_on.wait(60)
        return real(password, hashed)

    node = serve(USERS)
    known = ("-u", f"alice:{SECRET}")
    assert status(node.curl("/healthz", *known, scheme="http")) == 200
    monkeypatch.setattr(bcrypt, "checkpw", slow)
    request = (
        b"GET /healthz HTTP/1.1\r\nHost: here\r\nAuthorization: Basic YWxpY2U6d3Jvbmc=\r\nConnection: close\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        flood = [stack.enter_context(node.connect()) for _ in range(30)]
        for sock in flood:
            sock.sendall(request)
        assert began.wait(60)
        assert status(node.curl("/healthz", *known, scheme="http")) == 200
        until(lambda: len(select.select(flood, [], [], 0)[0]) >= 30 - MOST_WAITING, "those that find no place")
        go_on.set()
        answers = [re.findall(rb"HTTP/1.1 (\d+)", sock.recv(1 << 16)) for sock in flood]

    assert Counter(code for (code,) in answers) == {b"401": MOST_WAITING, b"503": 30 - MOST_WAITING}


def test_the_driver_is_let_go_of_for_who_proves_who_he_is(
    serve: Callable[[str], Here], made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another machine it takes a password or a certificate that was checked; a limit of requests is neither."""
    monkeypatch.setattr(driver._Driver, "_is_local", lambda _: False)  # noqa: SLF001 - there is no other machine here
    post, ca = ("-X", "POST"), ("--cacert", made.file("ca.pem"))
    limited = serve("rate_limit: {interval: 1ms, burst: 9}\n")
    assert status(limited.curl("/-/resume", *post, scheme="http")) == 403
    known = serve(USERS)
    assert status(known.curl("/-/resume", *post, scheme="http")) == 401
    assert status(known.curl("/-/resume", *post, "-u", f"alice:{SECRET}", scheme="http")) == 200
    certified = serve(f"{CHECKED}VerifyClientCertIfGiven\n")
    assert status(certified.curl("/-/resume", *post, *ca)) == 403
    assert status(certified.curl("/-/resume", *post, *ca, *made.flags("client"))) == 200


# change


def test_a_new_certificate_is_used_and_a_broken_one_is_not(
    serve: Callable[[str], Here], made: Certificates, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cert-manager renews it each month: no restart, and a half-written one takes nothing away. Said once each."""
    caplog.set_level("INFO", logger="otelgpu.server.guard")
    monkeypatch.setattr(guarding, "LOOK", 0.02)
    cert, key = made.file("live.pem"), made.file("live.key")

    def put(name: str) -> None:
        key.write_bytes(made.file(f"{name}.key").read_bytes())  # first: beside a broken certificate it is no news
        cert.write_bytes(made.file(f"{name}.pem").read_bytes())

    def shown() -> str:
        context = ssl.create_default_context(cafile=str(made.file("ca.pem")))
        with context.wrap_socket(node.connect(), server_hostname="localhost") as sock:
            return str(sock.getpeercert()["subject"][0][0][1])  # type: ignore[index]

    put("server")
    node = serve("tls_server_config: {cert_file: live.pem, key_file: live.key}\n")
    assert node.guard is not None
    assert shown() == "server"

    put("renewed")
    until(lambda: shown() == "renewed", "the new certificate by itself")
    caplog.clear()
    cert.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n")
    until(lambda: "otelgpu_web_config_last_reload_successful 0" in _page(node, made), "the broken one")
    assert list(node.guard.reload()) != []  # which is no news
    assert shown() == "renewed"
    put("server")
    until(lambda: "otelgpu_web_config_last_reload_successful 1" in _page(node, made), "a good one")
    assert shown() == "server"
    said = [(record.levelname, record.getMessage().replace(f"{made.folder}/", "")) for record in caplog.records]
    assert [level for level, _ in said] == ["ERROR", "INFO"]
    assert said[0][1].startswith("web.yml:1: tls_server_config.cert_file: ")
    assert said[0][1].endswith("; the last good web configuration stays in force")
    assert said[1][1] == "the web configuration web.yml is good again, and in force"


def _page(node: Here, made: Certificates) -> str:
    return node.curl("/metrics", "--cacert", made.file("ca.pem"))[0]


def test_a_changed_file_is_in_force_without_a_restart(
    serve: Callable[[str], Here], write: Callable[[str], Path]
) -> None:
    """A user more, a user less; and a file that is wrong, or gone, opens no door. `reload` says what is wrong."""
    node = serve(USERS)
    guard = node.guard
    assert guard is not None
    ask = ("/healthz", "-u", f"alice:{SECRET}")

    write(USERS.replace("alice", "bob"))
    assert not guard.reload()
    assert status(node.curl(*ask, scheme="http")) == 401
    path = write("basic_auth_users: {bob: hunter2}\n")
    (problem,) = guard.reload()
    assert problem.startswith(f"{path}:1: basic_auth_users.bob: expected a hash")
    assert node.get("/healthz") == 401
    path.unlink()
    assert [line.endswith("no such file or directory") for line in guard.reload()] == [True]
    assert node.get("/healthz") == 401
    write("")
    assert not guard.reload()
    assert node.get("/healthz") == 200


def test_a_mounted_secret_that_is_swapped_is_seen(
    made: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes swaps a link to a folder; the file's own name never changes. Nothing is read while nothing changes."""
    for name in ("server", "renewed"):
        (tmp_path / name).mkdir()
        for kind in ("pem", "key"):
            (tmp_path / name / f"tls.{kind}").write_bytes(made.file(f"{name}.{kind}").read_bytes())
        (tmp_path / name / "web.yml").write_text("tls_server_config: {cert_file: tls.pem, key_file: tls.key}\n")
    (tmp_path / "..data").symlink_to("server")
    looked: list[str] = []
    signature = watching.signature

    def counted(path: str) -> watching.Signature:
        looked.append(path)
        return signature(path)

    def look() -> None:
        seen = len(looked)
        until(lambda: len(looked) > seen + 12, "some looks at three files")

    monkeypatch.setattr(watching, "signature", counted)
    monkeypatch.setattr(guarding, "LOOK", 0.02)
    caplog.set_level("INFO", logger="otelgpu")
    guard = guarding.Guard(str(tmp_path / "..data" / "web.yml"), origin="here")
    guard.start()
    look()
    assert caplog.messages == []
    (tmp_path / "..new").symlink_to("renewed")
    (tmp_path / "..new").rename(tmp_path / "..data")
    until(lambda: caplog.messages != [], "the change")
    look()
    guard.stop()
    assert [message.rpartition(" was ")[2] for message in caplog.messages] == ["read again"]


def test_every_trouble_with_files_is_said_and_so_is_its_end(
    made: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever renews certificates, and however: what was good stays in force meanwhile."""
    pair = {f"tls.{kind}": made.file(f"server.{kind}").read_bytes() for kind in ("pem", "key")}
    another = {f"tls.{kind}": made.file(f"renewed.{kind}").read_bytes() for kind in ("pem", "key")}
    text = b"tls_server_config: {cert_file: tls.pem, key_file: tls.key}\n"
    troubles: dict[str, dict[str, bytes | Path | None]] = {
        "the key first": {"tls.key": another["tls.key"]},
        "the certificate first": {"tls.pem": another["tls.pem"]},
        "empty": {"web.yml": b"x", "tls.pem": b""},
        "half of it": {"tls.key": pair["tls.key"][:99]},
        "gone": {"tls.key": None},
        "a loop": {"tls.pem": Path("tls.pem")},
        "the other's": {"tls.pem": Path("tls.key")},
        "all of them": {"web.yml": None, "tls.pem": None, "tls.key": None},
    }
    monkeypatch.setattr(guarding, "LOOK", 0.02)
    monkeypatch.setattr(watching, "QUIET", 0.02)
    caplog.set_level("INFO", logger="otelgpu.server.guard")

    def put(**files: bytes | Path | None) -> None:
        for name, content in files.items():
            new, path = tmp_path / "new", tmp_path / name
            if content is None:
                path.unlink(missing_ok=True)
                continue
            new.symlink_to(content) if isinstance(content, Path) else new.write_bytes(content)
            new.rename(path)

    put(**pair, **{"web.yml": text})
    guard = guarding.Guard(str(tmp_path / "web.yml"), origin="here")
    guard.start()
    for what, files in troubles.items():
        caplog.clear()
        put(**files)
        until(lambda: caplog.text.count("ERROR") >= 1, what)
        assert guard.scheme == "https"
        put(**pair, **{"web.yml": text})
        until(
            lambda: any(said.endswith("is good again, and in force") for said in caplog.messages), f"the end of: {what}"
        )
    guard.stop()


def test_a_file_that_turned_wrong_before_it_was_served_is_no_start(tmp_path: Path) -> None:
    """The settings were judged a moment earlier; what is served is what is there now."""
    (tmp_path / "web.yml").write_text("x\n")
    with pytest.raises(ConfigError):
        guarding.Guard(str(tmp_path / "web.yml"), origin="here")


@pytest.mark.usefixtures("cc")
def test_the_program_serves_https(made: Certificates, tmp_path: Path) -> None:
    """The address that is told can be copied, and the driver is let go of from anywhere for who has a password."""
    web = made.folder / "program.yml"
    web.write_text(TLS + USERS)
    with serving(models.h100(), tmp_path, "--web-config-file", str(web)) as served:
        url = served.urls[0]
        node = Here(None, int(url.rpartition(":")[2].partition("/")[0]))
        got = node.curl("/-/release", "--cacert", made.file("ca.pem"), "-u", f"alice:{SECRET}", "-X", "POST")
        code = served.stop()

    assert url.startswith("https://127.0.0.1:")
    assert status(got) == 200
    assert code == 0


@pytest.mark.usefixtures("cc")
def test_a_wrong_web_configuration_keeps_no_settings_from_being_reloaded(made: Certificates, tmp_path: Path) -> None:
    """They are told apart: systemd, the log and the metrics call that wrong which is, and settings are in force."""
    web, file = made.folder / "beside.yml", tmp_path / "s.yaml"
    web.write_text(TLS)
    file.write_text("labels: {rack: a}\n")
    manager = Listener(str(tmp_path / "notify"))
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    flags = ("--web-config-file", str(web), "--config", str(file), "--server-reload-interval", "null")
    with serving(models.h100(), tmp_path, *flags, environ=environ) as served:
        node = Here(None, int(served.urls[0].rpartition(":")[2].partition("/")[0]))
        assert manager.next()["STATUS"] == f"serving {served.urls[0]}"
        web.write_text("nonsense: 1\n")
        file.write_text("labels: {rack: b}\n")
        served.process.send_signal(signal.SIGHUP)
        assert manager.next()["STATUS"] == "reading the settings again"
        told = manager.next()["STATUS"]
        page, _ = node.curl("/metrics", "--cacert", made.file("ca.pem"))
        assert served.stop() == 0
    manager.close()

    assert told == "the web configuration file is wrong; the last good one stays in force"
    assert 'rack="b"' in page
    assert "\notelgpu_config_last_reload_successful 1\n" in page
    assert "\notelgpu_web_config_last_reload_successful 0\n" in page
    assert served.logged("beside.yml:1: nonsense") == 1
    assert served.logged("not reloaded") == 0


# any file at all

_TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", "true", "1", "1s", "TLS12", "server.pem", "server.key", "X25519", "deny", HASH, "\0", "~"]),
)
_KEYS = st.one_of(
    st.sampled_from(
        [
            *(
                "tls_server_config",
                "http_server_config",
                "basic_auth_users",
                "rate_limit",
                "headers",
                "cert_file",
                "cert",
            ),
            *("key_file", "key", "client_ca_file", "client_auth_type", "client_allowed_sans", "min_version", "burst"),
            *("cipher_suites", "curve_preferences", "interval", "http2", "X-Frame-Options", "max_version"),
        ]
    ),
    _TEXTS,
)
_VALUES = st.recursive(
    st.one_of(_TEXTS, st.none(), st.booleans(), st.integers(), st.floats()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_KEYS, inner, max_size=5)),
    max_leaves=15,
)
FILES = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.dictionaries(_KEYS, _VALUES, max_size=4).map(lambda values: yaml.safe_dump(values).encode()),
    st.builds(
        lambda at, what: GOOD.encode()[:at] + what + GOOD.encode()[at:],
        st.integers(0, len(GOOD)),
        st.binary(max_size=6),
    ),
)


def check_file(folder: Path, content: bytes) -> None:
    """A file gives settings, or problems each with its place; never anything else."""
    path = folder / "any.yml"
    path.write_bytes(content)
    web, wrong = judged(path)
    for line in wrong:
        assert re.match(r"any\.yml:\d+: |--web-config-file any\.yml: ", line), line
        assert line.isprintable()
        assert "\n" not in line
    assert web.files[0] == str(path)
    if not wrong:
        for hashed in web.users.values():
            bcrypt.checkpw(b"x", hashed[:4] + b"04" + hashed[6:])


@settings(max_examples=60)
@given(content=FILES)
def test_any_file_is_settings_or_a_clear_problem(made: Certificates, content: bytes) -> None:
    """A reload must never raise: it would take the thread along that looks at the files."""
    check_file(made.folder, content)


@pytest.mark.soak
@settings(max_examples=5_000)
@given(content=FILES)
def test_any_of_many_files_is_settings_or_a_clear_problem(made: Certificates, content: bytes) -> None:
    """The same for longer."""
    check_file(made.folder, content)
