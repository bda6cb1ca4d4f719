"""Whoever finds out who uses the GPUs, put together from the settings.

Rule 1: nothing is built that no setting asks for; the API server is asked only for what the kubelet does not tell.
"""

import logging
from collections.abc import Mapping

from otelgpu.attribution.apiserver import Api
from otelgpu.attribution.jobs import Jobs
from otelgpu.attribution.kubelet import Kubelet
from otelgpu.attribution.mirror import Mirror
from otelgpu.attribution.owners import Attribution
from otelgpu.attribution.podmeta import PodListing
from otelgpu.attribution.pods import Pods, own_pod_of
from otelgpu.attribution.slices import DRIVER, SliceListing
from otelgpu.config import Config

logger = logging.getLogger(__name__)


def attribution_for(config: Config, environ: Mapping[str, str]) -> Attribution:
    """Build what is asked for; nothing runs before `start`."""
    jobs = None if config.jobs.dir is None else Jobs(config.jobs.dir, refresh=config.jobs.refresh)
    if not config.kubernetes.enabled:
        return Attribution(jobs=jobs, limits=config.limits)
    return _in_kubernetes(config, environ, jobs)


def _in_kubernetes(config: Config, environ: Mapping[str, str], jobs: Jobs | None) -> Attribution:
    kubernetes, names_uids = config.kubernetes, config.processes.by != "off"
    pods = Pods(
        Kubelet(kubernetes.socket),
        refresh=kubernetes.refresh,
        expire=kubernetes.expire,
        resource_names=kubernetes.resource_names,
        drivers=(DRIVER,) if kubernetes.dra else (),
        own_pod=own_pod_of(environ, kubernetes.service_account),
    )
    metas = slices = None
    if kubernetes.pod_label_allow and not kubernetes.pod_labels:
        logger.warning("kubernetes.pod_label_allow has no effect: kubernetes.pod_labels is false")
    if kubernetes.pod_uid or kubernetes.pod_labels or names_uids:
        listing = PodListing(
            kubernetes.node,
            uids=kubernetes.pod_uid or names_uids,
            labels=kubernetes.pod_labels,
            allow=kubernetes.pod_label_allow,
        )
        api = Api(environ, kubernetes.service_account)
        metas = Mirror(api, listing, expire=kubernetes.expire, changed=pods.notice)
    if kubernetes.dra:
        api = Api(environ, kubernetes.service_account)
        slices = Mirror(api, SliceListing(kubernetes.node), expire=kubernetes.expire)
    return Attribution(
        pods=pods,
        jobs=jobs,
        metas=metas,
        slices=slices,
        shows_uids=kubernetes.pod_uid,
        names_uids=names_uids,
        limits=config.limits,
    )
