"""What the fake API server does with a single pod beside reading it: forward a port, and delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import WSMsgType, web

Forward = Callable[[web.WebSocketResponse, str, str], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nOK"
"""What the real agent answers, as recorded."""


async def agent_quits(socket: web.WebSocketResponse, _namespace: str, _pod: str) -> None:
    """Answer a forwarded request as the agent does when it is told to quit."""
    await socket.send_bytes(b"\x00" + OK)


async def forward(
    request: web.Request,
    namespace: str,
    pod: str,
    note: Callable[[tuple[str, str, int, str]], None],
    answer: Forward,
) -> web.StreamResponse:
    """Forward one HTTP request to ``answer`` as the kubelet does, once ``note`` was called."""
    (ports,) = request.query.getall("ports")
    socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
    await socket.prepare(request)
    for channel in (b"\x00", b"\x01"):
        await socket.send_bytes(channel + int(ports).to_bytes(2, "little"))
    head = b""
    while b"\r\n\r\n" not in head:
        message = await socket.receive()
        if message.type is not WSMsgType.BINARY or message.data[:1] != b"\x00":
            return socket
        head += message.data[1:]
    note((namespace, pod, int(ports), head.decode()))
    await answer(socket, namespace, pod)
    await socket.close()
    return socket


def conflict(options: dict[str, Any], stored: dict[str, Any]) -> str | None:
    """Say which precondition of DeleteOptions an object does not meet, or None."""
    for field, wanted in options.get("preconditions", {}).items():
        if stored["metadata"][field] != wanted:
            return f"Precondition failed: {field} in precondition: {wanted}"
    return None
