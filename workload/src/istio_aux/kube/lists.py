"""Read a whole collection, page by page, into structs.

Only that may live here. An object that cannot be read costs itself only, not its neighbours.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Generic, TypeVar

import msgspec

from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError, UnreachableError
from istio_aux.kube.resources import Marked, T, key_of

_log = logging.getLogger(__name__)

PAGE = 100
"""Objects in a page. client-go's pager asks for 500, of which the body alone is 7 MB, held twice;
smaller pages cost no more CPU."""

PATIENCE = 10
"""How often one list waits as it is told to (429); client-go tries a request as often."""

Item = TypeVar("Item")


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """meta/v1 ListMeta; ``next`` is its ``continue``, empty on the last page."""

    resource_version: str = ""
    next: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct, Generic[Item], frozen=True):
    """A page of a list."""

    metadata: ListMeta
    items: list[Item] | None = None


_raw_page = msgspec.json.Decoder(Page[msgspec.Raw])
_marked = msgspec.json.Decoder(Marked)


class Lister(Generic[T]):
    """Lists one collection. A class because decoders are built once and used often."""

    def __init__(self, client: Client, path: str, kind: type[T], *, page: int = PAGE) -> None:
        """Prepare to list ``path`` into structs of ``kind``, ``page`` objects at a time."""
        self._client, self._path, self._limit = client, path, page
        self._page = msgspec.json.Decoder(Page[kind])
        self._one = msgspec.json.Decoder(kind)

    async def pages(
        self, selection: Mapping[str, str], again: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[Page[T]]:
        """Yield all pages.

        ``again`` is called when the list has to begin again: then the pages before count for
        nothing, and objects may come twice.

        Raises:
            KubeError: a page could not be had; those before it are no complete list.
        """
        params = {**selection, "limit": str(self._limit)}
        throttled = 0
        while True:
            try:
                page = self._decode(await self._client.get(self._path, params))
            except ApiError as error:
                if "continue" not in params:
                    raise
                if error.code == 429 and error.retry_after is not None and throttled < PATIENCE:
                    # To begin again would cost the server all pages that came before.
                    throttled += 1
                    await asyncio.sleep(error.retry_after)
                    continue
                if error.code != 410:
                    raise
                # The snapshot that the pages come from has expired; one large page cannot.
                again()
                page = self._decode(await self._client.get(self._path, selection))
            yield page
            if not page.metadata.next:
                return
            params["continue"] = page.metadata.next

    def _decode(self, body: bytes) -> Page[T]:
        try:
            return self._page.decode(body)
        except msgspec.DecodeError:
            pass
        try:
            page = _raw_page.decode(body)
        except msgspec.DecodeError as error:
            raise UnreachableError(f"the answer is no list: {error}") from error
        return Page(page.metadata, [item for raw in page.items or () for item in self._read(raw)])

    def _read(self, raw: msgspec.Raw) -> list[T]:
        """The object in a list of one, or an empty list and a line in the log."""
        try:
            return [self._one.decode(raw)]
        except msgspec.ValidationError as error:
            name = str(key_of(_marked.decode(raw)))
            _log.error("%s: %s: %s", self._path, name, error, extra={"event": "malformed"})
            return []
