"""The command line on a real API server: what it finds, explains, restarts, frees, and may not do.

The workload does not serve the pods that `audit` finds, so that they stay as they are. Who frees
what hangs in their own namespace has only the rights there.
"""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lab.istio
import lightkube
import pytest
import yaml
from istio_aux.model.annotations import INJECTED
from lab import meshed, scene, tools, workloads
from lab.fixtures import make_namespace, vacate
from lab.kubelet import ScriptedKubelet
from lab.meshed import has_sidecar
from lab.scene import Crowd, Kind, Scene
from lab.workload import Workload, ask
from lightkube import KubeConfig, codecs
from lightkube.models.authorization_v1 import ResourceAttributes, SelfSubjectAccessReviewSpec
from lightkube.models.core_v1 import ResourceQuotaSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.rbac_v1 import PolicyRule, RoleRef, Subject
from lightkube.resources.authorization_v1 import SelfSubjectAccessReview
from lightkube.resources.core_v1 import Namespace, Pod, ResourceQuota, ServiceAccount
from lightkube.resources.rbac_authorization_v1 import ClusterRole, Role, RoleBinding

import manifests

KILLED = (
    "every other container exited with 0, but istio-proxy exited 137 (Error): the pod has failed"
)
DEAD = "exited 255 (Error), not restarted (restartPolicy Never)"


@pytest.fixture(scope="module")
def audited(client: lightkube.Client, kubelet: ScriptedKubelet) -> Iterator[Scene]:
    """A namespace with one pod of each kind, labelled ``audited`` with its own name."""
    name = f"audited-{secrets.token_hex(3)}"
    make_namespace(client, name, {"audited": name})
    scene = Scene(client, kubelet, name, name)
    start = partial(scene.start, annotations={INJECTED: "{}"})
    start("working")
    kubelet.finish(start("stuck"), "main")
    kubelet.finish(start("blocked", payload=("main", "vault-agent")), "main")
    kubelet.finish(start("lost"), "istio-proxy", exit_code=255)
    kubelet.finish(failed := start("failed"), "main")
    kubelet.finish(failed, "istio-proxy", exit_code=137)
    start("native", sidecar="native")
    start("service", restart_policy="Always")
    yield scene
    client.delete(Namespace, name)


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_audit_names_the_pods_that_need_a_look_and_no_others(cluster: lab.Cluster, audited: Scene):
    """Each with its reason; a native sidecar and a pod at work are in order.

    community-distribution#3057, kubernetes#25908, istio#45627, kubexit#8.
    """
    done = ask(cluster.kubeconfig, "audit", "-n", audited.namespace, "-o", "json")

    assert (done.returncode, done.stderr) == (0, "")
    # Times are whole seconds: the payload of one may have started when its proxy ended.
    found = [
        each | {"reason": each["reason"].partition("; the payload was")[0]} for each in lines(done)
    ]
    assert [(item["name"], item["state"], item["by"], item["reason"]) for item in found] == [
        ("blocked", "blocked", ["vault-agent"], "not finished: vault-agent (running)"),
        ("failed", "failed", [], KILLED),
        ("lost", "lost", [], f"istio-proxy {DEAD}, but not finished: main (running)"),
        ("stuck", "stuck", [], "every payload container is finished"),
    ]
    assert all(item["since"] for item in found)


@pytest.fixture(scope="module")
def installed(kubelet: ScriptedKubelet, istio: lab.istio.Istio, webhook: Workload) -> Workload:
    """Istio and istio-aux, with a selected namespace."""
    return webhook


def test_audit_of_what_kubectl_has_read_is_that_of_the_cluster(
    cluster: lab.Cluster, installed: Workload, audited: Scene, tmp_path: Path
):
    kubectl = [tools.path("kubectl"), "--kubeconfig", str(cluster.kubeconfig)]
    types = "pods,namespaces,mutatingwebhookconfigurations"
    for form in ("json", "yaml"):
        read = subprocess.run(
            [*kubectl, "get", types, "-A", "-o", form], capture_output=True, check=True
        )
        file = tmp_path / f"cluster.{form}"
        file.write_bytes(read.stdout)
        there = ask(cluster.kubeconfig, "audit", "-n", audited.namespace, "-o", "json")
        here = ask(
            cluster.kubeconfig, "audit", "-f", str(file), "-n", audited.namespace, "-o", "json"
        )
        assert (here.returncode, here.stdout) == (there.returncode, there.stdout)
        assert here.stderr.startswith("judged as of ")


def check(kubeconfig: Path, *argv: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit status and the first of the worst findings of each check."""
    done = ask(kubeconfig, "check", "-o", "json", *argv)
    assert done.stderr == ""
    order = ["ok", "note", "unknown", "problem"]
    found = sorted(lines(done), key=lambda each: order.index(each["result"]), reverse=True)
    return done.returncode, {each["check"]: each for each in reversed(found)}


def test_check_finds_all_in_order_where_istio_aux_works(installed: Workload, audited: Scene):
    """With the rights of the workload: the pods of its dry runs come back changed.

    One of the pods that are audited has failed.
    """
    status, found = check(installed.kubeconfig, "--config", str(installed.config))

    assert {name: each["result"] for name, each in found.items()} == {
        "versions": "ok",
        "rights": "ok",
        "installation": "ok",
        "kubernetes": "ok",
        "kubelets": "ok",
        "webhook": "ok",
        "webhook order": "ok",
        "injector": "ok",
        "native sidecars": "note",
        "namespaces": "note",
        "pods": "note",
        "network": "ok",
    }
    assert found["pods"]["code"] == "IA0121"
    assert "Istio injects no pod there by itself: control" in found["namespaces"]["what"]
    assert "namespace control istio-injection=enabled" in found["namespaces"]["run"]
    assert status == 0


@pytest.fixture(scope="module")
def old(client: lightkube.Client, installed: Workload, control: str) -> Iterator[None]:
    """A Job with an old script, much to fetch and a long grace period, and a quota."""
    fetch = {"name": "fetch", "image": "a", "resources": {"limits": {"memory": "2Gi"}}}
    main = {"name": "main", "image": "a", "args": ["curl localhost:15020/quitquitquit"]}
    spec = {
        "containers": [main], "initContainers": [fetch], "terminationGracePeriodSeconds": 600,
        "activeDeadlineSeconds": 600,
    }  # fmt: skip
    labels = {"app": "old", "sidecar.istio.io/inject": "true"}
    template = {"metadata": {"labels": labels}, "spec": {**spec, "restartPolicy": "OnFailure"}}
    about = {"name": "old", "namespace": control}
    made = {"metadata": about, "spec": {"template": template, "suspend": True}}
    client.create(workloads.Job.from_dict(made))
    # Only of pods with a deadline: others are created beside them.
    quota = ResourceQuotaSpec(hard={"limits.memory": "2Gi"}, scopes=["Terminating"])
    client.create(ResourceQuota(metadata=ObjectMeta(name="old", namespace=control), spec=quota))

    def counted() -> bool:
        status = client.get(ResourceQuota, "old", namespace=control).status
        return bool(status and status.hard)

    lab.until(counted, what="the quota to be counted")
    yield
    client.delete(workloads.Job, "old", namespace=control)
    client.delete(ResourceQuota, "old", namespace=control)


def test_check_counts_what_loses_the_network_when_it_is_ended(cluster: lab.Cluster, old: None):
    """istio#7136: also templates."""
    found = lines(ask(cluster.kubeconfig, "check", "-o", "json"))
    [note] = [each["what"] for each in found if "SIGTERM" in each["what"]]

    assert note.startswith("0 pods and 1 templates beside a classic sidecar have over 30 s")
    assert note.endswith("5 s after SIGTERM: control/Job/old")


def test_check_says_what_breaks_or_stays_behind_when_the_cluster_moves(
    cluster: lab.Cluster, control: str, old: None
):
    command = ("check", "-o", "json", "--to")
    native, ambient = (
        [each["what"] for each in lines(done) if control in each["check"]]
        for done in (ask(cluster.kubeconfig, *command, to) for to in ("native", "ambient"))
    )

    assert native == [
        "1 end the proxy, which is started again: their Job may count that: Job/old",
        "1 will be refused: beside a native sidecar they need more than is allowed: Job/old",
        "1 have init containers of their own, which will run inside the mesh: Job/old",
    ]
    assert ambient[0].startswith("1 end a proxy that will not be there")


def test_explain_goes_by_the_settings_of_the_installation(
    cluster: lab.Cluster, installed: Workload, audited: Scene
):
    """The API server stores them; the namespace is not selected, and the label selects it."""
    done = ask(cluster.kubeconfig, "explain", f"{audited.namespace}/stuck", "-o", "json")

    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["action"], found["installation"]) == (
        "ignore",
        manifests.webhook_configuration(installed.name, installed.model),
    )
    why = f"namespace {audited.namespace} is not selected: an admin labels the namespace"
    assert found["left_out"] == why
    assert found["change"].startswith(f"kubectl label namespace {audited.namespace} ")
    assert found["reason"].startswith("the program finished ")
    checked = ask(cluster.kubeconfig, "check").stdout
    assert f"{audited.namespace} is injected and not selected; Job-like pods" in checked


def test_check_notices_that_the_api_server_does_not_reach_the_webhook(installed: Workload):
    """With failurePolicy Ignore nothing else tells: the pod is created unchanged."""

    process = installed.process
    process.kill(signal.SIGSTOP)
    try:
        arguments = ("--config", str(installed.config))
        early = check(installed.kubeconfig, *arguments, "--timeout", "2")
        status, found = check(installed.kubeconfig, *arguments)
        # It loses its Lease after 15 s.
        process.kill(signal.SIGCONT)
        lab.until(lambda: installed.status()["leader"], what="it to lead again")
        process.kill(signal.SIGSTOP)
        without = ask(installed.kubeconfig, "check", *arguments, "--ignore", "IA0310")
    finally:
        process.kill(signal.SIGCONT)

    assert (early[0], early[1]["rights"]["result"], early[1]["time"]["what"]) == (
        1, "ok", "not known: the other checks were not finished within 2 s",
    )  # fmt: skip
    assert status == 1
    assert (found["network"]["result"], found["network"]["code"]) == ("problem", "IA0310")
    assert (without.returncode, "network" in without.stdout) == (0, False), without.stdout
    assert without.stdout.endswith("from working here; ignored: 1 (IA0310)\n")
    assert "a firewall or a NetworkPolicy may drop the connection" in found["network"]["what"]
    assert "let the API server reach port 8443" in found["network"]["do"]


def test_check_before_an_install_asks_what_the_account_that_installs_needs(
    cluster: lab.Cluster, istio: lab.istio.Istio
):
    """And says nothing of what does not exist yet."""
    status, found = check(cluster.kubeconfig, "--pre", "--namespace-selectors", "nobody=has-this")

    assert status == 0
    assert not {"webhook", "webhook order", "network", "lease"} & found.keys()
    assert (found["rights"]["result"], found["namespaces"]["result"]) == ("ok", "note")
    assert found["namespaces"]["what"] == "no namespace has the labels nobody=has-this"

    status, found = check(cluster.kubeconfig_for("control", "default"), "--pre")

    assert (status, found["rights"]["result"]) == (1, "problem")
    assert "may not create configmaps (to install)" in found["rights"]["what"]


KINDS = {
    "plain": Kind("ReplicaSet", 3),
    "held": Kind("ReplicaSet", 1, budgets=({"minAvailable": 1},)),
    "batch": Kind("Job", 1),
}


@pytest.fixture(scope="module")
def late(
    client: lightkube.Client, kubelet: ScriptedKubelet, istio: lab.istio.Istio
) -> Iterator[Crowd]:
    """A namespace that is to be injected only since after its pods were created."""
    name = f"late-{secrets.token_hex(3)}"
    make_namespace(client, name)
    found = scene.gather(client, name, KINDS)
    client.patch(Namespace, name, {"metadata": {"labels": {"istio-injection": "enabled"}}})
    yield found
    vacate(client, name)


def test_explain_finds_the_pods_of_workloads_with_rights_in_one_namespace(
    cluster: lab.Cluster, client: lightkube.Client, late: Crowd
):
    """By discovery, as kubectl does it; the role `view` is enough."""
    role = RoleRef(apiGroup="rbac.authorization.k8s.io", kind="ClusterRole", name="view")
    account = Subject(kind="ServiceAccount", name="default", namespace=late.namespace)
    metadata = ObjectMeta(name="viewer", namespace=late.namespace)
    client.create(RoleBinding(metadata=metadata, roleRef=role, subjects=[account]))
    kubeconfig = cluster.kubeconfig_for(late.namespace, "default")

    done = ask(
        kubeconfig, "explain", "-n", late.namespace, "-o", "json",
        "jobs.batch/batch", "rs/plain", "cj/none",
    )  # fmt: skip

    names = [each["name"].partition("-")[0] for each in lines(done)]
    assert names == ["batch", "plain", "plain", "plain"]
    missing = f'{late.namespace}: cj/none: 404 NotFound: cronjobs.batch "none" not found'
    assert done.stderr == f"{missing}\n"
    assert done.returncode == 1


def outcomes(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Which outcome the pods of each kind have, sorted."""
    return sorted((pod["name"].split("-")[0], pod["outcome"]) for pod in found)


def test_a_dry_run_shows_which_pods_would_be_restarted_and_restarts_none(
    cluster: lab.Cluster, late: Crowd
):
    before = late.uids()

    done = ask(
        cluster.kubeconfig, "restart-unmeshed", "-n", late.namespace, "--limit", "3", "-o", "json"
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert [pod["outcome"] for pod in lines(done)].count("would-restart") == 3
    assert late.uids() == before


def test_an_account_that_may_not_evict_is_told_what_grants_it(late: Crowd, workload: Workload):
    before = late.uids()

    done = ask(workload.kubeconfig, "restart-unmeshed", "--yes", "--config", str(workload.config))

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "this account may not create pods/eviction: the option race-policy: restart grants it to"
        " the workload, and the action restart-unmeshed for as long as it runs\n"
    )
    assert late.uids() == before


def test_so_many_pods_are_restarted_one_after_another(cluster: lab.Cluster, late: Crowd):
    """The next pod of a controller follows when the new one is Ready with its sidecar.

    istio#15873.
    """
    before = late.uids()

    command = ("restart-unmeshed", "-n", late.namespace, "--limit", "2", "--yes", "-o", "json")
    done = ask(cluster.kubeconfig, *command)

    assert (done.returncode, done.stderr) == (0, "")
    assert outcomes(lines(done)) == [
        ("batch", "kept"),
        ("held", "kept"),
        ("plain", "kept"),
        ("plain", "restarted"),
        ("plain", "restarted"),
    ]
    (beyond,) = (p for p in lines(done) if (p["name"][:5], p["outcome"]) == ("plain", "kept"))
    assert beyond["reason"].endswith("; not restarted: the limit is 2")
    assert len(before.items() - late.uids().items()) == 2
    assert sum(map(has_sidecar, late.pods())) == 2


def test_a_budget_keeps_its_pods_and_all_others_are_restarted(cluster: lab.Cluster, late: Crowd):
    """What could not be restarted in time is the exit status, and each pod has its reason."""
    done = ask(
        cluster.kubeconfig,
        *("restart-unmeshed", "-n", late.namespace, "--timeout", "15", "--yes", "-o", "json"),
    )

    assert (done.returncode, done.stderr) == (1, "not finished within 15 s: run it again\n")
    assert outcomes(lines(done)) == [
        ("batch", "kept"),
        ("held", "kept"),
        ("plain", "restarted"),
    ]
    (held,) = (pod for pod in lines(done) if pod["name"].startswith("held"))
    assert "disruption budget" in held["reason"]
    assert held["reason"].endswith("; not restarted within 15 s")
    assert sum(map(has_sidecar, late.pods("plain"))) == 3


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
