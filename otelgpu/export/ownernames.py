"""What the parts of an Owner are called, on dcgm-exporter's page and under OpenTelemetry.

Rule 1: one row a part; a part that an owner does not have is not shown.
Rule 2: no label of a pod may pass for one of these where they can stand.
"""

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
POD_LABEL = "k8s.pod.label."  # and the key of the label
