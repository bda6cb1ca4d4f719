"""otelgpu as nobody, without capabilities, on a read-only root: it needs no more, writes nothing and keeps secrets."""

import os
from pathlib import Path

import pytest

from otelgpu.config import load
from otelgpu.errors import ConfigError
from tests.fakenvml import library, models
from tests.harness import command, series, serving, status_of, until
from tests.least import EPERM_STATUS, NOBODY

SECRET = "hush-4711"
NO_RIGHTS = {"CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapBnd": 0, "CapAmb": 0, "NoNewPrivs": 1}
EVERYTHING = ("--isolate", "--fields", "all", "--processes", "process", "--otlp", "http://127.0.0.1:9", "--kubernetes")
SECRETS = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://user:{SECRET}@127.0.0.1:9/in?key={SECRET}",
    "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{SECRET}",
    "OTELGPU_OTLP_INTERVAL": "0.1",
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up root's rights")
@pytest.mark.parametrize("flags", [(), EVERYTHING], ids=["plain", "everything"])
def test_nobody_can_run_it_on_a_read_only_root(flags: tuple[str, ...], open_folder: Path, cc: Path) -> None:
    """And files cannot be written at all: no cache, no lock, no buffer on the disk."""
    assert cc.exists()
    if any(not place.stat().st_mode & 0o001 for place in (library(), *library().parents)):
        pytest.skip("this checkout is in a folder that nobody but its owner may look into")
    scenario = models.h100(2)
    with serving(scenario, open_folder, *flags, ready=False, program=("-m", "tests.least", "serve")) as served:
        before = sorted(open_folder.rglob("*"))
        until(lambda: bool(served.urls) or served.process.poll() is not None, "an address")
        if served.process.poll() == EPERM_STATUS:
            pytest.skip("this container may not make its root read-only")
        assert served.urls, "".join(served.log)
        assert len(series(served.page())) > 20
        told = status_of(served.process.pid)

        assert told["Uid"].split() == told["Gid"].split() == [str(NOBODY)] * 4
        assert {name: int(told[name], 16) for name in NO_RIGHTS} == NO_RIGHTS
        assert served.get("/readyz").status == 200
        assert served.stop() == 0
    assert sorted(open_folder.rglob("*")) == before
    assert "Traceback" not in "".join(served.log)
    assert "File too large" not in "".join(served.log)


def test_no_secret_is_shown_by_what_runs(tmp_path: Path, cc: Path) -> None:
    """Not in the log, whatever its level, not on a page, and not to somebody who looks for what is wrong."""
    assert cc.exists()
    with serving(models.h100(), tmp_path, "--log-level", "debug", environ=SECRETS) as served:
        shown = [served.get(path).text for path in ("/", "/metrics", "/healthz", "/readyz", "/health", "/nothing")]
        until(lambda: served.logged("127.0.0.1:9") > 0, "a push that failed")
        assert served.stop() == 0
    for arguments in (("doctor",), ("serve", "--deadlin", "1")):
        done = command(models.h100(), tmp_path, *arguments, environ=SECRETS)
        shown += [done.stdout, done.stderr]

    assert not [text for text in (*shown, *served.log) if SECRET in text]


@pytest.mark.parametrize(
    "text",
    [
        f"headers: {{authorization: [{SECRET}]}}",
        f"headers: {{authorization: {{a: {SECRET}}}}}",
        f"headers: [{SECRET}]",
        f'headers: {{authorization: "{SECRET}\\n"}}',
        f'headers: {{"a b": {SECRET}}}',
        f"endpoint: http://user:{SECRET}@:4318",
        f"endpoint: ftp://user:{SECRET}@host",
        f"endpoint: http://user:{SECRET}@host:99999",
        f"endpoint: http://host/?key={SECRET}#x",
    ],
)
def test_no_secret_is_shown_by_what_is_refused(text: str, tmp_path: Path) -> None:
    """A message says where it stands, not what."""
    path = tmp_path / "otelgpu.yaml"
    path.write_text(f"otlp:\n  {text}\n")
    with pytest.raises(ConfigError) as caught:
        load(environ={}, config_path=str(path))

    assert all(f"{path}:2" in problem for problem in caught.value.problems)
    assert SECRET not in str(caught.value)
