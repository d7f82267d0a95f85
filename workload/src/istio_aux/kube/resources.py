"""What all objects of the API have in common: how to name one, and how a list of them arrives."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from istio_aux.core.nesting import shallow
from istio_aux.core.pod import Key, Metadata, shared


class Resource(Protocol):
    """What an object must have to be listed and watched."""

    @property
    def metadata(self) -> Metadata:
        """Name, namespace, uid and resourceVersion."""
        ...


T = TypeVar("T", bound=Resource)


class Marked(msgspec.Struct, frozen=True):
    """An object of any kind, reduced to its metadata, such as a bookmark."""

    metadata: Metadata = Metadata()


class _Loose(msgspec.Struct, frozen=True):
    metadata: dict[str, object]


_loose = msgspec.json.Decoder(_Loose)


def identity(body: bytes | msgspec.Raw) -> Metadata:
    """Read which object this is, and which version of it, although the rest cannot be read.

    What cannot be read of that either is empty in the result; it never raises.
    """
    try:
        found = _loose.decode(shallow(bytes(body), deepest=2)).metadata
    except Exception:  # The object has been given up already.
        return Metadata()
    name, namespace, uid, version = (
        value if isinstance(value := found.get(field), str) else ""
        for field in ("name", "namespace", "uid", "resourceVersion")
    )
    return Metadata(name=name, namespace=namespace, uid=uid, resource_version=version)


def key_of(resource: Resource) -> Key:
    """The key of an object. Thousands of them have a handful of namespaces between them."""
    meta = resource.metadata
    return Key(shared(meta.namespace), meta.name, meta.uid)
