"""What the lab does while it ends: all is closed, and what fails decides about no run."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path
from typing import cast

import pytest
from lab.kubelet import server
from lab.waiting import ending
from unit.asynchronous import driven
from unit.tls import certificate

GET = "GET /exec/default/nobody/{} HTTP/1.1\r\nHost: kubelet\r\nConnection: {}\r\n\r\n"


class Empty:
    """A kubelet without pods, of which nothing else is asked."""

    def find(self, *_: str) -> None:
        return None


def call(port: int) -> ssl.SSLSocket:
    """A client that is shaken hands with."""
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
async def test_the_kubelets_endpoint_cuts_connections_whose_clients_do_not_say_goodbye(
    context: ssl.SSLContext, connection: str
) -> None:
    """One that was answered for the last time has been closed already, perhaps twice."""
    runner, port = await server.serve(server.application(cast("server.Node", Empty())), context)
    with await asyncio.to_thread(call, port) as caller:
        answer = await asyncio.to_thread(ask, caller, connection)
        assert b"pod does not exist" in answer

        await server.stop(runner)

        await asyncio.to_thread(hear_out, caller)


def test_an_end_that_fails_is_told_and_decides_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with ending("relay"):
        raise OSError("no such socket")

    assert capsys.readouterr().err == "lab: relay did not end well: OSError: no such socket\n"


def test_what_went_wrong_before_the_end_is_not_hidden_by_it() -> None:
    def run() -> None:
        try:
            raise ValueError("the run")
        finally:
            with ending("relay"):
                raise OSError("its end")

    with pytest.raises(ValueError, match="the run"):
        run()
