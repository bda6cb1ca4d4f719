"""From the kubelet's messages to allocations.

Rule 1: imported only once a kubelet is asked: protobuf costs memory.
"""

from collections.abc import Iterable, Iterator

from otelgpu.attribution.kubelet import Allocation
from otelgpu.attribution.podresources_pb2 import GetRequest, GetResponse, ListRequest, ListResponse, Pod

__all__ = ["GetRequest", "GetResponse", "ListRequest", "ListResponse", "allocations_in"]


def allocations_in(pods: Iterable[Pod]) -> Iterator[Allocation]:
    """Give each device of each container: those of device plugins, and those of claims.

    Kubelets before 1.31 tell the CDI names of claimed devices only; those mean nothing here and are left out.
    """
    for pod in pods:
        for container in pod.containers:
            holder = (pod.namespace, pod.name, container.name)
            for devices in container.devices:
                for device_id in devices.device_ids:
                    yield Allocation(*holder, devices.resource_name, device_id)
            for claim in container.claims:
                for device in claim.devices:
                    if device.device_name:
                        where = (device.pool_name, claim.namespace, claim.name)
                        yield Allocation(*holder, device.driver_name, device.device_name, *where)
