"""The kubelet's HTTPS streaming endpoint: exec and port-forward over WebSocket, nothing else.

The frames are those of Kubernetes 1.36: exec first sends an empty message on its lowest open
channel, then output, then a ``v1.Status`` on channel 3, and closes with 1000; port-forward first
sends the port as two little-endian bytes on both channels. Only WebSocket is spoken, never SPDY: an
API server of 1.36 passes WebSockets through to a node that declares the feature
``ExtendWebSocketsToKubelet``, and older ones have a front that speaks SPDY (`spdy/main.go`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
import ssl
from asyncio.trsock import TransportSocket
from typing import TYPE_CHECKING

from aiohttp import WSMsgType, web
from aiohttp.typedefs import Handler

from lab.kubelet.pods import (
    NOT_FOUND,
    OK,
    PROXY,
    Answer,
    Behaviour,
    Listener,
    Record,
    execute,
    respond,
)

if TYPE_CHECKING:
    from lab.kubelet.kubelet import ScriptedKubelet

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
CUT = 10.0  # seconds for the loop to close the cut connections, which takes milliseconds
DATA = b"\x00"
STDOUT, STDERR, ERROR = b"\x01", b"\x02", b"\x03"
ENDLESS = ("hang", "babble")
BURST = 500
"""Frames that `babble` sends before other tasks of the loop get a turn."""
SOCKETS = web.AppKey("sockets", set[TransportSocket])


def application(node: ScriptedKubelet) -> web.Application:
    """The endpoint for the pods of ``node``."""
    app = web.Application(middlewares=[_negotiate])
    app[SOCKETS] = set()
    pod = "{namespace}/{pod}"
    app.router.add_get(f"/exec/{pod}/{{container}}", functools.partial(_exec, node))
    app.router.add_get(f"/portForward/{pod}", functools.partial(_forward, node))
    return app


@web.middleware
async def _negotiate(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse a client that does not accept `*/*`, as go-restful does for a route without types."""
    if request.transport:
        request.app[SOCKETS].add(request.transport.get_extra_info("socket"))
    accepted = [
        part.partition(";")[0].strip() for part in request.headers.get("Accept", "*/*").split(",")
    ]
    if "*/*" not in accepted:
        return web.Response(status=406, text="406: Not Acceptable\n\nAvailable representations: ")
    return await handler(request)


async def serve(app: web.Application, context: ssl.SSLContext) -> tuple[web.AppRunner, int]:
    """Listen on 127.0.0.1, on a free port; returns the runner to clean up, and the port."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    return runner, int(runner.addresses[0][1])


async def stop(runner: web.AppRunner) -> None:
    """Answer what is under way, then cut every connection below TLS.

    Closing a connection starts TLS's closing handshake, which may outlive the loop. Aborting the
    transport does not help: one that was closed twice, as aiohttp does after a WebSocket, ignores
    it, and on Python 3.11.2 raises AttributeError.
    """
    sockets = runner.app[SOCKETS] if runner.app else set[TransportSocket]()
    await runner.cleanup()
    for one in sockets:
        with contextlib.suppress(OSError):  # It is closed.
            one.shutdown(socket.SHUT_RDWR)
    async with asyncio.timeout(CUT):
        while any(one.fileno() >= 0 for one in sockets):  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0)  # The loop closes them in its next iterations.


async def _exec(node: ScriptedKubelet, request: web.Request) -> web.StreamResponse:
    pod, container = request.match_info["pod"], request.match_info["container"]
    record = node.find(request.match_info["namespace"], pod)
    if record is None:
        return web.Response(status=404, text="pod does not exist")
    command = tuple(request.query.getall("command", []))
    node.note(record, container, command)
    behaviour = (node.behave(record, "exec") if container == PROXY else None) or Behaviour()
    if behaviour.stream == "refuse":
        return web.Response(status=503, text="the node is not available")
    if (refusal := _not_running(record, container)) is not None:
        return web.Response(status=500, text=refusal)

    answer = behaviour.answer or _answer(record, container, command)
    if behaviour.stream not in ENDLESS:
        # The command runs to its end, even if the client has gone.
        _end_proxy(node, record, behaviour, quits=answer.quits)
    socket = web.WebSocketResponse(protocols=PROTOCOLS, compress=False, timeout=1.0)
    await socket.prepare(request)
    await socket.send_bytes(STDOUT if request.query.get("output") else STDERR)
    if behaviour.stream in ENDLESS:
        await _never_end(socket, behaviour, STDOUT)
        return socket
    if behaviour.stream == "answer":
        if answer.stdout and request.query.get("output"):
            await socket.send_bytes(STDOUT + answer.stdout.encode())
        if answer.stderr and request.query.get("error"):
            await socket.send_bytes(STDERR + answer.stderr.encode())
        await socket.send_bytes(ERROR + json.dumps(_status(answer)).encode())
    await _finish(request, socket, behaviour)
    return socket


async def _forward(node: ScriptedKubelet, request: web.Request) -> web.StreamResponse:
    record = node.find(request.match_info["namespace"], request.match_info["pod"])
    if record is None:
        return web.Response(status=404, text="pod does not exist")
    ports = request.query.getall("port", [])
    if len(ports) != 1 or not ports[0].isdecimal():
        return web.Response(status=400, text=f'query parameter "port": {ports}: expected one port')
    port = int(ports[0])
    behaviour = node.behave(record, "port-forward") or Behaviour()
    if behaviour.stream == "refuse":
        node.note(record, PROXY, ())
        return web.Response(status=503, text="the node is not available")

    socket = web.WebSocketResponse(protocols=PROTOCOLS[1:], compress=False, timeout=1.0)
    await socket.prepare(request)
    for channel in (b"\x00", b"\x01"):
        await socket.send_bytes(channel + port.to_bytes(2, "little"))
    head = b""
    async for message in socket:
        if message.type == WSMsgType.BINARY and message.data[:1] == b"\x00":
            head += message.data[1:]
        if b"\r\n\r\n" in head:
            break
    else:
        return socket
    listener = record.listeners.get(port)
    line = tuple(head.split(b"\r\n")[0].decode().split()[:2])
    node.note(record, listener.container if listener else PROXY, line)
    if behaviour.stream in ENDLESS:
        await _never_end(socket, behaviour, DATA)
        return socket
    answer = _tell(node, record, listener, line) if listener else None
    if listener is None:
        listens = _not_running(record, PROXY) is None
        response = respond(head, port, record.status_port) if listens else None
        _end_proxy(node, record, behaviour, quits=response is not None and response[1])
        answer = response and response[0]
    body = answer if behaviour.response is None else behaviour.response
    if not body:
        text = f"error forwarding port {port} to pod {record.key[1]}: connection refused"
        await socket.send_bytes(b"\x01" + text.encode())
    elif behaviour.stream == "answer":
        await socket.send_bytes(b"\x00" + body)
    await _finish(request, socket, behaviour)
    return socket


def _not_running(record: Record, container: str) -> str | None:
    """Why nothing can be executed in the container, in the words of kubelet and containerd."""
    found = record.containers.get(container)
    if found is not None and found.exit_code is not None:
        return "container is in CONTAINER_EXITED state"
    return None if found and found.runs else f'container not found ("{container}")'


def _answer(record: Record, container: str, command: tuple[str, ...]) -> Answer:
    if container == PROXY:
        return execute(command, record.status_port)
    return Answer(stderr="a scripted payload runs no commands", exit_code=None)


def _status(answer: Answer) -> dict[str, object]:
    if answer.exit_code == 0:
        return {"metadata": {}, "status": "Success"}
    failure = {"metadata": {}, "status": "Failure"}
    if answer.exit_code is None:
        text = f"OCI runtime exec failed: {answer.stderr}: unknown"
        return {**failure, "reason": "InternalError", "message": text, "code": 500}
    return {
        **failure,
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {answer.exit_code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(answer.exit_code)}]},
    }


def _end_proxy(node: ScriptedKubelet, record: Record, behaviour: Behaviour, *, quits: bool) -> None:
    answers = behaviour.answer is None and behaviour.response is None
    if behaviour.ends or (quits and answers):
        node.exits(record, 0)


def _tell(
    node: ScriptedKubelet, record: Record, listener: Listener, line: tuple[str, ...]
) -> bytes | None:
    """The answer of a container other than the proxy, or of the network; None: it does not run."""
    if listener.container and _not_running(record, listener.container):
        return None
    if line != ("POST", listener.path):
        return NOT_FOUND
    node.exits(record, listener.exit_code, listener.container)
    return OK


async def _finish(
    request: web.Request, socket: web.WebSocketResponse, behaviour: Behaviour
) -> None:
    if behaviour.stream == "reset" and request.transport is not None:
        request.transport.abort()
    else:
        await socket.close()


async def _never_end(socket: web.WebSocketResponse, behaviour: Behaviour, channel: bytes) -> None:
    """Hang or babble until the other side has closed."""
    with contextlib.suppress(ConnectionError):
        while behaviour.stream == "babble":
            for _ in range(BURST):
                await socket.send_bytes(channel + b"x")
            await asyncio.sleep(0)
    async for _ in socket:
        pass
