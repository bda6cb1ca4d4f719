"""`GpuInstrumentor`: otelgpu as OpenTelemetry's tools start it.

Rule 1: `observe` does the work; here is only what a BaseInstrumentor needs.
Rule 2: started by `opentelemetry-instrument`, one process of a host reports, unless `embed.once` says otherwise: the
        same command line often starts many workers.
"""

import os
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from opentelemetry.metrics import MeterProvider

try:
    from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]  # its module is not checked
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "GpuInstrumentor needs opentelemetry-instrumentation: pip install 'otelgpu[instrumentation]' "
        "(otelgpu.observe does without)",
        name=error.name,
    ) from error

from otelgpu.embed.arguments import settings_of
from otelgpu.embed.observing import Observation, begin

ZERO_CODE = "opentelemetry.instrumentation.auto_instrumentation"  # loaded in every process that it starts

# What OpenTelemetry's tools hand to every instrumentor, and one of metrics has no use for.
_OTHERS = frozenset({"tracer_provider", "logger_provider", "event_logger_provider"})


@dataclass(frozen=True, slots=True)
class Options:
    """The options in a declarative configuration file: those of `observe`. Raise ConfigError where one is wrong."""

    fields: list[str] | None = None
    devices: list[str] | None = None
    source: str | None = None
    reuse: float | None = None
    deadline: float | None = None
    expire: float | None = None
    only_visible: bool | None = None
    only_process: bool | None = None
    once: bool | None = None

    def __post_init__(self) -> None:
        settings_of({name: getattr(self, name) for name in self.__slots__}, {})


class GpuInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # it is Any, for that reason
    """Reports this machine's GPUs on a MeterProvider, between `instrument` and `uninstrument`.

    `instrument` takes `meter_provider` and the arguments of `otelgpu.observe`.
    """

    configuration: ClassVar[type[Options]] = Options

    _observation: Observation | None = None
    _is_zero_code = False

    def instrumentation_dependencies(self) -> Collection[str]:
        """Name no library: what is observed is the machine."""
        return ()

    def instrument(self, **kwargs: Any) -> None:  # noqa: ANN401 - as the base class has it
        """Begin to report. Raise ConfigError for wrong arguments; nothing else is ever raised."""
        self._is_zero_code = bool(kwargs.get("skip_dep_check")) or ZERO_CODE in sys.modules
        super().instrument(**kwargs)

    def _instrument(self, **kwargs: Any) -> None:  # noqa: ANN401 - the same
        provider: MeterProvider | None = kwargs.pop("meter_provider", None)
        settings = {name: value for name, value in kwargs.items() if name not in _OTHERS}
        self._observation = begin(provider, settings, environ=os.environ, is_once=self._is_zero_code)

    def _uninstrument(self, **_: Any) -> None:  # noqa: ANN401 - the same
        observation, self._observation = self._observation, None
        if observation is not None:
            observation.stop()
