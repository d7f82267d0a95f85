"""An HTTP request through a forwarded port: frames to a result, and every way in which none comes.

T21: the way to an agent whose port pilot-agent's own client refuses.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as some
from istio_aux.kube.client import Client
from istio_aux.kube.exec import FRAMES, OUTPUT, EarlyEnd
from istio_aux.kube.port_forward import ForwardChannels, ForwardResult, request
from istio_aux.model.pod import Key
from unit.apiserver import OK, ApiServer
from unit.asynchronous import driven

DATA, ERROR = b"\x00", b"\x01"
OPENED = [b"\x00\xac:", b"\x01\xac:"]
"""How both channels begin when 15020 is forwarded, as recorded."""
REFUSED = b"error forwarding port 15020 to pod u-1: connection refused"


def heard(*frames: bytes) -> ForwardResult:
    channels = ForwardChannels()
    for frame in frames:
        channels.feed(frame)
    return channels.result(None if channels.finished else EarlyEnd("cut"))


@pytest.mark.parametrize(
    ("frames", "result"),
    [
        pytest.param([DATA + OK], ForwardResult(200, "OK"), id="200"),
        pytest.param([DATA + OK[:5], DATA, DATA + OK[5:]], ForwardResult(200, "OK"), id="in parts"),
        pytest.param([DATA + OK.replace(b"\r\n", b"\n")], ForwardResult(200, "OK"), id="bare LF"),
        pytest.param([b"\x02?", b"\xff!", b"", DATA + OK], ForwardResult(200, "OK"),
                     id="unknown channels"),
        pytest.param([DATA + b"HTTP/1.1 403 Forbidden\r\ncontent-length: 9\r\n\r\nlocalhost"],
                     ForwardResult(403, "localhost"), id="403"),
        pytest.param([DATA + b"HTTP/1.0 405 \r\nContent-Length: 0\r\n\r\n"], ForwardResult(405),
                     id="no body"),
        pytest.param([DATA + b"HTTP/1.1 200 OK\r\n\r\nO", DATA + b"K"], ForwardResult(200, "OK"),
                     id="no length"),
        pytest.param([DATA + OK[:-1]], ForwardResult(200, "O"), id="cut in the body"),
        pytest.param([DATA + OK[:20]], ForwardResult(200, error="cut"), id="cut in the head"),
        pytest.param([DATA + OK[:9]], ForwardResult(None, error="cut"), id="cut in the first line"),
        pytest.param([ERROR + REFUSED], ForwardResult(None, error=REFUSED.decode()),
                     id="nobody listens"),
        pytest.param([DATA + OK[:-1], ERROR + b"reset"], ForwardResult(200, "O", error="reset"),
                     id="an answer and an error"),
        pytest.param([], ForwardResult(None, error="cut"), id="nothing"),
    ],
)  # fmt: skip
def test_frames_make_a_result(frames: list[bytes], result: ForwardResult) -> None:
    assert heard(*OPENED, *frames) == result


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
    assert result.status is None
    assert str(result).startswith("no answer: the answer is no HTTP: 'SSH-2.0")


@given(some.lists(some.integers(0, len(OK) + 2), max_size=6))
def test_where_the_frames_are_cut_makes_no_difference(cuts: list[int]) -> None:
    whole = OPENED[0][1:] + OK
    edges = [0, *sorted(cuts), len(whole)]
    parts = [DATA + whole[a:b] for a, b in pairwise(edges)]
    assert heard(*parts, OPENED[1]) == ForwardResult(200, "OK")


@given(some.lists(some.binary(max_size=50)))
def test_no_frames_whatever_is_in_them_are_an_error_of_ours(frames: list[bytes]) -> None:
    result = heard(*frames)
    assert result.status is not None or result.error


def test_a_result_reads_as_one_line() -> None:
    assert str(ForwardResult(200, "OK\n")) == "HTTP 200: OK"
    assert str(ForwardResult(405)) == "HTTP 405"
    assert str(ForwardResult(None, error="connection\nrefused")) == "no answer: connection refused"


async def quit_at(api: ApiServer, client: Client, deadline: float = 10) -> ForwardResult:
    await api.put("pods", {"metadata": {"name": "job", "namespace": "training"}})
    return await request(
        client, Key("training", "job", "u-1"), 18020, "POST /quitquitquit", deadline
    )


@driven
async def test_the_request_arrives_at_the_port_and_its_answer_here() -> None:
    async with ApiServer() as api, Client(api.access()) as client:
        assert await quit_at(api, client) == ForwardResult(200, "OK")
        ((namespace, pod, port, head),) = api.forwards
    assert (namespace, pod, port) == ("training", "job", 18020)
    assert head.split("\r\n")[:2] == ["POST /quitquitquit HTTP/1.1", "Host: localhost:18020"]


@pytest.mark.parametrize(
    ("first", "said"),
    [(b"", "no answer: closed after"), (OK, "HTTP 200: OK")],
    ids=["no answer", "behind its answer"],
)
@driven
async def test_an_agent_that_sends_on_and_on_is_left(first: bytes, said: str) -> None:
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
    assert str(result).startswith(said)
