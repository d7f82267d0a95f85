"""Read a whole collection, page by page, into structs.

Only that may live here. An object that cannot be read costs itself only, not its neighbours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Generic, TypeVar

import msgspec

from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError, UnreadableError
from istio_aux.kube.reader import brief, cut
from istio_aux.kube.resources import Key, Marked, T, identity, key_of

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


class Unreadable(msgspec.Struct, frozen=True):
    """An object that is there, but cannot be read.

    Attributes:
        key: which; what cannot be read of it is empty.
        why: in one line.
    """

    key: Key
    why: str

    def __str__(self) -> str:
        return f"{self.key if self.key.name else 'an object without a readable name'}: {self.why}"


class _List(msgspec.Struct, Generic[Item], frozen=True):
    metadata: ListMeta
    items: list[Item] | None = None


class Page(msgspec.Struct, Generic[Item], frozen=True):
    """A page of a list; ``unreadable`` are those that the API server lists beside the items."""

    metadata: ListMeta
    items: list[Item]
    unreadable: tuple[Unreadable, ...] = ()


_raw_list = msgspec.json.Decoder(_List[msgspec.Raw])


class Lister(Generic[T]):
    """Lists one collection. A class because decoders are built once and used often."""

    def __init__(self, client: Client, path: str, kind: type[T], *, page: int = PAGE) -> None:
        """Prepare to list ``path`` into structs of ``kind``, ``page`` objects at a time."""
        self._client, self._path, self._limit = client, path, page
        self._page = msgspec.json.Decoder(_List[kind])
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
                page = await self._decode(await self._client.get(self._path, params))
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
                page = await self._decode(await self._client.get(self._path, selection))
            yield page
            if not page.metadata.next:
                return
            params["continue"] = page.metadata.next

    async def _decode(self, body: bytes) -> Page[T]:
        try:
            page = self._page.decode(body)
            return Page(page.metadata, page.items or [])
        except Exception:  # Whatever it was, here it is found out whom it costs.
            text = await cut(body)
        try:
            raw_page = _raw_list.decode(text)
        except Exception as error:
            raise UnreadableError(f"the answer is no list: {brief(error)}") from error
        items, unreadable = list[T](), list[Unreadable]()
        for raw in raw_page.items or ():
            try:
                items.append(self._one.decode(raw))
            except Exception as error:
                unreadable.append(Unreadable(key_of(Marked(identity(raw))), brief(error)))
        return Page(raw_page.metadata, items, tuple(unreadable))
