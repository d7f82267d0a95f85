"""Kubeflow's jobs that were there before Istio, with the real training operator: they survive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import lab
import lab.istio
import pytest
from istio_aux.repair.suspension import MARK
from lab import outcome, served
from lab.fixtures import make_namespace
from lab.outcome import Seen, await_end, look
from lab.workloads import TRAIN, Workload, container, template, training_job
from lightkube import Client
from lightkube.resources.core_v1 import Event, Namespace

NAME, REVISION = "training-race", "late"
TENSORFLOW, PYTORCH = (template(container(TRAIN, name=n)) for n in ("tensorflow", "pytorch"))
JOBS = (
    Workload("early-tf", training_job("TFJob", Worker=(2, TENSORFLOW)), "Succeeded", (0, 0)),
    Workload("early-pytorch", training_job("PyTorchJob", Master=(1, PYTORCH)), "Succeeded", (0,)),
)


@pytest.fixture(scope="module")
def client(cluster: lab.Cluster, trainer: None) -> Iterator[Client]:
    """An administrator of a cluster in which the jobs run, and no Istio of theirs is yet."""
    with cluster.client() as client:
        labels = {"istio.io/rev": REVISION, f"lab.test/{NAME}": "yes"}
        make_namespace(client, NAME, labels)
        for job in JOBS:
            client.create(job.in_namespace(NAME))

        def running() -> bool:
            seen = [look(client, job, NAME) for job in JOBS]
            return [len(each.pods) for each in seen if each.running] == [2, 1]

        lab.until(running, what="the pods of all jobs to run")
        yield client
        client.delete(Namespace, NAME)


def names(job: Seen) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in job.pods)


def true_of(job: Seen) -> set[str]:
    conditions = (job.owner.get("status") or {}).get("conditions") or []
    return {each["type"] for each in conditions if each["status"] == "True"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(NAME)


def kept(client: Client) -> set[str]:
    """The pods of which an Event says that they are not restarted as a job's."""
    # Others may report them, too: the charm of this cluster does, and restarts nothing anyway.
    because = "'s, and race-policy is not restart-jobs"
    events = client.list(Event, namespace=NAME, fields={"reason": "NoSidecar"})
    return {str(e.involvedObject.name) for e in events if str(e.message).endswith(because)}


@pytest.fixture(scope="module")
def reported(cluster: lab.Cluster, client: Client, folder: Path) -> Iterator[Mapping[str, Seen]]:
    """The jobs once Istio has come, and restarts are the policy, though not for jobs."""
    istio = lab.istio.install(cluster, "istio-late", revision=REVISION)

    def told() -> dict[str, Seen]:
        seen = {job.name: look(client, job, NAME) for job in JOBS}
        told_of = kept(client)
        return seen if all(told_of.issuperset(names(job)) for job in seen.values()) else {}

    with serving(cluster, folder, "restart"):
        seen = lab.until(told, what="the pods to be told of")
    yield seen
    istio.remove()


@pytest.fixture(scope="module")
def restarted(
    cluster: lab.Cluster, client: Client, reported: Mapping[str, Seen], folder: Path
) -> Mapping[str, Seen]:
    """The jobs once they may be restarted as well, at their end."""
    with serving(cluster, folder, "restart-jobs"):
        return {job.name: await_end(client, job, NAME) for job in JOBS}


def serving(cluster: lab.Cluster, folder: Path, policy: str) -> AbstractContextManager[object]:
    """`istio-aux serve` with a `race-policy`, and with the rights that go with that."""
    # Each has a Lease of its own: the first one's lapses long after it was killed.
    name = f"{NAME}-{policy}"
    return served.program(
        cluster, folder / name, name, {"race-policy": policy},
        selector=f"lab.test/{NAME}=yes", revisions=(REVISION,),
    )  # fmt: skip


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_job_created_before_the_injector_is_live_is_reported(
    reported: Mapping[str, Seen], job: Workload
) -> None:
    seen = reported[job.name]

    assert "Running" in true_of(seen)
    assert seen.pods
    assert not any("deletionTimestamp" in pod["metadata"] for pod in seen.pods)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_its_pods_are_replaced_and_it_succeeds_when_jobs_may_be_restarted(
    reported: Mapping[str, Seen], restarted: Mapping[str, Seen], job: Workload
) -> None:
    before, after = reported[job.name], restarted[job.name]

    assert outcome.describes(job, after.outcome), after.outcome
    assert not before.uids(finished=False) & after.uids(finished=True)
    assert names(after) == names(before)
    assert outcome.proxies(before.pods) == []
    assert after.proxies == after.freed
    assert MARK not in (after.owner["metadata"].get("labels") or {})
    assert not after.owner["spec"]["runPolicy"].get("suspend")
    replicas = after.owner["status"]["replicaStatuses"].values()
    assert not any(each.get("failed") for each in replicas)
