"""What the workload's account may create, evict and patch when RBAC would let it do anything.

As in `test_exec_policy.py`: the account is an administrator, so that it is the charm's policies
that refuse. What is allowed is a dry run here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import lab
import lightkube
import pytest
from lab import meshed
from lab.accounts import Account, administrator
from lab.fixtures import await_account
from lab.served import Programs
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import ValidatingAdmissionPolicy
from lightkube.resources.core_v1 import Pod, ServiceAccount

import manifests

MODEL = "repairing"
# Measured on 2 busy cores: a policy is in force 0.4 s after it was made.
IN_FORCE = 30.0

Definition = create_global_resource(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions"
)
XGBoostJob = create_namespaced_resource("kubeflow.org", "v1", "XGBoostJob", "xgboostjobs")
JobSet = create_namespaced_resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
Job = create_namespaced_resource("batch", "v1", "Job", "jobs")
JOBS = {
    "batch": f"/apis/batch/v1/namespaces/{MODEL}/jobs",
    "training": f"/apis/kubeflow.org/v1/namespaces/{MODEL}/xgboostjobs",
    "set": f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{MODEL}/jobsets",
}
# The operators' own have schemas of 10,000 lines, about which the policy assumes nothing.
SCHEMA = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}


def definition(group: str, version: str, kind: str) -> dict[str, Any]:
    names = {"kind": kind, "plural": f"{kind.lower()}s", "singular": kind.lower()}
    served = {"name": version, "served": True, "storage": True, "schema": SCHEMA}
    spec = {"group": group, "names": names, "scope": "Namespaced", "versions": [served]}
    return {"metadata": {"name": f"{names['plural']}.{group}"}, "spec": spec}


DEFINITIONS = (
    definition("kubeflow.org", "v1", "XGBoostJob"),
    definition("jobset.x-k8s.io", "v1alpha2", "JobSet"),
)


@pytest.fixture(scope="module")
def account(
    cluster: lab.Cluster, client: lightkube.Client, programs: Programs
) -> Iterator[Account]:
    """The workload's own, once its policies are in force."""
    deployed = programs(MODEL, {"race-policy": "restart", "restart-jobs": True}, start=False)
    await_account(client, MODEL)
    account = administrator(cluster, MODEL, manifests.service_account(deployed.name))
    lab.until(
        lambda: account.create(nobody("kube-system"), dryRun="All").startswith("403: "),
        timeout=IN_FORCE,
        what="the policy to be in force",
    )
    yield account
    account.close()


@pytest.fixture(scope="module")
def pod(client: lightkube.Client, account: Account) -> Pod:
    """A pod without a sidecar."""
    return client.create(meshed.pod(MODEL, "unmeshed", sidecar=None))


def nobody(namespace: str) -> Pod:
    """A pod that its namespace may refuse for other reasons, but not as forbidden."""
    return meshed.nameless(namespace, sidecar=None)


def test_a_pod_is_created_as_a_dry_run_only(account: Account, client: lightkube.Client, pod: Pod):
    refusal = account.create(meshed.pod(MODEL, "real", sidecar=None))

    assert refusal.startswith("403: ")
    assert "creates pods as a dry run only" in refusal
    assert account.create(meshed.pod(MODEL, "rehearsed", sidecar=None), dryRun="All") == ""
    assert [p.metadata.name for p in client.list(Pod, namespace=MODEL) if p.metadata] == [
        "unmeshed"
    ]


@pytest.mark.parametrize("namespace", ["kube-system", "kube-public", "kube-node-lease"])
def test_nothing_is_created_or_evicted_where_istio_injects_nothing(
    account: Account, namespace: str
):
    pod = meshed.pod(namespace, "none")
    assert pod.metadata
    pod.metadata.uid, pod.metadata.resourceVersion = "1", "1"

    for refusal in (
        account.create(nobody(namespace), dryRun="All"),
        account.evict(pod, "uid", "resourceVersion"),
    ):
        assert refusal.startswith("403: ")
        assert "creates and evicts nothing in namespaces that Istio ignores" in refusal


def test_a_pod_is_evicted_as_it_was_seen_only(account: Account, pod: Pod):
    assert account.evict(pod, "uid", "resourceVersion") == ""
    for preconditions in ((), ("uid",), ("resourceVersion",)):
        refusal = account.evict(pod, *preconditions)
        assert refusal.startswith("403: ")
        assert "evicts with the preconditions uid and resourceVersion only" in refusal


@pytest.fixture(scope="module")
def jobs(client: lightkube.Client, account: Account) -> Iterator[dict[str, dict[str, str]]]:
    """Jobs of each kind: one that runs, one that we suspended, one that was suspended before."""
    for each in DEFINITIONS:
        client.apply(Definition.from_dict(each), field_manager="lab")
    ours, theirs = {manifests.SUSPENDED: "sidecar"}, {"team": "a"}
    made = {
        "running": (theirs, {}),
        "ours": (theirs | ours, {"suspend": True}),
        "resumed": (theirs | ours, {"suspend": False}),
        "suspended": (theirs, {"suspend": True}),
    }
    for name, (marks, suspend) in made.items():
        metadata = {"name": name, "namespace": MODEL, "annotations": marks, "labels": marks}
        policy = {"cleanPodPolicy": "None", **suspend}
        training = {"runPolicy": policy, "xgbReplicaSpecs": {"Worker": {"replicas": 1}}}
        template = meshed.pod(MODEL, "none", sidecar=None).to_dict()["spec"]
        # It makes no pod, and some of the tests count pods.
        batch = {"parallelism": 0, "template": {"spec": template}, **suspend}
        client.create(Job.from_dict({"metadata": metadata, "spec": batch}))
        jobs = [{"name": "node", "template": {"spec": batch}}]
        specs = {XGBoostJob: training, JobSet: {"replicatedJobs": jobs, **suspend}}
        for resource, spec in specs.items():
            lab.until(
                lambda resource=resource, metadata=metadata, spec=spec: client.create(
                    resource.from_dict({"metadata": metadata, "spec": spec})
                ),
                timeout=IN_FORCE,
                what="the kind to be served",
                ignoring=(httpx2.HTTPStatusError,),
            )
    paths = {kind: {name: f"{path}/{name}" for name in made} for kind, path in JOBS.items()}
    for kind in paths.values():
        lab.until(
            lambda path=kind["running"]: (
                "403" in account.patch(path, {"metadata": {"labels": {"a": "b"}}})
            ),
            timeout=IN_FORCE,
            what="the policy to know the kind",
        )
    yield paths
    for each in DEFINITIONS:
        client.delete(Definition, each["metadata"]["name"])


def change(
    kind: str, suspend: bool | None, *, mark: str | bool | None = False, **more: Any
) -> dict[str, Any]:
    """A merge patch, with more of metadata and spec; a mark of False says nothing about it."""
    metadata: dict[str, Any] = {}
    if mark is not False:
        metadata = {field: {manifests.SUSPENDED: mark} for field in ("labels", "annotations")}
    for field, extra in more.get("metadata", {}).items():
        marked = metadata.get(field, {})
        metadata[field] = {**marked, **extra} if isinstance(extra, dict) else extra
    spec = {"runPolicy": {"suspend": suspend}} if kind == "training" else {"suspend": suspend}
    return {"metadata": metadata, "spec": spec | more.get("spec", {})}


EACH = pytest.mark.parametrize("kind", JOBS)


# It keeps the next leader from suspending the Job again.
KEPT = {"annotations": {manifests.SUSPENDED: "2026-11-21T09:00:00Z this job is resumed"}}
MAY = [
    ("running", True, "sidecar", {}),
    ("ours", False, None, {}),
    ("ours", None, None, {}),
    ("ours", False, None, {"metadata": KEPT}),
    ("resumed", False, None, {}),
    ("resumed", True, "sidecar", {}),
]


@EACH
@pytest.mark.parametrize(("job", "suspend", "mark", "more"), MAY)
def test_a_job_may_be_suspended_and_resumed(
    account: Account, jobs: dict[str, dict[str, str]],
    *, kind: str, job: str, suspend: bool | None, mark: str | None, more: dict[str, Any],
):  # fmt: skip
    assert account.patch(jobs[kind][job], change(kind, suspend, mark=mark, **more)) == ""


@EACH
@pytest.mark.parametrize(
    ("job", "suspend", "mark"),
    [
        ("running", True, False),
        ("running", False, "sidecar"),
        ("ours", False, False),
        ("ours", True, None),
        ("ours", True, "again"),
        ("suspended", True, "sidecar"),
        ("suspended", False, "sidecar"),
        ("suspended", False, False),
        ("suspended", None, False),
    ],
)
def test_what_somebody_else_suspended_is_not_resumed_and_nothing_is_suspended_unmarked(
    account: Account, jobs: dict[str, dict[str, str]],
    *, kind: str, job: str, suspend: bool | None, mark: str | bool | None,
):  # fmt: skip
    refusal = account.patch(jobs[kind][job], change(kind, suspend, mark=mark))

    assert refusal.startswith("403: ")
    assert f"suspends what runs, with label {manifests.SUSPENDED}, and resumes" in refusal


METADATA = [
    {"labels": {"team": "b"}},
    {"labels": {"team": None}},
    {"labels": {"kueue.x-k8s.io/queue-name": "mine"}},
    {"finalizers": ["a.test/b"]},
    {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "1"}]},
    {"annotations": {"team": "b"}},
    {"annotations": {"team": None}},
]


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        *((kind, {"metadata": more}) for kind in JOBS for more in METADATA),
        ("set", {"spec": {"replicatedJobs": []}}),
        ("set", {"spec": {"ttlSecondsAfterFinished": 1}}),
        ("set", {"spec": {"runPolicy": {"suspend": True}}}),
        ("batch", {"spec": {"parallelism": 1}}),
        ("batch", {"spec": {"backoffLimit": 0}}),
        ("batch", {"spec": {"activeDeadlineSeconds": 1}}),
        ("batch", {"spec": {"ttlSecondsAfterFinished": 1}}),
        ("training", {"spec": {"xgbReplicaSpecs": {"Worker": {"replicas": 2}}}}),
        ("training", {"spec": {"xgbReplicaSpecs": None}}),
        ("training", {"spec": {"added": "x"}}),
        ("training", {"spec": {"suspend": True}}),
        ("training", {"spec": {"runPolicy": {"suspend": True, "cleanPodPolicy": "All"}}}),
        ("training", {"spec": {"runPolicy": {"suspend": True, "cleanPodPolicy": None}}}),
        ("training", {"spec": {"runPolicy": {"suspend": True, "ttlSecondsAfterFinished": 1}}}),
    ],
    ids=str,
)  # fmt: skip
def test_nothing_else_of_a_job_is_changed(
    account: Account, jobs: dict[str, dict[str, str]], kind: str, more: dict[str, Any]
):
    refusal = account.patch(jobs[kind]["running"], change(kind, True, mark="sidecar", **more))

    assert refusal.startswith("403: ")
    assert f"changes suspend and label and annotation {manifests.SUSPENDED} only" in refusal


@pytest.mark.parametrize("policy", [MODEL, f"{MODEL}-jobs", f"{MODEL}-records"])
def test_the_api_server_has_no_doubts_about_the_expressions(
    client: lightkube.Client, account: Account, policy: str
):
    """They are checked against the kinds that there are, beside being compiled."""
    status = lab.until(
        lambda: client.get(ValidatingAdmissionPolicy, f"istio-aux-{MODEL}-{policy}").status,
        timeout=IN_FORCE,
        what="the check of the policy",
    )

    assert status.typeChecking
    assert status.typeChecking.expressionWarnings is None


def test_no_other_account_is_affected(
    cluster: lab.Cluster, client: lightkube.Client, account: Account, pod: Pod,
    jobs: dict[str, dict[str, str]],
):  # fmt: skip
    """Another one of the same namespace with the same rights."""
    client.create(ServiceAccount(metadata=ObjectMeta(name="somebody", namespace=MODEL)))
    somebody = administrator(cluster, MODEL, "somebody")

    assert somebody.create(meshed.pod(MODEL, "somebodys", sidecar=None)) == ""
    assert somebody.evict(pod) == ""
    for kind in JOBS:
        assert somebody.patch(jobs[kind]["suspended"], change(kind, False)) == ""

    somebody.close()
