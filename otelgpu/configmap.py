"""Fields from a ConfigMap: its key `metrics` holds the CSV file, as dcgm-exporter's `-m NAMESPACE:NAME` has it.

Rule 1: at start it is waited for a moment. Where it cannot be had, the fields of the settings are shown, with one
        warning, and it is asked for until it is there. dcgm-exporter would end, with every GPU of the node unseen.
Rule 2: a wrong row is what it is in a file: an error, with `lenient` a warning. Later what was good stays.
Rule 3: dcgm-exporter's role allows to `get` this one object, no more. So it is asked for by its name, and then followed
        by a watch where that is allowed; where not it is asked for again each minute.
Rule 4: each text that is new causes a reload, in the thread that asks; the reload judges it with all else.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from otelgpu.attribution.apiobjects import Event, decoded
from otelgpu.attribution.apiserver import FORBIDDEN, Api, ApiError
from otelgpu.attribution.follower import Follower
from otelgpu.config import Config
from otelgpu.config.counters import merged, parse
from otelgpu.config.given import Files, digest
from otelgpu.config.listed import ConfigMapName, Remark
from otelgpu.config.load import finished
from otelgpu.errors import ConfigError
from otelgpu.pause import apart

logger = logging.getLogger(__name__)

KEY = "metrics"
PATIENCE = 5.0  # seconds at start
AGAIN = 60.0  # seconds until it is asked for again where no watch is allowed
LASTED = 5.0  # seconds after which a watch has been one
STOP = 1.0  # seconds


class _Meta(msgspec.Struct):
    name: str = ""


class _ConfigMap(msgspec.Struct):
    metadata: _Meta
    data: dict[str, str] | None = None


class ConfigMap:
    """Follows one ConfigMap in a thread of its own. `changed` is called in it for each text after the first look."""

    def __init__(self, name: ConfigMapName, api: Api) -> None:
        self._name = name
        self._path = f"/api/v1/namespaces/{name.namespace}/configmaps"
        self._api = api
        self.changed: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._text: str | None = None
        self._problem: str | None = None
        self._is_settled = False  # the start has taken what there was
        self._follower = Follower("otelgpu-configmap", api, step=self._step, failed=lambda error: self._say(str(error)))

    def first(self, patience: float) -> tuple[str | None, str]:
        """Start, and give the text; or None and why there is none after *patience* seconds. To be called once."""
        self._follower.start()
        self._follower.looked(patience)
        with self._lock:
            self._is_settled = True
            return self._text, self._problem or f"no answer within {patience:g} s"

    @property
    def name(self) -> ConfigMapName:
        """What is followed."""
        return self._name

    @property
    def text(self) -> str | None:
        """The newest text; None where there has been none."""
        return self._text

    def stop(self, timeout: float) -> bool:
        """End the question under way and the thread; False when it did not end in time."""
        return self._follower.stop(timeout)

    def _step(self) -> float:
        """Ask for the ConfigMap, then watch it until the server ends that; return the seconds until it is asked for."""
        self._take(decoded(self._api.get(f"{self._path}/{self._name.name}"), _ConfigMap))
        self._follower.has_looked()
        began_at = time.monotonic()
        query = {"fieldSelector": f"metadata.name={self._name.name}"}  # no version: begins with the object as it is
        try:
            for line in self._api.watch(self._path, query):
                event = decoded(line, Event)
                if event.type == "DELETED":
                    self._say("it was deleted")
                elif event.type in {"ADDED", "MODIFIED"}:
                    self._take(decoded(event.object, _ConfigMap))
        except ApiError as error:
            if error.status == FORBIDDEN:
                return apart(AGAIN, random.random)
            if error.status:
                raise
        if time.monotonic() - began_at >= LASTED:
            self._follower.pause.forget()
        # It ended, by an event of an error too, or was cut: no fault; the next look tells if there is one.
        return self._follower.pause.take()

    def _take(self, seen: _ConfigMap) -> None:
        text = (seen.data or {}).get(KEY)
        if text is None:
            keys = ", ".join(sorted(seen.data or {})) or "nothing"
            self._say(f"it has no key {KEY}, but {keys[:200]}")
            return
        self._say(None)
        with self._lock:
            is_news = self._is_settled and text != self._text
            self._text = text
        if is_news:
            self.changed()

    def _say(self, problem: str | None) -> bool:
        """Log what is wrong, or that nothing is any more, when that is news; what is wrong at start `first` tells."""
        with self._lock:
            if problem == self._problem or self._follower.is_stopped:
                return False
            self._problem = problem
            is_told = self._is_settled
        if is_told and problem is None:
            logger.info("ConfigMap %s is there again", self._name)
        elif is_told:
            logger.warning("ConfigMap %s: %s; the fields stay as they are", self._name, problem)
        return True


def with_fields(config: Config, text: str) -> Config:
    """Return the settings with the fields that the *text* of their ConfigMap names, and what there is to remark.

    Raise ConfigError with every wrong row (unless they are `lenient`), or where there is no row.
    """
    name = f"ConfigMap {config.kubernetes.configmap}"
    parsed = parse(text.encode("utf-8", "replace"), name)
    remarks = list(parsed.remarks)
    if parsed.problems and not config.lenient:
        raise ConfigError(finished(parsed.problems))
    remarks += [Remark(f"{problem.finished(hint=True)}; the row is passed over") for problem in parsed.problems]
    counters = merged(parsed.rows, remarks)
    if not counters:
        raise ConfigError([f"{name}: its key {KEY} names no field"])
    known = {"fields": ("none",), "counters": counters, "skipped_rows": len(parsed.bad)}
    return replace(config, **known, remarks=(*config.remarks, *remarks))


class ConfigMapFields:
    """The fields that a ConfigMap names: always those of its newest text."""

    def __init__(self, configmap: ConfigMap) -> None:
        self._configmap = configmap
        self._applied: str | None = None

    def tell(self, changed: Callable[[], None]) -> None:
        """Have *changed* called when other fields are named, in the thread that asks for the ConfigMap.

        What changed before anybody was told is told at once, in a thread of its own.
        """
        self._configmap.changed = changed
        if self._configmap.text != self._applied:
            threading.Thread(target=changed, name="otelgpu-configmap-late", daemon=True).start()

    def applied(self, config: Config) -> Config:
        """Return the settings with these fields; as they are where the ConfigMap was never there. Raise ConfigError."""
        text = self._applied = self._configmap.text
        return config if text is None else with_fields(config, text)

    def read_from(self) -> Files:
        """Name the ConfigMap, where it was there, with what tells its text from another."""
        text = self._applied
        return {} if text is None else {str(self._configmap.name): digest(text.encode("utf-8", "replace"))}


@contextmanager
def followed(config: Config, environ: Mapping[str, str]) -> Iterator[ConfigMapFields | None]:
    """Give the fields of the ConfigMap that the settings name, and follow it; None where they name none.

    Raise ConfigError at start.
    """
    name = config.kubernetes.configmap
    if name is None:
        yield None
        return

    configmap = ConfigMap(name, Api(environ, config.kubernetes.service_account))
    try:
        text, why = configmap.first(PATIENCE)
        if text is None:
            shown = ",".join(config.fields)
            logger.warning("ConfigMap %s: %s; until it is there, these fields are shown: %s", name, why, shown)
        fields = ConfigMapFields(configmap)
        fields.applied(config)
        yield fields
    finally:
        configmap.stop(STOP)
