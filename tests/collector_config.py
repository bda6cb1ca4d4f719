"""What a configuration file of the OpenTelemetry Collector (contrib) may hold, as far as the example uses it.

Rule 1: the table is written from the documentation of the components; a key that does not stand there is a mistake, as
        it is to the Collector, which refuses to start for it.
Rule 2: to use another component in an example: add its keys here, from its documentation.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Check = Callable[[object], bool]

_DURATION = re.compile(r"(\d+(\.\d+)?(ns|us|ms|s|m|h))+")
_ENDPOINT = re.compile(r"(?:\[[0-9a-f:]+\]|[a-zA-Z0-9.-]+|\$\{env:[A-Z][A-Z0-9_]*\}):(\d{1,5})")
_URL = re.compile(r"https?://([^/]+)(?:/[a-z0-9/._-]*)?")
_VARIABLE = re.compile(r"\$\{env:[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}|\$\$")


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _ratio(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _duration(value: object) -> bool:
    return isinstance(value, str) and bool(_DURATION.fullmatch(value))


def _endpoint(value: object) -> bool:
    found = _ENDPOINT.fullmatch(value) if isinstance(value, str) else None
    return found is not None and 0 < int(found[1]) < 1 << 16


def _url(value: object) -> bool:
    found = _URL.fullmatch(value) if isinstance(value, str) else None
    return found is not None and _endpoint(found[1])


def _path(value: object) -> bool:
    return isinstance(value, str) and value.startswith("/")


def _anything(value: object) -> bool:
    return value is not None


def _one_of(*words: str) -> Check:
    return lambda value: value in words


# A table of keys, a list of one kind of entry, or a check of a value. ANY stands for keys of the user's own.
Kind = Mapping[str, Any] | list[Any] | Check
ANY = "*"

_TLS = {
    **dict.fromkeys(("ca_file", "cert_file", "key_file", "client_ca_file"), _path),
    **dict.fromkeys(("ca_pem", "cert_pem", "key_pem", "server_name_override"), _text),
    **dict.fromkeys(("insecure", "insecure_skip_verify", "include_system_ca_certs_pool"), _flag),
    **dict.fromkeys(("min_version", "max_version"), _one_of("1.0", "1.1", "1.2", "1.3")),
    "reload_interval": _duration,
    "cipher_suites": [_text],
}
_AUTH = {"authenticator": _text}
_GRPC_SERVER = {
    "endpoint": _endpoint,
    "transport": _one_of("tcp", "unix"),
    "tls": _TLS,
    "auth": _AUTH,
    "include_metadata": _flag,
    **dict.fromkeys(
        ("max_recv_msg_size_mib", "max_concurrent_streams", "read_buffer_size", "write_buffer_size"), _count
    ),
    "keepalive": {
        "server_parameters": dict.fromkeys(
            ("max_connection_idle", "max_connection_age", "max_connection_age_grace", "time", "timeout"), _duration
        ),
        "enforcement_policy": {"min_time": _duration, "permit_without_stream": _flag},
    },
}
_HTTP_SERVER = {
    "endpoint": _endpoint,
    "tls": _TLS,
    "auth": _AUTH,
    "cors": {"allowed_origins": [_text], "allowed_headers": [_text], "max_age": _count},
    "include_metadata": _flag,
    "max_request_body_size": _count,
    "response_headers": {ANY: _text},
    "compression_algorithms": [_text],
    **dict.fromkeys(("read_timeout", "read_header_timeout", "write_timeout", "idle_timeout"), _duration),
    **dict.fromkeys(("metrics_url_path", "traces_url_path", "logs_url_path"), _path),
}
_SIZER = _one_of("requests", "items", "bytes")
_OTLP_EXPORTER = {
    "endpoint": _endpoint,
    "timeout": _duration,
    "tls": _TLS,
    "auth": _AUTH,
    "compression": _one_of("gzip", "snappy", "zstd", "none"),
    "headers": {ANY: _text},
    "keepalive": {"time": _duration, "timeout": _duration, "permit_without_stream": _flag},
    "wait_for_ready": _flag,
    **dict.fromkeys(("read_buffer_size", "write_buffer_size"), _count),
    **dict.fromkeys(("balancer_name", "authority"), _text),
    "retry_on_failure": {
        "enabled": _flag,
        **dict.fromkeys(("initial_interval", "max_interval", "max_elapsed_time"), _duration),
        **dict.fromkeys(("multiplier", "randomization_factor"), _ratio),
    },
    "sending_queue": {
        **dict.fromkeys(("enabled", "wait_for_result", "block_on_overflow"), _flag),
        **dict.fromkeys(("num_consumers", "queue_size"), _count),
        "sizer": _SIZER,
        "storage": _text,
        "batch": {"flush_timeout": _duration, "min_size": _count, "max_size": _count, "sizer": _SIZER},
    },
}
_OTLPHTTP_EXPORTER = {
    **{
        key: kind for key, kind in _OTLP_EXPORTER.items() if key not in ("keepalive", "wait_for_ready", "balancer_name")
    },
    **dict.fromkeys(("endpoint", "metrics_endpoint", "logs_endpoint"), _url),
    "encoding": _one_of("proto", "json"),
}
_DEBUG_EXPORTER = {
    "verbosity": _one_of("basic", "normal", "detailed"),
    **dict.fromkeys(("sampling_initial", "sampling_thereafter"), _count),
    "use_internal_logger": _flag,
}
_WORKLOADS = ("deployment", "replicaset", "daemonset", "statefulset", "job", "cronjob")
_METADATA = _one_of(
    *(f"k8s.{kind}.{what}" for kind in (*_WORKLOADS, "pod", "node") for what in ("name", "uid")),
    *("k8s.namespace.name", "k8s.container.name", "k8s.cluster.uid", "k8s.pod.hostname", "k8s.pod.start_time"),
    *("k8s.pod.ip", "container.id", "container.image.name", "container.image.tag", "container.image.repo_digests"),
)
_FROM = {"tag_name": _text, "key": _text, "key_regex": _text, "from": _one_of("pod", "namespace", "node")}
_FILTER = {"key": _text, "value": _text, "op": _one_of("equals", "not-equals", "exists", "does-not-exist")}
_K8SATTRIBUTES = {
    "auth_type": _one_of("none", "serviceAccount", "kubeConfig", "tls"),
    "context": _text,
    **dict.fromkeys(("passthrough", "wait_for_metadata"), _flag),
    "wait_for_metadata_timeout": _duration,
    "extract": {
        "metadata": [_METADATA],
        "annotations": [_FROM],
        "labels": [_FROM],
        **dict.fromkeys(("otel_annotations", "deployment_name_from_replicaset"), _flag),
    },
    "filter": {
        **dict.fromkeys(("node", "node_from_env_var", "namespace"), _text),
        "fields": [_FILTER],
        "labels": [_FILTER],
    },
    "pod_association": [{"sources": [{"from": _one_of("connection", "resource_attribute"), "name": _text}]}],
    "exclude": {"pods": [{"name": _text}]},
}
_FILE_STORAGE = {
    "directory": _path,
    "timeout": _duration,
    **dict.fromkeys(("fsync", "create_directory", "recreate"), _flag),
    "directory_permissions": lambda value: isinstance(value, str) and bool(re.fullmatch(r"0[0-7]{3}", value)),
    "compaction": {
        **dict.fromkeys(("on_start", "on_rebound", "cleanup_on_start"), _flag),
        "directory": _path,
        "check_interval": _duration,
        **dict.fromkeys(
            ("max_transaction_size", "rebound_needed_threshold_mib", "rebound_trigger_threshold_mib"), _count
        ),
    },
}
COMPONENTS: Mapping[str, Mapping[str, Kind]] = {
    "receivers": {
        "otlp": {"protocols": {"grpc": _GRPC_SERVER, "http": _HTTP_SERVER}},
        # What stands under `config` is Prometheus's own: promtool looks at that.
        "prometheus": {"config": {"global": _anything, "scrape_configs": _anything}, "trim_metric_suffixes": _flag},
    },
    "processors": {
        "memory_limiter": {
            "check_interval": _duration,
            **dict.fromkeys(("limit_mib", "spike_limit_mib", "limit_percentage", "spike_limit_percentage"), _count),
        },
        "batch": {
            "timeout": _duration,
            **dict.fromkeys(("send_batch_size", "send_batch_max_size", "metadata_cardinality_limit"), _count),
            "metadata_keys": [_text],
        },
        "k8sattributes": _K8SATTRIBUTES,
    },
    "exporters": {"otlp": _OTLP_EXPORTER, "otlphttp": _OTLPHTTP_EXPORTER, "debug": _DEBUG_EXPORTER},
    "extensions": {"file_storage": _FILE_STORAGE},
}
PIPELINE = {"receivers": [_text], "processors": [_text], "exporters": [_text]}
SERVICE: Kind = {"extensions": [_text], "pipelines": {ANY: PIPELINE}}


def problems(config: object) -> list[str]:
    """List everything that the Collector would refuse, or that would not do what the example says."""
    if not isinstance(config, dict):
        return ["the file is no mapping"]
    sections = COMPONENTS.keys() | {"service"}
    found = [f"{key}: no such section" for key in config.keys() - sections]
    config = dict[str, Any](extensions={}) | config
    found += [f"{key}: a mapping is wanted" for key in sections if not isinstance(config.get(key), dict)]
    if found:
        return found
    for section, known in COMPONENTS.items():
        for name, settings in config[section].items():
            place, kind = f"{section}.{name}", known.get(name.partition("/")[0])
            found += [f"{place}: no such component"] if kind is None else wrong(place, settings or {}, kind)
    found += wrong("service", config["service"], SERVICE)
    stray = [text for text in _texts(config) if "$" in _VARIABLE.sub("", text)]
    found += [f"{text!r}: $ begins a variable: ${{env:NAME}}" for text in stray]
    return found or [*_unconnected(config), *_unfit(config)]


def wrong(place: str, value: object, kind: Kind) -> list[str]:
    """List what in a value is not of its kind."""
    if isinstance(kind, Mapping):
        if not isinstance(value, dict):
            return [f"{place}: a mapping is wanted, not {value!r}"]
        found = [f"{place}.{key}: no such key" for key in value if key not in kind and ANY not in kind]
        for key in value:
            if (inner := kind.get(key, kind.get(ANY))) is not None:
                found += wrong(f"{place}.{key}", value[key], inner)
        return found
    if isinstance(kind, list):
        if not isinstance(value, list):
            return [f"{place}: a list is wanted, not {value!r}"]
        return [one for index, entry in enumerate(value) for one in wrong(f"{place}[{index}]", entry, kind[0])]
    return [] if kind(value) else [f"{place}: cannot be {value!r}"]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _unconnected(config: dict[str, Any]) -> Iterator[str]:
    """Find what is used and not defined, and what is defined and not used."""
    service = config["service"]
    used: dict[str, list[str]] = {section: [] for section in COMPONENTS}
    used["extensions"] += service.get("extensions", [])
    if not service.get("pipelines"):
        yield "service.pipelines: there is none"
    for name, pipeline in service.get("pipelines", {}).items():
        yield from _unsent(name, pipeline)
        for section in ("receivers", "exporters"):
            if not pipeline.get(section):
                yield f"service.pipelines.{name}: no {section}"
        for section, names in pipeline.items():
            used[section] += names
            if len(set(names)) < len(names):
                yield f"service.pipelines.{name}.{section}: one stands twice"
    for section, names in used.items():
        for name in sorted(set(names) ^ set(config.get(section) or {})):
            yield f"{section}.{name}: used and not defined, or defined and not used"


def _unsent(name: str, pipeline: dict[str, Any]) -> Iterator[str]:
    """Find a pipeline that nothing would come through."""
    kind = name.partition("/")[0]
    if kind not in ("metrics", "logs"):
        yield f"service.pipelines.{name}: otelgpu sends metrics and logs"
    if kind != "metrics" and "prometheus" in pipeline.get("receivers", ()):
        yield f"service.pipelines.{name}: Prometheus has metrics alone"


def _unfit(config: dict[str, Any]) -> Iterator[str]:
    """Find what every component takes by itself and does not make sense."""
    for name, exporter in config["exporters"].items():
        if name.partition("/")[0] != "debug" and "endpoint" not in exporter:
            yield f"exporters.{name}: no endpoint"
        storage = exporter.get("sending_queue", {}).get("storage")
        if storage is not None and storage not in config["service"].get("extensions", []):
            yield f"exporters.{name}.sending_queue.storage: {storage} is no extension of the service"
    for name, limiter in config["processors"].items():
        is_limited = limiter and "check_interval" in limiter and limiter.keys() & {"limit_mib", "limit_percentage"}
        if name.partition("/")[0] == "memory_limiter" and not is_limited:
            yield f"processors.{name}: check_interval and a limit are needed"
    for name, pipeline in config["service"]["pipelines"].items():
        order = [processor.partition("/")[0] for processor in pipeline.get("processors", [])]
        if "memory_limiter" in order[1:] or "batch" in order[:-1]:
            yield f"service.pipelines.{name}.processors: memory_limiter comes first and batch last"
    endpoints = [
        settings["endpoint"]
        for receiver in config["receivers"].values()
        for settings in (receiver.get("protocols") or {}).values()
        if settings and "endpoint" in settings
    ]
    if len(set(endpoints)) < len(endpoints):
        yield "receivers: two listen at one address"
