"""How istio-proxy answers: ``pilot-agent request`` in its container, and HTTP on its status port.

Pure: a command or a request goes in, an answer comes out that also says whether the proxy then
exits. Follows what Istio 1.28 and 1.30 were observed to do: 404 counts as success, only four debug
ports are allowed, the status port wants POST, and there is no shell in the image.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

DEBUG_PORTS = (15000, 15004, 15020, 15021)
STATUS_PORT = 15020
ANNOTATION = "status.sidecar.istio.io/port"


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the exec'd process prints and returns; ``quits``: the proxy exits with 0 afterwards.

    ``exit_code`` is None when no process could be started at all.
    """

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = 0
    quits: bool = False


def run(command: Sequence[str], status_port: int) -> Answer:
    """The answer to ``command``, executed in istio-proxy of a pod with that status port."""
    match list(command):
        case ["pilot-agent", "request", *arguments]:
            return _request(arguments, status_port)
        case [executable, *_]:
            return Answer(stderr=f'exec: "{executable}": executable file not found', exit_code=None)
        case _:
            return Answer(stderr="no command", exit_code=None)


def _request(arguments: list[str], status_port: int) -> Answer:
    match re.fullmatch(r"(?:--debug-port[= ](\d+) )?(\S+) /?(\S+)", " ".join(arguments)):
        case None:
            return Answer(stderr="Error: requires at least 2 arg(s)\n", exit_code=255)
        case found:
            port, method, path = int(found[1] or 15000), found[2], found[3]
    if port not in DEBUG_PORTS:
        text = f"Error: debug port {port} is not in allowed list {DEBUG_PORTS}\n"
        return Answer(stderr=text, exit_code=255)
    if port == STATUS_PORT != status_port:
        return Answer(stderr="Error: dial tcp: connect: connection refused\n", exit_code=255)
    if path != "quitquitquit" or port not in (15000, STATUS_PORT):
        return Answer(stdout="\n")  # a 404, which pilot-agent counts as success
    if method != "POST":
        return Answer(stderr="Error: received unsuccessful status code 405\n", exit_code=255)
    return Answer(stdout="OK", quits=True)


def respond(request: bytes, port: int, status_port: int) -> tuple[bytes, bool] | None:
    """The response to a request on this port, None: no listener; and whether the proxy exits."""
    if port != status_port or not port:
        return None
    method, path = [*request.split(b" ", 2), b"", b""][:2]
    if path != b"/quitquitquit":
        return NOT_FOUND, False
    if method != b"POST":
        return _http(b"405 Method Not Allowed", b"Method Not Allowed\n"), False
    return OK, True


def _http(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\nContent-Type: text/plain\r\n\r\n"
    return head % (status, len(body)) + body


OK = _http(b"200 OK", b"OK")
NOT_FOUND = _http(b"404 Not Found", b"404 page not found\n")
