"""Pods without their sidecar, with real controllers and budgets: which are replaced, and which not.

One story: the pods are there before Istio, and a workload restarts what it may. The tests look at
its end from several sides.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lab.istio
import lightkube
import pytest
from lab import meshed, scene, tools
from lab.fixtures import make_namespace
from lab.hooks import mutating
from lab.kubelet import ScriptedKubelet
from lab.meshed import has_sidecar
from lab.scene import Crowd, Kind
from lab.workload import Workload, metric, program
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Event, Namespace, Pod

# Measured on 2 busy cores: it is over after 10 s.
STORY = 100.0
WHO, SPACE = "repairing", "crowd"
STRIPPED = {"lab.test/stripped": "yes"}
KINDS = {
    "plain": Kind("ReplicaSet", 2),
    "agent": Kind("DaemonSet", 1),
    "held": Kind("ReplicaSet", 2, budgets=({"minAvailable": 2},)),
    "twice": Kind("ReplicaSet", 1, budgets=({"minAvailable": 0},) * 2),
    "hopeless": Kind("ReplicaSet", 3, labels=STRIPPED),
    "batch": Kind("Job", 2),
    "refuses": Kind("ReplicaSet", 1, labels={"sidecar.istio.io/inject": "false"}),
}
REPLACED = {"plain": 2, "agent": 1}


def kind_of(pod: str) -> str:
    return pod.partition("-")[0]


@dataclass(frozen=True)
class End:
    """The UIDs of the pods by name at the beginning and in the end, and what the workload said."""

    before: dict[str, str]
    after: dict[str, str]
    reasons: dict[str, list[str]]  # Why pods of each kind have no sidecar, by /status.
    log: list[dict[str, Any]]

    def gone(self) -> Counter[str]:
        uids = set(self.after.values())
        return Counter(kind_of(name) for name, uid in self.before.items() if uid not in uids)


def strip(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Take what Istio added from a pod."""
    payload = [each for each in pod["spec"]["containers"] if each["name"] == "main"]
    return [
        {"op": "replace", "path": "/spec/containers", "value": payload},
        {"op": "remove", "path": "/spec/initContainers"},
        {"op": "remove", "path": "/metadata/annotations"},
    ]


@pytest.fixture(scope="module")
def early(
    cluster: lab.Cluster, client: lightkube.Client, kubelet: ScriptedKubelet
) -> Iterator[Crowd]:
    """istio#43074: pods run, and then comes Istio, which ignores the ambient label. A webhook after
    Istio's takes the sidecar from the pods of one controller."""
    make_namespace(
        client, SPACE, {"istio-injection": "enabled", "istio.io/dataplane-mode": "ambient"}
    )
    thief = {"objectSelector": {"matchLabels": STRIPPED}}
    found = scene.gather(client, SPACE, KINDS)
    istio = lab.istio.install(cluster)
    with mutating(cluster, "zz-thief", {"zz-thief": strip}, {"zz-thief": thief}):
        yield found
    istio.remove()
    client.delete(Namespace, SPACE)


@pytest.fixture(scope="module")
def end(
    cluster: lab.Cluster, early: Crowd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[End]:
    """Once it was refused what it is refused, gave up, and did all else."""

    def reasons(workload: Workload) -> dict[str, list[str]]:
        found = dict[str, list[str]]()
        for pod in workload.status().get("unmeshed-pods", []):
            found.setdefault(kind_of(pod["name"]), []).append(pod["reason"])
        return found

    def over(workload: Workload) -> bool:
        said = reasons(workload)
        waits = (pod.metadata and pod.metadata.deletionTimestamp for pod in early.pods())
        # Between two attempts the reason says what the last one was refused for.
        refused = all("tried again later" in str(said.get(kind)) for kind in ("held", "twice"))
        stopped = metric(workload, 'istio_aux_sidecar_restarts_total{outcome="stopped"}') == 1
        replaced = not REPLACED.keys() & said.keys() and not any(waits)
        return refused and stopped and replaced

    before, settings = early.uids(), {"lease": f"{WHO}/{WHO}", "race-policy": "restart"}
    with program(cluster, tmp_path_factory.mktemp(WHO), WHO, settings) as workload:
        lab.until(lambda: over(workload), timeout=STORY, what="all restarts", every=0.2)
        yield End(before, early.uids(), reasons(workload), workload.lines())


def test_exactly_the_allowed_pods_are_replaced_and_get_a_sidecar(end: End, early: Crowd):
    """istio#15873: of those that are hopeless one is tried."""
    assert end.gone() == {**REPLACED, "hopeless": 1}
    assert {kind: len(said) for kind, said in end.reasons.items()} == {
        "batch": 2, "held": 2, "twice": 1, "hopeless": 3,
    }  # fmt: skip
    for name, count in REPLACED.items():
        assert [has_sidecar(pod) for pod in early.pods(name)] == [True] * count


def test_what_a_budget_forbids_is_said_and_not_done(end: End):
    """A PodDisruptionBudget that allows no disruption; two of them, which no eviction gets by."""
    assert "would violate the pod's disruption budget" in end.reasons["held"][0]
    assert "more than one PodDisruptionBudget" in end.reasons["twice"][0]


def test_a_replacement_without_a_sidecar_ends_the_restarts_of_its_controller(
    client: lightkube.Client, end: End
):
    """istio#15873: no loop; the new pod's Event and /status say why."""
    evicted = [line["pod"] for line in end.log if line["event"] == "restarted"]
    assert len([pod for pod in evicted if kind_of(pod) == "hopeless"]) == 1
    assert all("was evicted, is not in the mesh either" in why for why in end.reasons["hopeless"])
    events = client.list(Event, namespace=SPACE, fields={"reason": "RestartStopped"})
    [(told, code)] = {(str(e.involvedObject.name), str(e.message)[:7]) for e in events}
    assert code == "IA0115:"
    assert told in end.after.keys() - end.before.keys()


def test_the_pods_of_a_job_stay_and_the_reason_says_what_gives_it_new_ones(
    client: lightkube.Client, end: End
):
    for why in end.reasons["batch"]:
        assert "it is a Job's: delete the Job and apply it again, as `kubectl replace" in why
    job = client.get(Job, "batch", namespace=SPACE)
    assert job.status
    assert (job.status.active, job.status.failed) == (2, None)


def test_what_is_advised_for_a_job_gives_it_new_pods(
    cluster: lab.Cluster, client: lightkube.Client, namespace: str, tmp_path: Path
) -> None:
    """`owners.obstacle`: the pods of before are gone, and the API server admits new ones."""
    job = meshed.job(meshed.pod(namespace, "train", sidecar=None))
    written = tmp_path / "job.json"
    written.write_text(json.dumps({"apiVersion": "batch/v1", "kind": "Job", **job.to_dict()}))
    client.create(job)

    def pods() -> set[str]:
        found = client.list(Pod, namespace=namespace)
        return {str(each.metadata and each.metadata.uid) for each in found}

    before = lab.until(pods, what="the Job's pod")

    advised = ("replace", "--force", "-f", str(written))
    subprocess.run(
        [tools.path("kubectl"), "--kubeconfig", cluster.kubeconfig, *advised], check=True
    )

    lab.until(lambda: (now := pods()) and not now & before, what="new pods alone")
