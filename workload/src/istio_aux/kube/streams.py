"""Run a command in a container: the channel protocol of ``pods/exec`` over a WebSocket.

`Channels` is the protocol without a socket: frames in, a result out (kubernetes remotecommand
v4/v5). `execute` is the only I/O. The result says what was heard; whether the command had its
effect, it cannot say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import IntEnum

import aiohttp
import msgspec

from istio_aux.kube.client import Client, Status
from istio_aux.kube.errors import KubeError

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""Newest first; without stdin they are the same to us (semantics: v5 adds CLOSE)."""

OUTPUT = 64 << 10
"""Bytes kept of each of stdout and stderr; the rest is dropped."""


class ExecResult(msgspec.Struct, frozen=True):
    """What was heard of a command.

    Attributes:
        exit_code: the command's, or None when nobody told.
        stdout: as far as it arrived, at most `OUTPUT` bytes.
        stderr: likewise.
        error: why there is no exit code, or what the server said beside it; None if all went well.
    """

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    error: str | None = None

    def __str__(self) -> str:
        """One line for a person: ``exit code 255: connection refused``."""
        head = "no exit code" if self.exit_code is None else f"exit code {self.exit_code}"
        said = self.error or self.stderr or self.stdout
        return f"{head}: {' '.join(said.split())[:300]}" if said.strip() else head


class Channel(IntEnum):
    """First byte of each frame (remotecommand constants)."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    ERROR = 3
    RESIZE = 4
    CLOSE = 255


class Channels:
    """Collects frames of one exec until the server has told how it ended."""

    def __init__(self) -> None:
        self._output = {Channel.STDOUT: bytearray(), Channel.STDERR: bytearray()}
        self._verdict = bytearray()

    def feed(self, frame: bytes) -> None:
        """Take one binary message. Frames with no payload and unknown channels mean nothing."""
        if len(frame) < 2:
            return
        channel, payload = frame[0], frame[1:]
        if channel == Channel.ERROR:
            self._verdict += payload
        elif channel in (Channel.STDOUT, Channel.STDERR):
            buffer = self._output[Channel(channel)]
            buffer += payload[: OUTPUT - len(buffer)]

    @property
    def finished(self) -> bool:
        """Whether the server has told how the command ended; nothing follows that."""
        return bool(self._verdict)

    def result(self, error: str | None = None) -> ExecResult:
        """Make the result of what arrived; ``error`` says why no more will."""
        exit_code, said = _verdict(bytes(self._verdict)) if self._verdict else (None, error)
        return ExecResult(
            exit_code=exit_code,
            stdout=self._output[Channel.STDOUT].decode(errors="replace"),
            stderr=self._output[Channel.STDERR].decode(errors="replace"),
            error=said,
        )


def _verdict(body: bytes) -> tuple[int | None, str | None]:
    """Exit code and message of the Status on the error channel (remotecommand v4)."""
    try:
        status = msgspec.json.decode(body, type=Status)
    except msgspec.DecodeError:
        return None, body.decode(errors="replace")
    if status.status == "Success":
        return 0, None
    causes = (status.details.causes if status.details else None) or ()
    code = next((cause.message for cause in causes if cause.reason == "ExitCode"), "")
    if code.isascii() and code.isdigit():
        return int(code), status.message or None
    return None, status.message or "the server gave no reason"


async def execute(
    client: Client, pod: tuple[str, str], container: str, command: Sequence[str], deadline: float
) -> ExecResult:
    """Run ``command`` in a container of ``pod`` (namespace, name), without stdin.

    Whatever goes wrong on the way is in the result; it never raises for it. After ``deadline``
    seconds the connection is dropped, and the command may or may not have run.
    """
    namespace, name = pod
    params = [("container", container), ("stdout", "true"), ("stderr", "true")]
    params += [("command", word) for word in command]
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/exec"
    channels = Channels()
    try:
        async with asyncio.timeout(deadline):
            async with client.websocket(path, params, PROTOCOLS) as socket:
                while not channels.finished:
                    message = await socket.receive()
                    if message.type is aiohttp.WSMsgType.BINARY:
                        channels.feed(message.data)
                    elif message.type is not aiohttp.WSMsgType.TEXT:
                        # 1006 is what a connection that was cut looks like.
                        return channels.result(f"closed without a status ({socket.close_code})")
        return channels.result()
    except TimeoutError:
        return channels.result(f"timed out after {deadline:g} s")
    except KubeError as error:
        return channels.result(str(error))
