"""Who frees what hangs in their own namespace, with only the rights there, and who may not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lab
import lightkube
import pytest
import yaml
from lab import meshed, workloads
from lab.kubelet import ScriptedKubelet
from lab.scene import Scene
from lab.workload import ask
from lightkube import KubeConfig, codecs
from lightkube.models.authorization_v1 import ResourceAttributes, SelfSubjectAccessReviewSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.rbac_v1 import PolicyRule, RoleRef, Subject
from lightkube.resources.authorization_v1 import SelfSubjectAccessReview
from lightkube.resources.core_v1 import Pod, ServiceAccount
from lightkube.resources.rbac_authorization_v1 import ClusterRole, Role, RoleBinding

DEFAULTS = (
    "no installation's settings are known, so the defaults are used: this account may not list"
    " mutatingwebhookconfigurations"
)
MANIFEST = Path(__file__).parents[2] / "examples/free-my-jobs.yaml"
HUNG = 50

# What the ClusterRoles kubeflow-edit and kubeflow-view say of pods, by those that they aggregate
# (kubeflow/manifests f782bdb8 common/kubeflow-roles/base/cluster-roles.yaml).
LOOK = ["get", "list", "watch"]
CHANGE = ["create", "delete", "deletecollection", "patch", "update"]
PARTS = ["pods/attach", "pods/exec", "pods/portforward", "pods/proxy"]
KUBEFLOW = {
    "kubeflow-view": [(["namespaces", "pods"], LOOK)],
    "kubeflow-edit": [(["namespaces", "pods"], LOOK), (PARTS, LOOK), (["pods", *PARTS], CHANGE)],
}


@pytest.fixture(scope="module")
def kubeflow(client: lightkube.Client) -> Iterator[None]:
    """Kubeflow's ClusterRoles, as far as they are about pods."""
    for name, rules in KUBEFLOW.items():
        listed = [PolicyRule(apiGroups=[""], resources=what, verbs=verbs) for what, verbs in rules]
        client.create(ClusterRole(metadata=ObjectMeta(name=name), rules=listed))
    yield
    for name in KUBEFLOW:
        client.delete(ClusterRole, name)


def bound(cluster: lab.Cluster, client: lightkube.Client, space: str, role: str) -> Path:
    """A kubeconfig of a new account that has a role in this namespace and nothing else."""
    kind = "Role" if role == "free-my-job" else "ClusterRole"
    client.create(ServiceAccount(metadata=ObjectMeta(name="scientist", namespace=space)))
    client.create(
        RoleBinding(
            metadata=ObjectMeta(name="scientist", namespace=space),
            roleRef=RoleRef(apiGroup="rbac.authorization.k8s.io", kind=kind, name=role),
            subjects=[Subject(kind="ServiceAccount", name="scientist", namespace=space)],
        )
    )
    kubeconfig = cluster.kubeconfig_for(space, "scientist")
    wanted = ResourceAttributes(verb="watch", resource="pods", namespace=space)
    review = SelfSubjectAccessReview(spec=SelfSubjectAccessReviewSpec(resourceAttributes=wanted))

    with lightkube.Client(KubeConfig.from_file(kubeconfig), trust_env=False) as own:

        def effective() -> bool:
            status = own.create(review).status
            return status is not None and status.allowed

        lab.until(effective, what=f"the rights of {role}")
    return kubeconfig


def started(alone: Scene, names: Sequence[str], **what: Any) -> list[Pod]:
    requests = {"resources": {"requests": {"cpu": "500m", "nvidia.com/gpu": "2"},
                              "limits": {"nvidia.com/gpu": "2"}}}  # fmt: skip
    return [alone.start(name, more={"main": requests}, **what) for name in names]


def test_a_data_scientist_frees_all_that_hangs_and_nothing_that_works(
    cluster: lab.Cluster, client: lightkube.Client, kubelet: ScriptedKubelet, alone: Scene
):
    """argo-workflows#1282: with exactly the rights of the page, and while no istio-aux is there."""
    first = next(yaml.safe_load_all(MANIFEST.read_text()))
    client.create(meshed.typed(Role, first), namespace=alone.namespace)
    kubeconfig = bound(cluster, client, alone.namespace, "free-my-job")
    hung = started(alone, [f"hung-{number}" for number in range(HUNG)])
    at_work = started(alone, [f"works-{number}" for number in range(5)])
    restarted = started(alone, ["restarted"], restart_policy="OnFailure")
    uploads = started(alone, ["uploads"], payload=("main", "upload"))
    for pod in (*hung, *uploads):
        kubelet.finish(pod, "main")
    kubelet.finish(restarted[0], "main", 1)
    working = [*at_work, *restarted, *uploads]

    planned = ask(kubeconfig, "quit")
    assert (planned.returncode, planned.stderr) == (0, f"{DEFAULTS}\n")
    summary = "would-free: 50 (100 GPUs, 25 CPUs), kept: 1\nnothing is changed yet: add --yes\n"
    assert planned.stdout.endswith(summary)
    assert {alone.phase(pod) for pod in hung} == {"Running"}

    done = ask(kubeconfig, "quit", "--yes", "-o", "json")
    assert (done.returncode, done.stderr) == (0, f"{DEFAULTS}\n")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    freed = [each for each in found if each["outcome"] == "freed"]
    assert {each["name"] for each in freed} == {f"hung-{number}" for number in range(HUNG)}
    assert sum(each["requests"]["gpus"] for each in freed) == 100
    assert [(each["name"], each["outcome"]) for each in found if each not in freed] == [
        ("uploads", "kept")
    ]
    assert {alone.phase(pod) for pod in hung} == {"Succeeded"}
    assert {alone.proxy_exit_code(pod) for pod in hung} == {0}
    assert {alone.phase(pod) for pod in working} == {"Running"}
    assert [kubelet.execs_of(pod) for pod in working] == [[]] * len(working)


@pytest.mark.parametrize(
    ("role", "may"),
    [("edit", True), ("kubeflow-edit", True), ("view", False), ("kubeflow-view", False)],
)
def test_who_may_edit_may_free_and_who_may_only_view_is_told_what_is_missing(
    cluster: lab.Cluster,
    client: lightkube.Client,
    kubeflow: None,
    alone: Scene,
    *,
    role: str,
    may: bool,
):
    kubeconfig = bound(cluster, client, alone.namespace, role)
    [hung] = started(alone, ["hung"])
    alone.kubelet.finish(hung, "main")

    done = ask(kubeconfig, "quit", "hung", "--yes")

    why = "this account may not create pods/exec or pods/portforward in namespace"
    said = "" if may else f"{why} {alone.namespace}\n"
    assert (done.returncode, done.stderr) == (int(not may), f"{said}{DEFAULTS}\n")
    assert alone.phase(hung) == ("Succeeded" if may else "Running")
    if role == "edit" and workloads.EVENTS.there:
        alone.await_event(hung, "ProxyQuit")


def test_the_cronjob_of_the_page_frees_what_hangs_in_its_namespace(
    cluster: lab.Cluster, client: lightkube.Client, alone: Scene
):
    """Its command runs here with the token of its ServiceAccount."""
    made = dict[str, Any]()
    for each in yaml.safe_load_all(MANIFEST.read_text()):
        each["metadata"]["namespace"] = alone.namespace
        made[each["kind"]] = client.create(codecs.from_dict(each))
    template = made["CronJob"].spec.jobTemplate.spec.template
    program, *words = template.spec.containers[0].command
    kubeconfig = cluster.kubeconfig_for(alone.namespace, template.spec.serviceAccountName)
    [hung] = started(alone, ["hung"])
    alone.kubelet.finish(hung, "main")

    lab.until(lambda: not ask(kubeconfig, *words).returncode, what="rights of its ServiceAccount")
    assert (program, alone.phase(hung)) == ("istio-aux", "Succeeded")
