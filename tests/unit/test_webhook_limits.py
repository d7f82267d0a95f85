"""Limits of the webhook, and which connections are closed when they are too many (istio#26380)."""

from __future__ import annotations

import asyncio
import io
import json
import os
import resource
import socket
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from istio_aux import serving as listening
from istio_aux.serving import (
    ADDRESSES,
    CONNECTION,
    Connections,
    Peer,
    ServingLimits,
    available_memory,
)
from istio_aux.start.turns import Turns
from istio_aux.telemetry import Bounded
from unit.hooked import BEGUN, Hook, post, raw, review, serving
from unit.process import descriptors, logging_to, until

# Limits of the webhook: time, connections, memory, descriptors (istio#26380).

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
async def test_a_handshake_that_never_ends_is_closed(sent: bytes) -> None:
    async with serving(handshake=SHORT) as hook:
        with raw(hook) as connection:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(connection, sent)
            assert await loop.sock_recv(connection, 1) == b""
        assert hook.ended("handshake") == 1


@pytest.mark.parametrize(
    "begun",
    [b"POST /mutate HTTP/1.1\r\nX: y", BEGUN + b"{", ORDINARY],
    ids=["head", "large body", "head alone"],
)
async def test_a_request_that_never_ends_gets_408(begun: bytes) -> None:
    async with serving(request=SHORT) as hook, hook.client() as client:
        answer = await client.ask(begun)
        assert await client.closed()
    assert (answer.status, answer.headers["Connection"]) == (408, "close")
    assert answer.body == b"no complete request in 0.2 s\n"
    assert hook.reviews("timeout") == hook.ended("timeout") == 1


@pytest.mark.parametrize(
    "begun",
    [b"POST /mutate HTTP/1.1\r\nX: y", ORDINARY + b"{"],
    ids=["head", "body"],
)
async def test_slow_bytes_do_not_extend_the_deadline(begun: bytes) -> None:
    """Slow loris."""
    async with serving(request=SHORT) as hook, hook.client() as client:
        await client.send(begun)
        answered = asyncio.create_task(client.answer())
        while not answered.done():
            await client.send(b" ")
            await asyncio.sleep(0.01)
    assert (await answered).status == 408


async def test_an_idle_connection_is_closed_with_503_and_retry_after(hook: Hook) -> None:
    """client-go repeats a review that crosses it."""
    async with hook.client() as client:
        await client.ask(post(review()))
        (await hook.server_side()).since -= ServingLimits().idle
        goodbye = await client.answer()
        assert await client.closed()
    assert (goodbye.status, goodbye.headers["Retry-After"]) == (503, "1")
    await until(lambda: hook.ended("idle"), "it is gone")


@pytest.mark.parametrize(
    ("limits", "begun", "byte", "reason"),
    [
        ({"idle": SHORT, "linger": 0}, b"", b"\x00", "idle"),
        ({"linger": SHORT}, BEGUN.replace(b"POST", b"PUT"), b" ", "refused"),
    ],
    ids=["a TLS record of which a byte comes now and then", "a request that was refused"],
)
async def test_a_client_that_never_stops_sending_is_closed(
    limits: dict[str, Any], begun: bytes, byte: bytes, reason: str
) -> None:
    async with serving(**limits) as hook:
        with await asyncio.to_thread(hook.blocking) as client:
            if begun:
                client.sendall(begun)
            else:
                os.write(client.fileno(), b"\x17\x03\x03\x40\x00")
            while not hook.ended(reason):
                os.write(client.fileno(), byte)
                await asyncio.sleep(0.01)


def test_the_idle_timeout_is_longer_than_the_api_servers() -> None:
    """apimachinery util/net/http.go: IdleConnTimeout is 90 s."""
    assert ServingLimits().idle > 90


@pytest.mark.parametrize(("limit", "descriptors"), [(2, resource.RLIM_INFINITY), (99, 8)])
async def test_over_the_limit_the_oldest_silent_connection_is_closed(
    limit: int, descriptors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answered ones stay. The rest of the process keeps half of the descriptors."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    async with serving(connections=limit) as hook, hook.client() as spoken:
        await spoken.ask(post(review()))
        silent = [raw(hook) for _ in range(50)]
        await until(lambda: hook.ended("limit") == 48, "the others are gone")
        await until(lambda: not any(is_open(one) for one in silent[:48]), "they are closed")
        assert all(is_open(one) for one in silent[48:])
        assert (await hook.ask(post(review()))).status == 200
        assert (await spoken.ask(post(review()))).status == 200
        for one in silent:
            one.close()


async def test_what_a_client_that_left_has_sent_does_not_wait_for_a_turn() -> None:
    """Else the bodies of clients that come and go are held without bound."""
    async with serving() as hook, hook.client() as client:
        turns = hook.webhook._turns
        turns._passing = asyncio.create_task(asyncio.sleep(60))  # No turn comes.
        await client.send(post(review()))
        await until(lambda: turns._waiting, "it waits")
        client.leave()
        await until(lambda: hook.connections == 0, "it is gone")
        await until(lambda: not turns._waiting, "nothing waits", within=5)
        turns._passing.cancel()


async def test_an_error_of_ours_is_not_counted_as_a_clients(hook: Hook) -> None:
    async def fail(_request: web.BaseRequest) -> web.StreamResponse:
        raise RuntimeError

    hook.listener._handler = fail
    assert (await hook.ask(post(review()))).status == 500
    await until(lambda: hook.connections == 0, "it is gone")
    assert hook.reviews("malformed") == 0


async def test_without_free_descriptors_the_log_is_bounded_and_accepting_resumes(
    hook: Hook,
) -> None:
    with ExitStack() as stack:
        log = stack.enter_context(logging_to(io.BytesIO()))
        waiting = [stack.enter_context(socket.socket()) for _ in range(200)]
        stack.enter_context(exhausted_descriptors())
        for one in waiting:
            one.connect(("127.0.0.1", hook.port))
        await until(log.getvalue, "it is told")
        told = [json.loads(line) for line in log.getvalue().splitlines()]
    assert told[0]["message"].startswith("socket.accept() out of system resource")
    assert len(told) <= Bounded.LINES
    assert (await hook.ask(post(review()))).status == 200


async def test_requests_that_are_refused_fill_no_log(hook: Hook) -> None:
    """Any client can make the webhook log a warning."""
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


async def test_a_client_that_does_not_read_its_answers_is_closed() -> None:
    """Its next requests are not answered meanwhile: the answers would fill the memory."""
    large = review().replace(b"u-1", b"u" * 400_000)
    async with serving(request=4 * SHORT) as hook, hook.client() as client:
        client.pause()
        with pytest.raises(ConnectionError):
            await client.send_on(post(large))
        assert hook.ended("unread") == 1
        assert hook.reviews("hold") < 50


# What clients cost in memory, and that it is given back.


async def test_a_handshake_takes_little_memory(hook: Hook) -> None:
    """There may be 1,024. asyncio allocates 256 KiB for each by default."""
    with ExitStack() as stack:
        listener = hook.listener
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for _ in range(20):
            stack.enter_context(raw(hook)).send(b"\x16")
        await until(lambda: len(listener.connections) == 20, "they began")
        assert tracemalloc.get_traced_memory()[1] < 20 * (100 << 10)


async def test_requests_that_take_too_much_memory_together_get_503_the_oldest_first() -> None:
    """client-go retries within its deadline (rest/with_retry.go)."""
    async with serving(memory=4 * 65_300) as hook, hook.client() as oldest:
        await oldest.send(BEGUN + b" " * 65_300)
        await hook.server_side(waits_for="request")
        async with hook.client() as second, hook.client() as third:
            for client in (second, third):
                await client.send(BEGUN + b" " * 65_300)
            await until(lambda: hook.held > 3 * 65_300, "all has arrived")
            assert hook.ended("limit") == 0
            assert (await hook.ask(post(review()))).status == 200
            async with hook.client() as fourth:
                await fourth.send(BEGUN + b" " * 65_300)
                busy = await oldest.answer()
        assert (busy.status, busy.headers["Retry-After"]) == (503, "1")
        await until(lambda: hook.held == 0, "all is given back")
        assert hook.reviews("busy") == hook.ended("limit") == 1


async def test_how_many_connections_there_are_follows_from_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "available_memory", lambda: 16 * 3 * CONNECTION)
    async with serving(connections=8, linger=0.1) as hook:
        with ExitStack() as stack:
            for _ in range(6):
                stack.enter_context(raw(hook))
            await until(lambda: hook.connections == 3, "three have room")
            assert (await hook.ask(post(review()))).status == 200


async def test_free_memory_goes_back_to_the_system(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """glibc gives it back when it is asked."""
    trimmed = list[int]()
    library = SimpleNamespace(malloc_trim=trimmed.append)
    monkeypatch.setattr(listening, "FEWER", 1)
    monkeypatch.setattr(listening.ctypes, "CDLL", lambda _: library)
    with raw(hook):
        await until(lambda: hook.listener._before, "it is seen")
    await until(lambda: trimmed, "it is given back")


@pytest.mark.usefixtures("only_new")
async def test_hostile_clients_leave_nothing_behind(hook: Hook) -> None:
    async def hostile(number: int) -> None:
        with raw(hook) as connection:
            await asyncio.get_running_loop().sock_sendall(connection, b"GET / HTTP/1.1\r\n\r\n")
        async with hook.client() as client:
            await client.send((BEGUN, b"\x00", post(b"{"), BEGUN + b" " * 99_999)[number % 4])
            client.leave()

    tasks = len(asyncio.all_tasks())  # The first request's may outlive its connection.
    await hook.ask(post(review()))
    await until(lambda: hook.connections == 0, "the first is gone")
    before = descriptors()
    await asyncio.gather(*(hostile(number) for number in range(40)))
    await until(lambda: hook.connections == 0, "all are gone")
    await until(lambda: len(asyncio.all_tasks()) == tasks, "no task is left")
    await until(lambda: descriptors() == before, "no socket is left")
    assert hook.held == 0
    assert (await hook.ask(post(review()))).status == 200


# Which connections are closed when they are too many, or cost too much (istio#26380).

MOST = 4
MIB = 1 << 20


@pytest.fixture
def connections() -> Connections[Peer]:
    """Room for 4, which may cost 1 MiB, and for as many that were answered."""
    return Connections[Peer](MOST, MIB)


def accept(connections: Connections[Peer], *addresses: str) -> list[Peer]:
    """Accept one connection from each of these addresses."""
    peers = [Peer() for _ in addresses]
    for peer, peer.address in zip(peers, addresses, strict=True):
        connections.add(peer)
    return peers


def closed(connections: Connections[Peer]) -> list[Peer]:
    """Those that are closed until there is room for the others."""
    found = list[Peer]()
    while peer := connections.surplus():
        connections.remove(peer)
        found.append(peer)
    return found


def test_one_that_has_made_progress_is_closed_later(connections: Connections[Peer]) -> None:
    first, second, *_ = accept(connections, *"abcde")

    connections.move_to_end(first)

    assert closed(connections) == [second]


def test_of_answered_connections_the_one_that_was_answered_first_is_closed(
    connections: Connections[Peer],
) -> None:
    peers = accept(connections, *"abcd")
    for peer in (*peers, peers[0]):
        connections.answer(peer)
    (last,) = accept(connections, "e")
    connections.answer(last)

    assert closed(connections) == [peers[1]]


def test_strangers_are_closed_before_connections_of_an_address_that_was_answered(
    connections: Connections[Peer],
) -> None:
    """Also such connections as were there before its first answer."""
    early, known = accept(connections, "api", "api")
    connections.answer(known)
    (late,) = accept(connections, "api")

    strangers = accept(connections, *"abcdefgh")

    assert closed(connections) == strangers[:-2]
    assert [*connections] == [early, known, late, *strangers[-2:]]


def test_an_address_that_was_answered_long_ago_is_a_stranger(
    connections: Connections[Peer],
) -> None:
    for address in ("api", *map(str, range(ADDRESSES))):
        (peer,) = accept(connections, address)
        connections.answer(peer)
        connections.remove(peer)

    (again, *_) = accept(connections, "api", *"abcd")

    assert closed(connections) == [again]


@pytest.mark.parametrize("answered", [False, True], ids=["strangers", "both were answered"])
def test_an_address_with_more_than_half_of_the_room_loses_a_connection_first(
    connections: Connections[Peer], *, answered: bool
) -> None:
    peers = accept(connections, "few", "many")
    for peer in peers if answered else []:
        connections.answer(peer)

    (new,) = accept(connections, "few")
    attack = accept(connections, *["many"] * 50)

    assert not {new, *peers[:1]} & {*closed(connections)}
    assert {*connections} >= {*attack[-2:]}


def test_connections_of_an_api_server_are_closed_last() -> None:
    """Also in a burst, and beside attackers that were answered from many addresses."""
    connections = Connections[Peer](MOST, MIB, known={"api"})
    for peer in accept(connections, *"abcd"):
        connections.answer(peer)

    burst = accept(connections, *["api"] * MOST)
    attackers = accept(connections, *"abcd")

    assert closed(connections) == attackers
    assert {*burst} < {*connections}


def passed(turns: Turns, waiting: dict[int, str], seconds: float) -> str:
    """The address whose turn it was, and took so long."""
    address = waiting.pop(turns.choose(waiting))
    turns.spend(address, seconds)
    return address


@pytest.mark.parametrize(
    ("costs", "order"),
    [
        ((1, 1, 1, 1, 1), ["slow", "cheap", "api", "slow", "cheap"]),
        ((9, 1, 9, 1, 1), ["slow", "cheap", "api", "cheap", "cheap"]),
    ],
    ids=["all take as long", "two take longer"],
)
def test_each_rule_of_whose_turn_it_is_has_a_third_of_the_time(
    costs: Sequence[float], order: list[str]
) -> None:
    """Those who wait longest, whose reviews take least, and who were there before all others.

    API servers have few addresses with many connections, and are there before an attack. So neither
    many addresses nor many connections of one, slow or cheap, keep an API server waiting for long.
    """
    turns = Turns()
    took = {"api": 2.0, "slow": 5.0, "cheap": 1.0}
    for address in ["api", "slow", *["cheap"] * 2, "api", *["cheap"] * 4]:  # Each rule has had 5.
        passed(turns, {0: address}, took[address])
    waiting = dict(enumerate(["slow"] * 9 + ["api", "cheap"] * 4))

    assert [passed(turns, waiting, cost) for cost in costs] == order


def test_an_api_server_has_a_third_of_the_time_although_others_were_there_before_it() -> None:
    turns = Turns(known={"api"})
    for early in "abc" * 3:
        passed(turns, {0: early}, 1)
    waiting = dict(enumerate([*"abc"] * 9 + ["api"] * 9))

    assert [passed(turns, waiting, 1) for _ in range(9)][2::3] == ["api"] * 3


def test_what_costs_too_much_closes_those_that_have_waited_longest(
    connections: Connections[Peer],
) -> None:
    first, second, third = accept(connections, *"abc")
    for peer in (first, second, third):
        connections.hold(peer, MIB // 3)
    assert closed(connections) == []

    connections.hold(third, MIB // 2)

    assert closed(connections) == [first]


@pytest.mark.parametrize(
    ("name", "text", "bytes_"),
    [
        ("memory.max", "536870912\n", 512 * MIB),
        ("memory.max", f"{1 << 62}\n", None),
        ("memory.max", "max\n", None),
        ("memory/memory.limit_in_bytes", "536870912\n", 512 * MIB),
    ],
)
def test_the_memory_of_a_container_is_its_limit_and_else_that_of_the_machine(
    name: str, text: str, bytes_: int | None, tmp_path: Path
) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / name).write_text(text)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    assert available_memory(tmp_path) == (bytes_ or machine)
