"""Objects of the API: how to name one, and how to decode answers, pages of lists and watch events.

Tenants write most of an object, so an object that cannot be decoded must not cost its neighbours.
The plain decoder comes first. A text that it cannot read is cut (`model.documents`) and decoded
again, object by object.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from istio_aux.kube.errors import ApiError, UnreachableError, UnreadableError
from istio_aux.model.documents import DEEPEST, cutting, shallow
from istio_aux.model.pod import Key, Metadata
from istio_aux.model.text import problem

LONGEST = 10 << 20
"""Bytes that are read of an answer, or of a line of a watch. etcd stores objects up to 1.5 MiB
(``--max-request-bytes``), and JSON writes each of their bytes as six at most: ``<`` as ``\\u003c``.
"""

BEGINNING = 16 << 10
"""Bytes that are kept of what is longer. Kind, name, UID and version come first in an object, and
``metadata`` first in a list (Go struct order; custom resources are sorted by field instead)."""


class Resource(Protocol):
    """What an object must have to be listed and watched."""

    @property
    def metadata(self) -> Metadata:
        """Name, namespace, uid and resourceVersion."""
        ...


T = TypeVar("T", bound=Resource)
S = TypeVar("S")


def key_of(resource: Resource) -> Key:
    """Return the key of an object."""
    return resource.metadata.key


class Unreadable(msgspec.Struct, frozen=True):
    """An object that cannot be decoded. Unknown fields of ``key`` are empty."""

    key: Key
    why: str

    def __str__(self) -> str:
        return f"{self.key if self.key.name else 'an object without a readable name'}: {self.why}"


class Oversized(msgspec.Struct, frozen=True):
    """The beginning of a line that is longer than `LONGEST`."""

    beginning: bytes


class ApiStatus(msgspec.Struct, frozen=True, rename="camel"):
    """meta/v1 Status, how the API server reports an error."""

    class Details(msgspec.Struct, frozen=True, rename="camel"):
        """``details``: when to come back, and machine-readable causes."""

        class Cause(msgspec.Struct, frozen=True):
            """One of ``causes``."""

            reason: str = ""
            message: str = ""

        retry_after_seconds: float | None = None
        causes: tuple[Cause, ...] | None = None

    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: Details | None = None

    def error(self, *, code: int = 0, retry_after: float | None = None) -> ApiError:
        """Turn the status into an exception; ``code`` and ``retry_after`` fill what it lacks."""
        asked = self.details.retry_after_seconds if self.details else None
        return ApiError(
            self.code or code,
            self.message or "no message",
            reason=self.reason,
            retry_after=asked if asked is not None else retry_after,
        )


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    next: str = msgspec.field(name="continue", default="")


class _ListOf(msgspec.Struct, Generic[S], frozen=True):
    metadata: _ListMeta
    items: list[S] | None = None


class _EventOf(msgspec.Struct, Generic[S], frozen=True):
    type: str
    object: S


class _OnlyMetadata(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()


class _AnyMetadata(msgspec.Struct, frozen=True):
    metadata: dict[str, object]


class Page(msgspec.Struct, Generic[S], frozen=True):
    """A page of a list. ``next`` is its ``continue``, empty on the last page."""

    version: str
    next: str
    items: list[S]
    unreadable: tuple[Unreadable, ...] = ()


class Event(msgspec.Struct, Generic[S], frozen=True, gc=False):
    """A line of a watch.

    Attributes:
        type: ``ADDED``, ``MODIFIED``, ``DELETED`` or ``BOOKMARK``.
        metadata: of the object; of one that cannot be decoded, as much as can be.
        resource: the object; None for a bookmark and for an object that cannot be decoded.
        why: why the object cannot be decoded, or empty.
    """

    type: str
    metadata: Metadata
    resource: S | None = None
    why: str = ""


_raw_list = msgspec.json.Decoder(_ListOf[msgspec.Raw])
_any_event = msgspec.json.Decoder(_EventOf[object])
_raw_event = msgspec.json.Decoder(_EventOf[msgspec.Raw])
_error_event = msgspec.json.Decoder(_EventOf[ApiStatus])
_bookmark = msgspec.json.Decoder(_EventOf[_OnlyMetadata])
_any_metadata = msgspec.json.Decoder(_AnyMetadata)

_TOO_LONG = f"longer than {LONGEST >> 20} MiB"
_TOKEN = re.compile(rb'"(?>(?:[^"\\]++|\\.)*)"?|[\[\]{},]', re.DOTALL)


# The readers below catch every exception of a decoder. Tenants choose the bytes, for which msgspec
# also raises errors that are not its own (RecursionError, UnicodeDecodeError).


class Reader(Generic[S]):
    """Decodes answers that hold one object of a kind."""

    def __init__(self, kind: type[S], name: str) -> None:
        """Decode to ``kind``, a struct that error messages call ``name``."""
        self._decoder = msgspec.json.Decoder(kind)
        self._name = name

    def read(self, body: bytes) -> S:
        """Decode one answer; `UnreadableError` if that is not possible."""
        try:
            return self._decoder.decode(body)
        except Exception:  # Perhaps it is nested too deeply; the second attempt decides.
            try:
                return self._decoder.decode(shallow(body))
            except Exception as error:
                raise UnreadableError(f"the answer is no {self._name}: {problem(error)}") from error


class PageReader(Generic[T]):
    """Decodes pages of a list."""

    def __init__(self, kind: type[T]) -> None:
        """Decode items to ``kind``."""
        self._page = msgspec.json.Decoder(_ListOf[kind])
        self._item = msgspec.json.Decoder(kind)

    async def read(self, body: bytes) -> Page[T]:
        """Decode one page; `UnreadableError` if it is no list."""
        try:
            page = self._page.decode(body)
            return Page(page.metadata.resource_version, page.metadata.next, page.items or [])
        except Exception:  # Find out which objects cannot be decoded.
            text = await _cut(body)
        try:
            raw = _raw_list.decode(text)
        except Exception as error:
            raise UnreadableError(f"the answer is no list: {problem(error)}") from error
        items, unreadable = list[T](), list[Unreadable]()
        for item in raw.items or ():
            try:
                items.append(self._item.decode(item))
            except Exception as error:
                key = key_of(_OnlyMetadata(_identity(item)))
                unreadable.append(Unreadable(key, problem(error)))
        return Page(raw.metadata.resource_version, raw.metadata.next, items, tuple(unreadable))

    def read_beginning(self, beginning: bytes) -> Page[T]:
        """Read a page of one object that is longer than `LONGEST`; `UnreadableError` if unknown."""
        try:
            page = _raw_list.decode(_closed(beginning, 4))
            [item] = page.items or []
        except Exception as error:
            raise UnreadableError(
                f"an object {_TOO_LONG} is not known: {problem(error)}"
            ) from error
        unreadable = Unreadable(key_of(_OnlyMetadata(_identity(item))), _TOO_LONG)
        return Page(page.metadata.resource_version, page.metadata.next, [], (unreadable,))


class EventReader(Generic[T]):
    """Decodes lines of a watch."""

    def __init__(self, kind: type[T]) -> None:
        """Decode objects to ``kind``."""
        self._event = msgspec.json.Decoder(_EventOf[kind])
        self._object = msgspec.json.Decoder(kind)

    async def read(self, line: bytes | Oversized) -> Event[T]:
        """Decode one line; of an oversized one, which object it is about.

        Raises:
            ApiError: the server ended the stream with a Status.
            UnreachableError: the line is no event; most likely it was cut.
        """
        if isinstance(line, Oversized):
            return _oversized_event(line.beginning)
        with suppress(Exception):  # A bookmark, a Status, or an object that cannot be decoded.
            event = self._event.decode(line)
            if event.type not in {"ERROR", "BOOKMARK"}:
                return Event(event.type, event.object.metadata, event.object)
        if not line.endswith(b"\n"):
            raise UnreachableError("the stream was cut within an event")
        text = await _cut(line)
        try:
            kind = await _type(text)
            if kind == "ERROR":
                raise _error_event.decode(text).object.error()
            if kind == "BOOKMARK":
                return Event(kind, _bookmark.decode(text).object.metadata)
        except ValueError as error:
            raise UnreachableError(f"the stream brought no event: {problem(error)}") from error
        try:
            resource = self._object.decode(_raw_event.decode(text).object)
        except Exception as error:
            return Event(kind, await _event_identity(text), why=problem(error))
        return Event(kind, resource.metadata, resource)


async def _type(text: bytes) -> str:
    """The type of an event; its object may be no JSON."""
    with suppress(ValueError):
        return _raw_event.decode(text).type
    return _any_event.decode(await _cut(text, 1)).type


def _oversized_event(beginning: bytes) -> Event[Any]:
    try:
        event = _raw_event.decode(_closed(beginning, 3))
    except ValueError as error:
        raise UnreachableError(f"the stream brought no event: {problem(error)}") from error
    if event.type not in {"ADDED", "MODIFIED", "DELETED"}:
        raise UnreachableError(f"the stream brought no event, but a line {_TOO_LONG}")
    return Event(event.type, _identity(event.object), why=_TOO_LONG)


async def _event_identity(text: bytes) -> Metadata:
    try:
        return _identity(_raw_event.decode(await _cut(text, 3)).object)
    except ValueError:
        return Metadata()


def _identity(body: bytes | msgspec.Raw) -> Metadata:
    """Read which object this is; what cannot be decoded of that is empty. Never raises."""
    text = bytes(body)
    if len(text) > BEGINNING:  # The whole text may have too many values to look for its name.
        metadata = _named(_closed(text[:BEGINNING], 2))
        if metadata.name:
            return metadata
    with suppress(ValueError):
        return _named(shallow(text, deepest=2))
    return Metadata()


def _named(text: bytes) -> Metadata:
    try:
        metadata = _any_metadata.decode(text).metadata
    except Exception:  # The object counts as unreadable already.
        return Metadata()
    name, namespace, uid, version = (
        value if isinstance(value := metadata.get(field), str) else ""
        for field in ("name", "namespace", "uid", "resourceVersion")
    )
    return Metadata(name=name, namespace=namespace, uid=uid, resource_version=version)


def _closed(beginning: bytes, deepest: int) -> bytes:
    """Complete a JSON text that was cut off, without its last value up to ``deepest`` levels."""
    ends, cut, missing = list[bytes](), 0, b""
    for token in _TOKEN.finditer(beginning):
        match token[0]:
            case b"{" | b"[" as begin:
                ends.append(b"}" if begin == b"{" else b"]")
            case b"}" | b"]" if ends:
                ends.pop()
            case b"," if len(ends) <= deepest:
                cut, missing = token.start(), b"".join(reversed(ends))
            case _:
                pass
    return beginning[:cut] + missing


async def _cut(body: bytes, deepest: int = DEEPEST) -> bytes:
    """`shallow` for a text of any size; yields to the event loop now and then."""
    work = cutting(body, deepest)
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value
        await asyncio.sleep(0)
