"""The part of Istio that validates its own kinds: a CRD, two webhook configurations, the answer.

Pure. Of all of Istio's kinds there is PeerAuthentication only, and of its rules one. As with
Istio, the configurations are installed with `failurePolicy: Ignore`, and istiod turns it to `Fail`
when it is up (istio pkg/webhooks/validation/controller): from then on, nobody can write an object
of these kinds while istiod is away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.istio import webhooks

PATH = "/validate"

_MODES = ["UNSET", "DISABLE", "PERMISSIVE", "STRICT"]
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


_MUTUAL_TLS = _object(mode={"type": "string", "enum": _MODES})
_SPEC = _object(
    selector=_object(matchLabels=_TEXTS),
    mtls=_MUTUAL_TLS,
    portLevelMtls={"type": "object", "additionalProperties": _MUTUAL_TLS},
)
_VERSION = {"name": "v1", "schema": {"openAPIV3Schema": _object(spec=_SPEC)}}
PEER_AUTHENTICATION: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "peerauthentications.security.istio.io"},
    "spec": {
        "group": "security.istio.io",
        "scope": "Namespaced",
        "names": {"kind": "PeerAuthentication", "plural": "peerauthentications"},
        "versions": [{**_VERSION, "served": True, "storage": True}],
    },
}


def configurations(namespace: str, revision: str) -> list[dict[str, Any]]:
    """The ValidatingWebhookConfigurations, without a caBundle (istio-discovery and base charts).

    The second is the default revision's own, for objects that name no revision.
    """
    suffix = "" if revision == webhooks.DEFAULT else f"-{revision}"
    label = "istio.io/rev"
    named = {"key": label, "operator": "In", "values": [revision]}
    found = [
        _configuration(
            f"istio-validator{suffix}-{namespace}", "rev.validation.istio.io",
            namespace, revision, named,
        )
    ]  # fmt: skip
    if revision == webhooks.DEFAULT:
        unnamed = {"key": label, "operator": "DoesNotExist"}
        found.append(
            _configuration(
                "istiod-default-validator", "validation.istio.io", namespace, revision, unnamed
            )
        )
    return found


def _configuration(
    name: str, webhook: str, namespace: str, revision: str, selected: Mapping[str, Any]
) -> dict[str, Any]:
    service = {"name": webhooks.service(revision), "namespace": namespace, "path": PATH}
    groups = ["security", "networking", "telemetry", "extensions"]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {
            "name": name,
            "labels": {"app": "istiod", "istio": "istiod", "istio.io/rev": revision},
        },
        "webhooks": [
            {
                "name": webhook,
                "admissionReviewVersions": ["v1"],
                "clientConfig": {"service": {**service, "port": 443}},
                "failurePolicy": "Ignore",
                "objectSelector": {"matchExpressions": [dict(selected)]},
                "rules": [
                    {
                        "apiGroups": [f"{group}.istio.io" for group in groups],
                        "apiVersions": ["*"],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": ["*"],
                        "scope": "*",
                    }
                ],
                "sideEffects": "None",
                "timeoutSeconds": 10,
            }
        ],
    }


def answer(review: Mapping[str, Any]) -> dict[str, Any]:
    """The AdmissionReview response to a request: whether the object makes sense to Istio."""
    request = review["request"]
    spec = (request.get("object") or {}).get("spec") or {}
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    # istio pkg/config/validation ValidatePeerAuthentication
    if spec.get("portLevelMtls") and not spec.get("selector", {}).get("matchLabels"):
        message = "port level mTLS needs a workload selector"
        response |= {"allowed": False, "status": {"metadata": {}, "message": message}}
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "response": response,
    }
