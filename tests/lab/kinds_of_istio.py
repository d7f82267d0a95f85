"""Three kinds of Istio, and how `start-mode: auto` starts a pod under each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from lightkube import Client
from lightkube.resources.core_v1 import Pod

import lab.istio
from lab.meshed import PROXY, annotations_of, typed
from lab.outcome import await_end
from lab.processes import until
from lab.workloads import Workload, container, job, pod, template

RUN = container("true")
GRACE: dict[str, Any] = {"terminationGracePeriodSeconds": 5}


class Shape(NamedTuple):
    """The pod's annotation `started-with`, and whether its sidecar is native."""

    started_with: str | None
    native: bool


EXPECTED: Mapping[lab.istio.World, Shape] = {
    "never": Shape("hold", native=False),
    "on request": Shape("native", native=True),
    "default": Shape(None, native=True),
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
    probe = Workload("probe", pod(RUN, **GRACE)).in_namespace(namespace)
    return shape(typed(Pod, client.create(probe, dry_run=True)))


def shape(made: Pod) -> Shape:
    assert made.spec
    native = {c.name for c in made.spec.initContainers or [] if c.restartPolicy == "Always"}
    return Shape(annotations_of(made).get("istio-aux.io/started-with"), PROXY in native)


def complete(client: Client, namespace: str, name: str) -> Pod:
    """Run a Job to its end; returns its pod."""
    run = Workload(name, job(template(RUN, **GRACE)))
    client.create(run.in_namespace(namespace))
    [made] = await_end(client, run, namespace).pods
    return typed(Pod, made)
