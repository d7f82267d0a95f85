"""Keeping in step with a collection while all is well."""

from __future__ import annotations

from aiohttp import web
from unit.asynchronous import driven, until
from unit.store import line
from unit.watching import Seen, follows, on_watch, paging, pod, stream, watching

FIELDS = {"fieldSelector": "status.phase=Running"}


@driven
async def test_an_object_that_leaves_the_selection_is_delivered_as_gone() -> None:
    seen = Seen()
    async with paging() as api, watching(api, seen, FIELDS):
        await api.put("pods", pod("a"))
        await until(lambda: seen.names == {"a"}, "a is there")
        await api.put("pods", pod("a", "Succeeded"))
        await until(lambda: not seen.there, "a has left")


@driven
async def test_a_new_object_under_an_old_name_is_another_object() -> None:
    seen = Seen()
    async with paging() as api, watching(api, seen):
        old = await api.put("pods", pod("a"))
        await until(lambda: seen.there, "a is there")
        new = await api.put("pods", pod("a", uid="another"))
        await until(lambda: len(seen.told) == 3, "both are told")
        assert old["metadata"]["uid"] != new["metadata"]["uid"]
        assert [key.uid for key in seen.there] == ["another"]


@driven
async def test_a_bookmark_moves_the_version_from_which_the_watch_goes_on() -> None:
    """T28."""

    async def bookmark(request: web.Request) -> web.StreamResponse:
        # As recorded: the API server sends null where a pod has a list.
        body = {"kind": "Pod", "metadata": {"resourceVersion": "77", "creationTimestamp": None},
                "spec": {"containers": None}, "status": {}}  # fmt: skip
        return await stream(request, line("BOOKMARK", body))

    seen = Seen()
    async with paging() as api:
        api.faults.append(on_watch(bookmark))
        async with watching(api, seen):
            await until(lambda: api.watches, "the second watch is open")
            assert [query["resourceVersion"] for query in follows(api)] == ["1", "77"]
            assert seen.told == []


@driven
async def test_a_watch_asks_for_bookmarks_and_for_an_end_near_its_usual_time() -> None:
    seen = Seen()
    async with paging() as api, watching(api, seen, stream=300, relist=600):
        await until(lambda: api.watches, "the watch is open")
        assert 270 <= int(follows(api)[0]["timeoutSeconds"]) <= 330
        assert follows(api)[0]["allowWatchBookmarks"] == "true"
