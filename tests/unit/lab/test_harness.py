"""The lab's harness: how it ends, which ports it takes, and how its threads decode objects."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from lab import ports
from lab.kubelet import server
from lab.waiting import ending
from unit.asynchronous import driven
from unit.tls import certificate

GET = "GET /exec/default/nobody/{} HTTP/1.1\r\nHost: kubelet\r\nConnection: {}\r\n\r\n"


class Empty:
    """A kubelet without pods."""

    def find(self, *_: str) -> None:
        return None


def call(port: int) -> ssl.SSLSocket:
    """Connect and finish the TLS handshake."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=60))


def ask(caller: ssl.SSLSocket, connection: str) -> bytes:
    caller.sendall(GET.format("istio-proxy", connection).encode())
    return caller.recv(1 << 16)


def hear_out(caller: ssl.SSLSocket) -> None:
    """Read to the end of the connection below TLS, without a goodbye in TLS."""
    with socket.socket(fileno=caller.detach()) as raw, contextlib.suppress(ConnectionResetError):
        raw.settimeout(60)
        while raw.recv(1 << 16):
            pass


@pytest.fixture
def context(tmp_path: Path) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(*certificate(tmp_path))
    return made


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
@driven
async def test_the_kubelets_endpoint_cuts_connections_of_silent_clients(
    context: ssl.SSLContext, connection: str
) -> None:
    """Also a connection that the last answer has closed already."""
    runner, port = await server.serve(server.application(cast("server.Node", Empty())), context)
    with await asyncio.to_thread(call, port) as caller:
        answer = await asyncio.to_thread(ask, caller, connection)
        assert b"pod does not exist" in answer

        await server.stop(runner)

        await asyncio.to_thread(hear_out, caller)


def test_a_failure_at_the_end_is_reported_only(capsys: pytest.CaptureFixture[str]) -> None:
    with ending("relay"):
        raise OSError("no such socket")

    assert capsys.readouterr().err == "lab: relay did not end well: OSError: no such socket\n"


def test_a_failure_at_the_end_hides_no_earlier_one() -> None:
    def run() -> None:
        try:
            raise ValueError("the run")
        finally:
            with ending("relay"):
                raise OSError("its end")

    with pytest.raises(ValueError, match="the run"):
        run()


# Another harness, which has one port to choose from.
RESERVE = "import sys; from lab import ports; n = int(sys.argv[1]); \
ports.RANGE = range(n, n + 1); print(ports.reserve())"


@pytest.fixture
def reserved() -> int:
    return ports.reserve()


def test_a_reserved_port_refuses_connections_until_somebody_listens(reserved: int) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", reserved))

    with socket.create_server(("127.0.0.1", reserved)) as server:
        socket.create_connection(("127.0.0.1", reserved)).close()
        server.accept()[0].close()


def test_a_program_can_use_its_port_again(reserved: int) -> None:
    for _ in range(2):
        with (
            socket.create_server(("127.0.0.1", reserved)) as server,
            socket.create_connection(("127.0.0.1", reserved)),
        ):
            # The server's end closes it first, so that it goes on waiting for late packets.
            server.accept()[0].close()


def test_another_harness_does_not_get_a_reserved_port(reserved: int) -> None:
    other = subprocess.run(
        [sys.executable, "-c", RESERVE, str(reserved)], capture_output=True, text=True, check=False
    )

    assert other.stdout == ""
    assert f"OSError: no TCP port is free from {reserved} to {reserved}" in other.stderr


def test_no_port_is_reserved_twice(reserved: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "RANGE", range(reserved, reserved + 1))

    with pytest.raises(OSError, match=f"no TCP port is free from {reserved} to {reserved}"):
        ports.reserve()


def test_a_port_in_use_is_not_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        monkeypatch.setattr(ports, "RANGE", range(taken, taken + 1))

        with pytest.raises(OSError, match="no TCP port is free"):
            ports.reserve()


TESTS = Path(__file__).parents[2]

# Threads change as often as they can while the first of them learns what a pod is.
RACE = """
import sys, threading
{first}
from lightkube.core import decoders
from lightkube.resources.core_v1 import Pod

sys.setswitchinterval(1e-6)
together = threading.Barrier(4)


def decode():
    together.wait()
    decoders.decode_list(b'{{"items": [{{"spec": {{"containers": [{{"name": "main"}}]}}}}]}}', Pod)
    Pod.from_dict({{"metadata": {{"name": "p"}}}})


threads = [threading.Thread(target=decode) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def exit_status(first: str) -> int:
    """How a process ends that runs the race after this line."""
    race = [sys.executable, "-c", RACE.format(first=first)]
    return subprocess.run(race, cwd=TESTS, check=False, capture_output=True).returncode


def test_four_threads_that_decode_their_first_pods_at_once_all_succeed() -> None:
    assert exit_status("import lab") == 0
