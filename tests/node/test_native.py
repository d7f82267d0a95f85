"""A Job in each of the three worlds of Istio, under the charm with its default options.

Nobody is asked for anything: the workload finds out what Istio can do, its notice wakes the charm,
and the charm renders the policy in the API server again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import lab
import lab.istio
import lab.juju
import pytest
from lab import images
from lab.deployed import await_selected
from lab.fixtures import await_account
from lab.meshed import PROXY, annotations_of, proxy_exit_code
from lightkube import Client
from lightkube.models.batch_v1 import JobSpec
from lightkube.models.core_v1 import Container, PodSpec, PodTemplateSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Namespace, Pod

# Measured: pods are started otherwise 3 s after Istio became another one; a Job takes 5 s.
SOON = 100
NATIVE, HELD = ("native", True), ("hold", False)
SPEC = PodSpec(
    containers=[Container(name="main", image=images.BUSYBOX, command=["true"])],
    restartPolicy="Never",
    terminationGracePeriodSeconds=1,
)


@pytest.fixture(scope="module")
def selected(client: Client, istio: lab.istio.Istio, istio_aux: lab.juju.App) -> Iterator[str]:
    """A namespace that all know; afterwards Istio is again what it was, and all know that too."""
    name = f"native-{secrets.token_hex(3)}"
    client.create(Namespace(metadata=ObjectMeta(name=name)))
    await_account(client, name)
    await_selected(client, name)
    yield name
    become(client, name, istio, "never", HELD)
    client.delete(Namespace, name)
    istio_aux.settle()


def become(
    client: Client,
    namespace: str,
    istio: lab.istio.Istio,
    world: lab.istio.World,
    expected: tuple[str, bool],
) -> None:
    """Let Istio become another one; return when new pods are started as is right for it."""
    istio.become(world)
    probe = Pod(metadata=ObjectMeta(name="probe", namespace=namespace), spec=SPEC)
    lab.until(
        lambda: shape(client.create(probe, dry_run=True)) == expected,
        timeout=SOON,
        what=f"pods of {namespace} to be started with {expected} where Istio is native {world}",
    )


def shape(pod: Pod) -> tuple[str | None, bool]:
    """With what the pod was started, and whether its sidecar is native."""
    assert pod.spec
    native = {c.name for c in pod.spec.initContainers or [] if c.restartPolicy == "Always"}
    return annotations_of(pod).get("istio-aux.io/started-with"), PROXY in native


@pytest.mark.parametrize(
    ("world", "expected"), [("never", HELD), ("on request", NATIVE), ("default", NATIVE)]
)
def test_a_job_is_native_where_that_can_be_had_also_on_request_and_completes(
    client: Client,
    istio: lab.istio.Istio,
    istio_aux: lab.juju.App,
    selected: str,
    *,
    world: lab.istio.World,
    expected: tuple[str, bool],
) -> None:
    become(client, selected, istio, world, expected)
    name = world.replace(" ", "-")
    spec = JobSpec(template=PodTemplateSpec(spec=SPEC), backoffLimit=0)
    client.create(Job(metadata=ObjectMeta(name=name, namespace=selected), spec=spec))

    def finished() -> bool:
        status = client.get(Job, name, namespace=selected).status
        return bool(status and status.completionTime)

    lab.until(finished, timeout=SOON, what=f"Job {selected}/{name} to complete")
    [pod] = client.list(Pod, namespace=selected, labels={"job-name": name})
    assert shape(pod) == expected
    assert proxy_exit_code(pod) == 0
    istio_aux.settle()
    said = istio_aux.status()[1]
    assert ("pods are held, not native" in said) is (expected == HELD), said
