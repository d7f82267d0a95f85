"""Talk to a pod through the API server: channels over a WebSocket, and ``pods/exec`` on them.

`Channels` is what exec and port-forward have in common, without a socket: frames in, bytes by
channel out. `converse` is the only I/O; it raises only where nothing was sent. `execute`
runs a command (kubernetes remotecommand v4/v5). The result says what was heard; whether the command
had its effect, it cannot say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from enum import IntEnum

import aiohttp
import msgspec

from istio_aux.kube import actions
from istio_aux.kube.client import Client, Params
from istio_aux.kube.errors import ApiError, KubeError, NoConnectionError
from istio_aux.kube.objects import ApiStatus

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""Newest first; without stdin they are the same to us (semantics: v5 adds CLOSE)."""

OUTPUT = 64 << 10
"""Bytes kept of each channel; the rest is dropped."""

FRAMES, BYTES = 4096, 4 << 20
"""How much one conversation may say. What is behind the API server may be the pod's own program,
which sends as fast as it can; a quit says a few hundred bytes in a few frames."""
AT_ONCE = 64
"""Frames after which everything else has its turn: those that are there already are no wait."""

SAID = 300
"""Characters of what the other side said that a line for a person has room for."""


class Channels:
    """Collects the frames of one connection by channel, the first byte of each frame."""

    def __init__(self, kept: Iterable[int]) -> None:
        """Keep what arrives on the channels of these numbers; others mean nothing to us."""
        self._heard = {channel: bytearray() for channel in kept}

    def feed(self, frame: bytes) -> None:
        """Take one binary message. The kubelet begins with frames that have no payload."""
        if len(frame) > 1 and (buffer := self._heard.get(frame[0])) is not None:
            buffer += frame[1 : 1 + OUTPUT - len(buffer)]

    @property
    def finished(self) -> bool:
        """Whether all that matters has arrived."""
        raise NotImplementedError

    def heard(self, channel: int) -> bytes:
        """What arrived on a channel, at most `OUTPUT` bytes; a copy, so not for each frame."""
        return bytes(self._heard[channel])


class Silence(msgspec.Struct, frozen=True):
    """Why a conversation ended before all that matters had arrived.

    Attributes:
        why: for people.
        unsent: whether the API server refused, so that nothing can have reached the pod.
    """

    why: str
    unsent: bool = False


class ExecResult(msgspec.Struct, frozen=True):
    """What was heard of a command.

    Attributes:
        exit_code: the command's, or None when nobody told.
        stdout: as far as it arrived, at most `OUTPUT` bytes.
        stderr: likewise.
        error: why there is no exit code, or what the server said beside it; None if all went well.
        unsent: see `Silence`.
    """

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    error: str | None = None
    unsent: bool = False

    def __str__(self) -> str:
        """One line for a person: ``exit code 255: connection refused``."""
        head = "no exit code" if self.exit_code is None else f"exit code {self.exit_code}"
        return one_line(head, self.error or self.stderr or self.stdout)


class ExecChannel(IntEnum):
    """Channels of an exec (remotecommand constants)."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    ERROR = 3
    RESIZE = 4
    CLOSE = 255


class ExecChannels(Channels):
    """The channels of one exec, until the server has told how it ended."""

    def __init__(self) -> None:
        super().__init__((ExecChannel.STDOUT, ExecChannel.STDERR, ExecChannel.ERROR))

    @property
    def finished(self) -> bool:
        """Whether the server has told how the command ended; nothing follows that."""
        return bool(self._heard[ExecChannel.ERROR])

    def result(self, silence: Silence | None = None) -> ExecResult:
        """Make the result of what arrived; ``silence`` says why no more will."""
        body = self.heard(ExecChannel.ERROR)
        exit_code, error = _verdict(body) if body else (None, silence.why if silence else None)
        return ExecResult(
            exit_code=exit_code,
            stdout=self.heard(ExecChannel.STDOUT).decode(errors="replace"),
            stderr=self.heard(ExecChannel.STDERR).decode(errors="replace"),
            error=error,
            unsent=silence is not None and silence.unsent,
        )


def _verdict(body: bytes) -> tuple[int | None, str | None]:
    """Exit code and message of the Status on the error channel (remotecommand v4)."""
    try:
        status = msgspec.json.decode(body, type=ApiStatus)
    except (ValueError, RecursionError):
        return None, body.decode(errors="replace")
    if status.status == "Success":
        return 0, None
    causes = (status.details.causes if status.details else None) or ()
    code = next((cause.message for cause in causes if cause.reason == "ExitCode"), "")
    if code.isascii() and code.isdigit() and len(code) <= len("255"):
        return int(code), status.message or None
    return None, status.message or "the server gave no reason"


async def execute(
    client: Client, pod: tuple[str, str], container: str, command: Sequence[str], deadline: float
) -> ExecResult:
    """Run ``command`` in a container of ``pod`` (namespace, name), without stdin.

    What goes wrong on the way is in the result. After ``deadline`` seconds the connection is
    dropped, and the command may or may not have run.

    Raises:
        KubeError: the API server has no time now, or cannot be reached; nothing was sent.
    """
    params = [("container", container), ("stdout", "true"), ("stderr", "true")]
    params += [("command", word) for word in command]
    channels = ExecChannels()
    path = actions.pod_path(*pod, "exec")
    silence = await converse(client, path, channels, deadline, params=params, protocols=PROTOCOLS)
    return channels.result(silence)


async def converse(
    client: Client,
    path: str,
    channels: Channels,
    deadline: float,
    *,
    params: Params,
    protocols: Sequence[str],
    say: bytes = b"",
) -> Silence | None:
    """Upgrade to a WebSocket, send the frame ``say`` if it is one, and listen.

    Returns None once ``channels`` are finished, else why they never will be. After ``deadline``
    seconds, handshake included, the connection is dropped.

    Raises:
        KubeError: the API server has no time now, or cannot be reached; nothing was sent.
    """
    try:
        async with asyncio.timeout(deadline):
            async with client.websocket(path, params, protocols) as socket:
                if say:
                    await socket.send_bytes(say)
                return await _listen(socket, channels)
    except TimeoutError:
        return Silence(f"timed out after {deadline:g} s")
    except KubeError as error:
        busy = isinstance(error, ApiError) and (error.code == 429 or error.retry_after is not None)
        if busy or isinstance(error, NoConnectionError):
            raise
        return Silence(str(error), unsent=isinstance(error, ApiError) and error.code < 500)


async def _listen(socket: aiohttp.ClientWebSocketResponse, channels: Channels) -> Silence | None:
    frames = size = 0
    while not channels.finished:
        message = await socket.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            channels.feed(message.data)
        elif message.type is not aiohttp.WSMsgType.TEXT:
            # 1006 is what a connection that was cut looks like.
            return Silence(f"closed without a status ({socket.close_code})")
        frames, size = frames + 1, size + len(message.data)
        if frames > FRAMES or size > BYTES:
            return Silence(f"gave up on what never ends: {frames} frames, {size} bytes")
        if frames % AT_ONCE == 0:
            await asyncio.sleep(0)
    return None


def one_line(head: str, said: str) -> str:
    """Append what the other side said to ``head``, without line breaks and not too much of it."""
    return f"{head}: {' '.join(said.split())[:SAID]}" if said.strip() else head
