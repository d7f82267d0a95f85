"""Whether a pod came to start as admission asked for it.

Only that comparison may live here: what we wrote on the pod against what Istio made of it.
"""

from __future__ import annotations

from istio_aux.core import injected
from istio_aux.core.pod import PROXY, Pod
from istio_aux.core.start import STARTED_WITH


def told(pod: Pod) -> str | None:
    """Say how the pod was started, for a person; None for a pod that admission did not change."""
    match pod.annotations.get(STARTED_WITH):
        case "native" as asked:
            why_not = None if injected.is_native(pod) else _classic(pod)
        case "hold" as asked:
            why_not = _without_hold(pod)
        case _:
            return None
    return f"asked for {asked}, but {why_not}" if why_not else asked


def _classic(pod: Pod) -> str:
    if any(container.name == PROXY for container in pod.containers):
        return "the sidecar is a classic one"
    return f"no container is called {PROXY}"


def _without_hold(pod: Pod) -> str | None:
    """Why nothing holds the payload back (istio reorderPod, injection-template.yaml), if so."""
    if injected.is_native(pod):
        return "the sidecar is a native one"
    holding = injected.hold(pod)
    if not holding.effective:
        return holding.reason
    return f"{PROXY} does not hold the payload back" if holding.ops else None
