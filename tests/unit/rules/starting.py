"""Plans of `start`, and the pods that they make when a library that is not ours applies them."""

from __future__ import annotations

from typing import Any

import jsonpatch
import msgspec
from istio_aux.model import pod as pods
from istio_aux.model.policy import StartPolicy
from istio_aux.start import patch
from istio_aux.start.plan import Plan, plan

HOLD = "holdApplicationUntilProxyStarts: true"
UNKNOWN = StartPolicy()
"""`start-mode: auto`, while the capability is unknown."""


def planned(found: dict[str, Any], how: StartPolicy = UNKNOWN) -> Plan:
    """The plan for a pod as JSON."""
    return plan(pods.decode(msgspec.json.encode(found)), how)


def patched(found: dict[str, Any], how: StartPolicy = UNKNOWN) -> dict[str, Any]:
    """The pod after the plan."""
    return jsonpatch.apply_patch(found, patch.encode(planned(found, how).ops).decode())


def reviewed(**fields: Any) -> dict[str, Any]:
    """A review as the API server sends it at the creation of a pod."""
    request = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "namespace": "training",
        "operation": "CREATE",
    }
    kind = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}
    return {**kind, "request": {**request, **fields}}


def annotations_of(found: dict[str, Any]) -> dict[str, str]:
    """The annotations, none if there is no map of them."""
    return found["metadata"].get("annotations") or {}
