"""A kubelet for tests: the pod-resources API over a real unix socket, with answers that a test writes.

Rule 1: only the public protocol is spoken; what otelgpu makes of it is not known here.
Rule 2: nothing sleeps: a slow kubelet answers when the test lets it.
"""

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import grpc

from otelgpu.attribution.podresources_pb2 import (
    Claim,
    ClaimedDevice,
    Container,
    Devices,
    GetRequest,
    GetResponse,
    ListRequest,
    ListResponse,
    Pod,
)

LIMIT = 20.0  # seconds


class Get(StrEnum):
    """Whether a kubelet can be asked about one pod."""

    MISSING = "missing"  # before Kubernetes 1.27
    DISABLED = "disabled"  # 1.27 to 1.33, where no feature gate is set
    THERE = "there"


def pod(
    name: str, *ids: str, resource: str = "nvidia.com/gpu", container: str = "main", namespace: str = "team"
) -> Pod:
    """A pod with one container that holds these devices."""
    return holding(name, {container: {resource: ids}}, namespace=namespace)


def holding(name: str, containers: Mapping[str, Mapping[str, Iterable[str]]], *, namespace: str = "team") -> Pod:
    """A pod by container, resource and device ids."""
    return Pod(
        name=name,
        namespace=namespace,
        containers=[
            Container(
                name=container,
                devices=[Devices(resource_name=resource, device_ids=list(ids)) for resource, ids in resources.items()],
            )
            for container, resources in containers.items()
        ],
    )


def claiming(
    name: str,
    *devices: str,
    claim: str = "",
    container: str = "main",
    pool: str = "node-1",
    driver: str = "gpu.nvidia.com",
) -> Pod:
    """A pod of "team" with one container that got these devices by a claim."""
    got = [ClaimedDevice(driver_name=driver, pool_name=pool, device_name=device) for device in devices]
    made = Claim(name=claim or f"{name}-gpu", namespace="team", devices=got)
    return Pod(name=name, namespace="team", containers=[Container(name=container, claims=[made])])


@dataclass
class Kubelet:
    """Listens on *path* after `start`. Each change of its answer is a new list of pods."""

    path: Path
    pods: list[Pod] = field(default_factory=list)
    error: grpc.StatusCode | None = None  # answers with this instead
    garbage: bytes = b""  # answers with this instead, whatever it may be
    asked: int = 0
    get: Get = Get.MISSING
    got: list[str] = field(default_factory=list)  # the pods that it was asked about one by one

    def __post_init__(self) -> None:
        self._open = threading.Event()  # a closed gate makes it slow
        self._open.set()
        self._changed = threading.Condition()
        self._server: Any = None

    def start(self) -> None:
        """Bind the socket anew, as a kubelet that was just started does."""
        self.path.unlink(missing_ok=True)
        options = [("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
        server = grpc.server(ThreadPoolExecutor(4), options=options)
        handler: Any = grpc.unary_unary_rpc_method_handler(
            self._list,
            request_deserializer=ListRequest.FromString,
            response_serializer=lambda answer: self.garbage or answer.SerializeToString(),
        )
        methods: dict[str, Any] = {"List": handler}
        if self.get is not Get.MISSING:
            methods["Get"] = grpc.unary_unary_rpc_method_handler(
                self._get,
                request_deserializer=GetRequest.FromString,
                response_serializer=GetResponse.SerializeToString,
            )
        handlers = grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods)
        server.add_generic_rpc_handlers((handlers,))
        assert server.add_insecure_port(f"unix://{self.path}")
        server.start()
        self._server = server

    def stop(self) -> None:
        """Die; the socket goes too."""
        self.let_go()
        if self._server is not None:
            self._server.stop(None).wait(LIMIT)
            self._server = None

    def hang(self) -> None:
        """Take questions and do not answer them until `let_go`."""
        self._open.clear()

    def let_go(self) -> None:
        """Answer again."""
        self._open.set()

    def was_asked(self, times: int) -> None:
        """Wait until it was asked so many times since the start of the test."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.asked >= times, LIMIT), f"asked {self.asked} times, not {times}"

    def _list(self, _: ListRequest, context: Any) -> ListResponse:
        with self._changed:
            self.asked += 1
            self._changed.notify_all()
        self._open.wait(LIMIT)
        if self.error is not None:
            context.abort(self.error, "scripted")
        return ListResponse(pods=self.pods)

    def _get(self, request: GetRequest, context: Any) -> GetResponse:
        with self._changed:
            self.got.append(request.name)
            self._changed.notify_all()
        self._open.wait(LIMIT)
        if self.get is Get.DISABLED:
            context.abort(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
        for one in self.pods:
            if (one.name, one.namespace) == (request.name, request.namespace):
                return GetResponse(pod=one)
        context.abort(grpc.StatusCode.UNKNOWN, f"pod {request.name} in namespace {request.namespace} not found")
        raise AssertionError
