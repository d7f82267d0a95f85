"""The kinds of object that the application owns in the cluster. Data only."""

from __future__ import annotations

from typing import Any, Final

import httpx2
from lightkube.generic_resource import create_namespaced_resource  # pyright: ignore[reportUnknownVariableType]
from lightkube.resources.admissionregistration_v1 import (
    MutatingAdmissionPolicy,
    MutatingAdmissionPolicyBinding,
    MutatingWebhookConfiguration,
    ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
)
from lightkube.resources.core_v1 import ServiceAccount
from lightkube.resources.rbac_authorization_v1 import (
    ClusterRole,
    ClusterRoleBinding,
    Role,
    RoleBinding,
)

PeerAuthentication: Final = create_namespaced_resource(
    "security.istio.io", "v1", "PeerAuthentication", "peerauthentications"
)

# Kinds that the application owns, as a ClusterRole names them. The webhook is deleted first: with
# `Fail` and no workload behind it, it would refuse pods while the rest is taken down. What narrows
# the workload's account goes after the roles that it narrows.
OWNED: Final[dict[type[Any], tuple[str, str]]] = {
    MutatingWebhookConfiguration: ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    MutatingAdmissionPolicyBinding: (
        "admissionregistration.k8s.io",
        "mutatingadmissionpolicybindings",
    ),
    MutatingAdmissionPolicy: ("admissionregistration.k8s.io", "mutatingadmissionpolicies"),
    ClusterRoleBinding: ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ClusterRole: ("rbac.authorization.k8s.io", "clusterroles"),
    RoleBinding: ("rbac.authorization.k8s.io", "rolebindings"),
    Role: ("rbac.authorization.k8s.io", "roles"),
    ValidatingAdmissionPolicyBinding: (
        "admissionregistration.k8s.io",
        "validatingadmissionpolicybindings",
    ),
    ValidatingAdmissionPolicy: ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ServiceAccount: ("", "serviceaccounts"),
    PeerAuthentication: ("security.istio.io", "peerauthentications"),
}
NAMESPACED: Final = frozenset({RoleBinding, Role, ServiceAccount, PeerAuthentication})
# What not every cluster serves, and what brings it.
NOT_EVERYWHERE: Final[dict[type[Any], str]] = {
    ValidatingAdmissionPolicyBinding: "Kubernetes 1.30",
    ValidatingAdmissionPolicy: "Kubernetes 1.30",
    MutatingAdmissionPolicyBinding: "Kubernetes 1.36",
    MutatingAdmissionPolicy: "Kubernetes 1.36",
    PeerAuthentication: "Istio",
}


def is_not_served(kind: type[Any], error: httpx2.HTTPStatusError) -> bool:
    """Tell whether the API server does not know `kind`, one that not every cluster has."""
    return kind in NOT_EVERYWHERE and error.response.status_code == 404
