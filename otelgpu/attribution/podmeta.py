"""What the API server knows of the pods on this node, and the kubelet does not tell: their UIDs and labels.

Rule 1: only what is wanted is kept, and only of this node's pods; without the node's name nothing is asked, for the
        answer would be the pods of the whole cluster.
Rule 2: only metadata is asked for: a pod without its spec and status is a tenth of the size.
Rule 3: of a pod that has more labels than anybody means to see the first by the alphabet are kept: whoever may make a
        pod could make thousands, and each of them would stand on every series of a GPU.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

import msgspec

from otelgpu.attribution.apiserver import Api, ApiError
from otelgpu.model import Attributes

MOST_LABELS = 64  # of a pod, of those that are let through
_NODE = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
# Servers that do not know the form in the middle give the whole objects, which are read just the same.
_PARTIAL = "application/json;as=%s;g=meta.k8s.io;v=v1,application/json"

PodKey: TypeAlias = tuple[str, str]  # namespace and name


class PodMeta(NamedTuple):
    """The UID of a pod ("" when it is not wanted) and those of its labels that are wanted, by key.

    `left_out` counts the wanted ones that are not kept, as there are too many.
    """

    uid: str = ""
    labels: Attributes = ()
    left_out: int = 0


PodMetaTable: TypeAlias = Mapping[PodKey, PodMeta]


class _Meta(msgspec.Struct):
    name: str
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None


class _Pod(msgspec.Struct):
    metadata: _Meta


class PodListing:
    """The pods of *node*: see Listing. *allow* are regular expressions, one of which has to find something in a key."""

    name = "pods"
    what = "the UIDs and labels of pods"
    accept_list = _PARTIAL % "PartialObjectMetadataList"
    accept_watch = _PARTIAL % "PartialObjectMetadata"

    def __init__(self, node: str, *, uids: bool, labels: bool, allow: Iterable[str] = ()) -> None:
        self._node = node
        self._uids = uids
        self._labels = labels
        self._allow = tuple(re.compile(pattern) for pattern in allow)

    def path(self, _: Api) -> str:
        """Give the one path there is."""
        return "/api/v1/pods"

    def query(self) -> dict[str, str]:
        """Narrow the list down to this node."""
        return {"fieldSelector": f"spec.nodeName={checked_node(self._node)}"}

    def read(self, raw: bytes | msgspec.Raw) -> tuple[PodKey, PodMeta]:
        """Read one pod."""
        meta = msgspec.json.decode(raw, type=_Pod).metadata
        labels = (meta.labels or {}) if self._labels else {}
        kept = tuple(sorted((key, text) for key, text in labels.items() if self._is_allowed(key)))
        left_out = max(len(kept) - MOST_LABELS, 0)
        return (meta.namespace, meta.name), PodMeta(meta.uid if self._uids else "", kept[:MOST_LABELS], left_out)

    def _is_allowed(self, key: str) -> bool:
        return not self._allow or any(pattern.search(key) for pattern in self._allow)


def labels_left_out(metas: PodMetaTable) -> int:
    """Count the labels of these pods that are not kept."""
    return sum(meta.left_out for meta in metas.values())


def checked_node(name: str) -> str:
    """Return the name of a node that a selector may hold. Raise ApiError for what is none."""
    if not name:
        raise ApiError("the name of this node is not known; set NODE_NAME or kubernetes.node")
    if not _NODE.fullmatch(name):
        raise ApiError("NODE_NAME or kubernetes.node is not the name of a node")
    return name
