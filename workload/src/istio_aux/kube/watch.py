"""List and watch one collection for ever, and tell a handler what is there and what is gone.

Only the keeping-in-step with the API server may live here: nothing about what the objects mean. The
rules follow client-go's reflector: list, watch from the list's resourceVersion, keep the newest
version from events and bookmarks, list again when the server has forgotten ours.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Generic, Protocol, TypeVar

import msgspec

from istio_aux.kube.backoff import Backoff
from istio_aux.kube.client import Client, Status
from istio_aux.kube.errors import ApiError, KubeError, SilentError, UnreachableError
from istio_aux.kube.lists import Lister
from istio_aux.kube.resources import Key, Marked, Resource, T, key_of

_log = logging.getLogger(__name__)

SILENCE = 70.0
"""Seconds without a byte after which a watch counts as dead: bookmarks come about every 60 s."""

STREAM = 300.0
"""Seconds (more or less a tenth) that the server is asked to keep one stream open."""

RELIST = 600.0
"""Seconds between full lists: the bound on what a watch that lies can cost."""


T_contra = TypeVar("T_contra", bound=Resource, contravariant=True)
Item = TypeVar("Item")

BATCH = 50
"""Objects of a list that are delivered at a stretch, so that reviews need not wait for 500."""


class Handler(Protocol[T_contra]):
    """Who wants to know. Both verbs may be called again with what is known already."""

    def apply(self, resource: T_contra) -> None:
        """The object exists and looks like this."""
        ...

    def delete(self, key: Key) -> None:
        """The object is gone, or has left the selection: which of the two is not known."""
        ...


class _Event(msgspec.Struct, Generic[Item], frozen=True):
    type: str
    object: Item


_raw_event = msgspec.json.Decoder(_Event[msgspec.Raw])
_status = msgspec.json.Decoder(Status)
_marked = msgspec.json.Decoder(Marked)


class Watch(Generic[T]):
    """One collection, kept in step.

    Attributes:
        synced: set after the first complete list, and never cleared.
        trouble: what the last attempt failed with, in one line; None while all is well.
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
        self.trouble: str | None = None
        self._client, self._path, self._handler = client, path, handler
        self._selection = dict(selection or {})
        self._restarted = restarted
        self._silence, self._stream, self._relist = silence, stream, relist
        self._backoff = backoff or Backoff(first=0.25, longest=30.0)
        self._lister = Lister(client, path, kind)
        self._event = msgspec.json.Decoder(_Event[kind])
        self._version = ""
        self._known: dict[Key, str] = {}

    async def run(self) -> None:
        """Keep in step until cancelled. Raises only what the handler raises."""
        while True:
            try:
                await self._list()
                listed = time.monotonic()
                while time.monotonic() - listed < self._relist:
                    await self._follow(listed + self._relist)
                self._restarted("relist")
            except KubeError as error:
                reason = _reason(error)
                self._restarted(reason)
                # A version that is too old is a matter of course; anything else is trouble.
                log = _log.info if reason == "expired" else _log.warning
                self.trouble = None if reason == "expired" else f"{self._path}: {error}"
                log("watch %s: %s", self._path, error, extra={"event": "watch", "reason": reason})
                asked = error.retry_after if isinstance(error, ApiError) else None
                await asyncio.sleep(max(self._backoff.next(), asked or 0.0))

    async def _list(self) -> None:
        """Read the whole collection; deliver what is new or other, and what has vanished."""
        seen: dict[Key, str] = {}
        version = ""
        async for page in self._lister.pages(self._selection):
            version = page.metadata.resource_version
            for number, resource in enumerate(page.items or ()):
                key = key_of(resource)
                seen[key] = resource.metadata.resource_version
                self._apply(key, resource)
                if number % BATCH == 0:
                    await asyncio.sleep(0)
        for key in self._known.keys() - seen.keys():
            self._delete(key)
        self._version = version
        self.trouble = None
        self.synced.set()

    async def _follow(self, until: float) -> None:
        """Watch from the known version until the stream ends in order, or raise `KubeError`."""
        jitter = random.uniform(0.9, 1.1)  # noqa: S311  (spreads load, guards nothing)
        seconds = max(1, round(min(jitter * self._stream, until - time.monotonic())))
        params = {
            **self._selection,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(seconds),
        }
        opened, version = time.monotonic(), self._version
        try:
            # The server ends the stream; one that does not must not put off the next list.
            async with asyncio.timeout(seconds * 1.1):
                await self._read(params)
        except TimeoutError:
            pass
        except UnreachableError as error:
            if self._version == version:
                raise
            # The stream brought us on, and its last version is good: that costs less than a list.
            self._restarted(_reason(error))
            await asyncio.sleep(self._backoff.next())
            return
        if self._version == version and time.monotonic() - opened < 1.0:
            raise UnreachableError("the stream ended as soon as it began")
        self._restarted("ended")

    async def _read(self, params: Mapping[str, str]) -> None:
        lines = self._client.watch(self._path, params, silence=self._silence)
        async with aclosing(lines):
            async for line in lines:
                self._take(line)
                self._backoff.reset()
                self.trouble = None

    def _take(self, line: bytes) -> None:
        """Act on one line of the stream."""
        try:
            event = self._event.decode(line)
            self._deliver(event.type, event.object, line)
        except msgspec.ValidationError:
            self._take_unusual(line)
        except msgspec.DecodeError as error:
            raise UnreachableError("the stream was cut within an event") from error

    def _take_unusual(self, line: bytes) -> None:
        """Act on a line whose object is not of our kind: a Status, a bookmark, or a surprise."""
        try:
            event = _raw_event.decode(line)
            if event.type == "ERROR":
                raise _status.decode(event.object).error()
            marked = _marked.decode(event.object)
        except msgspec.ValidationError as error:
            raise UnreachableError(f"the stream brought no event: {error}") from error
        if event.type != "BOOKMARK":
            name = str(key_of(marked))
            _log.error("%s: %s: cannot be read", self._path, name, extra={"event": "malformed"})
        self._version = marked.metadata.resource_version or self._version

    def _deliver(self, kind: str, resource: T, line: bytes) -> None:
        if kind == "ERROR":
            raise _status.decode(_raw_event.decode(line).object).error()
        if kind in {"ADDED", "MODIFIED"}:
            self._apply(key_of(resource), resource)
        elif kind == "DELETED":
            self._delete(key_of(resource))
        self._version = resource.metadata.resource_version or self._version

    def _apply(self, key: Key, resource: T) -> None:
        version = resource.metadata.resource_version
        if self._known.get(key) != version:
            self._known[key] = version
            self._handler.apply(resource)

    def _delete(self, key: Key) -> None:
        if self._known.pop(key, None) is not None:
            self._handler.delete(key)


def _reason(error: KubeError) -> str:
    """The metric's label for an error: few values, whatever the server says."""
    if isinstance(error, SilentError):
        return "silent"
    if not isinstance(error, ApiError):
        return "connection"
    if error.code == 410 or error.reason in {"Expired", "Gone"}:
        return "expired"
    if error.code == 429:
        return "throttled"
    return "server-error" if error.code >= 500 else "refused"
