"""A Kubernetes API server for tests: HTTPS, tokens, lists in pages, chunked watches, and objects that a test writes.

Rule 1: only the public protocol is spoken; what otelgpu makes of it is not known here.
Rule 2: nothing sleeps: a watch is told by a condition, a slow server answers when the test lets it.
Rule 3: what a real server refuses (no token, another node's name in no selector) is refused here too.
"""

import contextlib
import json
import re
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.harness import until

LIMIT = 20.0  # seconds
PODS = "/api/v1/pods"
CONFIGMAPS = re.compile(r"/api/v1/namespaces/([^/]+)/configmaps(?:/([^/]+))?")
GROUP = "/apis/resource.k8s.io"
Json = dict[str, Any]


class Asked(NamedTuple):
    """One request, as it came."""

    path: str
    query: Mapping[str, str]
    accept: str
    status: int

    @property
    def is_watch(self) -> bool:
        """Whether it wants to be told of changes."""
        return self.query.get("watch") == "true"


class Event(NamedTuple):
    """One change: its number, the collection, and what a watch is told."""

    version: int
    path: str
    kind: str
    thing: Json


def certificate(folder: Path) -> None:
    """Write `tls.crt` and `tls.key` of a server at 127.0.0.1 that vouches for itself."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed (Debian's package openssl)")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kubernetes"]
    command += [
        "-addext",
        "subjectAltName=IP:127.0.0.1,IP:::1",
        "-keyout",
        f"{folder}/tls.key",
        "-out",
        f"{folder}/tls.crt",
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def pod_object(name: str, *, node: str = "node-1", namespace: str = "team", uid: str = "", **labels: str) -> Json:
    """A pod as the server keeps it; `app__x` in a label's name stands for `app/x`, `a_b` for `a-b`."""
    named = {key.replace("__", "/").replace("_", "-"): text for key, text in labels.items()}
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": uid or f"uid-of-{name}", "labels": named},
        "spec": {"nodeName": node, "containers": [{"name": "main"}]},
        "status": {"phase": "Running"},
    }


def configmap_object(name: str, *, namespace: str = "gpu", **data: str) -> Json:
    """A ConfigMap as the server keeps it."""
    return {"kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


def slice_object(
    name: str, *devices: Json, node: str = "node-1", driver: str = "gpu.nvidia.com", generation: int = 1, pool: str = ""
) -> Json:
    """A ResourceSlice of a node's pool, as v1 and v1beta2 have it."""
    spec = {"nodeName": node, "driver": driver, "pool": {"name": pool or node, "generation": generation}}
    return {"metadata": {"name": name}, "spec": spec | {"devices": list(devices)}}


def gpu_device(name: str, uuid: str) -> Json:
    """A whole GPU in a slice, with attributes of every kind of value."""
    attributes: Json = {"type": {"string": "gpu"}, "uuid": {"string": uuid}, "index": {"int": 0}, "x": {"bool": True}}
    attributes["driverVersion"] = {"version": "580.1.0"}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}


def mig_device(name: str, *, parent: str, profile: str, uuid: str = "", slices: range = range(0)) -> Json:
    """A MIG device in a slice: with a UUID, or told by the memory slices that it takes."""
    attributes: Json = {"type": {"string": "mig"}, "parentUUID": {"string": parent}, "profile": {"string": profile}}
    if uuid:
        attributes["uuid"] = {"string": uuid}
    counters = {f"memory-slice-{n}": {"value": "1"} for n in slices} | {"multiprocessors": {"value": "14"}}
    return {
        "name": name,
        "attributes": attributes,
        "capacity": {"memory": {"value": "4864Mi"}},
        "consumesCounters": [{"counterSet": "gpu-0-counter-set", "counters": counters}],
    }


@dataclass
class ApiServer:
    """Serves what *put* and *remove* make of its collections. *folder* becomes that of a service account."""

    folder: Path
    papers: Path
    versions: tuple[str, ...] = ("v1",)  # of resource.k8s.io; () where there is no such group
    page: int = 250  # objects it gives at once at most
    forbidden: set[str] = field(default_factory=set)  # "list", "watch", or a path
    gone_in_stream: bool = True  # an expired version is refused by an event; else by the status 410
    partial: bool = True  # it knows metadata alone
    echoes: bool = False  # says in a refusal what it was sent, as some proxies do
    ends_at_once: bool = False  # each watch, before any event
    drips: str = ""  # "head" or "body": what comes byte by byte, and never to an end, until `let_go`
    asked: list[Asked] = field(default_factory=list)
    watching: int = 0

    def __post_init__(self) -> None:
        self.token = "first-token"
        self.changed = threading.Condition()
        self.objects: dict[str, dict[tuple[str, str], Json]] = {PODS: {}, "slices": {}, "configmaps": {}}
        self.events: list[Event] = []
        self.version = 1000
        self.oldest = 1000  # versions before this one are forgotten
        self.generation = 0  # a watch of an older generation ends
        self.breaks = False  # ... without a proper end
        self.open = threading.Event()
        self.open.set()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.folder.mkdir(exist_ok=True)
        (self.folder / "ca.crt").write_bytes((self.papers / "tls.crt").read_bytes())
        (self.folder / "namespace").write_text("monitoring")
        (self.folder / "token").write_text(self.token)

    # what a test does

    def start(self) -> None:
        """Listen; again on the same port after `stop`."""
        server = ThreadingHTTPServer(("127.0.0.1", self.port), _Handler, bind_and_activate=False)
        server.allow_reuse_address = True
        server.daemon_threads = True
        server.server_bind()
        server.server_activate()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.papers / "tls.crt", self.papers / "tls.key")
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.fake = self  # type: ignore[attr-defined]
        self.port = server.server_address[1]
        self._server = server
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        """Stop listening, and break every watch."""
        self.let_go()
        self.end_watches(breaks=True)
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def environ(self) -> dict[str, str]:
        """What a pod finds in its environment."""
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port)}

    def put(self, *things: Json, path: str = PODS) -> None:
        """Add objects, or change them."""
        with self.changed:
            for thing in things:
                key = _key(thing)
                self.version += 1
                thing["metadata"]["resourceVersion"] = str(self.version)
                kind = "MODIFIED" if key in self.objects[path] else "ADDED"
                self.objects[path][key] = thing
                self.events.append(Event(self.version, path, kind, thing))
            self.changed.notify_all()

    def remove(self, *names: str, namespace: str = "team", path: str = PODS) -> None:
        """Delete objects."""
        with self.changed:
            for name in names:
                thing = self.objects[path].pop(("" if path == "slices" else namespace, name))
                self.version += 1
                gone = {**thing, "metadata": {**thing["metadata"], "resourceVersion": str(self.version)}}
                self.events.append(Event(self.version, path, "DELETED", gone))
            self.changed.notify_all()

    def silently(self, *things: Json, path: str = PODS) -> None:
        """Change objects without an event, as when the events are lost."""
        with self.changed:
            for thing in things:
                self.objects[path][_key(thing)] = thing

    def bookmark(self, path: str = PODS) -> None:
        """Tell every watch how far things have come."""
        with self.changed:
            self.version += 1
            thing = {"kind": "Bookmark", "metadata": {"resourceVersion": str(self.version)}}
            self.events.append(Event(self.version, path, "BOOKMARK", thing))
            self.changed.notify_all()

    def forget(self) -> None:
        """Forget all versions so far: a watch from one of them is refused with 410."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.events.clear()

    def end_watches(self, *, breaks: bool = False) -> None:
        """End every watch that is open, properly or by cutting the connection."""
        with self.changed:
            self.breaks = breaks
            self.generation += 1
            self.changed.notify_all()

    def renew_token(self, token: str) -> None:
        """Accept another token from now on, and put it where the pod finds it."""
        self.token = token
        (self.folder / "token").write_text(token)

    def hang(self) -> None:
        """Take requests and do not answer them until `let_go`."""
        self.open.clear()

    def let_go(self) -> None:
        """Answer again."""
        with self.changed:
            self.drips = ""
            self.changed.notify_all()
        self.open.set()

    def requests(self, path: str = PODS, *, watches: bool | None = None) -> list[Asked]:
        """List what was asked so far."""
        with self.changed:
            found = [asked for asked in self.asked if asked.path == path]
        return [asked for asked in found if watches is None or asked.is_watch is watches]

    def is_watched(self, times: int = 1) -> None:
        """Wait until so many watches are open."""
        until(lambda: self.watching == times, f"{times} watches")


def _key(thing: Json) -> tuple[str, str]:
    return thing["metadata"].get("namespace", ""), thing["metadata"]["name"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # the name is the library's
        fake: ApiServer = self.server.fake  # type: ignore[attr-defined]
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        fake.open.wait(LIMIT)
        status, answer = self._answer(fake, url.path, query)
        with fake.changed:
            fake.asked.append(Asked(url.path, query, self.headers.get("Accept", ""), status))
            fake.changed.notify_all()
        if fake.drips:
            self._drip(fake, b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n", has_head=fake.drips == "body")
        elif answer is None:
            self._watch(fake, url.path, query)
        else:
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def _drip(self, fake: ApiServer, head: bytes, *, has_head: bool) -> None:
        with fake.changed, contextlib.suppress(OSError):  # whoever asked has gone
            self.wfile.write(head + (b"\r\n" if has_head else b"X-Name: "))
            while fake.drips:
                self.wfile.write(b"x")
                fake.changed.wait(0.02)
        self.close_connection = True

    def _answer(self, fake: ApiServer, path: str, query: Mapping[str, str]) -> tuple[int, Json | None]:
        """Say what is answered; None for a watch."""
        if self.headers.get("Authorization") != f"Bearer {fake.token}":
            return 401, _status(401, f"Unauthorized: {self.headers}" if fake.echoes else "Unauthorized")
        is_watch = query.get("watch") == "true"
        named = CONFIGMAPS.fullmatch(path)
        verb = "watch" if is_watch else "get" if named and named[2] else "list"
        if verb in fake.forbidden or path in fake.forbidden:
            return 403, _status(403, f'{path} is forbidden: User "system:x" cannot {verb} resource')
        if named and named[2]:
            with fake.changed:
                thing = fake.objects["configmaps"].get((named[1], named[2]))
            return (200, thing) if thing else (404, _status(404, f'configmaps "{named[2]}" not found'))
        if self._collection(fake, path) is None:
            return self._group(fake, path)
        return self._start_of_watch(fake, query) if is_watch else self._list(fake, path, query)

    def _start_of_watch(self, fake: ApiServer, query: Mapping[str, str]) -> tuple[int, Json | None]:
        with fake.changed:
            if int(query.get("resourceVersion", fake.oldest)) < fake.oldest and not fake.gone_in_stream:
                return 410, _status(410, "too old resource version")
        return 200, None

    def _group(self, fake: ApiServer, path: str) -> tuple[int, Json]:
        if path == GROUP and fake.versions:
            return 200, {"versions": [{"groupVersion": f"x/{one}", "version": one} for one in fake.versions]}
        return 404, _status(404, "the server could not find the requested resource")

    def _collection(self, fake: ApiServer, path: str) -> str | None:
        if path == PODS:
            return PODS
        if CONFIGMAPS.fullmatch(path):
            return "configmaps"
        group, _, rest = path.rpartition("/")
        return "slices" if rest == "resourceslices" and group in {f"{GROUP}/{v}" for v in fake.versions} else None

    def _list(self, fake: ApiServer, path: str, query: Mapping[str, str]) -> tuple[int, Json]:
        begin = int(query.get("continue", "0").partition(":")[0])
        most = min(int(query.get("limit", "1000000")), fake.page)
        with fake.changed:
            if "continue" in query and int(query["continue"].partition(":")[2]) < fake.oldest:
                return 410, _status(410, "the continue token is too old")
            things = [one for _, one in sorted(fake.objects[self._collection(fake, path) or ""].items())]
            chosen = [one for one in things if _is_selected(one, query.get("fieldSelector", ""))]
            meta = {"resourceVersion": str(fake.version)}
            if begin + most < len(chosen):
                meta["continue"] = f"{begin + most}:{fake.version}"
            items = [self._form(fake, path, one) for one in chosen[begin : begin + most]]
            return 200, {"kind": "List", "metadata": meta, "items": items}

    def _form(self, fake: ApiServer, path: str, thing: Json) -> Json:
        """Give an object in the form that was asked for, and that this version of the API has."""
        if fake.partial and "as=PartialObjectMetadata" in self.headers.get("Accept", ""):
            return {"kind": "PartialObjectMetadata", "metadata": thing["metadata"]}
        if "/v1beta1/" not in path or "spec" not in thing:
            return thing
        devices = [
            {"name": device["name"], "basic": {name: part for name, part in device.items() if name != "name"}}
            for device in thing["spec"]["devices"]
        ]
        return {**thing, "spec": {**thing["spec"], "devices": devices}}

    def _watch(self, fake: ApiServer, path: str, query: Mapping[str, str]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        with fake.changed:
            fake.watching += 1
            generation = fake.generation
        try:
            for event in self._events(fake, path, query, generation):
                content = json.dumps(event).encode() + b"\n"
                half = len(content) // 2  # an event may come in pieces
                for piece in (content[:half], content[half:]):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.flush()
            if not fake.breaks:
                self.wfile.write(b"0\r\n\r\n")
        except OSError:
            pass  # whoever watched has gone
        finally:
            self.close_connection = True
            with fake.changed:
                fake.watching -= 1

    def _events(self, fake: ApiServer, path: str, query: Mapping[str, str], generation: int) -> Iterator[Json]:
        if fake.ends_at_once:
            return
        collection, seen = self._collection(fake, path) or "", int(query.get("resourceVersion", fake.version))
        if "resourceVersion" not in query:  # such a watch begins with everything as it is
            with fake.changed:
                seen, there = fake.version, list(fake.objects[collection].values())
            selector = query.get("fieldSelector", "")
            yield from ({"type": "ADDED", "object": thing} for thing in there if _is_selected(thing, selector))
        while True:
            with fake.changed:
                if seen < fake.oldest:
                    yield {"type": "ERROR", "object": _status(410, "too old resource version")}
                    return
                fresh = [event for event in fake.events if event.version > seen and event.path == collection]
                if fake.generation != generation and (not fresh or fake.breaks):
                    return
                if not fresh:
                    fake.changed.wait(LIMIT)
            for event in fresh:
                seen = event.version
                is_mark = event.kind == "BOOKMARK"
                if is_mark or _is_selected(event.thing, query.get("fieldSelector", "")):
                    yield {
                        "type": event.kind,
                        "object": event.thing if is_mark else self._form(fake, path, event.thing),
                    }

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing."""


def _is_selected(thing: Json, selector: str) -> bool:
    """Apply a field selector; one that names another field than a real server knows is a mistake of the client's."""
    for part in filter(None, selector.split(",")):
        name, _, wanted = part.partition("=")
        assert name in {"spec.nodeName", "spec.driver", "metadata.name"}, selector
        section, _, key = name.partition(".")
        if thing[section].get(key) != wanted:
            return False
    return True


def _status(code: int, message: str) -> Json:
    return {"kind": "Status", "status": "Failure", "message": message, "code": code}
