"""An HTTP request through a forwarded port: frames to a result, and every way in which none comes.

T21: the way to an agent whose port pilot-agent's own client refuses.
"""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as some
from istio_aux.kube.client import Client
from istio_aux.kube.exec import FRAMES, OUTPUT
from istio_aux.kube.port_forward import ForwardChannels, request
from istio_aux.model.pod import Key
from istio_aux.model.sidecars import AttemptResult
from unit.apiserver import ApiServer, refusal
from unit.asynchronous import driven
from unit.podverbs import OK

DATA, ERROR = b"\x00", b"\x01"
OPENED = [b"\x00\xac:", b"\x01\xac:"]
"""How both channels begin when 15020 is forwarded, as recorded."""
REFUSED = b"error forwarding port 15020 to pod u-1: connection refused"


def heard(*frames: bytes) -> AttemptResult:
    channels = ForwardChannels()
    for frame in frames:
        channels.feed(frame)
    return channels.result("" if channels.finished else "cut")


def said(text: str) -> AttemptResult:
    return AttemptResult(text.startswith("HTTP 2"), sent=True, text=text)


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
        pytest.param([DATA + b"HTTP/1.0 405 \r\nContent-Length: 0\r\n\r\n"], "HTTP 405",
                     id="no body"),
        pytest.param([DATA + b"HTTP/1.1 200 OK\r\n\r\nO", DATA + b"K"], "HTTP 200: OK",
                     id="no length"),
        pytest.param([DATA + OK[:-1]], "HTTP 200: O", id="cut in the body"),
        pytest.param([DATA + OK[:20]], "HTTP 200: cut", id="cut in the head"),
        pytest.param([DATA + OK[:9]], "no answer: cut", id="cut in the first line"),
        pytest.param([ERROR + REFUSED], f"no answer: {REFUSED.decode()}",
                     id="nobody listens"),
        pytest.param([DATA + OK[:-1], ERROR + b"reset"], "HTTP 200: reset",
                     id="an answer and an error"),
        pytest.param([], "no answer: cut", id="nothing"),
    ],
)  # fmt: skip
def test_frames_make_a_result(frames: list[bytes], text: str) -> None:
    assert heard(*OPENED, *frames) == said(text)


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
    channels = ForwardChannels()
    for frame in (*OPENED, *frames):
        channels.feed(frame)
    assert channels.finished is finished


def test_an_answer_that_is_no_http_is_no_status() -> None:
    result = heard(*OPENED, DATA + b"SSH-2.0\r\n\r\n" + b"x" * OUTPUT)
    assert not result.well
    assert result.text.startswith("no answer: the answer is no HTTP: 'SSH-2.0")


@given(some.lists(some.integers(0, len(OK) + 2), max_size=6))
def test_where_the_frames_are_cut_makes_no_difference(cuts: list[int]) -> None:
    whole = OPENED[0][1:] + OK
    edges = [0, *sorted(cuts), len(whole)]
    parts = [DATA + whole[a:b] for a, b in pairwise(edges)]
    assert heard(*parts, OPENED[1]) == said("HTTP 200: OK")


@given(some.lists(some.binary(max_size=50)))
def test_no_frames_whatever_is_in_them_are_an_error_of_ours(frames: list[bytes]) -> None:
    assert heard(*frames).text != "no answer"


def test_single_bytes_cost_no_more_than_a_glance_each() -> None:
    """What the pod's own program sends, and how, is the pod's affair."""
    channels = ForwardChannels()
    began = time.thread_time()
    for _ in range(60_000):
        channels.feed(DATA + b"x")
        assert not channels.finished
    # 0.05 s on 2 cores; with a look at all that has come, 40 s.
    assert time.thread_time() - began < 2


async def quit_at(api: ApiServer, client: Client, deadline: float = 10) -> AttemptResult:
    await api.put("pods", {"metadata": {"name": "job", "namespace": "training"}})
    return await request(
        client, Key("training", "job", "u-1"), 18020, "POST /quitquitquit", deadline
    )


@driven
async def test_the_request_arrives_at_the_port_and_its_answer_here() -> None:
    async with ApiServer() as api, Client(api.access()) as client:
        assert await quit_at(api, client) == said("HTTP 200: OK")
        ((namespace, pod, port, head),) = api.forwards
    assert (namespace, pod, port) == ("training", "job", 18020)
    assert head.split("\r\n")[:2] == ["POST /quitquitquit HTTP/1.1", "Host: localhost:18020"]


@driven
async def test_a_refused_handshake_says_what_the_api_server_said() -> None:
    """T24."""

    async def refuse(_request: web.Request) -> web.Response:
        return refusal(403, "Forbidden", 'pods "job" is forbidden: User "me" cannot create')

    async with ApiServer() as api, Client(api.access()) as client:
        api.faults.append(refuse)
        result = await quit_at(api, client)
    why = '403 Forbidden: pods "job" is forbidden: User "me" cannot create'
    assert result == AttemptResult(False, False, f"no answer: {why}")


@pytest.mark.parametrize(
    ("first", "begins"),
    [(b"", "no answer: closed after"), (OK, "HTTP 200: OK")],
    ids=["no answer", "behind its answer"],
)
@driven
async def test_an_agent_that_sends_on_and_on_is_left(first: bytes, begins: str) -> None:
    """Its frames are never waited for, so that neither a deadline nor a goodbye would come."""
    left = asyncio.Event()

    async def send_on(socket: web.WebSocketResponse, *_: str) -> None:
        try:
            await socket.send_bytes(DATA + first)
            while True:
                await asyncio.sleep(0)
                for _frame in range(FRAMES // 32):
                    await socket.send_bytes(DATA + b"x")
        except ConnectionError:
            left.set()

    async with ApiServer() as api, Client(api.access()) as client:
        api.on_forward = send_on
        result = await quit_at(api, client, deadline=100)
        await left.wait()
    assert result.text.startswith(begins)
