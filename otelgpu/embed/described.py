"""The provider that OpenTelemetry's declarative configuration file (OTEL_CONFIG_FILE) describes, with our instruments.

Rule 1: the file decides where to and how often; what the GPUs say comes from the sampler of the service, so that the
        page and whatever the file describes show one sweep.
Rule 2: what the file makes belongs to it: its threads are given time to flush, and are left when they take more.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable

from opentelemetry.metrics import get_meter_provider

from otelgpu.config.standard import DESCRIPTION
from otelgpu.config.words import one_line
from otelgpu.embed.engine import SHARE
from otelgpu.embed.registration import Registration, Session
from otelgpu.errors import ConfigError
from otelgpu.fields import Field
from otelgpu.model import Device, Snapshot
from otelgpu.sampler import Sampler

logger = logging.getLogger(__name__)


class Shared:
    """Answers collections from a sampler that somebody else starts and stops."""

    def __init__(self, sampler: Sampler, is_fresh: Callable[[Snapshot], bool]) -> None:
        self._sampler = sampler
        self._is_fresh = is_fresh

    def snapshot(self, timeout: float) -> Snapshot | None:
        """Give a snapshot to show; see Engine."""
        snapshot = self._sampler.refresh(timeout * SHARE)
        return snapshot if snapshot is not None and self._is_fresh(snapshot) else None

    def shows(self, device: Device) -> bool:  # noqa: ARG002 - of the protocol
        """Every device that the service looks at."""
        return True

    def renewed(self) -> "Shared":
        """A service does not fork."""
        return self

    def stop(self) -> bool:
        """Nothing is held."""
        return True


class Described:
    """The provider of one file. Raise ConfigError, from the start, for a file that the SDK does not take."""

    def __init__(
        self, path: str, fields: Iterable[Field], sampler: Sampler, is_fresh: Callable[[Snapshot], bool]
    ) -> None:
        configure(path)
        self._provider = get_meter_provider()
        self._registration = Registration()
        self._session = Session(Shared(sampler, is_fresh), fields)
        self._registration.create(self._provider, self._session)

    def start(self) -> None:
        """Answer collections from now on."""
        self._registration.session = self._session

    def stop(self, timeout: float) -> bool:
        """Let the provider flush and end; False when it takes longer than *timeout* seconds."""
        shutdown = getattr(self._provider, "shutdown", None)
        if shutdown is None:
            return True
        ends = time.monotonic() + timeout
        thread = threading.Thread(target=_shut, args=(shutdown, timeout), name="otelgpu-described", daemon=True)
        thread.start()
        thread.join(max(ends - time.monotonic(), 0))
        self._registration.session = None
        return not thread.is_alive()


def configure(path: str) -> None:
    """Set up the SDK as the file says."""
    try:
        from opentelemetry.configuration import configure_sdk, load_config_file
    except ImportError as error:
        needs = "needs a package that is not installed: pip install 'otelgpu[configuration]'"
        raise ConfigError([f"{DESCRIPTION}: {needs} ({error})"]) from error
    place = f"{DESCRIPTION}: {path}"
    loader = logging.getLogger("opentelemetry.configuration.file")
    level = loader.level
    loader.setLevel(logging.CRITICAL + 1)  # what it raises it logs too, with a traceback
    try:
        description = load_config_file(path)
    except Exception as error:
        raise ConfigError([f"{place}: {_sentence(error)}"]) from error
    finally:
        loader.setLevel(level)
    try:
        configure_sdk(description)
    except ConfigError as error:  # of our own parts, which the file may name
        raise ConfigError([f"{place}: {problem}" for problem in error.problems]) from error
    except Exception as error:
        raise ConfigError([f"{place}: {_sentence(error)}"]) from error


def _sentence(error: Exception) -> str:
    """Say in one line what the SDK, or somebody's plugin, has raised: a ConfigurationError, or whatever it may be."""
    return one_line(" ".join(str(error).split())) or type(error).__name__


def _shut(shutdown: Callable[..., object], timeout: float) -> None:
    try:
        shutdown(timeout_millis=timeout * 1000)
    except Exception as error:  # noqa: BLE001 - the SDK raises plain Exceptions for readers that did not end in time
        logger.warning("the provider of %s did not end cleanly: %s", DESCRIPTION, error)
