"""Three kinds of Istio, and how `start-mode: auto` starts a pod under each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lightkube import Client
from lightkube.models.batch_v1 import JobSpec
from lightkube.models.core_v1 import Container, PodSpec, PodTemplateSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod

import lab.istio
from lab import images
from lab.meshed import PROXY, annotations_of
from lab.waiting import until

SPEC = PodSpec(
    containers=[Container(name="main", image=images.BUSYBOX, command=["true"])],
    restartPolicy="Never",
    terminationGracePeriodSeconds=5,
)


class Shape(NamedTuple):
    """The pod's annotation `started-with`, and whether its sidecar is native."""

    started_with: str | None
    native: bool


EXPECTED: Mapping[lab.istio.World, Shape] = {
    "never": Shape("hold", native=False),
    "on request": Shape("native", native=True),
    "default": Shape("native", native=True),
}


def become(istio: lab.istio.Istio, world: lab.istio.World, namespace: str) -> None:
    """Let Istio become another one; return when new pods of a selected namespace fit it."""
    istio.become(world)
    with istio.cluster.client() as client:
        until(
            lambda: tried(client, namespace) == EXPECTED[world],
            what=f"pods of {namespace} to start as expected where Istio is native {world}",
        )


def tried(client: Client, namespace: str) -> Shape:
    """The shape of a new pod, by a dry run."""
    probe = Pod(metadata=ObjectMeta(name="probe", namespace=namespace), spec=SPEC)
    return shape(client.create(probe, dry_run=True))


def shape(pod: Pod) -> Shape:
    """The shape of a pod."""
    assert pod.spec
    native = {c.name for c in pod.spec.initContainers or [] if c.restartPolicy == "Always"}
    return Shape(annotations_of(pod).get("istio-aux.io/started-with"), PROXY in native)


def complete(client: Client, namespace: str, name: str) -> Pod:
    """Run a Job to its end; returns its pod."""
    spec = JobSpec(template=PodTemplateSpec(spec=SPEC), backoffLimit=0)
    client.create(Job(metadata=ObjectMeta(name=name, namespace=namespace), spec=spec))

    def finished() -> bool:
        status = client.get(Job, name, namespace=namespace).status
        return bool(status and status.completionTime)

    until(finished, what=f"Job {namespace}/{name} to complete")
    [pod] = client.list(Pod, namespace=namespace, labels={"job-name": name})
    return pod
