"""Dynamic Resource Allocation: which GPU or MIG instance a claimed device is, as the ResourceSlices of this node say.

Rule 1: of the versions of the API that the server offers the newest that is known here is asked; they say the same.
Rule 2: a slice replaces what it said before whole, and only the newest generation of a pool counts.
Rule 3: a device is found by its own UUID, or as the part of its parent that it was cut from; never by its name.

The attributes are those of NVIDIA's driver (gpu.nvidia.com): `type`, `uuid`, and of a MIG device `parentUUID` and
`profile`. A MIG device that is made on demand has no UUID in the slice: there the memory slices that it takes tell its
place (`memory-slice-4` among its counters, with older drivers `memorySlice4` among its capacities).
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

import msgspec

from otelgpu.attribution.apiserver import NOT_FOUND, Api, ApiError
from otelgpu.attribution.podmeta import checked_node

DRIVER = "gpu.nvidia.com"
GROUP = "/apis/resource.k8s.io"
VERSIONS = ("v1", "v1beta2", "v1beta1")  # the newest first
_MEMORY_SLICE = re.compile(r"memory-?[sS]lice-?([0-9]{1,3})")


class SliceDevice(NamedTuple):
    """One device of a slice. Texts that the slice does not hold are "", a place that it does not tell None."""

    name: str
    uuid: str
    parent: str  # UUID of the GPU that a MIG device is a part of
    profile: str
    start: int | None  # the first memory slice of a MIG device


class Slice(NamedTuple):
    """One ResourceSlice: a part of the devices of a pool."""

    driver: str
    pool: str
    generation: int
    devices: tuple[SliceDevice, ...]


SliceTable: TypeAlias = Mapping[str, Slice]  # by name
DeviceTable: TypeAlias = Mapping[tuple[str, str, str], SliceDevice]  # by driver, pool and name


class _Value(msgspec.Struct):
    """The value of an attribute, where it is a text."""

    string: str | None = None


class _Counters(msgspec.Struct):
    counters: dict[str, msgspec.Raw] | None = None


class _Basic(msgspec.Struct):
    attributes: dict[str, _Value] | None = None
    capacity: dict[str, msgspec.Raw] | None = None
    consumes: list[_Counters] | None = msgspec.field(name="consumesCounters", default=None)


class _Device(_Basic):
    name: str = ""
    basic: _Basic | None = None  # v1beta1 has everything in here


class _Pool(msgspec.Struct):
    name: str
    generation: int = 0


class _Spec(msgspec.Struct):
    driver: str
    pool: _Pool
    devices: list[_Device] | None = None


class _Meta(msgspec.Struct):
    name: str


class _Slice(msgspec.Struct):
    metadata: _Meta
    spec: _Spec


class _Version(msgspec.Struct):
    version: str


class _Group(msgspec.Struct):
    versions: list[_Version]


class SliceListing:
    """The ResourceSlices of *node*: see Listing."""

    name = "resourceslices"
    what = "which GPU a claim means"
    accept_list = accept_watch = "application/json"

    def __init__(self, node: str) -> None:
        self._node = node

    def path(self, api: Api) -> str:
        """Ask which versions there are, and choose."""
        try:
            group = msgspec.json.decode(api.get(GROUP), type=_Group)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            raise ApiError("this Kubernetes has no Dynamic Resource Allocation (resource.k8s.io)") from None
        except msgspec.MsgspecError as error:
            raise ApiError(f"{GROUP}: the API server sent what is no answer: {error}") from None
        offered = {one.version for one in group.versions}
        for version in VERSIONS:
            if version in offered:
                return f"{GROUP}/{version}/resourceslices"
        known = ", ".join(VERSIONS)
        raise ApiError(f"the API server has resource.k8s.io in {', '.join(sorted(offered))}, otelgpu knows {known}")

    def query(self) -> dict[str, str]:
        """Narrow the list down to the GPUs of this node."""
        return {"fieldSelector": f"spec.nodeName={checked_node(self._node)},spec.driver={DRIVER}"}

    def read(self, raw: bytes | msgspec.Raw) -> tuple[str, Slice]:
        """Read one slice."""
        found = msgspec.json.decode(raw, type=_Slice)
        spec = found.spec
        devices = tuple(_device(device, spec.driver) for device in spec.devices or ())
        return found.metadata.name, Slice(spec.driver, spec.pool.name, spec.pool.generation, devices)


def devices_in(slices: SliceTable) -> DeviceTable:
    """List the devices of each pool's newest generation. A name that could mean two devices means none."""
    newest: dict[tuple[str, str], int] = {}
    for one in slices.values():
        pool = (one.driver, one.pool)
        newest[pool] = max(newest.get(pool, 0), one.generation)
    found: dict[tuple[str, str, str], SliceDevice | None] = {}
    for one in slices.values():
        for device in one.devices if one.generation == newest[one.driver, one.pool] else ():
            name = one.driver, one.pool, device.name
            found[name] = device if found.get(name, device) == device else None
    return {name: device for name, device in found.items() if device is not None}


def _device(device: _Device, driver: str) -> SliceDevice:
    basic = device.basic or device
    texts = {name.removeprefix(f"{driver}/"): value.string or "" for name, value in (basic.attributes or {}).items()}
    is_mig = texts.get("type") == "mig"
    return SliceDevice(
        device.name,
        texts.get("uuid", ""),
        texts.get("parentUUID", "") if is_mig else "",
        texts.get("profile", "") if is_mig else "",
        min(_memory_slices(basic), default=None) if is_mig else None,
    )


def _memory_slices(basic: _Basic) -> Iterator[int]:
    names = [*(basic.capacity or {})]
    for consumed in basic.consumes or ():
        names += consumed.counters or {}
    for name in names:
        if match := _MEMORY_SLICE.fullmatch(name.rpartition("/")[2]):
            yield int(match[1])
