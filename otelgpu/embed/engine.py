"""What answers the collections of one observation: the sampler, built at the first of them.

Rule 1: built late: the environment is read and threads are started when somebody wants numbers. A fork before that
        costs nothing, and one after it gives the child an engine of its own.
Rule 2: nothing here raises into a collection; what cannot be had is no snapshot.
Rule 3: the driver is asked only for a collection: no pace, no attempts of its own accord.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from otelgpu.config import Config
from otelgpu.embed.once import HostLock
from otelgpu.embed.visible import CUDA, NVIDIA, VisibleSource, visible
from otelgpu.export.status import STATUS_FIELDS
from otelgpu.fields import Field
from otelgpu.model import Device, Snapshot
from otelgpu.sampler import Sampler
from otelgpu.sources import Source
from otelgpu.sources.choice import Choice, make_source, warn_unreadable
from otelgpu.terms import Pace
from otelgpu.views import View

logger = logging.getLogger(__name__)

STOP = 5.0  # seconds that `stop` may take
# Held while an engine is built, which imports modules, and over a fork: a child that is made in between would wait for
# ever for the lock of a module that a thread of its parent was importing.
BUILDING = threading.RLock()
SHARE = 0.5  # of the time that the SDK gives a callback: the rest is for everybody else's


class Engine:
    """Gives snapshots to collections. *is_once*: only while this process holds the lock of the host.

    *also*: fields that are read, beyond *fields*, and of which it is no matter when nothing can read them.
    """

    def __init__(
        self,
        config: Config,
        fields: Sequence[Field],
        environ: Mapping[str, str],
        *,
        is_once: bool,
        also: Sequence[Field] = (),
    ) -> None:
        self._config = config
        self._fields = fields
        self._also = also
        self._environ = environ
        self._is_once = is_once
        self._lock = threading.Lock()
        self._sampler: Sampler | None = None
        self._host_lock: HostLock | None = None
        self._pid = os.getpid()
        self._is_over = False
        self._has_looked = False
        self._shows: Callable[[Device], bool] = lambda _: True

    def snapshot(self, timeout: float) -> Snapshot | None:
        """Give a snapshot to show, asking the driver where there is none young enough; None when there is none.

        Blocks at most for the deadline, and never for longer than its share of *timeout* seconds.
        """
        try:
            sampler = self._running()
        except Exception:  # the top of our code in the host's thread; logged once, since the engine is over then
            logger.exception("GPUs cannot be observed; there will be no hw.* series")
            self.stop()
            return None
        if sampler is None:
            return None
        snapshot = sampler.refresh(timeout * SHARE)
        if snapshot is None or time.monotonic() - snapshot.at > self._config.sampling.expire_after:
            return None
        if not self._has_looked:
            self._has_looked = True
            if snapshot.source_up and not snapshot.states:
                logger.warning("no GPU is there to be observed; there will be no hw.* series")
        return snapshot

    def shows(self, device: Device) -> bool:
        """Whether this process may see a device; of a GPU that it may not see an instance may be visible."""
        return self._shows(device)

    def stop(self) -> bool:
        """End the threads and let go of the driver and the lock, within STOP seconds. Safe to call twice.

        False while a driver call is under way: its thread ends when it returns, and another `stop` lets the driver go.
        """
        if self._pid != os.getpid():
            return True  # all that it has, and its locks, stayed with the parent
        with self._lock:
            self._is_over = True
            sampler, self._sampler = self._sampler, None
            host_lock, self._host_lock = self._host_lock, None
        if host_lock is not None:
            host_lock.release()
        if sampler is None or sampler.stop(STOP):
            return True
        logger.warning("a driver call is still under way; its thread ends when it returns")
        self._sampler = sampler
        return False

    def renewed(self) -> "Engine":
        """Make the engine of a child process after a fork. This one's threads and locks stayed with the parent."""
        if self._host_lock is not None:
            self._host_lock.release()
        return Engine(self._config, self._fields, self._environ, is_once=self._is_once, also=self._also)

    def _running(self) -> Sampler | None:
        with self._lock:
            if self._is_over:
                return None
            if self._sampler is None and self._may_report():
                with BUILDING:
                    sampler = self._built()
                try:
                    sampler.start()
                except RuntimeError as error:  # Python 3.12 and newer start no thread once the process is ending
                    logger.debug("no thread can be started any more: %s", error)
                    self._is_over = True
                    return None
                self._sampler = sampler
            return self._sampler

    def _may_report(self) -> bool:
        if not self._is_once:
            return True
        if self._host_lock is None:
            self._host_lock = HostLock(self._scope(), self._environ)
        return self._host_lock.take()

    def _scope(self) -> str:
        """Say which GPUs this process reports, where that is not all of them."""
        picks = self._config.devices
        parts = [] if picks == Config().devices else [str(pick) for pick in picks]
        if self._config.embed.only_visible:
            parts += [f"{name}={self._environ[name]}" for name in (CUDA, NVIDIA) if name in self._environ]
        return " ".join(parts)

    def _built(self) -> Sampler:
        config = self._config
        source = self._source()
        is_chosen: Callable[[Device], bool] = Choice(config)
        seen = visible(self._environ) if config.embed.only_visible else None
        if seen is not None:
            source = narrowed = VisibleSource(source, seen, is_chosen, STATUS_FIELDS)
            is_chosen, self._shows = narrowed.is_chosen, narrowed.shows
        return Sampler(
            source,
            (*self._fields, *self._also),
            pace=Pace(config.sampling.reuse, config.sampling.deadline, insists=False),
            chosen=is_chosen,
            view=View(config.devices, repeat=config.mig.parent_values == "repeat"),
        )

    def _source(self) -> Source:
        source, readable = make_source(self._config, (*self._fields, *self._also))
        warn_unreadable(self._config, self._fields, readable)
        return source
