"""Kubeflow's training-operator in the lab, from a TFJob to its condition."""

from __future__ import annotations

from typing import Any

import lab
import lab.trainer
import pytest
from lab import images
from lightkube import ApiError
from lightkube.generic_resource import GenericNamespacedResource

# Measured: 5 s, 10 s on busy cores.
SOON = 100


@pytest.fixture(scope="module")
def operator(cluster: lab.Cluster) -> None:
    cluster.load(images.busybox())
    lab.trainer.install(cluster)


def tfjob(namespace: str, name: str, script: str) -> GenericNamespacedResource:
    container = {"name": "tensorflow", "image": images.BUSYBOX, "command": ["sh", "-c", script]}
    worker = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    return lab.trainer.TFJob.from_dict(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "TFJob",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"tfReplicaSpecs": {"Worker": worker}},
        }
    )


def pytorchjob(namespace: str, name: str, *, master: str, worker: str) -> GenericNamespacedResource:
    def replica(script: str) -> dict[str, Any]:
        container = {"name": "pytorch", "image": images.BUSYBOX, "command": ["sh", "-c", script]}
        return {"replicas": 1, "template": {"spec": {"containers": [container]}}}

    return lab.trainer.PyTorchJob.from_dict(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"pytorchReplicaSpecs": {"Master": replica(master), "Worker": replica(worker)}},
        }
    )


def ending(cluster: lab.Cluster, job: GenericNamespacedResource) -> set[str]:
    """The conditions in which the job ends."""
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    with cluster.client() as client:
        client.create(job)
        return lab.until(
            lambda: (
                {"Succeeded", "Failed"}
                & conditions(client.get(type(job), name, namespace=namespace))
            ),
            timeout=SOON,
            what=f"{job.kind} {namespace}/{name} to end",
        )


def conditions(job: Any) -> set[str]:
    found = (job.status or {}).get("conditions", ())
    return {condition["type"] for condition in found if condition["status"] == "True"}


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize(("script", "expected"), [("exit 0", "Succeeded"), ("exit 1", "Failed")])
def test_a_tfjob_ends_as_its_workers_do(
    cluster: lab.Cluster, namespace: str, script: str, expected: str
) -> None:
    assert ending(cluster, tfjob(namespace, "train", script)) == {expected}


@pytest.mark.usefixtures("operator")
def test_the_workers_of_a_pytorchjob_find_their_master(
    cluster: lab.Cluster, namespace: str
) -> None:
    job = pytorchjob(
        namespace,
        "train",
        master="nc -l -p $MASTER_PORT | grep hello",
        worker="until echo hello | nc $MASTER_ADDR $MASTER_PORT; do usleep 100000; done",
    )

    assert ending(cluster, job) == {"Succeeded"}


@pytest.mark.usefixtures("operator")
def test_the_operators_own_webhook_refuses_a_malformed_tfjob(
    cluster: lab.Cluster, namespace: str
) -> None:
    job = tfjob(namespace, "train", "exit 0")
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["name"] = "other"

    with cluster.client() as client, pytest.raises(ApiError) as refused:
        client.create(job)

    assert "tensorflow" in str(refused.value)
