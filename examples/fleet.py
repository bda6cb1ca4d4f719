"""A fleet of simulated nodes in one process, to see what a Prometheus or a collector makes of it.

    python examples/fleet.py --nodes 100 --node 8xh100
    prometheus --config.file=examples/fleet-prometheus.yml
    python examples/fleet.py --nodes 100 --push http://127.0.0.1:4318 --push-interval 15

Each node is all of otelgpu but its server: a simulated driver, sweeps, OpenTelemetry's SDK and the page, made anew for
each scrape. `/targets` lists the nodes for Prometheus's HTTP service discovery, `/node-0007/metrics` is a page. With
`--push` each node also sends its readings to a collector, at its own pace from the moment that it starts.
docs/scaling.md has the figures.
"""

import argparse
import gzip
import json
import logging
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType

from msgspec.structs import replace

from otelgpu.config import Config, Simulated
from otelgpu.config.given import Flag
from otelgpu.config.load import load
from otelgpu.errors import ConfigError
from otelgpu.export.page import Format
from otelgpu.pipeline import Pipeline
from otelgpu.sources.simulated.spec import parse_spec


def settings(given: argparse.Namespace) -> Config:
    """Make what all nodes have. Raise ConfigError with all that is wrong."""
    flags = [
        Flag("--node", "source", f"simulated:{given.node}"),
        Flag("--push", "otlp.endpoint", given.push),
        Flag("--push-interval", "otlp.interval", given.push_interval),
    ]
    return load(environ={}, flags=[flag for flag in flags if flag.text], parse_spec=parse_spec)


def pipeline(number: int, config: Config) -> Pipeline:
    """Build one node; its number is the seed of what its GPUs do."""
    return Pipeline(replace(config, hostname=f"node-{number:04}", simulated=Simulated(seed=number)), {})


@contextmanager
def running(nodes: int, config: Config) -> Iterator[Mapping[str, Pipeline]]:
    """Run so many nodes, by name."""
    fleet = {f"node-{number:04}": pipeline(number, config) for number in range(nodes)}
    try:
        for node in fleet.values():
            node.start()
        yield fleet
    finally:
        for node in fleet.values():
            node.stop(1)


class Site(ThreadingHTTPServer):
    """Serves the pages of a fleet and the list of them."""

    request_queue_size = 1024
    daemon_threads = True

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, Answer)
        self.fleet: Mapping[str, Pipeline] = {}

    def targets(self) -> bytes:
        """List the nodes as Prometheus wants them: one address, a path and a name for each."""
        address = f"{self.server_address[0]!s}:{self.server_address[1]}"
        return json.dumps(
            [
                {"targets": [address], "labels": {"__metrics_path__": f"/{name}/metrics", "instance": name}}
                for name in self.fleet
            ]
        ).encode()

    def page(self, name: str) -> bytes:
        """Make the page of one node, from a new sweep."""
        node = self.fleet[name]
        return node.page(node.sampler.refresh(max_age=0), Format.TEXT, shown=True)


class Answer(BaseHTTPRequestHandler):
    """One connection, which Prometheus keeps open."""

    protocol_version = "HTTP/1.1"
    server: Site

    def do_GET(self) -> None:
        """Answer with the list, or a page."""
        name = self.path.removesuffix("/metrics").lstrip("/")
        if self.path == "/targets":
            self._send("application/json", self.server.targets())
        elif name in self.server.fleet and self.path == f"/{name}/metrics":
            self._send(Format.TEXT.value, self.server.page(name))
        else:
            self.send_error(404)

    def _send(self, kind: str, body: bytes) -> None:
        is_gzip = "gzip" in self.headers.get("Accept-Encoding", "")
        body = gzip.compress(body, 4) if is_gzip else body
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if is_gzip:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description="Serve simulated nodes for a Prometheus, or push from them.")
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--node", default="8xh100", metavar="SPEC", help="the GPUs of each node: 4xt4+4xl40s")
    parser.add_argument("--port", type=int, default=9500)
    parser.add_argument("--push", default="", metavar="URL", help="the collector each node pushes to over OTLP")
    parser.add_argument("--push-interval", default="60", metavar="SECONDS")
    given = parser.parse_args()
    if given.nodes < 1:
        parser.error(f"--nodes: expected at least 1, got {given.nodes}")
    try:
        config = settings(given)
        site = Site(("127.0.0.1", given.port))
    except ConfigError as error:
        parser.error(str(error))
    except (OSError, OverflowError) as error:
        parser.error(f"--port {given.port}: {error}")
    logging.getLogger("otelgpu").setLevel(logging.ERROR)  # that they are simulated is said once for each

    def stop(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        with site, running(given.nodes, config) as site.fleet:
            print(f"{given.nodes} nodes: http://127.0.0.1:{site.server_address[1]}/targets", flush=True)
            site.serve_forever()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
