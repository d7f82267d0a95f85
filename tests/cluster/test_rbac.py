"""What the workload's ServiceAccount may do, by the real authorizer and the charm's own role."""

from __future__ import annotations

import lightkube
import pytest
from lab.workload import Workload
from lightkube import KubeConfig
from lightkube.models.authorization_v1 import (
    ResourceAttributes,
    SelfSubjectRulesReviewSpec,
    SubjectAccessReviewSpec,
)
from lightkube.resources.authorization_v1 import SelfSubjectRulesReview, SubjectAccessReview

import manifests

# All that it is for. A line more here is a decision, not a repair.
GRANTED = {
    ("", "pods", "get list watch"),
    ("", "pods/exec", "create get"),
    ("", "namespaces", "get list watch"),
    ("events.k8s.io", "events", "create"),
}
# What every account may do: ask who it is and what it may (system:basic-user).
ANYBODY = ("authentication.k8s.io", "authorization.k8s.io")

DANGEROUS = [
    ("get", "secrets", ""),
    ("list", "secrets", ""),
    ("create", "pods", ""),
    ("update", "pods", ""),
    ("patch", "pods", ""),
    ("delete", "pods", ""),
    ("patch", "pods/status", ""),
    ("create", "pods/eviction", ""),
    ("create", "pods/attach", ""),
    ("patch", "pods/ephemeralcontainers", ""),
    ("get", "pods/log", ""),
    ("get", "configmaps", ""),
    ("patch", "namespaces", ""),
    ("create", "serviceaccounts/token", ""),
    ("impersonate", "users", ""),
    ("get", "nodes/proxy", ""),
    ("patch", "deployments", "apps"),
    ("delete", "jobs", "batch"),
    ("update", "mutatingwebhookconfigurations", "admissionregistration.k8s.io"),
    ("create", "clusterrolebindings", "rbac.authorization.k8s.io"),
    ("escalate", "clusterroles", "rbac.authorization.k8s.io"),
    ("bind", "clusterroles", "rbac.authorization.k8s.io"),
]


def allowed(
    client: lightkube.Client, workload: Workload, verb: str, resource: str, group: str
) -> bool:
    account = manifests.service_account(workload.name)
    name, _, subresource = resource.partition("/")
    review = SubjectAccessReview(
        spec=SubjectAccessReviewSpec(
            user=f"system:serviceaccount:{workload.model}:{account}",
            groups=[
                "system:serviceaccounts",
                f"system:serviceaccounts:{workload.model}",
                "system:authenticated",
            ],
            resourceAttributes=ResourceAttributes(
                verb=verb, group=group, resource=name, subresource=subresource or None
            ),
        )
    )
    status = client.create(review).status
    return status is not None and status.allowed


@pytest.mark.parametrize(
    ("verb", "resource", "group"),
    [
        ("list", "pods", ""),
        ("watch", "pods", ""),
        ("get", "pods", ""),
        ("list", "namespaces", ""),
        ("watch", "namespaces", ""),
        ("create", "pods/exec", ""),
        ("get", "pods/exec", ""),
        ("create", "events", "events.k8s.io"),
    ],
)
def test_the_workload_may_do_its_work_in_every_namespace(
    client: lightkube.Client, workload: Workload, verb: str, resource: str, group: str
):
    """T24: exec over WebSocket wants `get` up to Kubernetes 1.34 and `create` since 1.35."""
    assert allowed(client, workload, verb, resource, group)


@pytest.mark.parametrize(("verb", "resource", "group"), DANGEROUS)
def test_the_workload_may_do_no_harm(
    client: lightkube.Client, workload: Workload, verb: str, resource: str, group: str
):
    assert not allowed(client, workload, verb, resource, group)


def test_the_workload_may_do_what_is_listed_here_and_nothing_else(workload: Workload):
    config = KubeConfig.from_file(workload.kubeconfig)
    with lightkube.Client(config, trust_env=False) as account:
        review = account.create(
            SelfSubjectRulesReview(spec=SelfSubjectRulesReviewSpec(namespace=workload.model))
        )

    assert review.status is not None
    granted = {
        (group, resource, " ".join(sorted(rule.verbs)))
        for rule in review.status.resourceRules
        for group in rule.apiGroups or []
        for resource in rule.resources or []
        if group not in ANYBODY
    }
    assert granted == GRANTED
