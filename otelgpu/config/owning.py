"""The settings of who uses the GPUs: Kubernetes and job files. See settings.py for the rules."""

import os
import re
from typing import Annotated

from msgspec import Meta, Struct

from otelgpu.config.about import about

KUBELET_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
_LONGEST_SOCKET_PATH = 107  # bytes; sockaddr_un of Linux, less the closing NUL
_RESOURCE_NAME = re.compile(r"[A-Za-z0-9._/*?\[\]!-]+")


def parse_socket(text: str) -> str:
    """Read the path of a unix socket."""
    path = parse_folder(text.removeprefix("unix://"))
    if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
        raise ValueError(f"the path of a unix socket has at most {_LONGEST_SOCKET_PATH} bytes")
    return path


def parse_folder(text: str) -> str:
    """Read a whole path."""
    if not text.startswith("/") or "\0" in text:
        raise ValueError("expected a whole path, which begins with /")
    return text


def parse_resource_name(text: str) -> str:
    """Read the name of a Kubernetes resource, or a pattern of names."""
    if not _RESOURCE_NAME.fullmatch(text):
        raise ValueError("expected the name of a resource (example.com/gpu), or a pattern (example.com/gpu-*)")
    return text


class Kubernetes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The pods that hold GPUs."""

    enabled: Annotated[
        bool,
        about("Ask the kubelet which pod holds which GPU, and label series with it.", flag="--kubernetes"),
    ] = False
    socket: Annotated[
        str,
        about(
            "The kubelet's pod-resources socket.",
            flag="--pod-resources-kubelet-socket",
            word="PATH",
            parse=parse_socket,
        ),
    ] = KUBELET_SOCKET
    refresh: Annotated[
        float,
        Meta(ge=1, le=3600),
        about("The kubelet is asked at this pace, and at once when it was restarted or a GPU is new."),
    ] = 10.0
    expire: Annotated[
        float,
        Meta(ge=1, le=86400),
        about("While the kubelet does not answer, its last answer holds for so long; then no owner is shown."),
    ] = 300.0
    resource_names: Annotated[
        tuple[str, ...],
        about(
            "More resources that are GPUs, as names or patterns (`example.com/gpu-*`), besides `nvidia.com/gpu`, "
            "`nvidia.com/mig-*` and their `.shared` forms.",
            flag="--nvidia-resource-names",
            word="NAMES",
            parse=parse_resource_name,
        ),
    ] = ()
    virtual_gpus: Annotated[
        bool,
        about(
            "Copy the series of a shared GPU for each owner, with label `vgpu`, as dcgm-exporter does; sums over pods "
            "then count the GPU once for each owner."
        ),
    ] = False
    old_names: Annotated[
        bool,
        about(
            "Labels `uuid`, `pod_name`, `pod_namespace` and `container_name` for `UUID`, `pod`, `namespace` and "
            "`container`.",
            flag="--use-old-namespace",
        ),
    ] = False


class Jobs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The batch jobs that use GPUs."""

    dir: Annotated[
        str | None,
        about(
            "A folder in which the scheduler writes a file for each GPU (`0`, or `0.7` for a MIG instance) with one "
            "job a line, shown as label `hpc_job`; `null`: none.",
            flag="--hpc-job-mapping-dir",
            word="PATH",
            parse=parse_folder,
        ),
    ] = None
    refresh: Annotated[
        float,
        Meta(ge=1, le=3600),
        about("The folder is looked at at this pace."),
    ] = 5.0
