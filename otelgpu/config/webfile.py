"""Prometheus' web configuration file: TLS, passwords, headers and a limit of requests, in exporter-toolkit's format.

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md

Rule 1: a key is a row of a table here, with what reads its text. A file says what is wrong with it all at once.
Rule 2: what would leave the page less guarded than the file's author meant is a problem, also where Go passes it over.
Rule 3: no message shows a password, a hash of one, or a key.
Rule 4: imported only when there is such a file: yaml costs 20 ms.
"""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import yaml

from otelgpu.config.given import Problem
from otelgpu.config.webtls import ANY, CHECKED, CIPHERS, CLIENTS, CURVES, NOBODY, VERSIONS, Pem, Tls, made
from otelgpu.config.webvalues import bcrypt_hash, choice, count, file_name, header, seconds, truth
from otelgpu.config.words import meant, one_of, whole
from otelgpu.config.yamlfile import UnusableError, Walk, is_null, line_of, root_of

TLS, HTTP, USERS, RATE = "tls_server_config", "http_server_config", "basic_auth_users", "rate_limit"


@dataclass(frozen=True, slots=True)
class Web:
    """What a file asks for. A client's certificate has to hold one of the `sans`, where there are any."""

    context: ssl.SSLContext | None = None
    sans: frozenset[str] = frozenset()
    headers: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)  # to bcrypt hashes
    rate: tuple[float, int] | None = None  # one request each so many seconds, and so many of them at once
    files: tuple[str, ...] = ()  # all that were read, this one first
    remarks: tuple[str, ...] = ()


def read(path: str, *, asked_by: str, problems: list[Problem]) -> Web:
    """Read a file and those that it names; what is wrong goes to the problems, and the result is of no use then.

    *asked_by* is where the path was given: "--web-config-file web.yml".
    """
    file = _File(path, problems)
    try:
        root = root_of(path, asked_by=asked_by)
    except UnusableError as error:
        problems.append(Problem(str(error)))
        root = None
    if root is not None:
        file.take(root)
    return file.web()


_ONE: Mapping[str, Callable[[str], object]] = {
    f"{TLS}.cert_file": file_name,
    f"{TLS}.key_file": file_name,
    f"{TLS}.client_ca_file": file_name,
    f"{TLS}.cert": str,
    f"{TLS}.key": str,
    f"{TLS}.client_ca": str,
    f"{TLS}.client_auth_type": choice(CLIENTS),
    f"{TLS}.min_version": choice(VERSIONS),
    f"{TLS}.max_version": choice(VERSIONS),
    f"{TLS}.prefer_server_cipher_suites": truth,
    f"{HTTP}.http2": truth,
    f"{RATE}.interval": seconds,
    f"{RATE}.burst": count,
}
_LISTS: Mapping[str, Callable[[str], object]] = {
    f"{TLS}.client_allowed_sans": str,
    f"{TLS}.cipher_suites": choice(CIPHERS),
    f"{TLS}.curve_preferences": choice(CURVES),
}
_HEADERS = f"{HTTP}.headers"
_NAMED: Mapping[str, Mapping[str, Callable[[str], object]]] = {  # what a mapping may hold; USERS may hold any name
    _HEADERS: {
        "Content-Security-Policy": header(),
        "Strict-Transport-Security": header(),
        "X-Content-Type-Options": header("nosniff"),
        "X-Frame-Options": header("deny", "sameorigin"),
        "X-XSS-Protection": header(),
    },
}
_KEYS = (TLS, HTTP, USERS, RATE, *_ONE, *_LISTS, *_NAMED)
_EMPTY_IS_UNSET = tuple(key for key, parse in _ONE.items() if parse in (file_name, str) or key.endswith("_type"))


class _File:
    """One file while it is read: its values by key, and the line of each."""

    def __init__(self, path: str, problems: list[Problem]) -> None:
        self._path = path
        self._walk = Walk(whole(path), problems)
        self._values: dict[str, object] = {}
        self._nodes: dict[str, yaml.Node] = {}
        self._asked: set[str] = set()  # sections with anything in them

    def take(self, root: yaml.Node, section: str = "") -> None:
        """Take the values of the whole file, or of a section."""
        for key, key_node, node in self._walk.items(root, section, expected=f"keys, such as {TLS}"):
            self._asked.add(section)
            if key not in _KEYS or key.count(".") != (1 if section else 0):
                self._walk.unknown(key_node, key, partial(meant, key, _KEYS))
            elif self._walk.is_new(key, key_node) and not is_null(node):
                self._nodes[key] = key_node
                if key in _ONE:
                    self._one(key, node)
                elif key in _LISTS:
                    self._list(key, node)
                elif key in (USERS, *_NAMED):
                    self._values[key] = self._mapping(key, node)
                else:
                    self.take(node, key)

    def _one(self, key: str, node: yaml.Node) -> None:
        if not self._walk.is_text(node, key, "one value"):
            return
        if node.value == "" and key in _EMPTY_IS_UNSET:
            del self._nodes[key]
        else:
            self._parse(key, _ONE[key], node, lambda value: self._values.update({key: value}))

    def _list(self, key: str, node: yaml.Node) -> None:
        values: list[object] = []
        if not isinstance(node, yaml.SequenceNode):
            self._walk.wrong(node, key, "expected a list, of lines that begin with -")
        elif not node.value:
            self._walk.wrong(node, key, "expected at least one")
        else:
            for item in node.value:
                if self._walk.is_text(item, key, "one value"):
                    self._parse(key, _LISTS[key], item, values.append)
        self._values[key] = values

    def _mapping(self, key: str, node: yaml.Node) -> dict[str, object]:
        values: dict[str, object] = {}
        known = _NAMED.get(key)
        for entry, key_node, value in self._walk.items(node, key, expected="NAME: VALUE lines"):
            name = key_node.value
            # Whoever wrote the two the wrong way round is not to find the hash in his log.
            place = key if key == USERS and name.startswith("$") else entry
            if known is not None and name not in known:
                expected = f"this header cannot be set; expected {one_of(known)}"
                self._walk.wrong(key_node, entry, expected)
            elif ":" in name and known is None:
                self._walk.wrong(key_node, place, "a user's name holds no colon")
            elif self._walk.is_new(entry, key_node) and self._walk.is_text(value, place, "one text"):
                parse = bcrypt_hash if known is None else known[name]
                self._parse(place, parse, value, partial(values.__setitem__, name))
        return values

    def _parse(self, key: str, parse: Callable[[str], object], node: yaml.Node, keep: Callable[[object], None]) -> None:
        try:
            keep(parse(node.value))
        except ValueError as error:
            self._walk.wrong(node, key, str(error))

    def web(self) -> Web:
        """Put it together."""
        headers = cast("dict[str, str]", self._values.get(_HEADERS, {}))
        remarks: list[str] = []
        if self._values.get(f"{HTTP}.http2"):
            remarks.append(f"{self._place(f'{HTTP}.http2')}: HTTP/2 is not spoken; clients get HTTP/1.1")
        tls = self._tls()
        context = None
        if tls is not None:
            odd: list[str] = []
            context = made(tls, self._complain, odd)
            remarks += [f"{self._place(TLS)}: {text}" for text in odd]
        return Web(
            context=context,
            sans=frozenset() if tls is None else tls.sans,
            headers={name: text for name, text in headers.items() if text},
            users=cast("dict[str, bytes]", self._values.get(USERS, {})),
            rate=self._rate(),
            files=(self._path, *(() if tls is None else tls.files)),
            remarks=tuple(remarks),
        )

    def _place(self, key: str) -> str:
        return f"{whole(self._path)}:{line_of(self._nodes[key])}: {key}"

    def _complain(self, name: str, what: str) -> None:
        """Add a problem of a key of the TLS section, or of the section itself."""
        key = f"{TLS}.{name}" if f"{TLS}.{name}" in self._nodes else TLS
        said = what if key != TLS or not name else f"{name}: {what}"
        self._walk.wrong(self._nodes[key], key, said)

    def _rate(self) -> tuple[float, int] | None:
        interval = cast("float", self._values.get(f"{RATE}.interval", 0.0))
        if not interval:
            return None
        if f"{RATE}.burst" not in self._nodes:
            self._walk.wrong(self._nodes[RATE], RATE, "expected burst too: without it no request would pass")
        return interval, cast("int", self._values.get(f"{RATE}.burst", 1))

    def _pem(self, name: str) -> Pem | None:
        file, text = (cast("str", self._values.get(f"{TLS}.{key}", "")) for key in (f"{name}_file", name))
        if file and text:
            self._complain(name, f"expected this or {name}_file, not both")
        if file:
            return Pem(f"{name}_file", path=str(Path(self._path).parent / file))
        return Pem(name, text=text) if text else None

    def _tls(self) -> Tls | None:
        """Give what the TLS section asks for; None where there is none, or it is wrong."""
        if TLS not in self._asked:
            return None
        cert, key, authorities = (self._pem(name) for name in ("cert", "key", "client_ca"))
        for name, pem in (("cert", cert), ("key", key)):
            if pem is None and f"{TLS}.{name}_file" not in self._nodes:
                self._complain("", f"expected {name}_file (or {name}): without it there is no TLS")
        given = {key.removeprefix(f"{TLS}."): value for key, value in self._values.items() if key.startswith(TLS)}
        clients = cast("str", given.get("client_auth_type", NOBODY))
        if authorities is not None and clients == NOBODY:
            self._complain(authorities.key, f"expected client_auth_type too, such as {CHECKED}: nobody would be asked")
        if "client_allowed_sans" in given and clients not in (CHECKED, ANY):
            self._complain("client_allowed_sans", f"expected client_auth_type {CHECKED}: else clients may come without")
        return Tls(
            cert=cert,
            key=key,
            authorities=authorities,
            clients=clients,
            sans=frozenset(cast("list[str]", given.get("client_allowed_sans", []))),
            least=cast("str", given.get("min_version", "TLS12")),
            most=cast("str", given.get("max_version", "TLS13")),
            ciphers=tuple(cast("list[str]", given.get("cipher_suites", []))),
            curves=tuple(cast("list[str]", given.get("curve_preferences", []))),
            ours_first=cast("bool", given.get("prefer_server_cipher_suites", True)),
        )
