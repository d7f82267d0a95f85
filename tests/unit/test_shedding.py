"""Which connections are closed when they are too many, or cost too much (T37)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from istio_aux.shedding import ADDRESSES, Connections, available_memory

MOST = 4
MIB = 1 << 20


@dataclass(eq=False)
class Peer:
    """A connection."""

    address: str


@pytest.fixture
def connections() -> Connections[Peer]:
    """Room for 4, which may cost 1 MiB, and for as many that were answered."""
    return Connections[Peer](MOST, MIB)


def accept(connections: Connections[Peer], *addresses: str) -> list[Peer]:
    """Accept one connection from each of these addresses."""
    peers = [Peer(address) for address in addresses]
    for peer in peers:
        connections.add(peer)
    return peers


def closed(connections: Connections[Peer]) -> list[Peer]:
    """Those that are closed until there is room for the others."""
    found = list[Peer]()
    while peer := connections.surplus():
        connections.remove(peer)
        found.append(peer)
    return found


def test_the_one_that_has_waited_longest_is_closed(connections: Connections[Peer]) -> None:
    first, second, *_ = accept(connections, *"abcdef")

    assert closed(connections) == [first, second]


def test_one_that_has_made_progress_is_closed_later(connections: Connections[Peer]) -> None:
    first, second, *_ = accept(connections, *"abcde")

    connections.proceed(first)

    assert closed(connections) == [second]


def test_answered_connections_and_others_take_no_room_from_each_other(
    connections: Connections[Peer],
) -> None:
    answered = accept(connections, *"aaaa")
    for peer in answered:
        connections.answer(peer)

    others = accept(connections, *"bcde")
    assert closed(connections) == []

    accept(connections, *"fghi")
    assert closed(connections) == others


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
    late = accept(connections, "api", "api")

    strangers = accept(connections, *"abcdefgh")

    assert closed(connections) == strangers[:-1]
    assert [*connections] == [strangers[-1], early, *late, known]


def test_an_address_that_was_answered_long_ago_is_a_stranger(
    connections: Connections[Peer],
) -> None:
    for address in ("api", *map(str, range(ADDRESSES))):
        (peer,) = accept(connections, address)
        connections.answer(peer)
        connections.remove(peer)

    (again, *_) = accept(connections, "api", *"abcd")

    assert closed(connections) == [again]


def test_a_stranger_is_not_closed_for_an_address_with_many(connections: Connections[Peer]) -> None:
    few, *_ = accept(connections, "few", *["many"] * 50)

    assert few not in closed(connections)


def test_what_costs_too_much_closes_those_that_have_waited_longest(
    connections: Connections[Peer],
) -> None:
    first, second, third = accept(connections, *"abc")
    for peer in (first, second, third):
        connections.charge(peer, MIB // 3)
    assert closed(connections) == []

    connections.charge(third, MIB // 2)

    assert closed(connections) == [first]
    assert connections.cost == MIB // 3 + MIB // 2


def test_one_that_alone_costs_too_much_is_closed(connections: Connections[Peer]) -> None:
    (peer,) = accept(connections, "a")

    connections.charge(peer, MIB + 1)

    assert closed(connections) == [peer]
    assert (len(connections), connections.cost) == (0, 0)


@pytest.mark.parametrize(
    ("file", "text", "bytes_"),
    [
        ("memory.max", "536870912\n", 512 * MIB),
        ("memory.max", "max\n", None),
        ("memory/memory.limit_in_bytes", "536870912\n", 512 * MIB),
        ("memory/memory.limit_in_bytes", "9223372036854771712\n", None),
        ("memory.max", "", None),
    ],
)
def test_the_memory_of_a_container_is_its_limit_and_else_that_of_the_machine(
    file: str, text: str, bytes_: int | None, tmp_path: Path
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    assert available_memory(tmp_path) == (bytes_ or machine)
