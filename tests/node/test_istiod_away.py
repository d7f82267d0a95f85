"""istiod goes, the unit restarts, Jobs finish; and the charm catches up when istiod is back.

Nobody can write a PeerAuthentication meanwhile: Istio's validator has `failurePolicy: Fail`.
"""

from __future__ import annotations

from collections.abc import Iterator

import lab.istio
import lab.juju
import pytest
from lab.meshed import is_ready
from lab.workload import follow
from lab.workloads import Workload, await_end, container, describes, pod
from lightkube import ApiError, Client
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import Pod

PeerAuthentication = create_namespaced_resource(
    "security.istio.io", "v1", "PeerAuthentication", "peerauthentications"
)
TRAIN = Workload(
    "train", pod(container("while [ ! -e /tmp/end ]; do sleep 0.2; done")), "Succeeded", (0,)
)


@pytest.fixture
def running(client: Client, selected: str) -> str:
    """A meshed pod whose payload runs until the file `/tmp/end` is there."""
    client.create(TRAIN.in_namespace(selected))
    lab.until(
        lambda: is_ready(client.get(Pod, "train", namespace=selected)),
        what="the pod to run beside its proxy",
    )
    return selected


@pytest.fixture
def away(client: Client, running: str, istio: lab.istio.Istio) -> Iterator[lab.istio.Istio]:
    """Istio, whose istiod is gone; it comes back afterwards at the latest."""
    with istio.away():
        yield istio


def test_jobs_finish_although_the_unit_restarts_while_istiod_is_away(
    cluster: lab.Cluster,
    client: Client,
    running: str,
    away: lab.istio.Istio,
    istio_aux: lab.juju.App,
) -> None:
    model = istio_aux.model.name
    client.delete(PeerAuthentication, istio_aux.name, namespace=model)
    unit = istio_aux.leader.containers["istio-aux"]
    workload = unit.service_pid("istio-aux")

    unit.process.restart()
    lab.until(
        lambda: unit.service_pid("istio-aux") not in (None, workload),
        what="the workload to run again",
        ignoring=(OSError, IndexError),
    )
    follow(cluster, f"kubectl -n {running} exec train -c main -- touch /tmp/end")
    ended = await_end(client, TRAIN, running)
    assert describes(TRAIN, ended.outcome), ended.outcome
    istio_aux.settle()
    assert "not applied: PeerAuthentication" in istio_aux.status()[1]

    away.come_back()
    lab.until(
        lambda: client.get(PeerAuthentication, istio_aux.name, namespace=model),
        what="the charm to catch up, without an event but the workload's notice",
        ignoring=(ApiError,),
    )
    istio_aux.settle()
    assert istio_aux.status()[0] == "active", istio_aux.status()
