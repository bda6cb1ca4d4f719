"""dcgm-exporter's page as a pull exporter that a declarative configuration file can name.

    meter_provider:
      readers:
        - pull: {exporter: {dcgm: {host: 0.0.0.0, port: 9400, compat: 4.8.2}}}

Rule 1: to the SDK it is a MetricReader, but one that collects nothing: DCGM's names and labels are joined on the way
        out of a pipeline of our own, and a foreign provider has no such way.
Rule 2: wrong options are raised, as configuration errors are; a port that is taken is logged, and the host goes on.
Rule 3: a page and nothing else: what pushes is said by the file that names it, not by a variable of otelgpu's.
"""

import logging
import os
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from opentelemetry.sdk.metrics.export import MetricReader, MetricsData

from otelgpu.config import Config, Otlp
from otelgpu.embed.arguments import settings_of
from otelgpu.errors import ConfigError, StartError
from otelgpu.pipeline import PAGE_THREADS, Pipeline
from otelgpu.server.beside import Beside
from otelgpu.server.listen import bound_all
from otelgpu.server.running import Life
from otelgpu.server.threads import ready

logger = logging.getLogger(__name__)

ARGUMENTS: Mapping[str, str] = {
    "listen": "server.listen",
    "fields": "fields",
    "devices": "devices",
    "source": "source",
    "naming": "naming",
    "compat": "compat",
    "hostname": "hostname",
    "labels": "labels",
    "reuse": "sampling.reuse",
    "deadline": "sampling.deadline",
    "interval": "sampling.interval",
    "expire": "sampling.expire",
}


class DropInPage(MetricReader):
    """Serves the page on *host* and *port* (0: any free one) until the provider is shut down.

    *options* are settings by their last word: fields, devices, source, naming, compat, hostname, labels, reuse,
    deadline, interval, expire. Variables (OTELGPU_*) hold where an option is not given. Raise ConfigError.
    """

    def __init__(self, host: str = "localhost", port: int = 9400, **options: Any) -> None:  # noqa: ANN401 - a file's
        super().__init__()
        listen = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        config = replace(settings_of(options | {"listen": listen}, os.environ, known=ARGUMENTS), otlp=Otlp())
        self.addresses: tuple[tuple[Any, ...], ...] = ()  # what the sockets are bound to
        self._beside: Beside | None = None
        try:
            self._serve(config)
        # ConfigError: not of the options, which have been looked at; RuntimeError: no thread can be started.
        except (ConfigError, StartError, OSError, RuntimeError) as error:
            logger.error("the page of otelgpu is not served: %s", error)  # noqa: TRY400 - its sentence says it all

    def _serve(self, config: Config) -> None:
        pipeline = Pipeline(config, os.environ)  # first: what can go wrong there leaves nothing open
        executor = ready(PAGE_THREADS, "otelgpu-page")
        try:
            sockets = bound_all((address, "host and port") for address in config.server.listen)
        except StartError:
            executor.shutdown(wait=False)
            raise
        self.addresses = tuple(sock.getsockname() for sock in sockets)

        def stop(timeout: float) -> bool:
            executor.shutdown(wait=False, cancel_futures=True)
            return pipeline.stop(timeout)

        self._beside = Beside(pipeline.site(executor), sockets, Life(pipeline.sampler.start, stop))
        self._beside.start()

    def force_flush(self, timeout_millis: float = 10_000) -> bool:  # noqa: ARG002 - the base class would collect
        """Do nothing; see rule 1."""
        return True

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:  # noqa: ANN401
        """Drop what somebody else had collected."""

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:  # noqa: ANN401, ARG002
        """Stop serving and let go of the driver."""
        beside, self._beside = self._beside, None
        if beside is not None:
            beside.stop()
