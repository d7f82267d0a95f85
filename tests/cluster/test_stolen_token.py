"""What somebody can do who has stolen the token of a workload that has every right.

The token is the workload's own, so roles and policies limit it as they do in a cluster of yours.
All thefts are dry runs: they reach admission, and change nothing if they are allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import lab
import lightkube
import pytest
from istio_aux.model.election import ANNOTATION as CHECKPOINT
from istio_aux.model.moment import token_life
from lab import meshed
from lab.creation import Account
from lab.scene import Scene
from lab.workload import Programs, Stages, Workload, follow, is_taken, metric
from lightkube.resources.core_v1 import Pod

import cluster as of_charm
import manifests

NAME = "robbed"
EVERYTHING = {
    "lease": f"{NAME}/{NAME}",
    "dead-proxy": "delete",
    "race-policy": "restart",
}
SEEN = ("uid", "resourceVersion")
YEARS = 2**31 - 1  # Seconds: 68 years.
WHEN = "2026-11-24T06:00:00.000000Z"
SECURITY = Path(__file__).resolve().parents[2] / "SECURITY.md"
WEEK = 7 * 24 * 60 * 60


@pytest.fixture(scope="module")
def robbed(programs: Programs) -> Workload:
    """A workload that runs, leads, and may do everything that options grant."""
    workload = programs(NAME, EVERYTHING, start=False)
    workload.use_token_file()
    workload.start()
    workload.await_ready()
    lab.until(lambda: workload.status().get("leader"), what="it to lead")
    return workload


@dataclass(frozen=True)
class Thief:
    """Who has the token, and what there is to rob."""

    account: Account
    running: Pod
    lost: Pod  # Its proxy has terminated.
    namespace: str

    def delete(self, pod: Pod, *seen: str, **options: Any) -> str:
        assert pod.metadata
        return self.account.delete(f"{self.namespace}/{pod.metadata.name}", *seen, **options)

    def job(self, name: str) -> str:
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs/{name}"

    def hold(self, *, metadata: dict[str, Any] | None = None, **spec: Any) -> str:
        return self.account.update_lease(NAME, NAME, metadata or {}, **spec)

    def tell(self, *, metadata: dict[str, Any] | None = None, **fields: Any) -> str:
        """Write an Event, which is as the workload's but for some fields."""
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": self.namespace, "name": "running"}
        where = {"namespace": self.namespace, "name": "stolen", **(metadata or {})}
        event = {
            "metadata": where,
            "eventTime": WHEN,
            "reportingController": "istio-aux.io/istio-aux",
            "reportingInstance": "istio-aux-0",
            "type": "Normal",
            "reason": "ProxyQuit",
            "action": "Quit",
            "note": "every payload container is finished",
            "regarding": about,
        } | fields
        return self.account.create_event(where["namespace"], event)


@pytest.fixture(scope="module")
def scene(client: lightkube.Client, robbed: Workload, stages: Stages) -> Scene:
    """A namespace that the workload serves, with pods that run, and a Job."""
    scene = stages(robbed)
    client.create(meshed.job(meshed.pod(scene.namespace, "running", sidecar=None), parallelism=0))
    return scene


@pytest.fixture(scope="module")
def thief(cluster: lab.Cluster, robbed: Workload, scene: Scene) -> Iterator[Thief]:
    """Who has the token, once every policy is in force."""
    account = Account(cluster, cluster.kubeconfig_for(NAME, manifests.service_account(NAME)))
    running, lost = scene.start("running"), scene.start("lost")
    scene.kubelet.finish(lost, meshed.PROXY, 137)
    scene.await_event(lost, "ProxyLost")
    thief = Thief(account, scene.look(running), lost, scene.namespace)
    for refused in (
        lambda: account.create_lease(NAME, {"name": "another"}),
        lambda: account.evict(running),
    ):
        lab.until(
            lambda refused=refused: "denied request" in refused(),
            what="the policies to be in force",
        )
    yield thief
    account.close()


def checkpoint(length: int) -> dict[str, str]:
    return {CHECKPOINT: "x" * length}


SMALL = {"lab.test/team": "a"}
HONEST: dict[str, Callable[[Thief], str]] = {
    "a Lease with a checkpoint": lambda it: it.hold(metadata={"annotations": checkpoint(65_536)}),
    "a Lease to which somebody's webhook adds a label": lambda it: it.hold(
        metadata={"labels": SMALL}
    ),
    "an Event to which somebody's webhook adds": lambda it: it.tell(
        metadata={"labels": SMALL, "annotations": SMALL}
    ),
    "a warning": lambda it: it.tell(type="Warning", reason="ProxyQuitFailed"),
}


@pytest.mark.parametrize("what", HONEST)
def test_what_the_workload_does_is_allowed(thief: Thief, what: str):
    assert HONEST[what](thief) == ""


EVICTS = "evicts within the pod's own grace period only"
DELETES = "deletes with the preconditions uid and resourceVersion, and within"
HOLDS = "writes a Lease of 60 seconds at most"
SHORT = f"writes few and short labels and annotations, and {CHECKPOINT}, only"
KEPT = "writes no finalizer and no owner"
TELLS = "writes Events of istio-aux.io/istio-aux only"
ABOUT = "writes Events on pods only"
BARE = "writes Events without series and related object only"
OWNER = {"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "1"}
NODE = {"apiVersion": "v1", "kind": "Node", "name": "scripted", "uid": "scripted"}
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "running", "uid": "running"}
PAYLOAD = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}
INTRUDER = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "intruder"},
    "spec": {"template": {"spec": PAYLOAD}},
}
LARGE = {"lab.test/large": "x" * 200_000}

THEFTS: dict[str, tuple[Callable[[Thief], str], str]] = {
    "another token, good for longer": (
        lambda it: it.account.request_token(
            f"{NAME}/{manifests.service_account(NAME)}", expirationSeconds=YEARS),
        'cannot create resource "serviceaccounts/token"'),
    "a Job is suspended, which deletes its pods": (
        lambda it: it.account.patch(it.job("running"), {"spec": {"suspend": True}}),
        'cannot patch resource "jobs"'),
    "a Job is created by a patch, which makes pods": (
        lambda it: it.account.apply(it.job("intruder"), INTRUDER), 'cannot patch resource "jobs"'),
    "an eviction kills": (
        lambda it: it.account.evict(it.running, *SEEN, gracePeriodSeconds=0), EVICTS),
    "an eviction is shorter than the pod's grace period": (
        lambda it: it.account.evict(it.running, *SEEN, gracePeriodSeconds=4), EVICTS),
    "an eviction leaves what the pod owns": (
        lambda it: it.account.evict(it.running, *SEEN, propagationPolicy="Orphan"), EVICTS),
    "a deletion kills": (lambda it: it.delete(it.lost, *SEEN, gracePeriodSeconds=0), DELETES),
    "a deletion is shorter than the pod's grace period": (
        lambda it: it.delete(it.lost, *SEEN, gracePeriodSeconds=4), DELETES),
    "a deletion is of another pod by now": (lambda it: it.delete(it.lost, "uid"), DELETES),
    "a Lease of 68 years": (lambda it: it.hold(leaseDurationSeconds=YEARS), HOLDS),
    "a Lease with a long name of its holder": (
        lambda it: it.hold(holderIdentity="x" * 254), HOLDS),
    "a Lease that nobody can renew": (lambda it: it.hold(metadata={"annotations": LARGE}), SHORT),
    "a Lease with a long checkpoint": (
        lambda it: it.hold(metadata={"annotations": checkpoint(65_537)}), SHORT),
    "a Lease that nobody can delete": (
        lambda it: it.hold(metadata={"finalizers": ["lab.test/kept"]}), KEPT),
    "a Lease that is deleted with another object": (
        lambda it: it.hold(metadata={"ownerReferences": [OWNER]}), KEPT),
    "an Event of another controller": (
        lambda it: it.tell(reportingController="kubelet"), TELLS),
    "an Event of another reason": (lambda it: it.tell(reason="OOMKilling"), TELLS),
    "an Event of another action": (lambda it: it.tell(action="Binding"), TELLS),
    "an Event about a node": (
        lambda it: it.tell(metadata={"namespace": "default"}, regarding=NODE), ABOUT),
    "an Event about a Job": (
        lambda it: it.tell(regarding={**JOB, "namespace": it.namespace}), ABOUT),
    "an Event with a long annotation": (lambda it: it.tell(metadata={"annotations": LARGE}), SHORT),
    "an Event with a checkpoint": (
        lambda it: it.tell(metadata={"annotations": checkpoint(1025)}), SHORT),
    "an Event with many labels": (
        lambda it: it.tell(metadata={"labels": {f"l-{n}": "x" for n in range(33)}}), SHORT),
    "an Event that nobody can delete": (
        lambda it: it.tell(metadata={"finalizers": ["lab.test/kept"]}), KEPT),
    "an Event with a related object": (lambda it: it.tell(related=NODE), BARE),
    "an Event that counts": (
        lambda it: it.tell(series={"count": 9, "lastObservedTime": WHEN}), BARE),
    # The API server's own rule: kubectl shows this field first.
    "an Event of an old source": (
        lambda it: it.tell(deprecatedSource={"component": "kubelet"}), "needs to be unset"),
}  # fmt: skip


@pytest.mark.parametrize("what", THEFTS)
def test_a_thief_is_refused(thief: Thief, what: str):
    theft, message = THEFTS[what]

    assert message in theft(thief)


def token_file(workload: Workload) -> Path:
    """The file from which the workload reads its token again when it changes."""
    (user,) = json.loads(workload.kubeconfig.read_text())["users"]
    return Path(user["user"]["tokenFile"])


def revoke(cluster: lab.Cluster) -> None:
    (command,) = re.findall(
        rf"^```sh run by tests/cluster/{Path(__file__).name}\n(.*?)^```$",
        SECURITY.read_text(),
        re.DOTALL | re.MULTILINE,
    )
    command = command.replace("APP=istio-aux", f"APP={NAME}").replace("my-model", NAME)
    follow(cluster, command)


def test_every_token_of_an_account_that_is_deleted_is_refused_and_it_goes_on_with_the_next(
    cluster: lab.Cluster, client: lightkube.Client, robbed: Workload, scene: Scene
):
    """The last test: from then on the thief has nothing. The workload needs no restart."""
    account = manifests.service_account(NAME)
    stolen = token_file(robbed).read_text()
    renewed = of_charm.request_token(client, account, NAME)
    assert isinstance(renewed, str)
    tokens = (stolen, renewed)
    assert all(is_taken(cluster, token) for token in tokens)

    revoke(cluster)

    # An API server takes a token that it has taken for 10 s more (TokenSuccessCacheTTL).
    lab.until(
        lambda: not any(is_taken(cluster, token) for token in tokens),
        what="the tokens to be refused",
    )
    # What the charm does in its next event.
    of_charm.apply(client, manifests.render_access(robbed.values()), manager=NAME)
    new = of_charm.request_token(client, account, NAME)
    assert isinstance(new, str)
    token_file(robbed).write_text(new)
    pod = scene.start("afterwards")
    scene.kubelet.finish(pod, "main")
    scene.await_phase(pod, "Succeeded")
    assert not any(is_taken(cluster, token) for token in tokens)
    life = token_life(new)
    assert life
    assert life.exp - life.iat == WEEK
    assert datetime.fromisoformat(robbed.status()["token-expires"]).timestamp() == life.exp
    series = "istio_aux_token_{}_timestamp_seconds"
    assert metric(robbed, series.format("issue")) == life.iat
    assert metric(robbed, series.format("expiration")) == life.exp
