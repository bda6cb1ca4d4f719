"""The kubelet's pod-resources API: who holds what, of all pods or of one, asked over its unix socket.

Rule 1: everything about gRPC stays here; what goes wrong leaves as KubeletError with a sentence.
Rule 2: a call is bounded in time and size, and `close` from another thread ends it.
Rule 3: each question has a connection of its own: a restarted kubelet is met without anything left of the old one.
"""

import errno
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, Self, TypeVar, cast

from otelgpu.errors import OtelgpuError

LONGEST_MESSAGE = 16 * 1024 * 1024  # bytes; what the kubelet itself allows, where gRPC's default is a quarter of it
LIMIT = 10.0  # seconds the kubelet has to answer
_LIST = "/v1.PodResourcesLister/List"
_GET = "/v1.PodResourcesLister/Get"
_DISABLED = "disabled"  # in what kubelets before 1.34 answer to Get, unless a feature gate is set
_PROBE = 1.0  # seconds
_WHY: Mapping[int, str] = {
    errno.ENOENT: "there is no such socket; is the kubelet's folder mounted?",
    errno.ENOTDIR: "there is no such socket; is the kubelet's folder mounted?",
    errno.EACCES: "this process may not use the socket; it has to run as root, or as the socket's group",
    errno.EPERM: "this process may not use the socket; it has to run as root, or as the socket's group",
    errno.ECONNREFUSED: "nobody listens on the socket; the kubelet is not running",
}


class KubeletError(OtelgpuError):
    """The kubelet did not say who has which device; asking later may help.

    `lacks`: it never answers this question; `refused`: it did answer, that it does not know the pod.
    """

    def __init__(self, text: str, *, lacks: bool = False, refused: bool = False) -> None:
        super().__init__(text)
        self.lacks = lacks
        self.refused = refused


class Allocation(NamedTuple):
    """One device that one container holds, as the kubelet names it.

    A device of a claim (Dynamic Resource Allocation) has a pool; then `resource` is the name of the DRA driver.
    """

    namespace: str
    pod: str
    container: str
    resource: str
    device_id: str
    pool: str = ""
    claim_namespace: str = ""
    claim: str = ""


class Lister(Protocol):
    """Whoever knows which container has which devices."""

    def place(self) -> object:
        """Identify whoever would answer now; another value means that it was started anew. Never blocks for long."""

    def allocations(self) -> tuple[Allocation, ...]:
        """List every device of every container, of whatever kind. Raise KubeletError."""

    def allocations_of(self, namespace: str, pod: str) -> tuple[Allocation, ...]:
        """List the devices of one pod. Raise KubeletError, also when the kubelet does not know the pod."""

    def close(self) -> None:
        """End the question under way, if any, and answer no other. Safe to call twice."""


class _Message(Protocol):
    """What is used of protobuf's messages."""

    @classmethod
    def FromString(cls, data: bytes, /) -> Self: ...  # noqa: N802 - protobuf's name

    def SerializeToString(self) -> bytes: ...  # noqa: N802 - protobuf's name


_Answer = TypeVar("_Answer", bound=_Message)


class _Channel(Protocol):
    """What is used of grpc.Channel, which has no types of its own."""

    def unary_unary(
        self, method: str, *, request_serializer: Callable[..., bytes], response_deserializer: Callable[[bytes], object]
    ) -> Callable[..., object]: ...

    def close(self) -> None: ...


class Kubelet:
    """Asks the kubelet behind the socket at *path*, which has *limit* seconds for an answer."""

    def __init__(self, path: str, *, limit: float = LIMIT) -> None:
        self._path = path
        self._limit = limit
        self._lock = threading.Lock()
        self._channel: _Channel | None = None
        self._closed = False

    def place(self) -> object:
        """Identify the socket; None when there is none in reach."""
        try:
            found = Path(self._path).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_ctime_ns

    def allocations(self) -> tuple[Allocation, ...]:
        """Ask now; see Lister."""
        if self.place() is None and (problem := self._problem()):
            raise KubeletError(f"{self._path}: {problem}")
        from otelgpu.attribution.messages import ListRequest, ListResponse, allocations_in  # with gRPC, see _asked

        return tuple(allocations_in(self._asked(_LIST, ListRequest(), ListResponse).pods))

    def allocations_of(self, namespace: str, pod: str) -> tuple[Allocation, ...]:
        """Ask now; see Lister."""
        from otelgpu.attribution.messages import GetRequest, GetResponse, allocations_in

        return tuple(allocations_in([self._asked(_GET, GetRequest(name=pod, namespace=namespace), GetResponse).pod]))

    def close(self) -> None:
        """End the question under way, if any, and answer no other."""
        with self._lock:
            self._closed = True
            if self._channel is not None:
                self._channel.close()

    def _asked(self, question: str, request: _Message, response: type[_Answer]) -> _Answer:
        import grpc  # here, because it costs 11 MB and only nodes with a kubelet need it
        from google.protobuf.message import DecodeError

        channel = self._opened()
        ask = channel.unary_unary(
            question,
            request_serializer=type(request).SerializeToString,
            response_deserializer=bytes,  # grpc would log each answer that cannot be read, with a traceback
        )
        try:
            return response.FromString(cast("bytes", ask(request, timeout=self._limit)))
        except DecodeError:
            raise KubeletError(f"{self._path}: whoever listens there sent what is no answer") from None
        except grpc.RpcError as error:
            code, details = error.code(), str(error.details())
            lacks = code is grpc.StatusCode.UNIMPLEMENTED or _DISABLED in details
            # The kubelet gives its own errors without a code.
            refused = not lacks and code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.NOT_FOUND)
            raise KubeletError(self._reason(error), lacks=lacks, refused=refused) from None
        except ValueError:  # what grpc raises on a closed channel
            raise KubeletError(f"{self._path}: closed while it was being asked") from None
        finally:
            channel.close()

    def _opened(self) -> _Channel:
        import grpc

        options = (
            ("grpc.max_receive_message_length", LONGEST_MESSAGE),
            ("grpc.use_local_subchannel_pool", 1),  # or a dead kubelet's back-off would outlive this channel
            ("grpc.enable_http_proxy", 0),
            ("grpc.default_authority", "localhost"),
        )
        with self._lock:
            if self._closed:
                raise KubeletError(f"{self._path}: closed")
            self._channel = grpc.insecure_channel(f"unix://{self._path}", options=options)
            return self._channel

    def _problem(self) -> str | None:
        """Say why nobody can be reached at the socket; None when somebody can."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_PROBE)
            try:
                probe.connect(self._path)
            except TimeoutError:
                return "the socket takes no connection; the kubelet hangs"
            except OSError as error:
                return _WHY.get(error.errno or 0, error.strerror or str(error))
        return None

    def _reason(self, error: object) -> str:
        import grpc

        code, details = error.code(), " ".join(str(error.details()).split())  # type: ignore[attr-defined]  # grpc has no types
        if code is grpc.StatusCode.UNAVAILABLE:
            details = self._problem() or details  # grpc's words are about addresses and attempts
        words = {
            grpc.StatusCode.UNAVAILABLE: details,
            grpc.StatusCode.DEADLINE_EXCEEDED: f"the kubelet did not answer within {self._limit:g} s",
            grpc.StatusCode.UNIMPLEMENTED: "whoever listens there has no pod-resources API v1 (Kubernetes 1.20 has it)",
            grpc.StatusCode.RESOURCE_EXHAUSTED: f"the answer is too large, or the kubelet refuses more: {details}",
        }
        return f"{self._path}: {words.get(code, f'{code.name}: {details}')}"
