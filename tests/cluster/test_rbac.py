"""What the workload's ServiceAccount may do, by the real authorizer and the charm's own role."""

from __future__ import annotations

from pathlib import Path

import lab
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
ALWAYS = {
    ("", "pods", "get list watch"),
    # Dry runs: `test_repairing_policy.py`.
    ("", "pods", "create"),
    ("", "namespaces", "get list watch"),
    # Versions of kubelets, which below 1.32 are not known otherwise: `core/native.py`.
    ("", "nodes", "list"),
    # By name: see below.
    ("", "configmaps", "get"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "list watch"),
    ("discovery.k8s.io", "endpointslices", "list watch"),
    ("events.k8s.io", "events", "create"),
    ("coordination.k8s.io", "leases", "create"),
    ("coordination.k8s.io", "leases", "get update"),
}
ACTING = {
    ("", "pods/exec", "create get"),
    ("", "pods/portforward", "create get"),
}
DELETING = {("", "pods", "delete")}
REPAIRING = {("", "pods/eviction", "create"), ("batch", "jobs", "get")}
SUSPENDING = {("batch", "jobs", "get list patch")} | {
    ("kubeflow.org", f"{kind}jobs", "get list patch")
    for kind in ("jax", "mpi", "paddle", "pytorch", "tf", "xgboost")
}
OPTIONS = ("quit", "dead-proxy", "race-policy", "restart-jobs")
GRANTED = {
    ("on", "report", "report", False): ALWAYS | ACTING,
    ("on", "delete", "off", False): ALWAYS | ACTING | DELETING,
    ("dry-run", "report", "report", False): ALWAYS,
    ("dry-run", "delete", "report", False): ALWAYS,
    ("off", "report", "report", False): ALWAYS,
    ("off", "delete", "report", False): ALWAYS,
    ("off", "report", "restart", False): ALWAYS | REPAIRING,
    ("on", "report", "restart", True): ALWAYS | ACTING | REPAIRING | SUSPENDING,
}
# What every account may do: ask who it is and what it may (system:basic-user).
ANYBODY = ("authentication.k8s.io", "authorization.k8s.io")

DANGEROUS = [
    ("get", "secrets", ""),
    ("list", "secrets", ""),
    ("update", "pods", ""),
    ("patch", "pods", ""),
    ("delete", "pods", ""),
    ("patch", "pods/status", ""),
    ("create", "pods/eviction", ""),
    ("create", "pods/attach", ""),
    ("patch", "pods/ephemeralcontainers", ""),
    ("get", "pods/log", ""),
    ("get", "configmaps", ""),
    ("list", "configmaps", ""),
    ("get", "services", ""),
    ("get", "jobs", "batch"),
    ("patch", "jobs", "batch"),
    ("patch", "tfjobs", "kubeflow.org"),
    ("patch", "namespaces", ""),
    ("create", "serviceaccounts/token", ""),
    ("get", "leases", "coordination.k8s.io"),
    ("create", "leases", "coordination.k8s.io"),
    ("update", "validatingadmissionpolicies", "admissionregistration.k8s.io"),
    ("delete", "validatingadmissionpolicybindings", "admissionregistration.k8s.io"),
    ("impersonate", "users", ""),
    ("get", "nodes/proxy", ""),
    ("get", "nodes", ""),
    ("patch", "nodes", ""),
    ("patch", "deployments", "apps"),
    ("delete", "jobs", "batch"),
    ("update", "mutatingwebhookconfigurations", "admissionregistration.k8s.io"),
    ("create", "clusterrolebindings", "rbac.authorization.k8s.io"),
    ("escalate", "clusterroles", "rbac.authorization.k8s.io"),
    ("bind", "clusterroles", "rbac.authorization.k8s.io"),
]


def allowed(
    client: lightkube.Client,
    workload: Workload,
    verb: str,
    resource: str,
    group: str,
    *,
    where: tuple[str | None, str | None] = (None, None),
) -> bool:
    """Whether it may; `where` is namespace and name, in every namespace and of any name if None."""
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
                verb=verb,
                group=group,
                resource=name,
                subresource=subresource or None,
                namespace=where[0],
                name=where[1],
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
        ("list", "mutatingwebhookconfigurations", "admissionregistration.k8s.io"),
        ("watch", "mutatingwebhookconfigurations", "admissionregistration.k8s.io"),
        ("create", "pods/exec", ""),
        ("get", "pods/exec", ""),
        ("create", "pods/portforward", ""),
        ("get", "pods/portforward", ""),
        ("create", "events", "events.k8s.io"),
        ("list", "endpointslices", "discovery.k8s.io"),
        ("watch", "endpointslices", "discovery.k8s.io"),
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


@pytest.mark.parametrize(
    ("verb", "lease", "may"),
    [
        ("create", "istio-aux/", True),
        ("get", "istio-aux/istio-aux", True),
        ("update", "istio-aux/istio-aux", True),
        ("delete", "istio-aux/istio-aux", False),
        ("get", "istio-aux/another", False),
        ("update", "istio-aux/another", False),
        ("update", "kube-system/istio-aux", False),
        ("create", "kube-system/", False),
    ],
)
def test_the_workload_may_hold_the_lease_of_its_own_application_only(
    client: lightkube.Client, workload: Workload, verb: str, lease: str, may: bool
):
    namespace, _, name = lease.partition("/")
    group = "coordination.k8s.io"

    assert allowed(client, workload, verb, "leases", group, where=(namespace, name)) is may


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("istio-sidecar-injector", True),
        ("istio-sidecar-injector-canary", True),
        ("istio-sidecar-injector-other", False),
        ("istio", False),
    ],
)
def test_of_all_configmaps_the_workload_may_read_the_injection_policies(
    cluster: lab.Cluster, client: lightkube.Client, tmp_path: Path, name: str, may: bool
):
    deployed = Workload(cluster, tmp_path, model="revised", revisions=("default", "canary"))
    deployed.deploy()

    where = ("istio-system", name)
    assert allowed(client, deployed, "get", "configmaps", "", where=where) is may


@pytest.mark.parametrize("options", GRANTED, ids=str)
def test_the_workload_may_do_what_its_options_need_and_nothing_else(
    cluster: lab.Cluster, tmp_path: Path, options: tuple[str, str, str, bool]
):
    deployed = Workload(
        cluster,
        tmp_path,
        name="-".join(map(str, options)).lower(),
        model="granted",
        more=dict(zip(OPTIONS, options, strict=True)),
    )
    deployed.deploy()

    config = KubeConfig.from_file(deployed.kubeconfig)
    with lightkube.Client(config, trust_env=False) as account:
        review = account.create(
            SelfSubjectRulesReview(spec=SelfSubjectRulesReviewSpec(namespace=deployed.model))
        )

    assert review.status is not None
    granted = {
        (group, resource, " ".join(sorted(rule.verbs)))
        for rule in review.status.resourceRules
        for group in rule.apiGroups or []
        for resource in rule.resources or []
        if group not in ANYBODY
    }
    assert granted == GRANTED[options]
