"""What a CSV file says of a field, the ConfigMap that may hold one, and what is to be logged about settings.

Rule 1: plain values, that the structs of the settings can hold; counters.py makes rows.
"""

import logging
import re
from dataclasses import dataclass
from typing import NamedTuple

LABEL = "label"
NONE = "none"
# What Kubernetes takes for names: a label of DNS, and one or more of them with dots between.
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Counter:
    """One row: the field by its id, the name it is shown by ("" where a number was written), type and help."""

    field: int
    spelling: str
    name: str
    kind: str
    help: str
    place: str  # "metrics.csv:7"
    line: int


class Remark(NamedTuple):
    """Something to log once, at a level of `logging`: no mistake, but not to be passed over in silence."""

    text: str
    level: int = logging.WARNING


class ConfigMapName(NamedTuple):
    """Which ConfigMap; shows itself as the text that makes it."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}:{self.name}"


def parse_configmap(text: str) -> ConfigMapName | None:
    """Read NAMESPACE:NAME; `none` is no ConfigMap."""
    if text == NONE:
        return None
    namespace, _, name = text.partition(":")
    if not _NAMESPACE.fullmatch(namespace) or not _NAME.fullmatch(name):
        raise ValueError("expected NAMESPACE:NAME of a ConfigMap, or none")
    return ConfigMapName(namespace, name)
