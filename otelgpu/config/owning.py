"""The settings of who uses the GPUs: Kubernetes, jobs and processes. See settings.py for the rules."""

import os
import re
import warnings
from typing import Annotated, Literal

from msgspec import Meta, Struct

from otelgpu.config.about import about
from otelgpu.config.listed import ConfigMapName, parse_configmap

KUBELET_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
_LONGEST_SOCKET_PATH = 107  # bytes; sockaddr_un of Linux, less the closing NUL
_LONGEST_PATTERN = 1000  # characters
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
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


def parse_root(text: str) -> str:
    """Read the whole path of a folder; "" and "/" are the machine's own."""
    return parse_folder(text or "/").rstrip("/")


def parse_pattern(text: str) -> str:
    """Read a regular expression."""
    if len(text) > _LONGEST_PATTERN:
        raise ValueError(f"a pattern has at most {_LONGEST_PATTERN} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # [[:lower:]] is a class in Go, and something else here
            re.compile(text)
    except (re.error, OverflowError, RecursionError, FutureWarning) as error:
        raise ValueError(f"expected a regular expression ({error})") from None
    return text


def split_patterns(text: str) -> list[str]:
    """Split a list of regular expressions at the commas that stand in no bracket of any kind.

    So `a{1,3},b` is two, where dcgm-exporter makes three pieces of it. Nothing is lost: the key of a label holds no
    comma, so that a pattern that has one outside brackets matches none.
    """
    pieces, opened, is_escaped = [""], "", False
    for char in text:
        if is_escaped or char == "\\":
            is_escaped = not is_escaped
        elif opened.endswith("["):
            opened = opened[:-1] if char == "]" else opened
        elif char in "([{":
            opened += char
        elif char in ")}":
            opened = opened[:-1]
        elif char == "," and not opened:
            pieces.append("")
            continue
        pieces[-1] += char
    return [piece for part in pieces if (piece := part.strip())]


def parse_resource_name(text: str) -> str:
    """Read the name of a Kubernetes resource, or a pattern of names."""
    if not _RESOURCE_NAME.fullmatch(text):
        raise ValueError("expected the name of a resource (example.com/gpu), or a pattern (example.com/gpu-*)")
    return text


class Kubernetes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The pods that hold GPUs."""

    enabled: Annotated[
        bool,
        about(
            "Ask the kubelet which pod holds which GPU, and label series with it.",
            flag="--kubernetes",
            letter="-k",
            variable="DCGM_EXPORTER_KUBERNETES",
        ),
    ] = False
    socket: Annotated[
        str,
        about(
            "The kubelet's pod-resources socket.",
            flag="--pod-resources-kubelet-socket",
            variable="DCGM_POD_RESOURCES_KUBELET_SOCKET",
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
            variable="NVIDIA_RESOURCE_NAMES",
            word="NAMES",
            parse=parse_resource_name,
        ),
    ] = ()
    virtual_gpus: Annotated[
        bool,
        about(
            "Copy the series of a shared GPU for each owner, with label `vgpu`, as dcgm-exporter does; sums over pods "
            "then count the GPU once for each owner.",
            variable="KUBERNETES_VIRTUAL_GPUS",
        ),
    ] = False
    old_names: Annotated[
        bool,
        about(
            "Labels `uuid`, `pod_name`, `pod_namespace` and `container_name` for `UUID`, `pod`, `namespace` and "
            "`container`.",
            flag="--use-old-namespace",
            letter="-o",
            variable="DCGM_EXPORTER_USE_OLD_NAMESPACE",
        ),
    ] = False
    gpu_id_type: Annotated[
        Literal["auto", "uid", "device-name"],
        about(
            "Taken from dcgm-exporter's `uid` and `device-name`, and without effect: every form of a device id is "
            "recognised by itself.",
            variable="DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE",
        ),
    ] = "auto"
    pod_uid: Annotated[
        bool,
        about(
            "Label `pod_uid`, which the API server is asked for.",
            flag="--kubernetes-enable-pod-uid",
            variable="DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID",
        ),
    ] = False
    pod_labels: Annotated[
        bool,
        about(
            "The pod's own labels, which the API server is asked for; all of them, unless `kubernetes.pod_label_allow` "
            "names some.",
            flag="--kubernetes-enable-pod-labels",
            variable="DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS",
        ),
    ] = False
    pod_label_allow: Annotated[
        tuple[str, ...],
        about(
            "Only pod labels whose key one of these regular expressions finds (`^app$`, `team`); a list in the file, a "
            "flag for each, or with commas between them.",
            flag="--kubernetes-pod-label-allowlist-regex",
            variable="DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX",
            word="REGEX",
            parse=parse_pattern,
            split=split_patterns,
        ),
    ] = ()
    dra: Annotated[
        bool,
        about(
            "Also name pods that got their GPU by Dynamic Resource Allocation, with labels `dra_*`; the API server is "
            "asked for this node's ResourceSlices.",
            flag="--kubernetes-enable-dra",
            variable="KUBERNETES_ENABLE_DRA",
        ),
    ] = False
    node: Annotated[
        str,
        about(
            "The name of this node in Kubernetes. The API server is asked about this node alone.",
            variable="NODE_NAME",
            word="NAME",
        ),
    ] = ""
    service_account: Annotated[
        str,
        about(
            "The folder with `token` and `ca.crt` for the API server; both are read anew for each connection.",
            word="PATH",
            parse=parse_folder,
        ),
    ] = SERVICE_ACCOUNT
    configmap: Annotated[
        ConfigMapName | None,
        about(
            "A ConfigMap (`NAMESPACE:NAME`) whose key `metrics` holds a CSV file of fields, which goes over `fields`; "
            "the API server is asked for it. `none`: there is none.",
            flag="--configmap-data",
            letter="-m",
            variable="DCGM_EXPORTER_CONFIGMAP_DATA",
            word="NAMESPACE:NAME",
            parse=parse_configmap,
        ),
    ] = None


class Jobs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The batch jobs that use GPUs."""

    dir: Annotated[
        str | None,
        about(
            "A folder in which the scheduler writes a file for each GPU (`0`, or `0.7` for a MIG instance) with one "
            "job a line, shown as label `hpc_job`; `null`: none.",
            flag="--hpc-job-mapping-dir",
            variable="DCGM_HPC_JOB_MAPPING_DIR",
            word="PATH",
            parse=parse_folder,
        ),
    ] = None
    refresh: Annotated[
        float,
        Meta(ge=1, le=3600),
        about("The folder is looked at at this pace."),
    ] = 5.0
    slurm: Annotated[
        bool,
        about(
            "Find Slurm's jobs by the control groups of the processes on each GPU, without files of a prolog; label "
            "`hpc_job`."
        ),
    ] = False
    slurm_user: Annotated[
        bool,
        about("Label `slurm_user`: the number of the user whose job it is."),
    ] = False


class Processes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What each owner of processes uses of a GPU."""

    by: Annotated[
        Literal["off", "pod", "container", "process"],
        about(
            "Ask the driver which processes are on each GPU, and show memory, utilisation and energy by `pod` (or job, "
            "container outside Kubernetes, systemd unit), by `container` (or job step), or by `process` (label `pid`).",
            flag="--processes",
        ),
    ] = "off"
    proc_root: Annotated[
        str,
        about(
            "Where the host's /proc is mounted; the process ids there have to be the host's.",
            flag="--proc-root",
            word="PATH",
            parse=parse_folder,
        ),
    ] = "/proc"
    names: Annotated[bool, about("Also tell owners apart by the name of their processes; label `process`.")] = False
    users: Annotated[
        bool, about("Also tell owners apart by the user they run as; label `user`, which is a number.")
    ] = False


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is shown by itself."""

    owners_per_gpu: Annotated[
        int,
        Meta(ge=1, le=10000),
        about(
            'More owners than this on one GPU are summed as `owner="other"`; pods and jobs beyond it that hold the '
            "GPU have no series of their own."
        ),
    ] = 100
    owners: Annotated[
        int,
        Meta(ge=1, le=100000),
        about("The same for all GPUs together; an owner counts once for each GPU it uses."),
    ] = 1000
