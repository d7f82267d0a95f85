"""Stand-in for the repair of istio-cni, for pods that were started before its plugin was. Pure.

With `pilot.cni.enabled` the init container `istio-validation` fails where the pod's traffic is not
redirected yet, and the repair deletes or labels the pod, as the admin chose (istio cni/pkg/repair
repaircontroller.go). It only knows containers that ended before: no pod with restartPolicy Never.
Its third way, to redirect the traffic of the running pod, leaves no trace in the pod.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

from lab.istio.sidecar import STATUS_ANNOTATION, VALIDATION

Repair = Literal["delete", "label"]
NOT_REDIRECTED = 126
LABEL = "cni.istio.io/uninitialized"


def is_broken(pod: dict[str, Any]) -> bool:
    """Whether the repair is for this pod, an object as the API server has it."""
    if STATUS_ANNOTATION not in (pod["metadata"].get("annotations") or {}):
        return False
    for status in pod.get("status", {}).get("initContainerStatuses") or ():
        if status["name"] == VALIDATION:
            last = status.get("lastState", {}).get("terminated") or {}
            now = status.get("state", {}).get("terminated") or {}
            return last.get("exitCode") == NOT_REDIRECTED and now.get("exitCode") != 0
    return False


def repaired(pod: dict[str, Any], how: Repair) -> dict[str, Any]:
    """The pod after its repair, which is on its way out if it was deleted."""
    pod = copy.deepcopy(pod)
    if not is_broken(pod):
        return pod
    if how == "delete":
        pod["metadata"]["deletionTimestamp"] = "2026-11-21T08:17:00Z"
    else:
        pod["metadata"]["labels"] = {**(pod["metadata"].get("labels") or {}), LABEL: "true"}
    return pod
