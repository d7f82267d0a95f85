"""What to change in a pod at admission so that its sidecar starts before its payload.

Only that plan may live here: the opt-outs, the choice between native and hold, and the operations.
The plan is idempotent: for a pod that already has what it needs it is empty.
"""

from __future__ import annotations

from collections.abc import Iterator

from istio_aux.core import patch, proxyconfig
from istio_aux.core.pod import NO_METADATA, Pod, Struct
from istio_aux.core.policy import Capability

START = "istio-aux.io/start"
"""Annotation: ``native``, ``hold`` or ``off`` for this pod, whatever the cluster's default is."""
INJECT = "sidecar.istio.io/inject"
"""Label or annotation; ``"false"`` means that Istio gives the pod no sidecar."""
NATIVE_SIDECAR = "sidecar.istio.io/nativeSidecar"
"""Annotation; ``"true"`` makes Istio >=1.24 put the sidecar into the init containers."""
INJECTED = "sidecar.istio.io/status"
"""Annotation that the injector leaves (istio inject.go SidecarInjectionStatus)."""
MIRROR = "kubernetes.io/config.mirror"
"""Annotation of the API's image of a static pod, which the API cannot change."""


class Plan(Struct, frozen=True):
    """Operations to apply in order, why they are what they are, and what the user should know."""

    ops: tuple[patch.Op, ...]
    reason: str
    warnings: tuple[str, ...] = ()


def plan(pod: Pod, capability: Capability) -> Plan:
    """Plan the change of a pod that is about to be created.

    Args:
        pod: the pod as the API server sends it, or as its author wrote it.
        capability: what cluster and Istio can do.

    Returns:
        A plan whose operations apply to this pod without fail; it never raises.
    """
    wish = pod.annotations.get(START)
    warnings: tuple[str, ...] = ()
    if wish not in {None, "auto", "native", "hold", "off"}:
        warnings = (f'annotation {START}: "{wish}": expected native, hold or off; ignored',)
        wish = None
    if reason := next(_reasons_to_leave_alone(pod, wish), None):
        return Plan(ops=(), reason=reason, warnings=warnings)
    if wish == "native" or (wish != "hold" and _native_is_due(pod, capability)):
        chosen = _native(pod)
    else:
        chosen = _hold(pod)
    return Plan(ops=chosen.ops, reason=chosen.reason, warnings=warnings + chosen.warnings)


def _reasons_to_leave_alone(pod: Pod, wish: str | None) -> Iterator[str]:
    if wish == "off":
        yield f'annotation {START}: "off"'
    if pod.spec.host_network:
        yield "hostNetwork: Istio gives it no sidecar"
    if MIRROR in pod.annotations:
        yield "the pod mirrors a static pod"
    # istio inject.go injectRequired: the label, if there is one, beats the annotation.
    if pod.labels.get(INJECT, pod.annotations.get(INJECT)) == "false":
        source = "label" if INJECT in pod.labels else "annotation"
        yield f'{source} {INJECT}: "false"'
    if INJECTED in pod.annotations:
        yield "the sidecar is already injected"
    if pod.metadata is NO_METADATA:
        yield "the object has no metadata"


def _native_is_due(pod: Pod, capability: Capability) -> bool:
    """Native is for pods that end, and where the author does not rule it out."""
    return (
        capability is Capability.NATIVE
        and pod.restart_policy != "Always"
        and pod.annotations.get(NATIVE_SIDECAR, "true") == "true"
    )


def _native(pod: Pod) -> Plan:
    if (value := pod.annotations.get(NATIVE_SIDECAR)) is not None:
        return Plan(ops=(), reason=f'annotation {NATIVE_SIDECAR}: "{value}" is already there')
    return Plan(ops=(_annotate(pod, NATIVE_SIDECAR, "true"),), reason="added native sidecar")


def _hold(pod: Pod) -> Plan:
    merge = proxyconfig.hold(pod.annotations.get(proxyconfig.ANNOTATION))
    warnings = (merge.warning,) if merge.warning else ()
    if merge.text is None:
        return Plan(ops=(), reason=merge.reason, warnings=warnings)
    op = _annotate(pod, proxyconfig.ANNOTATION, merge.text)
    return Plan(ops=(op,), reason=merge.reason, warnings=warnings)


def _annotate(pod: Pod, key: str, value: str) -> patch.Op:
    """Add or replace one annotation; the map is made where it is absent or null."""
    if pod.metadata.annotations is None:
        return patch.Add(patch.pointer("metadata", "annotations"), {key: value})
    return patch.Add(patch.pointer("metadata", "annotations", key), value)
