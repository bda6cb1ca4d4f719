"""`observe`: what a host calls, and the handle it gets.

Rule 1: the handle is the only thing that a host keeps; after `stop` nothing of ours runs or is held.
"""

import logging
import os
from collections.abc import Mapping
from typing import Self, Unpack

from opentelemetry.metrics import MeterProvider, get_meter_provider

from otelgpu.config import Config
from otelgpu.embed.arguments import Settings, settings_of
from otelgpu.embed.engine import Engine
from otelgpu.embed.registration import REGISTRY, Answers, Registration, Session
from otelgpu.errors import ConfigError
from otelgpu.export.status import also_read
from otelgpu.fields import Field, Kind, find
from otelgpu.fields.process import PROCESS_FIELDS
from otelgpu.health import also_read as health_reads
from otelgpu.sources.choice import wanted_fields

logger = logging.getLogger(__name__)

# XID errors cost a thread that waits for events all the time: only who names the field (or all) has it.
EVENT_FIELDS = frozenset({230})


class Observation:
    """An observation under way, until `stop`. Also a context manager."""

    def __init__(self, registration: Registration | None) -> None:
        self._registration = registration
        self._engine: Answers | None = None  # one that the driver did not let go of yet

    def stop(self) -> None:
        """Report nothing more, end all threads and let go of the driver; blocks 5 s at most.

        Safe to call twice. Where a driver call hangs its thread is left, and a later call tries again.
        """
        registration, self._registration = self._registration, None
        if registration is not None:
            session, registration.session = registration.session, None
            self._engine = None if session is None else session.engine
        if self._engine is not None and self._engine.stop():
            self._engine = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def observe(meter_provider: MeterProvider | None = None, **settings: Unpack[Settings]) -> Observation:
    """Report this machine's GPUs on *meter_provider* (the global one) until the handle is stopped.

    Returns at once: the driver is asked when somebody collects. Raise ConfigError for wrong settings. A provider can
    be observed by one at a time: a second observation of it is logged, and its handle does nothing.
    """
    return begin(meter_provider, settings, environ=os.environ, is_once=False)


def begin(
    meter_provider: MeterProvider | None, settings: Mapping[str, object], *, environ: Mapping[str, str], is_once: bool
) -> Observation:
    """Observe; *is_once* is what the setting `embed.once` means where it is not set."""
    config = settings_of(settings, environ)
    fields = _fields(config)
    once = is_once if config.embed.once is None else config.embed.once
    has_status = bool(fields) and not config.embed.only_process  # a process has no health of its own
    also = {field.id: field for field in (*(also_read(fields) if has_status else ()), *health_reads(fields))}
    engine = Engine(config, fields, environ, is_once=once and not config.embed.only_process, also=[*also.values()])
    session = Session(engine, fields, has_status=has_status)
    provider = get_meter_provider() if meter_provider is None else meter_provider
    if not isinstance(provider, MeterProvider):
        raise ConfigError([f"meter_provider: expected a MeterProvider, got {type(provider).__name__}"])
    with REGISTRY.lock:
        registration = REGISTRY.of(provider)
        if registration.session is not None:
            logger.warning("this MeterProvider is observed already; the second observation does nothing")
            return Observation(None)
        registration.create(provider, session)
        registration.session = session
    return Observation(registration)


def _fields(config: Config) -> tuple[Field, ...]:
    """List the fields that become instruments, or attributes."""
    if config.embed.only_process:
        return PROCESS_FIELDS
    named = {field.id for name in config.fields if (field := find(name)) is not None}
    named |= {row.field for row in config.counters}
    is_all = "all" in config.fields
    return tuple(
        field
        for field in wanted_fields(config)
        if field.kind is Kind.LABEL or (field.is_numeric and field.semconv is not None)
        if is_all or field.id not in EVENT_FIELDS - named
    )
