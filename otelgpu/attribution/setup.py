"""Whoever finds out who uses the GPUs, put together from the settings."""

from collections.abc import Mapping

from otelgpu.attribution.jobs import Jobs
from otelgpu.attribution.kubelet import Kubelet
from otelgpu.attribution.owners import Attribution
from otelgpu.attribution.pods import Pods, own_pod_of
from otelgpu.config import Config


def attribution_for(config: Config, environ: Mapping[str, str]) -> Attribution:
    """Build what is asked for; nothing runs before `start`."""
    kubernetes, jobs = config.kubernetes, config.jobs
    pods = None
    if kubernetes.enabled:
        pods = Pods(
            Kubelet(kubernetes.socket),
            refresh=kubernetes.refresh,
            expire=kubernetes.expire,
            resource_names=kubernetes.resource_names,
            own_pod=own_pod_of(environ),
        )
    return Attribution(pods=pods, jobs=None if jobs.dir is None else Jobs(jobs.dir, refresh=jobs.refresh))
