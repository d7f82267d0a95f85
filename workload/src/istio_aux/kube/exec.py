"""Runs a command in ``istio-proxy``, or sends an HTTP request to a port of a pod.

``pods/exec`` (kubernetes remotecommand v4/v5) and ``pods/portforward`` have channels over a
WebSocket. The result has what arrived, and does not prove that there was an effect.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress

import aiohttp
import msgspec

from istio_aux.kube import actions
from istio_aux.kube.client import CHANGED, Check, Client, Params
from istio_aux.kube.errors import ApiError, KubeError, LateError, NoConnectionError
from istio_aux.kube.objects import ApiStatus, Key
from istio_aux.model.pod import PROXY
from istio_aux.model.sidecars import AttemptResult
from istio_aux.model.text import UNDECODABLE, one_line

OUTPUT = 64 << 10  # Bytes kept of each channel; the rest is dropped.
# Limits of one connection: a tenant's program may send as much as it can. A quit takes a few
# hundred bytes in a few frames.
FRAMES = 4096
BYTES = 4 << 20


def answered(head: str, text: str) -> str:
    """Join the head of a line for people, and 300 characters of the other side's text, if any."""
    return f"{head}: {one_line(text, 300)}" if text.strip() else head


class Channels:
    """Collects the payload of frames by channel, which is the first byte of a frame."""

    def __init__(self, *kept: int) -> None:
        """Keep what arrives on these channels, at most `OUTPUT` bytes of each; drop the rest."""
        self._received = {channel: bytearray() for channel in kept}

    def feed(self, frame: bytes) -> None:
        """Add one frame. The first frames of a kubelet have no payload."""
        if len(frame) > 1 and (buffer := self._received.get(frame[0])) is not None:
            buffer += frame[1 : 1 + OUTPUT - len(buffer)]


_STDOUT = 1
_STDERR = 2
_ERROR = 3  # Channels of an exec (remotecommand constants).


class ExecChannels(Channels):
    """The channels of one exec. The server ends with a Status on the error channel."""

    def __init__(self) -> None:
        super().__init__(_STDOUT, _STDERR, _ERROR)

    @property
    def finished(self) -> bool:
        """Whether the result is complete: the Status has arrived."""
        return bool(self._received[_ERROR])

    def result(self, early: str = "", *, sent: bool = True) -> AttemptResult:
        """Return the exit code, and the reason or the output.

        ``early`` says why the connection ended early, if it did.
        """
        body = self._received[_ERROR]
        code, error = _verdict(bytes(body)) if body else (None, early)
        output = self._received[_STDERR] or self._received[_STDOUT]
        head = "no exit code" if code is None else f"exit code {code}"
        return AttemptResult(
            code == 0, sent, answered(head, error or output.decode(errors="replace"))
        )


def _verdict(body: bytes) -> tuple[int | None, str | None]:
    """Exit code and message of the Status on the error channel (remotecommand v4)."""
    try:
        status = msgspec.json.decode(body, type=ApiStatus)
    except UNDECODABLE:
        return None, body.decode(errors="replace")
    if status.status == "Success":
        return 0, None
    causes = (status.details.causes if status.details else None) or ()
    code = next((cause.message for cause in causes if cause.reason == "ExitCode"), "")
    if code.isascii() and code.isdigit() and len(code) <= len("255"):
        return int(code), status.message or None
    return None, status.message or "the server gave no reason"


async def execute(
    client: Client,
    pod: Key,
    command: Sequence[str],
    deadline: float,
    *,
    still: Check | None = None,
) -> AttemptResult:
    """Run ``command`` in the proxy of ``pod``, without stdin; see `stream`.

    The request has no UID: the command runs in the pod that has the name when the request arrives.
    So ``still`` is called right before that: `LateError` if the pod has changed.
    """
    return await stream(
        client,
        actions.pod_path(pod.namespace, pod.name, "exec"),
        ExecChannels(),
        deadline,
        params=[
            ("container", PROXY),
            ("stdout", "true"),
            ("stderr", "true"),
            *(("command", word) for word in command),
        ],
        protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"),  # v5 adds CLOSE, for stdin alone.
        before=still,
    )


# Channels of the first port (kubelet cri-streaming portforward/websocket.go). Both begin with the
# bytes of the port, little-endian.
_DATA = 0
_REFUSED = 1
_PREFIX = 2
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?\r?\n")
_LENGTH = re.compile(rb"\ncontent-length:[ \t]*([0-9]{1,6})[ \t]*\r?\n", re.IGNORECASE)
_HEAD_END = re.compile(rb"\r?\n\r?\n")


class ForwardChannels(Channels):
    """The two channels of one forwarded port."""

    def __init__(self) -> None:
        super().__init__(_DATA, _REFUSED)
        self._wanted: int | None = None  # Bytes of the whole answer, once its head is complete.

    def feed(self, frame: bytes) -> None:
        """Add one frame, and check whether the head of the answer is complete."""
        answer = self._received[_DATA]
        # What was searched is not searched again: a tenant's program may send single bytes.
        begin = max(_PREFIX, len(answer) - len(b"\r\n\r\n") + 1)
        super().feed(frame)
        if self._wanted is None and (end := _HEAD_END.search(answer, begin)):
            length = _LENGTH.search(answer, _PREFIX, end.end())
            self._wanted = min(end.end() + int(length[1]), OUTPUT) if length else OUTPUT

    @property
    def finished(self) -> bool:
        """Whether the node sent an error, or the answer is complete, if it says its length."""
        complete = self._wanted is not None and len(self._received[_DATA]) >= self._wanted
        return complete or len(self._received[_REFUSED]) > _PREFIX

    @property
    def ready(self) -> bool | None:
        """Whether the proxy is ready: not if Envoy does not listen yet; None: no answer."""
        status = _STATUS_LINE.match(self._received[_DATA], _PREFIX)
        if status is None:
            return False if b"connection refused" in self._received[_REFUSED] else None
        return {b"200": True, b"503": False}.get(bytes(status[1]))

    def result(self, early: str = "", *, sent: bool = True) -> AttemptResult:
        """Return the HTTP status, and the reason or the body."""
        answer = self._received[_DATA][_PREFIX:]
        refusal = self._received[_REFUSED][_PREFIX:].decode(errors="replace")
        status = _STATUS_LINE.match(answer)
        end = _HEAD_END.search(answer)
        error = refusal or (early if not (status and end) else "")
        if not (status or error):
            error = f"the answer is no HTTP: {answer[:60].decode(errors='replace')!r}"
        head = f"HTTP {status[1].decode()}" if status else "no answer"
        body = answer[end.end() :].decode(errors="replace") if end else ""
        return AttemptResult(
            status is not None and status[1].startswith(b"2"), sent, answered(head, error or body)
        )


async def forward(
    client: Client,
    pod: Key,
    port: int,
    what: str,
    deadline: float,
    *,
    still: Check | None = None,
    channels: ForwardChannels | None = None,
) -> AttemptResult:
    """Send a request without a body, such as ``POST /quitquitquit``, to a port; see `stream`.

    The runtime connects to ``localhost`` inside the pod's network (containerd sandbox_portforward):
    no container runs a process, and every port can be reached. The request has no UID, but the
    connection leads to one pod: if ``still`` finds the pod there afterwards, the request reaches no
    other pod.
    """
    head = (
        f"{what} HTTP/1.1\r\n"
        f"Host: localhost:{port}\r\n"
        "Content-Length: 0\r\n"
        "Connection: close\r\n\r\n"
    )
    return await stream(
        client,
        actions.pod_path(pod.namespace, pod.name, "portforward"),
        channels or ForwardChannels(),
        deadline,
        params=[("ports", str(port))],
        protocols=("v4.channel.k8s.io",),  # From cri-streaming portforward/websocket.go.
        still=still,
        first_frame=bytes([_DATA]) + head.encode("ascii"),
    )


async def is_ready(client: Client, pod: Key, deadline: float) -> bool | None:
    """Whether the proxy of a pod is ready, by what the hook of a hold asks; None: not known.

    The hook asks for this at a port on which Envoy listens in every pod (istio pilot-agent
    app/wait.go). It is asked of a pod that is still there.
    """
    channels = ForwardChannels()

    async def same() -> bool:
        return await actions.read_pod(client, pod) is not None

    with suppress(KubeError):  # Nothing has arrived then.
        await forward(
            client, pod, 15021, "GET /healthz/ready", deadline, still=same, channels=channels
        )
    return channels.ready


async def stream(
    client: Client,
    path: str,
    channels: ExecChannels | ForwardChannels,
    deadline: float,
    *,
    params: Params,
    protocols: Sequence[str],
    first_frame: bytes = b"",
    before: Check | None = None,
    still: Check | None = None,
) -> AttemptResult:
    """Upgrade to a WebSocket, send ``first_frame`` if not empty, and read until the end.

    ``deadline`` seconds include the handshake; after them the request may or may not have had its
    effect. ``before`` is called once there is a connection for the upgrade, ``still`` after the
    upgrade. If one returns False, nothing more is sent: `LateError`.
    `KubeError`: the API server is busy or cannot be reached; nothing was sent.
    """
    try:
        async with asyncio.timeout(deadline):
            async with client.websocket(path, params, protocols, still=before) as socket:
                if still and not await still():
                    raise LateError(CHANGED)
                if first_frame:
                    # A node that cannot connect to the port says so, and closes at once.
                    with suppress(ConnectionResetError):
                        await socket.send_bytes(first_frame)
                return channels.result(await _listen(socket, channels))
    except TimeoutError:
        return channels.result(f"timed out after {deadline:g} s")
    except KubeError as error:
        busy = isinstance(error, ApiError) and (error.code == 429 or error.retry_after is not None)
        if busy or isinstance(error, NoConnectionError):
            raise
        return channels.result(str(error), sent=error.code == 0 or error.code >= 500)


async def _listen(
    socket: aiohttp.ClientWebSocketResponse, channels: ExecChannels | ForwardChannels
) -> str:
    """Read until ``channels`` are finished; returns why they are not, or nothing."""
    frames = size = 0
    while not channels.finished:
        message = await socket.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            channels.feed(message.data)
        elif message.type is not aiohttp.WSMsgType.TEXT:
            # 1006: the connection was cut.
            return f"closed without a status ({socket.close_code})"
        frames += 1
        size += len(message.data)
        if frames > FRAMES or size > BYTES:
            return f"closed after {frames} frames and {size} bytes without a result"
        if frames % 64 == 0:  # To receive a frame does not yield to other tasks.
            await asyncio.sleep(0)
    return ""
