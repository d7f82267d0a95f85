"""The webhook behind a real API server; `test_start_cases.py` has what it makes of which pod.

A webhook in trouble blocks no pod (istio#26380). Most pods are real ones: no node runs them.
"""

from __future__ import annotations

import signal
import ssl
from collections.abc import Iterator
from typing import Any

import lab
import pytest
from istio_aux.model.annotations import START
from istio_aux.start.hold import HOLD
from lab import creation, meshed
from lab.creation import Creation, Stream
from lab.meshed import annotations_of
from lab.scene import Scene
from lab.start_cases import HELD
from lab.workload import Programs, Stages, Workload, end_at_once
from lightkube.resources.core_v1 import Namespace, Pod

import certificates


def create(scene: Scene, **what: Any) -> Pod:
    return scene.client.create(meshed.nameless(scene.namespace, sidecar=None, **what))


@pytest.mark.parametrize(
    ("labels", "host_network"),
    [
        ({}, True),
        ({"app.kubernetes.io/name": "istio-aux"}, False),
        ({"model.juju.is/disable-webhook": "true"}, False),
    ],
)
def test_pods_that_have_no_sidecar_or_are_needed_for_repair_are_not_even_reviewed(
    cluster: lab.Cluster, served: Scene, labels: dict[str, str], host_network: bool
):
    """The application's own pods and its model's operator come up whatever the webhook does."""
    pod = meshed.nameless(served.namespace, sidecar=None, labels=labels)
    assert pod.spec
    pod.spec.hostNetwork = host_network

    [made] = creation.create(cluster, pod)

    assert annotations_of(made.pod) == {}
    assert not any("webhook" in key for key in made.audit(cluster))


def test_the_audit_log_says_what_was_done_and_why(cluster: lab.Cluster, served: Scene):
    changed, unchanged = creation.create(
        cluster,
        meshed.nameless(served.namespace, sidecar=None),
        meshed.nameless(served.namespace, sidecar=None, annotations={START: "none"}),
    )

    assert ours(changed.audit(cluster)) == {"reason": f"added {HOLD}", "started-with": "hold"}
    assert ours(unchanged.audit(cluster)) == {"reason": 'annotation istio-aux.io/start: "none"'}
    assert changed.warnings == ()


def ours(audit: dict[str, str]) -> dict[str, str]:
    own = "start.istio-aux.io/"
    return {key.partition(own)[2]: text for key, text in audit.items() if own in key}


def test_the_namespaces_label_can_change_under_way(webhook: Workload, scene: Scene):
    """Pods are changed while it is selected. One of an ambient mesh has no sidecars."""
    assert annotations_of(create(scene)) == {}
    webhook.select(scene.namespace)
    webhook.await_admission(scene.namespace)
    assert annotations_of(create(scene)) == HELD
    webhook.select(scene.namespace, selected=False)
    await_left_alone(scene)

    webhook.select(scene.namespace)
    webhook.await_admission(scene.namespace)
    labels = {"labels": {"istio.io/dataplane-mode": "ambient"}}
    scene.client.patch(Namespace, scene.namespace, {"metadata": labels})
    await_left_alone(scene)


def await_left_alone(scene: Scene) -> None:
    lab.until(
        lambda: annotations_of(create(scene)) == {}, what="pods of the namespace to be left alone"
    )


@pytest.fixture(scope="module")
def mortal(programs: Programs) -> Workload:
    """A workload of this file's own, with its webhook in force."""
    return programs("mortal", publish=True)


@pytest.fixture(scope="module")
def its_scene(mortal: Workload, stages: Stages) -> Scene:
    """A namespace whose pods that webhook changes, while it can."""
    return stages(mortal, changed=True)


def await_unchanged(cluster: lab.Cluster, scene: Scene) -> None:
    """Create a pod, which comes without hold; the audit log says that a webhook was given up."""
    [made] = creation.create(cluster, meshed.nameless(scene.namespace, sidecar=None))
    assert annotations_of(made.pod) == {}
    assert any(key.startswith("failed-open.") for key in made.audit(cluster))


def test_a_webhook_that_does_not_answer_blocks_no_pod(
    cluster: lab.Cluster, mortal: Workload, its_scene: Scene
):
    """istio#26380: failurePolicy Ignore, after its timeout."""
    mortal.process.kill(signal.SIGSTOP)
    try:
        await_unchanged(cluster, its_scene)
    finally:
        mortal.process.kill(signal.SIGCONT)


def test_a_webhook_that_was_killed_blocks_no_pod_and_is_used_once_it_is_back(
    cluster: lab.Cluster, mortal: Workload, its_scene: Scene
):
    """istio#26380: nobody listens; nothing has to be repaired by hand."""
    mortal.process.end()

    await_unchanged(cluster, its_scene)

    mortal.start()
    mortal.await_admission(its_scene.namespace)


# Creations a second, and at once; a machine that is busy with other things makes fewer.
SOME = 50
MANY = 200


@pytest.fixture(scope="module")
def replicas(programs: Programs) -> Iterator[list[Workload]]:
    """Two processes of one application, with their webhook in force."""
    first = programs("replicated", publish=True)
    second = first.replica("replicated-1")
    second.start()
    second.await_ready()
    second.enlist()
    yield [first, second]
    end_at_once(second)


@pytest.fixture(scope="module")
def replicated(replicas: list[Workload], stages: Stages) -> Scene:
    return stages(replicas[0], changed=True)


def refused(creations: list[Creation]) -> list[bytes]:
    return [creation.body for creation in creations if creation.status != 201]


def unchanged(creations: list[Creation]) -> list[Creation]:
    return [creation for creation in creations if HOLD.encode() not in creation.body]


def test_a_certificate_of_a_new_authority_misses_no_pod(
    cluster: lab.Cluster, replicas: list[Workload], replicated: Scene
):
    """The API server trusts both, then each process changes, then it forgets the old."""
    old = replicas[0].authority.certificate
    new = certificates.make_authority("replicated", "replicated")
    pod = meshed.nameless(replicated.namespace, sidecar=None)
    with Stream(cluster, pod, rate=SOME) as pods:
        pods.await_more(SOME // 5)
        for replica in replicas:
            replica.authority = new
        replicas[0].trusted = (old,)
        replicas[0].publish()
        chains = [replica.renew_certificate() for replica in replicas]
        lab.until(
            lambda: all(served_by(r) in chain for r, chain in zip(replicas, chains, strict=True)),
            what="both to serve their new certificates",
        )
        pods.await_more(SOME // 5)
        replicas[0].trusted = ()
        replicas[0].publish()
        pods.await_more(SOME // 5)

    assert refused(pods.creations) == []
    assert unchanged(pods.creations) == []


def served_by(replica: Workload) -> str:
    return ssl.get_server_certificate((replica.cluster.host, replica.webhook_port)).strip()


def test_a_killed_replica_fails_no_creation(
    cluster: lab.Cluster, replicas: list[Workload], replicated: Scene
):
    """istio#26380: pods may be unchanged, but only until the dead process is out of the Service."""
    replicas[1].process.end()

    # More at once than the API server has connections to the other one: some go to the dead one.
    burst = [meshed.nameless(replicated.namespace, sidecar=None) for _ in range(MANY)]
    assert refused(creation.create(cluster, *burst)) == []

    replicas[1].enlist(ready=False)
    lab.until(
        lambda: unchanged(creation.create(cluster, *burst[:SOME])) == [],
        what="every pod to be changed by the one that is left",
    )
