"""What the API server sends around objects: lists in pages, and the events of a watch.

Rule 1: the objects themselves stay as they came; whoever wants them knows what of them he wants.
"""

from typing import TypeVar

import msgspec

from otelgpu.attribution.apiserver import ApiError


class ListMeta(msgspec.Struct):
    """The version of a list, or of an object; of a list also where the rest of it begins, if there is any."""

    resource_version: str = msgspec.field(name="resourceVersion", default="")
    rest: str | None = msgspec.field(name="continue", default=None)


class List(msgspec.Struct):
    """One page of a list."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class Event(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class Object(msgspec.Struct):
    """What every object has."""

    metadata: ListMeta


class Failure(msgspec.Struct):
    """The object of an event that ends a watch."""

    code: int = 0
    message: str = ""


Decoded = TypeVar("Decoded", bound=msgspec.Struct)


def decoded(raw: bytes | msgspec.Raw, kind: type[Decoded]) -> Decoded:
    """Read what the server sent. Raise ApiError."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ApiError(f"the API server sent what is no answer: {error}") from None
