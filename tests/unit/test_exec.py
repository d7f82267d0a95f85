"""Exec over a WebSocket: frames to a result, and every way in which none comes (T14-T18, T25)."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as some
from istio_aux.kube.client import Client
from istio_aux.kube.errors import NoConnectionError
from istio_aux.kube.exec import (
    BYTES,
    FRAMES,
    OUTPUT,
    ExecChannels,
    execute,
)
from istio_aux.model.pod import Key
from istio_aux.model.sidecars import AttemptResult
from unit.apiserver import ApiServer, Exec, refusal
from unit.asynchronous import driven

SUCCESS = b'\x03{"metadata":{},"status":"Success"}'


def failure(code: str) -> bytes:
    """The Status of a command that ended with a code (remotecommand v4)."""
    status = {
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": code}]},
    }
    return b"\x03" + json.dumps(status).encode()


def heard(*frames: bytes) -> AttemptResult:
    channels = ExecChannels()
    for frame in frames:
        channels.feed(frame)
    return channels.result("cut")


def said(text: str) -> AttemptResult:
    return AttemptResult(text.partition(":")[0] == "exit code 0", sent=True, text=text)


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        pytest.param([b"\x01OK\n", SUCCESS], "exit code 0: OK", id="success"),
        pytest.param([b"\x01", b"\x02", b"\x03", b"", SUCCESS], "exit code 0", id="empty frames"),
        pytest.param([b"\x01O", b"\x01K", SUCCESS], "exit code 0: OK", id="output in parts"),
        pytest.param([b"\x01OK", b"\x02o\nh", SUCCESS], "exit code 0: o h", id="stderr"),
        pytest.param([SUCCESS[:9], b"\x03" + SUCCESS[9:]], "exit code 0", id="status in parts"),
        pytest.param([b"\x07?", b"\xff\x01", SUCCESS], "exit code 0", id="unknown channels"),
        pytest.param(
            [failure("255")],
            "exit code 255: command terminated with non-zero exit code: exit status 255",
            id="exit code",
        ),
        pytest.param(
            [b'\x03{"status":"Failure","message":"container not found (\\"istio-proxy\\")"}'],
            'no exit code: container not found ("istio-proxy")',
            id="no exit code",
        ),
        pytest.param([b'\x03{"status":"Failure"}'], "no exit code: the server gave no reason",
                     id="no reason"),
        pytest.param([b"\x03oops"], "no exit code: oops", id="no JSON"),
        pytest.param(
            [failure("many")],
            "no exit code: command terminated with non-zero exit code: exit status many",
            id="exit code is no number",
        ),
        pytest.param([b"\x01OK"], "no exit code: cut", id="no status"),
        pytest.param([b"\x01\xff", SUCCESS], "exit code 0: \ufffd", id="no UTF-8"),
    ],
)  # fmt: skip
def test_frames_make_a_result(frames: list[bytes], text: str) -> None:
    assert heard(*frames) == said(text)


@given(some.lists(some.binary(max_size=50)))
def test_no_frame_whatever_is_in_it_is_an_error_or_success(frames: list[bytes]) -> None:
    result = heard(*(frame for frame in frames if frame[:1] != b"\x03"))
    assert result == said("no exit code: cut")


def test_a_talkative_command_is_cut_and_its_status_still_read() -> None:
    channels = ExecChannels()
    for frame in (*[b"\x01" + b"x" * 10_000] * 100, SUCCESS):
        channels.feed(frame)
    assert len(channels.received(1)) == OUTPUT
    assert channels.result().well


async def run(api: ApiServer, client: Client, deadline: float = 10) -> AttemptResult:
    await api.put("pods", {"metadata": {"name": "job", "namespace": "training"}})
    pod = Key("training", "job", "u-1")
    return await execute(client, pod, "istio-proxy", ["pilot-agent", "request", "a b"], deadline)


async def answered(on_exec: Exec, deadline: float = 10) -> AttemptResult:
    async with ApiServer() as api, Client(api.access()) as client:
        api.on_exec = on_exec
        return await run(api, client, deadline)


@driven
async def test_the_command_arrives_word_by_word_with_output_and_without_input() -> None:
    async with ApiServer() as api, Client(api.access()) as client:
        assert await run(api, client) == said("exit code 0: OK")
        command = ("pilot-agent", "request", "a b")
        assert api.execs == [("training", "job", "istio-proxy", command)]
        query = api.queries[-1]
        assert (query["stdout"], query["stderr"], "stdin" in query) == ("true", "true", False)


@driven
async def test_the_handshake_accepts_any_type_for_a_kubelet_names_none() -> None:
    accepted: list[str] = []

    async def look(request: web.Request) -> web.StreamResponse | None:
        accepted.append(request.headers["Accept"])
        return None

    async with ApiServer() as api, Client(api.access()) as client:
        api.faults.append(look)
        await run(api, client)
    assert accepted == ["*/*"]


@pytest.mark.parametrize("spoken", ["v5.channel.k8s.io", "v4.channel.k8s.io"])
@driven
async def test_either_protocol_will_do_and_the_newer_is_preferred(spoken: str) -> None:
    offered: list[str] = []

    async def speak(request: web.Request) -> web.StreamResponse | None:
        offered.append(request.headers["Sec-WebSocket-Protocol"])
        socket = web.WebSocketResponse(protocols=(spoken,))
        await socket.prepare(request)
        await socket.send_bytes(SUCCESS)
        await socket.close()
        return socket

    async with ApiServer() as api, Client(api.access()) as client:
        api.faults.append(speak)
        assert (await run(api, client)).well
    assert offered[0].replace(" ", "") == "v5.channel.k8s.io,v4.channel.k8s.io"


@driven
async def test_a_socket_that_is_closed_without_a_status_is_no_verdict() -> None:
    async def close(socket: web.WebSocketResponse, *_: str) -> None:
        await socket.send_bytes(b"\x01OK")
        await socket.close()

    assert await answered(close) == said("no exit code: closed without a status (1000)")


@pytest.mark.parametrize(
    ("frame", "frames"),
    [
        pytest.param(b"\x01", FRAMES + 1, id="many frames"),
        pytest.param(b"\x01" + b"x" * (64 << 10), BYTES // (64 << 10), id="many bytes"),
    ],
)
@driven
async def test_a_command_that_says_too_much_is_left(frame: bytes, frames: int) -> None:
    """A tenant's program may send as much as it can."""

    async def flood(socket: web.WebSocketResponse, *_: str) -> None:
        for _number in range(frames + 10):
            await socket.send_bytes(frame)

    why = f"closed after {frames} frames and {frames * len(frame)} bytes without a result"
    assert await answered(flood) == said(f"no exit code: {why}")


@driven
async def test_a_hung_exec_ends_at_its_deadline() -> None:
    async def hang(_socket: web.WebSocketResponse, *_: str) -> None:
        await asyncio.sleep(30)

    began = asyncio.get_running_loop().time()
    result = await answered(hang, deadline=0.2)
    assert result == said("no exit code: timed out after 0.2 s")
    assert asyncio.get_running_loop().time() - began < 5


@driven
async def test_a_handshake_that_hangs_ends_at_the_deadline() -> None:
    async def hang(_request: web.Request) -> web.StreamResponse | None:
        await asyncio.sleep(30)
        return None

    async with ApiServer() as api, Client(api.access()) as client:
        api.faults.append(hang)
        result = await run(api, client, deadline=0.2)
    assert result == said("no exit code: timed out after 0.2 s")


@driven
async def test_a_refused_handshake_says_what_the_api_server_said() -> None:
    async def refuse(_request: web.Request) -> web.Response:
        return refusal(403, "Forbidden", 'pods "job" is forbidden: User "me" cannot create')

    async with ApiServer() as api, Client(api.access()) as client:
        api.faults.append(refuse)
        result = await run(api, client)
    why = '403 Forbidden: pods "job" is forbidden: User "me" cannot create'
    assert result == AttemptResult(False, False, f"no exit code: {why}")


@driven
async def test_an_api_server_that_is_not_there_has_heard_nothing() -> None:
    async with ApiServer() as api:
        access = api.access()
        await api.stop()
        async with Client(access) as client:
            with pytest.raises(NoConnectionError, match=r"Cannot connect to host 127.0.0.1:\d+ \["):
                await execute(client, Key("training", "job", "u-1"), "istio-proxy", ["true"], 5)
        await api.start()
