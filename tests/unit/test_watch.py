"""Keeping in step with a collection while all is well."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from unit.apiserver import ApiServer
from unit.asynchronous import until
from unit.store import line, refusal, status
from unit.watching import (
    Seen,
    answered,
    follows,
    lists,
    on_streamed_list,
    on_watch,
    paging,
    pod,
    stream,
    streamed_lists,
    watching,
)


async def test_a_new_object_under_an_old_name_is_another_object() -> None:
    seen = Seen()
    async with paging() as api, watching(api, seen):
        old = await api.put("pods", pod("a"))
        await until(lambda: seen.there, "a is there")
        new = await api.put("pods", pod("a", uid="another"))
        await until(lambda: len(seen.told) == 3, "both are told")
        assert old["metadata"]["uid"] != new["metadata"]["uid"]
        assert [key.uid for key in seen.there] == ["another"]


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


async def test_a_watch_asks_for_bookmarks_and_for_an_end_near_its_usual_time() -> None:
    seen = Seen()
    async with paging() as api, watching(api, seen, stream=300, relist=600):
        await until(lambda: api.watches, "the watch is open")
        assert 270 <= int(follows(api)[0]["timeoutSeconds"]) <= 330
        assert follows(api)[0]["allowWatchBookmarks"] == "true"


# Streaming lists: a watch that begins with all that is there, and what replaces one that fails.

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

END = line(
    "BOOKMARK",
    {"metadata": {"resourceVersion": "50", "annotations": {"k8s.io/initial-events-end": "true"}}},
)


async def test_what_was_there_before_and_what_comes_after_arrive_on_one_connection() -> None:
    """T26, T38: what happened while nobody looked is told like everything else."""
    seen = Seen()
    async with ApiServer() as api:
        await api.put("pods", pod("a"))
        async with watching(api, seen) as watch:
            await watch.synced.wait()
            assert seen.names == {"a"}
            await api.put("pods", pod("b"))
            await api.remove("pods", "training", "a")
            await until(lambda: seen.names == {"b"}, "both changes arrive")
            assert len(api.requests) == 1


async def test_an_object_counts_as_gone_only_after_the_initial_events_are_complete() -> None:
    seen, halfway, go_on = Seen(), asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        response = await stream(request, line("ADDED", pod("c", resourceVersion="9", uid="c")))
        halfway.set()
        await go_on.wait()
        await response.write(END)
        await asyncio.sleep(60)
        return response

    async with ApiServer() as api:
        await api.put("pods", pod("a"))
        await api.put("pods", pod("b"))
        async with watching(api, seen, relist=1):
            await until(lambda: seen.names == {"a", "b"}, "both are there")
            api.faults.append(on_streamed_list(slow))
            await halfway.wait()
            await until(lambda: "c" in seen.names, "c is told")
            assert seen.names == {"a", "b", "c"}
            go_on.set()
            await until(lambda: seen.names == {"c"}, "the others are gone")


async def test_what_vanishes_while_the_list_is_streamed_is_gone() -> None:
    async def changing(request: web.Request) -> web.StreamResponse:
        a = pod("a", resourceVersion="9", uid="a")
        left = pod("a", resourceVersion="10", uid="a")
        await stream(request, line("ADDED", a), line("DELETED", left), END)
        await asyncio.sleep(60)
        return web.Response()

    seen = Seen()
    async with ApiServer() as api:
        api.faults.append(on_streamed_list(changing))
        async with watching(api, seen) as watch:
            await watch.synced.wait()
            assert seen.told == ["+a", "-a"]


@pytest.mark.parametrize(("code", "reason"), [(422, "Invalid"), (400, "BadRequest")])
async def test_a_server_without_streaming_lists_is_asked_for_one_only_once(
    code: int, reason: str
) -> None:
    refused = refusal(code, reason, "sendInitialEvents is forbidden for watch")
    seen = Seen()
    async with ApiServer() as api:
        api.faults.append(on_streamed_list(lambda _: answered(refused)))
        await api.put("pods", pod("a"))
        async with watching(api, seen) as watch:
            await watch.synced.wait()
            assert (seen.names, watch.trouble) == ({"a"}, None)
            await until(lambda: api.watches, "the watch is open")
            await api.forget_history()
            await api.cut()
            await until(lambda: lists(api) == 2, "it is listed again")
            assert streamed_lists(api) == 1


async def test_a_stream_resumes_from_the_version_of_the_last_initial_event() -> None:
    async def told(request: web.Request) -> web.StreamResponse:
        # The newest object comes first; its version would skip what came in between.
        response = await stream(request, line("ADDED", pod("a", resourceVersion="99")), END)
        await response.write_eof()
        return response

    seen = Seen()
    async with ApiServer() as api:
        api.faults.append(on_streamed_list(told))
        async with watching(api, seen):
            await until(lambda: follows(api), "the next watch is open")
            assert follows(api)[0]["resourceVersion"] == "50"


async def test_after_one_bad_end_lists_are_streamed_again_from_the_next_relist_on() -> None:
    async def ends(request: web.Request) -> web.StreamResponse:
        return await stream(request)

    seen = Seen()
    async with ApiServer() as api:
        api.faults.append(on_streamed_list(ends))
        async with watching(api, seen, relist=1):
            await until(lambda: lists(api), "it is listed in pages")
            await until(lambda: streamed_lists(api) == 2, "it is streamed again")


ADDED = line("ADDED", pod("a", resourceVersion="9", uid="a"))


async def silent(request: web.Request) -> web.StreamResponse:
    response = await stream(request, ADDED)
    await asyncio.sleep(60)
    return response


async def cut(request: web.Request) -> web.StreamResponse:
    response = await stream(request, ADDED)
    assert request.transport
    request.transport.abort()
    return response


def sending(*events: bytes) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await stream(request, *events)

    return answer


OLD_ETCD = status(500, "InternalError", "etcd does not support RequestWatchProgress")
LATER = status(429, "TooManyRequests", "later", details={"retryAfterSeconds": 1})
PAGES, STREAM = (1, 1), (0, 2)
"""How often pods are listed in pages, and streamed, in all."""


@pytest.mark.parametrize(
    ("answer", "following", "pause"),
    [
        # An etcd before 3.4.31 or 3.5.13 cannot say how far its watches are.
        (sending(ADDED, line("ERROR", OLD_ETCD)), PAGES, 0),
        (sending(ADDED), PAGES, 0),
        # Another stream would be as silent.
        (silent, PAGES, 0),
        # The version of an object told at first is none to go on from.
        (cut, STREAM, 0),
        # A list in pages would be more work for a server that asks for less.
        (sending(line("ERROR", LATER)), STREAM, 1),
        (lambda _: answered(refusal(429, "TooManyRequests", "later")), STREAM, 0),
    ],
    ids=["an error", "its end", "silence", "a reset", "throttling", "a busy server"],
)
async def test_what_ends_the_initial_events_early_leads_to_a_list_or_a_new_stream(
    answer: Answer, following: tuple[int, int], pause: float
) -> None:
    """T28: and to what is there."""
    seen = Seen()
    async with ApiServer() as api:
        await api.put("pods", pod("b"))
        api.faults.append(on_streamed_list(answer))
        began = asyncio.get_running_loop().time()
        async with watching(api, seen, silence=0.3) as watch:
            await watch.synced.wait()
            assert seen.names == {"b"}
            assert (lists(api), streamed_lists(api)) == following
            assert following == PAGES or follows(api) == []
            assert asyncio.get_running_loop().time() - began >= pause
