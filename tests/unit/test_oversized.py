"""Objects and answers that are longer than is read affect no other, and take bounded memory."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, strategies as st
from istio_aux.kube import actions
from istio_aux.kube.client import LARGE, LARGE_AT_ONCE, Client
from istio_aux.kube.clock import Timing
from istio_aux.kube.errors import ApiError, KubeError, OversizedError, UnreadableError
from istio_aux.kube.objects import (
    BEGINNING,
    LONGEST,
    Key,
    Oversized,
    read_beginning,
    read_event,
    read_page,
)
from istio_aux.model.pod import Metadata, Pod, convert
from unit.apiserver import (
    ApiServer,
    Fault,
    answered,
    faulty,
    line,
    lists,
    managed,
    on_list,
    on_watch,
    pod,
    refusal,
    stream,
    text,
    watching,
)
from unit.process import until
from unit.screens import audited
from unit.test_documents import TEXTS, VALUES

STORED = "<" * 1_450_000
"""In a command, about the most that etcd stores. The API server writes six bytes for each."""


def large(name: str, phase: str = "Running") -> dict[str, Any]:
    """A pod of 8.7 MB, as the API server sends it."""
    return pod(name, phase) | {"spec": {"containers": [{"command": ["x" * len(STORED) * 6]}]}}


def oversized(name: str, phase: str = "Running") -> dict[str, Any]:
    """A pod that is longer than is read; etcd has to be told to store it."""
    return pod(name, phase) | {"spec": {"containers": [{"command": ["x" * LONGEST]}]}}


async def test_a_longer_one_is_named_once_and_everything_behind_it_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ApiServer() as api:
        api.put("pods", oversized("a"))
        api.put("pods", pod("b"))
        async with watching(api) as (seen, watch):
            await watch.synced.wait()
            assert seen.names == {"b"}
            await until(lambda: api.watches, "the watch is open")
            api.put("pods", oversized("a", "Failed"))
            api.put("pods", oversized("c"))
            api.put("pods", pod("d"))
            await until(lambda: seen.names == {"b", "d"}, "what is behind them is told")
            assert {str(key): why for key, why in watch.unreadable.items()} == {
                "training/a": "longer than 10 MiB", "training/c": "longer than 10 MiB",
            }  # fmt: skip
            assert all(key.uid for key in watch.unreadable)
            assert (seen.restarts, watch.trouble) == ([], None)
    assert [told for told in caplog.messages if "training/" in told] == [
        "/api/v1/pods: cannot read training/a: longer than 10 MiB",
        "/api/v1/pods: cannot read training/c: longer than 10 MiB",
    ]


async def test_pages_become_smaller_for_large_objects_and_larger_behind_them() -> None:
    async with faulty() as api, Client(api.access()) as client:
        for number in range(4):
            api.put("pods", large(f"large-{number}"))
        api.put("pods", oversized("oversized"))
        for number in range(20):
            api.put("pods", pod(f"small-{number:02}"))
        pages = [page async for page in actions.pages(client, "/api/v1/pods", Pod, {}, limit=8)]
        limits = [int(query["limit"]) for query in api.queries]
    found = [item.metadata.name for page in pages for item in page.items]
    assert found == [f"large-{n}" for n in range(4)] + [f"small-{n:02}" for n in range(20)]
    assert [str(each) for page in pages for each in page.unreadable] == [
        "training/oversized: longer than 10 MiB"
    ]
    assert limits == [8, 2, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8], "each answer has 10 MiB at most"


async def test_of_long_answers_four_are_read_at_once_and_short_ones_meanwhile() -> None:
    """A node of a tenant's pods ends them together, and each is read before its proxy is told."""
    held, over, release = list[str](), list[str](), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse | None:
        if request.path.endswith("short"):
            return None
        response = await stream(request, b" " * (LARGE + 1))
        if len(held) < LARGE_AT_ONCE:
            held.append(request.path)
            await release.wait()
        over.append(request.path)
        return response

    async with ApiServer() as api, Client(api.access()) as client:
        api.put("pods", pod("short"))
        api.faults += [slow] * (LARGE_AT_ONCE + 1)
        paths = [f"/api/v1/namespaces/training/pods/{n}" for n in range(LARGE_AT_ONCE)]
        reading = [asyncio.create_task(client.get(path)) for path in paths]
        await until(client._large.locked, "as many as may be are read")
        last = asyncio.create_task(client.get("/api/v1/namespaces/training/pods/last"))
        await until(lambda: over, "the last answer is sent")
        assert await client.get("/api/v1/namespaces/training/pods/short")
        assert not last.done()
        release.set()
        assert {len(body) for body in await asyncio.gather(last, *reading)} == {LARGE + 1}


def endless(sent: list[int], *, status: int = 200, begin: bytes = b"{") -> Fault:
    """An answer without an end; ``sent`` gets the size of each part."""

    async def fault(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        with suppress(ConnectionError):
            await response.write(begin)
            while True:
                await response.write(b" " * (1 << 20))
                sent.append(1 << 20)
                await asyncio.sleep(0)
        return response

    return fault


async def test_no_answer_is_read_to_an_end_that_it_does_not_have() -> None:
    sent = list[int]()
    async with ApiServer() as api, Client(api.access()) as client:
        api.faults += [endless(sent), endless(sent, status=502, begin=b"bad gateway")]
        with pytest.raises(OversizedError, match="the answer is longer than 10 MiB"):
            await client.get("/api/v1/pods")
        with pytest.raises(ApiError, match="502: bad gateway"):
            await client.get("/api/v1/pods")
    assert sum(sent) < 6 * LONGEST


def key(found: Pod) -> Key:
    return found.metadata.key


async def test_a_pod_that_is_too_long_is_not_known_by_a_list_or_a_read() -> None:
    """Neither says that it is gone."""
    async with ApiServer() as api, Client(api.access()) as client:
        stored = api.put("pods", oversized("a"))
        with pytest.raises(UnreadableError, match="cannot read training/a: longer than 10 MiB"):
            await actions.list_kept(client, "/api/v1/pods", Pod, {}, key)
        with pytest.raises(OversizedError):
            await actions.read_pod(client, Key("training", "a", stored.uid))


async def test_a_list_that_expires_again_and_again_is_given_up() -> None:
    async def expired(request: web.Request) -> web.StreamResponse | None:
        return refusal(410, "Expired", "too old") if "continue" in request.query else None

    async with ApiServer() as api, Client(api.access()) as client:
        api.always(expired)
        for number in range(60):
            api.put("pods", pod(f"pod-{number}"))
        with pytest.raises(ApiError, match="410 Expired"):
            await actions.list_kept(client, "/api/v1/pods", Pod, {}, key, limit=2)
        assert [query["limit"] for query in api.queries] == ["2", "2", "10", "10", "50", "50"]


async def test_of_a_line_that_is_too_long_only_the_beginning_is_kept() -> None:
    async def send(request: web.Request) -> web.StreamResponse:
        return await stream(request, *[b"x" * (1 << 20)] * (2 * LONGEST >> 20), b"\n")

    async with faulty(send) as api, Client(api.access()) as client:
        watch = client.watch("/api/v1/pods", {"watch": "1"}, silence=60)
        lines = [each async for each in watch]
    assert lines == [b"", b"x" * BEGINNING]
    assert isinstance(lines[1], Oversized)


def test_the_beginning_of_a_line_names_its_object_wherever_it_ends() -> None:
    """Tenants choose what comes behind ``metadata``; nothing of it is taken for a name."""
    body = pod("a", namespace="b", uid="1", resourceVersion="9", labels={"x": '"}],{"name":"z"'})
    whole = line("MODIFIED", body)
    named = 0
    for end in range(len(whole)):
        try:
            event = asyncio.run(read_event(Oversized(whole[:end]), Pod))
        except KubeError:
            assert named == 0, "once it is an event, it stays one"
            continue
        assert event.resource is None
        assert event.metadata.name in {"", "a"}
        named += event.metadata == Metadata(name="a", namespace="b", uid="1", resource_version="9")
    assert named > 20


@pytest.mark.parametrize(
    "beginning",
    [
        b'{"apiVersion":"v1","items":[{"metadata":{"name":"a",',
        b'{"metadata":{"resourceVersion":"1"',
        b"<html>",
    ],
)
def test_a_page_that_does_not_begin_with_its_metadata_is_not_known(beginning: bytes) -> None:
    with pytest.raises(UnreadableError, match="is not known"):
        read_beginning(beginning)


# Objects that cannot be decoded.

DEPTHS = [1500, 9000]
"""More than msgspec can pass over on Python 3.11 and 3.12, and nearly what the API server takes."""

UNREADABLE = {"spec": {"containers": "none"}}


async def listed_again(api: ApiServer) -> None:
    """Wait for the next list; the watch does not report what changed before it."""
    before = lists(api)
    api.forget_history()
    await api.cut()
    await until(lambda: lists(api) > before and api.watches, "it was listed again")


@given(
    st.dictionaries(TEXTS, TEXTS, max_size=3), st.lists(VALUES, max_size=3), st.sampled_from(DEPTHS)
)
def test_what_is_read_of_a_pod_does_not_depend_on_its_managed_fields(
    texts: dict[str, str], more: list[Any], levels: int
) -> None:
    """Whatever they say, and whatever its labels say, such as `managedFields`."""
    metadata: dict[str, Any] = {"uid": "1", "labels": texts}
    plain = pod("a", **metadata)
    fields = pod("a", **metadata, managedFields=[*more, *managed(levels), *more])
    page = text({"metadata": {}, "items": [fields, plain]})
    [first, second] = asyncio.run(read_page(page, Pod)).items
    read = [asyncio.run(read_event(line("ADDED", each), Pod)).resource for each in (fields, plain)]
    assert first == second == read[0] == read[1] == convert(plain)


async def test_what_cannot_be_read_any_more_is_neither_gone_nor_changed() -> None:
    """Not in the stream, and not by the next list."""
    async with faulty() as api, watching(api) as (seen, watch):
        api.put("pods", pod("a"))
        await until(lambda: seen.names == {"a"}, "it is there")
        api.put("pods", pod("a", "Succeeded") | UNREADABLE)
        await until(lambda: watch.unreadable, "it cannot be read")
        await listed_again(api)
        assert seen.phases == {"a": "Running"}
        [(key, why)] = watch.unreadable.items()
        assert (str(key), why) == (
            "training/a", "Expected `array | null`, got `str` - at `$.spec.containers`"
        )  # fmt: skip
        api.put("pods", pod("a", "Failed"))
        await until(lambda: seen.phases == {"a": "Failed"}, "it can be read again")
        assert watch.unreadable == {}


async def test_a_list_with_an_object_that_cannot_be_named_says_of_no_other_that_it_is_gone() -> (
    None
):
    page = web.Response(body=b'{"metadata":{"resourceVersion":"99"},"items":[{"spec":7}]}')
    async with ApiServer() as api, watching(api, timing=Timing(relist=1)) as (seen, watch):
        api.put("pods", pod("a"))
        await until(lambda: seen.names == {"a"}, "it is there")
        api.faults.append(on_list(lambda _: answered(page)))
        await until(lambda: watch.unreadable, "the other one is there")
        assert seen.told == ["+a"]


async def test_an_unreadable_object_that_is_gone_is_forgotten() -> None:
    async with ApiServer() as api:
        api.put("pods", pod("vanishes") | UNREADABLE)
        api.put("pods", pod("deleted") | UNREADABLE)
        async with watching(api) as (_, watch):
            await until(lambda: len(watch.unreadable) == 2, "both cannot be read")
            await until(lambda: api.watches, "the watch is open")
            api.remove("pods", "training", "deleted")
            await until(lambda: len(watch.unreadable) == 1, "the deletion is told")
            api.remove("pods", "training", "vanishes")
            await listed_again(api)
            assert watch.unreadable == {}


@pytest.mark.parametrize(
    "body",
    [
        b'{"metadata":{"name":"\xff","namespace":"training","uid":"1","resourceVersion":"9"}}',
        b'{"metadata":{"name":"\\ud800","uid":"1"}}',
        b'{"metadata":{"name":1,"namespace":[],"uid":{},"resourceVersion":null}}',
        b'{"metadata":{"name":"a"},"status":{"phase":' + b"9" * 5000 + b"}}",
        b'"none"',
        b"[" * 9000 + b"]" * 9000,
    ],
    ids=["no UTF-8", "half a character", "no texts", "a long number", "no object", "deep"],
)  # fmt: skip
async def test_an_event_that_is_whole_never_ends_the_stream(body: bytes) -> None:
    async def odd(request: web.Request) -> web.StreamResponse:
        event = b'{"type":"MODIFIED","object":' + body + b"}\n"
        response = await stream(request, event, line("ADDED", pod("a", resourceVersion="99")))
        await asyncio.sleep(60)
        return response

    async with faulty(on_watch(odd)) as api, watching(api) as (seen, watch):
        await until(lambda: seen.names == {"a"}, "what follows is told")
        assert len(watch.unreadable) == 1
        assert seen.restarts == []


async def test_audit_says_which_pods_it_cannot_read() -> None:
    """One with deep managed fields is not among them."""
    async with ApiServer() as api:
        api.put("namespaces", {"metadata": {"name": "training"}})
        for levels in DEPTHS:
            api.put("pods", pod(f"deep-{levels}", managedFields=managed(levels)))
        for index in range(4):
            api.put("pods", pod(f"odd-{index}") | UNREADABLE)
        found = await audited(api)
    why = "Expected `array | null`, got `str` - at `$.spec.containers`"
    assert (found.pods, found.unknown) == (2, 4)
    named = "; ".join(f"cannot read pod training/odd-{index}: {why}" for index in range(3))
    assert any(note.endswith(f": 4: {named} and 1 more") for note in found.notes)
