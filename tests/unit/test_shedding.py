"""Which connections are closed when they are too many, or cost too much (istio#26380)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from istio_aux.serving import (
    ADDRESSES,
    Connections,
    Peer,
    available_memory,
)
from istio_aux.start.turns import Turns

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
