"""Read the lines of a watch: what happened to which object, or what the server complains of.

Only the decoding may live here, and no I/O. An object that cannot be read costs itself only.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from istio_aux.core.pod import Metadata
from istio_aux.kube.client import Status
from istio_aux.kube.errors import UnreachableError
from istio_aux.kube.reader import brief, cut
from istio_aux.kube.resources import Marked, T, identity

INITIAL_END = "k8s.io/initial-events-end"
"""Annotation of the bookmark after which a streaming list is complete (KEP-3157)."""

Item = TypeVar("Item")


class _Event(msgspec.Struct, Generic[Item], frozen=True):
    type: str
    object: Item


_any_event = msgspec.json.Decoder(_Event[object])
_error = msgspec.json.Decoder(_Event[Status])
_marked = msgspec.json.Decoder(_Event[Marked])
_raw_event = msgspec.json.Decoder(_Event[msgspec.Raw])


class Line(msgspec.Struct, Generic[Item], frozen=True):
    """One line.

    Attributes:
        type: ``ADDED``, ``MODIFIED``, ``DELETED`` or ``BOOKMARK``.
        metadata: of the object; of one that cannot be read what could be, which may be nothing.
        resource: the object, None for a bookmark and for an object that cannot be read.
        why: the reason why the object cannot be read, or empty.
    """

    type: str
    metadata: Metadata
    resource: Item | None = None
    why: str = ""

    @property
    def ends_initial(self) -> bool:
        """Whether all objects that were there at first have been told by now."""
        marks = self.metadata.annotations or {}
        return self.type == "BOOKMARK" and marks.get(INITIAL_END) == "true"


class Lines(Generic[T]):
    """Decodes lines. A class because decoders are built once and used often."""

    def __init__(self, kind: type[T]) -> None:
        """Prepare to decode objects to structs of ``kind``."""
        self._event = msgspec.json.Decoder(_Event[kind])
        self._object = msgspec.json.Decoder(kind)

    async def decode(self, line: bytes) -> Line[T]:
        """Decode one line.

        Raises:
            ApiError: the server ended the stream with a Status.
            UnreachableError: the line is no event; most likely it was cut.
        """
        try:
            event = self._event.decode(line)
        except Exception:  # Whatever it was, `_unusual` finds out whom it costs.
            return await self._unusual(line)
        if event.type == "ERROR":
            raise _error.decode(line).object.error()
        resource = None if event.type == "BOOKMARK" else event.object
        return Line(event.type, event.object.metadata, resource)

    async def _unusual(self, line: bytes) -> Line[T]:
        """A line whose object is not of our kind: a Status, a bookmark, or a surprise."""
        if not line.endswith(b"\n"):
            raise UnreachableError("the stream was cut within an event")
        text = await cut(line)
        try:
            kind = _any_event.decode(await cut(text, 1)).type
            if kind == "ERROR":
                raise _error.decode(text).object.error()
            if kind == "BOOKMARK":
                return Line(kind, _marked.decode(text).object.metadata)
        except ValueError as error:
            raise UnreachableError(f"the stream brought no event: {brief(error)}") from error
        try:
            resource = self._object.decode(_raw_event.decode(text).object)
        except Exception as error:
            return Line(kind, await _identity(text), why=brief(error))
        return Line(kind, resource.metadata, resource)


async def _identity(text: bytes) -> Metadata:
    """What can be read of the metadata of the object in a line."""
    try:
        return identity(_raw_event.decode(await cut(text, 3)).object)
    except ValueError:
        return Metadata()
