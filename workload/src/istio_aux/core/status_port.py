"""Where the agent of a pod's proxy listens, from all that the injectors leave in a pod."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from istio_aux.core.keys import Annotation
from istio_aux.core.pod import PROXY, Container, Pod, Struct

STATUS_PORT = "status.sidecar.istio.io/port"
DEFAULT_STATUS_PORT = 15020  # Istio pkg/config/mesh/mesh.go.

_FLAG = "--statusPort"
_MOST_ARGUMENTS = 1000  # The last ones are looked at: the last flag counts.
_LONGEST_CONFIG = 64 * 1024  # Characters of ``PROXY_CONFIG``; the injector writes about a hundred.


def status_port(pod: Pod) -> int:
    """Find the TCP port of the status server of the pod's agent; 0: it is off.

    The annotation wins (istio pkg/bootstrap applyAnnotations), then the flag ``--statusPort`` among
    the container's arguments, which old and vendors' injectors write, then ``statusPort`` of the
    ProxyConfig, which the injector leaves as JSON in the container's variable ``PROXY_CONFIG``.
    A value that is no port is skipped.
    """
    if (port := _status_port.get(pod.metadata)) is not None:
        return port
    proxy = next((container for container in pod.containers if container.name == PROXY), None)
    found = (_port_argument(proxy.args or ()), _port_configured(proxy)) if proxy else ()
    return next((port for port in found if port is not None), DEFAULT_STATUS_PORT)


class _ProxyConfig(Struct, frozen=True):
    status_port: int | None = None


def _port_argument(arguments: tuple[str, ...]) -> int | None:
    """The last one counts (Go's flag packages), whether written as one argument or as two."""
    found = [
        _port(value if word == _FLAG else word.removeprefix(f"{_FLAG}="))
        for word, value in pairwise((*arguments[-_MOST_ARGUMENTS:], ""))
        if word == _FLAG or word.startswith(f"{_FLAG}=")
    ]
    return found[-1] if found else None


def _port_configured(proxy: Container) -> int | None:
    for variable in proxy.env or ():
        text = variable.value if variable.name == "PROXY_CONFIG" else None
        if text and len(text) <= _LONGEST_CONFIG and "statusPort" in text:
            try:
                port = msgspec.json.decode(text, type=_ProxyConfig).status_port
            except (ValueError, RecursionError):  # The proxy cannot have started with it either.
                return None
            return port if port is not None and 0 <= port < 65536 else None
    return None


def _port(text: str) -> int | None:
    try:
        return _read_port(text)
    except ValueError:
        return None


def _read_port(text: str) -> int:
    # The length is checked because int() refuses to read very long numbers.
    if not (len(text) <= 5 and text.isascii() and text.isdecimal() and int(text) < 65536):
        raise ValueError
    return int(text)


_status_port = Annotation(STATUS_PORT, _read_port, "a TCP port", longest=5)
