"""How a request fails, what it never does, and how long a client waits after failures."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import ssl
import struct
import threading

import pytest
from aiohttp import web
from istio_aux.kube import client as kube_client
from istio_aux.kube.client import Client
from istio_aux.kube.errors import (
    AccessError,
    ApiError,
    Backoff,
    NoConnectionError,
    UnreachableError,
)
from unit.apiserver import ApiServer, Fault, refusal
from unit.asynchronous import driven


def saying(response: web.Response) -> Fault:
    """Answer one request so."""

    async def fault(_request: web.Request) -> web.Response:
        return response

    return fault


@driven
async def test_an_error_says_what_the_api_server_said() -> None:
    async with ApiServer() as api, Client(api.access()) as client:
        with pytest.raises(ApiError) as caught:
            await client.get("/api/v1/namespaces/a/pods/b")
    assert (caught.value.code, caught.value.reason) == (404, "NotFound")
    assert str(caught.value) == '404 NotFound: pods "b" not found'


@driven
async def test_an_error_in_plain_text_is_cut_to_one_line() -> None:
    page = web.Response(status=502, text="<html>\n<p>bad gateway</p>\n" + "x" * 5000)
    async with ApiServer() as api, Client(api.access()) as client:
        api.faults.append(saying(page))
        with pytest.raises(ApiError) as caught:
            await client.get("/api/v1/pods")
    assert str(caught.value).startswith("502: <html> <p>bad gateway</p> xxx")
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(("header", "seconds"), [("7", 7), ("soon", None), ("", None)])
@driven
async def test_the_time_that_a_server_asks_for_is_read(header: str, seconds: int | None) -> None:
    answer = refusal(429, "TooManyRequests", headers={"Retry-After": header})
    async with ApiServer() as api, Client(api.access()) as client:
        api.faults.append(saying(answer))
        with pytest.raises(ApiError) as caught:
            await client.get("/api/v1/pods")
    assert caught.value.retry_after == seconds


@driven
async def test_each_request_carries_the_token_that_is_valid_then() -> None:
    tokens = iter(["first", "second"])
    async with ApiServer() as api:
        access = dataclasses.replace(api.access(), token=lambda: next(tokens))
        async with Client(access) as client:
            await client.get("/api/v1/pods")
            await client.get("/api/v1/pods")
        assert api.tokens == ["Bearer first", "Bearer second"]


@driven
async def test_a_token_that_no_header_may_have_is_named_and_not_shown() -> None:
    async with ApiServer() as api:
        access = dataclasses.replace(api.access(), token=lambda: "first\nsecond")
        async with Client(access) as client:
            with pytest.raises(AccessError, match="token") as caught:
                await client.get("/api/v1/pods")
    assert "first" not in str(caught.value)


@driven
async def test_a_redirect_is_an_error_because_it_would_carry_the_token_away() -> None:
    async with ApiServer() as api, Client(api.access()) as client:
        api.faults.append(saying(web.Response(status=302, headers={"Location": api.url})))
        with pytest.raises(ApiError) as caught:
            await client.get("/api/v1/pods")
        assert caught.value.code == 302
        assert len(api.requests) == 1


@driven
async def test_a_server_with_an_untrusted_certificate_gets_no_request() -> None:
    async with ApiServer() as api:
        stranger = dataclasses.replace(api.access(), tls=ssl.create_default_context())
        async with Client(stranger) as client:
            with pytest.raises(UnreachableError, match="certificate verify failed"):
                await client.get("/api/v1/pods")
        assert api.requests == []


@driven
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


@driven
async def test_a_connection_that_the_server_cuts_is_reported_as_such() -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        assert request.transport
        request.transport.abort()
        return web.Response()

    async with ApiServer() as api, Client(api.access()) as client:
        api.faults += [cut, cut]  # aiohttp itself tries a second time on a connection of its pool.
        with pytest.raises(UnreachableError):
            await client.get("/api/v1/pods")


@driven
async def test_connections_that_are_reset_as_they_start_do_no_lasting_harm() -> None:
    """What a restart of the API server does to many clients at once; uvloop dies of it."""

    def reset(listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            if stopped.is_set():
                return

    stopped = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    # A daemon: when the test fails nobody connects any more, and `accept` never returns.
    thread = threading.Thread(target=reset, args=(listener,), daemon=True)
    thread.start()
    async with ApiServer() as api:
        port = listener.getsockname()[1]
        broken = dataclasses.replace(api.access(), server=f"https://127.0.0.1:{port}")
        async with Client(broken) as client:
            for _ in range(20):
                tries = (client.get("/api/v1/pods") for _ in range(10))
                results = await asyncio.gather(*tries, return_exceptions=True)
                assert all(isinstance(result, UnreachableError) for result in results)
            stopped.set()
            with pytest.raises(UnreachableError):
                await client.get("/api/v1/pods")
        async with Client(api.access()) as client:
            assert b"items" in await client.get("/api/v1/pods")
    thread.join()
    listener.close()


@driven
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


def test_a_success_makes_the_next_failure_the_first_again() -> None:
    backoff = Backoff(first=1, longest=8)
    for _ in range(5):
        backoff.next()
    backoff.reset()
    assert backoff.next() <= 1
