"""How bad an event is.

Rule 1: the numbers are OpenTelemetry's severity numbers, the first of each range; the names are its severity texts.
"""

from enum import IntEnum


class Severity(IntEnum):
    """SeverityNumber of the OpenTelemetry log data model."""

    INFO = 9
    WARN = 13
    ERROR = 17
    FATAL = 21
