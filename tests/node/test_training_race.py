"""Kubeflow's jobs that were there before Istio, with the real training operator: they survive.

Why a job waits until all its pods are gone before it is resumed is shown here, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lab
import lab.istio
import pytest
from istio_aux.repair.suspension import MARK
from lab import served
from lab.fixtures import make_namespace
from lab.istio import PROXY
from lab.workload import Workload
from lab.workloads import RESOURCES, TRAIN, container, template, training_job
from lightkube import ApiError, Client
from lightkube.resources.core_v1 import Event, Namespace, Pod
from lightkube.types import PatchType

NAME, REVISION = "training-race", "late"
JOBS = {
    "early-tf": ("TFJob", "tensorflow", {"Worker": 2}),
    "early-pytorch": ("PyTorchJob", "pytorch", {"Master": 1}),
}
# A TFJob that is resumed while its pod still ends.
IMPATIENT = "impatient"
LABEL = "training.kubeflow.org/job-name"


@dataclass(frozen=True)
class Seen:
    """A job at one moment.

    Attributes:
        job: its document.
        pods: its pods, by uid.
        kept: names of its pods of which an Event says that they are not restarted as a job's.
    """

    job: Mapping[str, Any]
    pods: Mapping[str, Pod]
    kept: set[str]

    @property
    def names(self) -> set[str]:
        """Of its pods."""
        return {str(pod.metadata.name) for pod in self.pods.values() if pod.metadata}

    @property
    def conditions(self) -> set[str]:
        """Those that are true."""
        found = self.job.get("status", {}).get("conditions", [])
        return {condition["type"] for condition in found if condition["status"] == "True"}

    def meshed(self) -> bool:
        """Whether each pod has a sidecar."""
        return all(
            PROXY in {c.name for c in pod.spec.containers} for pod in self.pods.values() if pod.spec
        )


def look(client: Client, job: str) -> Seen:
    kind = JOBS[job][0] if job in JOBS else "TFJob"
    pods = list(client.list(Pod, namespace=NAME, labels={LABEL: job}))
    # Others may report them, too: the charm of this cluster does, and restarts nothing anyway.
    events = client.list(Event, namespace=NAME, fields={"reason": "NoSidecar"})
    because = f"not restarted: it is a {kind}'s, and race-policy is not restart-jobs"
    return Seen(
        job=dict(client.get(RESOURCES[kind], job, namespace=NAME)),
        pods={str(pod.metadata.uid): pod for pod in pods if pod.metadata},
        kept={str(e.involvedObject.name) for e in events if str(e.message).endswith(because)},
    )


def create(client: Client, name: str, of: Callable[[str], dict[str, Any]]) -> None:
    kind, main, replicas = JOBS.get(name, ("TFJob", "tensorflow", {"Worker": 1}))
    number = {replica: (count, of(main)) for replica, count in replicas.items()}
    document = training_job(kind, **number)
    document["metadata"] = {"name": name, "namespace": NAME}
    client.create(RESOURCES[kind].from_dict(document))


def await_running(client: Client, *jobs: str) -> None:
    def running() -> bool:
        pods = [pod for job in jobs for pod in look(client, job).pods.values()]
        wanted = sum(sum(JOBS[job][2].values()) if job in JOBS else 1 for job in jobs)
        return [p.status.phase for p in pods if p.status] == ["Running"] * wanted

    lab.until(running, what=f"the pods of {jobs} to run", ignoring=(ApiError,))


@pytest.fixture(scope="module")
def client(cluster: lab.Cluster, trainer: None) -> Iterator[Client]:
    """An administrator of a cluster in which the jobs run, and no Istio of theirs is yet."""
    with cluster.client() as client:
        labels = {"istio.io/rev": REVISION, f"lab.test/{NAME}": "yes"}
        make_namespace(client, NAME, labels)
        for name in JOBS:
            create(client, name, lambda main: template(container(TRAIN, name=main)))
        stubborn = container("trap '' TERM; sleep 600", name="tensorflow")
        create(client, IMPATIENT, lambda _: template(stubborn, terminationGracePeriodSeconds=3))
        await_running(client, *JOBS, IMPATIENT)
        yield client
        client.delete(Namespace, NAME)


@pytest.fixture(scope="module")
def impatient(client: Client) -> set[str]:
    """The conditions of a TFJob that is resumed as soon as its pods are on their way out."""
    suspend(client, suspend=True)

    def ending() -> bool:
        seen = look(client, IMPATIENT)
        pods = [pod.metadata for pod in seen.pods.values() if pod.metadata]
        return "Suspended" in seen.conditions and all(pod.deletionTimestamp for pod in pods)

    lab.until(ending, what="its pod to be deleted")
    suspend(client, suspend=False)

    def decided() -> set[str]:
        return look(client, IMPATIENT).conditions - {"Created", "Suspended"}

    return lab.until(decided, what=f"{IMPATIENT} to fail or to run")


def suspend(client: Client, *, suspend: bool) -> None:
    client.patch(
        RESOURCES["TFJob"], IMPATIENT, {"spec": {"runPolicy": {"suspend": suspend}}},
        namespace=NAME, patch_type=PatchType.MERGE,
    )  # fmt: skip


@pytest.fixture(scope="module")
def late(cluster: lab.Cluster, impatient: set[str]) -> Iterator[None]:
    """Istio, live at last."""
    istio = lab.istio.install(cluster, "istio-late", revision=REVISION)
    yield
    istio.remove()


@pytest.fixture(scope="module")
def reported(cluster: lab.Cluster, client: Client, late: None, folder: Path) -> Mapping[str, Seen]:
    """The jobs once Istio has come, and restarts are the policy, though not for jobs."""
    client.delete(RESOURCES["TFJob"], IMPATIENT, namespace=NAME)

    def told() -> dict[str, Seen]:
        seen = {job: look(client, job) for job in JOBS}
        return seen if all(s.kept >= s.names for s in seen.values()) else {}

    with program(cluster, folder, jobs=False):
        return lab.until(told, what="the pods to be told of")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(NAME)


@pytest.fixture(scope="module")
def restarted(
    cluster: lab.Cluster, client: Client, reported: Mapping[str, Seen], folder: Path
) -> Mapping[str, Seen]:
    """The jobs once they may be restarted as well, at their end."""

    def over() -> dict[str, Seen]:
        seen = {job: look(client, job) for job in reported}
        return seen if all(s.conditions & {"Succeeded", "Failed"} for s in seen.values()) else {}

    with program(cluster, folder, jobs=True):
        return lab.until(over, what="the jobs to end")


@contextlib.contextmanager
def program(cluster: lab.Cluster, folder: Path, *, jobs: bool) -> Iterator[None]:
    """`istio-aux serve` with a policy, and with the rights that go with that."""
    # Each has a Lease of its own: the first one's lapses long after it was killed.
    name = f"{NAME}-{'restarts' if jobs else 'reports'}"
    workload = Workload(
        cluster, folder / name, name=name, model=name, selector=f"lab.test/{NAME}=yes",
        revisions=(REVISION,), more={"race-policy": "restart-jobs" if jobs else "restart"},
    )  # fmt: skip
    workload.deploy()
    workload.start()
    try:
        yield
    finally:
        served.end(workload)


@pytest.mark.parametrize("job", JOBS)
def test_a_job_created_before_the_injector_is_live_is_reported(
    reported: Mapping[str, Seen], job: str
) -> None:
    seen = reported[job]

    assert "Running" in seen.conditions
    assert not any(pod.metadata and pod.metadata.deletionTimestamp for pod in seen.pods.values())
    assert seen.names
    assert seen.kept >= seen.names


@pytest.mark.parametrize("job", JOBS)
def test_its_pods_are_replaced_and_it_succeeds_when_jobs_may_be_restarted(
    reported: Mapping[str, Seen], restarted: Mapping[str, Seen], job: str
) -> None:
    before, after = reported[job], restarted[job]

    assert "Succeeded" in after.conditions
    assert after.names == before.names
    assert not after.pods.keys() & before.pods.keys()
    assert not before.meshed()
    assert after.meshed()
    assert MARK not in after.job["metadata"].get("labels", {})
    assert not after.job["spec"]["runPolicy"].get("suspend")
    assert not any(s.get("failed") for s in after.job["status"]["replicaStatuses"].values())


def test_a_tfjob_that_is_resumed_before_its_pods_are_gone_fails(impatient: set[str]) -> None:
    """Which is why `repair.suspension` waits for them."""
    assert impatient == {"Failed"}
