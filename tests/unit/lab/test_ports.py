"""A port of the lab is one harness's alone, although nobody listens on it yet."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from lab import ports

# Another harness, which has one port to choose from.
RESERVE = "import sys; from lab import ports; n = int(sys.argv[1]); \
ports.RANGE = range(n, n + 1); print(ports.reserve())"


@pytest.fixture
def reserved() -> int:
    return ports.reserve()


def test_a_port_refuses_connections_until_somebody_listens(reserved: int) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", reserved))

    with socket.create_server(("127.0.0.1", reserved)) as server:
        socket.create_connection(("127.0.0.1", reserved)).close()
        server.accept()[0].close()


def test_a_program_that_ended_can_have_its_port_again(reserved: int) -> None:
    for _ in range(2):
        with (
            socket.create_server(("127.0.0.1", reserved)) as server,
            socket.create_connection(("127.0.0.1", reserved)),
        ):
            # The server's end closes it first, so that it goes on waiting for late packets.
            server.accept()[0].close()


def test_no_other_harness_gets_a_port_that_is_reserved(reserved: int) -> None:
    other = subprocess.run(
        [sys.executable, "-c", RESERVE, str(reserved)], capture_output=True, text=True, check=False
    )

    assert other.stdout == ""
    assert f"OSError: no TCP port is free from {reserved} to {reserved}" in other.stderr


def test_no_port_is_reserved_twice(reserved: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "RANGE", range(reserved, reserved + 1))

    with pytest.raises(OSError, match=f"no TCP port is free from {reserved} to {reserved}"):
        ports.reserve()


def test_a_port_on_which_somebody_listens_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        monkeypatch.setattr(ports, "RANGE", range(taken, taken + 1))

        with pytest.raises(OSError, match="no TCP port is free"):
            ports.reserve()
