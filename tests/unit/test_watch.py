"""Keeping in step with a collection while all is well."""

from __future__ import annotations

import asyncio
import gc

import pytest
from aiohttp import web
from istio_aux.kube.clock import Timing
from istio_aux.kube.errors import Backoff
from istio_aux.kube.objects import Key
from unit.apiserver import (
    ApiServer,
    answered,
    faulty,
    follows,
    line,
    lists,
    on_list,
    on_page,
    on_watch,
    pod,
    refusal,
    status,
    stream,
    watching,
)
from unit.process import until


async def test_a_bookmark_moves_the_version_from_which_the_watch_goes_on() -> None:

    async def bookmark(request: web.Request) -> web.StreamResponse:
        # As recorded: the API server sends null where a pod has a list.
        body = {"kind": "Pod", "metadata": {"resourceVersion": "77", "creationTimestamp": None},
                "spec": {"containers": None}, "status": {}}  # fmt: skip
        return await stream(request, line("BOOKMARK", body))

    async with faulty(on_watch(bookmark)) as api, watching(api) as (seen, _):
        await until(lambda: api.watches, "the second watch is open")
        assert [query["resourceVersion"] for query in follows(api)] == ["1", "77"]
        assert seen.told == []


async def test_an_object_counts_as_gone_only_after_the_list_is_complete(api: ApiServer) -> None:
    """kubexit#8: and the objects of a page are told before the next page comes."""
    halfway, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_request: web.Request) -> None:
        halfway.set()
        await go_on.wait()

    api.put("pods", pod("a"))
    async with watching(api) as (seen, _):
        await until(lambda: api.watches, "the watch is open")
        for number in range(101):
            api.put("pods", pod(f"pod-{number:03}"))
        await until(lambda: len(seen.there) == 102, "all are there")
        await api.stop()
        api.remove("pods", "training", "a")
        api.put("pods", pod("new"))
        api.forget_history()
        api.faults.append(on_page(slow))
        await api.start()
        await halfway.wait()
        assert {"a", "new"} <= seen.names
        go_on.set()
        await until(lambda: "a" not in seen.names, "it is gone")


def keys() -> int:
    """How many names of objects are in memory."""
    return sum(isinstance(each, Key) for each in gc.get_objects())


async def test_a_list_of_what_is_known_holds_the_names_of_one_page(api: ApiServer) -> None:
    """Those of 50,000 pods would take 10 MiB each time, of which most would stay."""
    held = list[int]()

    async def count(_request: web.Request) -> None:
        held.append(keys())

    for number in range(500):
        api.put("pods", pod(f"pod-{number:03}"))
    async with watching(api) as (seen, _):
        await until(lambda: api.watches, "all are listed")
        before = keys()
        api.faults.append(on_page(count))
        api.forget_history()
        await api.cut()
        await until(lambda: len(held) >= 4 and lists(api) >= 10, "they are listed again")
        assert len(seen.there) == 500
    assert max(held) - before < 200


# Whatever the API server and the network do (kuma#10085, uds-core#122).


@pytest.mark.parametrize("how", ["in the stream", "as a status"])
async def test_an_expired_version_leads_to_a_list_that_tells_what_vanished(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """410, as the answer and within the stream. It is normal, so nobody is warned."""
    caplog.set_level("INFO", "istio_aux.kube")
    async with faulty() as api, watching(api) as (seen, _):
        await until(lambda: api.watches, "the watch is open")
        api.put("pods", pod("a"))
        api.put("pods", pod("b"))
        await until(lambda: seen.names == {"a", "b"}, "both are there")
        if how == "as a status":
            api.faults.append(on_watch(lambda _: answered(refusal(410, "Expired", "too old"))))
        api.forget_history()
        api.remove("pods", "training", "a")
        api.forget_history()
        await api.cut()
        await until(lambda: seen.names == {"b"}, "a has vanished")
        assert "expired" in seen.restarts
    levels = {line.levelname for line in caplog.records if vars(line).get("reason") == "expired"}
    assert levels == {"INFO"}


FAILED = status(504, "Timeout", "Too large resource version", details={"retryAfterSeconds": 0})


@pytest.mark.parametrize(
    ("sent", "restart"),
    [
        (line("ADDED", pod("half", resourceVersion="9"))[:40], "connection"),
        (b'{"kind":"Surprise"}\n', "connection"),
        (line("ERROR", FAILED), "server-error"),
    ],
    ids=["half an event", "no event", "an error"],
)
async def test_what_breaks_a_stream_is_counted_and_leads_to_a_new_list(
    sent: bytes, restart: str
) -> None:
    async with (
        faulty(on_watch(lambda request: stream(request, sent))) as api,
        watching(api) as (seen, _),
    ):
        await until(lambda: api.watches, "the second watch is open")
        assert (seen.restarts, seen.told, lists(api)) == ([restart], [], 2)
        api.put("pods", pod("a"))
        await until(lambda: seen.names == {"a"}, "a is there")


async def test_an_api_server_that_is_restarted_is_found_again_without_a_new_list() -> None:
    """Also a connection that is reset loses nothing."""
    async with faulty() as api, watching(api) as (seen, watch):
        await until(lambda: api.watches, "the watch is open")
        api.put("pods", pod("a"))
        await until(lambda: seen.names == {"a"}, "a is there")
        await api.stop()
        await until(lambda: watch.trouble, "the server is missed")
        api.put("pods", pod("b"))
        api.remove("pods", "training", "a")
        await api.start()
        await until(lambda: seen.names == {"b"}, "both changes arrive")
        assert seen.told == ["+a", "+b", "-a"]
        assert lists(api) == 1
        assert "connection" in seen.restarts


async def test_a_watch_that_went_silent_is_replaced() -> None:
    """uds-core#122: half-open connections bring no error."""

    async def silent(request: web.Request) -> web.StreamResponse:
        response = await stream(request)
        await asyncio.sleep(60)
        return response

    async with (
        faulty(on_watch(silent)) as api,
        watching(api, timing=Timing(silence=0.2)) as (seen, _),
    ):
        await until(lambda: len(follows(api)) == 1, "the silent watch is open")
        api.put("pods", pod("a"))
        await until(lambda: seen.names == {"a"}, "a is there")
        assert seen.restarts[0] == "silent"


async def test_periodic_lists_find_what_a_watch_left_out() -> None:
    """uds-core#122: the bound is the time between lists."""

    async def lie(request: web.Request) -> web.StreamResponse:
        response = await stream(request)
        while True:
            await response.write(line("BOOKMARK", {"metadata": {"resourceVersion": "1"}}))
            await asyncio.sleep(0.05)

    quick = Timing(stream=0.2, relist=0.3)
    async with faulty(on_watch(lie)) as api, watching(api, timing=quick) as (seen, _):
        await until(lambda: len(follows(api)) == 1, "the lying watch is open")
        api.put("pods", pod("a"))
        await until(lambda: seen.names == {"a"}, "a is there")
        await until(lambda: {"ended", "relist"} <= set(seen.restarts), "both are counted")


@pytest.mark.parametrize("code", [429, 503])
async def test_a_server_that_asks_for_time_gets_it(api: ApiServer, code: int) -> None:
    answer = refusal(code, "Busy", "come back later", headers={"Retry-After": "1"})
    api.faults.append(on_list(lambda _: answered(answer)))
    api.put("pods", pod("a"))
    began = asyncio.get_running_loop().time()
    async with watching(api) as (seen, watch):
        await watch.synced.wait()
        assert asyncio.get_running_loop().time() - began >= 1
        assert seen.names == {"a"}
        assert seen.restarts == ["throttled" if code == 429 else "server-error"]
        assert not watch.refused


async def test_a_page_that_is_throttled_is_asked_for_again_without_those_before_it() -> None:
    throttled = refusal(429, "TooManyRequests", "later", headers={"Retry-After": "0"})
    async with faulty(on_page(lambda _: answered(throttled))) as api:
        for number in range(101):
            api.put("pods", pod(f"pod-{number:03}"))
        async with watching(api) as (seen, watch):
            await watch.synced.wait()
            assert (len(seen.names), seen.restarts) == (101, [])
            assert lists(api) == 3, "one page, the next, and the next again"


async def test_trouble_is_reported_until_it_is_over() -> None:
    refused = refusal(403, "Forbidden", 'pods is forbidden: User "me" cannot list')
    async with faulty(on_list(lambda _: answered(refused))) as api, watching(api) as (seen, watch):
        trouble = await until(lambda: watch.trouble, "there is trouble")
        assert trouble == "this account may not list pods"
        await watch.synced.wait()
        assert (watch.trouble, watch.refused, seen.restarts) == (None, True, ["refused"])


async def test_a_stream_that_always_ends_at_once_is_not_asked_for_in_a_tight_loop(
    api: ApiServer,
) -> None:
    api.faults += [on_watch(stream) for _ in range(100)]
    began = asyncio.get_running_loop().time()
    async with watching(api, backoff=Backoff(0.2, 0.2)):
        await until(lambda: len(follows(api)) >= 6, "it is asked for again and again")
    # Before each but the first, at least half of the backoff.
    assert asyncio.get_running_loop().time() - began >= 5 * 0.1


async def test_an_object_of_a_list_that_had_to_begin_again_does_not_live_on() -> None:
    """Its deletion came after the first page and before the list that replaced it."""

    async def expired(_request: web.Request) -> web.Response:
        api.remove("pods", "training", "pod-000")
        return refusal(410, "Expired", "The provided continue parameter is too old")

    async with faulty(on_page(expired)) as api:
        for number in range(101):
            api.put("pods", pod(f"pod-{number:03}"))
        async with watching(api) as (seen, watch):
            await watch.synced.wait()
            assert seen.names == {f"pod-{number:03}" for number in range(1, 101)}


@pytest.mark.parametrize("code", [429, 502])
async def test_a_watch_that_is_turned_away_is_asked_for_again_without_a_list(
    api: ApiServer, code: int
) -> None:
    """A list is the most that a busy server can be asked for, and nothing has been missed."""
    busy = refusal(code, "Busy", "later", headers={"Retry-After": "0"})
    api.faults.append(on_watch(lambda _: answered(busy)))
    async with watching(api) as (seen, _):
        api.put("pods", pod("a"))
        await until(lambda: seen.names == {"a"}, "it is there")
        await until(lambda: len(follows(api)) == 2, "the second watch is open")
        assert lists(api) == 1


async def test_after_versions_have_gone_back_everything_is_delivered_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As after a restore of etcd: an object may have its old version and another content."""
    async with faulty() as api, watching(api, timing=Timing(silence=0.5)) as (seen, _):
        await until(lambda: api.watches, "the watch is open")
        api.put("pods", pod("a"))
        api.put("pods", pod("b"))
        await until(lambda: seen.names == {"a", "b"}, "both are there")
        (a, _) = seen.there
        api.go_back(1)
        api.put("pods", pod("a", phase="Pending", uid=a.uid))
        await api.cut()
        await until(lambda: seen.phases == {"a": "Pending"}, "only what was restored is there")
        api.put("pods", pod("a", phase="Running", uid=a.uid))
        await until(lambda: seen.phases == {"a": "Running"}, "what comes then is told, too")
    assert "went back" in caplog.text
