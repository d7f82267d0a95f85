"""The command line on a real API server: what it finds, explains and restarts, and may not do.

The workload does not serve the pods that `audit` finds, so that they stay as they are.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab
import lab.istio
import lightkube
import pytest
from lab import crowd
from lab.crowd import Keeper, Kind
from lab.fixtures import make_namespace, vacate
from lab.kubelet import ScriptedKubelet
from lab.meshed import has_sidecar, is_ready
from lab.scene import Scene
from lab.workload import PROGRAM, Workload
from lightkube.resources.core_v1 import Namespace
from lightkube.resources.rbac_authorization_v1 import RoleBinding

# Seconds for a command. Measured on 2 busy cores: 15 s.
ANSWER = 300

DEAD = "exited 255 (Error), not restarted (restartPolicy Never)"


@pytest.fixture(scope="module")
def audited(client: lightkube.Client, kubelet: ScriptedKubelet) -> Iterator[Scene]:
    """A namespace with one pod of each kind, labelled ``audited`` with its own name."""
    name = f"audited-{secrets.token_hex(3)}"
    make_namespace(client, name, {"audited": name})
    scene = Scene(client, kubelet, name, name)
    scene.start("working")
    kubelet.finish(scene.start("stuck"), "main")
    kubelet.finish(scene.start("blocked", payload=("main", "vault-agent")), "main")
    kubelet.finish(scene.start("lost"), "istio-proxy", exit_code=255)
    scene.start("native", sidecar="native")
    scene.start("service", restart_policy="Always")
    yield scene
    client.delete(Namespace, name)


def ask(kubeconfig: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run the program with its output in pipes."""
    return subprocess.run(
        [PROGRAM, *argv, "--kubeconfig", kubeconfig],
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True, text=True, timeout=ANSWER, check=False,
    )  # fmt: skip


def test_audit_names_the_pods_that_need_a_look_and_no_others(cluster: lab.Cluster, audited: Scene):
    """T10, T13, T30, T38: each with its reason; a native sidecar and a pod at work are in order."""
    done = ask(cluster.kubeconfig, "audit", "-n", audited.namespace, "-o", "json")

    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert [(item["name"], item["state"], item["by"], item["reason"]) for item in found] == [
        ("blocked", "blocked", ["vault-agent"], "not finished: vault-agent (running)"),
        ("lost", "lost", [], f"istio-proxy {DEAD}, but not finished: main (running)"),
        ("stuck", "stuck", [], "every payload container is finished"),
    ]
    assert all(item["since"] for item in found)


@pytest.fixture(scope="module")
def installed(kubelet: ScriptedKubelet, istio: lab.istio.Istio, webhook: Workload) -> Workload:
    """Istio and istio-aux, with a selected namespace."""
    return webhook


def check(kubeconfig: Path, *argv: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit status and the worst finding of each check."""
    done = ask(kubeconfig, "check", "-o", "json", *argv)
    assert done.stderr == ""
    order = ["ok", "note", "unknown", "problem"]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    found.sort(key=lambda each: order.index(each["result"]))
    return done.returncode, {each["check"]: each for each in found}


def test_check_finds_all_in_order_where_istio_aux_works(installed: Workload):
    """With the rights of the workload: the pods of its dry runs come back changed."""
    status, found = check(installed.kubeconfig, "--config", str(installed.config))

    assert {name: each["result"] for name, each in found.items()} == {
        "rights": "ok",
        "kubernetes": "ok",
        "kubelets": "ok",
        "webhook": "ok",
        "webhook order": "ok",
        "injector": "ok",
        "native sidecars": "note",
        "namespaces": "note",
        "pods": "ok",
        "admission": "ok",
        "network": "ok",
    }
    assert "Istio injects no pod there by itself: control" in found["namespaces"]["what"]
    assert "istio-injection=enabled" in found["namespaces"]["do"]
    assert status == 0


def test_check_notices_that_the_api_server_does_not_reach_the_webhook(installed: Workload):
    """With failurePolicy Ignore nothing else tells: the pod is created unchanged."""

    process = installed.process
    process.kill(signal.SIGSTOP)
    try:
        arguments = ("--config", str(installed.config))
        early = check(installed.kubeconfig, *arguments, "--timeout", "5")
        status, found = check(installed.kubeconfig, *arguments)
    finally:
        process.kill(signal.SIGCONT)

    assert (early[0], early[1]["rights"]["result"], early[1]["time"]["what"]) == (
        1, "ok", "not known: the other checks were not finished within 5 s",
    )  # fmt: skip
    assert status == 1
    assert found["network"]["result"] == "problem"
    assert "a firewall or a NetworkPolicy may drop the connection" in found["network"]["what"]
    assert "let the API server reach port 8443" in found["network"]["do"]


def test_check_names_the_rights_that_are_missing_and_what_it_cannot_know(
    cluster: lab.Cluster, installed: Workload
):
    """Nothing that it cannot see counts as fine."""
    kubeconfig = cluster.kubeconfig_for("control", "default")

    status, found = check(kubeconfig, "--config", str(installed.config))

    assert (status, found["rights"]["result"]) == (1, "problem")
    assert "may not get pods (to see which pods are finished)" in found["rights"]["what"]
    assert {found[each]["result"] for each in ("kubernetes", "namespaces", "injectors")} == {
        "unknown"
    }


KINDS = {
    "plain": Kind("ReplicaSet", 3, "replaced", kept=True),
    "held": Kind("ReplicaSet", 1, "refused", kept=True, budgets=({"minAvailable": 1},)),
    "batch": Kind("Job", 1, "reported", kept=True),
}


@pytest.fixture(scope="module")
def late(
    cluster: lab.Cluster, client: lightkube.Client, kubelet: ScriptedKubelet, istio: lab.istio.Istio
) -> Iterator[Keeper]:
    """A namespace that is to be injected only since after its pods were created."""
    name = f"late-{secrets.token_hex(3)}"
    make_namespace(client, name)
    with Keeper(cluster, kubelet, name) as keeper:
        for kind, what in KINDS.items():
            for document in crowd.controlled(name, kind, what):
                client.create(document)
        lab.until(lambda: sum(map(is_ready, keeper.pods())) == 5, what="5 pods to run")
        client.patch(Namespace, name, {"metadata": {"labels": {"istio-injection": "enabled"}}})
        yield keeper
        vacate(client, name)


def test_explain_finds_the_pods_of_workloads_with_rights_in_one_namespace(
    cluster: lab.Cluster, client: lightkube.Client, late: Keeper
):
    """By discovery, as kubectl does it; the role `view` is enough."""
    where = {"namespace": late.namespace}
    account = {"kind": "ServiceAccount", "name": "default", **where}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    binding = {"metadata": {"name": "viewer", **where}, "roleRef": role, "subjects": [account]}
    client.create(RoleBinding.from_dict(binding))
    kubeconfig = cluster.kubeconfig_for(late.namespace, "default")

    done = ask(
        kubeconfig, "explain", "-n", late.namespace, "-o", "json",
        "jobs.batch/batch", "rs/plain", "cj/none",
    )  # fmt: skip

    names = [json.loads(line)["name"].partition("-")[0] for line in done.stdout.splitlines()]
    assert names == ["batch", "plain", "plain", "plain"]
    assert done.stderr.splitlines() == [
        f'{late.namespace}: cj/none: 404 NotFound: cronjobs.batch "none" not found',
    ]
    assert done.returncode == 1


def uids(keeper: Keeper) -> set[str]:
    return {str(pod.metadata.uid) for pod in keeper.pods() if pod.metadata}


def verdicts(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def outcomes(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Which outcome the pods of each kind have, sorted."""
    return sorted((pod["name"].split("-")[0], pod["outcome"]) for pod in found)


def test_a_dry_run_shows_which_pods_would_be_restarted_and_restarts_none(
    cluster: lab.Cluster, late: Keeper
):
    before = uids(late)

    command = ("restart-unmeshed", "-n", late.namespace, "--dry-run", "-o", "json")
    done = ask(cluster.kubeconfig, *command)

    assert (done.returncode, done.stderr) == (0, "")
    assert outcomes(verdicts(done)) == [
        ("batch", "kept"),
        ("held", "would-restart"),
        *([("plain", "would-restart")] * 3),
    ]
    (job,) = (pod for pod in verdicts(done) if pod["name"].startswith("batch"))
    assert "race-policy is not restart-jobs" in job["reason"]
    assert uids(late) == before


def test_an_account_that_may_not_evict_is_told_what_grants_it(late: Keeper, workload: Workload):
    before = uids(late)

    done = ask(workload.kubeconfig, "restart-unmeshed", "--config", str(workload.config))

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "this account may not create pods/eviction: the option race-policy: restart grants it to"
        " the workload, and the action restart-unmeshed for as long as it runs\n"
    )
    assert uids(late) == before


def test_so_many_pods_are_restarted_one_after_another(cluster: lab.Cluster, late: Keeper):
    """T41: the next pod of a controller follows when the new one is Ready with its sidecar."""
    before = uids(late)

    command = ("restart-unmeshed", "-n", late.namespace, "--limit", "2", "-o", "json")
    done = ask(cluster.kubeconfig, *command)

    assert (done.returncode, done.stderr) == (0, "")
    assert outcomes(verdicts(done)) == [
        ("batch", "kept"),
        ("held", "kept"),
        ("plain", "kept"),
        ("plain", "restarted"),
        ("plain", "restarted"),
    ]
    assert len(before - uids(late)) == 2
    assert sum(map(has_sidecar, late.pods())) == 2


def test_a_budget_keeps_its_pods_and_all_others_are_restarted(cluster: lab.Cluster, late: Keeper):
    """What could not be restarted in time is the exit status, and each pod has its reason."""
    done = ask(
        cluster.kubeconfig,
        *("restart-unmeshed", "-n", late.namespace, "--timeout", "15", "-o", "json"),
    )

    assert (done.returncode, done.stderr) == (1, "not finished within 15 s: run it again\n")
    assert outcomes(verdicts(done)) == [
        ("batch", "kept"),
        ("held", "kept"),
        ("plain", "restarted"),
    ]
    (held,) = (pod for pod in verdicts(done) if pod["name"].startswith("held"))
    assert "disruption budget" in held["reason"]
    assert sum(map(has_sidecar, late.pods("plain"))) == 3
