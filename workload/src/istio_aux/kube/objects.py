"""Objects of the API: how to name one, and how to decode answers, pages of lists and watch events.

Tenants write most of an object, so an object that cannot be decoded must not cost its neighbours.
The plain decoder comes first. A text that it cannot read is cut (`model.documents`) and decoded
again, object by object. An object begins with its identity, before anything that tenants write.
"""

from __future__ import annotations

import re
import types
from typing import Any, Generic, TypeVar

import msgspec

from istio_aux.kube.errors import ApiError, UnreachableError, UnreadableError
from istio_aux.model.documents import Cooperative, cutting, shallow
from istio_aux.model.pod import Key, Metadata, Resource
from istio_aux.model.text import problem

# Bytes that are read of an answer, or of a line of a watch. etcd stores objects up to 1.5 MiB
# (--max-request-bytes), and JSON writes each of their bytes as six at most: ``<`` as ``\u003c``.
LONGEST = 10 << 20
BEGINNING = 4 << 10  # Bytes that are kept of a longer text.


T = TypeVar("T", bound=Resource)
S = TypeVar("S")


class Unreadable(msgspec.Struct, frozen=True):
    """An object that cannot be decoded. Unknown fields of ``key`` are empty."""

    key: Key
    why: str

    def __str__(self) -> str:
        return f"{self.key if self.key.name else 'an object without a readable name'}: {self.why}"


class Oversized(bytes):
    """The beginning of a line that is longer than `LONGEST`."""


class _Cause(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _Details(msgspec.Struct, frozen=True, rename="camel"):
    retry_after_seconds: float | None = None
    causes: tuple[_Cause, ...] | None = None


class ApiStatus(msgspec.Struct, frozen=True, rename="camel"):
    """meta/v1 Status, how the API server reports an error."""

    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None

    def error(self, *, code: int = 0, retry_after: float | None = None) -> ApiError:
        """Turn the status into an exception; the arguments fill what it lacks."""
        seconds = self.details.retry_after_seconds if self.details else None
        return ApiError(
            self.code or code,
            self.message or "no message",
            reason=self.reason,
            retry_after=seconds if seconds is not None else retry_after,
        )


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """The version of a list, and where its next page begins."""

    resource_version: str = ""
    next: str = msgspec.field(name="continue", default="")  # Empty on the last page.


class _ListOf(msgspec.Struct, Generic[S], frozen=True):
    metadata: ListMeta
    items: list[S] | None = None


class Page(msgspec.Struct, Generic[S], frozen=True):
    """A page of a list."""

    metadata: ListMeta
    items: list[S]
    unreadable: tuple[Unreadable, ...] = ()


class Event(msgspec.Struct, Generic[S], frozen=True, gc=False):
    """A line of a watch."""

    type: str  # ``ADDED``, ``MODIFIED``, ``DELETED`` or ``BOOKMARK``.
    metadata: Metadata  # For an object that cannot be decoded: what can be read.
    # The object; None for a bookmark and for an object that cannot be decoded.
    resource: S | None = None
    why: str = ""  # Why the object cannot be decoded, or empty.


_TOO_LONG = f"longer than {LONGEST >> 20} MiB"

# How the API server begins an object, a page and an event: in the order of Go's structs
# (apimachinery TypeMeta, ObjectMeta, ListMeta, WatchEvent). Custom resources have another order.
_TYPE = rb'\{(?:"(?:kind|apiVersion)":"[^"\\]*+",){0,2}"metadata":\{'
_TEXT = rb'"([^"\\]*+)",?'
_OBJECT = re.compile(
    _TYPE + rb'(?:"name":' + _TEXT + rb')?(?:"generateName":"[^"\\]*+",?)?'
    rb'(?:"namespace":' + _TEXT + rb')?(?:"uid":' + _TEXT + rb")?"
    rb'(?:"resourceVersion":' + _TEXT + rb")?"
)
_LIST = re.compile(
    _TYPE + rb'(?:"resourceVersion":' + _TEXT + rb')?(?:"continue":' + _TEXT + rb")?"
    rb'(?:"remainingItemCount":[0-9]++)?\},"items":\['
)
_EVENT = re.compile(rb'\{"type":"(ADDED|MODIFIED|DELETED|BOOKMARK|ERROR)","object":')


# The readers below catch every exception of a decoder. Tenants choose the bytes, for which msgspec
# also raises errors that are not its own (RecursionError, UnicodeDecodeError).


def decoded(body: bytes, kind: type[S], name: str = "") -> S:
    """Decode one object, which messages call ``name``; `UnreadableError` if it is none."""
    try:
        return msgspec.json.decode(body, type=kind)
    except Exception:  # The object may be nested too deeply: try again without that.
        try:
            return msgspec.json.decode(shallow(body), type=kind)
        except Exception as error:
            raise UnreadableError(
                f"the answer is no {name or kind.__name__.lstrip('_')}: {problem(error)}"
            ) from error


async def read_page(body: bytes, kind: type[T]) -> Page[T]:
    """Decode one page of a list; `UnreadableError` if it is none."""
    try:
        page = msgspec.json.decode(body, type=_ListOf[kind])
        return Page(page.metadata, page.items or [])
    except Exception:  # Decode one by one, to find out which cannot be decoded.
        text = await run_cooperatively(cutting(body))
    raw = decoded(text, _ListOf[msgspec.Raw], "list")
    items = list[T]()
    unreadable = list[Unreadable]()
    for item in raw.items or ():
        try:
            items.append(msgspec.json.decode(item, type=kind))
        except Exception as error:
            unreadable.append(Unreadable(_identity(bytes(item)).key, problem(error)))
    return Page(raw.metadata, items, tuple(unreadable))


def read_beginning(beginning: bytes) -> Page[Any]:
    """Read a page whose one object is over `LONGEST`; `UnreadableError` if that is unknown."""
    page = _LIST.match(beginning)
    if page is None:
        raise UnreadableError(f"an object {_TOO_LONG} is not known")
    unreadable = Unreadable(_identity(beginning, page.end()).key, _TOO_LONG)
    return Page(ListMeta(*_texts(page)), [], (unreadable,))


async def read_event(line: bytes | Oversized, kind: type[T]) -> Event[T]:
    """Decode one line of a watch; an oversized one only as far as its object's identity.

    `ApiError`: a Status ends the stream. `UnreachableError`: the line was probably cut.
    """
    why = _TOO_LONG if isinstance(line, Oversized) else ""
    head = _EVENT.match(line)
    if head is None or not (why or line.endswith(b"}\n")):
        raise UnreachableError("the stream was cut, or brought no event")
    change = head[1].decode()
    body = line[head.end() : -len("}\n")]
    if change == "ERROR":
        raise decoded(body, ApiStatus, "Status").error()
    if change != "BOOKMARK" and not why:
        try:
            try:
                resource = msgspec.json.decode(body, type=kind)
            except Exception:
                resource = msgspec.json.decode(await run_cooperatively(cutting(body)), type=kind)
            return Event(change, resource.metadata, resource)
        except Exception as error:
            why = problem(error)
    return Event(change, _identity(body), why=why)


def _identity(text: bytes, begin: int = 0) -> Metadata:
    """Read the identity of the object that begins there; unreadable fields are empty."""
    head = _OBJECT.match(text, begin)
    name, namespace, uid, version = _texts(head) if head else ("", "", "", "")
    return Metadata(name=name, namespace=namespace, uid=uid, resource_version=version)


def _texts(match: re.Match[bytes]) -> tuple[str, ...]:
    return tuple(text.decode(errors="replace") for text in match.groups(b""))


@types.coroutine
def run_cooperatively(work: Cooperative[S]) -> Cooperative[S]:
    """Do ``work``; other tasks have a turn whenever it yields, as by `asyncio.sleep` of 0."""
    return (yield from work)
