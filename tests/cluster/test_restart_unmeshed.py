"""`istio-aux restart-unmeshed` on a real API server: what it would do, may not do, and does."""

from __future__ import annotations

import json
import secrets
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
from lab.workload import Workload
from lightkube.resources.core_v1 import Namespace

from . import test_audit

# Seconds for a command. Measured on 2 busy cores: 15 s.
ANSWER = 300

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
        lab.until(lambda: sum(map(is_ready, keeper.pods())) == 5, timeout=100, what="5 pods to run")
        client.patch(Namespace, name, {"metadata": {"labels": {"istio-injection": "enabled"}}})
        yield keeper
        vacate(client, name)


def ask(kubeconfig: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return test_audit.ask(kubeconfig, *argv, timeout=ANSWER)


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
    assert "restart-jobs is off" in job["reason"]
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
