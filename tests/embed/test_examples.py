"""The examples, each run as its head says, over a simulated node."""

import os
import sys
from pathlib import Path

import pytest
import yaml

from tests.embed.host import SIMULATED, environ, run
from tests.embed.test_zero_code import INSTRUMENT
from tests.harness import ROOT, values

EXAMPLES = ROOT / "examples"

# A client and a server of one request each, in place of uvicorn: ASGI without a socket.
ASGI = """
import asyncio, sys
from fastapi_server import app

async def ask(path, query=b""):
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
             "path": path, "raw_path": path.encode(), "query_string": query, "root_path": "", "headers": [],
             "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {}}
    sent = []
    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}
    async def send(message):
        sent.append(message)
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])

async def main():
    into, out = asyncio.Queue(), asyncio.Queue()
    life = asyncio.ensure_future(app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, into.get, out.put))
    await into.put({"type": "lifespan.startup"})
    assert (await out.get())["type"] == "lifespan.startup.complete"
    assert await ask("/predict", b"x=2") == (200, b"6.0")
    status, page = await ask("/metrics")
    sys.stdout.write(page.decode())
    await into.put({"type": "lifespan.shutdown"})
    assert (await out.get())["type"] == "lifespan.shutdown.complete"
    await life

asyncio.run(main())
"""


def test_the_plain_script_runs(tmp_path: Path) -> None:
    """The shortest way in."""
    ran = run(str(EXAMPLES / "embed_script.py"), environ(tmp_path, OTELGPU_SOURCE=SIMULATED), sys.executable)

    assert '"name": "hw.power"' in ran.stdout
    assert '"name": "hw.gpu.utilization"' in ran.stdout
    assert '"name": "hw.energy"' not in ran.stdout
    assert "done: " in ran.stdout


def test_the_training_loop_runs(tmp_path: Path) -> None:
    """With its own metric and the GPUs in one export."""
    ran = run(str(EXAMPLES / "training_loop.py"), environ(tmp_path, OTELGPU_SOURCE=SIMULATED), sys.executable)

    assert '"name": "training.loss"' in ran.stdout
    assert '"name": "hw.gpu.utilization"' in ran.stdout
    assert "rank 0: loss" in ran.stdout


def test_the_training_loop_runs_without_a_gpu(tmp_path: Path) -> None:
    """On a laptop it trains as well, and says in one line why there are no GPUs."""
    ran = run(str(EXAMPLES / "training_loop.py"), environ(tmp_path), sys.executable)

    assert '"name": "training.loss"' in ran.stdout
    assert '"hw.' not in ran.stdout
    assert len(ran.stderr.splitlines()) == 1


def test_the_server_shows_requests_and_gpus(tmp_path: Path) -> None:
    """One page for both, made outside the event loop."""
    pytest.importorskip("fastapi", reason="FastAPI is not installed; `make` installs it")
    env = environ(tmp_path, OTELGPU_SOURCE=SIMULATED)
    ran = run(ASGI, env | {"PYTHONPATH": f"{env['PYTHONPATH']}{os.pathsep}{EXAMPLES}"})

    assert values(ran.stdout, "server_requests_total", "http_route") == {"/predict": 1}
    assert list(values(ran.stdout, "hw_power_watts", "hw_name")) == ["GPU 0", "GPU 1"]


def test_the_zero_code_command_runs_any_program(tmp_path: Path) -> None:
    """The command line as it is written there, around a program that knows of nothing."""
    pytest.importorskip("opentelemetry.distro", reason="opentelemetry-distro is not installed; `make` installs it")
    script = tmp_path / "train.py"
    script.write_text("print('trained')\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, arguments in (("python", '"$@"'), ("opentelemetry-instrument", f"-c '{INSTRUMENT}' \"$@\"")):
        (programs / name).write_text(f"#!/bin/sh\nexec {sys.executable} {arguments}\n")
        (programs / name).chmod(0o755)
    env = environ(tmp_path, OTELGPU_SOURCE=SIMULATED)
    env["PATH"] = f"{programs}{os.pathsep}{env['PATH']}"
    ran = run(str(script), env, "sh", str(EXAMPLES / "zero_code.sh"))

    assert "trained" in ran.stdout
    assert '"name": "hw.power"' in ran.stdout


def test_the_declarative_file_is_read(tmp_path: Path) -> None:
    """As it stands, but for the port, which may be taken here."""
    pytest.importorskip("opentelemetry.configuration", reason="opentelemetry-configuration is not installed")
    text = (EXAMPLES / "otel-declarative.yaml").read_text()
    assert yaml.safe_load(text)["meter_provider"]["readers"][1]["pull"]["exporter"]["dcgm"]["port"] == 9400
    file = tmp_path / "otel.yaml"
    file.write_text(text.replace("port: 9400", "port: 0"))
    program = f"""
import logging
logging.basicConfig()
from opentelemetry import metrics
from opentelemetry.configuration import configure_sdk, load_config_file
configure_sdk(load_config_file({str(file)!r}))
metrics.get_meter_provider().force_flush()
metrics.get_meter_provider().shutdown()
"""
    ran = run(program, environ(tmp_path, OTELGPU_SOURCE=SIMULATED))

    assert '"name": "hw.power"' in ran.stdout
    assert "ERROR" not in ran.stderr
