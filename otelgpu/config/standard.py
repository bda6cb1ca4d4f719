"""The variables of OpenTelemetry (OTEL_*), which mean here what they mean everywhere.

Rule 1: the only place that knows their names, but for those of the resource (export/resource.py) and those that the
        SDK alone reads (sdk.py). They fill in what neither the file nor an OTELGPU_ variable nor a flag sets.
Rule 2: a variable that is empty says nothing; the one for metrics goes over the general one.
Rule 3: without any of them, and without an `otlp.endpoint`, nothing is pushed.
Rule 4: OTEL_CONFIG_FILE names a file that describes the whole SDK; all the other variables are passed over then.

Two of them are read differently by different SDKs. OTEL_EXPORTER_OTLP_TIMEOUT is milliseconds in the specification and
seconds in Python's SDK: a number below 1000 is taken as seconds here, any other as milliseconds. The protocol that is
meant when none is named is gRPC in Python's SDK and HTTP in the specification: here it follows the port (4317 is gRPC).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import unquote

from otelgpu.config.given import Given, Problem
from otelgpu.config.keys import SETTINGS
from otelgpu.config.values import parse_seconds
from otelgpu.config.words import one_of, shown

EXPORTERS = ("otlp", "prometheus", "console", "none")
EXPORTER_VARIABLE = "OTEL_METRICS_EXPORTER"
METRICS_ENDPOINT = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
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
    description: str = ""  # the file that describes the SDK


def chosen_exporters(environ: Mapping[str, str], problems: list[Problem]) -> Standard:
    """Read which ways out are wanted."""
    if description := environ.get(DESCRIPTION, "").strip():
        return Standard((), disabled=False, description=description)
    names: list[str] = []
    text = environ.get(EXPORTER_VARIABLE, "")
    for name in (piece.strip().lower() for piece in text.split(",") if piece.strip()):
        if name not in EXPORTERS:
            expected = one_of(EXPORTERS)
            problems.append(Problem(f"{EXPORTER_VARIABLE}: expected {expected}, got {shown(name)}"))
        else:
            names.append(name)
    if "none" in names and len(set(names)) > 1:
        problems.append(Problem(f"{EXPORTER_VARIABLE}: none stands alone, got {shown(text)}"))
    return Standard(tuple(dict.fromkeys(names)), environ.get(DISABLED, "").strip().lower() == "true")


def from_standard(environ: Mapping[str, str], standard: Standard, problems: list[Problem]) -> Iterator[Given]:
    """Give back what the variables say about settings."""
    if standard.description:
        return
    exporters = standard.exporters
    is_pushed = not standard.disabled and (not exporters or "otlp" in exporters)
    if is_pushed:
        yield from _endpoint(environ, is_asked_for="otlp" in exporters, problems=problems)
    for row in _ROWS:
        if (given := _given(environ, row, problems)) is not None:
            yield given
    yield from _timeouts(environ, problems)
    yield from _headers(environ, problems)
    host, port = environ.get(_PROMETHEUS_HOST, "").strip(), environ.get(_PROMETHEUS_PORT, "").strip()
    if host or port:
        address = f"[{host}]" if ":" in host else host or "localhost"
        variable = _PROMETHEUS_PORT if port else _PROMETHEUS_HOST
        yield Given(SETTINGS["server.listen"], f"{address}:{port or _DEFAULT_PORT}", variable, variable, port or host)


def _endpoint(environ: Mapping[str, str], *, is_asked_for: bool, problems: list[Problem]) -> Iterator[Given]:
    setting = SETTINGS["otlp.endpoint"]
    protocol = _first(environ, "PROTOCOL")[1].lower()
    variable, original = _first(environ, "ENDPOINT")
    if variable:
        text = original
        if "://" not in text:
            if protocol != "grpc":
                problems.append(
                    Problem(f"{variable}: expected http://HOST:PORT or https://HOST:PORT, got {shown(text)}")
                )
                return
            insecure = _first(environ, "INSECURE")[1].lower() == "true"
            text = f"{'http' if insecure else 'https'}://{text}"
        yield Given(setting, text, variable, variable, original)
    elif is_asked_for:
        text = "http://localhost:4317" if protocol == "grpc" else "http://localhost:4318"
        yield Given(setting, text, EXPORTER_VARIABLE, EXPORTER_VARIABLE, text)


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


def _headers(environ: Mapping[str, str], problems: list[Problem]) -> Iterator[Given]:
    variable, original = _first(environ, "HEADERS")
    for entry in original.split(","):
        name, sign, text = entry.partition("=")
        if sign and name.strip():
            # The text is not shown in messages: it is often a password.
            yield Given(SETTINGS["otlp.headers"], unquote(text.strip()), variable, variable, None, name=name.strip())
        elif entry.strip():
            problems.append(Problem(f"{variable}: expected NAME=VALUE,NAME=VALUE"))


def _first(environ: Mapping[str, str], name: str) -> tuple[str, str]:
    for variable in (f"{_OTLP}METRICS_{name}", f"{_OTLP}{name}"):
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


def _otlp(key: str, name: str, read: Callable[[str], str] = _as_it_is) -> _Row:
    return _Row(key, (f"{_OTLP}METRICS_{name}", f"{_OTLP}{name}"), read)


_TIMEOUTS = (
    _otlp("otlp.timeout", "TIMEOUT", _timeout),
    _Row("otlp.timeout", ("OTEL_METRIC_EXPORT_TIMEOUT",), _milliseconds),
)
_ROWS = (
    _otlp("otlp.protocol", "PROTOCOL"),
    _otlp("otlp.compression", "COMPRESSION"),
    _otlp("otlp.certificate", "CERTIFICATE"),
    _otlp("otlp.client_certificate", "CLIENT_CERTIFICATE"),
    _otlp("otlp.client_key", "CLIENT_KEY"),
    _Row("otlp.temporality", (f"{_OTLP}METRICS_TEMPORALITY_PREFERENCE",)),
    _Row("otlp.histograms", (f"{_OTLP}METRICS_DEFAULT_HISTOGRAM_AGGREGATION",)),
    _Row("otlp.interval", ("OTEL_METRIC_EXPORT_INTERVAL",), _milliseconds),
)
