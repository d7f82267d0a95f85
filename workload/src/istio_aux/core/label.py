"""What to change in a pod at admission so that it asks Istio for a sidecar itself.

Only that plan may live here. Whose pods are shown to us is for the webhooks' selectors (the charm's
`injectrules.py`): they leave out our own pods and those that Juju needs. The plan is idempotent.
"""

from __future__ import annotations

from collections.abc import Iterator

from istio_aux.core import injected, patch
from istio_aux.core.pod import NO_METADATA, NewPod
from istio_aux.core.start import DATAPLANE, INJECT, MIRROR, Plan

_PATH = patch.pointer("metadata", "labels", INJECT)
_WANTED = "true"


def plan(pod: NewPod) -> Plan:
    """Plan the label of a pod that is about to be created.

    A pod that says anything of its own about a sidecar keeps its word, whatever that is: with the
    label beside it, Istio would not look at the annotation (istio inject.go injectRequired).

    Args:
        pod: the pod as the API server sends it.

    Returns:
        A plan whose operations apply to this pod without fail; it never raises.
    """
    if reason := next(_reasons_to_leave_alone(pod), None):
        return Plan(ops=(), reason=reason)
    if pod.metadata.labels is None:  # Absent or null: the map itself is to be made.
        op = patch.Add("/metadata/labels", {INJECT: _WANTED})
    else:
        op = patch.Add(_PATH, _WANTED)
    return Plan(ops=(op,), reason=f'added label {INJECT}: "{_WANTED}"')


def _reasons_to_leave_alone(pod: NewPod) -> Iterator[str]:
    for source, said in (("label", pod.labels), ("annotation", pod.annotations)):
        if INJECT in said:
            yield f'{source} {INJECT}: "{said[INJECT]}"'
    if injected.ANNOTATION in pod.annotations:
        yield "the sidecar is already injected"
    if pod.spec.host_network:
        yield "hostNetwork: Istio gives it no sidecar"
    if MIRROR in pod.annotations:
        yield "the pod mirrors a static pod"
    if pod.labels.get(DATAPLANE) == "ambient":
        yield f'label {DATAPLANE}: "ambient"'
    if pod.metadata is NO_METADATA:
        yield "the object has no metadata"
