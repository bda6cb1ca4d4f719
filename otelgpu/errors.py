"""The errors that otelgpu raises on purpose.

Rule 1: every error that leaves a module of otelgpu for a foreseeable reason is one of these.
Rule 2: an error carries a finished sentence for the user: what is wrong, where, and what would be right.
"""

from collections.abc import Sequence


class OtelgpuError(Exception):
    """Anything that otelgpu reports to its user in one line, without a traceback."""


class ConfigError(OtelgpuError):
    """One or more settings are wrong; `problems` holds a finished line for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class SourceDownError(OtelgpuError):
    """The driver (or whatever stands in for it) does not answer; asking later may help."""


class StartError(OtelgpuError):
    """The service could not start: a port in use, an address that is not ours."""


class LateError(StartError):
    """The driver did not answer within the deadline."""
