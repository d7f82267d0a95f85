"""Kubeflow's jobs that were there before Istio, with the real training operator: they run on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import lab
import lab.istio
import pytest
from lab.fixtures import make_namespace
from lab.workload import program
from lab.workloads import TRAIN, Seen, Workload, container, look, template, training_job
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


def kept(client: Client) -> set[str]:
    """The pods of which an Event says that they are not restarted as a job's."""
    # Others may report them, too: the charm of this cluster does, and restarts nothing anyway.
    because = "as `kubectl replace --force -f` does"
    events = client.list(Event, namespace=NAME, fields={"reason": "NoSidecar"})
    return {str(e.involvedObject.name) for e in events if str(e.message).endswith(because)}


@pytest.fixture(scope="module")
def reported(
    cluster: lab.Cluster, client: Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Seen]]:
    """The jobs once Istio has come, and restarts are the policy."""
    istio = lab.istio.install(cluster, "istio-late", revision=REVISION)

    def told() -> dict[str, Seen]:
        seen = {job.name: look(client, job, NAME) for job in JOBS}
        told_of = kept(client)
        return seen if all(told_of.issuperset(names(job)) for job in seen.values()) else {}

    with program(
        cluster, tmp_path_factory.mktemp(NAME), NAME, {"race-policy": "restart"},
        selector=f"lab.test/{NAME}=yes", revisions=(REVISION,),
    ):  # fmt: skip
        seen = lab.until(told, what="the pods to be told of")
    yield seen
    istio.remove()


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_job_created_before_the_injector_is_live_is_reported(
    reported: Mapping[str, Seen], job: Workload
) -> None:
    seen = reported[job.name]

    assert "Running" in true_of(seen)
    assert seen.pods
    assert not any("deletionTimestamp" in pod["metadata"] for pod in seen.pods)
