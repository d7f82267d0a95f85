"""The MutatingWebhookConfigurations that `istioctl install` leaves behind, as documents. Pure.

The default revision's own configuration is deactivated and a tag's does the work; both carry the
same four webhooks. Any other revision has one configuration, with two of them, and so has any other
tag, of whichever revision (istio-discovery templates/revision-tags-mwc.yaml).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

VERSION = "1.28.10"
DEACTIVATED = {"matchLabels": {"istio.io/deactivated": "never-match"}}
# istio webhookpatch.go: istiod writes its CA into the webhooks whose name ends so.
SUFFIX = "sidecar-injector.istio.io"
DEFAULT = "default"


def service(revision: str) -> str:
    """The name of the Service of a revision's istiod."""
    return "istiod" if revision == DEFAULT else f"istiod-{revision}"


def config_map(namespace: str, revision: str) -> dict[str, Any]:
    """The ConfigMap with istiod's injection policy, which is Istio's own default."""
    suffix = "" if revision == DEFAULT else f"-{revision}"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"istio-sidecar-injector{suffix}",
            "namespace": namespace,
            "labels": {"istio.io/rev": revision, "app.kubernetes.io/name": "istiod"},
        },
        # Of the real one's text only the templates are missing.
        "data": {
            "config": "defaultTemplates: [sidecar]\n"
            "policy: enabled\n"
            "alwaysInjectSelector:\n  []\n"
            "neverInjectSelector:\n  []\n"
            "injectedAnnotations:\n"
        },
    }


def configurations(
    namespace: str,
    revision: str = DEFAULT,
    name: str | None = None,
    tags: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """The configurations, without a caBundle: istiod writes that when it is up.

    Args:
        namespace: where istiod is. One that is not istio-system becomes part of the names.
        revision: which Istio it is, of several.
        name: of the one that does the work; vendors choose others than Istio.
        tags: further names of the revision, by which namespaces and pods may ask for it.
    """
    suffix = "" if namespace == "istio-system" else f"-{namespace}"
    return [*_of_revision(namespace, revision, name), *(
        _tagged(f"istio-revision-tag-{tag}{suffix}", namespace, revision, tag) for tag in tags
    )]  # fmt: skip


def _of_revision(namespace: str, revision: str, name: str | None) -> list[dict[str, Any]]:
    suffix = "" if namespace == "istio-system" else f"-{namespace}"
    if revision != DEFAULT:
        name = name or f"istio-sidecar-injector-{revision}{suffix}"
        return [_configuration(name, namespace, revision)]
    active = _tagged(name or f"istio-revision-tag-default{suffix}", namespace, revision, DEFAULT)
    inactive = _configuration(f"istio-sidecar-injector{suffix}", namespace, revision)
    for webhook in inactive["webhooks"]:
        webhook["namespaceSelector"] = copy.deepcopy(DEACTIVATED)
        webhook["objectSelector"] = copy.deepcopy(DEACTIVATED)
    return [active, inactive]


def _tagged(name: str, namespace: str, revision: str, tag: str) -> dict[str, Any]:
    found = _configuration(name, namespace, revision, tag)
    found["metadata"]["labels"] |= {
        "istio.io/tag": tag,
        "install.operator.istio.io/owning-resource-not-pruned": "true",
    }
    return found


def _configuration(
    name: str, namespace: str, revision: str, asked_as: str | None = None
) -> dict[str, Any]:
    asked_as = asked_as or revision
    not_opted_out = _expression("sidecar.istio.io/inject", "NotIn", "false")
    of_revision = _expression("istio.io/rev", "In", asked_as)
    unlabelled = [
        _expression("istio.io/rev", "DoesNotExist"),
        _expression("istio-injection", "DoesNotExist"),
    ]
    selectors = {
        "rev.namespace": ([of_revision, unlabelled[1]], [not_opted_out]),
        "rev.object": (unlabelled, [not_opted_out, of_revision]),
    }
    if asked_as == DEFAULT:
        asked = _expression("sidecar.istio.io/inject", "In", "true")
        selectors |= {
            "namespace": (
                [_expression("istio-injection", "In", "enabled")],
                [not_opted_out],
            ),
            "object": (unlabelled[::-1], [asked, unlabelled[0]]),
        }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name, "labels": _labels(namespace, revision)},
        "webhooks": [
            _webhook(which, service(revision), namespace, *selected)
            for which, selected in selectors.items()
        ],
    }


def _webhook(
    name: str, service: str, namespace: str, on_namespace: list[Any], on_object: list[Any]
) -> dict[str, Any]:
    return {
        "name": f"{name}.{SUFFIX}",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {
            "service": {"name": service, "namespace": namespace, "path": "/inject", "port": 443}
        },
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {"matchExpressions": copy.deepcopy(on_namespace)},
        "objectSelector": {"matchExpressions": copy.deepcopy(on_object)},
        "reinvocationPolicy": "Never",
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
                "scope": "*",
            }
        ],
        "sideEffects": "None",
        "timeoutSeconds": 10,
    }


def _expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": [*values]} if values else {})}


def _labels(namespace: str, revision: str) -> dict[str, str]:
    return {
        "app": "sidecar-injector",
        "app.kubernetes.io/instance": "istio",
        "app.kubernetes.io/managed-by": "Helm",
        "app.kubernetes.io/name": "istiod",
        "app.kubernetes.io/part-of": "istio",
        "app.kubernetes.io/version": "1.0.0",
        "helm.sh/chart": "istiod-1.0.0",
        "install.operator.istio.io/owning-resource": "lab",
        "install.operator.istio.io/owning-resource-namespace": namespace,
        "istio.io/rev": revision,
        "operator.istio.io/component": "Pilot",
        "operator.istio.io/managed": "Reconcile",
        "operator.istio.io/version": VERSION,
        "release": "istio",
    }
