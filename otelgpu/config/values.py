"""The kinds of value that are more than a number or a word.

Rule 1: a parser takes the user's text and gives back the value, or raises ValueError with a sentence that says what
        would be right; the place is added by whoever read the text.
Rule 2: values are frozen and show themselves as the text that makes them.
"""

import re
import socket
from dataclasses import dataclass
from functools import partial
from typing import Literal
from urllib.parse import urlsplit

from otelgpu.config.words import UnknownWordError

_ADDRESS = "an address is :PORT, HOST:PORT, [IPV6]:PORT or unix:/PATH"
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?")
_DIGITS = re.compile(r"[0-9]+")
_LONGEST_LABEL = 63  # characters between the dots of a host name; socket.getaddrinfo raises UnicodeError beyond that
_LONGEST_PORT = 5
_HIGHEST_PORT = 65535
_LONGEST_UNIX_PATH = 107  # bytes; sockaddr_un of Linux, less the closing NUL


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens: host ("" is every address) and port (0 is any free one), or the path of a socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read `:9400`, `127.0.0.1:0`, `[::1]:9400`, `host:9400` or `unix:/path`."""
    if text.startswith("unix:"):
        return Address(path=_unix_path(text.removeprefix("unix:")))
    host, colon, port = text.rpartition(":")
    if not colon:
        if _DIGITS.fullmatch(text):
            raise ValueError(f"{_ADDRESS}; did you mean :{text}?")
        if not _DIGITS.match(text) or "." in text:
            raise ValueError(_ADDRESS)
    if host.startswith("["):
        host = _ipv6(host)
    elif ":" in host:
        raise ValueError("an IPv6 address stands in brackets, as in [::1]:9400")
    elif host and not _is_host(host):
        raise ValueError(_ADDRESS)
    else:
        _check_labels(host)
    if not (_DIGITS.fullmatch(port) and len(port) <= _LONGEST_PORT and int(port) <= _HIGHEST_PORT):
        raise ValueError(f"a port is 0 to {_HIGHEST_PORT}")
    return Address(host=host, port=int(port))


_ENGINE_PORT = 5555  # of nv-hostengine
_ENGINE_SOCKET = "unix://"


def parse_engine(text: str) -> str:
    """Read where an nv-hostengine is: `HOST:PORT`, `HOST`, `[IPV6]:PORT` or `unix:///PATH`; "" is none of these."""
    if not text:
        return ""
    if text.startswith("unix:"):
        return _ENGINE_SOCKET + _unix_path("/" + text.removeprefix("unix:").lstrip("/"))
    address = parse_address(text if text.rpartition(":")[1] and not text.endswith("]") else f"{text}:{_ENGINE_PORT}")
    if not address.host or not address.port:
        raise ValueError("a host engine is HOST:PORT, HOST, [IPV6]:PORT or unix:///PATH")
    return str(address)


@dataclass(frozen=True, slots=True)
class SourceChoice:
    """Which source is asked for; `spec` is what follows "simulated:" or "replay:", and is read by that source."""

    kind: Literal["auto", "nvml", "dcgm", "simulated", "replay"]
    spec: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.spec}" if self.spec else self.kind


def parse_source(text: str) -> SourceChoice:
    """Read `auto`, `nvml`, `dcgm`, `simulated` (the same as simulated:8xh100), `simulated:SPEC` or `replay:FILE`."""
    kind, colon, spec = text.partition(":")
    match kind.lower():
        case "auto" if not colon:
            return SourceChoice("auto")
        case "nvml" if not colon:
            return SourceChoice("nvml")
        case "dcgm" if not colon:
            return SourceChoice("dcgm")
        case "simulated" if spec or not colon:
            return SourceChoice("simulated", spec or "8xh100")
        case "replay" if spec:
            return SourceChoice("replay", spec)
        case _:
            expected = "auto, nvml, dcgm, simulated, simulated:SPEC (such as simulated:8xh100) or replay:FILE"
            raise ValueError(f"expected {expected}")


FIELD_WORDS = ("default", "all", "none")
CSV = ".csv"
_LONGEST_FIELD_NAME = 200
_FIELDS_ARE_LISTED = "; `otelgpu fields` lists them"


def parse_field_name(text: str) -> str:
    """Check a name in `fields` against the catalogue; the words and the names of files pass as they are."""
    if text in FIELD_WORDS or is_file(text):
        return text
    from otelgpu.fields import GROUPS, find  # here, because the words alone need no catalogue

    if len(text) <= _LONGEST_FIELD_NAME and (text in GROUPS or find(text) is not None):
        return text
    raise UnknownWordError("no such field", partial(near_field, text), otherwise=_FIELDS_ARE_LISTED)


def is_file(text: str) -> bool:
    """Whether an entry of `fields` names a CSV file: it has a slash in it, or ends in .csv."""
    return "/" in text or text.lower().endswith(CSV)


def near_field(text: str) -> str:
    """Finish a message about an unknown field."""
    from otelgpu.fields import GROUPS, suggest

    if not 0 < len(text) <= _LONGEST_FIELD_NAME:
        return _FIELDS_ARE_LISTED
    near = text.lower() if text.lower() in (*FIELD_WORDS, *GROUPS) else suggest(text)
    return f"; did you mean {near}?" if near else _FIELDS_ARE_LISTED


# Labels that a page puts on series itself, in any naming or mode; a second one would make Prometheus refuse the page.
OWN_LABELS = frozenset(
    (
        *("gpu", "UUID", "uuid", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID"),
        *("Hostname", "hostname", "err_code", "err_msg", "window_size_in_ms"),
        *("xid", "clock_event", "health_watch", "health_error_code", "peer_gpu", "peer_uuid", "link_status"),
        *("nvlink", "nvswitch", "cpu", "cpucore", "gpu_uuid", "vgpu"),
        *("pod", "pod_name", "pod_uid", "namespace", "pod_namespace", "container", "container_name"),
        *("hpc_job", "slurm_user", "pid", "state", "gap", "code", "le", "quantile"),
        *("error_type", "network_io_direction"),  # in semconv naming they tell series of one family apart
    )
)
OWN_PREFIXES = ("DCGM_", "dcgm_", "hw_", "k8s_", "otel_scope_", "dra_")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def check_label_name(name: str) -> None:
    """Raise ValueError unless a label of this name may be added to every series."""
    if not _LABEL_NAME.fullmatch(name):
        raise ValueError("a label name is letters, digits and _, and no digit comes first")
    if name.startswith("__"):
        raise ValueError("label names that begin with __ belong to Prometheus")
    if name in OWN_LABELS or name.startswith(OWN_PREFIXES):
        raise ValueError("otelgpu sets this label itself")


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-zA-Z-]+")


def check_header_name(name: str) -> None:
    """Raise ValueError unless this can be the name of a header."""
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError("a header name is letters, digits and -")


def check_header_text(text: str) -> None:
    """Raise ValueError unless a header can hold this text; the message does not show it."""
    if text != text.strip() or not text.isascii() or not text.isprintable():
        raise ValueError("the text of a header is printable ASCII, without blanks at its ends")


_ENDPOINT = "expected http://HOST:PORT or https://HOST:PORT"


def parse_endpoint(text: str) -> str:
    """Check the URL of a collector; "" is none."""
    if not text:
        return text
    try:
        url = urlsplit(text)
    except ValueError:  # brackets that hold no IPv6 address
        raise ValueError(_ENDPOINT) from None
    try:
        port = url.port
    except ValueError:
        raise ValueError(f"a port is 0 to {_HIGHEST_PORT}") from None
    if url.scheme not in ("http", "https") or not url.hostname or port == 0 or not text.isprintable() or " " in text:
        raise ValueError(_ENDPOINT)
    if "#" in text:
        raise ValueError(f"{_ENDPOINT}, and no #")
    _check_labels(url.hostname)
    return text


SECONDS = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE]([+-]?[0-9]{1,2}))? ?(ms|s|m|h)?")
_UNITS = {"ms": -3, None: 0, "s": 0}
_SIXTIES = {"m": 60.0, "h": 3600.0}


def parse_seconds(text: str) -> float:
    """Read a duration: a plain number is seconds; "500ms", "30s", "1m" and "1h" say their unit."""
    match = SECONDS.fullmatch(text.removeprefix("+"))
    if match is None:
        raise ValueError
    number, exponent, unit = match.groups()
    if unit in _SIXTIES:
        return float(f"{number}e{exponent or 0}") * _SIXTIES[unit]
    return float(f"{number}e{int(exponent or 0) + _UNITS[unit]}")  # so that 300ms is 0.3, not a neighbour of it


def _unix_path(path: str) -> str:
    if not path.startswith("/") or "\0" in path or path.endswith("/"):
        raise ValueError("a unix socket is written unix:/PATH, with the whole path")
    if len(path.encode("utf-8", "surrogateescape")) > _LONGEST_UNIX_PATH:
        raise ValueError(f"the path of a unix socket has at most {_LONGEST_UNIX_PATH} bytes")
    return path


def _ipv6(text: str) -> str:
    inner = text[1:-1]
    try:
        if text.endswith("]"):
            socket.inet_pton(socket.AF_INET6, inner.partition("%")[0])
            return inner
    except (OSError, ValueError):  # ValueError: a NUL inside
        pass
    raise ValueError("an IPv6 address stands in brackets, as in [::1]:9400")


def _check_labels(host: str) -> None:
    """Raise ValueError for a host name that no resolver takes: with two dots in a row, or a part that is too long."""
    if any(not 0 < len(label) <= _LONGEST_LABEL for label in host.removesuffix(".").split(".") if host):
        raise ValueError(f"a host name has 1 to {_LONGEST_LABEL} characters between two dots")


def _is_host(text: str) -> bool:
    if not _HOST.fullmatch(text):
        return False
    if text.strip("0123456789."):
        return True
    try:
        socket.inet_pton(socket.AF_INET, text)
    except OSError:
        return False
    return True
