"""How a request fails, what it never does, and how long a client waits after failures."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import re
import socket
from collections.abc import AsyncIterable
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web
from istio_aux.kube import actions
from istio_aux.kube import client as kube_client
from istio_aux.kube.client import Client
from istio_aux.kube.errors import (
    AccessError,
    ApiError,
    Backoff,
    InvalidNameError,
    NoConnectionError,
    UnreachableError,
)
from istio_aux.model.pod import OwnerReference
from unit.apiserver import ApiServer, Fault, refusal


def connections(port: int) -> list[socket.socket]:
    """Those of this process to a server that are open."""
    found = list[socket.socket]()
    for each in gc.get_objects():
        if isinstance(each, socket.socket) and each.family == socket.AF_INET:
            with suppress(OSError):  # It is closed, or not connected.
                found += [each] if each.getpeername()[1] == port else []
    return found


async def drained(lines: AsyncIterable[object]) -> None:
    async for _ in lines:
        pass


def saying(response: web.Response) -> Fault:
    """Answer one request so."""

    async def fault(_request: web.Request) -> web.Response:
        return response

    return fault


async def test_an_error_in_plain_text_is_cut_to_one_line() -> None:
    page = web.Response(status=502, text="<html>\n<p>bad gateway</p>\n" + "x" * 5000)
    async with ApiServer() as api, Client(api.access()) as client:
        api.faults.append(saying(page))
        with pytest.raises(ApiError) as caught:
            await client.get("/api/v1/pods")
    assert str(caught.value).startswith("502: <html> <p>bad gateway</p> xxx")
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(("header", "seconds"), [("7", 7), ("soon", None), ("", None)])
async def test_the_time_that_a_server_asks_for_is_read(header: str, seconds: int | None) -> None:
    answer = refusal(429, "TooManyRequests", headers={"Retry-After": header})
    async with ApiServer() as api, Client(api.access()) as client:
        api.faults.append(saying(answer))
        with pytest.raises(ApiError) as caught:
            await client.get("/api/v1/pods")
    assert caught.value.retry_after == seconds


async def test_a_type_is_that_of_the_first_version_of_its_group_that_serves_it() -> None:
    def version(name: str, *kinds: str) -> dict[str, object]:
        types = [{"resource": f"{each}s".lower(), "responseKind": {"kind": each}} for each in kinds]
        return {"version": name, "resources": types}

    versions = [version("v1", "Job"), version("v1beta1", "Job", "CronJob")]
    groups: list[dict[str, object]] = [{"metadata": {"name": "batch"}, "versions": versions}]
    async with ApiServer() as api, Client(api.access()) as client:
        api.faults += [saying(web.json_response({"items": items})) for items in ([], groups)]
        types = await actions.served_types(client)
    assert [(each.version, each.kind) for each in types] == [("v1", "Job"), ("v1beta1", "CronJob")]


async def test_a_token_that_no_header_may_have_is_named_and_not_shown() -> None:
    async with ApiServer() as api:
        access = dataclasses.replace(api.access(), token=lambda: "first\nsecond")
        async with Client(access) as client:
            with pytest.raises(AccessError, match="token") as caught:
                await client.get("/api/v1/pods")
    assert "first" not in str(caught.value)


async def test_a_redirect_is_an_error_because_it_would_carry_the_token_away() -> None:
    async with ApiServer() as api, Client(api.access()) as client:
        api.faults.append(saying(web.Response(status=302, headers={"Location": api.url})))
        with pytest.raises(ApiError) as caught:
            await client.get("/api/v1/pods")
        assert caught.value.code == 302
        assert len(api.requests) == 1


async def test_a_server_that_never_finishes_the_handshake_has_been_asked_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a watch goes on from its version; a list would tell the server the same at more cost."""
    monkeypatch.setattr(kube_client, "CONNECT_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with ApiServer() as api:
            server = f"https://127.0.0.1:{silent.getsockname()[1]}"
            async with Client(dataclasses.replace(api.access(), server=server)) as client:
                with pytest.raises(NoConnectionError, match="Connection timeout"):
                    await client.get("/api/v1/pods")


@pytest.mark.parametrize("turns", range(20))
async def test_a_client_leaves_no_connection_open_whenever_its_watch_was_cancelled(
    turns: int,
) -> None:
    async with ApiServer() as api:
        async with Client(api.access()) as client:
            lines = client.watch("/api/v1/pods", {"watch": "1", "resourceVersion": "1"}, silence=60)
            watch = asyncio.create_task(drained(lines))
            for _ in range(turns):
                await asyncio.sleep(0)
            watch.cancel()
            await asyncio.wait([watch])
        assert not connections(int(api.url.rpartition(":")[2]))


async def test_an_answer_that_comes_byte_by_byte_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who waits for it holds one of few places."""
    monkeypatch.setattr(kube_client, "REQUEST", 0.3)

    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.05)

    async with ApiServer() as api, Client(api.access()) as client:
        api.faults.append(drip)
        with pytest.raises(UnreachableError, match=r"no complete answer within 0\.3 s"):
            await client.get("/api/v1/pods")


def test_each_failure_doubles_the_wait_up_to_a_bound() -> None:
    backoff = Backoff(first=1, longest=8)
    waits = [backoff.next() for _ in range(6)]
    for wait, step in zip(waits, (1, 2, 4, 8, 8, 8), strict=True):
        assert step / 2 <= wait <= step
    assert len(set(waits[3:])) > 1, "clients that failed together do not come back together"
    assert max(backoff.next() for _ in range(5000)) <= 8, "nor does it overflow"
    backoff.reset()
    assert backoff.next() <= 1, "after a success the next failure is the first again"


# Paths.

SOURCE = Path(actions.__file__).parents[1]

BAD = ["", ".", "..", "../pods", "a/b", "a?watch=1", "a#b", "a%2fb", "A", "a b", "a\n", "é", "-a",
       "a-", "a..b", "a.-b", "a" * 254, "a;b", "a\x00", "\u0661"]  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_no_object_can_be_called_is_in_no_path(name: str) -> None:
    with pytest.raises(InvalidNameError, match=r"no object can have it"):
        actions.pod_path("training", name)
    if name:
        with pytest.raises(InvalidNameError, match=r"no object can have it"):
            actions.collection("v1", "pods", name)


@pytest.mark.parametrize("api", ["", "v1/", "batch/", "batch/..", "batch/../v1", "/v1", "a/b/v1",
                                 "batch/v1?", "Batch/v1"])  # fmt: skip
def test_what_no_group_can_be_called_is_in_no_path(api: str) -> None:
    with pytest.raises(InvalidNameError, match="serves none of that name"):
        actions.collection(api, "jobs", "training")


def test_an_error_shows_the_beginning_of_a_long_name_in_one_line() -> None:
    with pytest.raises(InvalidNameError) as caught:
        actions.pod_path("training", "\n" + "x" * 100_000)
    assert str(caught.value) == rf'name "\n{"x" * 59}…": no object can have it (RFC 1123)'


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (actions.collection("v1", "pods"), "/api/v1/pods"),
        (actions.collection("batch/v1", "jobs", "a"), "/apis/batch/v1/namespaces/a/jobs"),
        (actions.pod_path("a", "b.c-0", "exec"), "/api/v1/namespaces/a/pods/b.c-0/exec"),
        (actions.pod_path("a" * 63, "b" * 253), f"/api/v1/namespaces/{'a' * 63}/pods/{'b' * 253}"),
    ],
)
def test_names_are_in_paths_as_the_api_server_has_them(path: str, expected: str) -> None:
    assert path == expected


def test_no_other_file_makes_a_path() -> None:
    made = re.compile(r"""["'][^"'\s`]*(/api/v1|/apis/|/namespaces/)""")
    found = {
        str(file.relative_to(SOURCE)): line.strip()
        for file in sorted(SOURCE.rglob("*.py"))
        for line in file.read_text().splitlines()
        if made.search(line)
    }
    assert found.keys() == {"kube/actions.py"}, found


@pytest.mark.parametrize(("api_version", "name"), [("batch/v1", "../a"), ("batch/../v1", "a")])
async def test_an_owner_that_cannot_be_is_not_read(api_version: str, name: str) -> None:
    """A tenant writes the references of its pods."""
    owner = OwnerReference(api_version=api_version, kind="Job", name=name, uid="1")
    async with ApiServer() as api, Client(api.access()) as client:
        with pytest.raises(InvalidNameError):
            await actions.read_job(client, "training", owner)
        assert api.requests == []
