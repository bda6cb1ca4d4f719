"""What a pod's own labels are called on dcgm-exporter's page.

Rule 1: names are made as dcgm-exporter makes them: each character that a name may not have becomes "_".
Rule 2: no pod can break the page, or pass for something else: a name that the page or the scrape uses itself, that a
        name may not begin with, or that an earlier label of the pod already has, gets `pod_label_` before it.
Rule 3: a pod's labels get the same names on every page: keys are taken in the order of the alphabet.
"""

import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from functools import lru_cache

from otelgpu.config.values import OWN_LABELS, OWN_PREFIXES
from otelgpu.model import Attributes

PREFIX = "pod_label_"
# Of the scrape: with honor_labels, as is advised, they would go over what Prometheus says of the target.
OF_THE_SCRAPE = frozenset(("instance", "job"))
_STRANGE = re.compile(r"[^A-Za-z0-9_]")


@lru_cache(maxsize=1024)
def shown_pod_labels(labels: Attributes, more: AbstractSet[str] = frozenset()) -> tuple[Attributes, int]:
    """Name the labels of a pod (by key, sorted); *more* are names that are taken too. Also: how many got a prefix."""
    shown: dict[str, str] = {}
    renamed = 0
    for key, text in labels:
        plain = name = _STRANGE.sub("_", key)
        while name in shown or name in more or _is_ours(name):
            name = PREFIX + name
        renamed += name != plain
        shown[name] = text
    return tuple(shown.items()), renamed


def renamed_labels(pods: Iterable[Attributes], more: AbstractSet[str] = frozenset()) -> int:
    """Count the labels of these pods that are shown under another name than their own."""
    return sum(shown_pod_labels(labels, more)[1] for labels in pods)


def _is_ours(name: str) -> bool:
    return name in OWN_LABELS or name in OF_THE_SCRAPE or name.startswith(OWN_PREFIXES) or not name or name[0].isdigit()
