"""What to change in a pod at admission so that its sidecar starts before its payload.

Only that plan may live here: the opt-outs, the choice between native and hold, and the operations.
The plan is idempotent: for a pod that already has what it needs it is empty.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from istio_aux.core import injected, patch, proxyconfig
from istio_aux.core.pod import NO_METADATA, NewPod, Struct
from istio_aux.core.policy import Capability, Start, StartMode

START = "istio-aux.io/start"
"""Annotation: a `StartMode` for this pod, whatever the cluster's is."""
STARTED_WITH = "istio-aux.io/started-with"
"""Annotation of ours on every pod that we changed: ``native`` or ``hold``."""
INJECT = "sidecar.istio.io/inject"
"""Label or annotation; ``"false"`` means that Istio gives the pod no sidecar."""
NATIVE_SIDECAR = "sidecar.istio.io/nativeSidecar"
"""Annotation; ``"true"`` makes Istio >=1.24 put the sidecar into the init containers."""
DATAPLANE = "istio.io/dataplane-mode"
"""Label; in an ``ambient`` mesh there are no sidecars."""
MIRROR = "kubernetes.io/config.mirror"
"""Annotation of the API's image of a static pod, which the API cannot change."""

MAX_ANNOTATIONS = 256 << 10
"""Bytes; with more the API server refuses the pod (apimachinery ValidateAnnotationsSize)."""

_PATHS = {
    key: patch.pointer("metadata", "annotations", key)
    for key in (proxyconfig.ANNOTATION, NATIVE_SIDECAR, STARTED_WITH)
}
_MODES = {mode.value: mode for mode in StartMode}


class Plan(Struct, frozen=True):
    """Operations to apply in order, why they are what they are, and what the user should know."""

    ops: tuple[patch.Op, ...]
    reason: str
    warnings: tuple[str, ...] = ()
    started_with: str | None = None
    """``native`` or ``hold``: what the operations ask for; None if for no start order."""


def plan(pod: NewPod, how: Start) -> Plan:
    """Plan the change of a pod that is about to be created.

    Args:
        pod: the pod as the API server sends it, or as its author wrote it.
        how: what the cluster's admin wants, and what cluster and Istio can do.

    Returns:
        A plan whose operations apply to this pod without fail; it never raises.
    """
    wish = pod.annotations.get(START)
    if wish is None or wish in _MODES:
        return _plan(pod, how, _MODES[wish] if wish else None)
    chosen = _plan(pod, how, None)
    warning = f'annotation {START}: "{wish}": expected auto, native, hold or off; ignored'
    return Plan(
        ops=chosen.ops,
        reason=chosen.reason,
        warnings=(warning, *chosen.warnings),
        started_with=chosen.started_with,
    )


def _plan(pod: NewPod, how: Start, wish: StartMode | None) -> Plan:
    if reason := next(_reasons_to_leave_alone(pod, wish, how.mode), None):
        return Plan(ops=(), reason=reason)
    if injected.ANNOTATION in pod.annotations:
        return _after_istio(pod)
    due = _native_is_due(pod, how, wish)
    asked = pod.annotations.get(NATIVE_SIDECAR)
    if due and asked is None:
        return _native(pod, wish)
    if asked == "true" and (due or how.capability is Capability.NATIVE):
        return Plan(ops=(), reason=f'annotation {NATIVE_SIDECAR}: "true" is already there')
    return _hold(pod, _merge(pod))


def _reasons_to_leave_alone(pod: NewPod, wish: StartMode | None, mode: StartMode) -> Iterator[str]:
    if wish is StartMode.OFF:
        yield f'annotation {START}: "off"'
    if wish is None and mode is StartMode.OFF:
        yield "start-mode: off"
    annotations, labels = pod.annotations, pod.labels
    if pod.spec.host_network:
        yield "hostNetwork: Istio gives it no sidecar"
    if MIRROR in annotations:
        yield "the pod mirrors a static pod"
    # istio inject.go injectRequired: the label, if there is one, beats the annotation.
    if labels.get(INJECT, annotations.get(INJECT)) == "false":
        source = "label" if INJECT in labels else "annotation"
        yield f'{source} {INJECT}: "false"'
    if labels.get(DATAPLANE) == "ambient":
        yield f'label {DATAPLANE}: "ambient"'
    if pod.metadata is NO_METADATA:
        yield "the object has no metadata"


def _native_is_due(pod: NewPod, how: Start, wish: StartMode | None) -> bool:
    """Native is for pods that end, unless an author asks for it for the pod at hand."""
    if wish is StartMode.NATIVE:
        return True
    mode = wish or how.mode
    possible = mode is StartMode.NATIVE or (
        mode is StartMode.AUTO and how.capability is Capability.NATIVE
    )
    return possible and pod.restart_policy != "Always"


def _hold(pod: NewPod, merge: proxyconfig.Merge) -> Plan:
    if merge.text is None:
        warnings = (merge.warning,) if merge.warning else ()
        return Plan(ops=(), reason=merge.reason, warnings=warnings)
    return _changed(pod, "hold", merge.reason, {proxyconfig.ANNOTATION: merge.text})


def _native(pod: NewPod, wish: StartMode | None) -> Plan:
    """Ask for a native sidecar, unless the author does not want the payload to wait for the proxy.

    The author's text is not changed; that Istio refuses it is told here as well.
    """
    merge = _merge(pod)
    if merge.declined and wish is not StartMode.NATIVE:
        return Plan(ops=(), reason=merge.reason)
    plan = _changed(pod, "native", "added native sidecar", {NATIVE_SIDECAR: "true"})
    if merge.refused and merge.warning:
        plan = msgspec.structs.replace(plan, warnings=(*plan.warnings, merge.warning))
    return plan


def _after_istio(pod: NewPod) -> Plan:
    """Whatever is due, only hold can still be had: Istio's webhook is not called again."""
    reason = "the sidecar is already injected"
    if injected.is_native(pod):
        reason += ", as a native one"
        if pod.annotations.get(STARTED_WITH) == "hold":
            # Ours, from before Istio was called; it would claim what has no effect.
            return _changed(pod, "native", reason, {})
        return Plan(ops=(), reason=reason)
    merge = _merge(pod)
    if not merge.holds:  # Then there is no text to add, either.
        return _hold(pod, merge)
    holding = injected.hold(pod)
    reason += f": {holding.reason}"
    if not holding.effective or (merge.text is None and not holding.ops):
        return Plan(ops=(), reason=reason)
    text = {} if merge.text is None else {proxyconfig.ANNOTATION: merge.text}
    return _changed(pod, "hold", f"{reason}; {merge.reason}", text, holding.ops)


def _merge(pod: NewPod) -> proxyconfig.Merge:
    return proxyconfig.hold(pod.annotations.get(proxyconfig.ANNOTATION))


def _changed(
    pod: NewPod,
    started_with: str,
    reason: str,
    annotations: dict[str, str],
    ops: tuple[patch.Op, ...] = (),
) -> Plan:
    """``ops`` and annotations, the one that says what was done among them."""
    annotations[STARTED_WITH] = started_with
    if (size := _size({**pod.annotations, **annotations})) > MAX_ANNOTATIONS:
        why = f"the annotations would have {size} bytes, and {MAX_ANNOTATIONS} are allowed"
        return Plan(ops=(), reason=why, warnings=(f"left alone: {why}",))
    if pod.metadata.annotations is None:  # Absent or null: the map itself is to be made.
        ops += (patch.Add("/metadata/annotations", annotations),)
    else:
        ops += tuple(patch.Add(_PATHS[key], value) for key, value in annotations.items())
    return Plan(ops=ops, reason=reason, started_with=started_with)


def _size(annotations: dict[str, str]) -> int:
    """Bytes, as the API server counts them."""
    return len("".join([*annotations, *annotations.values()]).encode())
