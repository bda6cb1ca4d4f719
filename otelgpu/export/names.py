"""The names under which owners, and what a series is told apart by, are shown."""

from collections.abc import Mapping

from otelgpu.fields.maker import NVIDIA

PEER = "peer_uuid"

# The text of an Owner and the name it is shown by.
OWNER_LABELS = (
    ("container", "container"),
    ("container_id", "container_id"),
    ("hpc_job", "job"),
    ("namespace", "namespace"),
    ("owner", "rest"),
    ("pid", "pid"),
    ("pod", "pod"),
    ("pod_uid", "pod_uid"),
    ("process", "process"),
    ("slurm_step", "step"),
    ("slurm_user", "slurm_user"),
    ("unit", "unit"),
    ("user", "user"),
    ("vgpu", "vgpu"),
)
USE_LABELS = frozenset(name for name, _ in OWNER_LABELS)
OLD_OWNER_LABELS = tuple(
    ({"container": "container_name", "namespace": "pod_namespace", "pod": "pod_name"}.get(name, name), text)
    for name, text in OWNER_LABELS
)
# Labels of a series that have a name of their own in OpenTelemetry's scheme, or ("") none: they say the value in words.
SERIES_ATTRIBUTES: Mapping[str, str] = {
    "clock_event": f"{NVIDIA}clock.event",
    "health_error_code": "",
    "health_watch": f"{NVIDIA}health.part",
    "link_status": "",
    "nvlink": f"{NVIDIA}link",
    PEER: f"{NVIDIA}peer.id",
    "window_size_in_ms": f"{NVIDIA}window.ms",
    "xid": f"{NVIDIA}xid.code",
}
OWNER_ATTRIBUTES = (
    ("k8s.container.name", "container"),
    ("k8s.namespace.name", "namespace"),
    ("k8s.pod.name", "pod"),
    ("k8s.pod.uid", "pod_uid"),
    ("hw.gpu.nvidia.job.id", "job"),
    ("container.id", "container_id"),
    ("hw.gpu.nvidia.job.step", "step"),
    ("hw.gpu.nvidia.job.user", "slurm_user"),
    ("hw.gpu.nvidia.owner", "rest"),
    ("hw.gpu.nvidia.systemd.unit", "unit"),
    ("process.executable.name", "process"),
    ("process.pid", "pid"),
    ("process.user.id", "user"),
)


# The claim of an Owner (Dynamic Resource Allocation), by the part of it.
CLAIM_ATTRIBUTES = {
    "claim_name": "hw.gpu.nvidia.dra.claim.name",
    "claim_namespace": "hw.gpu.nvidia.dra.claim.namespace",
    "device_name": "hw.gpu.nvidia.dra.device.name",
    "driver_name": "hw.gpu.nvidia.dra.driver.name",
    "mig_device_uuid": "hw.gpu.nvidia.dra.mig.uuid",
    "mig_profile": "hw.gpu.nvidia.dra.mig.profile",
    "pool_name": "hw.gpu.nvidia.dra.pool.name",
}
