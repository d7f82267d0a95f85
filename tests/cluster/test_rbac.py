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
    ("", "namespaces", "list watch"),
    # Versions of kubelets, which below 1.32 are not known otherwise: `injector/probe.py`. And of a
    # single one, where a container has a restart policy of its own: `quit/controller.py`.
    ("", "nodes", "get list"),
    # By name: see below.
    ("", "configmaps", "get"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "list watch"),
    ("discovery.k8s.io", "endpointslices", "list watch"),
    ("events.k8s.io", "events", "create"),
    ("coordination.k8s.io", "leases", "create"),
    ("coordination.k8s.io", "leases", "get update"),
}
EXECUTING = {("", "pods/exec", "create get")}
FORWARDING = {("", "pods/portforward", "create get")}
ACTING = EXECUTING | FORWARDING
DELETING = {("", "pods", "delete")}
REPAIRING = {("", "pods/eviction", "create"), ("batch", "jobs", "get")}
SUSPENDING = {
    ("batch", "jobs", "get list patch"),
    ("jobset.x-k8s.io", "jobsets", "get list patch"),
    ("trainer.kubeflow.org", "trainjobs", "get list patch"),
} | {
    ("kubeflow.org", f"{kind}jobs", "get list patch")
    for kind in ("jax", "mpi", "paddle", "pytorch", "tf", "xgboost")
}
# What it may do in its own namespace only.
OWN = {
    ("coordination.k8s.io", "leases", "create"),
    ("coordination.k8s.io", "leases", "get update"),
}
OPTIONS = ("quit", "quit-via", "dead-proxy", "race-policy", "restart-jobs")
GRANTED = {
    ("on", "auto", "report", "report", False): ALWAYS | ACTING,
    ("on", "auto", "delete", "off", False): ALWAYS | ACTING | DELETING,
    ("dry-run", "auto", "report", "report", False): ALWAYS,
    ("dry-run", "auto", "delete", "report", False): ALWAYS,
    ("off", "auto", "report", "report", False): ALWAYS,
    ("off", "auto", "delete", "report", False): ALWAYS,
    ("off", "auto", "report", "restart", False): ALWAYS | REPAIRING,
    ("on", "auto", "report", "restart", True): ALWAYS | ACTING | REPAIRING | SUSPENDING,
    ("on", "exec", "report", "report", False): ALWAYS | EXECUTING,
    ("on", "port-forward", "report", "report", False): ALWAYS | FORWARDING,
}
# What every account may do: ask who it is and what it may (system:basic-user).
ANYBODY = ("authentication.k8s.io", "authorization.k8s.io")


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
    cluster: lab.Cluster, tmp_path: Path, options: tuple[str, str, str, str, bool]
):
    """T24: exec over WebSocket wants `get` up to Kubernetes 1.34 and `create` since 1.35."""
    deployed = Workload(
        cluster,
        tmp_path,
        name="-".join(map(str, options)).lower(),
        model="granted",
        more=dict(zip(OPTIONS, options, strict=True)),
    )
    deployed.deploy()

    assert granted(deployed, deployed.model) == GRANTED[options]
    assert granted(deployed, "default") == GRANTED[options] - OWN


def granted(workload: Workload, namespace: str) -> set[tuple[str, str, str]]:
    """All that its account may do in a namespace, by group, resource and verbs."""
    config = KubeConfig.from_file(workload.kubeconfig)
    with lightkube.Client(config, trust_env=False) as account:
        review = account.create(
            SelfSubjectRulesReview(spec=SelfSubjectRulesReviewSpec(namespace=namespace))
        )
    assert review.status is not None
    return {
        (group, resource, " ".join(sorted(rule.verbs)))
        for rule in review.status.resourceRules
        for group in rule.apiGroups or []
        for resource in rule.resources or []
        if group not in ANYBODY
    }
