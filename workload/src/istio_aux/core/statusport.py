"""Where the agent of a pod's proxy listens: one rule, from what the injector left in the pod."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from istio_aux.core.pod import PROXY, Container, Pod, Struct

ANNOTATION = "status.sidecar.istio.io/port"
DEFAULT = 15020
"""Port of pilot-agent's status server unless configured (istio pkg/config/mesh/mesh.go)."""

_FLAG = "--statusPort"


class _ProxyConfig(Struct, frozen=True):
    status_port: int | None = None


def status_port(pod: Pod) -> int:
    """Find the TCP port of the status server of the pod's proxy; 0 means that it is off.

    The annotation wins (istio pkg/bootstrap applyAnnotations), then the flag ``--statusPort`` among
    the container's arguments, which old and vendors' injectors write, then ``statusPort`` of the
    ProxyConfig, which the injector leaves as JSON in the container's variable ``PROXY_CONFIG``.
    A value that is no port says nothing; without any it is 15020.
    """
    proxy = next((container for container in pod.containers if container.name == PROXY), None)
    said = (_port(pod.annotations.get(ANNOTATION, "")), *(_said_to(proxy) if proxy else ()))
    return next((port for port in said if port is not None), DEFAULT)


def _said_to(proxy: Container) -> tuple[int | None, ...]:
    return _argument(proxy.args or ()), _configured(proxy)


def _argument(arguments: tuple[str, ...]) -> int | None:
    """The last one counts (Go's flag packages), whether written as one argument or as two."""
    found = [
        _port(value if word == _FLAG else word.removeprefix(f"{_FLAG}="))
        for word, value in pairwise((*arguments, ""))
        if word == _FLAG or word.startswith(f"{_FLAG}=")
    ]
    return found[-1] if found else None


def _configured(proxy: Container) -> int | None:
    for variable in proxy.env or ():
        if variable.name == "PROXY_CONFIG" and variable.value and "statusPort" in variable.value:
            try:
                port = msgspec.json.decode(variable.value, type=_ProxyConfig).status_port
            except (ValueError, RecursionError):  # Then the proxy cannot have started either.
                return None
            return port if port is not None and _is_port(port) else None
    return None


def _port(text: str) -> int | None:
    # The length is checked because int() refuses to read very long numbers.
    if not (text.isascii() and text.isdecimal() and len(text) <= 5):
        return None
    return int(text) if _is_port(int(text)) else None


def _is_port(number: int) -> bool:
    return 0 <= number < 65536
