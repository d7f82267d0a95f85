"""Keeping in step with a collection, whatever the API server and the network do (T26-T28)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from istio_aux.core.pod import Pod
from istio_aux.kube.backoff import Backoff
from istio_aux.kube.client import Client
from istio_aux.kube.resources import Key, key_of
from istio_aux.kube.watch import Watch
from unit.apiserver import ApiServer, Fault, refusal, status
from unit.asynchronous import background, driven, until

FIELDS = {"fieldSelector": "status.phase=Running"}


class Seen:
    """A handler that remembers what it was told."""

    def __init__(self) -> None:
        self.there: dict[Key, Pod] = {}
        self.told: list[str] = []
        self.restarts: list[str] = []

    def apply(self, resource: Pod) -> None:
        self.there[key_of(resource)] = resource
        self.told.append(f"+{resource.metadata.name}")

    def delete(self, key: Key) -> None:
        del self.there[key]
        self.told.append(f"-{key.name}")

    @property
    def names(self) -> set[str]:
        return {key.name for key in self.there}

    @property
    def phases(self) -> dict[str, str | None]:
        return {key.name: pod.status.phase for key, pod in self.there.items()}


def pod(name: str, phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "training", **metadata}
    return {"metadata": meta, "spec": {"containers": []}, "status": {"phase": phase}}


@asynccontextmanager
async def watching(
    api: ApiServer, seen: Seen, selection: dict[str, str] | None = None, **options: Any
) -> AsyncGenerator[Watch[Pod]]:
    """Watch pods in the background, without the long waits of real life."""
    options = {"backoff": Backoff(0.02, 0.1), **options}
    async with Client(api.access()) as client:
        watch = Watch(
            client, "/api/v1/pods", Pod, seen,
            selection=selection, restarted=seen.restarts.append, **options,
        )  # fmt: skip
        async with background(watch.run()):
            yield watch


def lists(api: ApiServer) -> int:
    """How often the whole collection was asked for."""
    return sum("watch" not in query for query in api.queries)


def on_watch(answer: Any) -> Fault:
    """A fault that meets the next watch request only."""

    async def fault(request: web.Request) -> web.StreamResponse | None:
        return await answer(request) if "watch" in request.query else None

    return fault


def on_list(answer: Any) -> Fault:
    """A fault that meets the next list request only."""

    async def fault(request: web.Request) -> web.StreamResponse | None:
        return None if "watch" in request.query else await answer(request)

    return fault


async def stream(request: web.Request, *events: bytes) -> web.StreamResponse:
    """A watch stream that begins with these bytes; the server's part is then up to the caller."""
    response = web.StreamResponse()
    await response.prepare(request)
    for event in events:
        await response.write(event)
    return response


def line(kind: str, body: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode() + b"\n"


@driven
async def test_what_exists_is_told_before_the_watch_counts_as_synced() -> None:
    seen = Seen()
    async with ApiServer() as api:
        await api.put("pods", pod("a"))
        await api.put("pods", pod("b"))
        async with watching(api, seen) as watch:
            assert not watch.synced.is_set()
            await watch.synced.wait()
            assert seen.names == {"a", "b"}


@driven
async def test_changes_are_told_as_they_happen() -> None:
    seen = Seen()
    async with ApiServer() as api, watching(api, seen) as watch:
        await watch.synced.wait()
        await api.put("pods", pod("a", "Pending"))
        await api.put("pods", pod("a"))
        await until(lambda: seen.phases == {"a": "Running"}, "a runs")
        await api.remove("pods", "training", "a")
        await until(lambda: not seen.there, "a is gone")
        assert lists(api) == 1


@driven
async def test_an_object_that_leaves_the_selection_is_told_as_gone() -> None:
    seen = Seen()
    async with ApiServer() as api, watching(api, seen, FIELDS):
        await api.put("pods", pod("a"))
        await until(lambda: seen.names == {"a"}, "a is there")
        await api.put("pods", pod("a", "Succeeded"))
        await until(lambda: not seen.there, "a has left")


@driven
async def test_a_new_object_under_an_old_name_is_another_object() -> None:
    seen = Seen()
    async with ApiServer() as api, watching(api, seen):
        old = await api.put("pods", pod("a"))
        await until(lambda: seen.there, "a is there")
        new = await api.put("pods", pod("a", uid="another"))
        await until(lambda: len(seen.told) == 3, "both are told")
        assert old["metadata"]["uid"] != new["metadata"]["uid"]
        assert [key.uid for key in seen.there] == ["another"]


@driven
async def test_a_connection_reset_loses_nothing_and_needs_no_new_list() -> None:
    seen = Seen()
    async with ApiServer() as api, watching(api, seen):
        await until(lambda: api.watches, "the watch is open")
        await api.put("pods", pod("a"))
        await until(lambda: seen.names == {"a"}, "a is there")
        await api.cut()
        await api.put("pods", pod("b"))
        await api.remove("pods", "training", "a")
        await until(lambda: seen.names == {"b"}, "both changes arrive")
        assert seen.told == ["+a", "+b", "-a"]
        assert lists(api) == 1
        assert "connection" in seen.restarts


@pytest.mark.parametrize("how", ["in the stream", "as a status"])
@driven
async def test_an_expired_version_leads_to_a_list_that_tells_what_vanished(how: str) -> None:
    seen = Seen()
    async with ApiServer() as api, watching(api, seen):
        await until(lambda: api.watches, "the watch is open")
        await api.put("pods", pod("a"))
        await api.put("pods", pod("b"))
        await until(lambda: seen.names == {"a", "b"}, "both are there")
        if how == "as a status":
            api.faults.append(on_watch(lambda _: answered(refusal(410, "Expired", "too old"))))
        await api.forget_history()
        await api.remove("pods", "training", "a")
        await api.forget_history()
        await api.cut()
        await until(lambda: seen.names == {"b"}, "a has vanished")
        assert seen.told == ["+a", "+b", "-a"], "what did not change is not told again"
        assert "expired" in seen.restarts


async def answered(response: web.Response) -> web.Response:
    return response


@driven
async def test_an_event_that_was_cut_in_half_is_told_once_it_is_whole() -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = await stream(request, line("ADDED", pod("half", resourceVersion="9"))[:40])
        await response.write_eof()
        return response

    seen = Seen()
    async with ApiServer() as api:
        api.faults.append(on_watch(cut))
        async with watching(api, seen):
            await until(lambda: api.watches, "the second watch is open")
            assert seen.restarts == ["connection"]
            assert seen.told == []
            await api.put("pods", pod("a"))
            await until(lambda: seen.names == {"a"}, "a is there")


@driven
async def test_a_line_of_more_than_512_kib_is_read() -> None:
    seen = Seen()
    async with ApiServer() as api, watching(api, seen) as watch:
        await watch.synced.wait()
        await api.put("pods", pod("big", annotations={"note": "x" * (1 << 20)}))
        await until(lambda: seen.names == {"big"}, "it is there")
        assert seen.restarts == []


@driven
async def test_a_watch_that_went_silent_is_replaced() -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        response = await stream(request)
        await asyncio.sleep(60)
        return response

    seen = Seen()
    async with ApiServer() as api:
        api.faults.append(on_watch(silent))
        async with watching(api, seen, silence=0.2):
            await until(lambda: len(api.requests) == 2, "the silent watch is open")
            await api.put("pods", pod("a"))
            await until(lambda: seen.names == {"a"}, "a is there")
            assert seen.restarts[0] == "silent"


@driven
async def test_a_list_again_and_again_finds_what_a_lying_watch_never_told() -> None:
    async def lie(request: web.Request) -> web.StreamResponse:
        response = await stream(request)
        while True:
            await response.write(line("BOOKMARK", {"metadata": {"resourceVersion": "1"}}))
            await asyncio.sleep(0.05)

    seen = Seen()
    async with ApiServer() as api:
        api.faults.append(on_watch(lie))
        async with watching(api, seen, stream=0.2, relist=0.3):
            await until(lambda: len(api.requests) == 2, "the lying watch is open")
            await api.put("pods", pod("a"))
            await until(lambda: seen.names == {"a"}, "a is there")


@driven
async def test_a_bookmark_moves_the_version_from_which_the_watch_goes_on() -> None:
    async def bookmark(request: web.Request) -> web.StreamResponse:
        # As recorded: the API server sends null where a pod has a list.
        body = {"kind": "Pod", "metadata": {"resourceVersion": "77", "creationTimestamp": None},
                "spec": {"containers": None}, "status": {}}  # fmt: skip
        return await stream(request, line("BOOKMARK", body))

    seen = Seen()
    async with ApiServer() as api:
        api.faults.append(on_watch(bookmark))
        async with watching(api, seen):
            await until(lambda: api.watches, "the second watch is open")
            assert [query["resourceVersion"] for query in api.queries[1:]] == ["1", "77"]
            assert seen.told == []


@driven
async def test_a_line_that_is_no_event_ends_the_stream_and_nothing_else() -> None:
    async def nonsense(request: web.Request) -> web.StreamResponse:
        return await stream(request, b'{"kind":"Surprise"}\n')

    seen = Seen()
    async with ApiServer() as api:
        api.faults.append(on_watch(nonsense))
        async with watching(api, seen):
            await until(lambda: api.watches, "the second watch is open")


@pytest.mark.parametrize("code", [429, 500, 503])
@driven
async def test_a_server_that_asks_for_time_gets_it(code: int) -> None:
    answer = refusal(code, "Busy", "come back later", headers={"Retry-After": "1"})
    seen = Seen()
    async with ApiServer() as api:
        api.faults.append(on_list(lambda _: answered(answer)))
        await api.put("pods", pod("a"))
        began = asyncio.get_running_loop().time()
        async with watching(api, seen) as watch:
            await watch.synced.wait()
            assert asyncio.get_running_loop().time() - began >= 1
            assert seen.names == {"a"}
            assert seen.restarts == ["throttled" if code == 429 else "server-error"]


@driven
async def test_an_error_in_the_stream_leads_to_a_new_list() -> None:
    async def error(request: web.Request) -> web.StreamResponse:
        details = {"retryAfterSeconds": 0}
        body = status(504, "Timeout", "Too large resource version", details=details)
        return await stream(request, line("ERROR", body))

    seen = Seen()
    async with ApiServer() as api:
        api.faults.append(on_watch(error))
        async with watching(api, seen):
            await until(lambda: api.watches, "the second watch is open")
            assert lists(api) == 2
            assert seen.restarts == ["server-error"]


@driven
async def test_what_stands_in_the_way_is_told_until_it_is_gone() -> None:
    refused = refusal(403, "Forbidden", 'pods is forbidden: User "me" cannot list')
    seen = Seen()
    async with ApiServer() as api:
        api.faults.append(on_list(lambda _: answered(refused)))
        async with watching(api, seen) as watch:
            trouble = await until(lambda: watch.trouble, "there is trouble")
            assert trouble == (
                '/api/v1/pods: 403 Forbidden: pods is forbidden: User "me" cannot list'
            )
            await watch.synced.wait()
            assert watch.trouble is None


@driven
async def test_an_api_server_that_is_restarted_is_found_again() -> None:
    seen = Seen()
    async with ApiServer() as api, watching(api, seen) as watch:
        await api.put("pods", pod("a"))
        await until(lambda: seen.names == {"a"}, "a is there")
        await api.stop()
        await until(lambda: watch.trouble, "the server is missed")
        await api.put("pods", pod("b"))
        await api.remove("pods", "training", "a")
        await api.start()
        await until(lambda: seen.names == {"b"}, "both changes arrive")


@driven
async def test_an_object_that_cannot_be_read_costs_only_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = Seen()
    async with ApiServer() as api:
        await api.put("pods", pod("listed") | {"spec": {"containers": "none"}})
        await api.put("pods", pod("a"))
        async with watching(api, seen):
            await until(lambda: api.watches, "the watch is open")
            await api.put("pods", pod("streamed") | {"spec": {"containers": "none"}})
            await api.put("pods", pod("b"))
            await until(lambda: seen.names == {"a", "b"}, "the others are there")
    named = [text for text in caplog.messages if "training/listed" in text or "streamed" in text]
    assert len(named) == 2


@driven
async def test_a_stream_that_always_ends_at_once_is_not_asked_for_in_a_tight_loop() -> None:
    seen = Seen()
    async with ApiServer() as api:
        api.faults += [on_watch(stream) for _ in range(100)]
        async with watching(api, seen, backoff=Backoff(0.2, 0.2)):
            await asyncio.sleep(0.5)
            assert 1 <= sum("watch" in query for query in api.queries) <= 6


@driven
async def test_the_server_is_asked_to_end_streams_at_different_times() -> None:
    seen = Seen()
    async with ApiServer() as api, watching(api, seen, stream=300, relist=600):
        await until(lambda: api.watches, "the watch is open")
        assert 270 <= int(api.queries[1]["timeoutSeconds"]) <= 330
        assert api.queries[1]["allowWatchBookmarks"] == "true"
