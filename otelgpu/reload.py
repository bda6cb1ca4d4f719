"""Other settings without a restart: read again, build what they want, swap it in once it has a page to show.

Rule 1: whoever serves goes on until the new one has made its first sweep. What is wrong with the new settings is
        logged, and the last good ones stay in force.
Rule 2: one reload at a time, in the thread that asked for it; what is asked for meanwhile is one more at the end.
Rule 3: what cannot change while running (NEEDS_RESTART) keeps its value, and is named; the rest is applied.
Rule 4: the end waits for no reload: what is being built then is never swapped in, nor is it told of.
Rule 5: what is read beside the settings has its own good and bad: it keeps them from nothing, and says so itself.
"""

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from msgspec.structs import replace
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from otelgpu.config import Config
from otelgpu.config.given import Files, outdated
from otelgpu.errors import ConfigError, OtelgpuError

logger = logging.getLogger(__name__)

NEEDS_RESTART = (
    "source",
    "driver_root",
    "dcgm.address",
    "dcgm.library",
    "simulated.seed",
    "suspended.wake",
    "suspended.sys_root",
    "server.listen",
    "server.systemd_socket",
    "server.reload_interval",
    "server.web_config",
    "sampling.isolate",
    "kubernetes.configmap",
)


@dataclass(frozen=True, slots=True)
class Rereading:
    """How the settings are read again. `read` raises ConfigError and fills `files`, also then.

    `settled` is called when settings are good, and about to be in force. `hooks` read something else again, before the
    settings, and raise OtelgpuError where they keep what they had. Each of `causes` is told how a reload is caused,
    once there may be one. `beside` names what was read that is no file.
    """

    read: Callable[[], Config]
    files: Files
    settled: Callable[[Config], None] = lambda _: None
    hooks: list[Callable[[], None]] = field(default_factory=list)
    causes: Sequence[Callable[[Callable[[], None]], None]] = ()
    beside: Callable[[], Files] = dict

    def read_from(self) -> Files:
        """Name all that the settings were last read from, and what tells its content from another."""
        return {**self.files, **self.beside()}


@dataclass(slots=True)
class LastReload:
    """How the last reload went, the start included; `files` are those of the settings in force."""

    is_good: bool = True
    good_unix: float = 0.0
    files: Mapping[str, str] = field(default_factory=dict)

    def succeeded(self, files: Files) -> None:
        """Note that settings are in force which were read from these files."""
        self.is_good, self.good_unix, self.files = True, time.time(), dict(files)


if TYPE_CHECKING:  # a Protocol weighs ten kilobytes, and this is of use to the type checker alone
    from otelgpu.server.notify import Notify
    from otelgpu.watch import Watch

    class Running(Protocol):
        """What is built of the settings: the pipeline."""

        @property
        def config(self) -> Config:
            """The settings it was built of."""

        def take_over(self) -> None:
            """Go on with the driver of the one before; block until there is a page, or nearly so."""

        def go_on(self) -> None:
            """Push in the place of the one before, and end the rest of that one."""

        def stop(self, timeout: float) -> bool:
            """End everything."""


R = TypeVar("R", bound="Running")
S = TypeVar("S")


class Reload(Generic[R, S]):
    """Holds what runs, and its site. *build* makes another one of settings, and *swap* a site of it.

    The *manager* hears of the begin and the end of each reload.
    """

    def __init__(
        self,
        running: R,
        site: S,
        rereading: Rereading,
        *,
        build: Callable[[Config, R], R],
        swap: Callable[[R, S], S],
        last: LastReload,
        manager: "Notify | None" = None,
    ) -> None:
        self._running = running
        self._site = site
        self._rereading = rereading
        self._build = build
        self._swap = swap
        self._last = last
        self._manager = manager
        self._lock = threading.Lock()
        self._is_asked = self._is_busy = self._is_stopped = False
        self._watch: Watch | None = None
        self._tls_files = running.config.tls_files  # of the last settings that were read, good or not

    def site(self) -> S:
        """Give what is served just now."""
        return self._site

    def reload(self) -> None:
        """Read everything again and go over to it. Blocks; while a reload is under way it asks for another, at once."""
        with self._lock:
            self._is_asked = True
            if self._is_busy:
                return
            self._is_busy = True
        while self._is_turn():
            if self._manager is not None:
                self._manager.reloading()
            beside = [problem for hook in self._rereading.hooks for problem in _problems_of(hook)]
            problems = _problems_of(self._again)
            if self._is_stopped:
                return  # who it was done for has gone, and what came of it with him
            for problem in beside + problems:
                logger.error("%s", problem)
            if problems:
                self._last.is_good = False
                beside = ["the settings are wrong; those before stay in force"]
                logger.error("not reloaded: %s", *beside)
            else:
                self._last.succeeded(self._rereading.read_from())
                logger.info("reloaded")
            gc.collect()  # what was swapped out holds itself, and weighs some megabytes
            if self._manager is not None:
                self._manager.ready(*beside[:1])

    def watched(self, interval: float | None) -> Callable[[], None]:
        """Begin to look whether what is read has changed, each *interval* seconds; give what SIGHUP is to cause."""
        if interval is None or not self._watched():
            return self.reload
        from otelgpu.watch import Watch  # here: without a file there is nothing to watch

        self._watch = Watch(self._watched, self.reload, interval)
        self._watch.start(outdated(self._rereading.files))  # what was swapped while this began would never be read
        return self._watch.read

    def stop(self, timeout: float) -> bool:
        """End what runs; no reload changes anything any more. See Running.stop."""
        with self._lock:
            self._is_stopped = True
        if self._watch is not None:
            self._watch.stop()
        return self._running.stop(timeout)

    def _watched(self) -> Sequence[str]:
        """Name every file whose change causes a reload: also those of TLS, which a sender reads when it is made.

        Where settings are wrong because such a file is not good yet, they are good when it is.
        """
        return (*self._rereading.files, *self._running.config.tls_files, *self._tls_files)

    def _is_turn(self) -> bool:
        with self._lock:
            is_turn = self._is_asked and not self._is_stopped
            self._is_busy, self._is_asked = is_turn, False
            return is_turn

    def _again(self) -> None:
        before = self._running
        config = _kept(before.config, self._rereading.read())
        self._tls_files = config.tls_files
        if self._watch is not None:
            self._watch.note()
        running = self._build(config, before)
        self._rereading.settled(config)  # before the driver is asked: whoever asks it is told what is to be logged
        running.take_over()
        with self._lock:
            if self._is_stopped:
                return
            self._running, self._site = running, self._swap(running, self._site)
        running.go_on()


def _problems_of(step: Callable[[], None]) -> list[str]:
    """Take a step; say line by line what was wrong."""
    try:
        step()
    except ConfigError as error:
        return list(error.problems)
    except OtelgpuError as error:
        return str(error).splitlines()
    except Exception as error:
        logger.exception("a reload failed in an unforeseen way")
        return [f"internal error: {error!r}"]
    return []


def _kept(before: Config, config: Config) -> Config:
    """Leave what needs a restart as it was, and say so."""
    for key in NEEDS_RESTART:
        section, _, name = key.rpartition(".")
        was, is_now = (getattr(getattr(each, section) if section else each, name) for each in (before, config))
        if was != is_now:
            logger.warning("%s: %s needs a restart; the rest is applied", config.origin(key), key)
            changed = replace(getattr(config, section), **{name: was}) if section else was
            config = replace(config, **{section or name: changed})
    return config


def create_reload_instruments(meter: Meter, last: LastReload | None) -> None:
    """Register what is said about reloads; nothing where there are none."""
    if last is None:
        return

    def gauge(name: str, unit: str, description: str, report: Callable[[LastReload], Iterable[Observation]]) -> None:
        def callback(_: CallbackOptions) -> Iterable[Observation]:
            return report(last)

        meter.create_observable_gauge(name, callbacks=[callback], unit=unit, description=description)

    gauge(
        "otelgpu.config_info",
        "",
        "The files that the settings in force were read from, and the first digits of their SHA-256; always 1.",
        lambda state: [Observation(1, {"source": path, "hash": hash_}) for path, hash_ in state.files.items()],
    )
    gauge(
        "otelgpu.config.last_reload_successful",
        "",
        "Whether the settings were good when they were last read: 1 or 0.",
        lambda state: [Observation(int(state.is_good))],
    )
    gauge(
        "otelgpu.config.last_reload_success_timestamp",
        "s",
        "Since when the settings have been in force (Unix time).",
        lambda state: [Observation(state.good_unix)],
    )
