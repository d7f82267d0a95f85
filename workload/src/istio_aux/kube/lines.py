"""Read the lines of a watch: what happened to which object, or what the server complains of.

Only the decoding may live here, and no I/O. An object that cannot be read costs itself only.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from istio_aux.core.pod import Metadata
from istio_aux.kube.client import Status
from istio_aux.kube.errors import UnreachableError
from istio_aux.kube.resources import Marked, T

INITIAL_END = "k8s.io/initial-events-end"
"""Annotation of the bookmark after which a streaming list is complete (KEP-3157)."""

Item = TypeVar("Item")


class _Event(msgspec.Struct, Generic[Item], frozen=True):
    type: str
    object: Item


_raw_event = msgspec.json.Decoder(_Event[msgspec.Raw])
_status = msgspec.json.Decoder(Status)
_marked = msgspec.json.Decoder(Marked)


class Line(msgspec.Struct, Generic[Item], frozen=True):
    """One line.

    Attributes:
        type: ``ADDED``, ``MODIFIED``, ``DELETED`` or ``BOOKMARK``.
        metadata: of the object.
        resource: the object, None for a bookmark and for an object that is not of our kind.
    """

    type: str
    metadata: Metadata
    resource: Item | None = None

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

    def decode(self, line: bytes) -> Line[T]:
        """Decode one line.

        Raises:
            ApiError: the server ended the stream with a Status.
            UnreachableError: the line is no event; most likely it was cut.
        """
        try:
            event = self._event.decode(line)
        except msgspec.ValidationError:
            return self._unusual(line)
        except msgspec.DecodeError as error:
            raise UnreachableError("the stream was cut within an event") from error
        if event.type == "ERROR":
            raise _status.decode(_raw_event.decode(line).object).error()
        resource = None if event.type == "BOOKMARK" else event.object
        return Line(event.type, event.object.metadata, resource)

    @staticmethod
    def _unusual(line: bytes) -> Line[T]:
        """A line whose object is not of our kind: a Status, a bookmark, or a surprise."""
        try:
            event = _raw_event.decode(line)
            if event.type == "ERROR":
                raise _status.decode(event.object).error()
            return Line(event.type, _marked.decode(event.object).metadata)
        except msgspec.ValidationError as error:
            raise UnreachableError(f"the stream brought no event: {error}") from error
