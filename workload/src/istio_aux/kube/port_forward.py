"""Sends an HTTP request to a port of a pod, through ``pods/portforward``.

The runtime connects to ``localhost`` inside the pod's network (containerd sandbox_portforward): the
peer is a loopback address, no container runs a process, and every port can be reached.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.exec import OUTPUT, Channels, answered, stream
from istio_aux.kube.objects import Key
from istio_aux.model.sidecars import AttemptResult

# The only one over a WebSocket (kubelet cri-streaming portforward/websocket.go).
PROTOCOLS = ("v4.channel.k8s.io",)
PREFIX = 2  # Bytes at the beginning of both channels: the port, little-endian.
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?\r?\n")
_LENGTH = re.compile(rb"\ncontent-length:[ \t]*([0-9]{1,6})[ \t]*\r?\n", re.IGNORECASE)
_HEAD_END = re.compile(rb"\r?\n\r?\n")


_DATA, _ERROR = 0, 1  # Channels of the first port.


class ForwardChannels(Channels):
    """The two channels of one forwarded port."""

    def __init__(self) -> None:
        super().__init__(_DATA, _ERROR)
        self._wanted: int | None = None  # Bytes of the whole answer, once its head is complete.

    def feed(self, frame: bytes) -> None:
        """Add one frame, and check whether the head of the answer is complete."""
        super().feed(frame)
        answer = self._received[_DATA]
        if self._wanted is None and (end := _HEAD_END.search(answer, PREFIX)):
            length = _LENGTH.search(answer, PREFIX, end.end())
            self._wanted = min(end.end() + int(length[1]), OUTPUT) if length else OUTPUT

    @property
    def finished(self) -> bool:
        """Whether the answer is complete, or the node sent an error.

        An answer without a length ends with its connection.
        """
        if len(self._received[_ERROR]) > PREFIX:
            return True
        return self._wanted is not None and len(self._received[_DATA]) >= self._wanted

    def result(self, early: str = "", *, sent: bool = True) -> AttemptResult:
        """Return the HTTP status, and the reason or the body."""
        answer = self._received[_DATA][PREFIX:]
        refusal = self._received[_ERROR][PREFIX:].decode(errors="replace")
        status = _STATUS_LINE.match(answer)
        end = _HEAD_END.search(answer)
        error = refusal or (early if not (status and end) else "")
        if not (status or error):
            error = f"the answer is no HTTP: {answer[:60].decode(errors='replace')!r}"
        head = f"HTTP {status[1].decode()}" if status else "no answer"
        body = answer[end.end() :].decode(errors="replace") if end else ""
        well = status is not None and status[1].startswith(b"2")
        return AttemptResult(well, sent, answered(head, error or body))


async def request(
    client: Client,
    pod: Key,
    port: int,
    what: str,
    deadline: float,
    *,
    still: Callable[[], Awaitable[bool]] | None = None,
    not_after: float | None = None,
) -> AttemptResult:
    """Send a request without a body, such as ``POST /quitquitquit``, to a port; see `exec.stream`.

    No UID leads to a pod, but the connection is made to one pod: where ``still`` finds the pod
    there after that, the request reaches no other pod.
    """
    head = (
        f"{what} HTTP/1.1\r\n"
        f"Host: localhost:{port}\r\n"
        "Content-Length: 0\r\n"
        "Connection: close\r\n\r\n"
    )
    channels = ForwardChannels()
    return await stream(
        client,
        actions.pod_path(pod.namespace, pod.name, "portforward"),
        channels,
        deadline,
        params=[("ports", str(port))],
        protocols=PROTOCOLS,
        still=still,
        not_after=not_after,
        first_frame=bytes([_DATA]) + head.encode("ascii"),
    )
