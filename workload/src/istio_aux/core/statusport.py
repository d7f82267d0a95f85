"""Where the agent of a pod's proxy listens: one rule, from what the injector left in the pod."""

from __future__ import annotations

import msgspec

from istio_aux.core.pod import PROXY, Pod, Struct

ANNOTATION = "status.sidecar.istio.io/port"
DEFAULT = 15020
"""Port of pilot-agent's status server unless configured (istio pkg/config/mesh/mesh.go)."""


class _ProxyConfig(Struct, frozen=True):
    status_port: int | None = None


def status_port(pod: Pod) -> int:
    """Find the TCP port of the status server of the pod's proxy.

    The annotation wins over ``statusPort`` of the ProxyConfig, which the injector leaves as JSON in
    the container's variable ``PROXY_CONFIG``. Without a usable value of either it is 15020.
    """
    annotated = pod.annotations.get(ANNOTATION, "")
    # The length is checked because int() refuses to read very long numbers.
    if annotated.isascii() and annotated.isdecimal() and len(annotated) <= 5:
        port = int(annotated)
    else:
        port = _configured(pod)
    return port if port is not None and 0 <= port < 65536 else DEFAULT


def _configured(pod: Pod) -> int | None:
    proxy = next((container for container in pod.containers if container.name == PROXY), None)
    for variable in (proxy.env or ()) if proxy else ():
        if variable.name == "PROXY_CONFIG" and variable.value and "statusPort" in variable.value:
            try:
                return msgspec.json.decode(variable.value, type=_ProxyConfig).status_port
            except msgspec.DecodeError:  # Then the proxy cannot have started either.
                return None
    return None
