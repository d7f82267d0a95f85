"""Kubeflow's MPI operator 0.8, unmodified: its own manifests and source, our image.

Its overlay `standalone`. A launcher and workers without MPI are stand-ins.
"""

from __future__ import annotations

from typing import Any

from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.apps_v1 import Deployment

from lab import Cluster, images, meshed, trainer, until, upstream

NAMESPACE = "mpi-operator"
CRD = "mpijobs.kubeflow.org"
PORT = 2222
# Instead of sshd: an answer for everybody who asks, until the pod is deleted. Unlike sshd it speaks
# last: a proxy finds out from the client's first bytes which protocol it is.
WORKER = ["nc", "-ll", "-p", str(PORT), "-e", "sh", "-c", "read -r work && echo done"]
# Instead of mpirun: it asks each host of the operator's list, and lasts longer than a moment.
LAUNCH = f"""
for host in $(cut -d' ' -f1 /etc/mpi/hostfile); do
    until echo work | nc "$host" {PORT} | grep done; do usleep 500000; done
done
sleep 1"""

MPIJob = create_namespaced_resource("kubeflow.org", "v2beta1", "MPIJob", "mpijobs")


def install(cluster: Cluster) -> None:
    """Start the operator, and end the training-operator, which has another version of its kind."""
    cluster.load(images.controller(images.MPI_OPERATOR, "mpi-operator"))
    with cluster.client() as client:
        client.patch(
            Deployment, trainer.NAME, {"spec": {"replicas": 0}}, namespace=trainer.NAMESPACE
        )
        client.delete(CustomResourceDefinition, CRD)
        until(
            lambda: meshed.is_gone(client, CustomResourceDefinition, CRD), what=f"{CRD} to be gone"
        )
    module = upstream.module("mpi-operator", "github.com/kubeflow/mpi-operator")
    overlay = module / "manifests/overlays/standalone"
    upstream.install(cluster, NAMESPACE, upstream.built(overlay, image=images.MPI_OPERATOR))


def mpi_job(launch: str = LAUNCH) -> dict[str, Any]:
    """An MPIJob whose launcher runs shell, and whose two workers run until they are deleted."""

    def replicas(number: int, name: str, command: list[str]) -> dict[str, Any]:
        container = {"name": name, "image": images.BUSYBOX, "command": command}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
        return {"replicas": number, "restartPolicy": "Never", "template": {"spec": spec}}

    spec = {
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0},
        "launcherCreationPolicy": "WaitForWorkersReady",
        "mpiReplicaSpecs": {
            "Launcher": replicas(1, "launcher", ["sh", "-c", launch]),
            "Worker": replicas(2, "worker", WORKER),
        },
    }
    return {
        "apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {}, "spec": spec,
    }  # fmt: skip
