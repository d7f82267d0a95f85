"""What hold would have done to a pod that Istio has injected already.

Only that may live here. It is needed when we are called after Istio: again, because another webhook
changed the pod, or for the first time, because a configuration of Istio's sorts before ours.
"""

from __future__ import annotations

from istio_aux.core import patch
from istio_aux.core.pod import PROXY, NewContainer, NewPod, Struct

ANNOTATION = "sidecar.istio.io/status"
"""Annotation that the injector leaves (istio inject.go SidecarInjectionStatus)."""

WAIT: dict[str, object] = {"exec": {"command": ["pilot-agent", "wait"]}}
"""The hook that holds the containers after it back (istio injection-template.yaml)."""


class Holding(Struct, frozen=True):
    """Operations that make the injected proxy hold the payload back, and what they do.

    Without operations ``reason`` says why there are none.
    """

    ops: tuple[patch.Op, ...]
    reason: str
    effective: bool = True
    """False where hold could have no effect on this pod."""


def is_native(pod: NewPod) -> bool:
    """Whether the proxy is a native sidecar, which the kubelet starts before the payload."""
    return any(
        container.name == PROXY and container.restart_policy == "Always"
        for container in pod.spec.init_containers or ()
    )


def hold(pod: NewPod) -> Holding:
    """Do what the injector does with hold (istio inject.go reorderPod, injection-template.yaml).

    The classic proxy becomes the first container and gets the hook that waits for it. Where the
    mesh has given the proxy a lifecycle of its own (``global.proxy.lifecycle``), Istio adds no
    hook, and neither do we: with another ``postStart`` only the order is changed, and without one
    hold has no effect.
    """
    containers = pod.spec.containers or ()
    names = [container.name for container in containers]
    if PROXY not in names:
        return Holding(ops=(), reason=f"no container is called {PROXY}", effective=False)
    if len(names) == 1:
        return Holding(ops=(), reason=f"{PROXY} is the only container", effective=False)
    place = names.index(PROXY)
    hook = _hook(containers[place])
    if hook is None:
        reason = f"hold has no effect: {PROXY} has a lifecycle of its own, without postStart"
        return Holding(ops=(), reason=reason, effective=False)
    ops: tuple[patch.Op, ...] = ()
    if place:
        ops += (patch.Move("/spec/containers/0", f"/spec/containers/{place}"),)
    ops += hook
    did = (f"moved {PROXY} first",) if place else ()
    did += ("added its postStart hook",) if hook else ()
    return Holding(ops=ops, reason=", ".join(did) or f"{PROXY} holds the payload back already")


def _hook(proxy: NewContainer) -> tuple[patch.Op, ...] | None:
    """Add the hook to the first container; nothing if it has one; None if it may not get one."""
    lifecycle = proxy.lifecycle
    if lifecycle is None:
        return (patch.Add("/spec/containers/0/lifecycle", {"postStart": WAIT}),)
    if lifecycle.post_start is not None:
        return ()
    if lifecycle.pre_stop is not None or lifecycle.stop_signal is not None:
        return None
    return (patch.Add("/spec/containers/0/lifecycle/postStart", WAIT),)
