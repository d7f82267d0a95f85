"""Exec over a WebSocket: frames to a result, and every way in which none comes.

istio.io#5073, istio#11659, python#2156, kubernetes#103177, python#1132.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TypeVar

import pytest
from aiohttp import web
from istio_aux.kube.client import Client
from istio_aux.kube.exec import (
    BYTES,
    FRAMES,
    OUTPUT,
    Channels,
    ExecChannels,
    ForwardChannels,
    execute,
    forward,
)
from istio_aux.model.pod import Key
from istio_aux.model.sidecars import AttemptResult
from unit.apiserver import OK, ApiServer, Exec, sending

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


C = TypeVar("C", bound=Channels)


def fed(channels: C, *frames: bytes) -> C:
    for frame in frames:
        channels.feed(frame)
    return channels


def said(text: str) -> AttemptResult:
    return AttemptResult(text.startswith(("exit code 0", "HTTP 2")), sent=True, text=text)


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        pytest.param([b"\x01OK\n", SUCCESS], "exit code 0: OK", id="success"),
        pytest.param([b"\x01", b"\x02", b"\x03", b"", SUCCESS], "exit code 0", id="empty frames"),
        pytest.param([b"\x01OK", b"\x02o\nh", SUCCESS], "exit code 0: o h", id="stderr"),
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
    assert fed(ExecChannels(), *frames).result("cut") == said(text)


POD = Key("training", "job", "u-1")


async def run(api: ApiServer, client: Client) -> AttemptResult:
    api.put("pods", {"metadata": {"name": "job", "namespace": "training"}})
    return await execute(client, POD, ["pilot-agent", "request", "a b"], 10)


async def answered(on_exec: Exec) -> AttemptResult:
    async with ApiServer() as api, Client(api.access()) as client:
        api.on_exec = on_exec
        return await run(api, client)


async def test_the_command_arrives_word_by_word_with_output_and_without_input(
    api: ApiServer, client: Client
) -> None:
    assert await run(api, client) == said("exit code 0: OK")
    words = ("pilot-agent", "request", "a b")
    assert api.execs == [("training", "job", "istio-proxy", words)]
    query = api.queries[-1]
    assert (query["stdout"], query["stderr"], "stdin" in query) == ("true", "true", False)


@pytest.mark.parametrize("spoken", ["v5.channel.k8s.io", "v4.channel.k8s.io"])
async def test_either_protocol_will_do_and_the_newer_is_preferred(
    api: ApiServer, client: Client, spoken: str
) -> None:
    """The handshake accepts any type, because a kubelet names none."""
    offered: list[str] = []

    async def speak(request: web.Request) -> web.StreamResponse | None:
        assert request.headers["Accept"] == "*/*"
        offered.append(request.headers["Sec-WebSocket-Protocol"])
        socket = web.WebSocketResponse(protocols=(spoken,))
        await socket.prepare(request)
        await socket.send_bytes(SUCCESS)
        await socket.close()
        return socket

    api.faults.append(speak)
    assert (await run(api, client)).well
    assert offered[0].replace(" ", "") == "v5.channel.k8s.io,v4.channel.k8s.io"


async def test_a_socket_that_is_closed_without_a_status_is_no_verdict() -> None:
    found = await answered(sending(b"\x01OK"))
    assert found == said("no exit code: closed without a status (1000)")


@pytest.mark.parametrize(
    ("frame", "frames"),
    [
        pytest.param(b"\x01", FRAMES + 1, id="many frames"),
        pytest.param(b"\x01" + b"x" * (64 << 10), BYTES // (64 << 10), id="many bytes"),
    ],
)
async def test_a_command_that_says_too_much_is_left(frame: bytes, frames: int) -> None:
    """A tenant's program may send as much as it can."""
    why = f"closed after {frames} frames and {frames * len(frame)} bytes without a result"
    assert await answered(sending(*[frame] * (frames + 10))) == said(f"no exit code: {why}")


async def test_a_refused_handshake_says_what_the_api_server_said(
    api: ApiServer, client: Client
) -> None:
    """By `create` since Kubernetes 1.35, by `get` before."""
    why = 'pods "job" is forbidden: User "me" cannot create'
    api.refuse("/exec", 403, "Forbidden", why)
    result = await run(api, client)
    assert result == AttemptResult(False, False, f"no exit code: 403 Forbidden: {why}")


# An HTTP request through a forwarded port.

DATA, ERROR = b"\x00", b"\x01"
OPENED = [b"\x00\xac:", b"\x01\xac:"]
"""How both channels begin when 15020 is forwarded, as recorded."""
REFUSED = b"error forwarding port 15020 to pod u-1: connection refused"


def forwarded(*frames: bytes) -> AttemptResult:
    channels = fed(ForwardChannels(), *frames)
    return channels.result("" if channels.finished else "cut")


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        pytest.param([DATA + OK], "HTTP 200: OK", id="200"),
        pytest.param([DATA + OK[:5], DATA, DATA + OK[5:]], "HTTP 200: OK", id="in parts"),
        pytest.param([DATA + OK.replace(b"\r\n", b"\n")], "HTTP 200: OK", id="bare LF"),
        pytest.param([b"\x02?", b"\xff!", b"", DATA + OK], "HTTP 200: OK",
                     id="unknown channels"),
        pytest.param([DATA + b"HTTP/1.1 403 Forbidden\r\ncontent-length: 9\r\n\r\nlocalhost"],
                     "HTTP 403: localhost", id="403"),
        pytest.param([DATA + b"HTTP/1.1 200 OK\r\n\r\nO", DATA + b"K"], "HTTP 200: OK",
                     id="no length"),
        pytest.param([DATA + OK[:9]], "no answer: cut", id="cut in the first line"),
        pytest.param([ERROR + REFUSED], f"no answer: {REFUSED.decode()}",
                     id="nobody listens"),
        pytest.param([DATA + OK[:-1], ERROR + b"reset"], "HTTP 200: reset",
                     id="an answer and an error"),
        pytest.param([], "no answer: cut", id="nothing"),
    ],
)  # fmt: skip
def test_forwarded_frames_make_a_result(frames: list[bytes], text: str) -> None:
    assert forwarded(*OPENED, *frames) == said(text)


@pytest.mark.parametrize(
    ("frames", "finished"),
    [
        pytest.param([], False, id="nothing"),
        pytest.param([DATA + OK[:-3]], False, id="no body yet"),
        pytest.param([DATA + OK], True, id="all of it"),
        pytest.param([DATA + OK.lower().replace(b"http", b"HTTP")], True, id="any spelling"),
        pytest.param([DATA + b"HTTP/1.1 200 OK\r\n\r\nOK"], False, id="no length: to the end"),
        pytest.param([DATA + b"x" * OUTPUT], False, id="much, and no end of the head"),
        pytest.param([ERROR + REFUSED], True, id="an error"),
    ],
)
def test_an_answer_is_over_when_its_length_or_the_node_says_so(
    frames: list[bytes], *, finished: bool
) -> None:
    assert fed(ForwardChannels(), *OPENED, *frames).finished is finished


def test_single_bytes_cost_no_more_than_a_glance_each() -> None:
    """What a pod's own program sends, and how, is the tenant's affair."""
    channels = fed(ForwardChannels(), *OPENED, DATA + b"\nx" * (OUTPUT // 2 - FRAMES))
    began = time.thread_time()
    for _ in range(FRAMES):
        channels.feed(DATA + b"x")
        assert not channels.finished
    assert time.thread_time() - began < 1, "0.01 s; with a look at all that has come, 7 s"


def test_an_answer_that_is_no_http_is_no_status() -> None:
    result = forwarded(*OPENED, DATA + b"SSH-2.0\r\n\r\n" + b"x" * OUTPUT)
    assert not result.well
    assert result.text.startswith("no answer: the answer is no HTTP: 'SSH-2.0")


async def quit_at(api: ApiServer, client: Client, deadline: float = 10) -> AttemptResult:
    api.put("pods", {"metadata": {"name": "job", "namespace": "training"}})
    return await forward(client, POD, 18020, "POST /quitquitquit", deadline)


async def test_the_request_arrives_at_the_port_and_its_answer_here(
    api: ApiServer, client: Client
) -> None:
    assert await quit_at(api, client) == said("HTTP 200: OK")
    ((*to, head),) = api.forwards
    assert to == ["training", "job", 18020]
    assert head.split("\r\n")[:2] == ["POST /quitquitquit HTTP/1.1", "Host: localhost:18020"]


async def test_a_refusal_is_heard_although_the_node_has_closed_before_the_request(
    api: ApiServer, client: Client
) -> None:
    """It connects to the port at once; that of a real one came before the pod was read again."""
    refused = asyncio.Event()

    async def refuse(request: web.Request) -> web.StreamResponse | None:
        if not request.path.endswith("/portforward"):
            return None
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        for frame in (*OPENED, ERROR + REFUSED):
            await socket.send_bytes(frame)
        assert request.transport
        request.transport.close()
        refused.set()
        return socket

    async def still() -> bool:
        await refused.wait()
        await asyncio.sleep(0.05)  # No event says that the connection is closed on this side.
        return True

    api.put("pods", {"metadata": {"name": "job", "namespace": "training"}})
    api.faults.append(refuse)
    channels = ForwardChannels()
    await forward(client, POD, 15020, "GET /", 10.0, still=still, channels=channels)
    assert channels.ready is False
