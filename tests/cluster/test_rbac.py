"""What the workload's ServiceAccount may do, by the real authorizer and the charm's own role.

The workload uses every right that it is granted, by the API server's audit log. What it uses
without a right, it is refused: then it does not do what the other tests of this tier wait for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import lab.istio
import lightkube
import pytest
from lab import creation, meshed, scene
from lab.fixtures import make_namespace
from lab.kubelet import ScriptedKubelet
from lab.scene import Kind
from lab.workload import Programs, Workload, stage
from lightkube import KubeConfig
from lightkube.core.client import LabelValue
from lightkube.models.authorization_v1 import (
    ResourceAttributes,
    SelfSubjectAccessReviewSpec,
    SelfSubjectRulesReviewSpec,
)
from lightkube.resources.authorization_v1 import SelfSubjectAccessReview, SelfSubjectRulesReview
from lightkube.resources.core_v1 import Namespace, Pod

import manifests

OPTIONS = {"dead-proxy": "delete", "race-policy": "restart"}
# All that it is for, with these options. A line more here is a decision, not a repair. What each
# option grants is in `tests/unit/charm/test_manifests.py`.
GRANTED = {
    ("", "pods", "get list watch"),
    # Dry runs: `test_policies.py`.
    ("", "pods", "create"),
    ("", "pods", "delete"),
    ("", "pods/eviction", "create"),
    ("", "pods/exec", "create get"),
    ("", "pods/portforward", "create get"),
    ("", "namespaces", "list watch"),
    ("", "limitranges", "list watch"),
    ("", "resourcequotas", "list watch"),
    # Versions of kubelets, which below 1.32 are not known otherwise: `injector/probe.py`. And of a
    # single one, where a container has a restart policy of its own: `quit/controller.py`.
    ("", "nodes", "get list"),
    # By name: see below.
    ("", "configmaps", "get"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "list watch"),
    ("discovery.k8s.io", "endpointslices", "list watch"),
    ("events.k8s.io", "events", "create"),
    ("batch", "jobs", "get"),
}
# What it may do in its own namespace only.
OWN = {
    ("coordination.k8s.io", "leases", "create"),
    ("coordination.k8s.io", "leases", "get update"),
}
# What every account may do: ask who it is and what it may (system:basic-user), and since Kubernetes
# 1.37 read the cluster's public authorities (system:cluster-trust-bundle-discovery).
ANYBODY = ("authentication.k8s.io", "authorization.k8s.io")
AUTHORITIES = ("certificates.k8s.io", "clustertrustbundles")


LEASES, CONFIGMAPS = ("leases", "coordination.k8s.io"), ("configmaps", "")


@pytest.fixture(scope="module")
def named(programs: Programs) -> Workload:
    """A workload that is deployed with every option, and knows of two revisions of Istio."""
    return programs("named", OPTIONS, start=False, revisions=("default", "canary"))


def account(workload: Workload) -> lightkube.Client:
    return lightkube.Client(KubeConfig.from_file(workload.kubeconfig), trust_env=False)


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
    named: Workload, *, verb: str, what: tuple[str, str], where: str, may: bool
):
    resource, group = what
    namespace, _, name = where.partition("/")
    attributes = ResourceAttributes(
        verb=verb, group=group, resource=resource, namespace=namespace, name=name
    )
    spec = SelfSubjectAccessReviewSpec(resourceAttributes=attributes)
    with account(named) as client:
        status = client.create(SelfSubjectAccessReview(spec=spec)).status

    assert status
    assert status.allowed is may


def test_the_workload_may_do_what_it_is_for_and_nothing_else(named: Workload) -> None:
    """Exec over WebSocket wants `get` up to Kubernetes 1.34 and `create` since 1.35."""
    assert granted(named, named.model) == GRANTED | OWN
    assert granted(named, "default") == GRANTED


def granted(workload: Workload, namespace: str) -> set[tuple[str, str, str]]:
    """All that its account may do in a namespace, by group, resource and verbs."""
    spec = SelfSubjectRulesReviewSpec(namespace=namespace)
    with account(workload) as client:
        review = client.create(SelfSubjectRulesReview(spec=spec))
    assert review.status is not None
    return {
        (group, resource, " ".join(sorted(rule.verbs)))
        for rule in review.status.resourceRules
        for group in rule.apiGroups or []
        for resource in rule.resources or []
        if group not in ANYBODY and (group, resource) != AUTHORITIES
    }


NAME = "using"

TRAINEE: dict[str, LabelValue] = {"batch.kubernetes.io/job-name": "train"}

Right = tuple[str, str]
"""Resource and verb, as in a Role."""

_FIRST_LIST = "comes with the watch where the API server streams lists: test_watch.py"
_UPGRADE = "needed beside `get` since Kubernetes 1.35; the log shows the verb of the request"
# What is granted and need not be used here, with the reason.
UNUSED: dict[Right, str] = {
    ("namespaces", "list"): _FIRST_LIST,
    ("mutatingwebhookconfigurations", "list"): _FIRST_LIST,
    ("endpointslices", "list"): _FIRST_LIST,
    ("limitranges", "list"): _FIRST_LIST,
    ("resourcequotas", "list"): _FIRST_LIST,
    ("pods/exec", "create"): _UPGRADE,
    ("pods/portforward", "create"): _UPGRADE,
    ("jobs", "get"): "only for a review that rests on what a Job counts: test_native_sidecars.py",
    ("nodes", "get"): "only for a container's own restart policy: unit/test_quit_kubelets.py",
    ("nodes", "list"): "only below Kubernetes 1.32: tests/unit/test_injector_watcher.py",
}


def in_roles(workload: Workload) -> set[Right]:
    return {
        (resource, verb)
        for role in (each.to_dict() for each in manifests.render_access(workload.values()))
        if role["kind"] in {"Role", "ClusterRole"}
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(cluster: lab.Cluster) -> set[Right]:
    """What its account has done so far."""
    user = f"system:serviceaccount:{NAME}:{NAME}-workload"
    found: set[Right] = set()
    for event in creation.audited(cluster, about=user):
        what: dict[str, Any] = event.get("objectRef", {})
        if event["user"]["username"] != user or not what:
            continue
        if event["responseStatus"]["code"] not in {401, 403}:
            parts = (what["resource"], what.get("subresource", ""))
            found.add(("/".join(filter(None, parts)), event["verb"]))
    return found


@pytest.fixture(scope="module")
def unmeshed(
    cluster: lab.Cluster, client: lightkube.Client, kubelet: ScriptedKubelet
) -> Iterator[None]:
    """A pod of a ReplicaSet that is there before Istio."""
    name = "before-istio"
    labels = {"istio-injection": "enabled"}
    make_namespace(client, name, labels)
    scene.gather(client, name, {"replicaset": Kind("ReplicaSet", 1)})
    istio = lab.istio.install(cluster, native="on request")
    yield
    istio.remove()
    client.delete(Namespace, name)


@pytest.fixture(scope="module")
def workload(programs: Programs, unmeshed: None) -> Workload:
    return programs(NAME, {"lease": f"{NAME}/{NAME}", **OPTIONS})


def test_every_right_is_used(
    cluster: lab.Cluster, client: lightkube.Client, kubelet: ScriptedKubelet, workload: Workload
) -> None:
    with stage(client, kubelet, workload) as scene:
        by_exec = scene.start("by-exec")
        elsewhere = {"status.sidecar.istio.io/port": "18020"}
        by_port = scene.start("by-port", annotations=elsewhere)
        for pod in (by_exec, by_port):
            kubelet.finish(pod, "main")
        client.create(meshed.job(meshed.pod(scene.namespace, "train")))
        (lost,) = lab.until(
            lambda: [*client.list(Pod, namespace=scene.namespace, labels=TRAINEE)],
            what="the Job's pod",
        )
        kubelet.run(lost)
        kubelet.finish(lost, meshed.PROXY, 137, reason="OOMKilled")

        def missing() -> set[Right]:
            return in_roles(workload) - used(cluster) - UNUSED.keys()

        with contextlib.suppress(TimeoutError):  # It is asserted below.
            lab.until(lambda: not missing(), what="every right", every=0.5)
    assert not missing()
    assert used(cluster) <= in_roles(workload)
    assert UNUSED.keys() <= in_roles(workload)
