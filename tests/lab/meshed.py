"""Pods as Istio leaves them, made by hand: for tests that are not about injection. Data only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from lightkube.models import core_v1, meta_v1
from lightkube.resources.core_v1 import Pod

PROXY = "istio-proxy"
PROXY_IMAGE = "istio-aux.lab/proxyv2:1.28.10"
PAYLOAD_IMAGE = "istio-aux.lab/busybox:1.35"


def pod(
    namespace: str,
    name: str,
    *,
    restart_policy: Literal["Never", "OnFailure", "Always"] = "Never",
    payload: Sequence[str] = ("main",),
    sidecar: Literal["classic", "native"] | None = "classic",
    annotations: Mapping[str, str] | None = None,
) -> Pod:
    """A pod with these payload containers and, unless ``sidecar`` is None, an istio-proxy.

    The classic proxy stands last, where Istio puts it without hold.
    """
    containers = [core_v1.Container(name=n, image=PAYLOAD_IMAGE) for n in payload]
    init = [core_v1.Container(name="istio-init", image=PROXY_IMAGE)] if sidecar else []
    proxy = core_v1.Container(name=PROXY, image=PROXY_IMAGE, args=["proxy", "sidecar"])
    if sidecar == "classic":
        containers.append(proxy)
    elif sidecar == "native":
        proxy.restartPolicy = "Always"
        init.append(proxy)
    return Pod(
        metadata=meta_v1.ObjectMeta(
            name=name, namespace=namespace, annotations=dict(annotations or {})
        ),
        spec=core_v1.PodSpec(
            containers=containers,
            initContainers=init or None,
            restartPolicy=restart_policy,
            terminationGracePeriodSeconds=5,
        ),
    )


def proxy_exit_code(pod: Pod) -> int | None:
    """The exit code with which the pod's istio-proxy ended for good; None: it has not.

    Looks at the container status alone, wherever the proxy stands in the spec.
    """
    status = pod.status or core_v1.PodStatus()
    for container in [*(status.containerStatuses or []), *(status.initContainerStatuses or [])]:
        if container.name == PROXY and container.state and container.state.terminated:
            return container.state.terminated.exitCode
    return None
