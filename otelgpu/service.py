"""The exporter as a process: start, serve, go over to other settings, stop.

Rule 1: the main thread runs the loop and never calls the driver, so that signals are always heard.
Rule 2: when the driver holds a thread at the end the process leaves without it: nothing could end it.
"""

import logging
import os
import signal
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from otelgpu.config import Config
from otelgpu.errors import OtelgpuError
from otelgpu.pipeline import PAGE_THREADS, Pipeline
from otelgpu.reload import LastReload, Reload, Rereading
from otelgpu.server.listen import sockets_of
from otelgpu.server.running import Life, Signals, manager_of, serve_until
from otelgpu.server.threads import check_room, ready, share_heap

if TYPE_CHECKING:
    from otelgpu.server.guard import Guard

logger = logging.getLogger(__name__)


def serve(
    config: Config,
    *,
    announce: Callable[[str], None] = lambda _: None,
    environ: MutableMapping[str, str] | None = None,
    rereading: Rereading | None = None,
) -> int:
    """Serve until a signal comes; return the exit code. *announce* is told each address once it is bound.

    *rereading* says how the settings are read again; without it nothing is. Raise StartError or ConfigError. When the
    driver holds a thread at the end the process leaves from here.
    """
    share_heap()
    signals = Signals()
    environ = os.environ if environ is None else environ
    rereading = rereading or Rereading(lambda: config, {})
    last = LastReload()
    last.succeeded(rereading.read_from())
    with ready(PAGE_THREADS, "otelgpu-page") as executor:
        check_room()
        pipeline = Pipeline(config, environ, reloads=last)
        if pipeline.guard is not None:
            rereading.hooks.append(partial(_read_again, pipeline.guard))
        sockets = sockets_of(config, environ)
        manager = manager_of(environ)
        reload = Reload(
            pipeline,
            pipeline.site(executor),
            rereading,
            build=lambda other, before: Pipeline(other, environ, before=before, reloads=last),
            swap=lambda other, before: replace(other.site(executor), load=before.load),
            last=last,
            manager=manager,
        )

        def begin() -> None:
            pipeline.start()
            for cause in rereading.causes:  # after it, because a reload swaps out what has begun
                cause(reload.reload)

        signals.take(signal.SIGHUP, reload.watched(config.server.reload_interval))
        signals.take(signal.SIGUSR1, pipeline.sampler.release)
        signals.take(signal.SIGUSR2, pipeline.sampler.resume)
        life = Life(begin, reload.stop, pipeline.obstacle)
        is_clean = serve_until(signals, reload.site, sockets, life, announce=announce, manager=manager)
        executor.shutdown(wait=is_clean, cancel_futures=True)
    if not is_clean:
        logger.warning("leaving while a driver call is still under way")
        logging.shutdown()
        os._exit(0)
    return 0


def _read_again(guard: "Guard") -> None:
    """Have the web configuration file read again with the settings; a change of its own it sees itself."""
    if guard.reload():  # which has logged what is wrong
        raise OtelgpuError("the web configuration file is wrong; the last good one stays in force")
