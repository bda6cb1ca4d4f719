"""The variables of OpenTelemetry mean here what they mean everywhere: one test each, at least."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from otelgpu.config import Config, Flag, load
from otelgpu.config.words import shown
from otelgpu.errors import ConfigError
from otelgpu.export.push.setup import is_grpc, make_sender, url_of
from otelgpu.export.push.signals import LOGS, METRICS, Signal
from tests.harness import series, serving
from tests.push.conftest import Papers

URL = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}


def _load(environ: Mapping[str, str], *flags: Flag) -> Config:
    return load(environ=environ, flags=flags)


def _problems(environ: Mapping[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        _load(environ)
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("OTEL_METRICS_EXEMPLAR_FILTER", "bogus", "always_on, always_off or trace_based"),
        ("OTEL_METRICS_EXEMPLAR_FILTER", "ALWAYS_ON", "always_on, always_off or trace_based"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "-1", "a whole number"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "٣", "a whole number"),
        ("OTEL_PYTHON_CONTEXT", "bogus", "contextvars_context"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=b,c=\udcff", "text in UTF-8"),
        ("OTEL_SERVICE_NAME", "\udcff", "text in UTF-8"),
    ],
)
def test_what_the_sdk_would_stumble_over_is_told_before(variable: str, text: str, expected: str) -> None:
    """These end as a traceback of the SDK's otherwise; also where a file describes the SDK."""
    line = f"{variable}: expected {expected}, got {shown(text)}"

    assert _problems({variable: text}) == [line]
    assert _problems({variable: text, "OTEL_CONFIG_FILE": "otel.yaml", "OTELGPU_NAMING": "x"})[-1] == line


GARBAGE = {
    "OTEL_METRICS_EXEMPLAR_FILTER": "always_off",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": " 12 ",
    "OTEL_PYTHON_CONTEXT": "contextvars_context",
    **dict.fromkeys(
        (
            "OTEL_ATTRIBUTE_COUNT_LIMIT",
            "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
            "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS",
            "OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT",
            "OTEL_PROPAGATORS",
            "OTEL_PYTHON_ID_GENERATOR",
            "OTEL_PYTHON_METER_PROVIDER",
            "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED",
            "OTEL_PYTHON_TRACER_PROVIDER",
            "OTEL_RESOURCE_ATTRIBUTES",
            "OTEL_SEMCONV_STABILITY_OPT_IN",
            "OTEL_SPAN_EVENT_COUNT_LIMIT",
            "OTEL_TRACES_SAMPLER",
        ),
        "bo,=gus",
    ),
}


@pytest.mark.parametrize("garbage", [GARBAGE, dict.fromkeys(GARBAGE, "")], ids=["garbage", "empty"])
@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "http://127.0.0.1:4317"])
def test_other_variables_of_the_sdk_end_nothing(tmp_path: Path, garbage: Mapping[str, str], endpoint: str) -> None:
    """What is meant for other programs in the same pod, or is empty, keeps no exporter from starting."""
    with serving(None, tmp_path, "--source", "simulated:1xt4", "--otlp", endpoint, environ=garbage) as served:
        status = served.get().status
        code = served.stop()

    assert (status, code) == (200, 0)
    assert served.logged("Traceback") == 0
    assert all(" INFO " in line or " WARNING " in line for line in served.log)


def test_a_disabled_sdk_is_told(tmp_path: Path) -> None:
    """A page without metrics is what was asked for, perhaps by a variable that was meant for another program."""
    environ = {"OTEL_SDK_DISABLED": "true"}
    with serving(None, tmp_path, "--source", "simulated:1xt4", environ=environ) as served:
        page = served.page()
        code = served.stop()

    assert series(page, "") == [page.rstrip("\n")]
    assert page.startswith("# no metrics here")
    assert code == 0
    assert served.logged("OTEL_SDK_DISABLED is true: /metrics holds no metrics, and nothing is pushed") == 1


def test_without_any_of_them_nothing_is_pushed() -> None:
    """A plain scrape target stays small, and nobody gets metrics who did not ask."""
    config = _load({})

    assert config.has_page
    assert not config.pushes


@pytest.mark.parametrize(
    ("environ", "page", "pushes"),
    [
        ({"OTEL_METRICS_EXPORTER": "otlp"}, False, True),
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, True, False),
        ({"OTEL_METRICS_EXPORTER": "otlp, prometheus"}, True, True),
        ({"OTEL_METRICS_EXPORTER": "none"}, False, False),
        ({"OTEL_METRICS_EXPORTER": "console"}, False, True),
        ({"OTEL_METRICS_EXPORTER": ""}, True, False),
        ({"OTEL_METRICS_EXPORTER": "prometheus", **URL}, True, False),
        (URL, True, True),
        ({"OTEL_SDK_DISABLED": "true", **URL}, False, False),
        ({"OTEL_SDK_DISABLED": "false", **URL}, True, True),
    ],
)
def test_the_exporters_are_chosen(environ: Mapping[str, str], page: bool, pushes: bool) -> None:  # noqa: FBT001 - a table
    """OTEL_METRICS_EXPORTER and OTEL_SDK_DISABLED; an endpoint alone adds push to the page."""
    config = _load(environ)

    assert (config.has_page, config.pushes) == (page, pushes)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_the_endpoint_has_a_default_when_otlp_is_asked_for(protocol: str) -> None:
    """A collector on the same node, at its usual port."""
    config = _load({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": protocol})

    assert config.otlp.endpoint == f"http://localhost:{4317 if protocol == 'grpc' else 4318}"
    assert is_grpc(config) is (protocol == "grpc")


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318/v1/metrics"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/"}, "http://c:4318/v1/metrics"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c/base"}, "https://c/base/v1/metrics"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/here"}, "http://c:4318/here"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://m:1/v1/metrics", **URL}, "http://m:1/v1/metrics"),
        ({"OTELGPU_OTLP_ENDPOINT": "http://ours:4318", **URL}, "http://ours:4318/v1/metrics"),
    ],
)
def test_the_endpoint_is_a_base_or_the_metrics_own(environ: Mapping[str, str], url: str) -> None:
    """The general one gets the path of the signal; the one for metrics is taken as it is; ours goes over both."""
    assert url_of(_load(environ)) == url


@pytest.mark.parametrize(
    ("environ", "grpc"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, True),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, False),
    ],
)
def test_the_protocol_is_named_or_follows_the_port(environ: Mapping[str, str], grpc: bool) -> None:  # noqa: FBT001 - a table
    """4317 is gRPC wherever OpenTelemetry runs."""
    assert is_grpc(_load({**URL, **environ})) is grpc


@pytest.mark.parametrize(
    ("environ", "endpoint"),
    [({}, "https://c:4317"), ({"OTEL_EXPORTER_OTLP_INSECURE": "true"}, "http://c:4317")],
)
def test_a_target_of_grpc_needs_no_scheme(environ: Mapping[str, str], endpoint: str) -> None:
    """OTEL_EXPORTER_OTLP_INSECURE decides about TLS where no scheme does."""
    config = _load({"OTEL_EXPORTER_OTLP_ENDPOINT": "c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", **environ})

    assert config.otlp.endpoint == endpoint


def test_headers_are_decoded() -> None:
    """Tokens hold blanks and equals signs; the variable writes them as in a URL."""
    config = _load({"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic%20abc==, x-scope-orgid=7"})

    assert config.otlp.headers == {"authorization": "Basic abc==", "x-scope-orgid": "7"}


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "3"}, 3),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "5000"}, 5),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "3", "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT": "2.5"}, 2.5),
        ({"OTEL_METRIC_EXPORT_TIMEOUT": "4000"}, 4),
        ({"OTEL_METRIC_EXPORT_TIMEOUT": "4000", "OTEL_EXPORTER_OTLP_TIMEOUT": "3"}, 3),
        ({"OTEL_METRIC_EXPORT_TIMEOUT": "4000", "OTEL_EXPORTER_OTLP_TIMEOUT": "6"}, 4),
    ],
)
def test_timeouts_are_read(environ: Mapping[str, str], seconds: float) -> None:
    """In seconds as Python's SDK has it, or in milliseconds as the specification; the shorter of the two counts."""
    assert _load(environ).otlp.timeout == seconds


def test_the_interval_is_milliseconds() -> None:
    """OTEL_METRIC_EXPORT_INTERVAL."""
    assert _load({"OTEL_METRIC_EXPORT_INTERVAL": "5000"}).otlp.interval == 5


@pytest.mark.parametrize(
    ("variable", "text", "key", "value"),
    [
        ("COMPRESSION", "none", "compression", "none"),
        ("COMPRESSION", "GZIP", "compression", "gzip"),
        ("CERTIFICATE", "/ca.pem", "certificate", "/ca.pem"),
        ("CLIENT_CERTIFICATE", "/me.pem", "client_certificate", "/me.pem"),
        ("CLIENT_KEY", "/me.key", "client_key", "/me.key"),
    ],
)
def test_the_variable_for_metrics_goes_over_the_general_one(variable: str, text: str, key: str, value: str) -> None:
    """Traces and metrics often go to different places."""
    general, own = f"OTEL_EXPORTER_OTLP_{variable}", f"OTEL_EXPORTER_OTLP_METRICS_{variable}"
    other = "deflate" if variable == "COMPRESSION" else "/other"

    assert getattr(_load({general: text}).otlp, key) == value
    assert getattr(_load({own: text, general: other}).otlp, key) == value


@pytest.mark.parametrize("text", ["cumulative", "Delta", "LOWMEMORY"])
def test_the_temporality_is_chosen(text: str) -> None:
    """OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE, in any case."""
    config = _load({"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": text})

    assert config.otlp.temporality == text.lower()


def test_the_kind_of_histograms_is_chosen() -> None:
    """OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION."""
    kind = "base2_exponential_bucket_histogram"

    assert _load({"OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": kind}).otlp.histograms == kind


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ({"OTEL_EXPORTER_PROMETHEUS_PORT": "9999"}, "localhost:9999"),
        ({"OTEL_EXPORTER_PROMETHEUS_HOST": "0.0.0.0"}, "0.0.0.0:9464"),
        ({"OTEL_EXPORTER_PROMETHEUS_HOST": "::", "OTEL_EXPORTER_PROMETHEUS_PORT": "1"}, "[::]:1"),
        ({"OTEL_EXPORTER_PROMETHEUS_PORT": "9999", "OTELGPU_SERVER_LISTEN": ":9400"}, ":9400"),
        ({}, ":9400"),
    ],
)
def test_the_page_is_served_where_they_say(environ: Mapping[str, str], address: str) -> None:
    """With OpenTelemetry's defaults for the half that is not given; our own setting goes over both."""
    assert [str(one) for one in _load(environ).server.listen] == [address]


def test_every_other_layer_goes_over_them(tmp_path: Path) -> None:
    """Flag over OTELGPU_ over file over OTEL_: an operator that injects OTEL_ variables does not undo a setting."""
    file = tmp_path / "otelgpu.yaml"
    file.write_text("otlp: {interval: 3, timeout: 4, temporality: delta, headers: {x: y}}\n")
    environ = {
        "OTELGPU_CONFIG": str(file),
        "OTELGPU_OTLP_TIMEOUT": "5",
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "lowmemory",
        "OTEL_EXPORTER_OTLP_HEADERS": "a=b",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
    }
    otlp = _load(environ, Flag("--otlp-temporality", "otlp.temporality", "cumulative")).otlp

    assert (otlp.interval, otlp.timeout, otlp.temporality) == (3, 5, "cumulative")
    assert (otlp.headers, otlp.compression) == ({"x": "y"}, "none")


HEADER_TEXT = "the text of a header is printable ASCII, without blanks at its ends"


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"OTEL_METRICS_EXPORTER": "zipkin"}, 'expected otlp, prometheus, console or none, got "zipkin"'),
        ({"OTEL_METRICS_EXPORTER": "none,otlp"}, 'none stands alone, got "none,otlp"'),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, 'expected auto, grpc or http/protobuf, got "http/json"'),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "c:4318"}, 'expected http://HOST:PORT or https://HOST:PORT, got "c:4318"'),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "ftp://c"}, 'expected http://HOST:PORT or https://HOST:PORT, got "ftp://c"'),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:x"}, 'a port is 0 to 65535, got "http://c:x"'),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a..b:4318"},
            'a host name has 1 to 63 characters between two dots, got "http://a..b:4318"',
        ),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "fast"}, 'expected a number of seconds, got "fast"'),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "1m"}, 'expected a number of milliseconds, got "1m"'),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "1"}, 'expected 0.01 to 86400 seconds, got "1"'),
        ({"OTEL_METRIC_EXPORT_TIMEOUT": "x"}, 'expected a number of milliseconds, got "x"'),
        ({"OTEL_EXPORTER_OTLP_COMPRESSION": "zip"}, 'expected gzip, deflate or none, got "zip"'),
        (
            {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "both"},
            'expected cumulative, delta or lowmemory, got "both"',
        ),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "secret"}, "expected NAME=VALUE,NAME=VALUE"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "a b=secret"}, "a header name is letters, digits and -"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "a=secret%0Ax"}, HEADER_TEXT),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "a=secret%E2%82%AC"}, HEADER_TEXT),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "a=%20secret"}, HEADER_TEXT),
        ({"OTELGPU_OTLP_HEADERS": "a b=secret"}, "a header name is letters, digits and -"),
        ({"OTELGPU_OTLP_HEADERS": "a=se\ncret"}, HEADER_TEXT),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1"},
            'expected http://HOST:PORT or https://HOST:PORT, got "http://[::1"',
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a..b"},
            'a host name has 1 to 63 characters between two dots, got "http://a..b"',
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c/#d"},
            'expected http://HOST:PORT or https://HOST:PORT, and no #, got "http://c/#d"',
        ),
        ({"OTEL_EXPORTER_PROMETHEUS_PORT": "high"}, 'a port is 0 to 65535, got "high"'),
    ],
)
def test_a_value_that_cannot_be_is_told_in_one_line(environ: Mapping[str, str], problem: str) -> None:
    """With its variable, like those of any other setting; what a header holds is never shown."""
    (variable,) = environ

    assert _problems(environ) == [f"{variable}: {problem}"]


# ---- the same for log events


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, ""),
        (URL, "http://c:4318/v1/logs"),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, "http://localhost:4318/v1/logs"),
        ({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://m/x"}, ""),
        ({"OTEL_METRICS_EXPORTER": "none", **URL}, ""),
        ({"OTEL_METRICS_EXPORTER": "prometheus", **URL}, ""),
        ({"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "otlp", **URL}, "http://c:4318/v1/logs"),
        ({"OTEL_LOGS_EXPORTER": "otlp"}, "http://localhost:4318/v1/logs"),
        ({"OTEL_LOGS_EXPORTER": "none", **URL}, ""),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://m:1/v1/metrics"}, ""),
        ({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://l:1/here"}, "http://l:1/here"),
        ({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://l:1/here", **URL}, "http://l:1/here"),
        ({"OTELGPU_OTLP_ENDPOINT": "http://ours:4318", **URL}, "http://ours:4318/v1/logs"),
        ({"OTELGPU_OTLP_ENDPOINT": "http://ours:4318/v1/metrics"}, "http://ours:4318/v1/logs"),
        ({"OTELGPU_OTLP_ENDPOINT": "http://o:1", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://l"}, "http://o:1/v1/logs"),
        ({"OTELGPU_OTLP_EVENTS": "false", **URL}, ""),
        ({"OTELGPU_OTLP_EVENTS": "true", "OTEL_LOGS_EXPORTER": "none", **URL}, "http://c:4318/v1/logs"),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_LOGS_EXPORTER": "otlp", **URL}, ""),
        ({"OTEL_CONFIG_FILE": "otel.yaml", "OTEL_LOGS_EXPORTER": "otlp", **URL}, ""),
    ],
)
def test_events_go_where_logs_are_sent(environ: Mapping[str, str], url: str) -> None:
    """OTEL_LOGS_EXPORTER and the endpoints; to where metrics are pushed unless told otherwise, and "" is nowhere."""
    config = _load(environ)

    assert config.sends_events is bool(url)
    assert not url or url_of(config, LOGS) == url


def test_events_may_go_to_the_console_alone() -> None:
    """Without a collector, for a first look."""
    config = _load({"OTEL_LOGS_EXPORTER": "console", **URL})

    assert config.sends_events
    assert (config.log_exporters, config.events_to.endpoint) == (("console",), "")
    assert config.otlp.endpoint == "http://c:4318"


@pytest.mark.parametrize(
    ("name", "general", "own", "of_metrics", "of_logs"),
    [
        ("PROTOCOL", "grpc", "http/protobuf", "grpc", "http/protobuf"),
        ("COMPRESSION", "none", "deflate", "none", "deflate"),
        ("TIMEOUT", "3", "4000", 3.0, 4.0),
        ("CERTIFICATE", "ca.pem", "other.pem", "ca.pem", "other.pem"),
        ("CLIENT_CERTIFICATE", "client.pem", "other.pem", "client.pem", "other.pem"),
        ("CLIENT_KEY", "client.key", "other.key", "client.key", "other.key"),
        ("HEADERS", "a=b", "c=d", {"a": "b"}, {"c": "d"}),
    ],
)
def test_the_variable_for_logs_goes_over_the_general_one(
    name: str, general: str, own: str, of_metrics: object, of_logs: object
) -> None:
    """For log events alone; and the general one holds for both where there is no other."""
    environ = {f"OTEL_EXPORTER_OTLP_{name}": general, **URL}
    both = _load(environ)
    apart = _load({f"OTEL_EXPORTER_OTLP_LOGS_{name}": own, **environ})
    key = name.lower()

    assert (getattr(both.otlp, key), getattr(both.events_to, key)) == (of_metrics, of_metrics)
    assert (getattr(apart.otlp, key), getattr(apart.events_to, key)) == (of_metrics, of_logs)


def test_what_is_the_metrics_own_does_not_hold_for_events() -> None:
    """A token for the one is none for the other."""
    config = _load(
        {
            "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "token=m",
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc",
            "OTEL_METRIC_EXPORT_TIMEOUT": "2000",
            **URL,
        }
    )

    assert (config.otlp.headers, config.otlp.protocol, config.otlp.timeout) == ({"token": "m"}, "grpc", 2)
    assert (config.events_to.headers, config.events_to.protocol, config.events_to.timeout) == ({}, "auto", 10)


@pytest.mark.parametrize(("insecure", "endpoint"), [("", "https://l:4317"), ("true", "http://l:4317")])
def test_a_target_of_grpc_for_logs_needs_no_scheme(insecure: str, endpoint: str) -> None:
    """OTEL_EXPORTER_OTLP_LOGS_INSECURE decides about TLS there."""
    config = _load(
        {
            "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "l:4317",
            "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "grpc",
            "OTEL_EXPORTER_OTLP_LOGS_INSECURE": insecure,
        }
    )

    assert config.events_to.endpoint == endpoint
    assert is_grpc(config, LOGS)
    assert not config.pushes


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"OTEL_LOGS_EXPORTER": "prometheus"}, 'expected otlp, console or none, got "prometheus"'),
        ({"OTEL_LOGS_EXPORTER": "none,otlp"}, 'none stands alone, got "none,otlp"'),
        ({"OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "http/json"}, 'expected auto, grpc or http/protobuf, got "http/json"'),
        (
            {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "ftp://c"},
            'expected http://HOST:PORT or https://HOST:PORT, got "ftp://c"',
        ),
        ({"OTEL_EXPORTER_OTLP_LOGS_TIMEOUT": "fast"}, 'expected a number of seconds, got "fast"'),
        ({"OTEL_EXPORTER_OTLP_LOGS_HEADERS": "secret"}, "expected NAME=VALUE,NAME=VALUE"),
    ],
)
def test_a_value_for_logs_that_cannot_be_is_told_in_one_line(environ: Mapping[str, str], problem: str) -> None:
    """As of metrics."""
    (variable,) = environ

    assert _problems(environ) == [f"{variable}: {problem}"]


def test_a_file_for_logs_that_cannot_be_read_is_told_with_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start, and not when the first event is due."""
    monkeypatch.chdir(tmp_path)
    config = _load({"OTEL_EXPORTER_OTLP_LOGS_CERTIFICATE": "absent.pem", **URL})
    with pytest.raises(ConfigError) as caught:
        make_sender(config, LOGS)

    assert list(caught.value.problems) == ["OTEL_EXPORTER_OTLP_LOGS_CERTIFICATE: absent.pem: cannot be read"]


PAIR = "CLIENT_CERTIFICATE: certificate: expected a certificate in PEM form, and its key, without a password, "


@pytest.mark.parametrize("signal", [METRICS, LOGS], ids=["metrics", "logs"])
@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"CERTIFICATE": "words"}, "CERTIFICATE: words: expected certificates in PEM form"),
        ({"CLIENT_KEY": "key"}, "CLIENT_KEY: key: the certificate of this key is not set"),
        ({"CLIENT_CERTIFICATE": "certificate"}, PAIR + "behind it, as no client key is set"),
        ({"CLIENT_CERTIFICATE": "certificate", "CLIENT_KEY": "words"}, PAIR + "in words"),
    ],
)
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_papers_that_cannot_be_are_told_at_the_start(
    environ: Mapping[str, str],
    problem: str,
    protocol: str,
    signal: Signal,
    papers: Papers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a key or its certificate is missing gRPC ends the whole process; the rest would fail at every attempt."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words").write_text("no certificate\n")
    (tmp_path / "certificate").write_bytes(papers.certificate.read_bytes())
    (tmp_path / "key").write_bytes(papers.key.read_bytes())
    variables = {f"OTEL_EXPORTER_OTLP_{name}": text for name, text in environ.items()}
    config = _load({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c:1", "OTEL_EXPORTER_OTLP_PROTOCOL": protocol, **variables})
    with pytest.raises(ConfigError) as caught:
        make_sender(config, signal)

    assert list(caught.value.problems) == [f"OTEL_EXPORTER_OTLP_{problem}"]


GRPC_NAME = "for gRPC a header name is letters, digits, _, - and ., and does not end with -bin"


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"OTEL_EXPORTER_OTLP_HEADERS": "x-bin=secret"}, f"HEADERS: x-bin: {GRPC_NAME}"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "x&y=secret"}, f'HEADERS: "x&y": {GRPC_NAME}'),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://u:secret@c:4317"},
            "ENDPOINT: gRPC takes no user name in an address; say it in a header",
        ),
    ],
)
def test_what_grpc_cannot_do_is_told_at_the_start(environ: Mapping[str, str], problem: str) -> None:
    """It would fail at every attempt, in lines of gRPC's own."""
    config = _load({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", **environ})
    with pytest.raises(ConfigError) as caught:
        make_sender(config)

    assert list(caught.value.problems) == [f"OTEL_EXPORTER_OTLP_{problem}"]


@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:secret@c:1/a/v1/metrics?key=secret"),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://u:secret@c:1/a?key=secret"),
    ],
)
def test_what_is_secret_in_an_address_is_sent_and_not_shown(variable: str, url: str) -> None:
    """The path of a signal comes before the question mark; a place is named in every message."""
    config = _load({variable: "http://u:secret@c:1/a?key=secret"})

    assert url_of(config) == url
    assert make_sender(config).place == url.replace("u:secret@", "").replace("?key=secret", "")
