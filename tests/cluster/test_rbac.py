"""What the workload's ServiceAccount may do, by the real authorizer and the charm's own role."""

from __future__ import annotations

from pathlib import Path

import lab
import lightkube
import pytest
from lab.served import Programs
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
    # Dry runs: `test_policies.py`.
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


LEASES, CONFIGMAPS = ("leases", "coordination.k8s.io"), ("configmaps", "")


@pytest.fixture(scope="module")
def named(programs: Programs) -> Workload:
    """A workload that is deployed, and knows of two revisions of Istio."""
    return programs("named", start=False, revisions=("default", "canary"))


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
    ("verb", "what", "where", "may"),
    [
        ("create", LEASES, "named/", True),
        ("get", LEASES, "named/named", True),
        ("update", LEASES, "named/named", True),
        ("delete", LEASES, "named/named", False),
        ("get", LEASES, "named/another", False),
        ("update", LEASES, "named/another", False),
        ("update", LEASES, "kube-system/named", False),
        ("create", LEASES, "kube-system/", False),
        # The injection policies of Istio's revisions.
        ("get", CONFIGMAPS, "istio-system/istio-sidecar-injector", True),
        ("get", CONFIGMAPS, "istio-system/istio-sidecar-injector-canary", True),
        ("get", CONFIGMAPS, "istio-system/istio-sidecar-injector-other", False),
        ("get", CONFIGMAPS, "istio-system/istio", False),
    ],
)
def test_of_leases_and_configmaps_the_workload_may_use_its_own_only(
    client: lightkube.Client, named: Workload,
    *, verb: str, what: tuple[str, str], where: str, may: bool,
):  # fmt: skip
    namespace, _, name = where.partition("/")

    assert allowed(client, named, verb, *what, where=(namespace, name)) is may


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
