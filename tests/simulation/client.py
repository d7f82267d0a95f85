"""What a unit meets of the API server: the way there and back, and everything that is lost on it.

`ModelClient` has the interface of the product's client. A request that was sent arrives whatever
becomes of the task that waits for it, also if its process is gone meanwhile.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import aiohttp
from istio_aux.kube.client import READ_TIMEOUT, Check, Client, Params
from istio_aux.kube.errors import (
    ApiError,
    KubeError,
    LateError,
    NoConnectionError,
    SilentError,
    UnreachableError,
)

from simulation.kubelet import Frame, Sandbox
from simulation.store import Path, Stored, Stream, parse

if TYPE_CHECKING:
    from simulation.cluster import Cluster
    from simulation.unit import Process

PODS = "/api/v1/pods"
SLOW = 1.0  # Seconds for a request and its answer after which a renewal counts as late.
BOOKMARKS = 58.0  # Seconds between two bookmarks of a watch.


class Request(NamedTuple):
    """A request on its way; ``sent`` is the world's time, ``seen`` what was seen until then."""

    process: Process
    method: str
    path: str
    params: Mapping[str, str]
    body: bytes
    sent: float
    seen: int
    read: tuple[float, str] = (-math.inf, "")  # When its pod was read last before, and which.

    def __str__(self) -> str:
        return f"{self.process.unit}: {self.method} {self.path}"

    @property
    def to(self) -> Path:
        """What it leads to."""
        return parse(self.path)

    @property
    def writes(self) -> bool:
        """Whether it changes something in the cluster."""
        return self.method != "GET" and "dryRun" not in self.params


class Message(NamedTuple):
    """A message of a WebSocket, as aiohttp has it."""

    type: aiohttp.WSMsgType
    data: bytes = b""


class ModelClient(Client):
    """The API server as one process reaches it."""

    def __init__(self, cluster: Cluster, process: Process) -> None:
        self._cluster, self._world, self._process = cluster, cluster.world, process
        self._watches: list[_Watch] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for watch in self._watches:
            watch.close()

    async def send(
        self, method: str, path: str, body: bytes | None = None, params: Params = (), **_: Any
    ) -> bytes:
        request = self._make(method, path, params, body or b"")
        self._cluster.judge.sent(request)
        server = self._cluster.server

        def perform() -> bytes:
            return self._cluster.perform(
                request, lambda: server.answer(method, path, request.params, request.body)
            )

        return await self._travel(request, perform)

    def _make(self, method: str, path: str, params: Params, body: bytes) -> Request:
        process, now, asked = self._process, self._world.now, dict(params)
        self._cluster.judge.count(process, f"{method} {path} {asked.get('labelSelector', '')}")
        return Request(process, method, path, asked, body, now, process.seen)

    async def _travel(self, request: Request, perform: Callable[[], Any]) -> Any:
        """Let a request arrive and its answer come back, or not."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not self._process.ended:  # Nothing leaves a process that has ended.
            _Journey(self._cluster, request, perform, answer).begin()
        return await answer

    async def watch(self, path: str, params: Params, *, silence: float) -> AsyncGenerator[bytes]:
        request = self._make("GET", path, params, b"")
        watch = _Watch(self._cluster, self._process, path, silence)

        def open_() -> None:
            self._cluster.server.watch(path, request.params, watch.stream)
            watch.opened(float(request.params["timeoutSeconds"]))

        self._watches = [each for each in self._watches if not each.stream.closed]
        self._watches.append(watch)
        try:
            await self._travel(request, open_)
            yield b""
            while (line := await watch.line()) is not None:
                yield line
        finally:
            watch.close()

    def break_watches(self, path: str = "") -> None:
        """Reset the connections of all watches, or of one collection."""
        for watch in self._watches:
            if path in {"", watch.path}:
                watch.fail(UnreachableError("connection reset by peer"))

    def silence_watches(self, path: str = "") -> None:
        """Let the connections of watches stay open, and bring nothing more."""
        for watch in self._watches:
            if path in {"", watch.path}:
                watch.silent = True

    @asynccontextmanager
    async def websocket(
        self,
        path: str,
        params: Params,
        protocols: Sequence[str],  # noqa: ARG002  (the kubelet speaks all of them)
        *,
        still: Check | None = None,
    ) -> AsyncGenerator[Any]:
        connected = asyncio.get_running_loop().create_future()
        self._world.after(self._cluster.network.latency(), _finish, connected)
        await connected
        if still and not await still():
            raise LateError("nothing was sent: the pod has changed")
        request = self._make("POST", path, params, b"")
        read = self._process.read.get((request.to.namespace, request.to.name), request.read)
        request = request._replace(read=read)
        socket = _Socket(self._cluster, request)
        if request.to.part != "portforward":  # That alone has no effect: a frame follows, or none.
            self._cluster.judge.sent(request)
        await self._travel(request, socket.connect)
        try:
            yield socket
        finally:
            socket.closed = True


class _Journey:
    """The way of one request to the API server, and that of its answer."""

    def __init__(
        self,
        cluster: Cluster,
        request: Request,
        perform: Callable[[], Any],
        answer: asyncio.Future[Any],
    ) -> None:
        self._world, self._network = cluster.world, cluster.network
        self._request, self._perform, self._answer = request, perform, answer
        self._way, self._back = self._network.way(request), self._network.latency()
        self._lost = self._network.lost(request)

    def begin(self) -> None:
        if self._lost or self._way + self._back > SLOW:
            self._request.process.renews_late(self._request)
        if self._lost == "unconnected":
            self._world.after(
                self._network.latency(), self._fail, NoConnectionError("connection refused")
            )
        else:
            self._world.after(self._way, self._arrive)
            if self._way > READ_TIMEOUT:
                self._silence()

    def _arrive(self) -> None:
        if self._request.process.unit.partitioned or self._lost == "before":
            self._silence()
            return
        found: Any = None
        refusal = self._network.refusal(self._request)
        error = refusal.error if refusal else None
        if refusal is None or refusal.after:
            try:
                found = self._perform()
            except ApiError as refused:
                error = refused
        if error and error.code not in {404, 409}:
            self._request.process.renews_late(self._request, busy=error.code == 429)
        self._world.after(self._back, self._give, found, error)

    def _give(self, found: Any, error: KubeError | None) -> None:
        if self._request.process.unit.partitioned or self._lost == "after":
            self._silence()
        elif self._lost == "reset":
            self._fail(UnreachableError("connection reset by peer"))
        elif error:
            self._fail(error)
        elif not self._answer.done():
            # What the API server has answered too late was not read.
            self._request.process.policy |= self._request.to.resource == "configmaps"
            self._answer.set_result(found)

    def _silence(self) -> None:
        self._world.at(
            self._request.sent + READ_TIMEOUT, self._fail, SilentError("the connection went silent")
        )

    def _fail(self, error: KubeError) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Watch:
    """One watch of a unit: lines come late and in order, or not at all."""

    def __init__(self, cluster: Cluster, process: Process, path: str, silence: float) -> None:
        self.path, self.silent = path, False
        self.stream = Stream(self._put, self._cut)
        self._cluster, self._world, self._process = cluster, cluster.world, process
        self._silence, self._last = silence, 0.0
        self._arrives, self._brought = 0.0, 0  # Version of the last line.
        self._lines: deque[tuple[int, bytes]] = deque()
        self._error: KubeError | None = None
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    def opened(self, seconds: float) -> None:
        """The API server has accepted it, and will end it."""
        self._heard()
        self._world.after(seconds, self._cut, None)
        self._world.after(BOOKMARKS, self._bookmark)
        self._watch_silence()

    async def line(self) -> bytes | None:
        """The next line; None at the end of the stream. The one before is read by then."""
        if self.stream.sure:
            self._process.saw(self.path, self._brought)
        while not self._lines:
            if self._error:
                raise self._error
            if self._ended:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._brought, line = self._lines.popleft()
        return line

    def close(self) -> None:
        """The unit is no longer interested."""
        self.stream.closed = True

    def fail(self, error: KubeError) -> None:
        """The connection ends with an error, after the lines that have come."""
        if not (self.stream.closed or self._ended):
            self._error = self._error or error
            self.stream.closed = True
            self._wake()

    def _put(self, line: bytes, version: int) -> None:
        if self.stream.closed or self._lost():
            return
        self._arrives = max(self._arrives, self._world.now + self._cluster.network.lag())
        self._world.at(self._arrives, self._receive, version, line)

    def _receive(self, version: int, line: bytes) -> None:
        if self.stream.closed or self._lost():
            return
        self._heard()
        self._lines.append((version, line))
        self._wake()

    def _cut(self, error: ApiError | None) -> None:
        """The server ends the stream; what was sent before arrives before."""
        if not (self.stream.closed or self._lost()):
            self._world.at(max(self._arrives, self._world.now), self._end, error)

    def _end(self, error: ApiError | None) -> None:
        if error:
            self.fail(error)
        elif not self.stream.closed:
            self._ended = self.stream.closed = True
            self._wake()

    def _lost(self) -> bool:
        """Whether nothing comes through: what is lost once is lost for good."""
        self.silent = self.silent or self._process.unit.partitioned
        return self.silent

    def _bookmark(self) -> None:
        if not self.stream.closed:
            self._cluster.server.bookmark(self.stream)
            self._world.after(BOOKMARKS, self._bookmark)

    def _heard(self) -> None:
        self._last = self._world.now

    def _watch_silence(self) -> None:
        if self.stream.closed:
            return
        if self._world.now >= self._last + self._silence:
            self.fail(SilentError("the connection went silent"))
        else:
            self._world.at(self._last + self._silence, self._watch_silence)

    def _wake(self) -> None:
        if self._waiter:
            _finish(self._waiter)


class _Socket:
    """An exec or a port-forward: frames come as the kubelet sends them."""

    def __init__(self, cluster: Cluster, request: Request) -> None:
        self.close_code: int | None = None
        self.closed = False
        self._cluster, self._request = cluster, request
        self._pod: tuple[Stored, Sandbox] | None = None  # That a port is forwarded of.
        self._messages: deque[Message] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def connect(self) -> None:
        """The API server has connected us with the kubelet, which starts the command."""
        nodes, request = self._cluster.nodes, self._request
        self._pod = nodes.find(request)
        if self._pod:
            self._play(nodes.connect(request, *self._pod))

    async def send_bytes(self, _data: bytes) -> None:
        """Send a frame; it arrives a little later."""
        request = self._request._replace(sent=self._cluster.world.now)
        self._cluster.judge.sent(request)
        self._cluster.world.after(self._cluster.network.latency(), self._arrive, request)

    def _arrive(self, request: Request) -> None:
        if self._pod and not request.process.unit.partitioned:
            self._play(self._cluster.nodes.forward(request, *self._pod))

    async def receive(self) -> Message:
        while not self._messages:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._messages.popleft()

    def _play(self, frames: Sequence[Frame]) -> None:
        when = 0.0
        for frame in frames:
            when += frame.after
            self._cluster.world.after(when, self._receive, frame)

    def _receive(self, frame: Frame) -> None:
        if self._request.process.unit.partitioned:
            return
        if frame.data:
            self._messages.append(Message(aiohttp.WSMsgType.BINARY, frame.data))
        else:
            self.close_code = 1006
            self._messages.append(Message(aiohttp.WSMsgType.CLOSED))
        if self._waiter:
            _finish(self._waiter)
