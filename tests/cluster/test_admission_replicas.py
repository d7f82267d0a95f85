"""Two processes behind one Service while pods are created: a new certificate, a death.

Most pods are real ones: stored, and seen by the controllers; no node runs them.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import lab
import pytest
from lab import creation, meshed
from lab.bystanders import HELD
from lab.creation import Creation, Stream
from lab.scene import Scene
from lab.served import Programs, Stages, end
from lab.workload import Workload

import certificates

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
    end(second)


@pytest.fixture(scope="module")
def scene(replicas: list[Workload], stages: Stages) -> Scene:
    """A namespace whose pods they change."""
    scene = stages(replicas[0])
    replicas[0].await_admission(scene.namespace)
    return scene


def refused(creations: list[Creation]) -> list[bytes]:
    return [creation.body for creation in creations if creation.status != 201]


def unchanged(creations: list[Creation]) -> list[Creation]:
    return [creation for creation in creations if HELD not in creation.body]


def test_a_certificate_of_a_new_authority_misses_no_pod(
    cluster: lab.Cluster, replicas: list[Workload], scene: Scene
):
    """The API server trusts both, then each process changes, then it forgets the old."""
    old = replicas[0].authority.certificate
    new = certificates.make_authority("replicated", "replicated")
    pod = meshed.nameless(scene.namespace, sidecar=None)
    with Stream(cluster, pod, rate=SOME) as pods:
        pods.await_more(SOME // 5)
        for replica in replicas:
            replica.authority = new
        replicas[0].trusted = (old,)
        replicas[0].publish()
        chains = [replica.renew_certificate() for replica in replicas]
        lab.until(
            lambda: all(served_by(r) in chain for r, chain in zip(replicas, chains, strict=True)),
            timeout=30,
            what="both to serve their new certificates",
        )
        pods.await_more(SOME // 5)
        replicas[0].trusted = ()
        replicas[0].publish()
        pods.await_more(SOME // 5)

    assert refused(pods.creations) == []
    assert unchanged(pods.creations) == []


def served_by(replica: Workload) -> str:
    """The certificate with which it is answered now, PEM."""
    return ssl.get_server_certificate((replica.cluster.host, replica.webhook_port)).strip()


def test_a_killed_replica_fails_no_creation(
    cluster: lab.Cluster, replicas: list[Workload], scene: Scene
):
    """T37: pods may be unchanged, but only until the dead process is out of the Service."""
    replicas[1].process.kill()
    replicas[1].process.wait(30)

    # More at once than the API server has connections to the other one: some go to the dead one.
    burst = [meshed.nameless(scene.namespace, sidecar=None) for _ in range(MANY)]
    assert refused(creation.create(cluster, *burst)) == []

    replicas[1].enlist(ready=False)
    lab.until(
        lambda: unchanged(creation.create(cluster, *burst[:SOME])) == [],
        timeout=30,
        what="every pod to be changed by the one that is left",
    )
