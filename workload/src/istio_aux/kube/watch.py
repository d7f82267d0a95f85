"""Watches one collection forever, and passes changes to handlers.

The rules follow client-go's reflector: list, watch from the list's resourceVersion, keep the newest
version from events and bookmarks, list again when the server has forgotten that version.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Generic, Protocol, TypeVar

from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.clock import TIMING, Timing, now
from istio_aux.kube.errors import (
    ApiError,
    Backoff,
    KubeError,
    NoConnectionError,
    SilentError,
    UnreachableError,
    gap,
    jittered,
    retry_after,
)
from istio_aux.kube.objects import Event, Key, Resource, T, Unreadable, read_event

_log = logging.getLogger(__name__)

BATCH = 50  # Objects after which other tasks get a turn.
UNREADABLE = 1000  # Unreadable objects that are stored and logged, at most.

T_contra = TypeVar("T_contra", bound=Resource, contravariant=True)


class Handler(Protocol[T_contra]):
    """Receives the objects of one collection. Each list brings all: both methods are idempotent.

    If one raises an exception, it gets the object again from the next list, or when that changes.
    """

    def apply(self, resource: T_contra) -> None:
        """The object exists and looks like this."""

    def delete(self, key: Key, last: T_contra | None, /) -> None:
        """The object is gone, or has left the selection: a watch shows no difference.

        ``last`` is the object in the DELETED event, as it was before it left (apiserver cacher.go);
        None if a list no longer has it, or if it cannot be decoded.
        """


class Collection(dict[Key, T]):
    """A handler that keeps what ``keep`` returns of the objects, and calls ``changed`` then."""

    def __init__(self, changed: Callable[[], None], keep: Callable[[T], T]) -> None:
        super().__init__()
        self._changed = changed
        self._keep = keep

    def apply(self, resource: T) -> None:
        """The object exists and looks like this."""
        self[resource.metadata.key] = self._keep(resource)
        self._changed()

    def delete(self, key: Key, _last: T | None) -> None:
        """The object is gone."""
        self.pop(key, None)
        self._changed()


class _WentBackError(KubeError):
    """A version is older than one before it: the server's storage was restored."""


class Watch(Generic[T]):
    """The watch of one collection."""

    def __init__(
        self,
        client: Client,
        path: str,
        kind: type[T],
        *handlers: Handler[T],
        failed: Callable[[Key, Exception], None],
        selection: Mapping[str, str] | None = None,
        restarted: Callable[[str], None] = lambda _reason: None,
        timing: Timing = TIMING,
        backoff: Backoff | None = None,
    ) -> None:
        """Prepare to watch the collection at ``path``; no request is sent before `run`.

        The handlers receive each change in this order. One that raises does not stop the others;
        ``failed`` gets the exception. ``selection`` has ``labelSelector`` and ``fieldSelector``.
        ``restarted`` is told why a stream ended, in one of a few words.
        """
        self.synced = asyncio.Event()  # Set after the first complete list, and never cleared.
        self._alive_at: float | None = None
        self.refused = False  # Whether the server ever refused, as without a permission.
        self.trouble: str | None = None  # Why the last attempt failed; None while all is well.
        # Why objects cannot be decoded, at most `UNREADABLE`: handlers keep what they knew of them.
        self.unreadable: dict[Key, str] = {}
        self._client = client
        self.path = path
        self._handlers = handlers
        self._failed = failed
        self._selection = dict(selection or {})
        self._restarted = restarted
        self._timing = timing
        # Lists and streams have each a backoff: a watch that fails after each list must pause, too.
        self._listing = backoff or Backoff(first=0.25, longest=30.0)
        self._watching = copy.copy(self._listing)
        self._kind = kind
        self._version = ""
        self._known = set[Key]()
        self._furthest = 0  # Objects of the longest list that failed.

    @property
    def silent(self) -> float:
        """Seconds since the last progress.

        Progress is an event, a bookmark, a stream that begins or ends well, and objects of a list,
        unless an earlier list failed after them. `Timing.silence` is the most of a live watch.
        """
        return 0.0 if self._alive_at is None else now() - self._alive_at

    async def run(self) -> None:
        """Watch until cancelled."""
        self._alive_at = now()
        while True:
            backoff = self._listing
            try:
                until = now() + jittered(self._timing.relist)
                await self._list()
                backoff = self._watching
                while now() < until:
                    await self._stream(until)
                self._restarted("relist")
            except KubeError as error:
                self.refused |= self._note(error) == "refused"
                await asyncio.sleep(max(backoff.next(), retry_after(error)))

    def _note(self, error: KubeError) -> str:
        """Record an error that ended a list or a stream; returns its reason."""
        reason = _reason(error)
        self._restarted(reason)
        # A version that is too old is normal; anything else is trouble.
        self.trouble = (
            None if reason == "expired" else gap(error, f"list {self.path.rpartition('/')[2]}")
        )
        _log.log(
            logging.INFO if reason == "expired" else logging.WARNING,
            "watch %s: %s",
            self.path,
            error,
            extra={"event": "watch", "reason": reason},
        )
        return reason

    async def _list(self) -> None:
        """List the whole collection in pages; deliver all of it, and what is gone."""
        # `gone` starts with the known keys: a set of the listed ones would take 20 % more memory.
        version = ""
        listed = 0
        gone = set[Key]()

        def begin() -> None:
            nonlocal listed
            listed = 0
            gone.update(self._known, self.unreadable)

        begin()
        async for page in actions.pages(
            self._client, self.path, self._kind, self._selection, restarted=begin
        ):
            version = page.metadata.resource_version
            for unreadable in page.unreadable:
                self._keep(unreadable)
            for number, resource in enumerate(page.items):
                self._apply(resource)
                if number % BATCH == 0:
                    await asyncio.sleep(0)
            keys = [
                *(each.metadata.key for each in page.items),
                *(each.key for each in page.unreadable),
            ]
            gone.difference_update(keys)
            listed += len(keys)
            if not all(key.uid for key in keys):
                gone.clear()  # An unreadable object without a UID may be any of these.
            page.items.clear()  # Free their memory before the next page comes.
            # The objects of a list that fails again and again are no progress.
            if listed > self._furthest:
                self._furthest, self._alive_at = listed, now()
        for key in sorted(gone):  # A set has another order in each process.
            self._delete(key)
        self._furthest, self._alive_at = 0, now()
        self._listing.reset()
        self.synced.set()
        self._advance(version)

    def _advance(self, version: str) -> None:
        before, self._version = self._version, version
        self.trouble = None
        numbers = all(text.isdecimal() and len(text) < 20 for text in (version, before))
        if numbers and int(version) < int(before):  # Versions are integers (KEP-5504).
            self._version = ""
            raise _WentBackError(f"versions went back from {before} to {version}: a restored etcd?")

    async def _stream(self, until: float) -> None:
        """Watch from the known version until the stream ends; raises `KubeError` if that is bad."""
        seconds = max(1, round(min(jittered(self._timing.stream), until - now())))
        opened = now()
        version = self._version
        params = {
            **self._selection,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        }
        try:
            # A server that does not end the stream in time must not delay the next list.
            async with asyncio.timeout(seconds * 1.1):
                await self._read(params)
                self._alive_at = now()
        except TimeoutError:
            pass
        except KubeError as error:
            if not self._resumable(error, version):
                raise
            # The version is good: it costs less to resume than to list.
            self._note(error)
            await asyncio.sleep(max(self._watching.next(), retry_after(error)))
            return
        if self._version == version and now() - opened < 1.0:
            raise UnreachableError("the stream ended as soon as it began")
        self._restarted("ended")

    def _resumable(self, error: KubeError, version: str) -> bool:
        """Whether a stream that began at ``version`` can be resumed after ``error``.

        As in client-go: when no request arrived, or the server was too busy. A stream that broke
        before it brought a newer version may be broken by its version.
        """
        if isinstance(error, NoConnectionError):
            return True
        if error.code:
            return error.code in {429, 502, 503}
        return isinstance(error, UnreachableError) and self._version != version

    async def _read(self, params: Mapping[str, str]) -> None:
        number = 0
        async with aclosing(
            self._client.watch(self.path, params, silence=self._timing.silence)
        ) as lines:
            async for line in lines:
                self._alive_at = now()
                if line:  # An empty line: the watch is accepted, and misses nothing from now on.
                    self._deliver(await read_event(line, self._kind))
                    number += 1
                    if number % BATCH == 0:
                        await asyncio.sleep(0)

    def _deliver(self, event: Event[T]) -> None:
        if event.type == "DELETED":
            self._delete(event.metadata.key, event.resource)
        elif event.why:
            self._keep(Unreadable(event.metadata.key, event.why))
        elif event.resource is not None and event.type in {"ADDED", "MODIFIED"}:
            self._apply(event.resource)
        self._watching.reset()
        self._advance(event.metadata.resource_version or self._version)

    def _apply(self, resource: T) -> None:
        key = resource.metadata.key
        self.unreadable.pop(key, None)
        self._known.add(key)
        self._tell(key, (handler.apply for handler in self._handlers), resource)

    def _keep(self, unreadable: Unreadable) -> None:
        """An object exists, but cannot be decoded: handlers keep what they knew of it."""
        key = unreadable.key
        if key not in self.unreadable and len(self.unreadable) < UNREADABLE:
            _log.error(
                "%s: cannot read %s",
                self.path,
                unreadable,
                extra={"event": "unreadable", "object": str(key), "uid": key.uid},
            )
            self.unreadable[key] = unreadable.why

    def _delete(self, key: Key, last: T | None = None) -> None:
        self.unreadable.pop(key, None)
        deletes = (handler.delete for handler in self._handlers)
        if key in self._known and self._tell(key, deletes, key, last):
            self._known.discard(key)

    def _tell(self, key: Key, calls: Iterable[Callable[..., None]], *what: object) -> bool:
        """Pass a change to the handlers; return whether none of them has failed."""
        good = True
        for call in calls:
            try:
                call(*what)
            except Exception as error:  # One object must not stop the watch.
                self._failed(key, error)
                good = False
        return good


def _reason(error: KubeError) -> str:
    """Return the metric's label for an error: one of a few values."""
    match error:
        case _WentBackError():
            return "went-back"
        case SilentError():
            return "silent"
        case ApiError(code=410) | ApiError(reason="Expired" | "Gone"):
            return "expired"
        case ApiError(code=429):
            return "throttled"
        case ApiError(code=code):
            return "server-error" if code >= 500 else "refused"
        case _:
            return "connection"
