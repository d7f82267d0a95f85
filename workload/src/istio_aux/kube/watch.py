"""List and watch one collection for ever, and tell a handler what is there and what is gone.

Only the keeping-in-step with the API server may live here: nothing about what the objects mean. The
rules follow client-go's reflector: list, watch from the list's resourceVersion, keep the newest
version from events and bookmarks, list again when the server has forgotten ours. Where the server
can, the list is the beginning of the watch (KEP-3157), one object at a time on one connection.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Generic, Protocol, TypeVar

from istio_aux.kube.backoff import Backoff, jittered
from istio_aux.kube.client import Client
from istio_aux.kube.errors import (
    ApiError,
    KubeError,
    NoConnectionError,
    SilentError,
    UnreachableError,
    asked,
)
from istio_aux.kube.lines import Lines
from istio_aux.kube.lists import Lister, Unreadable
from istio_aux.kube.resources import Key, Resource, T, key_of

_log = logging.getLogger(__name__)

SILENCE = 70.0
"""Seconds without a byte after which a watch counts as dead: bookmarks come about every 60 s."""

STREAM = 300.0
"""Seconds (more or less a tenth) that the server is asked to keep one stream open."""

RELIST = 600.0
"""Seconds (more or less a tenth) between full lists: the bound on what a watch that lies can cost.
Also for how long lists come in pages after a streaming list that failed."""

BATCH = 50
"""Objects that are delivered at a stretch, so that reviews need not wait for a whole list."""

INITIAL = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
"""What makes a watch begin with all that is there, as new as a list would have it."""

UNREADABLE = 1000
"""Objects that cannot be read and are remembered, and named in the log; no more are."""

T_contra = TypeVar("T_contra", bound=Resource, contravariant=True)


class Handler(Protocol[T_contra]):
    """Receives changes of one collection. Both methods are idempotent."""

    def apply(self, resource: T_contra) -> None:
        """The object exists and looks like this."""
        ...

    def delete(self, key: Key, last: T_contra | None, /) -> None:
        """The object is gone, or has left the selection; the two look alike.

        Args:
            key: which object.
            last: what the DELETED event carried, None where a list no longer has the object, or
                the event's object cannot be read. An object that leaves a selection comes with
                its previous content (apiserver cacher.go), which was still selected.
        """
        ...


class _NoStreamError(KubeError):
    """The server has no streaming lists, or could not complete this one."""


class _WentBackError(KubeError):
    """A version is older than one before it: the server's storage was restored."""


class Watch(Generic[T]):
    """One collection, kept in step.

    Attributes:
        synced: set after the first complete list, and never cleared.
        refused: whether the server has ever said no, as it does where a right is missing.
        path: of the collection.
        trouble: what the last attempt failed with, in one line; None while all is well.
        unreadable: why objects that are there cannot be read, at most `UNREADABLE` of them. What
            was known of them before stays.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        kind: type[T],
        handler: Handler[T],
        *,
        selection: Mapping[str, str] | None = None,
        restarted: Callable[[str], None] = lambda _reason: None,
        silence: float = SILENCE,
        stream: float = STREAM,
        relist: float = RELIST,
        backoff: Backoff | None = None,
    ) -> None:
        """Prepare; nothing is asked before `run`.

        Args:
            client: an open client.
            path: of the collection, such as ``/api/v1/pods``.
            kind: msgspec struct that an object decodes to.
            handler: is told of every change, from the loop that `run` runs in.
            selection: ``labelSelector`` and ``fieldSelector``.
            restarted: is called with a word from a small fixed set whenever a stream ended.
            silence: see `SILENCE`.
            stream: see `STREAM`.
            relist: see `RELIST`.
            backoff: how long to wait after consecutive errors.
        """
        self.synced = asyncio.Event()
        self._heard = time.monotonic()
        self.refused = False
        self.trouble: str | None = None
        self.unreadable: dict[Key, str] = {}
        self._client, self.path, self._handler = client, path, handler
        self._selection = dict(selection or {})
        self._restarted = restarted
        self._silence, self._stream, self._relist = silence, stream, relist
        # Apart, so that a watch that fails whenever its list was complete is not asked for lists
        # without a pause.
        self._listing = backoff or Backoff(first=0.25, longest=30.0)
        self._watching = copy.copy(self._listing)
        self._lister = Lister(client, path, kind)
        self._lines = Lines(kind)
        self._streams = True  # Whether the next list is to be a streaming one.
        self._version = ""
        self._known: dict[Key, str] = {}
        self._missing: set[Key] | None = None

    @property
    def silent(self) -> float:
        """Seconds since the last sign of life: a stream began or ended well, or said something.

        Of a watch that is alive that is `SILENCE` at most, and what a new list takes.
        """
        return time.monotonic() - self._heard

    async def run(self) -> None:
        """Keep in step until cancelled. Raises only what the handler raises."""
        self._heard = time.monotonic()
        while True:
            backoff = self._listing
            try:
                until = time.monotonic() + jittered(self._relist)
                if self._streams:
                    await self._follow(until, initial=True)
                else:
                    await self._list()
                backoff = self._watching
                while time.monotonic() < until:
                    await self._follow(until)
                # A server without streaming lists may have been replaced by one that has them.
                self._streams = True
                self._restarted("relist")
            except _NoStreamError as error:
                self._streams = False
                _log.info("watch %s: lists in pages: %s", self.path, error,
                          extra={"event": "watch", "reason": "no-streams"})  # fmt: skip
            except KubeError as error:
                reason = self._note(error)
                self.refused |= reason == "refused"
                await asyncio.sleep(max(backoff.next(), asked(error)))

    def _note(self, error: KubeError) -> str:
        """Tell of an error that ended a list or a stream; returns its kind."""
        reason = _reason(error)
        self._restarted(reason)
        # A version that is too old is a matter of course; anything else is trouble.
        log = _log.info if reason == "expired" else _log.warning
        self.trouble = None if reason == "expired" else f"{self.path}: {error}"
        log("watch %s: %s", self.path, error, extra={"event": "watch", "reason": reason})
        return reason

    async def _list(self) -> None:
        """Read the whole collection; deliver what is new or other, and what has vanished."""
        self._begin()
        version = ""
        async for page in self._lister.pages(self._selection, self._begin):
            version, self._heard = page.metadata.resource_version, time.monotonic()
            for found in page.unreadable:
                self._spare(found)
            for number, resource in enumerate(page.items):
                self._apply(resource)
                if number % BATCH == 0:
                    await asyncio.sleep(0)
        self._complete(version)

    def _begin(self) -> None:
        """A list begins: what is known and does not come in it is gone."""
        self._missing = {*self._known, *self.unreadable}

    def _complete(self, version: str) -> None:
        """A list is complete: what was known and did not come is gone."""
        for key in self._missing or ():
            self._delete(key)
        self._missing = None
        before, self._version = self._version, version
        self.trouble = None
        self._listing.reset()
        self.synced.set()
        if _older(version, before):
            raise self._went_back(version, before)

    def _went_back(self, version: str, before: str) -> _WentBackError:
        """Let the next list tell everything: an old version may have another content now."""
        self._known = dict.fromkeys(self._known, "")
        self._version = ""
        return _WentBackError(f"versions went back from {before} to {version}: a restored etcd?")

    async def _follow(self, until: float, *, initial: bool = False) -> None:
        """Watch until the stream ends in order, or raise `KubeError`.

        The stream begins at the known version, or with the whole collection if ``initial``.
        """
        seconds = max(1, round(min(jittered(self._stream), until - time.monotonic())))
        params = {
            **self._selection,
            "watch": "true",
            "allowWatchBookmarks": "true",
            **(INITIAL if initial else {"resourceVersion": self._version}),
            "timeoutSeconds": str(seconds),
        }
        self._missing = None
        if initial:
            self._begin()
        opened, version = time.monotonic(), self._version
        try:
            # The server ends the stream; one that does not must not put off the next list.
            async with asyncio.timeout(seconds * 1.1):
                await self._read(params)
        except TimeoutError:
            pass
        except KubeError as error:
            if self._missing is not None and _refuses_streams(error):
                raise _NoStreamError(str(error)) from error
            if self._missing is not None or not self._resumable(error, version):
                raise
            # The version is good: to go on from it costs less than a list.
            self._note(error)
            await asyncio.sleep(max(self._watching.next(), asked(error)))
            return
        if self._missing is not None:
            raise _NoStreamError("the stream ended before all was told")
        if self._version == version and time.monotonic() - opened < 1.0:
            raise UnreachableError("the stream ended as soon as it began")
        self._heard = time.monotonic()
        self._restarted("ended")

    def _resumable(self, error: KubeError, version: str) -> bool:
        """Whether a stream that began at ``version`` can be taken up again after ``error``.

        As client-go does: where nothing was asked, and where the server turned it away for being
        busy. A stream that broke without having brought us on may be broken by its version.
        """
        if isinstance(error, NoConnectionError):
            return True
        if isinstance(error, ApiError):
            return error.code in {429, 502, 503}
        return isinstance(error, UnreachableError) and self._version != version

    async def _read(self, params: Mapping[str, str]) -> None:
        lines = self._client.watch(self.path, params, silence=self._silence)
        number = 0
        async with aclosing(lines):
            async for line in lines:
                self._heard = time.monotonic()
                if not line:
                    continue
                await self._take(line)
                number += 1
                if number % BATCH == 0:
                    await asyncio.sleep(0)

    async def _take(self, line: bytes) -> None:
        """Act on one line of the stream."""
        try:
            event = await self._lines.decode(line)
        except ApiError as error:
            if self._missing is not None and _reason(error) not in {"expired", "throttled"}:
                raise _NoStreamError(str(error)) from error  # Such as an etcd of long ago.
            raise
        if event.type == "DELETED":
            self._delete(key_of(event), event.resource)
        elif event.why:
            self._spare(Unreadable(key_of(event), event.why))
        elif event.resource is not None and event.type in {"ADDED", "MODIFIED"}:
            self._apply(event.resource)
        if self._missing is None:
            before = self._version
            self._version = event.metadata.resource_version or before
            self._watching.reset()
            self.trouble = None
            if _older(self._version, before):
                raise self._went_back(self._version, before)
        elif event.ends_initial:
            # Before it, events come in no order: only this version is one to go on from.
            self._complete(event.metadata.resource_version)

    def _apply(self, resource: T) -> None:
        key, version = key_of(resource), resource.metadata.resource_version
        if self._missing is not None:
            self._missing.discard(key)
        if self.unreadable:
            self.unreadable.pop(key, None)
        if self._known.get(key) != version:
            self._known[key] = version
            self._handler.apply(resource)

    def _spare(self, found: Unreadable) -> None:
        """An object is there that cannot be read: what is known of it stays as it is."""
        key = found.key
        if self._missing is not None:
            if key.uid:
                self._missing.discard(key)
            else:  # It may be any of those that did not come yet.
                self._missing = {k for k in self._missing if key.name and k[:2] != key[:2]}
        if key not in self.unreadable and len(self.unreadable) < UNREADABLE:
            _log.error(
                "%s: cannot read %s", self.path, found,
                extra={"event": "unreadable", "object": str(key), "uid": key.uid},
            )  # fmt: skip
            self.unreadable[key] = found.why

    def _delete(self, key: Key, last: T | None = None) -> None:
        self.unreadable.pop(key, None)
        if self._known.pop(key, None) is not None:
            self._handler.delete(key, last)


def _refuses_streams(error: KubeError) -> bool:
    """Whether another streaming list would end as this one: refused, or without a word."""
    return isinstance(error, SilentError) or (
        isinstance(error, ApiError) and error.code in {400, 422}
    )


def _older(version: str, before: str) -> bool:
    """Whether a resourceVersion came before another one; they are integers (KEP-5504)."""
    return version.isdecimal() and before.isdecimal() and int(version) < int(before)


def _reason(error: KubeError) -> str:
    """The metric's label for an error: few values, whatever the server says."""
    if isinstance(error, _WentBackError):
        return "went-back"
    if isinstance(error, SilentError):
        return "silent"
    if not isinstance(error, ApiError):
        return "connection"
    if error.code == 410 or error.reason in {"Expired", "Gone"}:
        return "expired"
    if error.code == 429:
        return "throttled"
    return "server-error" if error.code >= 500 else "refused"
