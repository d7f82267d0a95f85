"""Limits of the webhook: time, connections, memory, descriptors (T37)."""

from __future__ import annotations

import asyncio
import io
import json
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from istio_aux.serving import ServingLimits
from istio_aux.shedding import STARTED
from istio_aux.telemetry import Bounded, Closed
from unit.asynchronous import driven, until
from unit.hooked import BEGUN, Bare, post, raw, review, serving
from unit.logged import logging_to

ORDINARY = BEGUN.replace(b"900000", b"25000")
SHORT = 0.2


def is_open(connection: socket.socket) -> bool:
    """Whether the server has not ended it."""
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00"], ids=["silent", "half a hello"])
@driven
async def test_a_handshake_that_never_ends_is_closed(sent: bytes, tmp_path: Path) -> None:
    async with serving(tmp_path, handshake=SHORT) as hook:
        with raw(hook) as connection:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(connection, sent)
            assert await loop.sock_recv(connection, 1) == b""
        assert hook.ended("handshake") == 1


@pytest.mark.parametrize(
    "begun",
    [b"P", b"POST /mutate HTTP/1.1\r\nX: y", BEGUN + b"{", ORDINARY, ORDINARY + b"{"],
    ids=["byte", "head", "large body", "head alone", "body"],
)
@driven
async def test_a_request_that_never_ends_gets_408(begun: bytes, tmp_path: Path) -> None:
    async with serving(tmp_path, request=SHORT) as hook, hook.client() as client:
        answer = await client.ask(begun)
        assert await client.closed()
    assert (answer.status, answer.headers["Connection"]) == (408, "close")
    assert answer.body == b"no complete request in 0.2 s\n"
    assert hook.reviews("timeout") == 1
    assert hook.ended("timeout") == 1


@pytest.mark.parametrize(
    "begun",
    [b"POST /mutate HTTP/1.1\r\nX: y", BEGUN + b"{", ORDINARY + b"{"],
    ids=["head", "large body", "body"],
)
@driven
async def test_slow_bytes_do_not_extend_the_deadline(begun: bytes, tmp_path: Path) -> None:
    """Slow loris."""
    async with serving(tmp_path, request=SHORT) as hook, hook.client() as client:
        await client.send(begun)
        answered = asyncio.create_task(client.answer())
        while not answered.done():
            await client.send(b" ")
            await asyncio.sleep(0.01)
    assert (await answered).status == 408


@driven
async def test_an_idle_connection_is_closed_with_503_and_retry_after(tmp_path: Path) -> None:
    """client-go repeats a review that crosses it."""
    async with serving(tmp_path) as hook:
        async with hook.client() as client:
            await client.ask(post(review()))
            (await hook.server_side()).since -= ServingLimits().idle
            goodbye = await client.answer()
            assert await client.closed()
        assert (goodbye.status, goodbye.headers["Retry-After"]) == (503, "1")
        await until(lambda: hook.ended("idle"), "it is gone")


@driven
async def test_a_request_begins_with_its_first_byte(tmp_path: Path) -> None:
    """Idle time before it does not count."""
    async with serving(tmp_path) as hook, hook.client() as client:
        (await hook.server_side(waits_for="idle")).since -= 2 * ServingLimits().request
        await client.send(post(review())[:9])
        await hook.server_side(waits_for="request")
        hook.listener._timer.cancel()
        hook.listener._sweep()
        assert (await client.ask(post(review())[9:])).status == 200


@driven
async def test_bytes_that_are_no_request_do_not_keep_a_connection_open(tmp_path: Path) -> None:
    """A TLS record of which a byte comes now and then."""
    async with serving(tmp_path, idle=SHORT, linger=0) as hook:
        with closing(Bare(hook.port, hook.trust)) as client:
            await client.shake_hands()
            record = iter(b"\x17\x03\x03\x40\x00" + bytes(16 << 10))
            while not hook.ended("idle"):
                await client.flush(bytes([next(record)]))
                await asyncio.sleep(0.01)


def test_the_idle_timeout_is_longer_than_the_api_servers() -> None:
    """apimachinery util/net/http.go: IdleConnTimeout is 90 s."""
    assert ServingLimits().idle > 90


@driven
async def test_without_idle_connections_the_oldest_request_is_closed(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, connections=1) as hook, hook.client() as client:
        await client.send(BEGUN)
        await hook.server_side(waits_for="request")
        assert (await hook.ask(post(review()))).status == 200
        assert (await client.answer()).status == 503
        assert await client.closed()
        assert hook.ended("limit") == hook.reviews("busy") == 1


@pytest.mark.parametrize(
    ("limit", "descriptors"), [(2, 1 << 20), (2, resource.RLIM_INFINITY), (99, 8)]
)
@driven
async def test_over_the_limit_the_oldest_silent_connection_is_closed(
    limit: int, descriptors: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answered ones stay. The rest of the process keeps half of the descriptors."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    async with serving(tmp_path, connections=limit) as hook, hook.client() as spoken:
        await spoken.ask(post(review()))
        silent = [raw(hook) for _ in range(50)]
        await until(lambda: hook.ended("limit") == 48, "the others are gone")
        assert [is_open(one) for one in silent] == [False] * 48 + [True] * 2
        assert (await hook.ask(post(review()))).status == 200
        assert (await spoken.ask(post(review()))).status == 200
        for one in silent:
            one.close()


@driven
async def test_a_handshake_that_dribbles_is_closed_for_newer_connections(tmp_path: Path) -> None:
    async with serving(tmp_path, connections=2) as hook:
        with ExitStack() as stack:
            hello = stack.enter_context(raw(hook))
            hello.send(b"\x16")
            await until(
                lambda: [one for one in hook.listener.connections if one.started], "it began"
            )
            hello.send(b"\x03")
            for _ in range(2):
                stack.enter_context(raw(hook))
            await until(lambda: hook.ended("limit") == 1, "one goes")
            assert not is_open(hello)


@driven
async def test_idle_connections_of_many_addresses_close_none_of_an_address_with_an_answer(
    tmp_path: Path,
) -> None:
    """In a burst the API server's address has most connections, and most of them are new."""
    async with serving(tmp_path, connections=8) as hook:
        await hook.ask(post(review()))
        with ExitStack() as stack:
            burst = [stack.enter_context(raw(hook)) for _ in range(6)]
            await until(lambda: hook.connections == 6, "they are there")
            for number in range(2, 50):
                stack.enter_context(raw(hook, f"127.0.0.{number}"))
            await until(lambda: hook.ended("limit") == 46, "as many go as are too many")
            assert [is_open(one) for one in burst] == [True] * 6


@driven
async def test_without_free_descriptors_the_log_is_bounded_and_accepting_resumes(
    tmp_path: Path,
) -> None:
    """asyncio logs a traceback for each failed accept."""
    async with serving(tmp_path) as hook:
        with ExitStack() as stack:
            log = stack.enter_context(logging_to(io.BytesIO()))
            waiting = [stack.enter_context(socket.socket()) for _ in range(200)]
            stack.enter_context(exhausted_descriptors())
            for one in waiting:
                one.connect(("127.0.0.1", hook.port))
            await until(log.getvalue, "it is told")
            told = [json.loads(line) for line in log.getvalue().splitlines()]
        assert told[0]["message"].startswith("cannot accept: [Errno 24]")
        assert len(told) <= Bounded.LINES
        assert not any("traceback" in line for line in told)
        assert (await hook.ask(post(review()))).status == 200


@driven
async def test_requests_that_are_refused_fill_no_log(tmp_path: Path) -> None:
    """Any client can make the webhook log a warning."""
    async with serving(tmp_path) as hook:
        with logging_to(io.BytesIO()) as log:
            for _ in range(Bounded.LINES + 5):
                assert (await hook.ask(post(b"{}"))).status == 400
            told = [json.loads(line) for line in log.getvalue().splitlines()]
    assert len(told) == Bounded.LINES


@contextmanager
def exhausted_descriptors() -> Iterator[None]:
    """This process cannot open another descriptor in the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as highest:
        limit = highest.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@driven
async def test_a_burst_leaves_no_more_connections_than_the_limit(tmp_path: Path) -> None:
    async with serving(tmp_path, connections=4) as hook:
        with ExitStack() as stack:
            for _ in range(20):
                client = stack.enter_context(closing(Bare(hook.port, hook.trust)))
                await client.shake_hands()
                client.write(post(review()))
                await client.flush()
            await until(lambda: hook.reviews("hold") == 20, "all are answered")
            await until(lambda: hook.ended("limit") == 16, "as many go as are too many")
            assert hook.connections == 4


class Transport(asyncio.Transport):
    """The transport of a connection whose handshake has just succeeded."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.aborted = True


@driven
async def test_a_connection_that_is_closed_while_its_handshake_ends_stays_closed(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as hook:
        with raw(hook) as client:
            client.send(b"\x16")
            listener = hook.webhook._listener
            assert listener
            await until(lambda: any(one.started for one in listener.connections), "it has begun")
            (connection,) = listener.connections
            transport = Transport()
            connection.end(Closed.LIMIT)
            connection.connection_made(transport)
            assert transport.aborted
            assert (len(listener.connections), hook.connections) == (0, 0)
            connection.connection_lost(None)


@driven
async def test_a_client_that_does_not_read_its_answers_is_closed(tmp_path: Path) -> None:
    """Its next requests are not answered meanwhile: the answers would fill the memory."""
    large = review().replace(b"u-1", b"u" * 400_000)
    async with serving(tmp_path, request=4 * SHORT) as hook, hook.client() as client:
        client.pause()
        with pytest.raises(ConnectionError):
            await client.send_on(post(large))
        assert hook.ended("unread") == 1
        assert hook.reviews("hold") < 50


@driven
async def test_a_slow_reader_gets_all_its_answers(tmp_path: Path) -> None:
    large = review().replace(b"u-1", b"u" * 400_000)
    async with serving(tmp_path) as hook, hook.client() as client:
        client.pause()
        sending = asyncio.create_task(client.send(post(large) * 50))
        listener = hook.webhook._listener
        assert listener
        await until(lambda: listener.connections, "it is there")
        (server_side,) = listener.connections
        await until(lambda: server_side.writing_paused, "the server waits for it")
        client.resume()
        assert [(await client.answer()).status for _ in range(50)] == [200] * 50
        await sending


@driven
async def test_a_refused_client_that_never_stops_sending_is_closed(tmp_path: Path) -> None:
    async with serving(tmp_path, linger=SHORT) as hook:
        with closing(Bare(hook.port, hook.trust)) as client:
            await client.shake_hands()
            client.write(BEGUN.replace(b"POST", b"PUT"))
            while not hook.ended("refused"):
                await client.flush(b" ")
                await asyncio.sleep(0.01)


@driven
async def test_a_client_that_leaves_during_its_body_causes_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as hook, hook.client() as client:
        await client.send(BEGUN + b" " * 100_000)
        await until(lambda: hook.listener.connections.cost > STARTED + 100_000, "it is reading")
        client.leave()
        await until(lambda: hook.reviews("malformed") == 1, "it is counted")
        await until(lambda: hook.listener.connections.cost == 0, "its memory is free")
    assert [r for r in caplog.records if r.exc_info] == []
