"""Reading a whole collection, page by page."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from istio_aux.core.pod import Pod
from istio_aux.kube.client import Client
from istio_aux.kube.lists import Lister
from unit.apiserver import ApiServer, refusal
from unit.asynchronous import driven


def pod(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "training"}}


async def names(api: ApiServer) -> list[str]:
    async with Client(api.access()) as client:
        lister = Lister(client, "/api/v1/pods", Pod, page=2)
        return [item.metadata.name async for page in lister.pages({}) for item in page.items]


@driven
async def test_a_long_list_comes_in_pages() -> None:
    async with ApiServer() as api:
        for name in "abcde":
            await api.put("pods", pod(name))
        assert await names(api) == list("abcde")
        assert [query["limit"] for query in api.queries] == ["2", "2", "2"]
        assert ["continue" in query for query in api.queries] == [False, True, True]


@driven
async def test_an_empty_list_is_one_page() -> None:
    async with ApiServer() as api:
        assert await names(api) == []
        assert len(api.requests) == 1


@driven
async def test_a_list_whose_snapshot_expires_between_pages_is_read_as_a_whole() -> None:
    async def expired(request: web.Request) -> web.StreamResponse | None:
        return refusal(410, "Expired", "too old") if "continue" in request.query else None

    async with ApiServer() as api:
        api.faults.append(expired)
        for name in "abcde":
            await api.put("pods", pod(name))
        # The pages before are told again: whoever keeps a set of keys does not mind.
        assert await names(api) == [*"ab", *"abcde"]
        assert "limit" not in api.queries[-1]
