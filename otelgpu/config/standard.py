"""The variables of OpenTelemetry (OTEL_*), which mean here what they mean everywhere.

Rule 1: the only place that knows their names, but for those of the resource (export/resource.py) and those that the
        SDK alone reads (sdk.py). They fill in what neither the file nor an OTELGPU_ variable nor a flag sets.
Rule 2: a variable that is empty says nothing; the one for a signal (metrics, logs) goes over the general one.
Rule 3: without any of them, and without an `otlp.endpoint`, nothing is pushed. Log events go where metrics are pushed
        to unless their own variables say otherwise, so OTEL_METRICS_EXPORTER=none alone sends neither.
Rule 4: OTEL_CONFIG_FILE names a file that describes the whole SDK; all the other variables are passed over then.

Two of them are read differently by different SDKs. OTEL_EXPORTER_OTLP_TIMEOUT is milliseconds in the specification and
seconds in Python's SDK: a number below 1000 is taken as seconds here, any other as milliseconds. The protocol that is
meant when none is named is gRPC in Python's SDK and HTTP in the specification: here it follows the port (4317 is gRPC).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import unquote

from otelgpu.config.given import Given, Problem
from otelgpu.config.keys import SETTINGS
from otelgpu.config.values import parse_seconds
from otelgpu.config.words import may_hold_password, one_of, shown

EXPORTERS = ("otlp", "prometheus", "console", "none")
LOG_EXPORTERS = ("otlp", "console", "none")
EXPORTER_VARIABLE, LOG_EXPORTER_VARIABLE = "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER"
METRICS_ENDPOINT, LOGS_ENDPOINT = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"
DISABLED = "OTEL_SDK_DISABLED"
DESCRIPTION = "OTEL_CONFIG_FILE"

_MILLISECONDS_FROM = 1000
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_OTLP = "OTEL_EXPORTER_OTLP_"
_PROMETHEUS_HOST, _PROMETHEUS_PORT = "OTEL_EXPORTER_PROMETHEUS_HOST", "OTEL_EXPORTER_PROMETHEUS_PORT"
_DEFAULT_PORT = "9464"


class Standard(NamedTuple):
    """What the variables say beyond settings."""

    exporters: tuple[str, ...]  # the names in OTEL_METRICS_EXPORTER; () when it is not set
    disabled: bool
    log_exporters: tuple[str, ...] = ()  # the same of OTEL_LOGS_EXPORTER
    description: str = ""  # the file that describes the SDK


def chosen_exporters(environ: Mapping[str, str], problems: list[Problem]) -> Standard:
    """Read which ways out are wanted."""
    if description := environ.get(DESCRIPTION, "").strip():
        return Standard((), disabled=False, description=description)
    return Standard(
        _named(environ, EXPORTER_VARIABLE, EXPORTERS, problems),
        environ.get(DISABLED, "").strip().lower() == "true",
        _named(environ, LOG_EXPORTER_VARIABLE, LOG_EXPORTERS, problems),
    )


def _named(
    environ: Mapping[str, str], variable: str, known: tuple[str, ...], problems: list[Problem]
) -> tuple[str, ...]:
    names: list[str] = []
    text = environ.get(variable, "")
    for name in (piece.strip().lower() for piece in text.split(",") if piece.strip()):
        if name not in known:
            problems.append(Problem(f"{variable}: expected {one_of(known)}, got {shown(name)}"))
        else:
            names.append(name)
    if "none" in names and len(set(names)) > 1:
        problems.append(Problem(f"{variable}: none stands alone, got {shown(text)}"))
    return tuple(dict.fromkeys(names))


def from_standard(environ: Mapping[str, str], standard: Standard, problems: list[Problem]) -> Iterator[Given]:
    """Give back what the variables say about settings."""
    if standard.description:
        return
    if _is_pushed(standard):
        is_asked_for = "otlp" in standard.exporters
        yield from _endpoint(environ, EXPORTER_VARIABLE if is_asked_for else "", "METRICS", problems)
    yield from _rows(environ, (*_rows_of("METRICS"), *_METRICS_ROWS), problems)
    yield from _timeouts(environ, problems)
    yield from _headers(environ, "METRICS", problems)
    if "none" in standard.log_exporters:
        yield Given(
            SETTINGS["otlp.events"],
            "false",
            LOG_EXPORTER_VARIABLE,
            LOG_EXPORTER_VARIABLE,
            environ[LOG_EXPORTER_VARIABLE],
        )
    host, port = environ.get(_PROMETHEUS_HOST, "").strip(), environ.get(_PROMETHEUS_PORT, "").strip()
    if host or port:
        address = f"[{host}]" if ":" in host else host or "localhost"
        variable = _PROMETHEUS_PORT if port else _PROMETHEUS_HOST
        yield Given(SETTINGS["server.listen"], f"{address}:{port or _DEFAULT_PORT}", variable, variable, port or host)


def for_logs(environ: Mapping[str, str], standard: Standard, problems: list[Problem]) -> Iterator[Given]:
    """Give back what the variables say about how log events are sent."""
    if standard.description:
        return
    asked_by = LOG_EXPORTER_VARIABLE if "otlp" in standard.log_exporters else ""
    is_sent = bool(asked_by)
    if standard.log_exporters in ((), ("none",)):  # none is `otlp.events`, which other layers may switch on again
        is_sent = _is_pushed(standard) or bool(environ.get(LOGS_ENDPOINT, "").strip())
        # Metrics to the usual place of a collector take the events along, those to a place of their own do not.
        if "otlp" in standard.exporters and not environ.get(METRICS_ENDPOINT, "").strip():
            asked_by = EXPORTER_VARIABLE
    if is_sent and not standard.disabled:
        yield from _endpoint(environ, asked_by, "LOGS", problems)
    yield from _rows(environ, (*_rows_of("LOGS"), _otlp("otlp.timeout", "TIMEOUT", "LOGS", _timeout)), problems)
    yield from _headers(environ, "LOGS", problems)


def _is_pushed(standard: Standard) -> bool:
    return not standard.disabled and (not standard.exporters or "otlp" in standard.exporters)


def _endpoint(environ: Mapping[str, str], asked_by: str, signal: str, problems: list[Problem]) -> Iterator[Given]:
    """Read where to send to; *asked_by* is the variable that asks for OTLP without saying where, or ""."""
    setting = SETTINGS["otlp.endpoint"]
    protocol = _first(environ, "PROTOCOL", signal)[1].lower()
    variable, original = _first(environ, "ENDPOINT", signal)
    if variable:
        text = original
        if "://" not in text:
            if protocol != "grpc":
                got = "" if may_hold_password(text) else f", got {shown(text)}"
                problems.append(Problem(f"{variable}: expected http://HOST:PORT or https://HOST:PORT{got}"))
                return
            insecure = _first(environ, "INSECURE", signal)[1].lower() == "true"
            text = f"{'http' if insecure else 'https'}://{text}"
        yield Given(setting, text, variable, variable, original)
    elif asked_by:
        text = "http://localhost:4317" if protocol == "grpc" else "http://localhost:4318"
        yield Given(setting, text, asked_by, asked_by, text)


def _rows(environ: Mapping[str, str], rows: Iterable["_Row"], problems: list[Problem]) -> Iterator[Given]:
    for row in rows:
        if (given := _given(environ, row, problems)) is not None:
            yield given


def _given(environ: Mapping[str, str], row: "_Row", problems: list[Problem]) -> Given | None:
    variable = next((name for name in row.variables if environ.get(name, "").strip()), None)
    if variable is None:
        return None
    original = environ[variable].strip()
    try:
        text = row.read(original)
    except ValueError as error:
        problems.append(Problem(f"{variable}: {error}, got {shown(original)}"))
        return None
    return Given(SETTINGS[row.key], text, variable, variable, original)


def _timeouts(environ: Mapping[str, str], problems: list[Problem]) -> Iterator[Given]:
    """Read the two timeouts: one batch is one attempt here, so the shorter counts for both."""
    found = [given for row in _TIMEOUTS if (given := _given(environ, row, problems)) is not None]
    yield from sorted(found, key=lambda given: parse_seconds(given.text or ""), reverse=True)


def _headers(environ: Mapping[str, str], signal: str, problems: list[Problem]) -> Iterator[Given]:
    variable, original = _first(environ, "HEADERS", signal)
    for entry in original.split(","):
        name, sign, text = entry.partition("=")
        if sign and name.strip():
            # The text is not shown in messages: it is often a password.
            yield Given(SETTINGS["otlp.headers"], unquote(text.strip()), variable, variable, None, name=name.strip())
        elif entry.strip():
            problems.append(Problem(f"{variable}: expected NAME=VALUE,NAME=VALUE"))


def _first(environ: Mapping[str, str], name: str, signal: str) -> tuple[str, str]:
    for variable in (f"{_OTLP}{signal}_{name}", f"{_OTLP}{name}"):
        if text := environ.get(variable, "").strip():
            return variable, text
    return "", ""


def _as_it_is(text: str) -> str:
    return text


def _timeout(text: str) -> str:
    if not _NUMBER.fullmatch(text):
        raise ValueError("expected a number of seconds")
    return text if float(text) < _MILLISECONDS_FROM else f"{text}ms"


def _milliseconds(text: str) -> str:
    if not _NUMBER.fullmatch(text):
        raise ValueError("expected a number of milliseconds")
    return f"{text}ms"


class _Row(NamedTuple):
    """A setting, the variables that fill it in (the first that is set counts), and how their text becomes ours."""

    key: str
    variables: tuple[str, ...]
    read: Callable[[str], str] = _as_it_is


def _otlp(key: str, name: str, signal: str, read: Callable[[str], str] = _as_it_is) -> _Row:
    return _Row(key, (f"{_OTLP}{signal}_{name}", f"{_OTLP}{name}"), read)


def _rows_of(signal: str) -> Iterator[_Row]:
    for name in ("protocol", "compression", "certificate", "client_certificate", "client_key"):
        yield _otlp(f"otlp.{name}", name.upper(), signal)


_TIMEOUTS = (
    _otlp("otlp.timeout", "TIMEOUT", "METRICS", _timeout),
    _Row("otlp.timeout", ("OTEL_METRIC_EXPORT_TIMEOUT",), _milliseconds),
)
_METRICS_ROWS = (
    _Row("otlp.temporality", (f"{_OTLP}METRICS_TEMPORALITY_PREFERENCE",)),
    _Row("otlp.histograms", (f"{_OTLP}METRICS_DEFAULT_HISTOGRAM_AGGREGATION",)),
    _Row("otlp.interval", ("OTEL_METRIC_EXPORT_INTERVAL",), _milliseconds),
)
