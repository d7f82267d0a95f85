"""A webhook that serves, and clients that send it single bytes."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from istio_aux.kube import client as kube
from istio_aux.kube.access import Access
from istio_aux.model.policy import StartPolicy
from istio_aux.serving import Connection, Listener, ServingLimits
from istio_aux.start.webhook import AdmissionWebhook, Certificate
from istio_aux.telemetry import Telemetry
from unit.apiserver import ApiServer, certificate
from unit.process import until
from unit.rules.pods import reviewed

JSON = "Content-Type: application/json"
"""A header."""
BEGUN = f"POST /mutate HTTP/1.1\r\nHost: x\r\n{JSON}\r\nContent-Length: 900000\r\n\r\n".encode()
"""The head of a request whose body never ends."""


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def parse(cls, head: bytes, body: bytes = b"") -> Answer:
        line, *lines = head.decode().strip().split("\r\n")
        return cls(int(line.split()[1]), dict(line.split(": ", 1) for line in lines), body)

    @property
    def response(self) -> dict[str, Any]:
        return json.loads(self.body)["response"]


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._transport = cast("asyncio.Transport", writer.transport)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def send_on(self, data: bytes) -> None:
        """Send again and again; raises the error that the end of the connection causes."""
        while True:
            await self.send(data)

    async def ask(self, data: bytes) -> Answer:
        await self.send(data)
        return await self.answer()

    async def answer(self) -> Answer:
        answer = Answer.parse(await self._reader.readuntil(b"\r\n\r\n"))
        answer.body = await self._reader.readexactly(int(answer.headers.get("Content-Length", 0)))
        return answer

    async def closed(self) -> bool:
        """Wait until the server closes; returns whether it sent nothing before."""
        try:
            return await self._reader.read() == b""
        except ConnectionResetError:
            return True

    def pause(self) -> None:
        """Take no more answers."""
        self._transport.pause_reading()

    @property
    def tls(self) -> ssl.SSLObject:
        return self._writer.get_extra_info("ssl_object")

    def leave(self) -> None:
        """Abort the connection."""
        self._transport.abort()

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


@dataclass
class Hook:
    """A webhook that serves."""

    webhook: AdmissionWebhook
    metrics: Telemetry
    port: int
    trust: ssl.SSLContext

    @asynccontextmanager
    async def client(self, address: str = "127.0.0.1") -> AsyncGenerator[Client]:
        """A connection from an address of this machine."""
        streams = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.trust, local_addr=(address, 0)
        )
        client = Client(*streams)
        try:
            yield client
        finally:
            await client.close()

    async def connect_on(self) -> None:
        """Connect again and again; raises the error once nobody listens."""
        while True:
            async with self.client():
                pass

    async def ask(self, data: bytes) -> Answer:
        """The answer on a connection of its own."""
        async with self.client() as client:
            return await client.ask(data)

    def blocking(self) -> ssl.SSLSocket:
        """A connection for single bytes, also below TLS; to be made on another thread."""
        bare = socket.create_connection(("127.0.0.1", self.port))
        return self.trust.wrap_socket(bare, server_hostname="127.0.0.1", suppress_ragged_eofs=False)

    def insist(self, data: bytes) -> Answer:
        """The last answer, to a client that sends all before it looks for one."""
        with self.blocking() as client, client.makefile("rb") as answer:
            client.sendall(data)
            head, _, body = answer.read().partition(b"\r\n\r\n")
        return Answer.parse(head, body)

    def metric(self, name: str) -> float:
        lines = self.metrics.render().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))

    def reviews(self, outcome: str) -> float:
        return self.metric(f'istio_aux_admission_reviews_total{{outcome="{outcome}"}}')

    def ended(self, reason: str) -> float:
        return self.metric(f'istio_aux_admission_connections_closed_total{{reason="{reason}"}}')

    @property
    def connections(self) -> float:
        return self.metric("istio_aux_admission_connections")

    @property
    def listener(self) -> Listener:
        assert self.webhook._listener
        return self.webhook._listener

    @property
    def held(self) -> int:
        """Bytes that all its connections hold."""
        return sum(one.held for one in self.listener.connections)

    async def server_side(self, **state: object) -> Connection:
        """Its only connection, once that has these attributes."""

        def found() -> list[Connection]:
            return [
                one for one in self.listener.connections
                if all(getattr(one, name) == value for name, value in state.items())
            ]  # fmt: skip

        return (await until(found, f"its connection has {state}"))[0]


def raw(hook: Hook) -> socket.socket:
    """TCP without TLS."""
    connection = socket.create_connection(("127.0.0.1", hook.port))
    connection.setblocking(False)
    return connection


@asynccontextmanager
async def serving(
    how: Callable[[], StartPolicy] = StartPolicy, api: ApiServer | None = None, **limits: Any
) -> AsyncGenerator[Hook]:
    """A webhook with the limits of a test, which checks deadlines often; it may ask ``api``."""
    nowhere = Access("https://127.0.0.1:1", ssl.create_default_context(), str)
    access = api.access() if api else nowhere
    metrics, bounds = Telemetry(), ServingLimits(**{"sweep": 0.01, "linger": 0.3, **limits})
    async with kube.Client(access) as client:
        webhook = AdmissionWebhook(metrics, lambda _: how(), client, limits=bounds)
        with tempfile.TemporaryDirectory() as folder:
            crt, key = certificate(Path(folder))
            trust = ssl.create_default_context(cafile=str(crt))
            _, port = await webhook.listen("127.0.0.1", 0, Certificate(crt, key).context)
        try:
            yield Hook(webhook, metrics, port, trust)
        finally:
            await webhook.close(0)


def review(**pod: Any) -> bytes:
    made = {"metadata": {"generateName": "job-"}, "spec": {"containers": []}, **pod}
    return json.dumps(reviewed(object=made)).encode()


def post(body: bytes, *headers: str, path: str = "/mutate", kind: str = JSON) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: x", kind, f"Content-Length: {len(body)}", *headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(*parts: bytes, trailer: bytes = b"") -> bytes:
    head = f"POST /mutate HTTP/1.1\r\nHost: x\r\n{JSON}\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return head.encode() + body + b"0\r\n" + trailer + b"\r\n"
